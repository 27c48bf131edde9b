// A weight as device code sees it: host tables hold host function pointers, so formats and layouts
// travel as numbers and are switched on. Planes may have any alignment: loads go through memcpy,
// which the compiler splits into bytes; fast kernels check alignment first and load vectors.
#pragma once
#include <string.h>

#include "backend/backend.hpp"
#include "base/half.hpp"
#include "format/layout_maps.hpp"

namespace qk::cuda {

// ---- What the host derives from sizes and addresses

inline bool aligned(const void *pointer, uintptr_t bytes = 16) {
    return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

inline bool is_gptq(const Weight &w) {
    return w.layout->id == QK_LAYOUT_GPTQ || w.layout->id == QK_LAYOUT_GPTQ_V1;
}

inline bool power_of_two(int64_t value) { return (value & (value - 1)) == 0; }

// Of a power of two; 0 of 0, which second_group is where scales are not coded, and 31 of what is
// larger than any group number of 32 bits: of kOneSecond they are below 2^31 (kFewGroups32).
inline int32_t log2_of(int64_t value) {
    if (value >= int64_t{1} << 31) return 31;
    return value > 0 ? __builtin_ctzll(uint64_t(value)) : 0;
}

// log2 of second_group for group numbers of 64 bits; -1 where it is no power of two.
inline int32_t second_shift_of(const ScalePlane &scale) {
    const int64_t group = scale.second_group;
    if (!power_of_two(group)) return -1;
    return group > 0 ? __builtin_ctzll(uint64_t(group)) : 0;
}

// log2 of the tiles of 64 columns a group; a row of one group is as good as 2^31.
inline int32_t group_tiles_shift(const Geometry &s) {
    return s.groups_per_row == 1 ? 31 : log2_of(s.group_size) - 6;
}

// What coded scales are: E8M0 or E4M3, which need no table, all multiplied by one number at most;
// LUT8 for others, those that have been divided by a GLOBAL number among them.
inline qk_format coded_scales(const ScalePlane &scale, const ScaleTables &tables) {
    const bool built_in = scale.code == tables.e8m0 || scale.code == tables.e4m3;
    const bool known = built_in && scale.second_group == kOneSecond;
    return known ? scale.format->id : qk_format{QK_FORMAT_LUT8};
}

// ---- What device code sees

struct WeightView {
    Geometry geometry;
    qk_format format;
    FormatKind kind;
    uint8_t bits;
    qk_layout layout;
    int32_t zero_offset;
    uint8_t *data;
    qk_format scale_format;  // LUT8 for all coded ones
    uint8_t *scale;
    uint8_t *second;
    const uint8_t *code;
    uint8_t *bias;
    int64_t second_group;
    uint8_t *zero;
    const uint8_t *table;
    float entries[16];  // kLut4: the codebook, which device code would keep in slow local memory;
                        // LUT4 has it in `table`
    bool divides;
    bool records;  // of a GGUF file: scales and minima are among the codes
    bool lowered;  // has minima, which are stored as its scales are
    uint8_t *minimum, *minimum_second;
};

inline qk_format scale_format_of(const Weight &w) {
    if (is_dense(*w.format)) return QK_FORMAT_F32;
    return has_coded_scales(w.scale) ? qk_format{QK_FORMAT_LUT8} : w.scale.format->id;
}

inline WeightView view_of(const Weight &w) {
    const bool dense = is_dense(*w.format);
    const auto bytes = [](void *plane) { return static_cast<uint8_t *>(plane); };
    WeightView view = {w.geometry,
                       w.format->id,
                       w.format->kind,
                       w.format->bits,
                       dense ? QK_LAYOUT_ROW : w.layout->id,
                       dense ? 0 : w.layout->zero_offset,
                       bytes(w.data),
                       scale_format_of(w),
                       bytes(w.scale.data),
                       bytes(w.scale.second),
                       bytes(w.scale.code),
                       bytes(w.scale.bias),
                       w.scale.second_group,
                       bytes(w.zero),
                       bytes(w.table),
                       {},
                       w.scale.divides,
                       is_records(w),
                       has_minimum(w),
                       bytes(w.minimum.data),
                       bytes(w.minimum.second)};
    for (int code = 0; w.format->value != nullptr && code < 16; ++code) {
        view.entries[code] = w.format->value(code);
    }
    return view;
}

// The operands of a product.
struct LinearView {
    WeightView w;
    qk_format type;  // of x, and of y but for kernels that look at y_type
    const void *x;
    int64_t m;
    qk_format bias_type;
    const void *bias;  // may be null
    void *y;
    qk_format y_type;
    int64_t x_stride, y_stride;  // from a row to the next
    bool accumulate;
    const void *order;  // of y's columns, transposed products; may be null
};

inline LinearView view_of(const LinearArgs &args) {
    const Dense *const bias = args.bias;
    return {view_of(args.w),
            args.x.format->id,
            args.x.data,
            args.x.rows,
            bias != nullptr ? bias->format->id : QK_FORMAT_F32,
            bias != nullptr ? bias->data : nullptr,
            args.y.data,
            args.y.format->id,
            row_stride(args.x),
            row_stride(args.y),
            args.accumulate,
            args.w.order};
}

inline bool is_nested(const Weight &w) { return w.scale.format->id == QK_FORMAT_LUT8; }

#if defined(__CUDACC__)
namespace {

template <class T>
__device__ inline T load_as(const void *data, int64_t index) {
    T value;
    memcpy(&value, static_cast<const char *>(data) + index * int64_t(sizeof(T)), sizeof(T));
    return value;
}

template <class T>
__device__ inline void store_as(void *data, int64_t index, T value) {
    memcpy(static_cast<char *>(data) + index * int64_t(sizeof(T)), &value, sizeof(T));
}

__device__ inline float load_float(qk_format format, const void *data, int64_t index) {
    switch (format) {
        case QK_FORMAT_F16: return f32_from_f16(load_as<uint16_t>(data, index));
        case QK_FORMAT_BF16: return f32_from_bf16(load_as<uint16_t>(data, index));
        default: return load_as<float>(data, index);
    }
}

__device__ inline void store_float(qk_format format, void *data, int64_t index, float value) {
    switch (format) {
        case QK_FORMAT_F16: return store_as(data, index, f16_from_f32(value));
        case QK_FORMAT_BF16: return store_as(data, index, bf16_from_f32(value));
        default: return store_as(data, index, value);
    }
}

// One value of y: its bias is added in f32, then it is rounded to y's type.
// `p`: a problem with bias, bias_type and y; `row` of w, `at` elements into y.
template <class Problem>
__device__ void store_output(const Problem &p, qk_format type, int64_t row, int64_t at, float y) {
    if (p.bias != nullptr) y = __fadd_rn(y, load_float(p.bias_type, p.bias, row));
    store_float(type, p.y, at, y);
}

// The same of what any product may be: y has a type and a stride of its own, and may accumulate.
__device__ inline void store_any(const LinearView &o, int64_t x_row, int64_t column, float y) {
    const int64_t at = x_row * o.y_stride + column;
    if (o.bias != nullptr) y = __fadd_rn(y, load_float(o.bias_type, o.bias, column));
    if (o.accumulate) y = __fadd_rn(y, load_float(o.y_type, o.y, at));
    store_float(o.y_type, o.y, at, y);
}

// Of a transposed product: the stored column may be another one of y's.
__device__ inline void store_moved(const LinearView &o, int64_t x_row, int64_t column, float y) {
    const auto *const order = static_cast<const uint8_t *>(o.order);
    const int64_t k = o.w.geometry.k;
    const bool moved = order != nullptr;
    const int64_t to = moved ? ordered_column(load_as<int32_t>(order, column), k) : column;
    store_any(o, x_row, to, y);
}

// Calls body(map) with the closed forms of a layout.
template <class Body>
__device__ inline auto with_map(qk_layout layout, int bits, const Body &body) {
    switch (layout) {
        case QK_LAYOUT_ROW_HIGH: return body(MapRowHigh{});
        case QK_LAYOUT_AWQ_GEMM: return body(MapAwqGemm{});
        case QK_LAYOUT_AWQ_GEMV: return body(MapAwqGemv{});
        case QK_LAYOUT_GPTQ:
        case QK_LAYOUT_GPTQ_V1: return body(MapGptq{});
        case QK_LAYOUT_WORD: return body(MapWord{});
        case kLayoutTiles: return body(MapTiles<false>{});
        case kLayoutTilesPairs: return body(MapTiles<true>{});
        default: return bits == 8 ? body(MapRowBytes{}) : body(MapRow{});
    }
}

__device__ inline int64_t code_at(const WeightView &w, int64_t row, int64_t column) {
    return with_map(w.layout, w.bits,
                    [&](auto map) { return map.code_at(w.geometry, row, column); });
}

__device__ inline int64_t scale_at(const WeightView &w, GroupIndex group) {
    return with_map(w.layout, w.bits, [&](auto map) { return map.scale_at(w.geometry, group); });
}

__device__ inline int64_t zero_at(const WeightView &w, GroupIndex group) {
    return with_map(w.layout, w.bits, [&](auto map) { return map.zero_at(w.geometry, group); });
}

__device__ inline int code_of(const WeightView &w, int64_t row, int64_t column) {
    const int64_t at = code_at(w, row, column);
    return w.bits == 8 ? w.data[at] : w.data[at >> 1] >> (at & 1) * 4 & 15;
}

// Nested scales: two fp32 roundings, as bitsandbytes computes them.
__device__ inline float nested_scale(float code, float second, float bias) {
    return __fadd_rn(__fmul_rn(code, second), bias);
}

// One of a group's scales or minima, in `plane` with its second ones.
__device__ inline float plane_value(const WeightView &w, const uint8_t *plane,
                                    const uint8_t *seconds, GroupIndex group) {
    const int64_t at = scale_at(w, group);
    if (w.scale_format != QK_FORMAT_LUT8) return load_float(w.scale_format, plane, at);
    const int64_t number = group_number(w.geometry, group) / w.second_group;
    const float code = load_as<float>(w.code, plane[at]), second = load_as<float>(seconds, number);
    const float bias = load_as<float>(w.bias, 0);
    return w.divides ? __fadd_rn(__fdiv_rn(code, second), bias) : nested_scale(code, second, bias);
}

__device__ inline float scale_of(const WeightView &w, GroupIndex group) {
    return plane_value(w, w.scale, w.second, group);
}

__device__ inline int zero_of(const WeightView &w, GroupIndex group) {
    if (w.zero == nullptr) return w.lowered ? 0 : 8;
    const int64_t at = zero_at(w, group);
    return ((w.zero[at >> 1] >> (at & 1) * 4 & 15) + w.zero_offset) & 15;
}

// What a code stands for before the scale (affine: before its zero is taken off).
__device__ inline float entry_of(const WeightView &w, int code) {
    switch (w.kind) {
        case FormatKind::kLut4:
            return w.table != nullptr ? load_as<float>(w.table, code) : w.entries[code];
        case FormatKind::kLut8: return load_as<float>(w.table, code);
        case FormatKind::kS8: return float(int8_t(code));
        default: return float(code);
    }
}

// All of them, in shared memory. Every thread of the block calls it; ends with a barrier.
__device__ inline void fill_entries(const WeightView &w, float *entries) {
    const int count = w.bits <= 8 ? 1 << w.bits : 0;
    for (int code = int(threadIdx.x); code < count; code += int(blockDim.x)) {
        entries[code] = entry_of(w, code);
    }
    __syncthreads();
}

}  // namespace
#endif

}  // namespace qk::cuda
