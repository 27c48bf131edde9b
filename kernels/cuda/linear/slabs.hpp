// Rows of a weight that pass through the workspace together: packed (linear/repacked.cpp) or in x's
// type (linear/dense.cu), and where their planes are.
#pragma once
#include "base/checked.hpp"
#include "format/layouts.hpp"

namespace qk::cuda {

// What slabs of rows may take of the workspace; less where a test wants several of a small weight.
#if !defined(QK_CUDA_SLAB_BYTES)
constexpr int64_t kRepackBytes = int64_t{256} << 20, kSlabBytes = int64_t{64} << 20;
#else
constexpr int64_t kRepackBytes = QK_CUDA_SLAB_BYTES, kSlabBytes = QK_CUDA_SLAB_BYTES;
#endif

// A slab's rows are whole blocks of every cut of linear/sm90/gemm/plan.hpp.
constexpr int64_t kRepackStep = 768;

// Rows of a slab; slabs are of about one size. `step_bytes`: what kRepackStep rows take packed.
constexpr int64_t plan_repack(int64_t n, int64_t step_bytes) {
    const int64_t steps = ceil_div(n, kRepackStep), fit = max64(kRepackBytes / step_bytes, 1);
    const int64_t slabs = ceil_div(steps, fit);
    return min64(n, ceil_div(steps, slabs) * kRepackStep);
}

// Rows [0, slab_rows), then the next, each dequantized and multiplied.
struct DensePlan {
    int64_t slab_rows;
    int64_t slab_bytes, bias_bytes;  // of the workspace, before the library's own part
};

// Slabs are multiples of 256 rows: whole tiles of every layout and of the library's kernels.
constexpr DensePlan plan_dense(int64_t n, int64_t k, int64_t value_bytes) {
    const int64_t fit = round_up(ceil_div(kSlabBytes, k * value_bytes), 256);
    const int64_t rows = min64(n, fit);
    return {rows, round_up(rows * k * value_bytes, 256), round_up(n * value_bytes, 256)};
}

struct PackedPlanes {
    int64_t scale, zero, end;
};

inline Geometry rows_of(const Geometry &s, int64_t rows) {
    Geometry slab = s;
    slab.n = rows;
    slab.group_count = rows * s.groups_per_row;
    return slab;
}

inline PackedPlanes packed_planes(const Layout &packed, const Geometry &of, int64_t rows,
                                  int64_t scale_bits, bool zeros) {
    const Geometry s = rows_of(of, rows);
    const int64_t scale = round_up(packed.data_bytes(s), 256);
    const int64_t zero = scale + round_up(packed.scale_count(s) * scale_bits / 8, 256);
    return {scale, zero, zero + (zeros ? round_up(packed.zero_bytes(s), 256) : 0)};
}

// Rows of a slab, of `n` in all.
inline int64_t packed_slab_rows(const Layout &packed, const Geometry &of, int64_t n,
                                int64_t scale_bits, bool zeros) {
    return plan_repack(n, packed_planes(packed, of, kRepackStep, scale_bits, zeros).end);
}

}  // namespace qk::cuda
