// Which kernel multiplies: a pure function of the problem and the device. The thresholds are
// crossovers measured on an H200 (docs/performance-cuda.md).
#pragma once
#include <stdint.h>

#include "base/checked.hpp"

namespace qk::cuda {

enum class LinearPath {
    kGeneric,  // any case; the CPU's bits
    kMatvec,   // packed tiles, small batches: decode/
    kGemm,     // packed tiles and 8-bit codes, larger batches: gemm/
    kMiddle,   // packed tiles without wgmma: middle/
    kDirect,   // layouts of checkpoints, small batches: linear/stored/words.cu, columns.cu
    kLanes,    // what those do not take: linear/stored/lanes.cu
    kRepack,   // repack, then gemm/: linear/repacked.cpp
    kPrefill   // dequantize, then cuBLASLt: blas/
};

struct LinearCase {
    int64_t m;
    bool tiles;    // packed, and what the tile kernels take: alignment, groups, 16-bit x
    bool wgmma;    // sm_90
    bool library;  // cuBLASLt and its workspace are there
    bool direct = false, lanes = false;  // what these kernels take
    bool repacks = false;                // packed into the workspace, the matrix kernel takes it
    int64_t bytes = 0;  // 8-bit codes, which the matrix kernel takes as they are: rows of x up
                        // to which it is faster than the library
};

constexpr int64_t kMatvecRows = 16;        // more rows of x go to the matrix kernel, where it runs
constexpr int64_t kMiddleRows = 256;       // of middle/, where gemm/ does not run; more: cuBLASLt
constexpr int64_t kMiddleWholeRows = 64;   // fewer without a workspace are passes of 16 rows
constexpr int64_t kSlicesRows = 32;        // where linear/sm80/gemv/gemv.cu does not run either
constexpr int64_t kTableSlicesRows = 48;   // f32 x, small weights
constexpr int64_t kDirectRows = 32;        // not packed: more go to cuBLASLt
constexpr int64_t kGemmSignedRows = 4096;  // 8-bit codes: more are dequantized
constexpr int64_t kGemmEntriesRows = 512;  // the same, looked up
constexpr int64_t kLanesRows = 4;
constexpr int64_t kGenericRows = 8;

// Rows of x up to which passes of linear/sm90/some_rows/some_rows.cu are faster than slabs and
// cuBLASLt: of 8 rows of f32 x, which the library multiplies without tensor cores, or of 16.
constexpr int64_t slices_rows(bool f32, bool looked_up, int64_t codes) {
    if (!f32) return kSlicesRows;
    return looked_up && codes < int64_t{1} << 25 ? kTableSlicesRows : 64;
}

// Whether packed weights with 17 to 24 rows of x are for linear/sm90/some_rows/some_rows.cu rather
// than gemm/: not few rows of w, for which the former brings x too often; looked-up codes only of
// large weights, as the former looks them up in shared memory, where x is too. Second scales cost
// gemm/ more.
constexpr bool prefers_many_slices(int64_t n, int64_t k, bool looked_up, bool nested,
                                   int32_t multiprocessors) {
    return ceil_div(n, 16) > 2 * int64_t{multiprocessors} &&
           n * k >= (looked_up && !nested ? int64_t{3} << 25 : int64_t{3} << 23);
}

constexpr LinearPath choose_linear(const LinearCase &c) {
    if (c.tiles) {
        if (c.m <= kMatvecRows) return LinearPath::kMatvec;
        if (c.wgmma) return LinearPath::kGemm;
        return c.library && c.m > kMiddleRows ? LinearPath::kPrefill : LinearPath::kMiddle;
    }
    if (c.bytes > 0 && c.m > kMatvecRows && (!c.library || c.m <= c.bytes)) {
        return LinearPath::kGemm;
    }
    if (c.repacks && c.m > kMatvecRows) return LinearPath::kRepack;
    const int64_t most = c.direct ? kDirectRows : c.lanes ? kLanesRows : kGenericRows;
    if (c.library && c.m > most) return LinearPath::kPrefill;
    return c.direct ? LinearPath::kDirect : c.lanes ? LinearPath::kLanes : LinearPath::kGeneric;
}

// What slabs of rows may take of the workspace; less where a test wants several of a small weight.
#if !defined(QK_CUDA_SLAB_BYTES)
constexpr int64_t kRepackBytes = int64_t{256} << 20, kSlabBytes = int64_t{64} << 20;
#else
constexpr int64_t kRepackBytes = QK_CUDA_SLAB_BYTES, kSlabBytes = QK_CUDA_SLAB_BYTES;
#endif

// A slab's rows are whole blocks of every cut of gemm/ (linear/sm90/gemm/plan.hpp).
constexpr int64_t kRepackStep = 768;

// Rows of a slab; slabs are of about one size. `step_bytes`: what kRepackStep rows take packed.
constexpr int64_t plan_repack(int64_t n, int64_t step_bytes) {
    const int64_t steps = ceil_div(n, kRepackStep), fit = max64(kRepackBytes / step_bytes, 1);
    const int64_t slabs = ceil_div(steps, fit);
    return min64(n, ceil_div(steps, slabs) * kRepackStep);
}

// How prefill cuts a weight: rows [0, slab_rows), then the next, each dequantized and multiplied.
struct PrefillPlan {
    int64_t slab_rows;
    int64_t slab_bytes, bias_bytes;  // of the workspace, before the library's own part
};

// Slabs are multiples of 256 rows: whole tiles of every layout and of the library's kernels.
constexpr PrefillPlan plan_prefill(int64_t n, int64_t k, int64_t value_bytes) {
    const int64_t fit = round_up(ceil_div(kSlabBytes, k * value_bytes), 256);
    const int64_t rows = min64(n, fit);
    return {rows, round_up(rows * k * value_bytes, 256), round_up(n * value_bytes, 256)};
}

}  // namespace qk::cuda
