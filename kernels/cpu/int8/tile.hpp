// What the batch kernels of int8 mode share with the tiles of instruction sets.
#pragma once
#include <stdint.h>

namespace qk::cpu {
namespace {

constexpr int64_t kTaskRows = 32;  // of w, four blocks of the packed layout
constexpr int64_t kBatch = 64;     // rows of x whose sums a task keeps
constexpr int kTile = 8;           // rows of x side by side

// Of one group of a task's rows. Zeros are 0 where all have the same.
struct TileFactors {
    alignas(64) float scale[kTaskRows];
    alignas(64) int32_t zero[kTaskRows];
};

}  // namespace
}  // namespace qk::cpu
