// One row of x as integers over packed U4 codes in groups of a multiple of 128 (docs/formats.md,
// "Order of sums"). An integer of x is three signed bytes, 65536 * [2] + 256 * [1] + [0]; codes are
// multiplied as they lie, unsigned, and zero times the sum of x is taken off each lane:
//
//     high = sum of code * [2] - zero * sum of [2]
//     low  = sum of code * (256 * [1] + [0]) - zero * (256 * sum of [1] + sum of [0])
//
// Both are exact in f32, so one fused 65536 * high + low rounds the lane's sum once.
#include "cpu/x86_avx512/lanes.hpp"
#include "cpu/x86_avx512/nested_widener.hpp"

#include "cpu/vector/gemv_floats.hpp"

namespace qk::cpu {
namespace {

// x of a chunk. Bytes 4 j .. 4 j + 3 hold the columns whose codes lie there: 32 b + j in the low
// nibble of byte b, 32 b + 16 + j in the high one.
struct XBytes {
    alignas(64) uint32_t low[3][16], high[3][16];
    alignas(64) uint32_t sum_low[16];   // of a lane: sum of [1], sum of [0] as 16-bit halves
    alignas(64) uint32_t sum_high[16];  // 0, sum of [2]
    float unit;
};

// Signed byte by signed byte, from the lowest.
struct Bytes3 {
    __m512i of[3];
};
inline Bytes3 split_bytes(__m512i q) {
    Bytes3 bytes;
    for (int i = 0; i < 3; ++i) {
        bytes.of[i] = _mm512_srai_epi32(_mm512_slli_epi32(q, 24), 24);
        q = _mm512_srai_epi32(_mm512_sub_epi32(q, bytes.of[i]), 8);
    }
    return bytes;
}

QK_NOINLINE void place_bytes(const int32_t *q, XBytes *to) {
    __m512i low[3], high[3], sum[3];
    for (int i = 0; i < 3; ++i) low[i] = high[i] = sum[i] = _mm512_setzero_si512();
    const __m512i byte = _mm512_set1_epi32(255);
    for (int b = 3; b >= 0; --b) {
        const Bytes3 even = split_bytes(_mm512_loadu_si512(q + 32 * b));
        const Bytes3 odd = split_bytes(_mm512_loadu_si512(q + 32 * b + 16));
        for (int i = 0; i < 3; ++i) {
            low[i] = _mm512_or_si512(_mm512_slli_epi32(low[i], 8),
                                     _mm512_and_si512(even.of[i], byte));
            high[i] = _mm512_or_si512(_mm512_slli_epi32(high[i], 8),
                                      _mm512_and_si512(odd.of[i], byte));
            sum[i] = _mm512_add_epi32(sum[i], _mm512_add_epi32(even.of[i], odd.of[i]));
        }
    }
    for (int i = 0; i < 3; ++i) {
        _mm512_store_si512(to->low[i], low[i]);
        _mm512_store_si512(to->high[i], high[i]);
    }
    const __m512i half = _mm512_set1_epi32(0xffff);
    const __m512i upper = _mm512_slli_epi32(sum[0], 16);
    _mm512_store_si512(to->sum_low, _mm512_or_si512(upper, _mm512_and_si512(sum[1], half)));
    _mm512_store_si512(to->sum_high, _mm512_slli_epi32(sum[2], 16));
}

// The row of x, whole if it is short and else a panel at a time.
class BytesOfX {
  public:
    explicit BytesOfX(const Dense &x) : x_(x), whole_(x.columns <= kPanelOfX) {
        if (whole_) fill(0);
    }
    const XBytes *panel(int64_t column) {
        if (whole_) return blocks_ + column / kBlock;
        fill(column);
        return blocks_;
    }

  private:
    void fill(int64_t column) {
        const int64_t end = min64(x_.columns, column + kPanelOfX);
        for (XBytes *to = blocks_; column < end; column += kBlock, ++to) {
            alignas(64) float x[kBlock] = {};
            alignas(64) int32_t q[kBlock];
            widen_x(x_, column, min64(kBlock, end - column), x);
            to->unit = integers_of(x, kBlock, q);
            place_bytes(q, to);
        }
    }

    const Dense &x_;
    bool whole_;
    XBytes blocks_[kPanelOfX / kBlock];
};

// Compilers copy the sum of the intrinsics in and out of another register.
QK_INLINE inline void add_bytes(__m512i &sum, __m512i a, __m512i b) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}
QK_INLINE inline void add_halves(__m512i &sum, __m512i a, __m512i b) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

class ByteRowBlocks {
  public:
    explicit ByteRowBlocks(const LinearArgs &args) : args_(args), x_(args.x), scales_(args.w) {
        for (int32_t zero = 0; zero < 16; ++zero) {
            minus_zero_[zero] = uint32_t(-zero) << 16 | (uint32_t(-256 * zero) & 0xffff);
        }
    }

    void run(int64_t row_block) {
        const Geometry &s = args_.w.geometry;
        const int64_t chunks = ceil_div(s.k, kBlock), panel = chunks_of_panel(s);
        Sums sums;
        for (Lanes &lanes : sums.row) lanes = zero_lanes();
        for (int64_t first = 0; first < chunks; first += panel) {
            run_panel(row_block, first, min64(first + panel, chunks), sums);
        }
        store_rows(args_, row_block, sums);
    }

  private:
    // Scales and zeros of a chunk's 8 rows, as they are multiplied.
    struct Factors {
        alignas(32) float scale[8];
        alignas(32) uint32_t minus_zero[8];
    };

    QK_NOINLINE void run_panel(int64_t row_block, int64_t first, int64_t last, Sums &total) {
        const Geometry &s = args_.w.geometry;
        const int64_t chunks = ceil_div(s.k, kBlock), size = s.group_size;
        const int64_t group = first * kBlock / size;
        const int64_t groups = ceil_div(min64(last * kBlock, s.k), size) - group;
        const bool halves = args_.w.scale.format->id == QK_FORMAT_F16;
        const char *scales = halves ? static_cast<const char *>(args_.w.scale.data) +
                                          (row_block * s.groups_per_row + group) * 16
                                    : scales_.load(row_block, group, groups);
        const uint8_t *codes =
            static_cast<const uint8_t *>(args_.w.data) + (row_block * chunks + first) * 512;
        const uint8_t *zeros = nullptr;
        if (args_.w.zero != nullptr) {
            zeros = static_cast<const uint8_t *>(args_.w.zero) +
                    (row_block * s.groups_per_row + group) * 4;
            for (int64_t i = 0; i < groups * 4; i += 64) prefetch(zeros + groups * 4 + i);
        }
        const XBytes *x = x_.panel(first * kBlock);
        const __m512i minus_zero = _mm512_loadu_si512(minus_zero_);
        Sums sums = total;  // a copy that nothing points to stays in registers
        int64_t left = (group + 1) * size - first * kBlock;  // of the group's columns
        for (int64_t i = first; i < last; ++i, codes += 512, ++x) {
            Factors factors;
            const __m256 scale = load_scales(scales, halves);
            _mm256_store_ps(factors.scale, _mm256_mul_ps(scale, _mm256_set1_ps(x->unit)));
            const uint32_t nibbles = zeros != nullptr ? load_as<uint32_t>(zeros, 0) : 0x88888888u;
            const __m256i zero = _mm256_srlv_epi32(_mm256_set1_epi32(int32_t(nibbles)),
                                                   _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
            // The permute ignores the bits above.
            const __m512i factor = _mm512_permutexvar_epi32(_mm512_castsi256_si512(zero),
                                                            minus_zero);
            _mm256_store_si256(reinterpret_cast<__m256i *>(factors.minus_zero),
                               _mm512_castsi512_si256(factor));
            add_chunk_of(codes, *x, factors, sums);
            left -= kBlock;
            if (left > 0) continue;
            left = size;
            scales += halves ? 16 : 32;
            prefetch(reinterpret_cast<const uint8_t *>(scales) + kAhead / 16);
            zeros += zeros != nullptr ? 4 : 0;
        }
        total = sums;
    }

    static __m256 load_scales(const char *from, bool halves) {
        if (!halves) return _mm256_loadu_ps(reinterpret_cast<const float *>(from));
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
    }

    QK_INLINE static void add_chunk_of(const uint8_t *codes, const XBytes &x,
                                       const Factors &factors, Sums &sums) {
        __m512i low[3], high[3];
        for (int i = 0; i < 3; ++i) {
            low[i] = _mm512_load_si512(x.low[i]);
            high[i] = _mm512_load_si512(x.high[i]);
        }
        const __m512i sum_low = _mm512_load_si512(x.sum_low);
        const __m512i sum_high = _mm512_load_si512(x.sum_high);
        const __m512i nibble = _mm512_set1_epi8(15);
        QK_UNROLL
        for (int row = 0; row < 8; ++row) {
            prefetch(codes + 64 * row + kAhead);
            const __m512i words = load_words(codes + 64 * row).v;
            const __m512i even = _mm512_and_si512(words, nibble);
            const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(words, 4), nibble);
            const __m512i minus_zero = _mm512_set1_epi32(int32_t(factors.minus_zero[row]));
            __m512i least = _mm512_setzero_si512(), middle = least, most = least;
            add_halves(least, minus_zero, sum_low);
            add_halves(most, minus_zero, sum_high);
            add_bytes(least, even, low[0]);
            add_bytes(middle, even, low[1]);
            add_bytes(most, even, low[2]);
            add_bytes(least, odd, high[0]);
            add_bytes(middle, odd, high[1]);
            add_bytes(most, odd, high[2]);
            least = _mm512_add_epi32(least, _mm512_slli_epi32(middle, 8));
            const __m512 dot = _mm512_fmadd_ps(_mm512_cvtepi32_ps(most), _mm512_set1_ps(65536),
                                               _mm512_cvtepi32_ps(least));
            sums.row[row].v = _mm512_fmadd_ps(dot, _mm512_set1_ps(factors.scale[row]),
                                              sums.row[row].v);
        }
    }

    const LinearArgs &args_;
    BytesOfX x_;
    ScalePanel scales_;
    uint32_t minus_zero_[16];  // -256 zero and -zero as 16-bit halves
};

Status run(const LinearArgs &args, const Launch &launch) {
    if (!sums_integers(args)) return kLinearGemvAvx512.run(args, launch);
    const int64_t blocks = ceil_div(args.w.geometry.n, 8);
    parallel_ranges(launch.parallel, blocks, 1, [&](int64_t first, int64_t last) {
        ByteRowBlocks rows(args);
        for (int64_t block = first; block < last; ++block) rows.run(block);
    });
    return QK_OK;
}

bool can_run(const LinearArgs &args, int32_t) {
    return (features() & kAvx512Vnni) != 0 && args.w.layout != nullptr &&
           args.w.layout->id == kLayoutRows8 && may_sum_integers(args);
}

}  // namespace

const Kernel<LinearArgs> kLinearIntegersVnni = {"avx512 vnni integers", can_run, nullptr, run};

}  // namespace qk::cpu
