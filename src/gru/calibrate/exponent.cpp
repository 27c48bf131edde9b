#include "gru/calibrate/exponent.hpp"

#include <math.h>

#include "gru/derive.hpp"

namespace qk::gru {

int32_t floor_log2(double value) {
    int exponent = 0;
    frexp(value, &exponent);  // value = m * 2^exponent, m in [0.5, 1)
    return exponent - 1;
}

static int32_t shift_of_step(double step, int32_t finest) {
    const int32_t shift = step > 0.0 ? floor_log2(1.0 / step) : kZeroShift;
    return shift < finest ? shift : finest;
}

Exponent exponent_of_range(const qk_gru_quant &quant, double min, double max, int32_t finest) {
    min = fmin(min, 0.0);
    max = fmax(max, 0.0);
    if (quant.is_symmetric != 0) {
        double steps = ldexp(1.0, quant.is_unsigned != 0 ? quant.bits : quant.bits - 1);
        double widest = quant.is_unsigned != 0 ? max : fmax(max, -min);
        return {shift_of_step(widest / steps, finest), 0};
    }
    CodeRange range = code_range(quant);
    int32_t shift = shift_of_step((max - min) / ldexp(1.0, quant.bits), finest);
    double zero = range.min - floor(ldexp(min, shift));
    return {shift, int32_t(fmin(zero, range.max))};
}

int32_t quantize(double real, const qk_gru_quant &quant, Exponent exponent) {
    CodeRange range = code_range(quant);
    double code = rint(ldexp(real, exponent.shift)) + exponent.zero;
    return int32_t(fmax(range.min, fmin(range.max, code)));
}

}  // namespace qk::gru
