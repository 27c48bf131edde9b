// int8 mode for S8, whose rows are bytes, on machines with VNNI and VBMI: 128 columns of 8 rows are
// 16 products of 64 bytes, the signed codes made unsigned by adding 128. Blocks of 16, 32, 64 or
// 128 columns are added up to vectors of 8 rows:
//
//     two vectors a row, columns 0..63 and 64..127, four columns a lane
//     16: quarters of a vector are blocks          32: quarters of both, once neighbours are added
//     64: a vector is a block                      128: both are
#include "cpu/int8/x.hpp"
#include "cpu/kernels.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/x86_avx512/int8_dots.hpp"
#include "cpu/x86_avx512/rows8.hpp"
#include "cpu/x86_avx512/scales_in_rows.hpp"

namespace qk::cpu {
namespace {

using Dots = Avx512Dots;

struct XColumns {  // 128 columns in order
    __m512i half[2];
    float scale[8];    // a block
    int32_t minus[8];  // what the 128 of all codes add up to
    float all[8];      // scale times the sum of the block's integers
};

// Scales or minima of 8 rows and up to 8 groups, [row][group] in memory, to vectors of 8 rows.
template <int kBlocks, size_t kStride>
QK_INLINE inline void load_groups(const float (&from)[8][kStride], int64_t group,
                                  __m256 (&to)[kBlocks]) {
    if constexpr (kBlocks == 1) {
        to[0] = _mm256_setr_ps(from[0][group], from[1][group], from[2][group], from[3][group],
                               from[4][group], from[5][group], from[6][group], from[7][group]);
    } else {
        constexpr int64_t kFew = min64(kBlocks, 4);
        QK_UNROLL
        for (int first = 0; first < kBlocks; first += 4) {
            __m256 v[4];  // rows i and i + 4, four groups each
            QK_UNROLL
            for (int i = 0; i < 4; ++i) {
                const __m256 low = _mm256_castps128_ps256(_mm_loadu_ps(from[i] + group + first));
                v[i] = _mm256_insertf128_ps(low, _mm_loadu_ps(from[i + 4] + group + first), 1);
            }
            const __m256 t[4] = {_mm256_unpacklo_ps(v[0], v[1]), _mm256_unpackhi_ps(v[0], v[1]),
                                 _mm256_unpacklo_ps(v[2], v[3]), _mm256_unpackhi_ps(v[2], v[3])};
            QK_UNROLL
            for (int64_t b = 0; b < kFew; ++b) {
                to[first + b] = b % 2 == 0 ? _mm256_shuffle_ps(t[b / 2], t[b / 2 + 2], 0x44)
                                           : _mm256_shuffle_ps(t[b / 2], t[b / 2 + 2], 0xee);
            }
        }
    }
}

template <int kBlocks>
QK_INLINE inline void load_groups(const ScalesInRows &from, int64_t row, int64_t group,
                                  __m256 (&to)[kBlocks]) {
    __m512 pairs[kPairs<kBlocks>];
    from.load<kBlocks>(row, group, pairs);
    QK_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
        to[b] = b % 2 == 0 ? _mm512_castps512_ps256(pairs[b / 2])
                           : _mm512_extractf32x8_ps(pairs[b / 2], 1);
    }
}

template <int kBlocks>
class S8Rows8 : Rows8 {
  public:
    S8Rows8(const LinearArgs &args, const XColumns *x)
        : Rows8(args), minima_(args.w, args.w.minimum), x_(x),
          chunks_(chunk_count(args.w.geometry)) {}

    // The last block starts early enough to be whole.
    void run(int64_t block) {
        const Geometry &s = args_.w.geometry;
        const int64_t row = min64(block * 8, s.n - 8);
        for (int64_t i = 0; i < args_.x.rows; ++i) {
            Sums sums = {Dots::zero_floats8(), Dots::zero_floats8()};
            for (int64_t first = 0; first < s.k; first += kRun) {
                const Run run = {row, first, min64(first + kRun, s.k), first / s.group_size};
                // One run is all of a row for every row of x.
                if (!in_rows_ && (i == 0 || s.k > kRun)) load(run);
                const XColumns *const x = x_ + i * chunks_ + first / 128;
                if (paged_) {
                    sums =
                        lowered_ ? add<true, true>(run, x, sums) : add<false, true>(run, x, sums);
                } else {
                    sums =
                        lowered_ ? add<true, false>(run, x, sums) : add<false, false>(run, x, sums);
                }
            }
            float y[8];
            Dots::store_floats8(y, lowered_ ? Dots::subtract8(sums.acc, sums.low) : sums.acc);
            store_8(args_, i, block, y + (block * 8 - row));
        }
    }

  private:
    struct Sums {
        Dots::Floats8 acc, low;
    };

    void load(const Run &run) {
        load_scales(run);
        if (lowered_) minima_.load(run.row, run.first, run.last);
    }

    template <bool lowered, bool paged>
    QK_NOINLINE Sums add(const Run &run, const XColumns *x, Sums sums) const {
        const int64_t size = args_.w.geometry.group_size;
        const uint8_t *codes = codes_at(run.row, run.first);
        const uint8_t *ahead = codes_ahead(run);
        const int64_t groups = ceil_div(run.last, size) - run.group;
        int64_t group = 0, next = (run.group + 1) * size;
        const int64_t step = paged || in_rows_ ? 1024 : 768;
        for (int64_t at = run.first; at < run.last; at += 128, codes += 128, ahead += step, ++x) {
            if (kBlocks == 1 && at >= next) ++group, next += size;
            Dots::Sums8 dots[kBlocks];
            multiply<paged>(codes, ahead, run.last - at, *x, dots);
            __m256 scale[kBlocks], minimum[kBlocks];
            if (!paged && in_rows_) {
                load_groups(scales_in_rows_, run.row, run.group + group, scale);
                if (lowered) load_groups(minima_in_rows_, run.row, run.group + group, minimum);
            } else {
                load_groups(groups_.scale, group, scale);
                if (lowered) load_groups(minima_.scale, group, minimum);
            }
            QK_UNROLL
            for (int b = 0; b < kBlocks; ++b) {
                if (b >= groups - group) break;
                dots[b].v = _mm256_add_epi32(dots[b].v, _mm256_set1_epi32(x->minus[b]));
                sums.acc = Dots::fold8(dots[b], x->scale[b], {scale[b]}, sums.acc);
                if (lowered) sums.low = Dots::fma8({minimum[b]}, x->all[b], sums.low);
            }
            if (kBlocks > 1) group += kBlocks;
        }
        return sums;
    }

    // 128 columns of 8 rows, of which `count` are there.
    template <bool paged>
    QK_INLINE void multiply(const uint8_t *codes, const uint8_t *ahead, int64_t count,
                            const XColumns &x, Dots::Sums8 (&to)[kBlocks]) const {
        const __mmask64 low = count >= 64 ? ~__mmask64(0) : (__mmask64(1) << count) - 1;
        const __mmask64 high = count >= 128  ? ~__mmask64(0)
                               : count <= 64 ? __mmask64(0)
                                             : (__mmask64(1) << (count - 64)) - 1;
        const __m512i offset = _mm512_set1_epi8(char(kZeroOfBytes));
        __m512i d[8], e[8];
        QK_UNROLL
        for (int i = 0; i < 8; ++i) {
            const uint8_t *const row = codes + i * stride_;
            if (paged) {
                prefetch_stream(ahead + 128 * i);
                prefetch_stream(ahead + 128 * i + 64);
                prefetch(row + 256);
                prefetch(row + 320);
                if (i % 4 == 3) fetch_page<paged>(ahead + 128 * (i - 3));
            } else if (i < 6 || in_rows_) {
                fetch_later(ahead + 128 * i, few_fills_);
                fetch_later(ahead + 128 * i + 64, few_fills_);
            }
            d[i] = e[i] = _mm512_setzero_si512();
            const __m512i first = _mm512_maskz_loadu_epi8(low, row);
            const __m512i second = _mm512_maskz_loadu_epi8(high, row + 64);
            Dots::add_dots(d[i], _mm512_xor_si512(first, offset), x.half[0]);
            Dots::add_dots(kBlocks == 1 ? d[i] : e[i], _mm512_xor_si512(second, offset), x.half[1]);
            if (kBlocks == 4) d[i] = Dots::fold_quarters(d[i], e[i]);
        }
        if constexpr (kBlocks <= 2) Dots::fold_rows_1(d, to);
        if constexpr (kBlocks == 2) Dots::fold_rows_1(e, to + 1);
        if constexpr (kBlocks >= 4) Dots::fold_rows_of_quarters(d, to);
        if constexpr (kBlocks == 8) Dots::fold_rows_of_quarters(e, to + 4);
    }

    Groups8 minima_;
    const XColumns *const x_;
    const int64_t chunks_;
};

size_t columns_bytes(const LinearArgs &args, const Device &) {
    return chunk_workspace(args.w.geometry, args.x.rows, sizeof(XColumns));
}

void place_columns(const float *values, int64_t blocks, XColumns *to) {
    const Dots::ChunkQuantizer quantizer(values, blocks);
    int32_t sum[8];
    quantizer.store_scales(1, to->scale);
    const Dots::XBytes bytes = quantizer.integers(sum);
    const __m512i order = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    to->half[0] = Dots::place(bytes, order);
    to->half[1] = Dots::place(bytes, _mm512_add_epi32(order, _mm512_set1_epi32(16)));
    for (int b = 0; b < 8; ++b) {
        to->minus[b] = -kZeroOfBytes * sum[b];
        to->all[b] = to->scale[b] * float(sum[b]);
    }
}

Status run(const LinearArgs &args, const Launch &launch) {
    XColumns *const x = reinterpret_cast<XColumns *>(aligned_workspace(launch));
    const int64_t chunks = chunk_count(args.w.geometry);
    const int64_t blocks = groups_of_chunk(args.w.geometry);
    parallel_ranges(launch.parallel, args.x.rows, 1, args.x.columns * kQuantizing,
                    [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            for_each_chunk<Dots>(args.x, row, [&](int64_t chunk, const float *values) {
                place_columns(values, blocks, x + row * chunks + chunk);
            });
        }
    });
    switch (blocks) {
        case 8: run_blocks<S8Rows8<8>>(args, launch, x); break;
        case 4: run_blocks<S8Rows8<4>>(args, launch, x); break;
        case 2: run_blocks<S8Rows8<2>>(args, launch, x); break;
        default: run_blocks<S8Rows8<1>>(args, launch, x);
    }
    return QK_OK;
}

}  // namespace

const Kernel<LinearArgs> kLinearInt8VnniRows =
    linear_kernel<row_of("avx512 vnni int8 rows")>(run, columns_bytes);

}  // namespace qk::cpu
