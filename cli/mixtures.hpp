// Mixtures of experts: their projections together, as one line of qk inspect.
#pragma once
#include "layers.hpp"

struct Mixture {
    std::string name;             // "model.layers.0.mlp.experts"
    std::vector<qk_layer> parts;  // gate_proj, up_proj, down_proj: [E,n,k]

    std::string reason() const;  // why one has no tensor, or is of fewer experts; "": all are alike
    std::vector<std::string> not_quantized() const;  // names of parts
    int64_t experts() const;                         // of the part with the most
    int64_t bytes() const;
};

// In order of names. Of what is one layer of the file only what qk loads.
std::vector<Mixture> all_mixtures(const Checkpoint &checkpoint);
// "gate_proj" of "model.layers.0.mlp.experts.*.gate_proj"
std::string part_name(const qk_layer &layer);
// Those of no mixture.
std::vector<qk_layer> other_layers(const std::vector<qk_layer> &layers,
                                   const std::vector<Mixture> &mixtures);
