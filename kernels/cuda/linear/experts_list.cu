// Slots by expert (experts_list.hpp), counted by a block or a cluster, and the sums of slots. Which
// row stands where among an expert's is up to the sequence in which threads count; no bit depends
// on it.
#include "cuda/linear/experts_list.hpp"

#include "cuda/prim/cluster.cuh"
#include "cuda/prim/mma.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

constexpr int32_t kThreads = 1024, kListBlocks = 8, kSumThreads = 128, kGatherThreads = 256;

__device__ int32_t bucket_of(const ExpertsView &e, int64_t slot) {
    const int32_t expert = expert_of(e, slot);
    if (expert < 0) return int32_t(e.count);
    return expert < e.count ? expert : int32_t(e.count) + 1;
}

struct Place {
    int32_t item, slot;
};

// Of each thread, what those in front of it have together.
__device__ Place places_in_front(Place mine) {
    __shared__ Place of_warp[kThreads / 32];
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    Place sum = mine;
    for (int i = 1; i < 32; i *= 2) {
        const int32_t item = __shfl_up_sync(~0u, sum.item, i);
        const int32_t slot = __shfl_up_sync(~0u, sum.slot, i);
        if (lane >= i) sum.item += item, sum.slot += slot;
    }
    if (lane == 31) of_warp[warp] = sum;
    __syncthreads();
    Place front = {sum.item - mine.item, sum.slot - mine.slot};
    for (int i = 0; i < warp; ++i) front.item += of_warp[i].item, front.slot += of_warp[i].slot;
    return front;
}

struct ListProblem {
    ExpertsView e;
    ExpertsList list;
};

// use(bucket, slot) for each slot of this block that is of a bucket. Several experts are on their
// way at once.
template <class Use>
__device__ void each_slot(const ExpertsView &e, int32_t buckets, const Use &use) {
    constexpr int kAtOnce = 4;
    const int64_t slots = e.tokens * e.slots, step = int64_t{gridDim.x} * kThreads;
    for (int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x; first < slots;
         first += step * kAtOnce) {
        int32_t bucket[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int64_t slot = first + i * step;
            bucket[i] = slot < slots ? bucket_of(e, slot) : buckets;
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            if (bucket[i] < buckets) use(bucket[i], int32_t(first + i * step));
        }
    }
}

// Slots of a bucket: of all blocks, and of those in front of this one.
struct Count {
    int32_t all, front;
};

__device__ Count count_of(const int32_t *counts, int32_t bucket) {
    if (gridDim.x == 1) return {counts[bucket], 0};
    Count count = {0, 0};
    for (uint32_t block = 0; block < gridDim.x; ++block) {
        const int32_t its = int32_t(cluster_load_4(shared_address(counts + bucket), block));
        count.all += its;
        if (block < blockIdx.x) count.front += its;
    }
    return count;
}

// By a cluster, each block of which has a share of the slots.
__global__ void __launch_bounds__(kThreads) make_list(const __grid_constant__ ListProblem p) {
    constexpr int kEach = (kListed + 2 + kThreads - 1) / kThreads;  // buckets of a thread, at most
    __shared__ int32_t counts[kListed + 2];
    const ExpertsView &e = p.e;
    const int32_t buckets = int32_t(e.count) + (e.summed ? 0 : 2), of_item = p.list.item_rows;
    for (int32_t i = int32_t(threadIdx.x); i < buckets; i += kThreads) counts[i] = 0;
    wait_for_previous_kernel();
    allow_next_kernel();
    __syncthreads();
    each_slot(e, buckets, [](int32_t bucket, int32_t) { atomicAdd(&counts[bucket], 1); });
    const auto meet = [] { gridDim.x == 1 ? __syncthreads() : cluster_sync(); };
    meet();
    const int32_t each = (buckets + kThreads - 1) / kThreads;
    const int32_t first = min(int32_t(threadIdx.x) * each, buckets);
    Count count[kEach] = {};
    Place mine = {0, 0};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        if (i >= each || first + i >= buckets) break;
        count[i] = count_of(counts, first + i);
        mine.item += (count[i].all + of_item - 1) / of_item;
        mine.slot += count[i].all;
    }
    Place at = places_in_front(mine);
    meet();  // every block has read the counts
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        if (i >= each || first + i >= buckets) break;
        const int32_t together = (count[i].all + of_item - 1) / of_item;
        const int32_t rows = together > 0 ? (count[i].all + together - 1) / together : 0;
        for (int32_t number = 0; number < together && blockIdx.x == 0; ++number) {
            const int32_t done = number * rows;
            p.list.items[at.item + number] = {first + i, at.slot + done,
                                              min(count[i].all - done, rows), number, together};
        }
        counts[first + i] = at.slot + count[i].front;  // the place of this block's next slot
        at.item += together;
        at.slot += count[i].all;
    }
    if (threadIdx.x == kThreads - 1 && blockIdx.x == 0) {
        *p.list.items_there = at.item, *p.list.slots_there = at.slot;
    }
    __syncthreads();
    each_slot(e, buckets, [&](int32_t bucket, int32_t slot) {
        p.list.slots[atomicAdd(&counts[bucket], 1)] = slot;
    });
}

struct GatherProblem {
    ExpertsView e;
    ExpertsList list;
    const uint8_t *x;
    uint8_t *to;
    int64_t stride;       // bytes from a row of x to the next
    int64_t first, rows;  // of the list
    int32_t pieces;       // of 16 bytes, of a row: an even number
    GatheredColumns columns;
};

// What a lane stores of its 8 columns and its neighbour's, an even lane being the first of two.
__device__ uint4 moved(uint4 v, GatheredColumns columns) {
    if (columns == GatheredColumns::kEven) {
        v = {byte_permute(v.x, v.y, 0x5410u), byte_permute(v.x, v.y, 0x7632u),
             byte_permute(v.z, v.w, 0x5410u), byte_permute(v.z, v.w, 0x7632u)};
    }
    const bool odd = threadIdx.x & 1;
    const uint32_t both = 3u << (threadIdx.x & 30);
    const uint32_t a = __shfl_xor_sync(both, odd ? v.x : v.y, 1);
    const uint32_t b = __shfl_xor_sync(both, odd ? v.z : v.w, 1);
    return odd ? uint4{a, b, v.y, v.w} : uint4{v.x, v.z, a, b};
}

// A warp has a row, two lanes 16 columns: the first leaves with those that come first.
__global__ void __launch_bounds__(kGatherThreads)
    gather_rows(const __grid_constant__ GatherProblem p) {
    constexpr int kAtOnce = 4;
    const int32_t lane = int32_t(threadIdx.x) % 32;
    const int64_t step = int64_t{gridDim.x} * (kGatherThreads / 32);
    int64_t row = (int64_t{blockIdx.x} * kGatherThreads + threadIdx.x) / 32;
    wait_for_previous_kernel();
    allow_next_kernel();
    const int64_t rows = min64(*p.list.slots_there - p.first, p.rows);
    for (; row < rows; row += step) {
        const int32_t slot = p.list.slots[p.first + row];
        const int64_t from = p.e.x_by_slot ? slot : uint32_t(slot) / uint32_t(p.e.slots);
        const uint4 *const x = reinterpret_cast<const uint4 *>(p.x + from * p.stride);
        uint4 *const to = reinterpret_cast<uint4 *>(p.to) + row * p.pieces;
        for (int32_t first = lane; first < p.pieces; first += 32 * kAtOnce) {
            uint4 v[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                if (first + i * 32 < p.pieces) v[i] = x[first + i * 32];
            }
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                if (first + i * 32 < p.pieces) to[first + i * 32] = moved(v[i], p.columns);
            }
        }
    }
}

struct SumProblem {
    ExpertsView e;
    const float *z;  // [tokens * slots, columns]
    int64_t first, columns;
    bool whole;  // y leaves four columns at a time
};

constexpr int32_t kTogether = 8;  // slots whose z is on its way

__device__ void store_four(const SumProblem &p, int64_t token, int64_t column,
                           const SlotSum (&sum)[4]) {
    const ExpertsView &e = p.e;
    if (!p.whole) {
#pragma unroll
        for (int i = 0; i < 4; ++i) store_sum(e, token, column + i, sum[i]);
        return;
    }
    const int64_t at = token * e.y_stride + column;
    if (e.y_type == QK_FORMAT_F32) {
        global_store_16(static_cast<float *>(e.y) + at,
                        {__float_as_uint(sum[0].sum), __float_as_uint(sum[1].sum),
                         __float_as_uint(sum[2].sum), __float_as_uint(sum[3].sum)});
        return;
    }
    uint32_t bits[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        bits[i] = e.y_type == QK_FORMAT_F16 ? f16_from_f32(sum[i].sum) : bf16_from_f32(sum[i].sum);
    }
    global_store_8(static_cast<uint16_t *>(e.y) + at,
                   {bits[0] | bits[1] << 16, bits[2] | bits[3] << 16});
}

// A thread has four columns of y, which are there: tiles are 16 wide, joined halves 8. Lanes load a
// slot's number and weight each and hand them on: each thread by itself would wait for one after
// the other, which takes as long as all of z.
__global__ void __launch_bounds__(kSumThreads) sum_slots(const __grid_constant__ SumProblem p) {
    const ExpertsView &e = p.e;
    const int64_t own = (int64_t(blockIdx.x) * kSumThreads + threadIdx.x) * 4;
    const int64_t column = own < p.columns ? own : 0;
    wait_for_previous_kernel();
    allow_next_kernel();
    for (int64_t token = blockIdx.y; token < e.tokens; token += gridDim.y) {
        SlotSum sum[4];
        for (int64_t first = token * e.slots, left = e.slots; left > 0;
             first += kTogether, left -= kTogether) {
            float4 z[kTogether];
#pragma unroll
            for (int j = 0; j < kTogether; ++j) {
                // Asked for before it is known whether there is one: it is in the workspace.
                z[j] = global_load_floats(p.z + (first + (j < left ? j : 0)) * p.columns + column);
            }
            const int64_t slot = first + min64(threadIdx.x % kTogether, left - 1);
            const int32_t expert = expert_of(e, slot);
            const float weight = weight_of(e, slot);
#pragma unroll
            for (int j = 0; j < kTogether; ++j) {
                const int32_t its = __shfl_sync(~0u, expert, j);
                const float times = __shfl_sync(~0u, weight, j);
                if (j >= left || its < 0) continue;
                const float four[4] = {z[j].x, z[j].y, z[j].z, z[j].w};
#pragma unroll
                for (int i = 0; i < 4; ++i) sum[i].add_times(e, times, its, four[i]);
            }
        }
        if (own < p.columns) store_four(p, token, p.first + column, sum);
    }
}

Status list_experts(const ExpertsView &e, const ExpertsList &list, const Launch &launch) {
    const int32_t blocks = e.tokens * e.slots > kThreads ? kListBlocks : 1;
    Shape3 shape = {dim3(uint32_t(blocks)), kThreads};
    shape.overlaps = true;
    shape.cluster = blocks;
    return launch_kernel(launch, "experts", make_list, shape, {e, list});
}

// Rows of x of the items that begin in listed.rows.
Status gather_x(const LinearArgs &args, const ListedExperts &listed, const Launch &launch) {
    const int32_t pieces = int32_t(args.x.columns * 2 / 16);
    const int64_t rows = listed.x_rows;
    const int64_t blocks =
        min64(ceil_div(rows, kGatherThreads / 32), int64_t{launch.device.multiprocessors} * 8);
    Shape3 shape = {dim3(uint32_t(blocks)), kGatherThreads};
    shape.overlaps = true;
    return launch_kernel(launch, "experts", gather_rows, shape,
                         {listed.e, listed.list, static_cast<const uint8_t *>(args.x.data),
                          static_cast<uint8_t *>(listed.x), row_stride(args.x) * 2,
                          listed.first_row, rows, pieces, listed.x_columns});
}

Status add_slots(const SumProblem &p, const Launch &launch) {
    constexpr int64_t kMaxGridY = 65535;
    Shape3 shape = {dim3(uint32_t(ceil_div(p.columns, kSumThreads * 4)),
                         uint32_t(min64(p.e.tokens, kMaxGridY))),
                    kSumThreads};
    shape.overlaps = true;
    return launch_kernel(launch, "experts", sum_slots, shape, p);
}

// Tokens [first, first + count) of a product.
LinearArgs tokens_of(const LinearArgs &args, int64_t first, int64_t count, Experts *experts) {
    LinearArgs part = args;
    const Experts &e = *args.experts;
    const auto moved = [](const void *from, int64_t bytes) {
        return static_cast<char *>(const_cast<void *>(from)) + bytes;
    };
    *experts = e;
    experts->tokens = count;
    experts->expert = moved(e.expert, first * e.slots * 4);
    if (e.weight != nullptr) experts->weight = moved(e.weight, first * e.slots * 4);
    const int64_t x_row = first * (e.x_by_slot ? e.slots : 1);
    const int64_t y_row = first * (e.summed ? 1 : e.slots);
    part.x.data = moved(args.x.data, x_row * row_stride(args.x) * (args.x.format->bits / 8));
    part.y.data = moved(args.y.data, y_row * row_stride(args.y) * (args.y.format->bits / 8));
    part.experts = experts;
    return part;
}

ListedExperts listed_of(const LinearArgs &args, const ExpertsListPlan &plan, void *workspace) {
    const ExpertsView e = experts_view(args);
    char *const at = static_cast<char *>(workspace);
    auto *const there = reinterpret_cast<int32_t *>(at);
    return {e,
            {there, there + 1, reinterpret_cast<ExpertsItem *>(at + 16),
             reinterpret_cast<int32_t *>(at + plan.order), plan.item_rows},
            plan.items,
            0,
            e.columns,
            0,
            plan.rows,
            at + plan.x,
            plan.x_rows,
            nullptr,
            false,
            plan.x_columns};
}

Status add_products(const LinearArgs &args, ListedExperts listed, const ExpertsListPlan &plan,
                    const Launch &launch, Products *products) {
    const ExpertsView e = listed.e;
    auto *const z = reinterpret_cast<float *>(static_cast<char *>(launch.workspace) + plan.z);
    listed.e.summed = listed.e.accumulate = false;
    listed.e.y_type = QK_FORMAT_F32;
    for (; listed.first < e.columns; listed.first += plan.columns) {
        listed.columns = min64(plan.columns, e.columns - listed.first);
        listed.e.y_stride = listed.columns;
        listed.e.y = z - listed.first;
        QK_TRY(products(args, listed, launch));
        QK_TRY(add_slots({e, z, listed.first, listed.columns, leaves_whole(e)}, launch));
    }
    return QK_OK;
}

Status run_tokens(const LinearArgs &args, const ExpertsListPlan &plan, const Launch &launch,
                  Products *products) {
    ListedExperts listed = listed_of(args, plan, launch.workspace);
    const bool gathers = plan.end > plan.x;
    if (plan.item_rows > 0) QK_TRY(list_experts(listed.e, listed.list, launch));
    if (listed.e.summed) {
        if (gathers) QK_TRY(gather_x(args, listed, launch));
        return add_products(args, listed, plan, launch, products);
    }
    for (; listed.first_row < listed.e.tokens * listed.e.slots; listed.first_row += listed.rows) {
        if (gathers) QK_TRY(gather_x(args, listed, launch));
        QK_TRY(products(args, listed, launch));
    }
    return QK_OK;
}

}  // namespace

Status run_listed(const LinearArgs &args, const ExpertsListPlan &plan, const Launch &launch,
                  Products *products) {
    const int64_t tokens = args.experts->tokens;
    for (int64_t first = 0; first < tokens; first += plan.tokens) {
        Experts experts;
        const int64_t count = min64(plan.tokens, tokens - first);
        QK_TRY(run_tokens(tokens_of(args, first, count, &experts), plan, launch, products));
    }
    return QK_OK;
}

Status run_layer(const ExpertsLayer &layer, const Launch &launch, Products *products) {
    const ExpertsListPlan &of_down = layer.of_down;
    char *const at = static_cast<char *>(launch.workspace);
    ListedExperts listed = listed_of(layer.up, of_down, at);
    listed.x = at + of_down.z, listed.next = at + layer.x_of_down();
    QK_TRY(list_experts(listed.e, listed.list, launch));
    QK_TRY(gather_x(layer.up, listed, launch));
    QK_TRY(products(layer.up, listed, launch));
    listed = listed_of(layer.down, of_down, at);
    listed.x = at + layer.x_of_down();
    listed.early = true;
    if (listed.e.summed) return add_products(layer.down, listed, of_down, launch, products);
    return products(layer.down, listed, launch);
}

}  // namespace qk::cuda
