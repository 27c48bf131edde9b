// bitsandbytes' signed "dynamic" 8-bit code (Dettmers, "8-Bit Approximations for Parallelism in
// Deep Learning", 2015; functional.py, create_dynamic_map): a decimal exponent in unary, then a
// linear fraction. Sign x 7 decades of 1, 2, ... 64 steps, and 0 and 1.
#pragma once

namespace qk {

// Fills table[256], ascending; equal to the table that bitsandbytes ships, bit for bit.
void make_dynamic_table(float *table);

}  // namespace qk
