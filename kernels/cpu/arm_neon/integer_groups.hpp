// Products of one row of x as integers with packed codes in groups of 16, 32 or 64
// (linear/gemv_groups.hpp), NEON: SDOT where the file is built for it, else products of bytes, of
// which four are added in 16 bits (4 * 15 * 128 fits). Four rows share what is loaded of x.
//
//     128 columns of a row                               SDOT    else
//     loads, byte shuffles, low and high nibbles           16      16
//     products, [0] + 256 * [1] + 65536 * [2]              32      80
//     loads of x                                            6       6
//     less zero * sum of x, as floats, scaled, added       20      20
#pragma once
#include "cpu/arm_neon/neon.hpp"
#include "cpu/linear/gemv_groups.hpp"

namespace qk::cpu {
namespace {

template <CodeKind kind>
class NeonGroups {
  public:
    using X = XPieces;
    struct Sums {
        float32x4_t of[8][4];  // [row][part of the lanes]
    };

    explicit NeonGroups(const Weight &w)
        : groups_(w.geometry), steps_(integer_steps(*w.format)), zero_(common_zero(w)) {
        int8_t entries[16] = {};
        for (int code = 0; code < 16 && kind == CodeKind::kTable; ++code) {
            entries[code] = int8_t(w.format->value(code) * steps_);
        }
        entries_ = vld1q_s8(entries);
    }

    QK_INLINE void add(const uint8_t *codes, const X &x, const char *scales, const uint8_t *zeros,
                       Sums &sums) const {
        Factors factors;
        const int parities = groups_.odd_differ() ? 2 : 1;
        for (int odd = 0; odd < parities; ++odd) prepare(scales, zeros, x.unit, odd, &factors);
        _Pragma("GCC unroll 1") for (int row = 0; row < 8; row += kTogether) {
            add_rows(codes + 64 * row, x, factors, row, parities - 1, sums);
        }
    }

    static void to_rows(const Sums &sums, float (*rows)[16]) {
        for (int row = 0; row < 8; ++row) {
            float parts[4][4];
            memcpy(parts, sums.of[row], sizeof(parts));
            for (int64_t lane = 0; lane < 16; ++lane) {
                rows[row][lane] = parts[X::part_of_lane(lane)][lane % 8 / 2];
            }
        }
    }

  private:
    static constexpr int kTogether = 4;  // rows

    // Of a chunk, as its lanes are multiplied.
    struct Factors {
        float scale[2][8][4];  // [odd][row]
        int32_t zero[2][8][4];
    };

    QK_INLINE void prepare(const char *scales, const uint8_t *zeros, float unit, int odd,
                           Factors *to) const {
        const float factor = unit / steps_;
        for (int first = 0; first < 8; first += 4) {
            float32x4x4_t scale;
            int32x4x4_t zero;
            const int32x4_t shifts = {-4 * first, -4 * first - 4, -4 * first - 8, -4 * first - 12};
            QK_QUARTERS {
                const int64_t group = groups_.group[2 * q + odd];
                const float *const of_rows = reinterpret_cast<const float *>(scales) + 8 * group;
                scale.val[q] = Neon::mul4(vld1q_f32(of_rows + first), vdupq_n_f32(factor));
                if (kind != CodeKind::kZeros) continue;
                const uint32x4_t all = vdupq_n_u32(load_as<uint32_t>(zeros, group));
                zero.val[q] =
                    vreinterpretq_s32_u32(vandq_u32(vshlq_u32(all, shifts), vdupq_n_u32(15)));
            }
            vst4q_f32(to->scale[odd][first], scale);  // transposes
            if (kind == CodeKind::kZeros) vst4q_s32(to->zero[odd][first], zero);
        }
    }

    // Byte b of a row's four words side by side.
    QK_INLINE static uint8x16_t load_piece(const uint8_t *codes) {
        const uint8x16_t places = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
        return vqtbl1q_u8(vld1q_u8(codes), places);
    }

    QK_INLINE int8x16_t nibbles(uint8x16_t bytes, int odd) const {
        const uint8x16_t codes = odd != 0 ? vshrq_n_u8(bytes, 4) : vandq_u8(bytes, vdupq_n_u8(15));
        return kind == CodeKind::kTable ? vqtbl1q_s8(entries_, codes) : vreinterpretq_s8_u8(codes);
    }

    // `unlike`: the number of factors of odd lanes.
    QK_INLINE void add_rows(const uint8_t *codes, const X &x, const Factors &factors, int row,
                            int unlike, Sums &sums) const {
        QK_UNROLL
        for (int half = 0; half < 2; ++half) {
            uint8x16_t bytes[kTogether][2];
            QK_UNROLL
            for (int i = 0; i < kTogether; ++i) {
                if (half == 0) prefetch_stream(codes + 64 * i + kAhead);
                bytes[i][0] = load_piece(codes + 64 * i + 32 * half);
                bytes[i][1] = load_piece(codes + 64 * i + 32 * half + 16);
            }
            QK_UNROLL
            for (int odd = 0; odd < 2; ++odd) {
                int32x4_t dot[kTogether];
                dots(bytes, odd, half, x, dot);
                const int part = 2 * half + odd, like = odd & unlike;
                const int32x4_t sum = vld1q_s32(x.sum[part]);
                QK_UNROLL
                for (int i = 0; i < kTogether; ++i) {
                    float32x4_t &to = sums.of[row + i][part];
                    const float32x4_t scale = vld1q_f32(factors.scale[like][row + i]);
                    if (kind == CodeKind::kZeros) {
                        const int32x4_t zero = vld1q_s32(factors.zero[like][row + i]);
                        dot[i] = vmlsq_s32(dot[i], zero, sum);
                    } else if (kind == CodeKind::kSymmetric) {
                        dot[i] = vmlsq_n_s32(dot[i], sum, zero_);
                    }
                    to = Neon::fma4(vcvtq_f32_s32(dot[i]), scale, to);
                }
            }
        }
    }

    // [0] + 256 * [1] + 65536 * [2] of the lanes of a part.
    QK_INLINE void dots(const uint8x16_t (&bytes)[kTogether][2], int odd, int half, const X &x,
                        int32x4_t (&to)[kTogether]) const {
        const auto &bytes_of_x = odd != 0 ? x.high : x.low;
        int8x16_t code[kTogether][2];
        QK_UNROLL
        for (int i = 0; i < kTogether; ++i) {
            code[i][0] = nibbles(bytes[i][0], odd);
            code[i][1] = nibbles(bytes[i][1], odd);
        }
        QK_UNROLL
        for (int place = 2; place >= 0; --place) {
            const int8x16_t first = vld1q_s8(bytes_of_x[place][2 * half]);
            const int8x16_t second = vld1q_s8(bytes_of_x[place][2 * half + 1]);
            QK_UNROLL
            for (int i = 0; i < kTogether; ++i) {
                to[i] = place == 2 ? vdupq_n_s32(0) : vshlq_n_s32(to[i], 8);
                to[i] = add_bytes(to[i], code[i][0], first, code[i][1], second);
            }
        }
    }

    // Four products of a and b and four of c and d to each dword.
    QK_INLINE static int32x4_t add_bytes(int32x4_t to, int8x16_t a, int8x16_t b, int8x16_t c,
                                         int8x16_t d) {
#if defined(__ARM_FEATURE_DOTPROD)
        return vdotq_s32(vdotq_s32(to, a, b), c, d);
#else
        const int16x8_t low =
            vmlal_s8(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vget_low_s8(c), vget_low_s8(d));
        const int16x8_t high = vmlal_high_s8(vmull_high_s8(a, b), c, d);
        return vpadalq_s16(to, vpaddq_s16(low, high));
#endif
    }

    const GroupsOfLanes groups_;
    const float steps_;
    const int zero_;  // of all groups where they have none
    int8x16_t entries_;
};

}  // namespace
}  // namespace qk::cpu
