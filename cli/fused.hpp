// Experts that a file has in two dense tensors, X.experts.gate_up_proj and X.experts.down_proj:
// [E,2n,k] and [E,k,n], or transposed, [E,k,2n] and [E,n,k].
#pragma once
#include <list>
#include <string>
#include <vector>

#include "layers.hpp"

constexpr const char *kModule = ".experts", *kGateUp = ".gate_up_proj", *kDown = ".down_proj";

// Dense weights [n,k] and where in the file they are.
struct DenseLayer {
    qk_layer layer;
    const void *data;
    int64_t experts = 0;  // in a tensor of all, whose rows are one after another
    // Of transposed weights, each expert's [k,n], how far lines are apart in the file. 0: rows are
    // rows.
    int64_t line_bytes = 0;
};

struct FusedExperts {
    std::string name;  // "model.layers.0.mlp.experts"
    qk_file_tensor gate_up, down;
    bool transposed;
};

std::vector<FusedExperts> find_fused(const std::vector<qk_file_tensor> &tensors);
// As layers an expert: X.experts.N.gate_proj, up_proj and down_proj. Gate and up are halves.
// `names` holds the layers' names.
std::vector<DenseLayer> one_by_one(const FusedExperts &mixture, std::list<std::string> *names);
// The one of them that has this name, which begins with the mixture's; false: none has.
bool find_single(const FusedExperts &mixture, const char *name, DenseLayer *found);
// A tensor as one layer of all experts.
DenseLayer all_experts(const qk_file_tensor &tensor, bool transposed);
// As two layers of all experts, X.experts.gate_up_proj and X.experts.down_proj.
std::vector<DenseLayer> all_together(const FusedExperts &mixture);
