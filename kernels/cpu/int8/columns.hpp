// y = x . transpose(w) + bias in int8 mode for few rows of x over 4-bit codes stored by columns:
// vectors run across the rows of w, so that integer dot products need neither packing nor folding.
//
//     for strips of up to kStripRows rows of w:
//         for steps of 16 columns (2 lines of gptq, 16 of awq_gemm), rows of x:
//             integer sums of every row of w                  4 KB a row of x, first cache
//             where a group or a block of 128 columns ends:
//                 acc[row] = fma(float(sum[row] - zero[row] * sum of x), x scale * scale[row],
//                 acc[row])
//
// A step at a time is what memory reads best: lines are runs of a strip's width, and those of a
// block are as far apart as makes them meet in few sets of the second cache.
#pragma once
#include "cpu/int8/x.hpp"
#include "cpu/linear/columns.hpp"

namespace qk::cpu {
namespace {

// 128 columns of x, four a dword, as a layout's words have them.
template <class Isa, class Layout>
struct Int8ColumnsX : Isa {
    struct alignas(32) XChunk {
        int8_t q[128];
        float scale[8];   // a block
        int32_t sum[8];   // of a block's integers
        int32_t rest[8];  // what products leave out of a block, the same for every row
    };

    static void quantize_chunk(const float *x, int64_t blocks, float unit, XChunk *to) {
        int8_t q[128];
        quantize_blocks(x, blocks, unit, q, [&](int64_t b, const Int8Scale &s, int64_t size) {
            to->scale[b] = s.scale;
            to->sum[b] = s.sum;
            to->rest[b] = Isa::rest_of(q + b * size, size);
        });
        for (int64_t i = 0; i < 128; i += 16) place_columns<Layout::quads>(q + i, to->q + i);
    }
};

template <class Isa, class Layout>
class Int8Columns {
  public:
    using XChunk = typename Int8ColumnsX<Isa, Layout>::XChunk;

    Int8Columns(const LinearArgs &args, const Device &device, const XChunk *x)
        : args_(args), x_(x), groups_(args.w, device, false), entries_(args.w),
          chunks_(chunk_count(args.w.geometry)), pitch_(ceil_div(args.w.geometry.n, Layout::kRows)),
          lines_(Layout::quads ? ceil_div(args.w.geometry.k, 8) : args.w.geometry.k),
          lowered_(has_minimum(args.w)), zeros_(!entries_.is_table && !lowered_) {}

    // Rows first .. last of w, first a multiple of 128, at most kStripRows.
    void run(int64_t first, int64_t last) {
        for (int64_t i = 0; i < args_.x.rows; i += kRowsOfX) {
            run_rows(i, min64(kRowsOfX, args_.x.rows - i), first, last);
        }
    }

  private:
    static constexpr int64_t kRowsOfX = 4;  // that share what is read of memory
    static constexpr int64_t kTileRows = Isa::template kTileRows<Layout>;
    static constexpr int64_t kVectors = kTileRows / 8, kWords = kTileRows / Layout::kRows;
    static constexpr int64_t kLines = Layout::kUnits;  // of a step
    static constexpr int64_t kAhead = 2;               // steps
    static constexpr int64_t kPadded = kStripRows + 128;
    using Sums8 = typename Isa::Sums8;

    void run_rows(int64_t x_row, int64_t count, int64_t first, int64_t last) {
        const int64_t k = args_.w.geometry.k, rows = last - first;
        const int64_t size = kBlock / groups_of_chunk(args_.w.geometry);
        memset(acc_, 0, sizeof(acc_));
        memset(sums_, 0, sizeof(sums_));
        if (lowered_) memset(low_, 0, sizeof(low_));
        groups_.start(first, rows);
        minimum_first_ = -1;
        for (int64_t column = 0; column < k; column += kBlock) {
            const int64_t end = min64(column + kBlock, k);
            groups_.load(column, end);
            if (lowered_) load_minima(column, end);
            const XChunk *const x = x_ + x_row * chunks_ + column / kBlock;
            for (int64_t b = 0; column + b * size < end; ++b) {
                for (int64_t at = b * size; at < (b + 1) * size && column + at < k; at += 16) {
                    start_fetching(column + at, first, last);
                    for (int64_t j = 0; j < count; ++j) {
                        add_step(first, rows, column + at, x[j * chunks_].q + at, j);
                    }
                }
                for (int64_t j = 0; j < count; ++j) fold(rows, j, x[j * chunks_], b);
            }
        }
        for (int64_t j = 0; j < count; ++j) {
            if (lowered_) {
                for (int64_t i = 0; i < rows; ++i) acc_[j][i] -= low_[j][i];
            }
            store_run(args_, x_row + j, first, rows, acc_[j]);
        }
    }

    // 16 columns. What is past the last row or column counts for nothing.
    void add_step(int64_t first, int64_t rows, int64_t column, const int8_t *x, int64_t j) {
        const int64_t line = column / 16 * kLines, word = first / Layout::kRows;
        const int64_t tiles = ceil_div(rows, kTileRows);
        const int64_t whole = line + kLines <= lines_ ? min64(tiles, (pitch_ - word) / kWords) : 0;
        Ahead<Isa> *const ahead = j == 0 ? &ahead_ : nullptr;
        entries_.template add<Layout>({words_at(line, word), pitch_ * 4}, whole, x, ahead,
                                      sums_[j]);
        for (int64_t tile = whole; tile < tiles; ++tile) {
            const int64_t from = word + tile * kWords;
            const int64_t words = min64(kWords, pitch_ - from);
            alignas(64) uint32_t corner[kLines][kWords] = {};
            for (int64_t i = 0; i < min64(kLines, lines_ - line); ++i) {
                memcpy(corner[i], words_at(line + i, from), size_t(words) * 4);
            }
            entries_.template add<Layout>({reinterpret_cast<const uint8_t *>(corner), kWords * 4},
                                          1, x, nullptr, sums_[j] + tile * kVectors);
        }
    }

    // A group's sums, which start again.
    QK_NOINLINE void fold(int64_t rows, int64_t j, const XChunk &x, int64_t b) {
        for (int64_t row = 0; row < rows; row += kTileRows) {
            Sums8 *const sums = sums_[j] + row / 8;
            Sums8 dots[kVectors];
            Isa::template in_order<Layout>(sums, dots);
            for (int64_t v = 0; v < kVectors; ++v) sums[v] = Isa::splat_sums8(0);
            entries_.finish(dots, x.sum[b], x.rest[b]);
            const char *const scales = reinterpret_cast<const char *>(groups_.scales(b) + row);
            const uint32_t *const zeros = groups_.zeros(b) + row / 8;
            QK_UNROLL
            for (int64_t v = 0; v < kVectors; ++v) {
                float *const acc = acc_[j] + row + 8 * v;
                if (zeros_) dots[v] = Isa::take_zeros(dots[v], zeros_of(zeros + v), x.sum[b]);
                const auto scale = Isa::load_floats8(scales + 32 * v);
                Isa::store_floats8(acc, Isa::fold8(dots[v], x.scale[b], scale, load(acc)));
            }
            if (lowered_) lower(row, j, x.scale[b] * float(x.sum[b]), minimum_[b] + row);
        }
    }
    void lower(int64_t row, int64_t j, float sum, const float *minimum) {
        for (int64_t i = 0; i < kTileRows; i += 8) {
            float *const low = low_[j] + row + i;
            Isa::store_floats8(low, Isa::fma8(load(minimum + i), sum, load(low)));
        }
    }
    static typename Isa::Floats8 load(const float *from) {
        return Isa::load_floats8(reinterpret_cast<const char *>(from));
    }
    // Of 8 rows in order.
    static Sums8 zeros_of(const uint32_t *word) {
        return Layout::quads ? Isa::load_zeros8(reinterpret_cast<const uint8_t *>(word))
                             : Isa::load_awq_zeros8(*word);
    }

    void load_minima(int64_t column, int64_t end) {
        const int64_t size = args_.w.geometry.group_size, first = column / size;
        if (first == minimum_first_) return;
        minimum_first_ = first;
        for (int64_t g = first; g < ceil_div(end, size); ++g) {
            groups_.load_plane(args_.w.minimum, g, minimum_[g - first]);
        }
    }

    const uint8_t *words_at(int64_t line, int64_t word) const {
        return static_cast<const uint8_t *>(args_.w.data) + (line * pitch_ + word) * 4;
    }
    // kAhead steps on, in the next rows where columns end.
    void start_fetching(int64_t column, int64_t first, int64_t last) {
        const int64_t k = round_up(args_.w.geometry.k, 16), to = column + 16 * kAhead;
        const int64_t line = to % k / 16 * kLines, row = to < k ? first : last;
        const uint8_t *const at = words_at(line, row / Layout::kRows);
        const int64_t width = ceil_div(last - first, Layout::kRows) * 4;
        ahead_ = {at, at + width, width, pitch_ * 4, (traits() & kFewFills) != 0};
    }

    const LinearArgs &args_;
    const XChunk *const x_;
    StripGroups<Isa, Layout, 1> groups_;
    const typename Isa::ColumnEntries entries_;
    const int64_t chunks_, pitch_, lines_;  // words in a line
    const bool lowered_, zeros_;
    int64_t minimum_first_ = -1;
    Ahead<Isa> ahead_;
    alignas(64) Sums8 sums_[kRowsOfX][kPadded / 8];
    alignas(64) float acc_[kRowsOfX][kPadded];
    alignas(64) float low_[kRowsOfX][kPadded];
    alignas(64) float minimum_[8][kPadded];
};

template <class Isa>
size_t int8_columns_bytes(const LinearArgs &args, const Device &device) {
    return int8_x_bytes<Int8ColumnsX<Isa, WordsOfRows>>(args, device);
}

template <class Isa, class Layout>
QK_NOINLINE Status run_int8_words(const LinearArgs &args, const Launch &launch) {
    const auto *const x = quantize_x<Int8ColumnsX<Isa, Layout>>(args, launch);
    const int64_t n = args.w.geometry.n, block = rows_of_task(n, launch.parallel.concurrency);
    parallel_ranges(launch.parallel, n, block, work_of_row(args), [&](int64_t first, int64_t last) {
        const InScratch<Int8Columns<Isa, Layout>> strip(launch.scratch, args, launch.device, x);
        for_each_strip(first, last, [&](int64_t from, int64_t to) { strip->run(from, to); });
    });
    return QK_OK;
}

template <class Isa>
Status run_int8_columns(const LinearArgs &args, const Launch &launch) {
    return args.w.layout->id == QK_LAYOUT_AWQ_GEMM
               ? run_int8_words<Isa, WordsOfRows>(args, launch)
               : run_int8_words<Isa, WordsOfColumns>(args, launch);
}

}  // namespace
}  // namespace qk::cpu
