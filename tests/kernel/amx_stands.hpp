// AMX's kernels on tiles that are arrays, compiled for the AVX-512 sets that they stand on in an
// object of their own: tests/kernel's program starts on processors without them.
#pragma once
#include <stdint.h>

#include "backend/backend.hpp"

struct AmxStands {
    qk::Kernel<qk::LinearArgs> int8, int8_bytes, bf16;
    int (*sessions)();  // that there have been
    // Row j of the first tile of x in a workspace of `int8`: half of its columns, 64.
    const int8_t *(*row_of_x)(const void *tiles, int64_t j);
    int64_t rows_of_x;  // of a tile
};
extern const AmxStands kAmxStands;
