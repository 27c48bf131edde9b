// Dequantize AWQ_GEMM: codes are [k, n / 8] in words along n, the output is [n, k]. A block takes
// 256 rows x 128 columns: it copies 128-byte lines of codes to shared memory (parts.cuh), from
// where a lane takes a word of 8 rows for 8 columns (f32 out: 4) and stores 16 bytes of each row.
// 16 lanes (f32: 32) store neighbouring bytes. Scales and zeros are loaded beside the codes, and
// blocks in a row write on where the one before ends.
// (code - zero) * scale is one fp32 product, rounded once. Bytes per output: half a code, the
// output, a share of scale and zero, each moved once.
#include "cuda/convert/parts.cuh"
#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

constexpr uint32_t kColumns = 128;

struct Problem {
    AwqCodes codes;
    const uint8_t *scale, *zero;  // of the first row; zero may be null
    qk_format scale_format;
    int64_t n;
    uint32_t group_size, blocks_along_k;
    void *out;
};

// Scales and zeros of 8 rows.
struct Eight {
    uint4 scales;
    uint32_t zeros;
};

__device__ Eight load_eight(const Problem &p, uint32_t row, int64_t group) {
    const int64_t at = group * p.n + row;
    Eight e = {__ldg(reinterpret_cast<const uint4 *>(p.scale + at * 2)), 0x88888888u};
    if (p.zero != nullptr) e.zeros = __ldg(reinterpret_cast<const uint32_t *>(p.zero + at / 2));
    return e;
}

// 8 rows x one store of columns, the first of them at `at` of the block.
template <class Out>
__device__ void expand(const Problem &p, const uint32_t *shared, const Eight &e, uint32_t row,
                       uint32_t column, uint32_t word, uint32_t at) {
    constexpr int kCodes = Store<Out>::kCodes;
    uint32_t words[kCodes];
#pragma unroll
    for (int i = 0; i < kCodes; ++i) words[i] = shared[awq_place(at + uint32_t(i), word)];
#pragma unroll
    for (int r = 0; r < 8; ++r) {
        const int nibble = (r & 1) * 4 + r / 2;
        const float zero = biased(e.zeros >> 4 * nibble);
        const float factor = half_in(e.scales, r, p.scale_format);
        float values[kCodes];
#pragma unroll
        for (int i = 0; i < kCodes; ++i) {
            values[i] = __fmul_rn(__fadd_rn(biased(words[i] >> 4 * nibble), -zero), factor);
        }
        const int64_t to = (int64_t(row) + r) * p.codes.k + column;
        __stcs(static_cast<uint4 *>(p.out) + to / kCodes, Store<Out>::pack(values));
    }
}

template <class Out>
__global__ void __launch_bounds__(kAwqThreads) transpose(const __grid_constant__ Problem p) {
    __shared__ uint2 room[kColumns * kAwqRows / 16];  // for its alignment
    uint32_t *const shared = &room[0].x;
    const uint32_t band = blockIdx.x / p.blocks_along_k;
    const uint32_t first_row = band * kAwqRows;
    const uint32_t first_column = (blockIdx.x - band * p.blocks_along_k) * kColumns;
    constexpr uint32_t kUnits = kColumns / Store<Out>::kCodes, kStep = kAwqThreads / kUnits;
    constexpr uint32_t kWords = kAwqRows / 8 / kStep;
    const uint32_t at = threadIdx.x % kUnits * Store<Out>::kCodes, column = first_column + at;
    const uint32_t word = threadIdx.x / kUnits;
    Eight eights[kWords];
    stage_awq<kColumns>(p.codes, first_row, first_column, shared, [&] {
#pragma unroll
        for (uint32_t i = 0; i < kWords; ++i) {
            const uint32_t row = first_row + (word + i * kStep) * 8;
            if (row >= p.codes.rows || column >= p.codes.k) break;
            eights[i] = load_eight(p, row, column / p.group_size);
        }
    });
#pragma unroll
    for (uint32_t i = 0; i < kWords; ++i) {
        const uint32_t row = first_row + (word + i * kStep) * 8;
        if (row >= p.codes.rows || column >= p.codes.k) break;
        expand<Out>(p, shared, eights[i], row, column, word + i * kStep, at);
    }
}

Problem problem_of(const DequantizeArgs &args) {
    const Weight &w = args.from;
    const Geometry &s = w.geometry;
    const auto plane = [&](void *data, int64_t bytes) {
        return data == nullptr ? nullptr : static_cast<const uint8_t *>(data) + bytes;
    };
    return {{plane(w.data, args.first_row / 2), s.n / 2, uint32_t(args.to.rows), uint32_t(s.k)},
            plane(w.scale.data, args.first_row * 2),
            plane(w.zero, args.first_row / 2),
            w.scale.format->id,
            s.n,
            uint32_t(min64(s.group_size, s.k)),
            uint32_t(ceil_div(s.k, kColumns)),
            args.to.data};
}

Status run(const DequantizeArgs &args, const Launch &launch) {
    const Problem p = problem_of(args);
    const uint32_t bands = uint32_t(ceil_div(args.to.rows, kAwqRows));
    const Shape3 shape = {dim3(p.blocks_along_k * bands), kAwqThreads};
    switch (args.to.format->id) {
        case QK_FORMAT_F16: return launch_kernel(launch, "dequantize", transpose<__half>, shape, p);
        case QK_FORMAT_BF16:
            return launch_kernel(launch, "dequantize", transpose<__nv_bfloat16>, shape, p);
        default: return launch_kernel(launch, "dequantize", transpose<float>, shape, p);
    }
}

bool can_run(const DequantizeArgs &args, const Device &) {
    const Weight &w = args.from;
    const Geometry &s = w.geometry;
    return is_compact(args.to) && !has_minimum(w) && w.layout->id == QK_LAYOUT_AWQ_GEMM &&
           w.format->kind == FormatKind::kU4 && w.scale.format->bits == 16 && s.n % 16 == 0 &&
           args.first_row % 16 == 0 && args.to.rows % 16 == 0 && s.k % 8 == 0 &&
           (s.group_size % 8 == 0 || s.groups_per_row == 1) && s.k < (int64_t{1} << 31) &&
           s.n < (int64_t{1} << 31) &&
           ceil_div(s.k, kColumns) * ceil_div(s.n, kAwqRows) < (int64_t{1} << 31) &&
           aligned(w.data, 8) && aligned(w.scale.data) && aligned(w.zero, 4) &&
           aligned(args.to.data);
}

}  // namespace

const Kernel<DequantizeArgs> kDequantizeAwq = {"awq", can_run, nullptr, run};

}  // namespace qk::cuda
