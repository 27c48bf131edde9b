// Dequantize AWQ_GEMM: codes lie [k, n / 8] in words along n, the output is [n, k], so the tile is
// turned in registers. A lane loads 8 columns x 2 words (16 rows) and stores 16 bytes of each row:
// 4 lanes read 32 neighbouring bytes, 8 lanes store 128 neighbouring ones. A warp turns
// 64 columns x 64 rows, a block 128 columns x 256 rows: whole 128-byte lines of codes. (code -
// zero) * scale is one fp32 product, rounded once.
#include "cuda/conditions.hpp"
#include "cuda/lists.hpp"
#include "cuda/prim/pack.cuh"
#include "cuda/runtime.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

constexpr int32_t kThreads = 256;
constexpr int64_t kTile = 64;                // rows and columns a warp
constexpr int64_t kAlongK = 2, kAlongN = 4;  // warps of a block
constexpr uint32_t kBands = 2;  // of blocks along n that advance along k together: longer reads

struct Problem {
    WeightView w;
    void *out;  // rows [first_row, end_row) of w
    int64_t blocks_along_k, first_row, end_row;
};

// Columns at .. at + 7 of the output.
template <class Out>
__device__ void store_columns(void *out, int64_t at, const float (&v)[8]) {
    __stcs(static_cast<uint4 *>(out) + at / 8, Store<Out>::pack(v));
}

template <>
__device__ void store_columns<float>(void *out, int64_t at, const float (&v)[8]) {
    uint4 *const to = static_cast<uint4 *>(out) + at / 4;
    to[0] = Store<float>::pack({v[0], v[1], v[2], v[3]});
    to[1] = Store<float>::pack({v[4], v[5], v[6], v[7]});
}

// 2^23 + code as a float, so that one subtraction gives code - zero, exactly.
__device__ float biased(uint32_t word, int nibble) {
    return __uint_as_float(0x4b000000u | (word >> 4 * nibble & 15));
}

__device__ float scale_in(uint4 four, int i, qk_format format) {
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
    const uint32_t bits = i % 2 == 0 ? words[i / 2] & 0xffffu : words[i / 2] >> 16;
    if (format == QK_FORMAT_BF16) return __uint_as_float(bits << 16);
    return __half2float(__ushort_as_half(uint16_t(bits)));
}

template <class Out>
__global__ void __launch_bounds__(kThreads) turn(const __grid_constant__ Problem p) {
    const int lane = int(threadIdx.x) & 31;
    const int warp = int(threadIdx.x) / 32;
    const Geometry &s = p.w.geometry;
    const uint32_t along_k = uint32_t(p.blocks_along_k), bands = gridDim.x / along_k;
    const uint32_t pass = blockIdx.x / (kBands * along_k), rest = blockIdx.x % (kBands * along_k);
    const uint32_t together = min(bands - pass * kBands, kBands);
    const int64_t tile_k = rest / together * kAlongK + warp / kAlongN;
    const int64_t tile_n = (pass * kBands + rest % together) * kAlongN + warp % kAlongN;
    const int64_t column = tile_k * kTile + lane / 4 * 8;
    const int64_t row = p.first_row + tile_n * kTile + lane % 4 * 16;
    if (column >= s.k || row >= p.end_row) return;
    const int64_t row_words = s.n / 8, group = uint32_t(column) / uint32_t(s.group_size);
    uint2 words[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        words[i] = __ldcs(
            reinterpret_cast<const uint2 *>(p.w.data + ((column + i) * row_words + row / 8) * 4));
    }
    const uint4 *const scales =
        reinterpret_cast<const uint4 *>(p.w.scale + (group * s.n + row) * 2);
    const uint4 scale[2] = {__ldg(scales), __ldg(scales + 1)};
    uint2 zeros = {0x88888888u, 0x88888888u};
    if (p.w.zero != nullptr) {
        zeros =
            __ldg(reinterpret_cast<const uint2 *>(p.w.zero + (group * row_words + row / 8) * 4));
    }
#pragma unroll
    for (int r = 0; r < 16; ++r) {
        const int nibble = (r & 1) * 4 + (r >> 1 & 3);
        const float zero = biased(r < 8 ? zeros.x : zeros.y, nibble);
        const float factor = scale_in(scale[r / 8], r % 8, p.w.scale_format);
        float values[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float code = biased(r < 8 ? words[i].x : words[i].y, nibble);
            values[i] = __fmul_rn(__fadd_rn(code, -zero), factor);
        }
        store_columns<Out>(p.out, (row - p.first_row + r) * s.k + column, values);
    }
}

Status run(const DequantizeArgs &args, const Launch &launch) {
    const Geometry &s = args.from.geometry;
    const int64_t along_k = ceil_div(s.k, kTile * kAlongK);
    const Problem problem = {view_of(args.from), args.to.data, along_k, args.first_row,
                             args.first_row + args.to.rows};
    const int64_t along_n = ceil_div(args.to.rows, kTile * kAlongN);
    const Shape3 shape = {dim3(uint32_t(along_k * along_n)), kThreads};
    switch (args.to.format->id) {
        case QK_FORMAT_F16:
            return launch_kernel(launch, "dequantize", turn<__half>, shape, problem);
        case QK_FORMAT_BF16:
            return launch_kernel(launch, "dequantize", turn<__nv_bfloat16>, shape, problem);
        default:
            return launch_kernel(launch, "dequantize", turn<float>, shape, problem);
    }
}

bool can_run(const DequantizeArgs &args, int32_t) {
    const Weight &w = args.from;
    const Geometry &s = w.geometry;
    return w.layout->id == QK_LAYOUT_AWQ_GEMM && w.format->kind == FormatKind::kAffine &&
           w.scale.format->bits == 16 && s.n % 16 == 0 && args.first_row % 16 == 0 &&
           args.to.rows % 16 == 0 && s.k % 8 == 0 &&
           (s.group_size % 8 == 0 || s.groups_per_row == 1) && s.k < (int64_t{1} << 31) &&
           ceil_div(s.k, kTile) * ceil_div(s.n, kTile) < (int64_t{1} << 31) && aligned(w.data) &&
           aligned(w.scale.data) && aligned(w.zero) && aligned(args.to.data);
}

}  // namespace

const Kernel<DequantizeArgs> kDequantizeAwq = {"awq", can_run, nullptr, run};

}  // namespace qk::cuda
