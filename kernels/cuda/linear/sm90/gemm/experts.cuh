// Products with experts for many rows of x: the matrix kernel (large.cuh) over a list of items,
// each up to N rows of x of one expert, which lie together (experts_list.hpp).
//
//     units of work    rows of w 0: | item 0 | 1 | ... |  rows of w 128: | item 0 | 1 | ...
//
// A block takes every gridDim-th unit; its ring is filled for the next one while sums are stored.
// Products are as wide as an item has rows of x. A row's sums have one order, whatever the width,
// and k is not cut, so that its bits depend on nothing but its own x and expert.
#pragma once
#include "cuda/linear/sm90/gemm/experts_output.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

// What a block multiplies: of each expert all its items by one block of rows of w, then by the
// next, so that blocks that run at once read several items, not all of them one.
template <class S>
struct ListedUnits {
    const GemmExpertsProblem &p;
    int32_t first, last;  // items
    int32_t item, block;

    __device__ explicit ListedUnits(const GemmExpertsProblem &problem)
        : p(problem), first(p.first_row == 0 ? 0 : item_at(p.first_row)),
          last(p.last_row < *p.list.slots_there ? item_at(p.last_row) : *p.list.items_there),
          item(first + int32_t(blockIdx.x) / p.row_blocks),
          block(int32_t(blockIdx.x) % p.row_blocks) {}
    // The first of those that begin at this row of the list or behind it.
    __device__ int32_t item_at(int32_t row) const {
        int32_t low = 0, high = *p.list.items_there;
        while (low < high) {
            const int32_t middle = (low + high) / 2;
            if (p.list.items[middle].first < row) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return low;
    }
    __device__ bool any() const { return item < last; }
    __device__ void next() {
        item += p.step_items;
        block += p.step_blocks;
        if (block >= p.row_blocks) block -= p.row_blocks, ++item;
    }
    __device__ ListedUnit<S> unit() const {
        if (!any()) return {p, 0, 0, 0, 0};
        const ExpertsItem at = p.list.items[item];
        if (at.together == 1) return {p, at.expert, at.first, at.count, p.first_block + block};
        const int32_t begin = max(item - at.number, first);  // of this expert's items
        const int32_t together = min(item - at.number + at.together, last) - begin;
        const int32_t number = (item - begin) * p.row_blocks + block, row = number / together;
        const ExpertsItem &moved = p.list.items[begin + number - row * together];
        return {p, moved.expert, moved.first, moved.count, p.first_block + row};
    }
};

// Codes and x of an item, by one lane: of the codes halves of the block's rows of tiles, which need
// not be neighbours; of x as many boxes as there are rows for.
template <class S>
__device__ void copy_item(const LargeGemm<S> &g, const Item &it, Turn &turn) {
    constexpr uint32_t kBox = kListedBox * 128, kOfTile = S::kCodes / S::kTiles;
    for (int32_t tile = it.first; tile < it.last; tile += S::kTiles, turn.next(g.p.slots)) {
        barrier_wait(g.empty + turn.slot * 8, turn.parity);
        const uint32_t to = g.slot(turn.slot), full = g.full + turn.slot * 8;
        barrier_expect(full, uint32_t(it.x_boxes) * kBox * S::kTiles + S::kCodes);
#pragma unroll
        for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                tensor_copy(to + S::kX + t * kOfTile + half * (kOfTile / 2), g.p.code_map, 0,
                            (tile + t) * 4, it.template tile<S>(half * (S::kRowTiles / 2)), full);
            }
            for (int32_t box = 0; box < it.x_boxes; ++box) {
                tensor_copy(to + t * (S::kX / S::kTiles) + uint32_t(box) * kBox, g.p.x_map,
                            (tile + t) * 64, it.x_first + box * kListedBox, full);
            }
        }
    }
}

// The producer warps; experts that are not there come last.
template <class S>
__device__ void produce_listed(const LargeGemm<S> &g, ListedUnits<S> units) {
    const auto each_unit = [&](auto issue) {
        Turn turn(1);
        for (; units.any(); units.next()) {
            const ListedUnit<S> unit = units.unit();
            if (!unit.is_there()) return;
            issue(unit.work(), turn);
        }
    };
    if (int(threadIdx.x) >> 5 == S::kConsumers * 4) {
        if (elect_one()) {
            each_unit([&](const Item &it, Turn &turn) { copy_item(g, it, turn); });
        }
        __syncwarp();
    } else if constexpr (S::kMade) {
        int32_t others = (int(threadIdx.x) >> 5) - S::kConsumers * 4 - 1;  // take stages before
        each_unit([&](const Item &it, Turn &turn) { g.make_scales(it, turn, others); });
    } else if (int(threadIdx.x) >> 5 == S::kConsumers * 4 + 1) {
        each_unit([&](const Item &it, Turn &turn) { g.issue_scales(it, turn); });
    }
}

// Products of up to kWidth rows of x: the first sums of N. One set of registers for all widths, so
// that what becomes of them is there once.
template <class S, int kWidth>
__device__ __forceinline__ void multiply_width(const LargeGemm<S> &any, const Item &it, Turn &ring,
                                               typename LargeGemm<S>::Sums &sums) {
    using Gemm = LargeGemm<S, kWidth>;
    const Gemm g = {
        {{any.p, any.ring, any.full, any.empty, any.table, any.scale_codes, any.second_bias}}};
    g.consume(it, ring, reinterpret_cast<typename Gemm::Sums &>(sums));
}

template <class S>
__device__ __forceinline__ void multiply_item(const LargeGemm<S> &g, const Item &it, int32_t count,
                                              Turn &ring, typename LargeGemm<S>::Sums &sums) {
    if constexpr (S::N == 32) {
        if (count <= 16) return multiply_width<S, 16>(g, it, ring, sums);
        multiply_width<S, 32>(g, it, ring, sums);
    } else {
        switch ((count + 31) / 32) {
            case 1: return multiply_width<S, 32>(g, it, ring, sums);
            case 2: return multiply_width<S, 64>(g, it, ring, sums);
            case 3: return multiply_width<S, 96>(g, it, ring, sums);
            default: return multiply_width<S, 128>(g, it, ring, sums);
        }
    }
}

// The consumer warps.
template <class S>
__device__ void multiply_units(const LargeGemm<S> &g, ListedUnits<S> units, uint32_t base) {
    const GemmExpertsProblem &p = units.p;
    Turn ring(0);
    uint32_t turn = 0;
    const uint32_t buffers = base + S::kTable + uint32_t(g.p.slots) * S::kStage;
    uint32_t table = buffers + 2 * 16 * S::kColumn, other = table + S::N * 4;  // alternate
    int32_t expert, first, count, block;  // of the unit that comes
    const auto look_ahead = [&] {
        const ListedUnit<S> coming = units.unit();
        expert = coming.expert, first = coming.first, count = coming.count, block = coming.block;
    };
    look_ahead();
    while (units.any()) {
        const ListedUnit<S> unit = {p, expert, first, count, block};
        units.next();
        look_ahead();
        if (!unit.is_there()) {
            const int32_t columns = p.e.joins() ? S::kRows / 2 : S::kRows;
            fill_rows(p.e, p.list, unit.first, unit.count, int64_t(unit.block) * columns, columns,
                      S::kConsumers * 128);
            continue;
        }
        typename LargeGemm<S>::Sums sums = {};
        const int32_t row = int32_t(threadIdx.x);
        const bool has_row = row < unit.count;
        const int32_t slot = has_row ? p.list.slots[unit.first + row] : 0;
        multiply_item(g, unit.work(), unit.count, ring, sums);
        if (has_row) shared_store_4(table + uint32_t(row) * 4, uint32_t(slot));
        const ListedOutput<S> output(unit, buffers, table);
        output.store(sums, turn);
        const uint32_t next = other;
        other = table, table = next;
    }
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    multiply_listed(const __grid_constant__ GemmExpertsProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint8_t unaligned[];
    __shared__ uint64_t full[kMaxSlots], empty[kMaxSlots];
    __shared__ float scale_codes[S::kScaleCodes];
    const uint32_t base = (shared_address(unaligned) + 1023) / 1024 * 1024;
    uint8_t *const shared = unaligned + (base - shared_address(unaligned));
    constexpr bool kCoded = S::kind == ScaleKind::kNested;
    const bool coded = kCoded && (!S::kSmall || p.gemm.w.scale_format == QK_FORMAT_LUT8);
    const float second_bias = coded ? load_as<float>(p.gemm.w.bias, 0) : 0.0f;
    const int warp = __shfl_sync(~0u, int(threadIdx.x) >> 5, 0);  // uniform to the compiler
    prepare_block<S>(p.gemm, warp, shared_address(full), shared_address(empty), shared,
                     scale_codes);
    const auto keep_address = [](uint32_t a) { return __shfl_sync(~0u, a, 0); };
    const LargeGemm<S> g = {
        {{p.gemm, keep_address(base + S::kTable), keep_address(shared_address(full)),
          keep_address(shared_address(empty)), base, scale_codes, second_bias}}};
    wait_for_previous_kernel();  // the list and x are its
    allow_next_kernel();
    const ListedUnits<S> units(p);
    if (warp >= S::kConsumers * 4) {
        fewer_registers<S::kProducerRegisters>();
        produce_listed(g, units);
    } else {
        more_registers<S::kConsumerRegisters>();
        multiply_units(g, units, base);
    }
#endif
}

// Whether every 4 columns of y, 2 of interleaved pairs, can be stored at once.
inline bool leaves_in_pieces(const ExpertsView &e) {
    const uintptr_t bytes = e.y_type == QK_FORMAT_F32 ? 4 : 2;
    const uintptr_t piece = bytes * (e.joins() && e.interleaved ? 2 : 4);
    const uintptr_t first = reinterpret_cast<uintptr_t>(e.y), row = uintptr_t(e.y_stride) * bytes;
    return !e.accumulate && (first | row) % piece == 0;
}

template <class S>
Status run_shape(const LinearArgs &args, const ListedExperts &listed, GemmExpertsProblem *p,
                 const Launch &launch) {
    p->gemm.slots = S::slots(uint32_t(launch.device.shared_bytes) - kStaticShared);
    LinearArgs by_expert = args;
    by_expert.x = {args.x.format, listed.x_rows, args.x.columns, const_cast<void *>(listed.x)};
    QK_TRY(describe_planes(by_expert, S::kRowTiles / 2, 1, kListedBox, launch.error, &p->gemm));
    const int64_t of_block = listed.e.joins() ? S::kRows / 2 : S::kRows;  // columns of y
    p->first_block = int32_t(listed.first / of_block);
    p->row_blocks = int32_t(ceil_div(listed.columns, of_block));
    const int64_t blocks =
        min64(listed.items * p->row_blocks, int64_t{launch.device.multiprocessors});
    p->step_items = int32_t(blocks / p->row_blocks);
    p->step_blocks = int32_t(blocks % p->row_blocks);
    p->pieces = leaves_in_pieces(listed.e);
    p->first_row = int32_t(listed.first_row);
    p->last_row = int32_t(min64(listed.first_row + listed.rows, INT32_MAX));
    Shape3 shape = {dim3(uint32_t(blocks)), S::kThreads};
    shape.shared_bytes = S::shared_bytes(p->gemm.slots);
    shape.overlaps = true;
    return launch_kernel(launch, "experts", multiply_listed<S>, shape, *p);
}

template <class T, class Decode, ScaleKind kind, bool kSmall>
Status run_listed_rows(const LinearArgs &args, const ListedExperts &listed, GemmExpertsProblem *p,
                       const Launch &launch) {
    if (listed.list.item_rows == 32) {
        return run_shape<GemmShape<T, Decode, kind, 32, 4, 1, 2, kSmall, true>>(args, listed, p,
                                                                                launch);
    }
    return run_shape<GemmShape<T, Decode, kind, 128, 2, 1, 2, kSmall, true>>(args, listed, p,
                                                                             launch);
}

}  // namespace

template <Codes codes, qk_format x>
Status GemmExperts<codes, x>::run(const LinearArgs &args, const ListedExperts &listed,
                                  const Launch &launch) {
    using T = TypeOf<x>;
    using Decode = std::conditional_t<codes == Codes::kU4, DecodeU4<T>, DecodeLut4<T>>;
    GemmExpertsProblem p = {problem_of(args, {GemmCut::k128x128, 1}), listed.e, listed.list};
    p.gemm.coded = coded_scales(args.w.scale, *launch.device.tables);
    p.of_expert = int32_t(listed.e.rows / 16);
    if (p.gemm.part_shift < 2) {
        return run_listed_rows<T, Decode, ScaleKind::kNested, true>(args, listed, &p, launch);
    }
    return with_scale_kind(p.gemm.w.scale_format, [&](auto kind) {
        return run_listed_rows<T, Decode, kind.value, false>(args, listed, &p, launch);
    });
}

}  // namespace qk::cuda
