// Scales, minima and zeros from where one layout has them to where another does; what pads a plane
// becomes zero. A warp moves patches of scales, and a lane a byte of zeros.
#pragma once
#include "cuda/convert/nibbles.cuh"
#include "cuda/convert/parts.cuh"

namespace qk::cuda {

// Threads of a block that repacks, and blocks that a multiprocessor has at least: sm_75 has room
// for 1024 threads.
constexpr int32_t kRepackThreads = 256;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
[[maybe_unused]] constexpr int32_t kRepackBlocks = 4;
#else
[[maybe_unused]] constexpr int32_t kRepackBlocks = 6;
#endif

// What follows one another in a plane: groups of a row, rows of a group, eight or sixteen of these
// (r and r + 8 side by side).
enum class GroupOrder { kRows, kGroups, kEights, kTiles };

// Where the scale or zero of a row and a group is.
struct PlaneMap {
    GroupOrder order;
    uint32_t rows, groups, all_rows, all_groups;  // all: with those that pad the plane
    uint32_t of16, of8, of1, of_group;            // steps: of 16 rows, of 8, of a row, of a group
    uint32_t shift, divisor;                      // what splits a place into a row and a group
    bool swapped, awq;  // neighbours change places; the order inside a word

    __device__ uint32_t at(uint32_t row, uint32_t group) const {
        const uint32_t in = awq ? uint32_t(awq_nibble(row & 7)) : row & 7;
        const uint32_t place =
            (row >> 4) * of16 + (row >> 3 & 1) * of8 + in * of1 + group * of_group;
        return place ^ uint32_t(swapped);
    }

    // The other way: whether a row and a group have this place.
    __device__ bool find(uint32_t place, uint32_t *row, uint32_t *group) const {
        place ^= uint32_t(swapped);
        const uint32_t number = place >> shift, high = number / divisor;
        const uint32_t low = number - high * divisor, in = place & ((1u << shift) - 1);
        if (order == GroupOrder::kGroups) {
            // Nibble 4 a + b of a word is row 2 b + a.
            *row = awq ? (low & ~7u) + (low & 3) * 2 + (low >> 2 & 1) : low;
            *group = high;
        } else {
            *row = (high << shift) + (order == GroupOrder::kTiles ? in / 2 + in % 2 * 8 : in);
            *group = low;
        }
        return *row < rows && *group < groups;
    }
};

// `width`: from a row to the next (kRows), from a group to the next (kGroups).
inline PlaneMap plane_map(GroupOrder order, const Geometry &s, int64_t width) {
    PlaneMap map = {};
    map.order = order;
    map.rows = uint32_t(s.n), map.groups = uint32_t(s.groups_per_row);
    map.all_rows = map.rows, map.all_groups = map.groups;
    map.divisor = map.groups;
    switch (order) {
        case GroupOrder::kRows:
            map.all_groups = map.divisor = map.of1 = uint32_t(width);
            map.of_group = 1;
            break;
        case GroupOrder::kGroups:
            map.all_rows = map.divisor = map.of_group = uint32_t(width);
            map.of1 = 1;
            break;
        case GroupOrder::kEights:
            map.all_rows = uint32_t(round_up(s.n, 8));
            map.shift = 3, map.of1 = 1, map.of_group = 8;
            map.of8 = map.groups * 8;
            break;
        default:
            map.all_rows = uint32_t(round_up(s.n, 16));
            map.shift = 4, map.of1 = 2, map.of8 = 1, map.of_group = 16;
            map.of16 = map.groups * 16;
            return map;
    }
    if (order != GroupOrder::kEights) map.of8 = map.of1 * 8;
    map.of16 = map.of8 * 2;
    return map;
}

inline PlaneMap scale_map(const Weight &w) {
    const Geometry &s = w.geometry;
    switch (w.layout->id) {
        case QK_LAYOUT_AWQ_GEMM:
        case QK_LAYOUT_GPTQ:
        case QK_LAYOUT_GPTQ_V1: return plane_map(GroupOrder::kGroups, s, s.n);
        case kLayoutTiles:
        case kLayoutTilesPairs: return plane_map(GroupOrder::kTiles, s, 0);
        default: return plane_map(GroupOrder::kRows, s, w.layout->scale_count(s) / s.n);
    }
}

inline PlaneMap zero_map(const Weight &w) {
    const Geometry &s = w.geometry;
    PlaneMap map = scale_map(w);
    switch (w.layout->id) {
        case QK_LAYOUT_ROW: return plane_map(GroupOrder::kRows, s, round_up(s.groups_per_row, 2));
        case QK_LAYOUT_ROW_HIGH: map.swapped = true; return map;
        case QK_LAYOUT_WORD: return plane_map(GroupOrder::kEights, s, 0);
        case QK_LAYOUT_AWQ_GEMM:
        case QK_LAYOUT_GPTQ:
        case QK_LAYOUT_GPTQ_V1:
            map = plane_map(GroupOrder::kGroups, s, round_up(s.n, 8));
            map.awq = w.layout->id == QK_LAYOUT_AWQ_GEMM;
            return map;
        default: return map;
    }
}

// A warp moves 32 rows x 8 groups, a lane a row, so that what it loads and stores is contiguous,
// rows by lanes or groups by a vector.
constexpr uint32_t kPatchRows = 32, kPatchGroups = 8;

struct GroupPlanes {
    uint8_t *scale, *minimum, *zero;  // minimum, zero: may be null
    PlaneMap scales, zeros;
    int32_t zero_offset;
    bool vectors;  // the 8 scales of a row are one
};

inline GroupPlanes group_planes(const Weight &w) {
    const auto bytes = [](void *plane) { return static_cast<uint8_t *>(plane); };
    const PlaneMap scales = scale_map(w);
    const uintptr_t vector = min64(w.scale.format->bits / 8 * kPatchGroups, 16);
    const bool vectors = scales.order == GroupOrder::kRows && scales.of1 % kPatchGroups == 0 &&
                         aligned(w.scale.data, vector) && aligned(w.minimum.data, vector);
    return {bytes(w.scale.data), bytes(w.minimum.data), bytes(w.zero), scales,
            zero_map(w),         w.layout->zero_offset, vectors};
}

struct Patches {
    uint32_t wide, all;  // beside one another, of the plane
};

inline Patches patches_of(const PlaneMap &to) {
    const int64_t wide = ceil_div(to.all_groups, int64_t{kPatchGroups});
    return {uint32_t(wide), uint32_t(wide * ceil_div(to.all_rows, int64_t{kPatchRows}))};
}

struct Groups {
    GroupPlanes from, to;
    Patches patches;
    uint32_t scale_bytes, zero_bytes;  // of the target, with its padding
    uint32_t blocks;                   // of `threads` threads
    uint32_t share;                    // of all blocks, in parts of 2^32
};

// Planes from row `first` on, a multiple of 16, `rows` of them.
inline GroupPlanes rows_of_planes(const Weight &w, int64_t first, int64_t rows) {
    GroupPlanes g = group_planes(w);
    const int64_t tiles = first / 16, bytes = w.scale.format->bits / 8;
    g.scale += tiles * g.scales.of16 * bytes;
    if (g.minimum != nullptr) g.minimum += tiles * g.scales.of16 * bytes;
    if (g.zero != nullptr) g.zero += tiles * g.zeros.of16 / 2;
    g.scales.rows = g.zeros.rows = uint32_t(rows);
    return g;
}

// `first_row` of `from` is row 0 of `to`.
inline Groups groups_of(const Weight &from, const Weight &to, int32_t threads,
                        int64_t first_row = 0) {
    Groups g = {};
    g.from = rows_of_planes(from, first_row, to.geometry.n), g.to = group_planes(to);
    g.patches = patches_of(g.to.scales);
    g.scale_bytes = to.scale.format->bits / 8;
    g.zero_bytes = to.zero == nullptr ? 0 : uint32_t(to.layout->zero_bytes(to.geometry));
    const int64_t warps = max64(g.patches.all, ceil_div(g.zero_bytes, 32));
    g.blocks = uint32_t(min64(ceil_div(warps, threads / 32), 1024));
    return g;
}

// Sets the share of blocks that move groups; returns the number of all, `codes` of them for codes.
inline uint32_t blocks_beside(Groups *g, int64_t codes) {
    const int64_t all = codes + g->blocks;
    g->share = uint32_t(((int64_t{g->blocks} << 32) + all - 1) / all);
    return uint32_t(all);
}

// Whether numbers of scales and zeros fit, and scales are aligned.
inline bool has_group_planes(const Weight &w) {
    const Geometry &s = w.geometry;
    const int64_t limit = int64_t{1} << 31;
    const uintptr_t bytes = w.scale.format->bits / 8;
    return w.layout->scale_count(s) < limit && w.layout->zero_bytes(s) < limit / 2 &&
           aligned(w.scale.data, bytes) && aligned(w.minimum.data, bytes);
}

#if defined(__CUDACC__)
namespace {

template <class T>
struct alignas(sizeof(T) * kPatchGroups < 16 ? sizeof(T) * kPatchGroups : 16) Scales {
    T scale[kPatchGroups];
};

template <class T>
__device__ Scales<T> load_scales(const GroupPlanes &planes, const uint8_t *plane, uint32_t row,
                                 uint32_t group) {
    const PlaneMap &from = planes.scales;
    const T *const at = reinterpret_cast<const T *>(plane) + from.at(row, group);
    if (planes.vectors && row < from.rows && group + kPatchGroups <= from.groups) {
        return *reinterpret_cast<const Scales<T> *>(at);
    }
    Scales<T> scales;
#pragma unroll
    for (uint32_t i = 0; i < kPatchGroups; ++i) {
        const bool there = row < from.rows && group + i < from.groups;
        scales.scale[i] = there ? at[i * from.of_group] : T(0);
    }
    return scales;
}

template <class T>
__device__ void store_scales(const GroupPlanes &planes, uint8_t *plane, uint32_t row,
                             uint32_t group, const Scales<T> &scales) {
    const PlaneMap &to = planes.scales;
    if (row >= to.all_rows) return;
    T *const at = reinterpret_cast<T *>(plane) + to.at(row, group);
    if (planes.vectors) {
        *reinterpret_cast<Scales<T> *>(at) = scales;
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < kPatchGroups; ++i) {
        if (group + i < to.all_groups) at[i * to.of_group] = scales.scale[i];
    }
}

template <class T>
__device__ void move_patch(const Groups &g, uint32_t patch) {
    const uint32_t line = patch / g.patches.wide;
    const uint32_t row = line * kPatchRows + threadIdx.x % 32;
    const uint32_t group = (patch - line * g.patches.wide) * kPatchGroups;
#pragma unroll 1
    for (int plane = 0; plane < (g.to.minimum == nullptr ? 1 : 2); ++plane) {
        const uint8_t *const from = plane == 0 ? g.from.scale : g.from.minimum;
        uint8_t *const to = plane == 0 ? g.to.scale : g.to.minimum;
        store_scales(g.to, to, row, group, load_scales<T>(g.from, from, row, group));
    }
}

// As the target stores it.
__device__ inline uint32_t zero_for(const Groups &g, uint32_t place) {
    uint32_t row, group, zero = 8;
    if (!g.to.zeros.find(place, &row, &group)) return 0;
    if (g.from.zero != nullptr) {
        const uint32_t from = g.from.zeros.at(row, group);
        zero = (g.from.zero[from / 2] >> from % 2 * 4) + uint32_t(g.from.zero_offset);
    }
    return (zero - uint32_t(g.to.zero_offset)) & 15;
}

template <uint32_t threads>
__device__ void move_groups(const Groups &g, uint32_t block) {
    for (uint32_t patch = block * (threads / 32) + threadIdx.x / 32; patch < g.patches.all;
         patch += g.blocks * (threads / 32)) {
        switch (g.scale_bytes) {
            case 1: move_patch<uint8_t>(g, patch); break;
            case 2: move_patch<uint16_t>(g, patch); break;
            default: move_patch<uint32_t>(g, patch);
        }
    }
    for (uint32_t at = block * threads + threadIdx.x; at < g.zero_bytes; at += g.blocks * threads) {
        g.to.zero[at] = uint8_t(zero_for(g, at * 2) | zero_for(g, at * 2 + 1) << 4);
    }
}

// body(number) in blocks for codes. Those that move groups are spread among them, for they wait
// more than they move.
template <uint32_t threads, class Body>
__device__ void for_codes(const Groups &g, const Body &body) {
    const uint32_t number = __umulhi(blockIdx.x, g.share);
    if (__umulhi(blockIdx.x + 1, g.share) != number) return move_groups<threads>(g, number);
    body(blockIdx.x - number);
}

}  // namespace
#endif

}  // namespace qk::cuda
