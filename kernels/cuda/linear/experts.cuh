// Products with experts on the device (docs/formats.md, "Products with experts"): which rows of w a
// column of y is made of, and what becomes of their products. Their kernels let the next one start
// when they have waited for those in front, so that a list's next product finds its routing there.
#pragma once
#include "base/activation.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {

struct ExpertsView {
    const void *expert, *weight;  // i32, f32 or null: [tokens, slots]
    int64_t tokens, slots, count;
    int64_t rows;     // of w, an expert
    int64_t columns;  // of y
    bool x_by_slot, summed, interleaved;
    qk_activation activation;
    float limit, alpha;
    const void *bias;  // [count, rows]; may be null
    qk_format bias_type;
    void *y;  // [heads, columns]
    qk_format y_type;
    int64_t y_stride;
    bool accumulate;

    QK_HD bool joins() const { return activation != QK_ACTIVATION_NONE; }
    QK_HD bool halves() const { return joins() && !interleaved; }
    QK_HD int64_t heads() const { return summed ? tokens : tokens * slots; }  // rows of y
};

inline ExpertsView experts_view(const LinearArgs &args) {
    const Experts &e = *args.experts;
    const int64_t rows = args.w.geometry.n / e.count;
    const Dense *const bias = args.bias;
    const bool joins = e.activation != QK_ACTIVATION_NONE;
    return {e.expert,
            e.weight,
            e.tokens,
            e.slots,
            e.count,
            rows,
            joins ? rows / 2 : rows,
            e.x_by_slot,
            e.summed,
            e.interleaved,
            e.activation,
            e.limit,
            e.alpha,
            bias != nullptr ? bias->data : nullptr,
            bias != nullptr ? bias->format->id : QK_FORMAT_F32,
            args.y.data,
            args.y.format->id,
            row_stride(args.y),
            args.accumulate};
}

// Whether y can be stored 16 bytes at a time.
inline bool leaves_whole(const ExpertsView &e) {
    const uintptr_t bytes = e.y_type == QK_FORMAT_F32 ? 4 : 2;
    const uintptr_t first = reinterpret_cast<uintptr_t>(e.y), row = uintptr_t(e.y_stride) * bytes;
    return !e.accumulate && (first | row | uintptr_t(e.columns) * bytes) % 16 == 0;
}

#if defined(__CUDACC__)
namespace {

// The rows of an expert that a column of y is made of: `up` is `gate` where none are joined.
struct RowsOfColumn {
    int64_t gate, up;
};

__device__ inline RowsOfColumn rows_of_column(const ExpertsView &e, int64_t column) {
    if (!e.joins()) return {column, column};
    if (e.interleaved) return {2 * column, 2 * column + 1};
    return {column, e.columns + column};
}

// By one load where the tensor's address allows it.
template <class T>
__device__ inline T load_aligned(const void *data, int64_t index) {
    if (reinterpret_cast<uintptr_t>(data) % sizeof(T) != 0) return load_as<T>(data, index);
    return static_cast<const T *>(data)[index];
}

__device__ inline int32_t expert_of(const ExpertsView &e, int64_t slot) {
    return load_aligned<int32_t>(e.expert, slot);
}
__device__ inline float weight_of(const ExpertsView &e, int64_t slot) {
    return e.summed && e.weight != nullptr ? load_aligned<float>(e.weight, slot) : 1.0f;
}

__device__ inline float not_a_number() { return __uint_as_float(0x7fc00000u); }

// Adds slot after slot of a row of y.
struct SlotSum {
    float sum = 0;
    bool any = false;  // of the slots is there

    // `expert`: not below 0; of one that there is not `z` is ignored.
    __device__ void add(const ExpertsView &e, int64_t slot, int32_t expert, float z) {
        add_times(e, weight_of(e, slot), expert, z);
    }
    __device__ void add_times(const ExpertsView &e, float weight, int32_t expert, float z) {
        if (expert >= e.count) z = not_a_number();
        any = true;
        sum = e.summed ? __fmaf_rn(weight, z, sum) : z;
    }
};

// Of a row of y: its slots, one after the other. z(slot, expert): of one that is there.
template <class Z>
__device__ SlotSum sum_of_slots(const ExpertsView &e, int64_t head, const Z &z) {
    SlotSum sum;
    for (int64_t j = 0; j < (e.summed ? e.slots : 1); ++j) {
        const int64_t slot = e.summed ? head * e.slots + j : head;
        const int32_t expert = expert_of(e, slot);
        if (expert < 0) continue;
        sum.add(e, slot, expert, expert < e.count ? z(slot, expert) : 0);
    }
    return sum;
}

// The product of a row of w and its bias.
__device__ inline float with_bias(const ExpertsView &e, int64_t row, float sum) {
    return e.bias == nullptr ? sum : __fadd_rn(sum, load_float(e.bias_type, e.bias, row));
}

// A skipped row is zeros, or what it was.
__device__ inline void store_sum(const ExpertsView &e, int64_t head, int64_t column,
                                 const SlotSum &s) {
    if (!s.any && !e.summed && e.accumulate) return;
    const int64_t at = head * e.y_stride + column;
    const float y = e.accumulate ? __fadd_rn(s.sum, load_float(e.y_type, e.y, at)) : s.sum;
    store_float(e.y_type, e.y, at, y);
}

}  // namespace
#endif

}  // namespace qk::cuda
