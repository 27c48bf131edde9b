// Stands in for cuBLASLt behind linear/cublaslt.cpp: multiplies on the CPU, in f32 sums of
// ascending k. What a test asks of it, and what it tells; and what fake_gemm.cpp does in the place
// of wgmma.
#pragma once
#include <string>
#include <vector>

#include "cuda/linear/cublaslt.hpp"
#include "cuda/tile/problem.hpp"

namespace fake_library {

struct State {
    bool present = true;  // whether the machine has the library, as `name`
    const char *name = "libcublasLt.so.13";
    const char *lacks = "";  // a function that it does not have
    bool refuses = false;    // ... which has no algorithm for any case
    bool fails = false;      // its products do
    int fail_at = 0;         // the number of the creation or attribute that fails, from 1; 0: none
    int open = 0;            // handles
    int objects = 0;         // descriptions not yet destroyed
    int asked = 0;           // for algorithms
    int products = 0;
    std::vector<std::string> names;  // that were looked for

    bool maps = true;  // whether the driver describes tensors
    bool refuses_maps = false;
    int tile_products = 0, early_products = 0;  // launched; so that they may start early
    qk::cuda::Codes last_codes = {};            // of the instance that ran
    qk_format last_x = {};
};
extern State state;

}  // namespace fake_library
