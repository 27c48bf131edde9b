// Elements of any weight, in planes or in the records of a GGUF file, with a minimum or without.
// Kernels that know their layout read planes themselves (view.cuh).
#pragma once
#include "cuda/view.cuh"
#include "format/records.hpp"

namespace qk::cuda {

#if defined(__CUDACC__)
namespace {

// Calls body(record) with the reader of a layout of records.
template <class Body>
__device__ inline auto with_record(qk_layout layout, const Body &body) {
    switch (layout) {
        case QK_LAYOUT_GGUF_Q4_1: return body(RecordQ4_1{});
        case QK_LAYOUT_GGUF_Q5_0: return body(RecordQ5_0{});
        case QK_LAYOUT_GGUF_Q5_1: return body(RecordQ5_1{});
        case QK_LAYOUT_GGUF_Q8_0: return body(RecordQ8_0{});
        case QK_LAYOUT_GGUF_Q4_K: return body(RecordQ4K{});
        case QK_LAYOUT_GGUF_Q5_K: return body(RecordQ5K{});
        case QK_LAYOUT_GGUF_Q6_K: return body(RecordQ6K{});
        case QK_LAYOUT_GGUF_IQ4_XS: return body(RecordIq4Xs{});
        case QK_LAYOUT_GGUF_MXFP4: return body(RecordMxfp4{});
        default: return body(RecordQ4_0{});  // IQ4_NL's are the same
    }
}

// The record of a place in a row.
template <class R>
__device__ inline const uint8_t *record_at(const WeightView &w, int64_t row, int64_t column) {
    return w.data + (row * (w.geometry.k / R::kCodes) + column / R::kCodes) * R::kBytes;
}

__device__ inline int any_code(const WeightView &w, int64_t row, int64_t column) {
    if (!w.records) return code_of(w, row, column);
    return with_record(w.layout, [&](auto record) {
        using R = decltype(record);
        return int(R::code(record_at<R>(w, row, column), int(column % R::kCodes)));
    });
}

// A scale or minimum of a record, from its bits and its f16.
template <class R>
__device__ inline float record_value(const WeightView &w, uint16_t bits, uint16_t second) {
    if (w.scale_format != QK_FORMAT_LUT8) return f32_from_f16(bits);
    const float code = load_as<float>(w.code, bits);
    return R::kNested ? __fmul_rn(code, f32_from_f16(second)) : code;
}

// What all codes of a group share.
struct GroupValues {
    float zero, scale, minimum;
};

template <class R>
__device__ inline GroupValues record_group_values(const WeightView &w, GroupIndex i) {
    const uint8_t *const record = record_at<R>(w, i.row, i.group * R::kGroup);
    const int group = int(i.group % (R::kCodes / R::kGroup));
    const float scale = record_value<R>(w, R::scale(record, group), R::second(record));
    if (!R::kHasMinimum) return {8, scale, 0};
    return {0, scale, record_value<R>(w, R::minimum(record, group), R::minimum_second(record))};
}

__device__ inline GroupValues any_group(const WeightView &w, GroupIndex i) {
    if (w.records) {
        return with_record(
            w.layout, [&](auto record) { return record_group_values<decltype(record)>(w, i); });
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
