// y = x . transpose(w) + bias in int8 mode over rows of signed bytes (S8), 8 rows at a time:
// integer dot products of 128 columns' blocks (Isa::dot_rows), folded into 8 floats a block as the
// packed layout's are (gemv.hpp).
#pragma once
#include "cpu/int8/x.hpp"
#include "cpu/kernels.hpp"
#include "cpu/linear/decode.hpp"
#include "cpu/shared/integer_scales.hpp"

namespace qk::cpu {
namespace {

// 128 columns of x in order.
struct ChunkInOrder {
    int8_t q[128];
    float scale[8];  // a block
    int32_t sum[8];  // of a block's integers
};

inline void quantize_in_order(const float *x, int64_t blocks, float unit, ChunkInOrder *to) {
    quantize_blocks(x, blocks, unit, to->q, [&](int64_t b, const Int8Scale &s, int64_t) {
        to->scale[b] = s.scale;
        to->sum[b] = s.sum;
    });
}

template <class Isa, int kBlocks>
class Int8RowsOfBytes {
  public:
    Int8RowsOfBytes(const LinearArgs &args, const typename Isa::XChunk *x)
        : args_(args), x_(x), chunks_(chunk_count(args.w.geometry)), scales_(args.w, args.w.scale),
          lowered_(has_minimum(args.w)), minima_(args.w, minima_or_scales(args.w)) {
        const Geometry &s = args.w.geometry;
        panel_ = s.group_size >= s.k ? s.k : Groups::kMost * s.group_size;
    }

    // The last block starts early enough to be whole.
    void run(int64_t block) {
        const Geometry &s = args_.w.geometry;
        const int64_t row = min64(block * 8, s.n - 8);
        for (int64_t first = 0; first < args_.x.rows; first += kRowsOfX) {
            const int64_t rows = min64(kRowsOfX, args_.x.rows - first);
            Sums sums[kRowsOfX];
            for (Sums &sum : sums) sum = {Isa::zero_floats8(), Isa::zero_floats8()};
            for (int64_t column = 0; column < s.k; column += panel_) {
                const Panel panel = load(row, column);
                for (int64_t i = 0; i < rows; ++i) {
                    const typename Isa::XChunk *const x = x_ + (first + i) * chunks_ + column / 128;
                    sums[i] = lowered_ ? add_row<true>(panel, x, sums[i])
                                       : add_row<false>(panel, x, sums[i]);
                }
            }
            for (int64_t i = 0; i < rows; ++i) {
                const Sums &of = sums[i];
                float y[8];
                Isa::store_floats8(y, lowered_ ? Isa::subtract8(of.acc, of.low) : of.acc);
                store_8(args_, first + i, block, y + (block * 8 - row));
            }
        }
    }

  private:
    static constexpr int64_t kRowsOfX = 16;  // that a panel's scales are read for

    struct Sums {
        typename Isa::Floats8 acc, low;
    };
    struct Panel {                 // of 8 rows
        int64_t row, first, last;  // columns
        int64_t groups;
        const char *scales, *minima;  // f32 [group][row]
    };

    // Scales of 8 rows or their minima.
    class Groups {
      public:
        static constexpr int64_t kMost = ScaleBlock<Isa>::kMost;

        Groups(const Weight &w, const ScalePlane &plane)
            : any_(w, plane, {}), integers_(w, plane) {}

        // Groups first .. first + count as f32 [group][row].
        const char *load(int64_t row, int64_t first, int64_t count) {
            if (!integers_.takes(row, first, count)) return any_.load(row, first, count);
            integers_.template load<Isa>(row, first, count, scales_);
            return reinterpret_cast<const char *>(scales_);
        }

      private:
        ScaleBlock<Isa> any_;
        IntegerScales integers_;
        float scales_[kMost][8];
    };
    static const ScalePlane &minima_or_scales(const Weight &w) {
        return has_minimum(w) ? w.minimum : w.scale;
    }

    Panel load(int64_t row, int64_t first) {
        const Geometry &s = args_.w.geometry;
        const int64_t last = min64(first + panel_, s.k);
        const int64_t groups = ceil_div(last - first, s.group_size);
        const int64_t group = first / s.group_size;
        return {row,
                first,
                last,
                groups,
                scales_.load(row, group, groups),
                lowered_ ? minima_.load(row, group, groups) : nullptr};
    }

    template <bool lowered>
    QK_INLINE Sums add_row(const Panel &panel, const typename Isa::XChunk *x, Sums sums) {
        if constexpr (kFetchesNear) {
            const bool alone = args_.x.rows == 1 && args_.w.geometry.k >= 2 * kPiece;
            if (alone) return add<lowered, true>(panel, x, sums);
        }
        return add<lowered, false>(panel, x, sums);
    }

    // `soon`: codes come to the first cache, shortly before they are multiplied.
    template <bool lowered, bool soon>
    QK_NOINLINE Sums add(const Panel &panel, const typename Isa::XChunk *x, Sums sums) {
        const int64_t k = args_.w.geometry.k, size = args_.w.geometry.group_size;
        const uint8_t *codes = static_cast<const uint8_t *>(args_.w.data) + panel.row * k;
        int64_t group = 0, next = panel.first + size;
        for (int64_t at = panel.first; at < panel.last; at += 128, ++x) {
            if (kBlocks == 1 && at >= next) ++group, next += size;
            typename Isa::Sums8 dots[kBlocks];
            if (k - at >= 128) {
                if constexpr (soon) {
                    Isa::template dot_rows<kBlocks>(codes + at, k, *x, two_pieces_on(codes, at),
                                                    dots);
                } else {
                    fetch_ahead(codes + 8 * (k + at));
                    Isa::template dot_rows<kBlocks>(codes + at, k, *x, dots);
                }
            } else {
                Isa::template dot_rows<kBlocks>(whole(codes + at, k - at), 128, *x, dots);
            }
            QK_UNROLL
            for (int b = 0; b < kBlocks; ++b) {
                if (b >= panel.groups - group) break;
                const int64_t of_group = (group + b) * 32;
                const auto scale = Isa::load_floats8(panel.scales + of_group);
                sums.acc = Isa::fold8(dots[b], x->scale[b], scale, sums.acc);
                if (!lowered) continue;
                const auto minimum = Isa::load_floats8(panel.minima + of_group);
                sums.low = Isa::fma8(minimum, x->scale[b] * float(x->sum[b]), sums.low);
            }
            if (kBlocks > 1) group += kBlocks;
        }
        return sums;
    }

    // A row of x alone passes codes faster than they come to the second cache and from there. A
    // piece of a row, of the columns two pieces on or of as many of the next 8 rows.
    static constexpr bool kFetchesNear = requires { Isa::kFetchesNear; };
    static constexpr int64_t kPiece = 1024;
    QK_INLINE const uint8_t *two_pieces_on(const uint8_t *codes, int64_t at) const {
        const int64_t k = args_.w.geometry.k, row = at % kPiece / 128;
        const int64_t column = at - row * 128 + 2 * kPiece;
        return codes + row * k + (column < k ? column : column + 7 * k);
    }
    // As many bytes of the next 8 rows, one row after the other.
    static void fetch_ahead(const uint8_t *from) {
        for (int64_t i = 0; i < 1024; i += 64) prefetch_stream(from + i);
    }

    // The last columns of 8 rows, and zeros: what follows them need not be readable.
    const uint8_t *whole(const uint8_t *codes, int64_t count) {
        for (int64_t i = 0; i < 8; ++i) {
            memcpy(last_[i], codes + i * args_.w.geometry.k, size_t(count));
        }
        return last_[0];
    }

    const LinearArgs &args_;
    const typename Isa::XChunk *const x_;
    const int64_t chunks_;
    int64_t panel_;  // columns whose scales are read at once
    Groups scales_;
    const bool lowered_;
    Groups minima_;  // the scales where there are none
    uint8_t last_[8][128] = {};
};

template <class Isa>
Status run_int8_rows_of_bytes(const LinearArgs &args, const Launch &launch) {
    const typename Isa::XChunk *const x = quantize_x<Isa>(args, launch);
    switch (groups_of_chunk(args.w.geometry)) {
        case 8: run_blocks<Int8RowsOfBytes<Isa, 8>>(args, launch, x); break;
        case 4: run_blocks<Int8RowsOfBytes<Isa, 4>>(args, launch, x); break;
        case 2: run_blocks<Int8RowsOfBytes<Isa, 2>>(args, launch, x); break;
        default: run_blocks<Int8RowsOfBytes<Isa, 1>>(args, launch, x);
    }
    return QK_OK;
}

}  // namespace
}  // namespace qk::cpu
