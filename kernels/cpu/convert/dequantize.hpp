// Dequantize to f32, f16 or bf16: the look-ups of dequantize_emit.hpp, and stores, past the caches
// where the output is large.
//
// Memory is read sequentially: rows of nibbles (layouts row, row_high, word, awq_gemv) one by one,
// layouts that store columns (awq_gemm, gptq) a tile at a time, packed ones 8 rows at a time.
#pragma once
#include "cpu/convert/dequantize_bytes.hpp"
#include "cpu/convert/dequantize_tiles.hpp"
#include "cpu/kernels.hpp"
#include "cpu/shared/panel.hpp"

namespace qk::cpu {
namespace {

// Rows that are runs of nibbles.
template <class Isa>
class RunWriter {
  public:
    explicit RunWriter(const Writing &writing)
        : writing_(writing), values_(writing.args.from, writing.args.to.format->id),
          scales_(writing.args.from), zeros_(writing.args.from) {
        memset(zero_, 8, sizeof(zero_));
    }

    // A row, whose nibbles start at `run` of data.
    QK_NOINLINE void write(int64_t run, int64_t row) {
        const Weight &w = writing_.args.from;
        const Geometry &s = w.geometry;
        scales_.start(row);
        zeros_.start(row);
        int64_t group = group_of(s, row, 0).group, next = group_end(s, row, 0);
        for (int64_t column = 0; column < s.k;) {
            const int64_t rest = s.k > next ? ceil_div(s.k - next, s.group_size) + 1 : 1;
            const int64_t count = min64(rest, kGroups);
            const int64_t end = min64(s.k, next + (count - 1) * s.group_size);
            scales_.read(group, count, scale_);
            zeros_.read(group, count, zero_);
            values_.make(reinterpret_cast<const char *>(scale_), zero_, 1, count, slots_);
            writing_.emit.run({static_cast<const uint8_t *>(w.data), run + column, end - column,
                               next - column, s.group_size, slots_, writing_.to(row, column)});
            group += count;
            column = end;
            next = end + s.group_size;
        }
    }

  private:
    static constexpr int64_t kGroups = 32;

    const Writing &writing_;
    GroupValues<Isa> values_;
    RowScales<Isa> scales_;
    RowZeros zeros_;
    float scale_[kGroups];
    uint8_t zero_[kGroups];
    alignas(64) char slots_[kGroups * kSlot];
};

// Packed rows, 8 at a time: their chunks alternate in one stream. Groups are multiples of 32
// columns.
template <class Isa>
class PackedWriter {
  public:
    explicit PackedWriter(const Writing &writing)
        : writing_(writing), values_(writing.args.from, writing.args.to.format->id),
          scales_(writing.args.from, writing.device), zeros_(writing.args.from) {
        memset(zero_, 8, sizeof(zero_));
    }

    QK_NOINLINE void write(int64_t first) {
        const Weight &w = writing_.args.from;
        const Geometry &s = w.geometry;
        const int64_t rows = min64(8, s.n - first), chunks = ceil_div(s.k, 128);
        const uint8_t *const data = static_cast<const uint8_t *>(w.data) + first * chunks * 64;
        for (int64_t column = 0; column < s.k; column += kColumns) {
            const int64_t columns = min64(kColumns, s.k - column);
            const int64_t groups = load_groups(first / 8, column, columns);
            const uint8_t *const window = data + column * 4, *const next = window + columns * 4;
            for (int64_t row = 0; row < rows; ++row) {
                values_.make(scale_ + row * 4, zero_ + row, 8, groups, slots_);
                writing_.emit.chunks({window + 64 * row, next + columns / 2 * row, columns, slots_,
                                      group_at_, writing_.to(first + row, column)});
            }
        }
    }

  private:
    static constexpr int64_t kColumns = 4096;
    static constexpr int64_t kGroups = kColumns / 32 + 1;  // the first and the last may be partial

    // Returns the number of groups.
    int64_t load_groups(int64_t block, int64_t column, int64_t columns) {
        const Weight &w = writing_.args.from;
        const int64_t size = w.geometry.group_size, first = column / size;
        int64_t group = 0, next = (first + 1) * size - column;
        for (int64_t i = 0; 32 * i < columns; ++i) {
            if (32 * i >= next) {
                ++group;
                next += size;
            }
            group_at_[i] = uint8_t(group);
        }
        for (int64_t i = 0; i <= group && w.zero != nullptr; ++i) {
            store_as(zero_, i, bytes_of_nibbles(zeros_.read(block, first + i)));
        }
        scale_ = scales_.load(block, first, group + 1);
        if (w.scale.format->id == QK_FORMAT_F32) {
            for (int64_t i = 0; i <= group; i += 2) fetch_scales(scale_ + i * 32);
        }
        return group + 1;
    }

    const Writing &writing_;
    GroupValues<Isa> values_;
    ScalePanel<Isa> scales_;
    ZeroWords zeros_;
    uint8_t group_at_[kColumns / 32];
    uint8_t zero_[kGroups * 8];
    const char *scale_ = nullptr;  // f32, by group and row
    alignas(64) char slots_[kGroups * kSlot];
};

template <class Isa>
void write_rows(const Writing &writing, Scratch *scratch, int64_t first, int64_t last) {
    const Weight &w = writing.args.from;
    const int64_t k = w.geometry.k;
    if (w.layout->id == kLayoutRows8) {
        InScratch<PackedWriter<Isa>> writer(scratch, writing);
        for (int64_t row = first; row < last; row += 8) writer->write(row);
    } else if (stores_columns(w)) {
        InScratch<TileWriter<Isa>> writer(scratch, writing);
        writer->write(first, last);
    } else {
        InScratch<RunWriter<Isa>> writer(scratch, writing);
        for (int64_t row = first; row < last; ++row) {
            writer->write(row * round_up(k, run_pad(w)), row);
        }
    }
}

template <InstructionSet Isa>
Status run_dequantize(const DequantizeArgs &args, const Launch &launch) {
    const Geometry &s = args.from.geometry;
    if (args.from.layout->bits == 8) return dequantize_bytes<Isa>(args, launch);
    const int64_t bytes = args.to.format->bits / 8;
    // Streaming stores need whole aligned vectors, whatever group or row they start in.
    const bool aligned = uintptr_t(args.to.data) % 64 == 0 && s.k % 32 == 0 &&
                         (s.group_size % 32 == 0 || s.group_size >= s.k);
    const bool stream = aligned && s.n * s.k * bytes >= kStreamBytes;
    const bool high_first = args.from.layout->id == QK_LAYOUT_ROW_HIGH;
    const Writing writing = {args, launch.device, find_emitters<Isa>(bytes, high_first, stream),
                             bytes};
    const int64_t block = stores_columns(args.from) ? kTileRows : 8;
    parallel_ranges(launch.parallel, s.n, block, s.k * 2, [&](int64_t first, int64_t last) {
        write_rows<Isa>(writing, launch.scratch, first, last);
        if (stream) Isa::end_stream();
    });
    return QK_OK;
}

template <class Isa>
bool can_run_dequantize(const DequantizeArgs &args, const Device &device) {
    const Geometry &s = args.from.geometry;
    if (!has(device, Isa::kFeature) || args.from.scale.divides) return false;
    if (has_minimum(args.from) || !is_compact(args.to)) return false;
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
