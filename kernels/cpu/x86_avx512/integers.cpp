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
//
// x takes 7 lines for 8 lines of codes. Where it does not fit the first cache beside these, its way
// from the second one is what limits; so two blocks of 8 rows meet it in turn, where the
// processor's streams are fetched line by line in any case (traits.hpp).
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

    // One row of x whose panels are all in the one, and nothing of w copied.
    bool takes_two() const {
        return paged_ && halves_ && args_.x.rows == 1 &&
               first_.last == ceil_div(args_.w.geometry.k, kBlock);
    }
    void run_two(int64_t row_block) {
        const Source blocks[2] = {source(row_block, first_), source(row_block + 1, first_)};
        Sums<Avx512> sums[2];
        for (Sums<Avx512> &of : sums) {
            for (Lanes<Avx512> &lanes : of.row) lanes = Avx512::zero_lanes();
        }
        run_chunks<true, 2>(first_, blocks, x_.of(0, first_), sums);
        for (int64_t i = 0; i < 2; ++i) store_rows<Avx512>(args_, 0, row_block + i, sums[i]);
    }

  private:
    // Where a block's codes, scales and zeros are; zeros are 4 bytes a group.
    struct Source {
        const uint8_t *codes;
        const char *scales;
        const uint8_t *zeros;
    };
    // Scales and zeros of a chunk's 8 rows, as they are multiplied.
    struct Factors {
        alignas(32) float scale[8];
        alignas(32) uint32_t minus_zero[8];
    };

    Source source(int64_t row_block, const Panel &panel) {
        const int64_t at = row_block * args_.w.geometry.groups_per_row + panel.group;
        const char *const scales = halves_ ? static_cast<const char *>(args_.w.scale.data) + at * 16
                                           : scales_.load(row_block, panel.group, panel.groups);
        const uint8_t *const zeros = blocks_.zeros(row_block, panel.group, panel.groups);
        return {blocks_.load(row_block, panel.first, panel.last), scales,
                zeros != nullptr ? zeros : reinterpret_cast<const uint8_t *>(&kEights)};
    }

    void run_panel(int64_t row_block, const Panel &panel, Sums<Avx512> *sums) {
        const Source block[1] = {source(row_block, panel)};
        for (int64_t j = 0; j < args_.x.rows; ++j) {
            const X *const x = x_.of(j, panel);
            paged_ ? run_chunks<true, 1>(panel, block, x, sums + j)
                   : run_chunks<false, 1>(panel, block, x, sums + j);
        }
    }

    // Of kBlocks blocks of rows, one behind the other in w where there are two.
    template <bool paged, int kBlocks>
    QK_NOINLINE void run_chunks(const Panel &panel, const Source *blocks, const X *x,
                                Sums<Avx512> *total) const {
        const Geometry &s = args_.w.geometry;
        const bool halves = halves_;
        const int64_t zeros_step = args_.w.zero != nullptr ? 4 : 0;
        const __m512i minus_zero = _mm512_loadu_si512(minus_zero_);
        Source at[kBlocks];
        Sums<Avx512> sums[kBlocks];  // copies that nothing points to stay in registers
        for (int b = 0; b < kBlocks; ++b) at[b] = blocks[b], sums[b] = total[b];
        int64_t left = panel.left;
        for (int64_t i = panel.first; i < panel.last; ++i, ++x) {
            Factors factors[kBlocks];
            for (int b = 0; b < kBlocks; ++b) {
                factors[b] = factors_of(at[b], x->unit, halves, minus_zero);
            }
            // Broadcast where they are used, not by shuffles.
            asm volatile("" : "+m"(factors));
            const Past past = kBlocks == 1 ? Past{0, 0} : past_row(panel.last - i);
            add_chunks<paged, kBlocks>(at, *x, factors, past, sums);
            left -= kBlock;
            for (Source &of : at) of.codes += 512;
            if (left > 0) continue;
            left = s.group_size;
            for (Source &of : at) {
                of.scales += halves ? 16 : 32;
                of.zeros += zeros_step;
                prefetch(reinterpret_cast<const uint8_t *>(of.scales) + kAhead / 16);
                prefetch(of.zeros + kAhead / 64);
            }
        }
        for (int b = 0; b < kBlocks; ++b) total[b] = sums[b];
    }

    QK_INLINE static Factors factors_of(const Source &at, float unit, bool halves,
                                        __m512i minus_zero) {
        Factors factors;
        const __m256 scale = load_scales(at.scales, halves);
        _mm256_store_ps(factors.scale, _mm256_mul_ps(scale, _mm256_set1_ps(unit)));
        const __m256i nibbles = _mm256_set1_epi32(load_as<int32_t>(at.zeros, 0));
        const __m256i zero =
            _mm256_srlv_epi32(nibbles, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
        // The permute ignores the bits above.
        const __m512i factor = _mm512_permutexvar_epi32(_mm512_castsi256_si512(zero), minus_zero);
        _mm256_store_si256(reinterpret_cast<__m256i *>(factors.minus_zero),
                           _mm512_castsi512_si256(factor));
        return factors;
    }

    static __m256 load_scales(const char *from, bool halves) {
        if (!halves) return _mm256_loadu_ps(reinterpret_cast<const float *>(from));
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
    }

    // How much further a block's codes go on, of two blocks behind each other: by the other's
    // length from their row's last chunks on.
    struct Past {
        int64_t near, far;  // where lines come from to the first cache, to the second
    };
    QK_INLINE Past past_row(int64_t chunks_left) const {
        const int64_t row = ceil_div(args_.w.geometry.k, kBlock) * 512;
        return {chunks_left * 512 <= kNearOfPages ? row : 0, chunks_left * 512 <= kAhead ? row : 0};
    }

    template <bool paged, int kBlocks>
    QK_INLINE static void add_chunks(const Source *at, const XBytes &x, const Factors *factors,
                                     const Past &past, Sums<Avx512> *sums) {
        __m512i low[3], high[3];
        for (int i = 0; i < 3; ++i) {
            low[i] = _mm512_load_si512(x.low[i]);
            high[i] = _mm512_load_si512(x.high[i]);
        }
        const __m512i sum = _mm512_load_si512(x.sum);
        const __m512i nibble = _mm512_set1_epi8(15);
        QK_UNROLL
        for (int block = 0; block < kBlocks; ++block) {
            QK_UNROLL
            for (int row = 0; row < 8; ++row) {
                const uint8_t *const codes = at[block].codes + 64 * row;
                if (kBlocks == 1) {
                    fetch_line<paged, kAhead>(codes);
                } else {
                    prefetch_stream(codes + kAhead + past.far);
                    prefetch(codes + kNearOfPages + past.near);
                }
                if (row == 7) fetch_page<paged>(codes + kAhead + past.far);
                const __m512i words = Avx512::load_words(codes).v;
                const __m512i even = _mm512_and_si512(words, nibble);
                const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(words, 4), nibble);
                const auto take_zeros = [&](__m512i & least) __attribute__((always_inline)) {
                    add_halves(least, sum, factors[block].minus_zero[row]);
                };
                const __m512i dot = dot_three_bytes(even, odd, low, high, take_zeros);
                __m512 &of_row = sums[block].row[row].v;
                of_row = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot),
                                         _mm512_set1_ps(factors[block].scale[row]), of_row);
            }
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
