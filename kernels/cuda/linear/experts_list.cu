// Slots by expert (experts_list.hpp), by one block that counts them, and the sums of slots. Which
// rows stand together is up to the sequence in which threads count; no bit depends on it.
#include "cuda/linear/experts_list.hpp"

#include "cuda/prim/mma.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

constexpr int32_t kThreads = 1024, kSumThreads = 128;

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

__global__ void __launch_bounds__(kThreads) make_list(const __grid_constant__ ListProblem p) {
    __shared__ int32_t counts[kListed + 2];
    const ExpertsView &e = p.e;
    const int32_t buckets = int32_t(e.count) + (e.summed ? 0 : 2);
    const int64_t slots = e.tokens * e.slots;
    allow_next_kernel();
    for (int32_t i = int32_t(threadIdx.x); i < buckets; i += kThreads) counts[i] = 0;
    wait_for_previous_kernel();
    __syncthreads();
    for (int64_t slot = threadIdx.x; slot < slots; slot += kThreads) {
        const int32_t bucket = bucket_of(e, slot);
        if (bucket < buckets) atomicAdd(&counts[bucket], 1);
    }
    __syncthreads();
    const int32_t each = (buckets + kThreads - 1) / kThreads;
    const int32_t first = min(int32_t(threadIdx.x) * each, buckets);
    const int32_t last = min(first + each, buckets);
    Place mine = {0, 0};
    for (int32_t i = first; i < last; ++i) {
        mine.item += (counts[i] + int32_t(kItemRows) - 1) / int32_t(kItemRows);
        mine.slot += counts[i];
    }
    Place at = places_in_front(mine);
    for (int32_t i = first; i < last; ++i) {
        const int32_t count = counts[i];
        for (int32_t done = 0; done < count; done += int32_t(kItemRows)) {
            p.list.items[at.item++] = {i, at.slot + done, min(count - done, int32_t(kItemRows)), 0};
        }
        counts[i] = at.slot;  // the place of its next slot
        at.slot += count;
    }
    if (threadIdx.x == kThreads - 1) *p.list.items_there = at.item;
    __syncthreads();
    for (int64_t slot = threadIdx.x; slot < slots; slot += kThreads) {
        const int32_t bucket = bucket_of(e, slot);
        if (bucket < buckets) p.list.slots[atomicAdd(&counts[bucket], 1)] = int32_t(slot);
    }
}

struct SumProblem {
    ExpertsView e;
    const float *z;
};

__global__ void __launch_bounds__(kSumThreads) sum_slots(const __grid_constant__ SumProblem p) {
    const ExpertsView &e = p.e;
    allow_next_kernel();
    wait_for_previous_kernel();
    const int64_t column = int64_t(blockIdx.x) * kSumThreads + threadIdx.x;
    if (column >= e.columns) return;
    for (int64_t token = blockIdx.y; token < e.tokens; token += gridDim.y) {
        const SlotSum sum = sum_of_slots(
            e, token, [&](int64_t slot, int32_t) { return p.z[slot * e.columns + column]; });
        store_sum(e, token, column, sum);
    }
}

}  // namespace

Status list_experts(const ExpertsView &e, const ExpertsList &list, const Launch &launch) {
    Shape3 shape = {dim3(1), kThreads};
    shape.overlaps = true;
    return launch_kernel(launch, "experts", make_list, shape, {e, list});
}

Status add_slots(const ExpertsView &e, const float *z, const Launch &launch) {
    constexpr int64_t kMaxGridY = 65535;
    Shape3 shape = {
        dim3(uint32_t(ceil_div(e.columns, kSumThreads)), uint32_t(min64(e.tokens, kMaxGridY))),
        kSumThreads};
    shape.overlaps = true;
    return launch_kernel(launch, "experts", sum_slots, shape, {e, z});
}

}  // namespace qk::cuda
