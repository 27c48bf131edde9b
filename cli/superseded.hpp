// The shards of an old model, which must not stay beside a new model.safetensors.
#pragma once
#include <string>
#include <vector>

// The index of a sharded model in this directory and the files that it names, as far as they
// exist; empty without an index. model.safetensors is not among them.
std::vector<std::string> superseded_files(const std::string &directory);
