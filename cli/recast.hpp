// A layer's weight as another dialect stores it: the same values, or a sentence about what would be
// lost.
#pragma once
#include "layers.hpp"

struct Job {
    qk_layer layer;
    qk_tensor_desc desc;  // as it will be stored
};

Tensor recast(const Checkpoint &checkpoint, const Context &context, const Job &job);

struct Zeros {
    bool all_eight = true, any_zero = false;
};
// Of a layer of 4-bit integers.
Zeros zeros_of(const Checkpoint &checkpoint, const Context &context, const Job &job);
