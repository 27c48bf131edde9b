// Experts that a file has in two dense tensors, gate_up_proj [E,2n,k] and down_proj [E,k,n], as
// layers an expert.
#pragma once
#include <list>
#include <string>
#include <vector>

#include "layers.hpp"

// A dense layer and where in the file its weights [n,k] are.
struct DenseLayer {
    qk_layer layer;
    const void *data;
};

struct FusedExperts {
    qk_file_tensor gate_up, down;
    std::vector<DenseLayer> layers;  // X.experts.N.gate_proj, up_proj and down_proj
};

// Not those that are transposed, which other models have. `names` holds the layers' names.
std::vector<FusedExperts> find_fused(const std::vector<qk_file_tensor> &tensors,
                                     std::list<std::string> *names);
