// Stands in for cuBLASLt (multiplies on the CPU, in f32 sums of ascending k), and what
// fake_gemm.cpp does in the place of wgmma.
#pragma once
#include "cuda/blas/lt.hpp"

namespace fake_library {

struct State {
    bool present = true;       // whether the machine has the library
    bool refuses = false;      // ... which has no algorithm for the case
    qk::Status status = QK_OK;  // of a product
    int open = 0, asked = 0, products = 0;
    bool tiles = false;  // packed weights have a matrix kernel
    int tile_products = 0, early_products = 0;  // launched; so that they may start early
};
extern State state;

}  // namespace fake_library
