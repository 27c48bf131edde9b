// Products with experts for many rows of x: the matrix kernel (large.cuh) over a list of items,
// each up to N rows of x of one expert, which lie together (experts_list.hpp).
//
//     units of work    first rows of w: | item 0 | 1 | ... |  next ones: | item 0 | 1 | ...
//
// A block takes every gridDim-th unit; its ring is filled for the next one while sums are stored.
// Products are as wide as an item has rows of x: those of an expert are shared out evenly, since
// decoding takes two thirds as long for 32 rows as for 128. A row's sums have one order, whatever
// the width, and k is not cut, so that its bits depend on nothing but its own x and expert.
#pragma once
#include "cuda/linear/sm90/gemm/experts_output.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

// Copies of an item, by one lane: of the codes halves of the block's rows of tiles, which need not
// be neighbours; of x as many boxes as there are rows for.
template <class S>
struct ItemCopies {
    static constexpr uint32_t kBox = S::kBox * 128, kOfTile = S::kCodes / S::kTiles;
    const LargeGemm<S> &g;
    const Item &it;

    __device__ void issue_codes(int32_t tile, uint32_t slot) const {
        const uint32_t to = g.slot(slot) + S::kX, full = g.full + slot * 8;
        barrier_expect(full, uint32_t(it.x_boxes) * kBox * S::kTiles + S::kCodes);
#pragma unroll
        for (int i = 0; i < S::kTiles * 2; ++i) {
            tensor_copy(to + i * (kOfTile / 2), g.p.code_map, 0, (tile + i / 2) * 4,
                        it.template tile<S>(i % 2 * (S::kRowTiles / 2)), full);
        }
    }
    __device__ void issue_x(int32_t tile, uint32_t slot) const {
        const uint32_t to = g.slot(slot), full = g.full + slot * 8;
#pragma unroll
        for (int t = 0; t < S::kTiles; ++t) {
            for (int32_t box = 0; box < it.x_boxes; ++box) {
                tensor_copy(to + t * (S::kX / S::kTiles) + uint32_t(box) * kBox, g.p.x_map,
                            (tile + t) * 64, it.x_first + box * S::kBox, full);
            }
        }
    }
    // `x_is_late`: the kernel in front may be writing it; the ring is empty then.
    __device__ void issue(Turn turn, bool x_is_late) const {
        int32_t tile = it.first;
        if (x_is_late) {
            const int32_t last = min(it.first + g.p.slots * S::kTiles, it.last);
            for (; tile < last; tile += S::kTiles) issue_codes(tile, (tile - it.first) / S::kTiles);
            wait_for_previous_kernel();
            for (tile = it.first; tile < last; tile += S::kTiles, turn.next(g.p.slots)) {
                issue_x(tile, turn.slot);
            }
        }
        for (; tile < it.last; tile += S::kTiles, turn.next(g.p.slots)) {
            barrier_wait(g.empty + turn.slot * 8, turn.parity);
            issue_codes(tile, turn.slot);
            issue_x(tile, turn.slot);
        }
    }
};

// The producer warps: the first looks up units and copies boxes, the others make or copy scales.
template <class S>
__device__ void produce_listed(const LargeGemm<S> &g, const UnitQueue<S> &queue) {
    const int warp = (int(threadIdx.x) >> 5) - S::kConsumers * 4;
    Turn ring(1);
    if (warp == 0) {
        UnitFinder<S> finder(queue.p);
        Turn turn(1);
        bool x_is_late = queue.p.listed_early;
        while (true) {
            const ListedUnit<S> unit = finder.next(queue, turn);
            if (unit.count == 0) return;
            if (unit.is_there()) {
                const Item work = unit.work();
                if (elect_one()) ItemCopies<S>{g, work}.issue(ring, x_is_late);
                x_is_late = false;
                ring.skip((work.last - work.first) / S::kTiles, g.p.slots);
                __syncwarp();
            }
        }
    }
    if (warp > (S::kMade ? S::kMakers : 1)) return;
    int32_t others = warp - 1;  // take stages before
    for (Turn turn(0);; turn.next(S::kUnits)) {
        const ListedUnit<S> unit = queue.wait(turn);
        queue.release(turn);
        if (unit.count == 0) return;
        if (!unit.is_there()) continue;
        if constexpr (S::kMade) {
            g.make_scales(unit.work(), ring, others);
        } else {
            g.issue_scales(unit.work(), ring);
        }
    }
}

// Products of kWidth rows of x, into the first sums of N. Half a tile is decoded while the half in
// front of it is multiplied, which takes 16 registers less than whole tiles. Items of up to kNarrow
// rows have narrower products in the same loop: with a loop for each width ptxas runs out of
// registers and spills what becomes of the sums, or waits after each product.
template <class S, int kWidth, int kNarrow = kWidth>
struct ListedGemm : LargeGemm<S> {
    using Large = LargeGemm<S>;
    using typename Large::Places;
    using typename Large::Raw;
    using typename Large::Sums;
    using T = typename S::T;
    using Decode = typename S::Decode;
    using Half = uint32_t[2][4];  // two steps of 16 columns
    static_assert(S::kTiles == 2);

    int32_t rows;  // of x

    __device__ void read(const Places &at, uint32_t slot, int t, Raw &raw) const {
        Large::read(at, slot, 0, t, raw);
    }

    // What the operands of rows r and r + 8 are multiplied by, where that is the same for a tile.
    __device__ void scale_pairs(const Raw &raw, uint32_t (&both)[2]) const {
        constexpr ScaleKind kOfX = std::is_same_v<T, F16> ? ScaleKind::kF16 : ScaleKind::kBF16;
        if constexpr (S::kMade || S::kind == kOfX) {
            both[0] = __byte_perm(raw.scale[0], 0, 0x1010);
            both[1] = __byte_perm(raw.scale[0], 0, 0x3232);
        } else {
            float scale[2];
            this->scales(raw, scale);
            both[0] = pack_pair(T{}, scale[0], scale[0]);
            both[1] = pack_pair(T{}, scale[1], scale[1]);
        }
    }
    // Of four equal bytes, which have the zeros of two rows each.
    __device__ static Zeros zeros(uint32_t byte) { return Decode::zeros_of(byte * 0x01010101u); }

    // Placed codes: whether the scales of a stage leave it to the codes to be made what they are.
    __device__ bool unlifted(uint32_t slot) const {
        return S::kPlaced && shared_load_4(this->slot(slot) + SmallGroups<S>::kUnlifted) != 0;
    }

    template <int half>
    __device__ void decode(const Raw &raw, bool unlifted, Half &a) const {
        Zeros z = {};
        uint32_t both[2];
        if constexpr (!Decode::kLut4) z = zeros(raw.zero[0]);
        if constexpr (!S::kSmall) scale_pairs(raw, both);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            constexpr int kFirst = half * 2;
            if constexpr (S::kSmall && !Decode::kLut4) z = zeros(raw.zero[kFirst + j]);
            Decode::decode(raw.words[kFirst + j][0], z, this->table, (threadIdx.x & 31) * 4, a[j]);
        }
        if constexpr (S::kPlaced) {
            if (__builtin_expect(unlifted, 0)) lift(a);
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            if constexpr (S::kSmall) {
                scale_by_halves<T>(a[j], raw.scale[half * 2 + j]);
            } else {
                scale_step<T>(a[j], both);
            }
        }
    }
    __device__ static void lift(Half &a) {
#pragma unroll
        for (int i = 0; i < 8; ++i) a[i / 4][i % 4] = Decode::lifted(a[i / 4][i % 4]);
    }

    // Half a tile, whose rows of x begin at `x`: the low half of a descriptor, all that differs.
    template <int half, int width>
    __device__ static void multiply_by(uint32_t x, const Half &a, bool add, Sums &sums) {
        const uint64_t first = (wgmma_descriptor(0) >> 32 << 32 | x) + half * 4;
        float(&some)[width / 2] = reinterpret_cast<float(&)[width / 2]>(sums);
        wgmma_fence();
        Wgmma<T, width>::run(some, a[0], first, add);
        Wgmma<T, width>::run(some, a[1], first + 2, true);
        wgmma_commit();
    }
    template <int half>
    __device__ void multiply(uint32_t x, const Half &a, bool add, Sums &sums) const {
        if (kNarrow < kWidth && rows <= kNarrow) {
            multiply_by<half, kNarrow>(x, a, add, sums);
        } else {
            multiply_by<half, kWidth>(x, a, add, sums);
        }
    }

    // Once the products in front of those under way are done, their operands are free for others.
    __device__ static void wait_for(Half &a) {
        wgmma_wait<1>();
        keep(a);
    }

    __device__ void consume(const Item &it, Turn &turn, Sums &sums) const {
        constexpr uint32_t kStep = S::kStage / 16, kSecond = S::kX / S::kTiles / 16;
        const uint32_t x = uint32_t(wgmma_descriptor(this->ring));
        const Places at(*this, it);
        const int32_t stages = (it.last - it.first) / 2;
        uint32_t before = 0;
        Half a, b = {};
        Raw raw;
        barrier_wait(this->full + turn.slot * 8, turn.parity);
        bool rare = unlifted(turn.slot);
        read(at, turn.slot, 0, raw);
        decode<0>(raw, rare, a);
        for (int32_t left = stages;;) {
            const bool add = left != stages;
            const uint32_t here = x + turn.slot * kStep;
            multiply<0>(here, a, add, sums);
            wait_for(b);
            if (add) this->release(before);
            decode<1>(raw, rare, b);
            multiply<1>(here, b, true, sums);
            read(at, turn.slot, 1, raw);
            wait_for(a);
            decode<0>(raw, rare, a);
            multiply<0>(here + kSecond, a, true, sums);
            wait_for(b);
            decode<1>(raw, rare, b);
            multiply<1>(here + kSecond, b, true, sums);
            if (--left == 0) break;
            before = turn.slot;
            turn.next(this->p.slots);
            barrier_wait(this->full + turn.slot * 8, turn.parity);
            rare = unlifted(turn.slot);
            read(at, turn.slot, 0, raw);
            wait_for(a);
            decode<0>(raw, rare, a);
        }
        wgmma_wait<0>();
        keep(sums);
        this->release(turn.slot);
        turn.next(this->p.slots);
    }
};

template <class S>
__device__ __forceinline__ void multiply_item(const LargeGemm<S> &g, const Item &it, int32_t count,
                                              Turn &ring, typename LargeGemm<S>::Sums &sums) {
    if constexpr (S::N == 32) {
        if (count <= 8) return ListedGemm<S, 8>{g, count}.consume(it, ring, sums);
        ListedGemm<S, 32, 16>{g, count}.consume(it, ring, sums);
    } else if constexpr (S::N == 64) {
        if (count <= 32) return ListedGemm<S, 32>{g, count}.consume(it, ring, sums);
        ListedGemm<S, 64, 48>{g, count}.consume(it, ring, sums);
    } else if constexpr (S::N == 96) {
        if (count <= 48) return ListedGemm<S, 48>{g, count}.consume(it, ring, sums);
        if (count <= 64) return ListedGemm<S, 64>{g, count}.consume(it, ring, sums);
        if (count <= 80) return ListedGemm<S, 80>{g, count}.consume(it, ring, sums);
        ListedGemm<S, 96>{g, count}.consume(it, ring, sums);
    } else {
        switch ((count + 31) / 32) {
            case 1: return ListedGemm<S, 32>{g, count}.consume(it, ring, sums);
            case 2: return ListedGemm<S, 64>{g, count}.consume(it, ring, sums);
            case 3: return ListedGemm<S, 96>{g, count}.consume(it, ring, sums);
            case 4: return ListedGemm<S, 128>{g, count}.consume(it, ring, sums);
            default: return ListedGemm<S, S::N>{g, count}.consume(it, ring, sums);
        }
    }
}

// The consumer warps.
template <class S>
__device__ void multiply_units(const LargeGemm<S> &g, const UnitQueue<S> &queue, uint32_t pieces) {
    Turn ring(0);
    for (Turn turn(0);; turn.next(S::kUnits)) {
        const ListedUnit<S> unit = queue.wait(turn);
        if (unit.count == 0) return;
        if (unit.is_there()) {
            typename LargeGemm<S>::Sums sums = {};
            multiply_item(g, unit.work(), unit.count, ring, sums);
            const ListedOutput<S> output(queue.read(turn), queue.slots(turn), pieces);
            output.store(sums);
        } else {
            if (queue.p.listed_early) wait_for_previous_kernel();
            const int32_t columns = queue.p.e.joins() ? S::kRows / 2 : S::kRows;
            fill_rows(queue.p.e, queue.p.list, unit.first, unit.count,
                      int64_t(unit.block) * columns, columns, S::kConsumers * 128);
        }
        queue.release(turn);
    }
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    multiply_listed(const __grid_constant__ GemmExpertsProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint8_t unaligned[];
    __shared__ uint64_t barriers[2][kMaxSlots], units[2][S::kUnits];
    __shared__ float scale_codes[S::kScaleCodes];
    const uint32_t base = (shared_address(unaligned) + 1023) / 1024 * 1024;
    uint8_t *const shared = unaligned + (base - shared_address(unaligned));
    constexpr bool kCoded = S::kind == ScaleKind::kNested;
    const bool coded = kCoded && (!S::kSmall || p.gemm.w.scale_format == QK_FORMAT_LUT8);
    const float second_bias = coded ? load_as<float>(p.gemm.w.bias, 0) : 0.0f;
    const int warp = __shfl_sync(~0u, int(threadIdx.x) >> 5, 0);  // uniform to the compiler
    const uint32_t after_ring = base + S::kTable + uint32_t(p.gemm.slots) * S::kStage;
    const UnitQueue<S> queue = {p, after_ring + S::kPieces, shared_address(units[0]),
                                shared_address(units[1])};
    if (warp == S::kConsumers * 4 && elect_one()) queue.prepare();
    prepare_block<S>(p.gemm, warp, shared_address(barriers[0]), shared_address(barriers[1]), shared,
                     scale_codes);
    const auto keep_address = [](uint32_t a) { return __shfl_sync(~0u, a, 0); };
    const uint32_t full = keep_address(shared_address(barriers[0]));
    const LargeGemm<S> g = {{{p.gemm, keep_address(base + S::kTable), full, full + kMaxSlots * 8,
                              base, scale_codes, second_bias}}};
    if (!p.listed_early) wait_for_previous_kernel();  // the list and x are its
    allow_next_kernel();
    if (warp >= S::kConsumers * 4) {
        fewer_registers<S::kProducerRegisters>();
        produce_listed(g, queue);
    } else {
        more_registers<S::kConsumerRegisters>();
        multiply_units(g, queue, after_ring);
    }
#endif
}

template <class S>
Status run_shape(const LinearArgs &args, const ListedExperts &listed, GemmExpertsProblem *p,
                 const Launch &launch) {
    p->gemm.slots = S::slots(uint32_t(launch.device.shared_bytes) - kStaticShared);
    LinearArgs by_expert = args;
    by_expert.x = {args.x.format, listed.x_rows, args.x.columns, listed.x};
    QK_TRY(describe_planes(by_expert, S::kRowTiles / 2, 1, S::kBox, launch.error, &p->gemm));
    const int64_t of_block = listed.e.joins() ? S::kRows / 2 : S::kRows;  // columns of y
    static_assert(S::kRows == gemm_block_rows(S::N), "passes over y are whole blocks");
    QK_ASSERT(listed.first % of_block == 0);
    p->first_block = int32_t(listed.first / of_block);
    p->row_blocks = int32_t(ceil_div(listed.columns, of_block));
    const int64_t blocks =
        min64(listed.items * p->row_blocks, int64_t{launch.device.multiprocessors});
    p->whole = leaves_whole(listed.e);
    p->next = static_cast<uint16_t *>(listed.next);
    p->listed_early = listed.early && !launch.in_order;
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
    if (listed.list.item_rows == 64) {
        return run_shape<GemmShape<T, Decode, kind, 64, 4, 1, 2, kSmall, true>>(args, listed, p,
                                                                                launch);
    }
    constexpr GemmExpertsKind of = {kSmall, kind == ScaleKind::kNested, Decode::kLut4,
                                    Decode::kEntryBytes == 0};
    if constexpr (of.has_96()) {
        if (listed.list.item_rows == 96) {
            return run_shape<GemmShape<T, Decode, kind, 96, 3, 1, 2, kSmall, true>>(args, listed, p,
                                                                                    launch);
        }
    }
    return run_shape<GemmShape<T, Decode, kind, of.most_rows(), 2, 1, 2, kSmall, true>>(
        args, listed, p, launch);
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
        if constexpr (codes == Codes::kLut4) {
            // Other scales are slow to lift: a warp has no time for it where groups are of 16.
            const bool placed = args.w.scale.format->id == QK_FORMAT_E8M0;
            if (args.w.format->id == QK_FORMAT_FP4_E2M1 && placed) {
                QK_ASSERT(listed.x_columns == GatheredColumns::kEven);
                return run_listed_rows<T, PlacedE2m1<T>, ScaleKind::kNested, true>(args, listed, &p,
                                                                                   launch);
            }
            if (args.w.format->id == QK_FORMAT_FP4_E2M1) {
                return run_listed_rows<T, DecodeE2m1<T>, ScaleKind::kNested, true>(args, listed, &p,
                                                                                   launch);
            }
        }
        return run_listed_rows<T, Decode, ScaleKind::kNested, true>(args, listed, &p, launch);
    }
    return with_scale_kind(p.gemm.w.scale_format, [&](auto kind) {
        return run_listed_rows<T, Decode, kind.value, false>(args, listed, &p, launch);
    });
}

}  // namespace qk::cuda
