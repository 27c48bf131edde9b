// Dequantize 4-bit codes to f32, f16 or bf16. A group has 16 different values at most: they are
// computed once, rounded once, and then only looked up; what is left is writing them.
//
// Layouts whose rows are runs of nibbles (row, row_high, word, awq_gemv) are read in order; packed
// ones chunk by chunk. Included after an instruction set's codes.hpp.
#pragma once
#include "cpu/access.hpp"
#include "cpu/features.hpp"
#include "cpu/lists.hpp"
#include "cpu/split.hpp"
#include "cpu/vector/row_scales.hpp"

namespace qk::cpu {
namespace {

// Outputs above this are not read back from the caches: write past them.
constexpr int64_t kStreamBytes = int64_t{4} << 20;

// The values of a group, by code.
struct FloatValues {
    static constexpr int kBytes = 4, kCodes = 16, kSteps = 1;
    Table table;
    float value[16];

    void set(const Lanes &values) {
        store_f32(value, values);
        table = load_table(value);
    }
    template <bool high_first, bool stream>
    void emit(const uint8_t *codes, char *to) const {
        emit_floats<high_first, stream>(codes, table, to);
    }
    template <int step, bool stream>
    void emit_packed(const Words &words, char *to) const {
        emit_step<step, stream>(words, table, to);
    }
    void emit_one(int code, char *to) const { store_as(to, 0, value[code]); }
};

template <void (*narrow)(Lanes, uint16_t *)>
struct HalfValues {
    static constexpr int kBytes = 2, kCodes = 32, kSteps = 2;
    HalfTable table;
    uint16_t value[16];

    void set(const Lanes &values) {
        narrow(values, value);
        table = load_halves_table(value);
    }
    template <bool high_first, bool stream>
    void emit(const uint8_t *codes, char *to) const {
        emit_halves<high_first, stream>(codes, table, to);
    }
    template <int step, bool stream>
    void emit_packed(const Words &words, char *to) const {
        emit_step_halves<step, stream>(words, table, to);
    }
    void emit_one(int code, char *to) const { store_as(to, 0, value[code]); }
};

template <class Values>
class RowWriter {
  public:
    explicit RowWriter(const DequantizeArgs &args)
        : args_(args), scales_(args.from),
          affine_(args.from.format->kind == FormatKind::kAffine) {
        Entries entries(args.from);
        for (int zero = 0; zero < 16; ++zero) {
            if (affine_) entries.set_zero(zero);
            memcpy(entries_[zero], entries.value, sizeof(entries_[zero]));
        }
    }

    // Rows that are runs of nibbles; `run` is the nibble at which the row starts.
    template <bool high_first, bool stream>
    void write_run(int64_t row, int64_t run) {
        const Geometry &s = args_.from.geometry;
        scales_.start(row);
        int64_t group = group_of(s, row, 0).group, next = group_end(s, row, 0);
        for (int64_t column = 0; column < s.k; next += s.group_size) {
            const int64_t end = min64(next, s.k);
            set_group(group++);
            write_segment<high_first, stream>(run + column, run + end, place(row, column));
            column = end;
        }
    }

    template <bool stream>
    void write_packed(int64_t row) {
        const Geometry &s = args_.from.geometry;
        const uint8_t *chunk = static_cast<const uint8_t *>(args_.from.data) +
                               ((row >> 3) * ceil_div(s.k, 128) * 8 + (row & 7)) * 64;
        scales_.start(row);
        next_group_ = 0;
        next_column_ = 0;
        for (int64_t column = 0; column < s.k; column += 128, chunk += 512) {
            prefetch(chunk + 4096);
            const Words words = load_words(chunk);
            write_steps<0, stream>(words, chunk, row, column);
        }
    }

  private:
    char *place(int64_t row, int64_t column) const {
        const int64_t at = row * args_.from.geometry.k + column;
        return static_cast<char *>(args_.to.data) + at * Values::kBytes;
    }

    void set_group(int64_t group) {
        const int zero = affine_ ? zero_of(args_.from, {scales_.row(), group}) : 0;
        values_.set(mul(load_f32(entries_[zero]), splat(scales_.at(group))));
    }

    template <bool high_first>
    void write_one(int64_t nibble, char *&to) const {
        const uint8_t byte = static_cast<const uint8_t *>(args_.from.data)[nibble >> 1];
        values_.emit_one(byte >> ((nibble & 1) != int64_t{high_first} ? 4 : 0) & 15, to);
        to += Values::kBytes;
    }

    template <bool high_first, bool stream>
    void write_segment(int64_t at, int64_t end, char *to) const {
        const uint8_t *const data = static_cast<const uint8_t *>(args_.from.data);
        if ((at & 1) != 0 && at < end) write_one<high_first>(at++, to);
        for (; end - at >= Values::kCodes; at += Values::kCodes) {
            values_.template emit<high_first, stream>(data + (at >> 1), to);
            to += Values::kCodes * Values::kBytes;
        }
        while (at < end) write_one<high_first>(at++, to);
    }

    // Steps of 16 columns of a packed chunk, Values::kSteps at a time.
    template <int step, bool stream>
    void write_steps(const Words &words, const uint8_t *chunk, int64_t row, int64_t column) {
        if constexpr (step < 8) {
            const int64_t k = args_.from.geometry.k, at = column + 16 * step;
            if (at >= k) return;
            if (at == next_column_) {
                set_group(next_group_++);
                next_column_ += args_.from.geometry.group_size;
            }
            char *to = place(row, at);
            if (k - at >= Values::kCodes) {
                values_.template emit_packed<step, stream>(words, to);
            } else {
                for (int64_t i = 0; i < k - at; ++i, to += Values::kBytes) {
                    const int64_t nibble = (i & 15) * 8 + step + (i >> 4);
                    values_.emit_one(chunk[nibble >> 1] >> (nibble & 1) * 4 & 15, to);
                }
            }
            write_steps<step + Values::kSteps, stream>(words, chunk, row, column);
        }
    }

    const DequantizeArgs &args_;
    RowScales scales_;
    bool affine_;
    float entries_[16][16];  // by zero; where there are none, all the same
    Values values_;
    int64_t next_group_ = 0, next_column_ = 0;
};

template <class Values, bool stream>
void write_rows(const DequantizeArgs &args, int64_t first, int64_t last) {
    const Geometry &s = args.from.geometry;
    RowWriter<Values> writer(args);
    for (int64_t row = first; row < last; ++row) {
        switch (args.from.layout->id) {
            case kLayoutRows8: writer.template write_packed<stream>(row); break;
            case QK_LAYOUT_ROW_HIGH:
                writer.template write_run<true, stream>(row, row * s.k);
                break;
            case QK_LAYOUT_ROW:
                writer.template write_run<false, stream>(row, row * round_up(s.k, 2));
                break;
            default: writer.template write_run<false, stream>(row, row * round_up(s.k, 8));
        }
    }
    if (stream) end_stream();
}

template <class Values>
void write_all(const DequantizeArgs &args, const Launch &launch) {
    const Geometry &s = args.from.geometry;
    // Streaming stores need whole aligned vectors, whatever group or row they start in.
    const bool aligned = uintptr_t(args.to.data) % 64 == 0 && s.k % 32 == 0 &&
                         (s.group_size % 32 == 0 || s.group_size >= s.k);
    const bool stream = aligned && s.n * s.k * Values::kBytes >= kStreamBytes;
    parallel_ranges(launch.parallel, s.n, 8, [&](int64_t first, int64_t last) {
        stream ? write_rows<Values, true>(args, first, last)
               : write_rows<Values, false>(args, first, last);
    });
}

Status run_dequantize(const DequantizeArgs &args, const Launch &launch) {
    switch (args.to.format->id) {
        case QK_FORMAT_F16: write_all<HalfValues<narrow_f16>>(args, launch); break;
        case QK_FORMAT_BF16: write_all<HalfValues<narrow_bf16>>(args, launch); break;
        default: write_all<FloatValues>(args, launch);
    }
    return QK_OK;
}

bool can_run_dequantize(const DequantizeArgs &args, int32_t) {
    const Geometry &s = args.from.geometry;
    if ((features() & kLanesFeature) == 0 || args.from.layout->bits != 4) return false;
    switch (args.from.layout->id) {
        case QK_LAYOUT_ROW:
        case QK_LAYOUT_ROW_HIGH:
        case QK_LAYOUT_AWQ_GEMV:
        case QK_LAYOUT_WORD: return true;
        case kLayoutRows8: return !s.flat && (s.group_size % 32 == 0 || s.group_size >= s.k);
        default: return false;
    }
}

}  // namespace
}  // namespace qk::cpu
