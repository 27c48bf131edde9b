// y = x . transpose(w) + bias for two rows of x and more, over any quantized layout. Every number
// of y is one chain of sums, in the order that docs/formats.md gives, so a row of y depends neither
// on how many rows there are nor on its tile.
//
//     for up to 256 rows of w and 96 rows of x, blocks of 128 columns:
//         x of the block as f32, rows side by side                     54 KB, second cache
//         for slabs of 16 or 32 rows of w: their weights as f32      8 or 16 KB, first cache
//             for tiles of a slab and up to kTileBatch rows of x:    sums in registers,
//                                                                      added to totals at the end
//
// Factors may also be pairs of columns in shorter numbers (x86_avx512/bf16_batch.cpp).
#pragma once
#include "cpu/kernels.hpp"
#include "cpu/linear/byte_slab.hpp"

namespace qk::cpu {

#define QK_UNROLL_ALL _Pragma("GCC unroll 16")

// Factors as f32, a column at a time.
template <class Isa>
struct FloatFactors {
    using Factor = float;                                // of a column
    static constexpr int kColumns = 1;                   // of a factor
    static constexpr int64_t kBatch = 96, kStrip = 256;  // rows of x and of w, at most

    // `count` columns of a row of x.
    static void load_x(const Dense &x, int64_t first, int64_t count, float *to) {
        widen_x<Isa>(x, first, count, to);
    }
    const float *of_slab(float *w, int64_t) const { return w; }
    static Lanes<Isa> load(const float *w) { return Isa::load_f32(w); }
    static Lanes<Isa> splat(float x) { return Isa::splat(x); }
    static Lanes<Isa> multiply(const Lanes<Isa> &w, const Lanes<Isa> &x, const Lanes<Isa> &sum) {
        return Isa::fma(w, x, sum);
    }
};

template <class Factors>
constexpr int64_t kBlockFactors = kSlabColumns / Factors::kColumns;
template <class Factors>  // no two rows of x at the same place of a page
constexpr int64_t kStride = kBlockFactors<Factors> + 16;

// w [column][row], x [row][kStride columns], totals [row of x][kStrip rows of w].
template <class Isa, class Factors, int kCount>
QK_NOINLINE void add_tile(const typename Factors::Factor *w, const typename Factors::Factor *x,
                          int64_t columns, float *totals) {
    constexpr int64_t kPitch = kStride<Factors>;
    Lanes<Isa> sum[kCount][Isa::kTileVectors];
    QK_UNROLL_ALL
    for (int j = 0; j < kCount; ++j) {
        QK_UNROLL_ALL
        for (int v = 0; v < Isa::kTileVectors; ++v) sum[j][v] = Isa::zero_lanes();
    }
    const uint8_t *ahead = reinterpret_cast<const uint8_t *>(x + kCount * kPitch);
    for (int64_t c = 0; c < columns; ++c, w += kSlab<Isa>, ++x, ahead += 64) {
        prefetch(ahead);  // the rows of the next tile
        decltype(Factors::load(w)) weight[Isa::kTileVectors];
        QK_UNROLL_ALL
        for (int v = 0; v < Isa::kTileVectors; ++v) weight[v] = Factors::load(w + 16 * v);
        QK_UNROLL_ALL
        for (int j = 0; j < kCount; ++j) {
            const auto value = Factors::splat(x[j * kPitch]);
            QK_UNROLL_ALL
            for (int v = 0; v < Isa::kTileVectors; ++v) {
                sum[j][v] = Factors::multiply(weight[v], value, sum[j][v]);
            }
        }
    }
    QK_UNROLL_ALL
    for (int j = 0; j < kCount; ++j) {
        QK_UNROLL_ALL
        for (int v = 0; v < Isa::kTileVectors; ++v) {
            float *const total = totals + j * Factors::kStrip + 16 * v;
            Isa::store_f32(total, Isa::add(Isa::load_f32(total), sum[j][v]));
        }
    }
}

// How many of `rows` rows the next tile takes: few tiles, none so small that its chains are waited
// for where that can be helped.
template <class Isa>
inline int64_t tile_of(int64_t rows) {
    constexpr uint8_t wide[] = {0, 1, 2, 3, 4, 3, 6, 4, 8, 6, 6, 8, 12, 6, 8, 12, 8, 8};
    constexpr uint8_t narrow[] = {0, 1, 2, 3, 4, 3, 6, 4, 4};
    if (Isa::kTileBatch == 12) return rows < 18 ? wide[rows] : 12;
    return rows < 9 ? narrow[rows] : 6;
}

template <class Isa, class Factors>
inline void add_tile_of(int64_t count, const typename Factors::Factor *w,
                        const typename Factors::Factor *x, int64_t columns, float *totals) {
    constexpr int kMost = Isa::kTileBatch;
    switch (count) {
        case 1: return add_tile<Isa, Factors, 1>(w, x, columns, totals);
        case 2: return add_tile<Isa, Factors, 2>(w, x, columns, totals);
        case 3: return add_tile<Isa, Factors, 3>(w, x, columns, totals);
        case 4: return add_tile<Isa, Factors, 4>(w, x, columns, totals);
        case 6: return add_tile<Isa, Factors, 6>(w, x, columns, totals);
        case 8: return add_tile<Isa, Factors, (kMost < 8 ? 1 : 8)>(w, x, columns, totals);
        default: return add_tile<Isa, Factors, (kMost < 12 ? 1 : 12)>(w, x, columns, totals);
    }
}

// Slab: SlabDecoder or ByteSlab.
template <class Isa, class Slab, class Factors>
class BatchStrip {
  public:
    static constexpr int64_t kBatch = Factors::kBatch, kStrip = Factors::kStrip;

    BatchStrip(const LinearArgs &args, const Device &device)
        : args_(args), decoder_(args.w, device) {
        memset(weights_, 0, sizeof(weights_));
    }

    // At most kStrip rows of w and kBatch rows of x.
    void run(int64_t first, int64_t rows, int64_t x_first, int64_t x_rows) {
        const int64_t k = args_.w.geometry.k, stride = row_stride(args_.x);
        memset(totals_, 0, sizeof(totals_[0]) * size_t(x_rows));
        for (int64_t column = 0; column < k; column += kSlabColumns) {
            const int64_t end = min64(column + kSlabColumns, k);
            for (int64_t j = 0; j < x_rows; ++j) {
                const int64_t at = (x_first + j) * stride + column;
                Factors::load_x(args_.x, at, end - column, x_[j]);
                if (j + kRowsAhead < x_rows) fetch(at + kRowsAhead * stride);
            }
            for (int64_t row = 0; row < rows; row += kSlab<Isa>) {
                decoder_.decode(first + row, column, end, weights_);
                const Factor *const w = factors_.of_slab(weights_, end - column);
                add_slab(w, ceil_div(end - column, Factors::kColumns), x_rows, totals_[0] + row);
            }
        }
        for (int64_t j = 0; j < x_rows; ++j) {
            store_run(args_, x_first + j, first, rows, totals_[j]);
        }
    }

  private:
    using Factor = typename Factors::Factor;

    // A block of a later row of x: rows are far apart, and no prefetcher expects the next one.
    static constexpr int64_t kRowsAhead = 8;
    void fetch(int64_t first) const {
        const int64_t size = args_.x.format->bits / 8;
        const uint8_t *const from = static_cast<const uint8_t *>(args_.x.data) + first * size;
        for (int64_t i = 0; i < kSlabColumns * size; i += 64) prefetch(from + i);
    }

    void add_slab(const Factor *w, int64_t columns, int64_t x_rows, float *totals) const {
        for (int64_t j = 0; j < x_rows;) {
            const int64_t count = tile_of<Isa>(x_rows - j);
            add_tile_of<Isa, Factors>(count, w, x_[j], columns, totals + j * kStrip);
            j += count;
        }
    }

    const LinearArgs &args_;
    Slab decoder_;
    alignas(64) float weights_[kSlabColumns * kSlab<Isa>];
    [[no_unique_address]] Factors factors_;
    alignas(64) Factor x_[kBatch][kStride<Factors>];
    alignas(64) float totals_[kBatch][kStrip];
};

template <class Isa, class Slab, class Factors = FloatFactors<Isa>>
void run_strips(const LinearArgs &args, const Launch &launch) {
    using Strip = BatchStrip<Isa, Slab, Factors>;
    const int64_t n = args.w.geometry.n;
    parallel_ranges(launch.parallel, n, kSlab<Isa>, work_of_row(args),
                    [&](int64_t first, int64_t last) {
        InScratch<Strip> strip(launch.scratch, args, launch.device);
        for (int64_t row = first; row < min64(last, n); row += Strip::kStrip) {
            const int64_t rows = min64(Strip::kStrip, min64(last, n) - row);
            for (int64_t m = 0; m < args.x.rows; m += Strip::kBatch) {
                strip->run(row, rows, m, min64(Strip::kBatch, args.x.rows - m));
            }
        }
    });
}

template <class Isa>
Status run_batch(const LinearArgs &args, const Launch &launch) {
    args.w.layout->bits == 8 ? run_strips<Isa, ByteSlab<Isa>>(args, launch)
                             : run_strips<Isa, SlabDecoder<Isa>>(args, launch);
    return QK_OK;
}

}  // namespace qk::cpu
