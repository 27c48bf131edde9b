// int8 mode on machines with VNNI and VBMI; S8, whose rows are bytes: 128 columns of 8 rows are 16
// products of 64 bytes, the signed codes made unsigned by adding 128.
#include "cpu/int8/batch.hpp"
#include "cpu/int8/gemv.hpp"
#include "cpu/int8/x.hpp"
#include "cpu/kernels.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/x86_avx512/int8_tile.hpp"
#include "cpu/x86_avx512/rows8.hpp"

namespace qk::cpu {
namespace {

struct XColumns {  // 128 columns in order
    __m512i half[2];
    float scale;
    int32_t minus;  // what the 128 of all codes add up to
};

class S8Rows8 : Rows8 {
  public:
    S8Rows8(const LinearArgs &args, const XColumns *x)
        : Rows8(args), x_(x), chunks_(chunk_count(args.w.geometry)) {}

    // The last block starts early enough to be whole.
    void run(int64_t block) {
        const Geometry &s = args_.w.geometry;
        const int64_t row = min64(block * 8, s.n - 8);
        for (int64_t i = 0; i < args_.x.rows; ++i) {
            Avx512Int8::Floats8 acc = Avx512Int8::zero_floats8();
            for (int64_t first = 0; first < s.k; first += kRun) {
                const int64_t last = min64(first + kRun, s.k), group = first / s.group_size;
                groups_.load(row, group, ceil_div(last, s.group_size) - group);
                acc = add({row, first, last, group}, x_ + i * chunks_ + first / 128, acc);
            }
            float y[8];
            Avx512Int8::store_floats8(y, acc);
            store_8(args_, i, block, y + (block * 8 - row));
        }
    }

  private:
    QK_NOINLINE Avx512Int8::Floats8 add(const Run &run, const XColumns *x,
                                        Avx512Int8::Floats8 acc) const {
        const int64_t size = args_.w.geometry.group_size;
        const uint8_t *codes = codes_at(run.row, run.first);
        const uint8_t *ahead = codes_at(run.row + 8, run.first * 8);
        int64_t group = 0, next = (run.group + 1) * size;
        for (int64_t at = run.first; at < run.last; at += 128, codes += 128, ahead += 1024, ++x) {
            if (at >= next) ++group, next += size;
            const int64_t count = run.last - at;
            const __mmask64 low = count >= 64 ? ~__mmask64(0) : (__mmask64(1) << count) - 1;
            const __mmask64 high = count >= 128  ? ~__mmask64(0)
                                   : count <= 64 ? __mmask64(0)
                                                 : (__mmask64(1) << (count - 64)) - 1;
            const __m512i offset = _mm512_set1_epi8(char(Avx512Int8::kTableOffset));
            __m512i d[8];
            QK_UNROLL
            for (int i = 0; i < 8; ++i) {
                const uint8_t *const row = codes + i * stride_;
                prefetch(ahead + 128 * i);
                prefetch(ahead + 128 * i + 64);
                d[i] = _mm512_setzero_si512();
                Avx512Int8::add_dots(
                    d[i], _mm512_xor_si512(_mm512_maskz_loadu_epi8(low, row), offset), x->half[0]);
                Avx512Int8::add_dots(
                    d[i], _mm512_xor_si512(_mm512_maskz_loadu_epi8(high, row + 64), offset),
                    x->half[1]);
            }
            Avx512Int8::Sums8 sums;
            Avx512Int8::fold_rows_1(d, &sums);
            sums.v = _mm256_add_epi32(sums.v, _mm256_set1_epi32(x->minus));
            const auto &scale = groups_.scale;
            const __m256 scales =
                _mm256_setr_ps(scale[0][group], scale[1][group], scale[2][group], scale[3][group],
                               scale[4][group], scale[5][group], scale[6][group], scale[7][group]);
            acc = Avx512Int8::fold8(sums, x->scale, {scales}, acc);
        }
        return acc;
    }

    const XColumns *const x_;
    const int64_t chunks_;
};

size_t int8_columns_bytes(const LinearArgs &args, const Device &) {
    return chunk_workspace(args.w.geometry, args.x.rows, sizeof(XColumns));
}

Status run_int8_s8(const LinearArgs &args, const Launch &launch) {
    XColumns *const x = reinterpret_cast<XColumns *>(aligned_workspace(launch));
    const int64_t chunks = chunk_count(args.w.geometry);
    parallel_ranges(launch.parallel, args.x.rows, 1, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            for_each_chunk<Avx512Int8>(args.x, row, [&](int64_t chunk, const float *values) {
                const Avx512Int8::ChunkQuantizer quantizer(values, 1);
                XColumns &to = x[row * chunks + chunk];
                float scale[8];
                int32_t sum[8];
                quantizer.store_scales(1, scale);
                const Avx512Int8::XBytes bytes = quantizer.integers(sum);
                const __m512i order =
                    _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
                to.half[0] = Avx512Int8::place(bytes, order);
                to.half[1] =
                    Avx512Int8::place(bytes, _mm512_add_epi32(order, _mm512_set1_epi32(16)));
                to.scale = scale[0];
                to.minus = -Avx512Int8::kTableOffset * sum[0];
            });
        }
    });
    run_blocks<S8Rows8>(args, launch, x);
    return QK_OK;
}

}  // namespace

const Kernel<LinearArgs> kLinearInt8Vnni =
    linear_kernel<row_of("avx512 vnni int8")>(run_int8_gemv<Avx512Int8>, int8_x_bytes<Avx512Int8>);
const Kernel<LinearArgs> kLinearInt8VnniBatch = linear_kernel<row_of("avx512 vnni int8 batch")>(
    run_int8_batch<Avx512Int8>, int8_tiles_bytes<Avx512Int8>);
const Kernel<LinearArgs> kLinearInt8VnniRows =
    linear_kernel<row_of("avx512 vnni int8 rows")>(run_int8_s8, int8_columns_bytes);

}  // namespace qk::cpu
