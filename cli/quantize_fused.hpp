// Experts in two dense tensors: which layers qk quantize makes of them.
#pragma once
#include "fused.hpp"
#include "scheme.hpp"

struct Fused {
    FusedExperts experts;
    std::vector<DenseLayer> parts;  // the layers that the dialect makes of them, if any
    std::string why_kept;           // why they stay dense; "" where the layers take their place
};

// All of the checkpoint. Throws where Python's loaders would not read the model with what stays
// dense. `names` holds the layers' names.
std::vector<Fused> plan_fused(const QuantizeOptions &options, const Scheme &scheme,
                              const Checkpoint &checkpoint, std::list<std::string> *names);
