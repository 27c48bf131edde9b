#include "gru/calibrate/exponent.hpp"

#include <math.h>

#include "gru/derive.hpp"

namespace qk::gru {
namespace {

constexpr double kSmallestScale = 0x1p-23;  // a channel of zeros still gets a scale

}  // namespace

int32_t floor_log2(double value) {
    int exponent = 0;
    frexp(value, &exponent);  // value = m * 2^exponent, m in [0.5, 1)
    return exponent - 1;
}

Exponent exponent_of_range(const qk_gru_quant &quant, double min, double max) {
    min = fmin(min, 0.0);
    max = fmax(max, 0.0);
    if (quant.is_symmetric != 0) {
        double steps = ldexp(1.0, quant.is_unsigned != 0 ? quant.bits : quant.bits - 1);
        double widest = quant.is_unsigned != 0 ? max : fmax(max, -min);
        double scale = fmax(widest / steps, kSmallestScale);
        return {floor_log2(1.0 / scale), 0};
    }
    CodeRange range = code_range(quant);
    double scale = fmax((max - min) / ldexp(1.0, quant.bits), kSmallestScale);
    int32_t shift = floor_log2(1.0 / scale);
    double zero = range.min - floor(ldexp(min, shift));
    return {shift, int32_t(fmin(zero, range.max))};
}

int32_t quantize(double real, const qk_gru_quant &quant, Exponent exponent) {
    CodeRange range = code_range(quant);
    double code = rint(ldexp(real, exponent.shift)) + exponent.zero;
    return int32_t(fmax(range.min, fmin(range.max, code)));
}

}  // namespace qk::gru
