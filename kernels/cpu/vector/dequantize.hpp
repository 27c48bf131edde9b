// Dequantize to f32, f16 or bf16; what is left beside the look-ups of dequantize_values.hpp is
// writing, past the caches where the output is large.
//
// Layouts whose rows are runs of nibbles (row, row_high, word, awq_gemv) are read in order, those
// that store columns (awq_gemm, gptq) a tile at a time, packed ones 8 rows at a time: all of memory
// is read in the order in which it lies. Included after an instruction set's codes.hpp.
#pragma once
#include "cpu/features.hpp"
#include "cpu/lists.hpp"
#include "cpu/split.hpp"
#include "cpu/vector/dequantize_bytes.hpp"
#include "cpu/vector/dequantize_values.hpp"
#include "cpu/vector/row_scales.hpp"
#include "cpu/vector/row_tile.hpp"

namespace qk::cpu {
namespace {

template <class Values>
char *place_of(const DequantizeArgs &args, int64_t row, int64_t column) {
    const int64_t at = row * args.from.geometry.k + column;
    return static_cast<char *>(args.to.data) + at * Values::kBytes;
}

// Rows that are runs of nibbles.
template <class Values>
class RunWriter {
  public:
    explicit RunWriter(const DequantizeArgs &args) : args_(args), groups_(args) {}

    // Columns first .. last, whose nibbles start at `run` of data.
    template <bool high_first, bool stream>
    void write(const uint8_t *data, int64_t run, int64_t row, int64_t first, int64_t last) {
        const Geometry &s = args_.from.geometry;
        const int64_t size = s.group_size;
        groups_.start(row);
        int64_t group = group_of(s, row, first).group, next = group_end(s, row, first);
        char *to = place_of<Values>(args_, row, first);
        for (int64_t column = first; column < last;) {
            const int64_t rest = last > next ? ceil_div(last - next, size) + 1 : 1;
            const int64_t count = min64(rest, GroupValues<Values>::kMost);
            groups_.make(group, count, value_);
            group += count;
            for (int64_t i = 0; i < count; ++i, next += size) {
                const int64_t end = min64(next, last), at = run + column - first;
                write_group<high_first, stream>(data, at, at + end - column, value_[i], to);
                to += (end - column) * Values::kBytes;
                column = end;
            }
        }
    }

  private:
    typedef typename Values::Value Value;

    template <bool high_first>
    static void write_one(const uint8_t *data, int64_t nibble, const Value *value, char *&to) {
        const uint8_t byte = data[nibble >> 1];
        store_as(to, 0, value[byte >> ((nibble & 1) != int64_t{high_first} ? 4 : 0) & 15]);
        to += Values::kBytes;
    }

    template <bool high_first, bool stream>
    static void write_group(const uint8_t *data, int64_t at, int64_t end, const Value *value,
                            char *to) {
        if ((at & 1) != 0 && at < end) write_one<high_first>(data, at++, value, to);
        const auto table = Values::load(value);
        for (; end - at >= Values::kCodes; at += Values::kCodes) {
            Values::template emit<high_first, stream>(data + (at >> 1), table, to);
            to += Values::kCodes * Values::kBytes;
        }
        while (at < end) write_one<high_first>(data, at++, value, to);
    }

    const DequantizeArgs &args_;
    GroupValues<Values> groups_;
    alignas(64) Value value_[GroupValues<Values>::kMost][16];
};

// Packed rows, 8 at a time: their chunks take turns in one stream. Columns go by units of 32, which
// groups are multiples of.
template <class Values>
class PackedWriter {
  public:
    explicit PackedWriter(const DequantizeArgs &args) : args_(args), groups_(args) {}

    template <bool stream>
    void write(int64_t first) {
        const Geometry &s = args_.from.geometry;
        const int64_t rows = min64(8, s.n - first);
        const uint8_t *chunk = static_cast<const uint8_t *>(args_.from.data) +
                               first * ceil_div(s.k, 128) * 64;
        for (int64_t column = 0; column < s.k; column += 128, chunk += 512) {
            if (column % kColumns == 0) make_values(first, rows, column);
            for (int64_t row = 0; row < rows; ++row) {
                const uint8_t *const from = chunk + 64 * row;
                prefetch(from + 4096);
                char *const to = place_of<Values>(args_, first + row, column);
                const Value(*const value)[16] = value_[row];
                const int64_t *const group = group_ + column % kColumns / 32;
                if (s.k - column < 128) {
                    write_some(from, value, group, s.k - column, to);
                } else {
                    const Words words = load_words(from);
                    write_unit<0, stream>(words, value[group[0]], to);
                    write_unit<1, stream>(words, value[group[1]], to);
                    write_unit<2, stream>(words, value[group[2]], to);
                    write_unit<3, stream>(words, value[group[3]], to);
                }
            }
        }
    }

  private:
    typedef typename Values::Value Value;
    static constexpr int64_t kColumns = 512, kUnits = kColumns / 32;

    void make_values(int64_t first, int64_t rows, int64_t column) {
        const Geometry &s = args_.from.geometry;
        const int64_t start = column / s.group_size;
        const int64_t units = min64(kUnits, ceil_div(s.k - column, 32));
        for (int64_t i = 0; i < units; ++i) group_[i] = (column + 32 * i) / s.group_size - start;
        for (int64_t row = 0; row < rows; ++row) {
            groups_.start(first + row);
            groups_.make(start, group_[units - 1] + 1, value_[row]);
        }
    }

    template <int unit, bool stream>
    static void write_unit(const Words &words, const Value *value, char *to) {
        Values::template emit_packed<unit, stream>(words, Values::load(value),
                                                   to + 32 * unit * Values::kBytes);
    }

    static void write_some(const uint8_t *chunk, const Value (*value)[16], const int64_t *group,
                           int64_t count, char *to) {
        for (int64_t i = 0; i < count; ++i) {
            const int64_t nibble = (i & 15) * 8 + (i >> 4);
            const int code = chunk[nibble >> 1] >> (nibble & 1) * 4 & 15;
            store_as(to, i, value[group[i / 32]][code]);
        }
    }

    const DequantizeArgs &args_;
    GroupValues<Values> groups_;
    int64_t group_[kUnits];  // of each unit, counted from the first one's
    alignas(64) Value value_[8][kUnits][16];
};

// Layouts that store columns.
template <class Values, bool stream>
void write_tiles(const DequantizeArgs &args, int64_t first, int64_t last) {
    const int64_t k = args.from.geometry.k;
    RunWriter<Values> writer(args);
    RowTile tile;
    for (int64_t row = first; row < last; row += RowTile::kRows) {
        const int64_t row_end = min64(row + RowTile::kRows, last);
        for (int64_t column = 0; column < k; column += RowTile::kColumns) {
            const int64_t end = min64(column + RowTile::kColumns, k);
            tile.load(args.from, row, row_end, column, end);
            for (int64_t r = row; r < row_end; ++r) {
                writer.template write<false, stream>(tile.row(r - row), 0, r, column, end);
            }
        }
    }
}

template <class Values, bool stream>
void write_runs(const DequantizeArgs &args, int64_t first, int64_t last) {
    const Geometry &s = args.from.geometry;
    const uint8_t *const data = static_cast<const uint8_t *>(args.from.data);
    RunWriter<Values> writer(args);
    const bool high_first = args.from.layout->id == QK_LAYOUT_ROW_HIGH;
    const bool words = args.from.layout->id != QK_LAYOUT_ROW;
    const int64_t pitch = high_first ? s.k : round_up(s.k, words ? 8 : 2);
    for (int64_t row = first; row < last; ++row) {
        high_first ? writer.template write<true, stream>(data, row * pitch, row, 0, s.k)
                   : writer.template write<false, stream>(data, row * pitch, row, 0, s.k);
    }
}

template <class Values, bool stream>
void write_rows(const DequantizeArgs &args, int64_t first, int64_t last) {
    if (args.from.layout->id == kLayoutRows8) {
        PackedWriter<Values> writer(args);
        for (int64_t row = first; row < last; row += 8) writer.template write<stream>(row);
    } else if (stores_columns(args.from)) {
        write_tiles<Values, stream>(args, first, last);
    } else {
        write_runs<Values, stream>(args, first, last);
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
    const int64_t block = stores_columns(args.from) ? RowTile::kRows : 8;
    parallel_ranges(launch.parallel, s.n, block, [&](int64_t first, int64_t last) {
        stream ? write_rows<Values, true>(args, first, last)
               : write_rows<Values, false>(args, first, last);
    });
}

Status run_dequantize(const DequantizeArgs &args, const Launch &launch) {
    if (args.from.layout->bits == 8) return dequantize_bytes(args, launch);
    switch (args.to.format->id) {
        case QK_FORMAT_F16:
        case QK_FORMAT_BF16: write_all<HalfValues>(args, launch); break;
        default: write_all<FloatValues>(args, launch);
    }
    return QK_OK;
}

bool can_run_dequantize(const DequantizeArgs &args, int32_t) {
    const Geometry &s = args.from.geometry;
    if ((features() & kLanesFeature) == 0) return false;
    switch (args.from.layout->id) {
        case kLayoutRows8: return !s.flat && (s.group_size % 32 == 0 || s.group_size >= s.k);
        case QK_LAYOUT_ROW:
        case QK_LAYOUT_ROW_HIGH:
        case QK_LAYOUT_AWQ_GEMM:
        case QK_LAYOUT_AWQ_GEMV:
        case QK_LAYOUT_GPTQ:
        case QK_LAYOUT_GPTQ_V1:
        case QK_LAYOUT_WORD: return true;
        default: return false;
    }
}

}  // namespace
}  // namespace qk::cpu
