// One or two rows of x as integers over packed U4 codes in groups of a multiple of 128
// (docs/formats.md, "Order of sums"). An integer of x is three signed bytes, 65536 * [2] + 256 *
// [1] + [0]; codes are multiplied in place, unsigned, and zero times the sum of x is subtracted
// from each lane:
//
//     ((codes . [2]) * 256 + codes . [1]) * 256 + codes . [0] - zero * sum of x
//
// That is exact in 32 bits (8 * 15 * 2^23 < 2^30; intermediate sums may wrap), so converting it
// rounds the lane's sum once. 64 bytes of codes cost 6 byte products, a 16-bit one for the zero,
// 3 shifts, 2 masks, an addition, a conversion and a multiply-add: 8 of these go to the two
// multipliers, which makes 4 cycles.
#include "cpu/x86_avx512/row_of_bytes.hpp"

namespace qk::cpu {
namespace {

class ByteRowBlocks {
  public:
    using X = WholeBytes;

    ByteRowBlocks(const LinearArgs &args, const Device &device, const RowsOfBlocks<X> &x)
        : args_(args), x_(x), scales_(args.w, device), blocks_(args.w),
          halves_(blocks_.in_place() && args.w.scale.format->id == QK_FORMAT_F16),
          first_(panel_from(args.w.geometry, 0, blocks_.most())),
          paged_((traits() & kPagedStreams) != 0) {
        for (int32_t zero = 0; zero < 16; ++zero) minus_zero_[zero] = minus_zero_halves(zero);
    }

    void run(int64_t row_block) {
        sum_panels<Avx512>(args_, args_.w.geometry, first_, row_block,
                           [&](const Panel &panel, Sums<Avx512> *sums)
                               QK_INLINE { run_panel(row_block, panel, sums); });
    }

  private:
    // Scales and zeros of a chunk's 8 rows, as they are multiplied.
    struct Factors {
        alignas(32) float scale[8];
        alignas(32) uint32_t minus_zero[8];
    };

    void run_panel(int64_t row_block, const Panel &panel, Sums<Avx512> *sums) {
        const int64_t at = row_block * args_.w.geometry.groups_per_row + panel.group;
        const char *const scales = halves_ ? static_cast<const char *>(args_.w.scale.data) + at * 16
                                           : scales_.load(row_block, panel.group, panel.groups);
        const uint8_t *codes = blocks_.load(row_block, panel.first, panel.last);
        const uint8_t *zeros = blocks_.zeros(row_block, panel.group, panel.groups);
        for (int64_t j = 0; j < args_.x.rows; ++j) {
            const X *const x = x_.of(j, panel);
            paged_ ? run_chunks<true>(panel, codes, scales, zeros, x, sums[j])
                   : run_chunks<false>(panel, codes, scales, zeros, x, sums[j]);
        }
    }

    template <bool paged>
    QK_NOINLINE void run_chunks(const Panel &panel, const uint8_t *codes, const char *scales,
                                const uint8_t *zeros, const X *x, Sums<Avx512> &total) const {
        const Geometry &s = args_.w.geometry;
        const bool halves = halves_;
        const int64_t zeros_step = zeros != nullptr ? 4 : 0;
        if (zeros == nullptr) zeros = reinterpret_cast<const uint8_t *>(&kEights);
        const __m512i minus_zero = _mm512_loadu_si512(minus_zero_);
        Sums<Avx512> sums = total;  // a copy that nothing points to stays in registers
        int64_t left = panel.left;
        for (int64_t i = panel.first; i < panel.last; ++i, codes += 512, ++x) {
            Factors factors;
            const __m256 scale = load_scales(scales, halves);
            _mm256_store_ps(factors.scale, _mm256_mul_ps(scale, _mm256_set1_ps(x->unit)));
            const __m256i nibbles = _mm256_set1_epi32(load_as<int32_t>(zeros, 0));
            const __m256i zero =
                _mm256_srlv_epi32(nibbles, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
            // The permute ignores the bits above.
            const __m512i factor =
                _mm512_permutexvar_epi32(_mm512_castsi256_si512(zero), minus_zero);
            _mm256_store_si256(reinterpret_cast<__m256i *>(factors.minus_zero),
                               _mm512_castsi512_si256(factor));
            asm volatile("" : "+m"(factors));  // broadcast where it is used, not by shuffles
            add_chunk_of<paged>(codes, *x, factors, sums);
            left -= kBlock;
            if (left > 0) continue;
            left = s.group_size;
            scales += halves ? 16 : 32;
            zeros += zeros_step;
            prefetch(reinterpret_cast<const uint8_t *>(scales) + kAhead / 16);
            prefetch(zeros + kAhead / 64);
        }
        total = sums;
    }

    static __m256 load_scales(const char *from, bool halves) {
        if (!halves) return _mm256_loadu_ps(reinterpret_cast<const float *>(from));
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
    }

    template <bool paged>
    QK_INLINE static void add_chunk_of(const uint8_t *codes, const XBytes &x,
                                       const Factors &factors, Sums<Avx512> &sums) {
        __m512i low[3], high[3];
        for (int i = 0; i < 3; ++i) {
            low[i] = _mm512_load_si512(x.low[i]);
            high[i] = _mm512_load_si512(x.high[i]);
        }
        const __m512i sum = _mm512_load_si512(x.sum);
        const __m512i nibble = _mm512_set1_epi8(15);
        QK_UNROLL
        for (int row = 0; row < 8; ++row) {
            fetch_line<paged, kAhead>(codes + 64 * row);
            if (row == 7) fetch_page<paged>(codes + kAhead);
            const __m512i words = Avx512::load_words(codes + 64 * row).v;
            const __m512i even = _mm512_and_si512(words, nibble);
            const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(words, 4), nibble);
            const auto take_zeros = [&](__m512i & least) __attribute__((always_inline)) {
                add_halves(least, sum, factors.minus_zero[row]);
            };
            const __m512i dot = dot_three_bytes(even, odd, low, high, take_zeros);
            sums.row[row].v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot),
                                              _mm512_set1_ps(factors.scale[row]), sums.row[row].v);
        }
    }

    static constexpr uint32_t kEights = 0x88888888;  // the zeros where there are none

    const LinearArgs &args_;
    const RowsOfBlocks<X> x_;
    ScalePanel<Avx512> scales_;
    CodesOfBlocks<Avx512> blocks_;
    const bool halves_;
    const Panel first_;
    const bool paged_;
    uint32_t minus_zero_[16];
};

}  // namespace

const Kernel<LinearArgs> kLinearIntegersVnni =
    linear_kernel<row_of("avx512 vnni integers")>(run_row_blocks<ByteRowBlocks>);

}  // namespace qk::cpu
