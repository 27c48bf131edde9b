// Repack 4-bit codes from any layout to any other, by words (convert/words.cuh): a block's codes go
// through shared memory once, or from registers to the same places where layouts differ in no more
// than the order inside a byte. Blocks among these move scales, minima and zeros in the sequence in
// which the target has them; what pads it becomes zero. Nothing is decoded.
#include "cuda/convert/words.cuh"
#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

// Where the scale or zero of a row and a group is.
enum class Order { kRows, kGroups, kEights, kTiles };

struct PlaneMap {
    Order order;
    uint32_t width;  // kRows: from a row to the next; kGroups: from a group to the next
    uint32_t rows, groups;
    bool swapped, awq;  // neighbours change places; the order inside a word

    __device__ uint32_t at(uint32_t row, uint32_t group) const {
        switch (order) {
            case Order::kRows: return (row * width + group) ^ uint32_t(swapped);
            case Order::kGroups: return group * width + (awq ? uint32_t(awq_nibble(row)) : row);
            case Order::kEights: return (row / 8 * groups + group) * 8 + row % 8;
            default: return (row / 16 * groups + group) * 16 + row % 8 * 2 + row / 8 % 2;
        }
    }

    // The other way: whether a row and a group have this place.
    __device__ bool find(uint32_t at, uint32_t *row, uint32_t *group) const {
        uint32_t number;
        switch (order) {
            case Order::kRows:
                at ^= uint32_t(swapped);
                *row = at / width;
                *group = at - *row * width;
                break;
            case Order::kGroups:
                *group = at / width;
                *row = at - *group * width;
                // Nibble 4 a + b of a word is row 2 b + a.
                if (awq) *row = (*row & ~7u) + (*row & 3) * 2 + (*row >> 2 & 1);
                break;
            case Order::kEights:
                number = at / 8;
                *row = number / groups;
                *group = number - *row * groups;
                *row = *row * 8 + at % 8;
                break;
            default:
                number = at / 16;
                *row = number / groups;
                *group = number - *row * groups;
                *row = *row * 16 + at % 16 / 2 + at % 2 * 8;
        }
        return *row < rows && *group < groups;
    }
};

struct GroupPlanes {
    uint8_t *scale, *minimum, *zero;  // minimum, zero: may be null
    PlaneMap scales, zeros;
    int32_t zero_offset;
};

struct Problem {
    WordPlane from, to;
    GroupPlanes from_groups, to_groups;
    uint32_t scales, scale_bytes, zero_bytes;  // of the target, with its padding
    uint32_t runs;                             // blocks along k
    uint32_t group_blocks, group_share;        // those for groups; of all, in parts of 2^32
    bool swaps;  // codes are at the same places, but nibbles change theirs
};

constexpr uint32_t kThreads = 256;

template <class T>
__device__ void move_scale(const Problem &p, uint32_t at) {
    uint32_t row, group;
    const bool there = p.to_groups.scales.find(at, &row, &group);
    const uint32_t from = there ? p.from_groups.scales.at(row, group) : 0;
    const auto move = [&](const uint8_t *source, uint8_t *target) {
        reinterpret_cast<T *>(target)[at] =
            there ? reinterpret_cast<const T *>(source)[from] : T(0);
    };
    move(p.from_groups.scale, p.to_groups.scale);
    if (p.to_groups.minimum != nullptr) move(p.from_groups.minimum, p.to_groups.minimum);
}

// As the target stores it.
__device__ uint32_t zero_for(const Problem &p, uint32_t at) {
    uint32_t row, group, zero = 8;
    if (!p.to_groups.zeros.find(at, &row, &group)) return 0;
    if (p.from_groups.zero != nullptr) {
        const uint32_t from = p.from_groups.zeros.at(row, group);
        zero = (p.from_groups.zero[from / 2] >> from % 2 * 4) + uint32_t(p.from_groups.zero_offset);
    }
    return (zero - uint32_t(p.to_groups.zero_offset)) & 15;
}

__device__ void move_groups(const Problem &p, uint32_t block) {
    const uint32_t step = p.group_blocks * kThreads, first = block * kThreads + threadIdx.x;
    for (uint32_t at = first; at < p.scales; at += step) {
        switch (p.scale_bytes) {
            case 1: move_scale<uint8_t>(p, at); break;
            case 2: move_scale<uint16_t>(p, at); break;
            default: move_scale<uint32_t>(p, at);
        }
    }
    for (uint32_t at = first; at < p.zero_bytes; at += step) {
        p.to_groups.zero[at] = uint8_t(zero_for(p, at * 2) | zero_for(p, at * 2 + 1) << 4);
    }
}

constexpr uint32_t kCopied = 4;  // times four words a thread

template <bool whole>
__device__ void copy_words(const Problem &p, uint32_t block) {
    const int64_t all = int64_t(p.from.rows) * p.from.words;
    const int64_t first = (int64_t(block) * kCopied * kThreads + threadIdx.x) * 4;
    uint4 fours[kCopied];
#pragma unroll
    for (uint32_t i = 0; i < kCopied; ++i) {
        const int64_t at = first + i * kThreads * 4;
        fours[i] = load_four<whole>(reinterpret_cast<uint32_t *>(p.from.data) + at, all - at);
    }
#pragma unroll
    for (uint32_t i = 0; i < kCopied; ++i) {
        const int64_t at = first + i * kThreads * 4;
        store_four<whole>(reinterpret_cast<uint32_t *>(p.to.data) + at, all - at,
                          swap_four(p.swaps, fours[i]));
    }
}

// The blocks that move groups are spread among the others, for they wait more than they move.
template <class Body>
__device__ void for_codes(const Problem &p, const Body &body) {
    const uint32_t groups = __umulhi(blockIdx.x, p.group_share);
    if (__umulhi(blockIdx.x + 1, p.group_share) != groups) return move_groups(p, groups);
    body(blockIdx.x - groups);
}

template <bool whole>
__global__ void __launch_bounds__(kThreads) repack_copy(const __grid_constant__ Problem p) {
    for_codes(p, [&](uint32_t block) { copy_words<whole>(p, block); });
}

template <WordOrder from, WordOrder to>
using ShapeOf = std::conditional_t<from == WordOrder::kEights || to == WordOrder::kEights,
                                   WordShape<256, 16>, WordShape<128, 32>>;

template <WordOrder from, WordOrder to, bool whole>
__global__ void __launch_bounds__(kThreads) repack_words(const __grid_constant__ Problem p) {
    using B = ShapeOf<from, to>;
    __shared__ uint4 words[B::kAll / 4];
    for_codes(p, [&](uint32_t number) {
        const uint32_t line = number / p.runs;
        const WordBlock block = {line * B::kRows, (number - line * p.runs) * B::kWords};
        load_words<B, from, whole>(p.from, block, &words[0].x);
        __syncthreads();
        store_words<B, to, whole>(p.to, block, &words[0].x);
    });
}

PlaneMap scale_map(const Weight &w) {
    const Geometry &s = w.geometry;
    const uint32_t n = uint32_t(s.n), groups = uint32_t(s.groups_per_row);
    switch (w.layout->id) {
        case QK_LAYOUT_AWQ_GEMM:
        case QK_LAYOUT_GPTQ:
        case QK_LAYOUT_GPTQ_V1: return {Order::kGroups, n, n, groups, false, false};
        case kLayoutTiles:
        case kLayoutTilesPairs: return {Order::kTiles, 0, n, groups, false, false};
        default: {
            const uint32_t width = uint32_t(w.layout->scale_count(s) / s.n);
            return {Order::kRows, width, n, groups, false, false};
        }
    }
}

PlaneMap zero_map(const Weight &w) {
    const Geometry &s = w.geometry;
    PlaneMap map = scale_map(w);
    switch (w.layout->id) {
        case QK_LAYOUT_ROW: map.width = uint32_t(round_up(s.groups_per_row, 2)); break;
        case QK_LAYOUT_ROW_HIGH: map.swapped = true; break;
        case QK_LAYOUT_WORD: map.order = Order::kEights; break;
        case QK_LAYOUT_AWQ_GEMM: map.awq = true; [[fallthrough]];
        case QK_LAYOUT_GPTQ:
        case QK_LAYOUT_GPTQ_V1: map.width = uint32_t(round_up(s.n, 8)); break;
        default: break;
    }
    return map;
}

GroupPlanes group_planes(const Weight &w) {
    const auto bytes = [](void *plane) { return static_cast<uint8_t *>(plane); };
    return {bytes(w.scale.data), bytes(w.minimum.data), bytes(w.zero),
            scale_map(w),        zero_map(w),           w.layout->zero_offset};
}

Status launch_blocks(Problem &p, int64_t blocks, void (*kernel)(Problem), const Launch &launch) {
    const int64_t all = blocks + p.group_blocks;
    p.group_share = uint32_t(((int64_t{p.group_blocks} << 32) + all - 1) / all);
    return launch_kernel(launch, "repack", kernel, {dim3(uint32_t(all)), kThreads}, p);
}

template <WordOrder from, WordOrder to>
Status run_words(Problem &p, bool whole, const Launch &launch) {
    if constexpr (from == to && from != WordOrder::kTiles) {  // the same places
        const int64_t words = int64_t(p.to.rows) * p.to.words;
        whole = words % 4 == 0 && aligned(p.from.data) && aligned(p.to.data);
        return launch_blocks(p, ceil_div(words, 4 * kCopied * kThreads),
                             whole ? repack_copy<true> : repack_copy<false>, launch);
    } else {
        using B = ShapeOf<from, to>;
        p.runs = uint32_t(ceil_div(p.to.words, B::kWords));
        return launch_blocks(p, ceil_div(p.to.rows, B::kRows) * p.runs,
                             whole ? repack_words<from, to, true> : repack_words<from, to, false>,
                             launch);
    }
}

template <WordOrder from>
Status run_from(Problem &p, WordOrder to, bool whole, const Launch &launch) {
    switch (to) {
        case WordOrder::kRows: return run_words<from, WordOrder::kRows>(p, whole, launch);
        case WordOrder::kColumns: return run_words<from, WordOrder::kColumns>(p, whole, launch);
        case WordOrder::kEights: return run_words<from, WordOrder::kEights>(p, whole, launch);
        default: return run_words<from, WordOrder::kTiles>(p, whole, launch);
    }
}

Status run(const RepackArgs &args, const Launch &launch) {
    QK_TRY(copy_shared_planes(args, launch));
    const Weight &from = args.from, &to = args.to;
    const Geometry &s = to.geometry;
    Problem p = {};
    p.from = word_plane(from);
    p.to = word_plane(to);
    p.from_groups = group_planes(from);
    p.to_groups = group_planes(to);
    p.scales = uint32_t(to.layout->scale_count(s));
    p.scale_bytes = to.scale.format->bits / 8;
    p.zero_bytes = to.zero == nullptr ? 0 : uint32_t(to.layout->zero_bytes(s));
    p.group_blocks = uint32_t(min64(ceil_div(p.scales, kThreads), 1024));
    p.swaps = (from.layout->id == QK_LAYOUT_ROW_HIGH) != (to.layout->id == QK_LAYOUT_ROW_HIGH);
    const bool whole = has_vectors(from) && has_vectors(to);
    const WordOrder words = words_of(to);
    switch (words_of(from)) {
        case WordOrder::kRows: return run_from<WordOrder::kRows>(p, words, whole, launch);
        case WordOrder::kColumns: return run_from<WordOrder::kColumns>(p, words, whole, launch);
        case WordOrder::kEights: return run_from<WordOrder::kEights>(p, words, whole, launch);
        default: return run_from<WordOrder::kTiles>(p, words, whole, launch);
    }
}

// Whether numbers of scales and zeros fit, and scales are aligned.
bool takes_groups(const Weight &w) {
    const Geometry &s = w.geometry;
    const int64_t limit = int64_t{1} << 31;
    const uintptr_t bytes = w.scale.format->bits / 8;
    return w.layout->scale_count(s) < limit && w.layout->zero_bytes(s) < limit / 2 &&
           aligned(w.scale.data, bytes) && aligned(w.minimum.data, bytes);
}

bool can_run(const RepackArgs &args, const Device &) {
    const Weight &from = args.from, &to = args.to;
    const Geometry &s = to.geometry;
    return args.first_row == 0 && !args.in_workspace && has_words(from) && has_words(to) &&
           takes_groups(from) && takes_groups(to) &&
           ceil_div(s.n, 128) * ceil_div(s.k, 128) < (int64_t{1} << 30);
}

}  // namespace

const Kernel<RepackArgs> kRepackWords = {"words", can_run, nullptr, run};

}  // namespace qk::cuda
