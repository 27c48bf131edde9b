// Nested scales and LUT8, 64 at a time, by byte permutes.
#include "cpu/kernels.hpp"
#include "cpu/x86_avx512/e4m3.hpp"
#include "cpu/x86_avx512/isa.hpp"
#include "cpu/x86_avx512/look_up_planes.hpp"

namespace qk::cpu {
namespace {

// Second scales of 8 rows, in 64-bit lanes, as second_scales() has them.
struct Second8 {
    __m256 first, last;
    __m256i change;
    int64_t lowest;  // of change
    int64_t count;   // of groups

    Second8(const SecondRun &run, int64_t groups) {
        const __m512i row = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
        const __m512i number = _mm512_add_epi64(
            _mm512_set1_epi64(run.number), _mm512_mullo_epi64(row, _mm512_set1_epi64(run.per_row)));
        const __m128i shift = _mm_cvtsi32_si128(run.shift);
        const __m512i index = _mm512_srl_epi64(number, shift);
        const __m512i next = _mm512_add_epi64(index, _mm512_set1_epi64(1));
        const __m512i left = _mm512_sub_epi64(_mm512_sll_epi64(next, shift), number);
        first = gather(run, index);
        last = first;
        change = _mm512_cvtsepi64_epi32(left);
        lowest = _mm512_reduce_min_epi64(left);
        count = min64(groups, lowest + run.size);
        if (lowest < groups) last = gather(run, next);
    }
    explicit Second8(const SecondScales &second) {
        first = _mm256_loadu_ps(second.first);
        last = _mm256_loadu_ps(second.last);
        change = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(second.change));
        lowest = 0;
        count = second.count;
    }

  private:
    static __m256 gather(const SecondRun &run, __m512i index) {
        const __m512i at = _mm512_min_epi64(index, _mm512_set1_epi64(run.last));
        return _mm512_i64gather_ps(at, run.plane, 4);
    }
};

// Where a scale stands against its row's change decides which factor it has.
struct Second16 {  // of 2 groups of 8 rows
    __m512 first, last;
    __m512i change;

    explicit Second16(const Second8 &second)
        : first(_mm512_broadcast_f32x8(second.first)), last(_mm512_broadcast_f32x8(second.last)),
          change(_mm512_broadcast_i64x4(second.change)) {}

    // Groups `group` and `group` + 1, counted from the start of the run.
    __m512 at(int64_t group) const {
        const __m512i half = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi32(1), 1);
        const __m512i number = _mm512_add_epi32(half, _mm512_set1_epi32(int(group)));
        return _mm512_mask_blend_ps(_mm512_cmplt_epi32_mask(number, change), last, first);
    }
};

// The numbers of 64 codes by put(bits, quarter).
template <class Put>
inline __attribute__((always_inline)) void decode_64(const NestedCode &code,
                                                     const Plane (&planes)[4], __m512i codes,
                                                     const Put &put) {
    if (!code.exponents) return look_up_64(planes, codes, put);
    put(exponents_to_bits(_mm512_castsi512_si128(codes)), 0);
    put(exponents_to_bits(_mm512_extracti32x4_epi32(codes, 1)), 1);
    put(exponents_to_bits(_mm512_extracti32x4_epi32(codes, 2)), 2);
    put(exponents_to_bits(_mm512_extracti32x4_epi32(codes, 3)), 3);
}

// 64 codes or those that there are.
inline __m512i load_codes(const char *from, int64_t count) {
    const __mmask64 mask = count >= 64 ? ~__mmask64(0) : (__mmask64(1) << count) - 1;
    return _mm512_maskz_loadu_epi8(mask, from);
}

int64_t widen(const NestedCode &code, const char *from, int64_t groups, const SecondRun &run,
              float bias, float (*to)[8]) {
    Plane planes[4];  // they stay in registers, past the stores
    for (int p = 0; p < 4; ++p) planes[p] = load_plane(code.plane[p]);
    if (is_plain(run, bias)) {
        for (int64_t i = 0; i < groups; i += 8) {
            const auto put = [&](__m512i bits, int quarter) {
                _mm512_storeu_si512(to[i] + 16 * quarter, bits);
            };
            decode_64(code, planes, load_codes(from + i * 8, (groups - i) * 8), put);
        }
        return groups;
    }
    const Second8 second =
        run.shift >= 0 ? Second8(run, groups) : Second8(second_scales(run, groups));
    const Second16 both(second);
    for (int64_t i = 0; i < second.count; i += 8) {
        const __m512i some = load_codes(from + i * 8, (second.count - i) * 8);
        const auto put = [&](__m512i bits, int quarter, __m512 factor) {
            const __m512 product = _mm512_mul_ps(_mm512_castsi512_ps(bits), factor);
            _mm512_storeu_ps(to[i] + 16 * quarter, _mm512_add_ps(product, _mm512_set1_ps(bias)));
        };
        if (i + 8 <= second.lowest) {
            decode_64(code, planes, some,
                      [&](__m512i bits, int quarter) { put(bits, quarter, both.first); });
        } else {
            decode_64(code, planes, some, [&](__m512i bits, int quarter) {
                put(bits, quarter, both.at(i + 2 * quarter));
            });
        }
    }
    return second.count;
}

void look_up(const NestedCode &code, const uint8_t *from, int64_t count, float scale, float *to) {
    Plane planes[4];
    for (int p = 0; p < 4; ++p) planes[p] = load_plane(code.plane[p]);
    for (int64_t i = 0; i < count; i += 64) {
        const int64_t codes = count - i;
        const __mmask64 mask = codes >= 64 ? ~__mmask64(0) : (__mmask64(1) << codes) - 1;
        const __m512i some = _mm512_maskz_loadu_epi8(mask, from + i);
        look_up_64(planes, some, [&](__m512i bits, int quarter) {
            const __m512 product = _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(scale));
            float *const at = to + i + 16 * quarter;
            if (codes >= 16 * (quarter + 1)) {  // what a mask has stored is loaded late
                _mm512_storeu_ps(at, product);
            } else {
                _mm512_mask_storeu_ps(at, __mmask16(mask >> 16 * quarter), product);
            }
        });
    }
}

// The halves of all codes, as planes of their lower and upper bytes.
struct HalfPlanes {
    Plane lower, upper;

    HalfPlanes(const NestedCode &code, float scale, bool is_f16) {
        if (is_f16) {
            make(code, scale,
                 [](Lanes<Avx512> a, Lanes<Avx512> b) QK_INLINE { return Avx512::two_f16(a, b); });
        } else if (code.finite && __builtin_fabsf(scale) < __builtin_inff()) {
            make(code, scale, [](Lanes<Avx512> a, Lanes<Avx512> b) QK_INLINE {
                return Avx512::upper_halves(Avx512::round_bf16_number(a.v),
                                            Avx512::round_bf16_number(b.v));
            });
        } else {
            make(code, scale,
                 [](Lanes<Avx512> a, Lanes<Avx512> b) QK_INLINE { return Avx512::two_bf16(a, b); });
        }
    }

  private:
    // two(a, b): 32 halves of 32 numbers.
    template <class Two>
    QK_INLINE void make(const NestedCode &code, float scale, const Two &two) {
        alignas(64) uint8_t evens[64];
        for (int i = 0; i < 64; ++i) evens[i] = uint8_t(2 * i);
        const __m512i even = _mm512_load_si512(evens);
        const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi8(1));
        const Lanes<Avx512> by = Avx512::splat(scale);
        for (int quarter = 0; quarter < 4; ++quarter) {
            const auto halves = [&](const float *from) QK_INLINE {
                return two(Avx512::mul(Avx512::load_f32(from), by),
                           Avx512::mul(Avx512::load_f32(from + 16), by));
            };
            const __m512i first = halves(code.value + 64 * quarter);
            const __m512i last = halves(code.value + 64 * quarter + 32);
            lower.quarter[quarter] = _mm512_permutex2var_epi8(first, even, last);
            upper.quarter[quarter] = _mm512_permutex2var_epi8(first, odd, last);
        }
    }
};

// Codes of a group that is as long as the table: its halves are rounded once.
QK_NOINLINE void look_up_rounded(const NestedCode &code, const uint8_t *from, int64_t count,
                                 float scale, bool is_f16, bool stream, char *to) {
    const HalfPlanes planes(code, scale, is_f16);
    // Interleaving bytes leaves halves in order.
    const __m512i eights = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    for (int64_t i = 0; i < count; i += 64, to += 128) {
        prefetch(from + i + 4096);
        const __m512i codes = _mm512_permutexvar_epi64(eights, _mm512_loadu_si512(from + i));
        const __mmask64 upper_half = _mm512_movepi8_mask(codes);
        const __m512i lower = look_up_plane(planes.lower, codes, upper_half);
        const __m512i upper = look_up_plane(planes.upper, codes, upper_half);
        Avx512::put_halves(_mm512_unpacklo_epi8(lower, upper), to, stream);
        Avx512::put_halves(_mm512_unpackhi_epi8(lower, upper), to + 64, stream);
    }
}

QK_NOINLINE void look_up_some_halves(const NestedCode &code, const uint8_t *from, int64_t count,
                                     float scale, bool is_f16, bool stream, char *to) {
    Plane planes[4];
    for (int p = 0; p < 4; ++p) planes[p] = load_plane(code.plane[p]);
    for (int64_t i = 0; i < count; i += 64, to += 128) {
        prefetch(from + i + 4096);
        Lanes<Avx512> value[4];
        look_up_64(planes, _mm512_loadu_si512(from + i), [&](__m512i bits, int quarter) {
            value[quarter].v = _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(scale));
        });
        if (is_f16) {
            Avx512::put_f16(value[0], value[1], to, stream);
            Avx512::put_f16(value[2], value[3], to + 64, stream);
        } else {
            Avx512::put_bf16(value[0], value[1], to, stream);
            Avx512::put_bf16(value[2], value[3], to + 64, stream);
        }
    }
}

// Of E4M3, which `put` stores 64 of; those among which there is a NaN are looked up.
template <class Put>
inline QK_INLINE void compute_e4m3(const NestedCode &code, const uint8_t *from, int64_t count,
                                   float scale, bool is_f16, bool stream, char *to,
                                   const Put &put) {
    const __m512 unit = _mm512_set1_ps(scale * Avx512E4m3::kUnit);
    for (int64_t i = 0; i < count; i += 64, to += 128) {
        prefetch(from + i + 4096);
        const __m512i codes = _mm512_loadu_si512(from + i);
        if (Avx512E4m3::has_nan(codes)) [[unlikely]] {
            look_up_some_halves(code, from + i, 64, scale, is_f16, stream, to);
        } else {
            put(codes, unit, stream, to);
        }
    }
}

inline QK_INLINE void look_up_group(const NestedCode &code, const uint8_t *from, int64_t count,
                                    float scale, bool is_f16, bool stream, char *to) {
    if (code.e4m3 && Avx512E4m3::multiplies(scale)) {
        const auto compute = [&](const auto &put) QK_INLINE {
            compute_e4m3(code, from, count, scale, is_f16, stream, to, put);
        };
        if (is_f16) {
            compute(Avx512E4m3::put_f16);
        } else if (Avx512E4m3::has_halfway(scale)) {
            compute(Avx512E4m3::put_bf16<true>);
        } else {
            compute(Avx512E4m3::put_bf16<false>);
        }
    } else if (count >= 256) {
        look_up_rounded(code, from, count, scale, is_f16, stream, to);
    } else {
        look_up_some_halves(code, from, count, scale, is_f16, stream, to);
    }
}

void look_up_halves(const NestedCode &code, const GroupCodes &run, bool is_f16, bool stream,
                    char *to) {
    for_each_group(run, to,
                   [&](const uint8_t *from, int64_t count, float scale, char *at)
                       QK_INLINE { look_up_group(code, from, count, scale, is_f16, stream, at); });
}

void look_up_columns(const NestedCode &code, const uint8_t (*from)[16], int64_t columns,
                     const float *const *scale, float *to, int64_t pitch) {
    Plane planes[4];
    for (int p = 0; p < 4; ++p) planes[p] = load_plane(code.plane[p]);
    for (int64_t c = 0; c < columns; c += 4, to += 4 * pitch) {
        look_up_64(planes, _mm512_loadu_si512(from[c]), [&](__m512i bits, int column) {
            const __m512 by = _mm512_loadu_ps(scale[c + column]);
            _mm512_storeu_ps(to + column * pitch, _mm512_mul_ps(_mm512_castsi512_ps(bits), by));
        });
    }
}

}  // namespace

const LookUpColumns kLookUpColumnsVbmi = look_up_columns;
const LookUpHalves kLookUpHalvesVbmi = look_up_halves;
const LookUpBytes kLookUpBytesVbmi = look_up;
const WidenNested kWidenNestedVbmi = widen;

}  // namespace qk::cpu
