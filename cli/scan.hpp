// Reading raw values: what is NaN, infinite or zero.
#pragma once
#include "common.hpp"

struct ValueCounts {
    int64_t values = 0, nan = 0, infinite = 0, zero = 0;
    void add(const ValueCounts &other);
};

// F32, F16, BF16 and F64 are counted; of other types the bytes are read and nothing is counted.
ValueCounts count_values(qk_dtype dtype, const void *data, int64_t bytes);
// Every page is touched, so that a file that cannot be read is found here.
void touch(const void *data, int64_t bytes);
