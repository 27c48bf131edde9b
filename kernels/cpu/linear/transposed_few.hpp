// y = x . w + bias for few rows of x, over the packed layout (rows8), any 4-bit format, in the
// order of sums of transposed.hpp. Weights go from their table straight to the sums; further rows
// of x look the same codes up again, which are in the first cache by then.
//
//     for panels of up to 512 columns, blocks of 128 rows of w:
//         for 4 rows of x or 1, 8 rows of w, chunks of 128 columns:
//             sums in registers, from and to the first cache
//             for each of the 8 rows: up to 8 look-ups, each times the row's x
#pragma once
#include "cpu/linear/gemv.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kTransposedFew = 8;  // rows of x, as the table of kernels has it

template <class Isa, class Codes>
class TransposedFew {
  public:
    static constexpr int64_t kColumns = 512;

    TransposedFew(const LinearArgs &args, const Device &device)
        : args_(args), scales_(args.w, device), minima_(args.w, args.w.minimum, device),
          codes_(args.w), chunks_(chunk_count(args.w.geometry)) {
        const Geometry &s = args.w.geometry;
        steps_ = s.group_size < s.k ? min64(s.group_size, 128) / 16 : 8;
    }

    void run(int64_t column, int64_t end) {
        column_ = column, end_ = end;
        const int64_t n = args_.w.geometry.n, m = args_.x.rows;
        memset(totals_, 0, sizeof(totals_[0]) * size_t(m));
        for (int64_t row = 0; row < n; row += kRows) {
            const int64_t last = min64(row + kRows, n);
            for (int64_t j = 0; j < m; ++j) {
                const int64_t at = j * row_stride(args_.x) + row;
                widen_x<Isa>(args_.x, at, last - row, x_[j]);
            }
            memset(sums_, 0, sizeof(sums_[0]) * size_t(m));
            for (int64_t j = 0; j < m; j += m - j >= 4 ? 4 : 1) {
                for (int64_t at = row; at < last; at += 8) {
                    const Block block = {at, min64(8, last - at), j, at - row};
                    m - j >= 4 ? add_block<4>(block) : add_block<1>(block);
                }
            }
            for (int64_t j = 0; j < m; ++j) add_sums(sums_[j], totals_[j]);
        }
        for (int64_t j = 0; j < m; ++j) store(j, totals_[j]);
    }

  private:
    static constexpr int64_t kRows = 128;           // of w, that are summed on their own
    static constexpr int64_t kStride = kRows + 16;  // no two rows of x at the same place of a page
    static constexpr int64_t kBlocksAhead = 2;      // of 8 rows: what is fetched before its use
    static constexpr int64_t kZeroBytes = kLowers<Codes> ? 32 : 4;  // of 8 rows and a group
    // Steps whose sums registers hold, for so many rows of x.
    static constexpr int held(int count) {
        return count == 1 ? Isa::kVectorBytes / 8 : Isa::kVectorBytes == 64 ? 4 : 1;
    }

    struct Block {
        int64_t row, rows;  // of w
        int64_t j, at;      // row of x, the block's columns in it
    };

    template <int kCount>
    QK_NOINLINE void add_block(const Block &block) {
        switch (steps_) {
            case 1: return add_chunks<kCount, 1>(block);
            case 2: return add_chunks<kCount, 2>(block);
            case 4: return add_chunks<kCount, 4>(block);
            default: return add_chunks<kCount, 8>(block);
        }
    }

    template <int kCount, int kSteps>
    void add_chunks(const Block &block) {
        const Geometry &s = args_.w.geometry;
        const int64_t first = column_ / s.group_size;
        const int64_t groups = ceil_div(end_, s.group_size) - first;
        const char *const scales = scales_.load(block.row / 8, first, groups);
        const uint8_t *const zeros = zeros_of(block.row / 8, first, groups);
        for (int64_t at = column_; at < end_; at += 128) {
            const int64_t group = at / s.group_size - first;
            const uint8_t *const codes = packed_chunk(args_.w, block.row / 8 * chunks_ + at / 128);
            for (int i = 0; i < 512 && block.j == 0; i += 64) {
                prefetch(codes + kBlocksAhead * chunks_ * 512 + i);
            }
            Chunk chunk = {codes,
                           scales + group * 32,
                           zeros != nullptr ? zeros + group * kZeroBytes : zeros,
                           {reinterpret_cast<const char *>(x_[block.j] + block.at)}};
            if (at + 128 >= s.k) chunk = keep_last(chunk, min64(8 / kSteps, groups - group));
            add_steps<kCount, kSteps, 0>(chunk, block.rows, sums_[block.j] + (at - column_));
        }
    }

    // Of so many rows of x, the steps from `first` on.
    template <int kCount, int kSteps, int first>
    QK_INLINE void add_steps(const Chunk &chunk, int64_t rows, float *sums) const {
        constexpr int kHeld = held(kCount);
        if constexpr (first < 8) {
            Lanes<Isa> sum[kCount][kHeld];
            QK_UNROLL
            for (int j = 0; j < kCount; ++j) {
                QK_UNROLL
                for (int i = 0; i < kHeld; ++i) {
                    sum[j][i] = Isa::load_f32(sums + j * kColumns + 16 * (first + i));
                }
            }
            for (int64_t row = 0; row < rows; ++row) {
                add_row<kCount, kSteps, first>(chunk, int(row), sum);
            }
            QK_UNROLL
            for (int j = 0; j < kCount; ++j) {
                QK_UNROLL
                for (int i = 0; i < kHeld; ++i) {
                    Isa::store_f32(sums + j * kColumns + 16 * (first + i), sum[j][i]);
                }
            }
            add_steps<kCount, kSteps, first + kHeld>(chunk, rows, sums);
        }
    }

    // Chunks of the plane's last row are followed by nothing: keep_last has room behind them.
    template <int kCount, int kSteps, int first>
    QK_INLINE void add_row(const Chunk &chunk, int row,
                           Lanes<Isa> (&sum)[kCount][held(kCount)]) const {
        const uint8_t *const codes = chunk.codes + 64 * row;
        Words<Isa> words = Isa::load_words(loads_bytes<Isa> ? codes + first / 2 : codes);
        Table<Isa> table = weights_of<Isa>(chunk, codes_, first / kSteps, row);
        for_each_step([&]<int step>() QK_INLINE {
            if constexpr (step >= first && step < first + held(kCount)) {
                constexpr int shifts = loads_bytes<Isa> ? step % 2 : step;
                if constexpr (loads_bytes<Isa> && shifts == 0 && step > first) {
                    words = Isa::load_words(codes + step / 2);
                }
                if constexpr (step % kSteps == 0 && step > first) {
                    table = weights_of<Isa>(chunk, codes_, step / kSteps, row);
                }
                const Lanes<Isa> weight = Isa::template look_up<shifts>(table, words);
                QK_UNROLL
                for (int j = 0; j < kCount; ++j) {
                    const Lanes<Isa> x = Isa::splat(load_as<float>(chunk.x[0], j * kStride + row));
                    sum[j][step - first] = Isa::fma(x, weight, sum[j][step - first]);
                }
            }
        });
    }

    // A row's last chunk, with room behind its codes and scales for all groups of a chunk.
    Chunk keep_last(const Chunk &chunk, int64_t groups) {
        memcpy(last_codes_, chunk.codes, 512);
        memcpy(last_scales_, chunk.scales, size_t(groups * 32));
        if (chunk.zeros != nullptr) memcpy(last_zeros_, chunk.zeros, size_t(groups * kZeroBytes));
        return {last_codes_,
                reinterpret_cast<const char *>(last_scales_),
                chunk.zeros != nullptr ? last_zeros_ : nullptr,
                {chunk.x[0]}};
    }

    const uint8_t *zeros_of(int64_t row_block, int64_t group, int64_t groups) {
        if constexpr (kLowers<Codes>) {
            return reinterpret_cast<const uint8_t *>(minima_.load(row_block, group, groups));
        } else {
            return packed_zeros(args_.w, row_block, group);
        }
    }

    static void add_sums(const float *sums, float *totals) {
        for (int64_t i = 0; i < kColumns; i += 16) {
            Isa::store_f32(totals + i,
                           Isa::add(Isa::load_f32(totals + i), Isa::load_f32(sums + i)));
        }
    }

    void store(int64_t x_row, float *y) const {
        if (args_.w.order == nullptr) return store_run(args_, x_row, column_, end_ - column_, y);
        for (int64_t c = column_; c < end_; ++c) {
            store_y(args_, x_row, column_at(args_.w, c), y[c - column_]);
        }
    }

    const LinearArgs &args_;
    ScalePanel<Isa> scales_;
    std::conditional_t<kLowers<Codes>, ScalePanel<Isa>, NoPanel> minima_;
    Codes codes_;
    const int64_t chunks_;
    int64_t steps_;  // of 16 columns, of a group
    int64_t column_ = 0, end_ = 0;
    alignas(64) float x_[kTransposedFew][kStride];
    alignas(64) float sums_[kTransposedFew][kColumns], totals_[kTransposedFew][kColumns];
    alignas(64) uint8_t last_codes_[512 + 64] = {};
    float last_scales_[8][8] = {};
    uint8_t last_zeros_[8 * 32] = {};
};

template <class Isa, class Codes>
void run_transposed_few(const LinearArgs &args, const Launch &launch) {
    using Few = TransposedFew<Isa, Codes>;
    const int64_t k = args.w.geometry.k;
    parallel_ranges(launch.parallel, k, 128, work_of_column(args),
                    [&](int64_t first, int64_t last) {
        InScratch<Few> few(launch.scratch, args, launch.device);
        for (int64_t column = first; column < min64(last, k); column += Few::kColumns) {
            few->run(column, min64(column + Few::kColumns, min64(last, k)));
        }
    });
}

template <class Isa>
Status run_transposed_few(const LinearArgs &args, const Launch &launch) {
    if (has_minimum(args.w)) {
        run_transposed_few<Isa, LoweredCodes<Isa>>(args, launch);
    } else if (args.w.zero != nullptr) {
        run_transposed_few<Isa, AffineCodes<Isa>>(args, launch);
    } else {
        run_transposed_few<Isa, TableCodes<Isa>>(args, launch);
    }
    return QK_OK;
}

}  // namespace
}  // namespace qk::cpu
