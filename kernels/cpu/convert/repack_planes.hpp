// Scales, zeros and tables of a repacked weight: moved by code that every kernel shares.
#pragma once
#include "backend/arguments.hpp"

namespace qk::cpu {

// What is stored once, and zeroes in scales and zeros, where padding and nibbles want them.
void start_repacking_planes(const RepackArgs &args);
// Scales and zeros of rows first .. last, groups along k; `first` a multiple of kRowBlock.
void repack_scales_and_zeros(const RepackArgs &args, int64_t first, int64_t last);

}  // namespace qk::cpu
