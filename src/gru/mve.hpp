// Four units at a time on Helium (Armv8.1-M MVE, integers alone): 8-bit codes and weights whose
// every value is proven to fit 32 bits. The equations are those of cell.hpp.
#pragma once
#if defined(__ARM_FEATURE_MVE)
#include "gru/cell.hpp"
#include "gru/dot.hpp"

namespace qk::gru {

using Lanes = int32x4_t;

// Two instructions that the compiler does not find.
static inline Lanes one_lanes() {
    Lanes ones;
    __asm__("vmov.i32 %q0, #1" : "=w"(ones));
    return ones;
}
static inline Lanes four_lanes(int32_t a, int32_t b, int32_t c, int32_t d) {
    Lanes lanes;
    __asm__("vmov %q0[2], %q0[0], %1, %3\n\tvmov %q0[3], %q0[1], %2, %4"
            : "=&w"(lanes)
            : "r"(a), "r"(b), "r"(c), "r"(d));
    return lanes;
}

// The tie that VRSHL would round up to an odd code is moved below the half first. Shifts of 31
// and more give 0, as they should: |x| < 2^30.
static inline Lanes round_lanes(Lanes x, int32_t n) {
    if (n > 0) x = vsubq_s32(x, vbicq_s32(one_lanes(), vshlq_r_s32(x, -n)));
    return vrshlq_n_s32(x, -n);
}

static inline Lanes clamp_lanes(Lanes x, int32_t low, int32_t high) {
    return vminq_s32(vmaxq_s32(x, vdupq_n_s32(low)), vdupq_n_s32(high));
}

// 1 where threshold <= code, given ~code: the sign of threshold - code - 1.
static inline Lanes passed(Lanes below) {
    return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(below), 31));
}

// knot_segment() of table.hpp.
static inline uint32x4_t knot_segments(const Table &table, Lanes code) {
    int32_t half = table.half;
    if (half == 0) return vdupq_n_u32(0);
    const Lanes not_code = vmvnq_s32(code);
    const Lanes first = passed(vaddq_n_s32(not_code, table.threshold[half - 1]));
    Lanes segment = vmulq_n_s32(first, table.count - half);
    while ((half >>= 1) != 0) {
        const Lanes threshold = vldrwq_gather_shifted_offset_s32(table.threshold + half - 1,
                                                                 vreinterpretq_u32_s32(segment));
        segment = vmlaq_n_s32(segment, passed(vaddq_s32(not_code, threshold)), half);
    }
    return vreinterpretq_u32_s32(segment);
}

__attribute__((noinline, unused)) static Lanes table_lanes(const Table &table, Lanes sum) {
    Lanes value = clamp_lanes(sum, table.input_min, table.input_max);
    Lanes result;
    if (table.kind == QK_GRU_TABLE_UNIFORM) {
        const int32_t last = (table.count << table.width_log2) - 1;
        value = vsubq_n_s32(value, table.input_zero + table.first);
        value = clamp_lanes(value, 0, last);
        const Lanes segment = vshlq_r_s32(value, -table.width_log2);
        value = vsubq_s32(value, vshlq_r_s32(segment, table.width_log2));
        const uint32x4_t index = vreinterpretq_u32_s32(segment);
        value = vmulq_s32(value, vldrwq_gather_shifted_offset_s32(table.slope, index));
        value = vaddq_s32(value, vldrwq_gather_shifted_offset_s32(table.intercept, index));
        result = round_lanes(value, table.shift);
    } else {
        const uint32x4_t index = knot_segments(table, value);
        value = vsubq_n_s32(value, table.input_zero);
        value = vmulq_s32(value, vldrwq_gather_shifted_offset_s32(table.slope, index));
        result = vldrwq_gather_shifted_offset_s32(table.intercept, index);
        result = vaddq_s32(round_lanes(value, table.shift), result);
    }
    return clamp_lanes(result, table.output_min, table.output_max);
}

// W x + bw or R h + br: rows of one gate are `count` weights apart, gates `gate_stride`.
struct LinearOf {
    const int8_t *weights, *codes;
    const int64_t *offset;
    const int8_t *shift;
    int32_t count, blocks;         // of 16
    int32_t more_shift, min, max;  // bounds with the zero point removed
};

// Rows row to row + 3, their zero point removed again.
__attribute__((noinline, unused)) static Lanes linear_lanes(const LinearOf &of, int32_t row) {
    const int32_t count = of.count;
    const int8_t *codes = of.codes, *a = of.weights + row * count;
    const int8_t *b = a + count, *c = b + count, *d = c + count;
    // |offset| < 2^30: the low word is all of it.
    const int64_t *offset = of.offset + row;
    int32_t sum_a = int32_t(offset[0]), sum_b = int32_t(offset[1]);
    int32_t sum_c = int32_t(offset[2]), sum_d = int32_t(offset[3]);
    int32_t blocks = of.blocks;
    do {
        const int8x16_t value = vldrbq_s8(codes);
        sum_a = vmladavaq_s8(sum_a, value, vldrbq_s8(a));
        sum_b = vmladavaq_s8(sum_b, value, vldrbq_s8(b));
        sum_c = vmladavaq_s8(sum_c, value, vldrbq_s8(c));
        sum_d = vmladavaq_s8(sum_d, value, vldrbq_s8(d));
        codes += 16, a += 16, b += 16, c += 16, d += 16;
    } while (--blocks != 0);
    Lanes sum = four_lanes(sum_a, sum_b, sum_c, sum_d);
    const Lanes right = vnegq_s32(vaddq_n_s32(vldrbq_s32(of.shift + row), of.more_shift));
    sum = vsubq_s32(sum, vbicq_s32(one_lanes(), vshlq_s32(sum, right)));
    return clamp_lanes(vrshlq_s32(sum, right), of.min, of.max);
}

// Other models, all of them rare, take the scalar step with vector sums of products.
static inline bool runs_on_lanes(const Cell &cell) {
    return cell.ih_shifts_right != 0 && cell.hh_shifts_right != 0 && (cell.input_size & 15) == 0 &&
           (cell.hidden_size & 15) == 0;
}

__attribute__((noinline, unused)) static void units_by_four(const Cell &cell, const int8_t *x,
                                                            const int8_t *h, const int8_t *view,
                                                            int8_t *h_next) {
    const int32_t n = cell.hidden_size;
    const int32_t c = cell.input_size;
    const LinearOf input = {static_cast<const int8_t *>(cell.w),
                            x,
                            cell.ih_offset,
                            cell.w_shift,
                            c,
                            c >> 4,
                            cell.ih_shift,
                            cell.ih_min - cell.ih_zero,
                            cell.ih_max - cell.ih_zero};
    const LinearOf hidden = {static_cast<const int8_t *>(cell.r),
                             view,
                             cell.hh_offset,
                             cell.r_shift,
                             n,
                             n >> 4,
                             cell.hh_shift,
                             cell.hh_min - cell.hh_zero,
                             cell.hh_max - cell.hh_zero};
    for (int32_t unit = 0; unit < n; unit += 4) {
        Lanes ih = linear_lanes(input, unit);
        Lanes hh = linear_lanes(hidden, unit);
        Lanes in = vaddq_s32(round_lanes(ih, cell.ih_to_u), round_lanes(hh, cell.hh_to_u));
        const Lanes u = table_lanes(cell.update, vaddq_n_s32(in, cell.u_in_zero));

        ih = linear_lanes(input, n + unit);
        hh = linear_lanes(hidden, n + unit);
        in = vaddq_s32(round_lanes(ih, cell.ih_to_r), round_lanes(hh, cell.hh_to_r));
        const Lanes r = table_lanes(cell.reset, vaddq_n_s32(in, cell.r_in_zero));

        ih = linear_lanes(input, 2 * n + unit);
        hh = linear_lanes(hidden, 2 * n + unit);
        hh = vmulq_s32(vsubq_n_s32(r, cell.r_zero), hh);
        in = vaddq_s32(round_lanes(ih, cell.ih_to_n), round_lanes(hh, cell.rhh_to_n));
        const Lanes tanh = table_lanes(cell.candidate, vaddq_n_s32(in, cell.n_in_zero));

        const Lanes aligned = round_lanes(vsubq_n_s32(tanh, cell.n_zero), cell.n_to_h);
        const Lanes replaced = vmulq_s32(vsubq_s32(vdupq_n_s32(cell.u_one), u), aligned);
        const Lanes old = vsubq_n_s32(vldrbq_s32(h + unit), cell.h_zero);
        const Lanes kept = vmulq_s32(vsubq_n_s32(u, cell.u_zero), old);
        const Lanes step = round_lanes(vaddq_s32(kept, replaced), cell.u_shift);
        vstrbq_s32(h_next + unit,
                   clamp_lanes(vaddq_n_s32(step, cell.h_zero), cell.h_min, cell.h_max));
    }
}

}  // namespace qk::gru
#endif
