// What must not stay beside a new model.safetensors: shards of an old model, and its quantization.
#pragma once
#include <string>
#include <vector>

// The index of a sharded model in this directory and the files that it names, and the files other
// than config.json that say how weights are quantized, as far as they
// exist; model.safetensors is not among them.
std::vector<std::string> superseded_files(const std::string &directory);
