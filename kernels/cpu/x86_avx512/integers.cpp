// One row of x as integers over packed U4 codes in groups of a multiple of 128 (docs/formats.md,
// "Order of sums"). An integer of x is three signed bytes, 65536 * [2] + 256 * [1] + [0]; codes are
// multiplied in place, unsigned, and zero times the sum of x is subtracted from each lane:
//
//     ((codes . [2]) * 256 + codes . [1]) * 256 + codes . [0] - zero * sum of x
//
// That is exact in 32 bits (8 * 15 * 2^23 < 2^30; intermediate sums may wrap), so converting it
// rounds the lane's sum once. 64 bytes of codes cost 6 byte products, a 16-bit one for the zero,
// 3 shifts, 2 masks, an addition, a conversion and a multiply-add: 8 of these go to the two
// multipliers, which makes 4 cycles.
#include "cpu/linear/select.hpp"
#include "cpu/x86_avx512/byte_dots.hpp"
#include "cpu/x86_avx512/isa.hpp"

#include "cpu/linear/gemv.hpp"

namespace qk::cpu {
namespace {

// XBytes::sum is in two halves of 16 bits here: 2048 * upper half + lower half.
// What an XBytes::sum is multiplied by, half by half: minus the zero.
inline uint32_t minus_zero_halves(int32_t zero) {
    return uint32_t(-2048 * zero) << 16 | (uint32_t(-zero) & 0xffff);
}

// Byte i of four vectors' dwords, side by side in a dword: to[i].
inline void transpose_three_bytes(const __m512i (&v)[4], uint32_t (&to)[3][16]) {
    constexpr __mmask64 odd = 0xaaaaaaaaaaaaaaaa;
    constexpr __mmask32 upper = 0xaaaaaaaa;
    const auto even_bytes = [](__m512i a, __m512i b) {
        return _mm512_mask_blend_epi8(odd, a, _mm512_slli_epi32(b, 8));
    };
    const auto odd_bytes = [](__m512i a, __m512i b) {
        return _mm512_mask_blend_epi8(odd, _mm512_srli_epi32(a, 8), b);
    };
    const __m512i low = even_bytes(v[0], v[1]), high = even_bytes(v[2], v[3]);
    const __m512i low_1 = odd_bytes(v[0], v[1]), high_1 = odd_bytes(v[2], v[3]);
    const auto join = [](__m512i a, __m512i b) { return _mm512_mask_blend_epi16(upper, a, b); };
    _mm512_store_si512(to[0], join(low, _mm512_slli_epi32(high, 16)));
    _mm512_store_si512(to[1], join(low_1, _mm512_slli_epi32(high_1, 16)));
    _mm512_store_si512(to[2], join(_mm512_srli_epi32(low, 16), high));
}

// What integers_of gives, in bytes. False where the block is none of the order's.
QK_NOINLINE bool place_bytes(const void *from, XBytes *to) {
    __m512 x[8];
    __m512i most = _mm512_setzero_si512();
    for (int i = 0; i < 8; ++i) {
        x[i] = _mm512_loadu_ps(static_cast<const char *>(from) + 64 * i);
        const __m512i bits = _mm512_castps_si512(x[i]);
        most = _mm512_max_epu32(most, _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
    }
    const uint32_t largest = _mm512_reduce_max_epu32(most);
    if (!fits_integers(largest)) return false;
    const Grid grid = grid_of(largest);
    to->unit = grid.unit;
    // Added to an integer, 128 for every byte leaves bytes without a sign.
    const __m512i offset = _mm512_set1_epi32(0x808080);
    __m512i even[4], odd[4], sum = _mm512_setzero_si512();
    for (int i = 0; i < 8; ++i) {
        const __m512 value = _mm512_mul_ps(x[i], _mm512_set1_ps(grid.inverse));
        const __m512i q =
            _mm512_cvt_roundps_epi32(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        sum = _mm512_add_epi32(sum, q);
        const __m512i bytes = _mm512_xor_si512(_mm512_add_epi32(q, offset), offset);
        (i % 2 == 0 ? even : odd)[i / 2] = bytes;
    }
    transpose_three_bytes(even, to->low);
    transpose_three_bytes(odd, to->high);
    const __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(sum, _mm512_set1_epi32(1024)), 11);
    const __m512i lower = _mm512_sub_epi32(sum, _mm512_slli_epi32(upper, 11));
    _mm512_store_si512(to->sum,
                       _mm512_mask_blend_epi16(0xaaaaaaaa, lower, _mm512_slli_epi32(upper, 16)));
    return true;
}

// Columns column .. end; false where a block is none of the order's.
bool place_row(const Dense &x, int64_t column, int64_t end, XBytes *to) {
    for (; column < end; column += kBlock, ++to) {
        const int64_t count = min64(kBlock, end - column);
        const void *from = static_cast<const char *>(x.data) + column * 4;
        alignas(64) float widened[kBlock];
        if (x.format->id != QK_FORMAT_F32 || count < kBlock) {
            memset(widened, 0, sizeof(widened));
            widen_x<Avx512>(x, column, count, widened);
            from = widened;
        }
        if (!place_bytes(from, to)) return false;
    }
    return true;
}

constexpr int64_t kRowOfBytes = kPanelOfX / kBlock;  // blocks of the longest panel

QK_INLINE inline void add_halves(__m512i &sum, __m512i a, const uint32_t &b) {
    asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(a), "m"(b));
}

class ByteRowBlocks {
  public:
    // One of both: the row of x, or room for kRowOfBytes blocks, a panel of a longer one.
    ByteRowBlocks(const LinearArgs &args, const Device &device, const XBytes *row_of_x,
                  XBytes *room)
        : args_(args), row_of_x_(row_of_x), room_(room), scales_(args.w, device),
          chunks_(ceil_div(args.w.geometry.k, kBlock)),
          halves_(args.w.scale.format->id == QK_FORMAT_F16),
          first_(panel_from(args.w.geometry, 0)) {
        for (int32_t zero = 0; zero < 16; ++zero) minus_zero_[zero] = minus_zero_halves(zero);
    }

    void run(int64_t row_block) {
        sum_panels<Avx512>(args_, first_, row_block,
                           [&](const Panel &panel, Sums<Avx512> &sums)
                               QK_INLINE { run_panel(row_block, panel, sums); });
    }

  private:
    const XBytes *x_of(const Panel &panel) {
        if (row_of_x_ != nullptr) return row_of_x_ + panel.first;
        const int64_t end = min64(panel.last * kBlock, args_.x.columns);
        place_row(args_.x, panel.first * kBlock, end, room_);
        return room_;
    }

    // Scales and zeros of a chunk's 8 rows, as they are multiplied.
    struct Factors {
        alignas(32) float scale[8];
        alignas(32) uint32_t minus_zero[8];
    };

    QK_NOINLINE void run_panel(int64_t row_block, const Panel &panel, Sums<Avx512> &total) {
        const Geometry &s = args_.w.geometry;
        const bool halves = halves_;
        const int64_t at = row_block * s.groups_per_row + panel.group;
        const char *scales = halves ? static_cast<const char *>(args_.w.scale.data) + at * 16
                                    : scales_.load(row_block, panel.group, panel.groups);
        const uint8_t *codes = packed_chunk(args_.w, row_block * chunks_ + panel.first);
        const uint8_t *zeros = packed_zeros(args_.w, row_block, panel.group);
        const int64_t zeros_step = zeros != nullptr ? 4 : 0;
        if (zeros == nullptr) zeros = reinterpret_cast<const uint8_t *>(&kEights);
        const XBytes *x = x_of(panel);
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
            add_chunk_of(codes, *x, factors, sums);
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
            prefetch(codes + 64 * row + kAhead);
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
    const XBytes *const row_of_x_;
    XBytes *const room_;
    ScalePanel<Avx512> scales_;
    const int64_t chunks_;
    const bool halves_;
    const Panel first_;
    uint32_t minus_zero_[16];
};

QK_NOINLINE void run_tasks(const LinearArgs &args, const Device &device, const XBytes *row_of_x,
                           XBytes *room, int64_t first, int64_t last) {
    ByteRowBlocks rows(args, device, row_of_x, room);
    for (int64_t block = first; block < last; ++block) rows.run(block);
}

struct RowOfBytes {
    XBytes block[kRowOfBytes];
};

// The row of x at once, for all tasks. False where it is none of the order's.
QK_NOINLINE bool run_row(const LinearArgs &args, const Launch &launch) {
    const InScratch<RowOfBytes> row_of_x(launch.scratch);
    if (!place_row(args.x, 0, args.x.columns, row_of_x->block)) return false;
    const int64_t blocks = ceil_div(args.w.geometry.n, 8);
    parallel_ranges(launch.parallel, blocks, 1, [&](int64_t first, int64_t last) {
        run_tasks(args, launch.device, row_of_x->block, nullptr, first, last);
    });
    return true;
}

QK_NOINLINE bool run_panels(const LinearArgs &args, const Launch &launch) {
    if (!sums_integers<Avx512>(args)) return false;
    const int64_t blocks = ceil_div(args.w.geometry.n, 8);
    parallel_ranges(launch.parallel, blocks, 1, [&](int64_t first, int64_t last) {
        const InScratch<RowOfBytes> room(launch.scratch);
        run_tasks(args, launch.device, nullptr, room->block, first, last);
    });
    return true;
}

Status run(const LinearArgs &args, const Launch &launch) {
    const bool whole = args.x.columns <= kPanelOfX;
    if (whole ? run_row(args, launch) : run_panels(args, launch)) return QK_OK;
    return kLinearGemvAvx512.run(args, launch);
}

}  // namespace

const Kernel<LinearArgs> kLinearIntegersVnni = linear_kernel<row_of("avx512 vnni integers")>(run);

}  // namespace qk::cpu
