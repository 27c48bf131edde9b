// Dequantize the GPU's packed tiles (16 rows x 64 columns): value = (entry - zero) * scale as one
// fp32 product, or entry * scale less a minimum, rounded once.
//
//   a block takes   32 tiles side by side, 16 KiB    -> shared memory
//                   the scales of their groups       -> f32 there, each decoded once, and zeros
//   a warp          8 codes a lane (f32 out: 4) of rows r and r + 8, r its number
//                                                    -> 512 bytes of each row
//
// Every load of a thread is issued before it waits for the first. A lane's 8 columns are half of
// what a lane of a matrix product holds of a tile, 8 bytes; every second tile has its halves
// swapped in shared memory, so that 16 lanes, which read 64 bytes of two tiles each, meet in no
// bank. Bytes per output: the code, its share of the scale, and the output, each moved once.
#include "cuda/convert/parts.cuh"
#include "cuda/convert/tile_groups.cuh"
#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kTiles = 32, kColumns = kTiles * 64;  // of a block
constexpr uint32_t kTileWords = 128, kLoads = kTiles * kTileWords / 4 / kThreads;
constexpr uint32_t kGroups = kColumns / 16;  // of a block at most, in a row

struct Problem {
    WeightView w;
    void *out;
    int64_t first_row, rows;  // of w, that go to rows 0 .. of out
    uint32_t tiles, runs;     // of a row of tiles; of kTiles tiles
    IndexDivisor group;
    int32_t second_shift;  // coded: log2 of second_group, or -1
};

// Where a block is.
struct Place {
    int64_t row_tile;
    uint32_t tile, tiles;  // its first one, how many it has
    uint32_t start;        // its first column, counted from where its group begins
    int64_t group;         // the number of that
};

__device__ Place place_of(const Problem &p) {
    const uint32_t line = blockIdx.x / p.runs, tile = (blockIdx.x - line * p.runs) * kTiles;
    const int64_t group = tile * 64 / p.group.size;
    return {p.first_row / 16 + line, tile, min(p.tiles - tile, kTiles),
            uint32_t(tile * 64 - group * p.group.size), group};
}

// The place of a vector of 16 bytes of the block in shared memory.
__device__ uint32_t swapped(uint32_t vector) { return vector ^ (vector / 32 & 1) * 4; }

template <Entries kind>
struct Block {
    uint4 codes[kTiles * kTileWords / 4];
    Group<kind> groups[kGroups][8];
    float entries[16], scale_codes[256];
};

// Codes, the groups' scales and zeros, and the table to shared memory.
template <Entries kind>
__device__ void stage(const Problem &p, const Place &place, Block<kind> &block) {
    constexpr uint32_t kAhead = kGroupsAhead<kind>;
    const WeightView &w = p.w;
    const uint4 *const from = reinterpret_cast<const uint4 *>(w.data) +
                              (place.row_tile * p.tiles + place.tile) * (kTileWords / 4);
    uint4 vectors[kLoads];
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) {
        const uint32_t at = threadIdx.x + i * kThreads;
        vectors[i] = at < place.tiles * (kTileWords / 4) ? __ldcs(from + at) : uint4{};
    }
    const uint32_t columns = min(uint32_t(w.geometry.k) - place.tile * 64, kColumns);
    const uint32_t pairs = (p.group.divide(place.start + columns - 1) + 1) * 8;
    RawGroup<kind> raw[kAhead] = {};
    const auto ask = [&](uint32_t first) {
#pragma unroll
        for (uint32_t i = 0; i < kAhead; ++i) {
            const uint32_t at = first + i * kThreads;
            if (at < pairs) {
                raw[i] = load_group<kind>(w, p.second_shift, place.row_tile, int(at % 8),
                                          place.group + int64_t(at / 8));
            }
        }
    };
    ask(threadIdx.x);
    const bool coded = w.scale_format == QK_FORMAT_LUT8;
    const bool looks_up = kind == Entries::kTable && threadIdx.x < 16;
    const float entry = looks_up ? entry_of(w, int(threadIdx.x)) : 0.0f;
    const float bias = coded ? *reinterpret_cast<const float *>(w.bias) : 0.0f;
    if (coded) {
        block.scale_codes[threadIdx.x] = reinterpret_cast<const float *>(w.code)[threadIdx.x];
        __syncthreads();
    }
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) {
        block.codes[swapped(threadIdx.x + i * kThreads)] = vectors[i];
    }
    if (looks_up) block.entries[threadIdx.x] = entry;
    for (uint32_t first = threadIdx.x; first < pairs; first += kAhead * kThreads) {
        if (first != threadIdx.x) ask(first);
#pragma unroll
        for (uint32_t i = 0; i < kAhead; ++i) {
            const uint32_t at = first + i * kThreads;
            if (at >= pairs) continue;
            block.groups[at / 8][at % 8] = group_of<kind>(
                w, raw[i], bias, [&](uint32_t code) { return block.scale_codes[code]; });
        }
    }
    __syncthreads();
}

template <class Out, Entries kind>
__global__ void __launch_bounds__(kThreads) expand_tiles(const __grid_constant__ Problem p) {
    constexpr uint32_t kCodes = Store<Out>::kCodes, kStep = 32 * kCodes, kWords = kCodes / 4;
    constexpr bool kPairs = kind == Entries::kTable;
    __shared__ Block<kind> block;
    const Place place = place_of(p);
    stage(p, place, block);
    const uint32_t quad = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t row = place.row_tile * 16 + quad - p.first_row, k = p.w.geometry.k;
    const uint32_t *const words = &block.codes[0].x;
    uint4 *const out = static_cast<uint4 *>(p.out) + (row * k + place.tile * 64) / kCodes;
    const uint32_t columns = uint32_t(k) - place.tile * 64;
#pragma unroll 4
    for (uint32_t i = 0; i < kColumns / kStep; ++i) {
        const uint32_t column = i * kStep + lane * kCodes;
        if (column >= columns) break;
        const uint32_t vector = column / 64 * 32 + quad * 4 + column / 16 % 4;
        const uint32_t *const at = words + swapped(vector) * 4 + column / 4 % 4;
        const Group<kind> group = block.groups[p.group.divide(place.start + column)][quad];
        uint32_t codes[kWords];
        memcpy(codes, __builtin_assume_aligned(at, sizeof(codes)), sizeof(codes));
#pragma unroll
        for (int high = 0; high < 2; ++high) {
            float values[kCodes];
#pragma unroll
            for (uint32_t c = 0; c < kCodes; ++c) {
                const uint32_t code = word_code<kPairs>(codes[c / 4], high, int(c));
                values[c] = value_of(block.entries, group, code, high);
            }
            if (row + 8 * high >= p.rows) continue;
            __stcs(out + (8 * high * k + column) / kCodes, Store<Out>::pack(values));
        }
    }
}

template <class Out>
Status run_type(const Problem &p, const Launch &launch) {
    const int64_t blocks = ceil_div(p.rows, 16) * p.runs;
    const Shape3 shape = {dim3(uint32_t(blocks)), kThreads};
    return run_by_entries(p.w, [&]<Entries kind>() {
        return launch_kernel(launch, "dequantize", expand_tiles<Out, kind>, shape, p);
    });
}

Status run(const DequantizeArgs &args, const Launch &launch) {
    const Geometry &s = args.from.geometry;
    const uint32_t tiles = uint32_t(ceil_div(s.k, 64));
    const Problem problem = {view_of(args.from),
                             args.to.data,
                             args.first_row,
                             args.to.rows,
                             tiles,
                             uint32_t(ceil_div(tiles, kTiles)),
                             index_divisor(s.group_size),
                             second_shift_of(args.from.scale)};
    switch (args.to.format->id) {
        case QK_FORMAT_F16: return run_type<__half>(problem, launch);
        case QK_FORMAT_BF16: return run_type<__nv_bfloat16>(problem, launch);
        default: return run_type<float>(problem, launch);
    }
}

// Integers are in tiles, what looks them up has them in pairs.
bool takes_layout(const Weight &w) {
    const bool numbers = w.format->kind == FormatKind::kU4;
    return w.layout->id == (numbers ? kLayoutTiles : kLayoutTilesPairs) &&
           (numbers || !has_minimum(w));
}

bool can_run(const DequantizeArgs &args, const Device &) {
    const Weight &w = args.from;
    const Geometry &s = w.geometry;
    return is_compact(args.to) && takes_layout(w) && !s.flat && s.k % 16 == 0 &&
           (s.group_size % 16 == 0 || s.groups_per_row == 1) && s.k < (int64_t{1} << 30) &&
           s.group_size < (int64_t{1} << 31) && args.first_row % 16 == 0 &&
           ceil_div(args.to.rows, 16) * ceil_div(s.k, kColumns) < (int64_t{1} << 31) &&
           aligned(w.data) && aligned(w.scale.data) && aligned(w.minimum.data) &&
           aligned(w.scale.second, 4) && aligned(w.scale.code, 4) && aligned(w.scale.bias, 4) &&
           aligned(w.minimum.second, 4) && aligned(args.to.data);
}

}  // namespace

const Kernel<DequantizeArgs> kDequantizeTiles = {"tiles", can_run, nullptr, run};

}  // namespace qk::cuda
