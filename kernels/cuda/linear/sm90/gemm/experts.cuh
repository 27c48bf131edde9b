// Products with experts for many rows of x: the matrix kernel (large.cuh) over a list of items,
// each up to N rows of x of one expert, which lie together (experts_list.hpp).
//
//     units of work    item 0: | rows of w 0 | 128 | ... |  item 1: | 0 | 128 | ...
//
// A block takes every gridDim-th unit; its ring is filled for the next one while sums are stored.
// Products are as wide as an item has rows of x. A row's sums have one order, whatever the width,
// and k is not cut, so that its bits depend on nothing but its own x and expert.
//
// Where gate and up are halves of an expert, a block has 64 rows of either: the sums of both pass
// through shared memory, 16 rows of x at a time, before they become y.
#pragma once
#include "cuda/linear/sm90/gemm/experts_problem.hpp"
#include "cuda/linear/sm90/gemm/large.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

// Activations of sums that are rounded to 16 bits: in f32, where join() of base/activation.hpp
// takes longer than the product. |x| above 87 would overflow.
__device__ inline float sigmoid_f32(float x) {
    const float near = x > 87.0f ? 87.0f : x < -87.0f ? -87.0f : x;
    return __fdividef(1.0f, __fadd_rn(1.0f, __expf(-near)));
}

__device__ inline float join_f32(const ExpertsView &e, float gate, float up) {
    switch (e.activation) {
        case QK_ACTIVATION_SILU: return __fmul_rn(__fmul_rn(gate, sigmoid_f32(gate)), up);
        case QK_ACTIVATION_GELU_TANH: {
            const float cube = __fmul_rn(__fmul_rn(gate, gate), gate);
            const float u = __fmul_rn(1.5957691f, __fmaf_rn(0.044715f, cube, gate));
            return __fmul_rn(__fmul_rn(gate, sigmoid_f32(u)), up);
        }
        case QK_ACTIVATION_SWIGLU_CLAMPED: {
            const float low = gate > e.limit ? e.limit : gate;
            const float near = up > e.limit ? e.limit : up < -e.limit ? -e.limit : up;
            return __fmul_rn(__fmul_rn(low, sigmoid_f32(__fmul_rn(e.alpha, low))),
                             __fadd_rn(near, 1.0f));
        }
        default: {
            const float half = __fmul_rn(0.5f, gate);
            const float both = __fadd_rn(1.0f, erff(__fmul_rn(gate, 0.70710678f)));
            return __fmul_rn(__fmul_rn(half, both), up);
        }
    }
}

// What a block multiplies.
template <class S>
struct ListedUnits {
    const GemmExpertsProblem &p;
    int32_t item, block, items;

    __device__ explicit ListedUnits(const GemmExpertsProblem &problem)
        : p(problem), item(int32_t(blockIdx.x) / p.row_blocks),
          block(p.first_block + int32_t(blockIdx.x) % p.row_blocks), items(*p.list.items_there) {}
    __device__ bool any() const { return item < items; }
    __device__ void next() {
        item += p.step_items;
        block += p.step_blocks;
        if (block >= p.first_block + p.row_blocks) block -= p.row_blocks, ++item;
    }
    // Row of tiles of the block's first of w, of its expert, and columns of y before the block's.
    __device__ int32_t first_tile() const {
        return block * (p.e.halves() ? S::kRowTiles / 2 : S::kRowTiles);
    }
    __device__ Item work(const ExpertsItem &of) const {
        const int32_t stages = (p.gemm.tiles + S::kTiles - 1) / S::kTiles;
        const int32_t gap = p.e.halves() ? p.of_expert / 2 - S::kRowTiles / 2 : 0;
        return {of.expert * p.of_expert + first_tile(),  of.first, 0, stages * S::kTiles, gap,
                (of.count + kListedBox - 1) / kListedBox};
    }
};

// Sums become y 16 rows of x at a time. Each thread has 8 rows of w of one row of x.
template <class S>
struct ListedOutput {
    using T = typename S::T;
    static constexpr int kEach = 8, kAcross = S::kRows / kEach;
    static_assert(S::kConsumers * 128 == 16 * kAcross);

    const ExpertsView &e;
    const ExpertsItem item;
    const int32_t *slots;
    int64_t row, other;         // of w, in the expert: the first four of this thread, the others
    int64_t column;             // of y: its first
    int32_t count;              // of its columns; 0: past the last
    uint32_t to, from, second;  // shared memory: its sums; what it makes y of
    float bias[kEach];

    __device__ ListedOutput(const ListedUnits<S> &unit, const ExpertsItem &of, uint32_t buffers)
        : e(unit.p.e), item(of), slots(unit.p.list.slots + of.first) {
        const int32_t across = int32_t(threadIdx.x) % kAcross;
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        to = buffers + lane % 4 * 2 * S::kColumn + (warp * 16 + lane / 4) * 4;
        const bool halves = e.halves();
        const int32_t first = across * (halves ? kEach / 2 : kEach);
        from = buffers + threadIdx.x / kAcross * S::kColumn + uint32_t(first) * 4;
        second = from + (halves ? S::kRows / 2 * 4 : 16);
        row = int64_t(unit.first_tile()) * 16 + first;
        other = row + (halves ? e.columns : 4);
        column = e.joins() && !halves ? row / 2 : row;
        count = column >= e.columns ? 0 : e.joins() ? kEach / 2 : kEach;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int64_t at = item.expert * e.rows + (i < 4 ? row + i : other + i - 4);
            bias[i] = e.bias == nullptr || count == 0 ? 0.0f : load_float(e.bias_type, e.bias, at);
        }
    }

    __device__ void store_y(int64_t slot, const float (&y)[kEach]) const {
        const int64_t at = slot * e.y_stride + column;
        const int bytes = e.y_type == QK_FORMAT_F32 ? 4 : 2;
        uint8_t *const to_y = static_cast<uint8_t *>(e.y) + at * bytes;
        const bool lines = reinterpret_cast<uintptr_t>(to_y) % 16 == 0 && !e.accumulate;
        if (lines && e.y_type == QK_FORMAT_F32) {
            const auto four = [&](int i) {
                return uint4{__float_as_uint(y[i]), __float_as_uint(y[i + 1]),
                             __float_as_uint(y[i + 2]), __float_as_uint(y[i + 3])};
            };
            global_store_16(to_y, four(0));
            if (count == kEach) global_store_16(to_y + 16, four(4));
        } else if (lines && count == kEach) {
            global_store_16(to_y, {pack_pair(T{}, y[0], y[1]), pack_pair(T{}, y[2], y[3]),
                                   pack_pair(T{}, y[4], y[5]), pack_pair(T{}, y[6], y[7])});
        } else {
            store_values(at, y);
        }
    }

    __device__ void store_values(int64_t at, const float (&y)[kEach]) const {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            if (i >= count) return;
            const float v =
                e.accumulate ? __fadd_rn(y[i], load_float(e.y_type, e.y, at + i)) : y[i];
            store_float(e.y_type, e.y, at + i, v);
        }
    }

    __device__ void make_y(int64_t slot, const float (&z)[kEach]) const {
        if (!e.joins()) return store_y(slot, z);
        float y[kEach] = {};
#pragma unroll
        for (int i = 0; i < kEach / 2; ++i) {
            const float gate = e.interleaved ? z[2 * i] : z[i];
            const float up = e.interleaved ? z[2 * i + 1] : z[i + 4];
            y[i] = join_f32(e, gate, up);
        }
        store_y(slot, y);
    }

    // The sums of rows of x 16 `piece` and on.
    template <int piece, int sums>
    __device__ void write_piece(uint32_t at, const float (&acc)[sums]) const {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint32_t place = uint32_t(i / 4 * 8 + i % 2) * S::kColumn + i / 2 % 2 * 32;
            shared_store_4(at + place, __float_as_uint(acc[piece * 8 + i]));
        }
    }

    template <int piece, int sums>
    __device__ void write_one_of(int32_t wanted, uint32_t at, const float (&acc)[sums]) const {
        if constexpr (piece * 8 < sums) {
            if (wanted == piece) return write_piece<piece>(at, acc);
            write_one_of<piece + 1>(wanted, at, acc);
        }
    }

    // `turn`: of two buffers, one after the other, so one barrier a piece keeps them apart.
    template <int sums>
    __device__ void store(const float (&acc)[sums], uint32_t &turn) const {
        const int32_t x_row = int32_t(threadIdx.x) / kAcross;
#pragma unroll 1
        for (int32_t piece = 0; piece * 16 < item.count; ++piece) {
            const uint32_t buffer = turn * 16 * S::kColumn;
            turn ^= 1;
            const int32_t number = piece * 16 + x_row;
            const bool there = number < item.count && count > 0;
            const int64_t slot = there ? slots[number] : 0;
            write_one_of<0>(piece, to + buffer, acc);
            named_barrier_wait(2, S::kConsumers * 128);
            if (!there) continue;
            const float4 a = shared_load_floats(from + buffer);
            const float4 b = shared_load_floats(second + buffer);
            make_y(slot, {__fadd_rn(a.x, bias[0]), __fadd_rn(a.y, bias[1]), __fadd_rn(a.z, bias[2]),
                          __fadd_rn(a.w, bias[3]), __fadd_rn(b.x, bias[4]), __fadd_rn(b.y, bias[5]),
                          __fadd_rn(b.z, bias[6]), __fadd_rn(b.w, bias[7])});
        }
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
            const ExpertsItem item = units.p.list.items[units.item];
            if (item.expert >= units.p.e.count) return;
            issue(units.work(item), turn);
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

template <class S, int kWidth>
__device__ void multiply_item(const LargeGemm<S> &any, const ListedUnits<S> &units,
                              const ExpertsItem &item, uint32_t buffers, Turn &ring,
                              uint32_t &turn) {
    using Gemm = LargeGemm<S, kWidth>;
    const Gemm g = {
        {{any.p, any.ring, any.full, any.empty, any.table, any.scale_codes, any.second_bias}}};
    typename Gemm::Sums sums = {};
    g.consume(units.work(item), ring, sums);
    const ListedOutput<S> output(units, item, buffers);
    output.store(sums, turn);
}

// The consumer warps.
template <class S>
__device__ void multiply_units(const LargeGemm<S> &g, ListedUnits<S> units, uint32_t base) {
    Turn ring(0);
    uint32_t turn = 0;
    const uint32_t buffers = base + S::kTable + uint32_t(g.p.slots) * S::kStage;
    for (; units.any(); units.next()) {
        const ExpertsItem item = units.p.list.items[units.item];
        if (item.expert >= units.p.e.count) {
            const int32_t columns = units.p.e.joins() ? S::kRows / 2 : S::kRows;
            fill_rows(units.p.e, units.p.list, item, int64_t(units.block) * columns, columns,
                      S::kConsumers * 128);
            continue;
        }
        const auto run = [&](auto width) {
            multiply_item<S, width.value>(g, units, item, buffers, ring, turn);
        };
        if constexpr (S::N == 32) {
            if (item.count <= 16) {
                run(std::integral_constant<int, 16>());
            } else {
                run(std::integral_constant<int, 32>());
            }
        } else {
            switch ((item.count + 31) / 32) {
                case 1: run(std::integral_constant<int, 32>()); break;
                case 2: run(std::integral_constant<int, 64>()); break;
                case 3: run(std::integral_constant<int, 96>()); break;
                default: run(std::integral_constant<int, 128>());
            }
        }
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
    allow_next_kernel();
    prepare_block<S>(p.gemm, warp, shared_address(full), shared_address(empty), shared,
                     scale_codes);
    const auto keep_address = [](uint32_t a) { return __shfl_sync(~0u, a, 0); };
    const LargeGemm<S> g = {
        {{p.gemm, keep_address(base + S::kTable), keep_address(shared_address(full)),
          keep_address(shared_address(empty)), base, scale_codes, second_bias}}};
    wait_for_previous_kernel();  // the list and x are its
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

template <class S>
Status run_shape(const LinearArgs &args, const ListedExperts &listed, GemmExpertsProblem *p,
                 const Launch &launch) {
    p->gemm.slots = S::slots(uint32_t(launch.device.shared_bytes) - kStaticShared);
    LinearArgs by_expert = args;
    by_expert.x = {args.x.format, listed.e.tokens * listed.e.slots, args.x.columns,
                   const_cast<void *>(listed.x)};
    QK_TRY(describe_planes(by_expert, S::kRowTiles / 2, kListedBox, launch.error, &p->gemm));
    const int64_t of_block = listed.e.joins() ? S::kRows / 2 : S::kRows;  // columns of y
    p->first_block = int32_t(listed.first / of_block);
    p->row_blocks = int32_t(ceil_div(listed.columns, of_block));
    const int64_t blocks =
        min64(listed.items * p->row_blocks, int64_t{launch.device.multiprocessors});
    p->step_items = int32_t(blocks / p->row_blocks);
    p->step_blocks = int32_t(blocks % p->row_blocks);
    Shape3 shape = {dim3(uint32_t(blocks)), S::kThreads};
    shape.shared_bytes = S::shared_bytes(p->gemm.slots);
    shape.overlaps = true;
    return launch_kernel(launch, "experts", multiply_listed<S>, shape, *p);
}

template <class T, class Decode, ScaleKind kind, bool kSmall>
Status run_listed_rows(const LinearArgs &args, const ListedExperts &listed, GemmExpertsProblem *p,
                       const Launch &launch) {
    if (listed.list.item_rows == 32) {
        return run_shape<GemmShape<T, Decode, kind, 32, 2, 1, 2, kSmall, true>>(args, listed, p,
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
