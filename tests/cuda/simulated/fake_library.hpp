// Stands in for cuBLASLt: multiplies on the CPU, in f32 sums of ascending k.
#pragma once
#include "cuda/blas/lt.hpp"

namespace fake_library {

struct State {
    bool present = true;       // whether the machine has the library
    bool refuses = false;      // ... which has no algorithm for the case
    qk::Status status = QK_OK;  // of a product
    int open = 0, products = 0;
};
extern State state;

}  // namespace fake_library
