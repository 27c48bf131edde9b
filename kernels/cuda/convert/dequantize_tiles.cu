// Dequantize the GPU's packed tiles (16 rows x 64 columns): value = (entry - zero) * scale as one
// fp32 product, or entry * scale less a minimum, rounded once.
//
// A lane holds 16 columns of rows r and r + 8 of a tile, 16 bytes of codes, as
// linear/sm80/gemv/gemv.cu does; a quad writes 128 neighbouring bytes of each row. For 16-bit
// outputs neighbouring lanes exchange halves first, so that every store of a pair of lanes covers
// whole 32-byte sectors. kTiles tiles along k are loaded before the first is used.
#include "cuda/convert/parts.cuh"
#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"
#include "cuda/tile/row_pair.cuh"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

constexpr int32_t kThreads = 256;
constexpr int kTiles = 4;  // of a warp, along k

struct Problem {
    WeightView w;
    void *out;
    int64_t first_row, rows;  // of w, that go to rows 0 .. of out
    int32_t tiles, runs;      // of a row of tiles; of kTiles tiles
    int64_t warps;
    int32_t second_shift;  // coded: log2 of second_group, or -1
};

// Stores 16 columns that start at element `at` of a row of out; `inside`: whether they exist.
template <class Out>
__device__ void store_row(void *out, int64_t at, const float (&v)[16], bool inside) {
    const float low[8] = {v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]};
    const float high[8] = {v[8], v[9], v[10], v[11], v[12], v[13], v[14], v[15]};
    const uint4 first = Store<Out>::pack(low), second = Store<Out>::pack(high);
    const bool odd = threadIdx.x & 1;
    const uint4 give = odd ? first : second;
    const uint4 got = {__shfl_xor_sync(~0u, give.x, 1), __shfl_xor_sync(~0u, give.y, 1),
                       __shfl_xor_sync(~0u, give.z, 1), __shfl_xor_sync(~0u, give.w, 1)};
    const bool other = __shfl_xor_sync(~0u, int(inside), 1) != 0;
    uint4 *const to = static_cast<uint4 *>(out) + at / 8;
    // The even lane's columns, then the odd lane's: each lane writes the half of its own number.
    if (odd) {
        if (other) to[-1] = got;
        if (inside) to[1] = second;
    } else {
        if (inside) to[0] = first;
        if (other) to[2] = got;
    }
}

template <>
__device__ void store_row<float>(void *out, int64_t at, const float (&v)[16], bool inside) {
    if (!inside) return;
    uint4 *const to = static_cast<uint4 *>(out) + at / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        to[i] = Store<float>::pack({v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]});
    }
}

template <class Out, bool pairs, bool lowered>
__global__ void __launch_bounds__(kThreads) expand_tiles(const __grid_constant__ Problem p) {
    __shared__ float entries[256];
    fill_entries(p.w, entries);
    const Geometry &s = p.w.geometry;
    const int lane = int(threadIdx.x) & 31, quad = lane / 4;
    const int64_t warp = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / 32;
    if (warp >= p.warps) return;
    const int64_t row_tile = p.first_row / 16 + warp / p.runs;
    const int32_t first = int32_t(warp % p.runs) * kTiles;
    uint4 words[kTiles];
    float2 scales[kTiles], minima[lowered ? kTiles : 1];
    uint32_t zeros[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
        const int32_t tile = min(first + i, p.tiles - 1);
        words[i] = __ldcs(reinterpret_cast<const uint4 *>(p.w.data) +
                          (row_tile * p.tiles + tile) * 32 + lane);
        const int64_t column = min64(tile * 64 + lane % 4 * 16, s.k - 1);
        const int64_t group = uint32_t(column) / uint32_t(s.group_size);
        scales[i] = row_pair(p.w, p.w.scale, p.w.second, p.second_shift, row_tile, quad, group);
        if (lowered) {
            minima[i] = row_pair(p.w, p.w.minimum, p.w.minimum_second, p.second_shift, row_tile,
                                 quad, group);
            continue;
        }
        zeros[i] =
            p.w.zero == nullptr ? 0x88 : p.w.zero[(row_tile * s.groups_per_row + group) * 8 + quad];
    }
    const int64_t end = p.first_row + p.rows;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
        const int64_t column = (first + i) * 64 + lane % 4 * 16;
#pragma unroll
        for (int high = 0; high < 2; ++high) {
            const int64_t row = row_tile * 16 + quad + 8 * high;
            const bool zeroed = !lowered && p.w.kind == FormatKind::kU4;
            const float zero = zeroed ? float(zeros[i] >> 4 * high & 15) : 0.0f;
            const float scale = high == 0 ? scales[i].x : scales[i].y;
            float values[16];
#pragma unroll
            for (int c = 0; c < 16; ++c) {
                const float entry = entries[tile_code<pairs>(words[i], high, c)];
                values[c] = __fmul_rn(__fadd_rn(entry, -zero), scale);
                if (!lowered) continue;
                values[c] = __fadd_rn(values[c], high == 0 ? -minima[i].x : -minima[i].y);
            }
            store_row<Out>(p.out, (row - p.first_row) * s.k + column, values,
                           row < end && column < s.k);
        }
    }
}

template <class Out>
Status run_type(const Problem &p, const Launch &launch) {
    const Shape3 shape = {dim3(uint32_t(ceil_div(p.warps, kThreads / 32))), kThreads};
    const auto expand = [&](auto kernel) {
        return launch_kernel(launch, "dequantize", kernel, shape, p);
    };
    if (p.w.lowered) return expand(expand_tiles<Out, false, true>);
    return p.w.layout == kLayoutTilesPairs ? expand(expand_tiles<Out, true, false>)
                                           : expand(expand_tiles<Out, false, false>);
}

Status run(const DequantizeArgs &args, const Launch &launch) {
    const int32_t tiles = int32_t(ceil_div(args.from.geometry.k, 64));
    const int32_t runs = int32_t(ceil_div(tiles, kTiles));
    const Problem problem = {view_of(args.from),
                             args.to.data,
                             args.first_row,
                             args.to.rows,
                             tiles,
                             runs,
                             ceil_div(args.to.rows, 16) * runs,
                             second_shift_of(args.from.scale)};
    switch (args.to.format->id) {
        case QK_FORMAT_F16: return run_type<__half>(problem, launch);
        case QK_FORMAT_BF16: return run_type<__nv_bfloat16>(problem, launch);
        default: return run_type<float>(problem, launch);
    }
}

bool can_run(const DequantizeArgs &args, const Device &) {
    const Weight &w = args.from;
    const Geometry &s = w.geometry;
    const bool pairs = w.layout->id == kLayoutTilesPairs && !has_minimum(w);
    return is_compact(args.to) && (w.layout->id == kLayoutTiles || pairs) && !s.flat &&
           s.k % 16 == 0 && (s.group_size % 16 == 0 || s.groups_per_row == 1) &&
           s.k < (int64_t{1} << 30) && args.first_row % 16 == 0 &&
           ceil_div(args.to.rows, 16) * ceil_div(s.k, 64 * kTiles) < (int64_t{1} << 31) &&
           aligned(w.data) && aligned(w.scale.data) && aligned(w.minimum.data) &&
           aligned(args.to.data);
}

}  // namespace

const Kernel<DequantizeArgs> kDequantizeTiles = {"tiles", can_run, nullptr, run};

}  // namespace qk::cuda
