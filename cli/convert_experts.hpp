// Experts that a GGUF file has in one layer, as the layers an expert that other dialects have.
#pragma once
#include <list>

#include "recast.hpp"
#include "target.hpp"

// X.experts.gate_up_proj or X.experts.down_proj as X.experts.N.gate_proj, up_proj and down_proj,
// where the file has both. Throws for others. `names` holds the layers' names.
std::vector<Job> experts_one_by_one(const Target &target, const Checkpoint &checkpoint,
                                    const qk_layer &layer, std::list<std::string> *names);
