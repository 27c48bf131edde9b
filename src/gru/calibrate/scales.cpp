#include "gru/calibrate/scales.hpp"

#include <math.h>

#include <initializer_list>

#include "gru/derive.hpp"

namespace qk::gru {
namespace {

bool gains_headroom(int32_t which) {
    return which == QK_GRU_X || which == QK_GRU_IH || which == QK_GRU_UPDATE_IN ||
           which == QK_GRU_RESET_IN || which == QK_GRU_NEW_IN;
}

// What the scale has to hold. A sigmoid's range is known, and a gate that stayed below 1/2 must not
// be cut there (rule 14).
Range wanted_range(const Ranges &ranges, const BuildOptions &options, int32_t which) {
    Range range = ranges.range[which];
    if (which == QK_GRU_UPDATE_OUT || which == QK_GRU_RESET_OUT) return {0.0, 1.0, true};
    if (which == QK_GRU_NEW_OUT) {
        range.min = fmin(range.min, -0.25);
        range.max = fmax(range.max, 0.25);
    }
    if ((options.flags & QK_GRU_HEADROOM) != 0 && options.quant[which].bits > 8 &&
        gains_headroom(which)) {
        range.min *= 2.0;
        range.max *= 2.0;
    }
    return range;
}

bool searches_error(const Ranges &ranges, const BuildOptions &options, int32_t which) {
    if (options.calibration != QK_GRU_CALIBRATE_MSE || ranges.histogram == nullptr) return false;
    if (which == QK_GRU_UPDATE_OUT || which == QK_GRU_RESET_OUT) return false;
    return (options.flags & QK_GRU_HEADROOM) == 0 || options.quant[which].bits <= 8 ||
           !gains_headroom(which);
}

struct Choice {
    const BuildOptions &options;
    Range range[QK_GRU_TENSOR_COUNT];
    Scales scales;

    int32_t shift(int32_t which) const { return scales.of[which].shift; }
    bool is_zero(int32_t which) const { return range[which].min >= 0.0 && range[which].max <= 0.0; }
    void keep_within(int32_t which, int32_t finest) {
        if (shift(which) <= finest) return;
        scales.of[which] =
            exponent_of_range(options.quant[which], range[which].min, range[which].max, finest);
    }
};

int32_t lower(int32_t a, int32_t b) { return a < b ? a : b; }

// The scale of the row with the largest weight; the finest where all are zeros.
int32_t coarsest_shift(const Matrix &matrix) {
    double largest = 0.0;
    for (int64_t i = 0; i < matrix.rows * matrix.count; ++i)
        largest = fmax(largest, fabs(double(matrix.values[i])));
    return largest > 0.0 ? exponent_of_range(matrix.quant, -largest, largest).shift : kFinestShift;
}

// Rule 3 bounds every derived shift. A scale is made coarser only where it is so far below the
// scale of what it becomes that none of its codes could be told from 0 there.
void keep_legal(const Matrix &w, const Matrix &r, Choice *choice) {
    const struct {
        int32_t in, out;
    } gates[] = {{QK_GRU_UPDATE_IN, QK_GRU_UPDATE_OUT},
                 {QK_GRU_RESET_IN, QK_GRU_RESET_OUT},
                 {QK_GRU_NEW_IN, QK_GRU_NEW_OUT}};
    for (const auto &gate : gates) choice->keep_within(gate.in, choice->shift(gate.out) + 31);
    choice->keep_within(QK_GRU_H, choice->shift(QK_GRU_NEW_OUT) + 31);
    for (const auto &gate : gates) {
        const bool is_new = gate.in == QK_GRU_NEW_IN;
        const int32_t scaled_by = is_new ? choice->shift(QK_GRU_RESET_OUT) : 0;  // r * hh
        choice->keep_within(QK_GRU_IH, choice->shift(gate.in) + 62);
        choice->keep_within(QK_GRU_HH, choice->shift(gate.in) + 62 - scaled_by);
    }
    choice->keep_within(QK_GRU_IH, coarsest_shift(w) + choice->scales.x_shift() + 31);
    choice->keep_within(QK_GRU_HH, coarsest_shift(r) + choice->scales.view_shift() + 31);
    // Gate inputs that never were anything but 0 take any scale that shifts can reach.
    const int32_t addends = lower(choice->shift(QK_GRU_IH), choice->shift(QK_GRU_HH));
    for (const auto &gate : gates)
        if (choice->is_zero(gate.in)) choice->keep_within(gate.in, addends + 31);
}

// The view of h needs a zero point that its shift divides; take the multiple that cuts least.
int32_t zero_for_view(const qk_gru_quant &quant, Exponent h, const Range &range, int32_t view) {
    if (quant.is_symmetric != 0) return 0;
    CodeRange codes = code_range(quant);
    int32_t step = 1 << view, below = h.zero - (h.zero - codes.min) % step;
    double top = ldexp(fmax(range.max, 0.0), h.shift);
    double bottom = ldexp(fmin(range.min, 0.0), h.shift);
    int32_t best = below;
    double least = -1.0;
    for (int32_t zero = below; zero <= below + step && zero <= codes.max; zero += step) {
        double cut = fmax(0.0, zero + top - codes.max) + fmax(0.0, codes.min - zero - bottom);
        if (least < 0.0 || cut < least) {
            least = cut;
            best = zero;
        }
    }
    return best;
}

}  // namespace

Scales choose_scales(const Ranges &ranges, const BuildOptions &options, const Matrix &w,
                     const Matrix &r) {
    Choice choice = {options, {}, {}};
    for (int32_t which = 0; which < QK_GRU_TENSOR_COUNT; ++which) {
        if (which >= QK_GRU_W && which <= QK_GRU_BR) continue;
        const Range range = choice.range[which] = wanted_range(ranges, options, which);
        const qk_gru_quant &quant = options.quant[which];
        choice.scales.of[which] = searches_error(ranges, options, which)
                                      ? exponent_of_histogram(quant, ranges.histogram[which], range)
                                      : exponent_of_range(quant, range.min, range.max);
    }
    const qk_gru_quant &h = options.quant[QK_GRU_H];
    const bool has_view = (options.flags & QK_GRU_H_VIEW_8) != 0 && h.bits > 8;
    choice.scales.h_view_shift = has_view ? h.bits - 8 : 0;
    keep_legal(w, r, &choice);
    if (has_view)
        choice.scales.of[QK_GRU_H].zero = zero_for_view(
            h, choice.scales.of[QK_GRU_H], ranges.range[QK_GRU_H], choice.scales.h_view_shift);
    return choice.scales;
}

}  // namespace qk::gru
