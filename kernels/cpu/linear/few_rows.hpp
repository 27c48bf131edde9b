// y = x . transpose(w) + bias for 2 to 6 rows of x over the packed layout, AVX-512, in the order of
// several rows (docs/formats.md). What batch.hpp stores as f32 for all tiles of a
// batch to read, few rows of x use at once: a weight lives in a register from look-up to product.
//
//     a task: 64 rows of w for up to 4 rows of x, 32 for more: at least 8 chains of sums, as many
//     as two multipliers of four cycles need
//         for every chunk of 128 columns: words transposed, 16 rows a vector           2 or 4 KB
//             for every column: shift, look up, scale; multiply by every row of x
//
// 16 weights take 3 instructions and one more for each row of x; storing them would take two more.
#pragma once
#include "cpu/linear/batch.hpp"

namespace qk::cpu {

template <class Isa>
class FewRows {
  public:
    static constexpr int64_t kMost = 6;  // rows of x; with more, storing weights pays

    FewRows(const LinearArgs &args, const Device &device)
        : args_(args), vectors_(vectors(args.x.rows)), entries_(packed_entries<Isa>(args.w)),
          scales_(args.w, device) {
        memset(x_, 0, sizeof(x_));
        memset(scale_, 0, sizeof(scale_));
        memset(minus_zero_, 0, sizeof(minus_zero_));
    }

    static int64_t vectors(int64_t x_rows) { return x_rows > 4 ? 2 : 4; }  // of 16 rows of w

    void run(int64_t first) {
        const Geometry &s = args_.w.geometry;
        const int64_t rows = min64(16 * vectors_, s.n - first);
        const int64_t chunks = ceil_div(s.k, kSlabColumns);
        first_block_ = first / 8;
        blocks_ = ceil_div(rows, 8);
        memset(totals_, 0, sizeof(totals_));
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            if (chunk % kScaleChunks == 0) load_scales(chunk, min64(chunk + kScaleChunks, chunks));
            run_chunk(chunk, chunks);
        }
        for (int64_t j = 0; j < args_.x.rows; ++j) store_run(args_, j, first, rows, totals_[j]);
    }

  private:
    static constexpr int64_t kScaleChunks = 4;  // whose scales are widened at once
    static constexpr int64_t kRows = 64;        // of w

    void load_scales(int64_t first, int64_t last) {
        const Geometry &s = args_.w.geometry;
        first_group_ = first * kSlabColumns / s.group_size;
        const int64_t end = min64(last * kSlabColumns, s.k);
        const int64_t count = ceil_div(end, s.group_size) - first_group_;
        for (int64_t b = 0; b < blocks_; ++b) {
            const int64_t block = first_block_ + b;
            const char *const from = scales_.load(block, first_group_, count);
            for (int64_t g = 0; g < count; ++g) {
                memcpy(scale_[g] + 8 * b, from + 32 * g, 32);
                prefetch(reinterpret_cast<const uint8_t *>(from + 32 * (g + count)));
            }
            if (args_.w.zero == nullptr) continue;
            const uint8_t *const zeros = packed_zeros(args_.w, block, first_group_);
            for (int64_t g = 0; g < count; ++g) {
                minus_zeros_8(zeros + 4 * g, minus_zero_[g] + 8 * b);
            }
        }
    }

    void run_chunk(int64_t chunk, int64_t chunks) {
        const Geometry &s = args_.w.geometry;
        const int64_t column = chunk * kSlabColumns;
        const int64_t columns = min64(kSlabColumns, s.k - column);
        for (int64_t j = 0; j < args_.x.rows; ++j) {
            widen_x<Isa>(args_.x, j * row_stride(args_.x) + column, columns, x_[j]);
        }
        for (int64_t v = 0; v < vectors_; ++v) {
            const uint8_t *codes[2];  // blocks past the last repeat it
            for (int64_t i = 0; i < 2; ++i) {
                const int64_t block = first_block_ + min64(2 * v + i, blocks_ - 1);
                codes[i] = packed_chunk(args_.w, block * chunks + chunk);
            }
            transpose(codes[0], codes[1], v);
        }
        int64_t group = column / s.group_size, next = (group + 1) * s.group_size;
        for (int64_t step = 0; step < 8; ++step) {
            if (column + 16 * step >= next) ++group, next += s.group_size;
            scale_of_step_[step] = scale_[group - first_group_];
            zero_of_step_[step] = minus_zero_[group - first_group_];
        }
        args_.w.zero != nullptr ? multiply<true>(columns) : multiply<false>(columns);
    }

    QK_NOINLINE void transpose(const uint8_t *low, const uint8_t *high, int64_t v) {
        Words<Isa> words[16];
        Isa::transpose_words(low, high, words);
        QK_UNROLL_ALL
        for (int j = 0; j < 16; ++j) words_[j][v] = words[j];
        for (int64_t at = 0; at < 512; at += 64) {
            prefetch(low + kAhead + at);
            prefetch(high + kAhead + at);
        }
    }

    template <bool zeros>
    void multiply(int64_t columns) {
        switch (args_.x.rows) {
            case 2: return multiply<2, 4, zeros>(columns);
            case 3: return multiply<3, 4, zeros>(columns);
            case 4: return multiply<4, 4, zeros>(columns);
            default: return multiply<6, 2, zeros>(columns);
        }
    }

    template <int kCount, int kVectors, bool zeros>
    QK_NOINLINE void multiply(int64_t columns) {
        Lanes<Isa> sum[kCount][kVectors];
        QK_UNROLL
        for (int j = 0; j < kCount; ++j) {
            QK_UNROLL
            for (int v = 0; v < kVectors; ++v) sum[j][v] = Isa::zero_lanes();
        }
        const Table<Isa> entries = entries_;
        for_each_step([&]<int step>() QK_INLINE {
            Lanes<Isa> scale[kVectors];
            QK_UNROLL
            for (int v = 0; v < kVectors; ++v)
                scale[v] = Isa::load_f32(scale_of_step_[step] + 16 * v);
            const float *const minus_zero = zero_of_step_[step], *const x = x_[0] + 16 * step;
            const int64_t count = min64(16, columns - 16 * step);
            for (int64_t c = 0; c < count; ++c) {
                Lanes<Isa> weight[kVectors];
                QK_UNROLL
                for (int v = 0; v < kVectors; ++v) {
                    Lanes<Isa> entry = Isa::template look_up<step>(entries, words_[c][v]);
                    if (zeros) entry = Isa::add(entry, Isa::load_f32(minus_zero + 16 * v));
                    weight[v] = Isa::mul(entry, scale[v]);
                }
                QK_UNROLL
                for (int j = 0; j < kCount; ++j) {
                    const Lanes<Isa> value = Isa::splat(x[j * kSlabColumns + c]);
                    QK_UNROLL
                    for (int v = 0; v < kVectors; ++v)
                        sum[j][v] = Isa::fma(weight[v], value, sum[j][v]);
                }
            }
        });
        QK_UNROLL
        for (int j = 0; j < kCount; ++j) {
            QK_UNROLL
            for (int v = 0; v < kVectors; ++v) {
                float *const total = totals_[j] + 16 * v;
                Isa::store_f32(total, Isa::add(Isa::load_f32(total), sum[j][v]));
            }
        }
    }

    static constexpr int64_t kAhead = 1024;  // bytes fetched ahead of use: 2 chunks
    const LinearArgs &args_;
    const int64_t vectors_;
    const Table<Isa> entries_;
    ScalePanel<Isa> scales_;
    int64_t first_block_ = 0, blocks_ = 0, first_group_ = 0;
    const float *scale_of_step_[8] = {}, *zero_of_step_[8] = {};
    alignas(64) Words<Isa> words_[16][4];
    alignas(64) float scale_[kScaleChunks * 8][kRows];
    alignas(64) float minus_zero_[kScaleChunks * 8][kRows];
    alignas(64) float x_[kMost][kSlabColumns];
    alignas(64) float totals_[kMost][kRows];
};

template <class Isa>
Status run_few(const LinearArgs &args, const Launch &launch) {
    const int64_t n = args.w.geometry.n, rows = 16 * FewRows<Isa>::vectors(args.x.rows);
    parallel_ranges(launch.parallel, n, rows, [&](int64_t first, int64_t last) {
        InScratch<FewRows<Isa>> few(launch.scratch, args, launch.device);
        for (int64_t row = first; row < min64(last, n); row += rows) few->run(row);
    });
    return QK_OK;
}

}  // namespace qk::cpu
