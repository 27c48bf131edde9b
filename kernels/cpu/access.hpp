// How CPU kernels read dense values, scales and zeros. Planes may have any alignment, so loads and
// stores go through memcpy, which costs nothing where the machine allows unaligned access.
#pragma once
#include <string.h>

#include "backend/backend.hpp"
#include "base/half.hpp"
#include "cpu/isa.hpp"
#include "cpu/kernels.hpp"

namespace qk::cpu {
namespace {

// Whether no group ends within 16 columns of a row, nor a row within those of a group.
inline bool has_whole_steps(const Geometry &s) {
    return !s.flat || (s.k % 16 == 0 && s.group_size % 16 == 0);
}
// Whether groups that straddle rows differ in their scales alone, one cut a step at most.
inline bool scales_steps(const Weight &w) {
    const Geometry &s = w.geometry;
    return s.flat && s.group_size % 16 == 0 && w.zero == nullptr && !has_minimum(w);
}
// The group of a code, counted over all rows where groups straddle them. Divisions take time.
class GroupOfCode {
  public:
    explicit GroupOfCode(const Geometry &s) : size_(s.group_size) {
        if ((size_ & (size_ - 1)) == 0) shift_ = __builtin_ctzll(uint64_t(size_));
    }
    int64_t operator()(int64_t code) const { return shift_ >= 0 ? code >> shift_ : code / size_; }

  private:
    const int64_t size_;
    int shift_ = -1;  // log2 of the group size
};

// How kernels over blocks of packed rows see groups: those that straddle rows as groups of 16.
inline Geometry geometry_of_blocks(const Geometry &s) {
    if (!s.flat) return s;
    const int64_t steps = ceil_div(s.k, 16);
    return {s.n, s.k, 16, steps, s.n * steps, false};
}

// Outputs above this are not read back from the caches: write past them.
constexpr int64_t kStreamBytes = int64_t{4} << 20;

template <class T>
inline T load_as(const void *data, int64_t index) {
    T value;
    memcpy(&value, static_cast<const char *>(data) + index * int64_t(sizeof(T)), sizeof(T));
    return value;
}

template <class T>
inline void store_as(void *data, int64_t index, T value) {
    memcpy(static_cast<char *>(data) + index * int64_t(sizeof(T)), &value, sizeof(T));
}

inline float load_float(qk_format format, const void *data, int64_t index) {
    switch (format) {
        case QK_FORMAT_F16: return f32_from_f16(load_as<uint16_t>(data, index));
        case QK_FORMAT_BF16: return f32_from_bf16(load_as<uint16_t>(data, index));
        default: return load_as<float>(data, index);
    }
}

// The format is asked once, so that the loops are of vectors.
inline void load_floats(qk_format format, const void *data, int64_t first, int64_t count,
                        float *values) {
    const auto load = [=](qk_format of_all) QK_INLINE {
        for (int64_t i = 0; i < count; ++i) values[i] = load_float(of_all, data, first + i);
    };
    switch (format) {
        case QK_FORMAT_F16: return load(QK_FORMAT_F16);
        case QK_FORMAT_BF16: return load(QK_FORMAT_BF16);
        default: return load(QK_FORMAT_F32);
    }
}

inline void store_float(qk_format format, void *data, int64_t index, float value) {
    switch (format) {
        case QK_FORMAT_F16: return store_as(data, index, f16_from_f32(value));
        case QK_FORMAT_BF16: return store_as(data, index, bf16_from_f32(value));
        default: return store_as(data, index, value);
    }
}

inline void store_floats(qk_format format, void *data, int64_t first, int64_t count,
                         const float *values) {
    const auto store = [=](qk_format of_all) QK_INLINE {
        for (int64_t i = 0; i < count; ++i) store_float(of_all, data, first + i, values[i]);
    };
    switch (format) {
        case QK_FORMAT_F16: return store(QK_FORMAT_F16);
        case QK_FORMAT_BF16: return store(QK_FORMAT_BF16);
        default: return store(QK_FORMAT_F32);
    }
}

// One number of y from its sum: plus the bias, plus what y held if it accumulates, one rounding.
inline void store_y(const LinearArgs &args, int64_t x_row, int64_t column, float sum) {
    const qk_format format = args.y.format->id;
    const int64_t at = x_row * row_stride(args.y) + column;
    if (args.bias != nullptr) sum += load_float(args.bias->format->id, args.bias->data, column);
    if (args.accumulate) sum += load_float(format, args.y.data, at);
    store_float(format, args.y.data, at, sum);
}

inline bool is_nested(const Weight &w) { return w.scale.format->id == QK_FORMAT_LUT8; }

inline int64_t second_count(const Weight &w) {
    return ceil_div(w.geometry.group_count, w.scale.second_group);
}

// One of a group's scales or minima. Coded: two fp32 roundings, as bitsandbytes computes nested
// ones.
inline float value_of(const Weight &w, const ScalePlane &scale, GroupIndex group) {
    const int64_t at = w.layout->scale_at(w.geometry, group);
    if (!has_coded_scales(scale)) return load_float(scale.format->id, scale.data, at);
    const float code = load_as<float>(scale.code, load_as<uint8_t>(scale.data, at));
    const int64_t number = group_number(w.geometry, group);
    const float second = load_as<float>(scale.second, number / scale.second_group);
    return (scale.divides ? code / second : code * second) + load_as<float>(scale.bias, 0);
}

// The same of a record: `bits` and, for nested ones, the f16 that multiplies them.
inline float value_of(const Record &record, uint16_t bits, uint16_t second) {
    switch (record.scale_format) {
        case QK_FORMAT_I8: return float(int8_t(bits)) * f32_from_f16(second);
        case QK_FORMAT_E8M0: return e8m0_half_value(bits);
        default: return f32_from_f16(bits);
    }
}

inline uint8_t *record_at(const Weight &w, int64_t record) {
    return static_cast<uint8_t *>(w.data) + record * w.layout->record->bytes;
}

// A group of a weight in records: which kind, where its record is, its number there.
struct GroupOfRecord {
    const Record &record;
    uint8_t *at;
    int group;
};
inline GroupOfRecord find_in_record(const Weight &w, GroupIndex group) {
    const RecordGroup i = record_group(*w.layout->record, w.geometry, group);
    return {*w.layout->record, record_at(w, i.record), i.group};
}

inline float scale_of(const Weight &w, GroupIndex group) {
    if (!is_records(w)) return value_of(w, w.scale, group);
    const auto [record, at, i] = find_in_record(w, group);
    return value_of(record, record.scale(at, i), record.second(at));
}

// What is taken off entry * scale; of weights that have minima.
inline float minimum_of(const Weight &w, GroupIndex group) {
    if (!is_records(w)) return value_of(w, w.minimum, group);
    const auto [record, at, i] = find_in_record(w, group);
    return value_of(record, record.minimum(at, i), record.minimum_second(at));
}

// Of every group where none has its own.
inline int common_zero(const Weight &w) { return has_minimum(w) ? 0 : 8; }

inline int zero_of(const Weight &w, GroupIndex group) {
    if (w.zero == nullptr) return common_zero(w);
    const int64_t at = w.layout->zero_at(w.geometry, group);
    const int stored = load_as<uint8_t>(w.zero, at >> 1) >> (at & 1) * 4 & 15;
    return (stored + w.layout->zero_offset) & 15;
}

// Of a weight with an order: the column that the stored one is.
inline int64_t column_at(const Weight &w, int64_t stored) {
    return ordered_column(load_as<int32_t>(w.order, stored), w.geometry.k);
}

// Nibble planes are zeroed before they are filled.
inline void store_zero(const Weight &w, GroupIndex group, int zero) {
    const int64_t at = w.layout->zero_at(w.geometry, group);
    const int stored = (zero - w.layout->zero_offset) & 15;
    const uint8_t byte = load_as<uint8_t>(w.zero, at >> 1);
    store_as(w.zero, at >> 1, uint8_t(byte | stored << (at & 1) * 4));
}

// Where rows are runs of nibbles: what their length is rounded up to; else 0.
inline int64_t run_pad(const Weight &w) {
    switch (w.layout->id) {
        case QK_LAYOUT_ROW: return 2;
        case QK_LAYOUT_ROW_HIGH: return 1;
        case QK_LAYOUT_AWQ_GEMV:
        case QK_LAYOUT_WORD: return 8;
        default: return 0;
    }
}

// Where rows are such runs and each starts at a whole byte.
inline bool has_rows_of_bytes(const Weight &w) {
    const int64_t pad = run_pad(w);
    return pad != 0 && round_up(w.geometry.k, pad) % 2 == 0;
}

// Zeroes a plane by tasks, so that its pages are first touched by the threads of their rows.
inline void clear(const Parallel &parallel, void *plane, int64_t bytes) {
    if (plane == nullptr) return;
    parallel_ranges(parallel, bytes, 4096, 1, [&](int64_t first, int64_t last) {
        memset(static_cast<char *>(plane) + first, 0, size_t(last - first));
    });
}
// What is stored nibble by nibble, and padding with it.
inline void clear_scales_and_zeros(const Weight &w, const Parallel &parallel) {
    if (is_records(w)) return;
    const int64_t scale_bytes = w.layout->scale_count(w.geometry) * (w.scale.format->bits / 8);
    clear(parallel, w.scale.data, scale_bytes);
    clear(parallel, w.minimum.data, scale_bytes);
    clear(parallel, w.zero, w.layout->zero_bytes(w.geometry));
}

// What the 4-bit codes of a format stand for before the scale; affine ones with this zero.
QK_NOINLINE inline void entries_of(const Weight &w, int zero, float *to) {
    if (w.format->id == QK_FORMAT_LUT4) {
        memcpy(to, w.table, 16 * sizeof(float));
        return;
    }
    const bool table = w.format->kind == FormatKind::kLut4;
    for (int code = 0; code < 16; ++code)
        to[code] = table ? w.format->value(code) : float(code - zero);
}

// What each code of a weight stands for before the scale.
struct Entries {
    float value[256];

    explicit Entries(const Weight &w) {
        switch (w.format->kind) {
            case FormatKind::kLut8: memcpy(value, w.table, sizeof(value)); break;
            case FormatKind::kS8:
                for (int code = 0; code < 256; ++code) value[code] = float(int8_t(code));
                break;
            default: entries_of(w, 8, value);
        }
    }
    void set_zero(int zero) {
        for (int code = 0; code < 16; ++code) value[code] = float(code - zero);
    }
};

}  // namespace

// Columns first .. first + count of x, counted from its first element, as f32: 16 at a time,
// `stride` floats apart, the last ones followed by zeros.
template <class Isa>
QK_NOINLINE void widen_x(const Dense &x, int64_t first, int64_t count, float *to,
                         int64_t stride = 16) {
    const int64_t size = x.format->bits / 8;
    const char *const from = static_cast<const char *>(x.data) + first * size;
    const auto widen = [=](auto load) QK_INLINE {
        int64_t i = 0;
        for (; i + 16 <= count; i += 16) {
            Isa::store_f32(to + i / 16 * stride, load(from + i * size, Isa::first_lanes(16)));
        }
        if (i == count) return;
        Isa::store_f32(to + i / 16 * stride, load(from + i * size, Isa::first_lanes(count - i)));
    };
    switch (x.format->id) {
        case QK_FORMAT_F16:
            return widen([](const char *at, Mask<Isa> m) { return Isa::load_f16(at, m); });
        case QK_FORMAT_BF16:
            return widen([](const char *at, Mask<Isa> m) { return Isa::load_bf16(at, m); });
        default: return widen([](const char *at, Mask<Isa> m) { return Isa::load_f32(at, m); });
    }
}

// Scales of one row, in order: what scale_of gives, without finding each place again.
template <class Isa>
class RowScales {
  public:
    explicit RowScales(const Weight &w) : RowScales(w, w.scale) {}
    // `plane`: the weight's scales, or its minima.
    RowScales(const Weight &w, const ScalePlane &plane)
        : w_(w), plane_(plane), coded_(has_coded_scales(plane)) {
        if (coded_) bias_ = load_as<float>(plane.bias, 0);
    }
    void start(int64_t row) {
        const Geometry &s = w_.geometry;
        row_ = s.flat ? 0 : row;
        base_ = w_.layout->scale_at(s, {row_, 0});
        stride_ = s.flat || s.groups_per_row > 1 ? w_.layout->scale_at(s, {row_, 1}) - base_ : 0;
    }
    float at(int64_t group) {
        const int64_t place = base_ + group * stride_;
        if (!coded_) return load_float(plane_.format->id, plane_.data, place);
        const int64_t number = group_number(w_.geometry, {row_, group});
        if (number < first_ || number >= first_ + plane_.second_group) {
            const int64_t second = number / plane_.second_group;
            first_ = second * plane_.second_group;
            second_ = load_as<float>(plane_.second, second);
        }
        const float code = load_as<float>(plane_.code, load_as<uint8_t>(plane_.data, place));
        const float product = code * second_;
        return product + bias_;
    }
    // Of groups first .. first + count, into whole runs of 16.
    void read(int64_t first, int64_t count, float *to) {
        const qk_format format = plane_.format->id;
        const int64_t place = base_ + first * stride_;
        if (format == QK_FORMAT_I8 && stride_ == 1) {
            read_integers(group_number(w_.geometry, {row_, first}), place, count, to);
        } else if (coded_ && stride_ == 1) {
            read_coded(group_number(w_.geometry, {row_, first}), place, count, to);
        } else if (coded_) {
            for (int64_t i = 0; i < count; ++i) to[i] = at(first + i);
        } else if (stride_ == 1) {
            // Whole runs where there are some: a part of one goes through memory.
            const int64_t whole = round_up(count, 16);
            const bool there = place + whole <= w_.geometry.group_count && !is_records(w_);
            widen_x<Isa>({plane_.format, 1, count, plane_.data}, place, there ? whole : count, to);
        } else {
            for (int64_t i = 0; i < count; ++i) {
                to[i] = load_float(format, plane_.data, place + i * stride_);
            }
        }
    }
    // What read() will want next.
    void fetch(int64_t first, int64_t count) const {
        const int64_t size = plane_.format->bits / 8, from = base_ + first * stride_;
        const uint8_t *const data = static_cast<const uint8_t *>(plane_.data);
        if (stride_ != 1) return;
        for (int64_t i = 0; i < count * size; i += 64) prefetch(data + from * size + i);
    }
    int64_t row() const { return row_; }

  private:
    // body(first, end, second): scales, from number `number` on, that share a second scale.
    template <class Body>
    QK_INLINE void for_each_second(int64_t number, int64_t count, const Body &body) const {
        const int64_t size = plane_.second_group;
        const bool power = (size & (size - 1)) == 0;  // divisions are slow
        int64_t second = power ? number >> __builtin_ctzll(uint64_t(size)) : number / size;
        for (int64_t i = 0, end = (second + 1) * size - number; i < count; end += size) {
            const int64_t last = min64(end, count);
            body(i, last, load_as<float>(plane_.second, second++));
            i = last;
        }
    }
    QK_NOINLINE void read_coded(int64_t number, int64_t place, int64_t count, float *to) const {
        const uint8_t *const codes = static_cast<const uint8_t *>(plane_.data) + place;
        const auto scale = [=, this](const auto &value_of_code) QK_INLINE {
            for_each_second(number, count, [&](int64_t i, int64_t end, float by) QK_INLINE {
                for (; i < end; ++i) {
                    const float product = value_of_code(codes[i]) * by;
                    to[i] = product + bias_;
                }
            });
        };
        if (plane_.code == kScaleTables.e8m0) {  // vectors of them
            return scale([](uint8_t code) { return e8m0_value(code); });
        }
        scale([=, this](uint8_t code) { return load_as<float>(plane_.code, code); });
    }
    // i8 codes times their second scales.
    QK_NOINLINE void read_integers(int64_t number, int64_t place, int64_t count, float *to) const {
        const int8_t *const codes = static_cast<const int8_t *>(plane_.data) + place;
        for_each_second(number, count, [&](int64_t i, int64_t end, float by) QK_INLINE {
            for (; i + 8 <= end; i += 8) {
                for (int64_t j = 0; j < 8; ++j) to[i + j] = float(codes[i + j]) * by;
            }
            for (; i < end; ++i) to[i] = float(codes[i]) * by;
        });
    }

    const Weight &w_;
    const ScalePlane &plane_;
    bool coded_;
    int64_t row_ = 0, base_ = 0, stride_ = 0, first_ = INT64_MIN / 2;
    float second_ = 0, bias_ = 0;
};

}  // namespace qk::cpu
