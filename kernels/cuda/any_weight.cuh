// Elements of any weight, in planes or in the records of a GGUF file, with a minimum or without.
// Kernels that know their layout read planes themselves (view.cuh).
#pragma once
#include "cuda/records.cuh"

namespace qk::cuda {

#if defined(__CUDACC__)
namespace {

// The record of a place in a row.
template <class R>
__device__ inline const uint8_t *record_at(const WeightView &w, int64_t row, int64_t column) {
    return w.data + (row * (w.geometry.k / R::kCodes) + column / R::kCodes) * R::kBytes;
}

__device__ inline int any_code(const WeightView &w, int64_t row, int64_t column) {
    if (!w.records) return code_of(w, row, column);
    return with_reader(w.layout, [&](auto reader) {
        using R = typename decltype(reader)::Record;
        return int(R::code(record_at<R>(w, row, column), int(column % R::kCodes)));
    });
}

__device__ inline GroupValues any_group(const WeightView &w, GroupIndex i) {
    if (w.records) {
        return with_reader(w.layout, [&](auto reader) {
            using R = typename decltype(reader)::Record;
            return record_group_values<R>(record_at<R>(w, i.row, i.group * R::kGroup),
                                          int(i.group % (R::kCodes / R::kGroup)));
        });
    }
    return {w.kind == FormatKind::kU4 ? float(zero_of(w, i)) : 0.0f, scale_of(w, i),
            w.lowered ? plane_value(w, w.minimum, w.minimum_second, i) : 0.0f};
}

// `entries`: fill_entries' of the weight.
__device__ inline float any_value(const WeightView &w, const float *entries, int code,
                                  const GroupValues &group) {
    const float entry = w.kind == FormatKind::kU4 ? float(code) - group.zero : entries[code];
    const float value = __fmul_rn(entry, group.scale);
    return w.lowered ? __fadd_rn(value, -group.minimum) : value;
}

}  // namespace
#endif

}  // namespace qk::cuda
