#include "gru/calibrate/curve.hpp"

#include <math.h>

#include "gru/derive.hpp"

namespace qk::gru {

double curve_value(Curve curve, double x) {
    return curve == Curve::kTanh ? tanh(x) : 1.0 / (1.0 + exp(-x));
}

namespace {

constexpr int32_t kSamples = 1000;        // of the density of knots
constexpr int32_t kSegmentSamples = 100;  // of each line's fit
constexpr double kSameKnot = 1e-9;
constexpr double kLn2 = 0.69314718055994530942;  // C has no name for it

struct Interval {
    double low, high;
};

// The reals that the input's codes stand for, cut at +-limit.
Interval domain(const TableSpec &spec, double limit) {
    CodeRange codes = code_range(spec.input);
    double low = ldexp(double(codes.min) - spec.input_exponent.zero, -spec.input_exponent.shift);
    double high = ldexp(double(codes.max) - spec.input_exponent.zero, -spec.input_exponent.shift);
    low = fmin(fmax(low, -limit), limit);
    high = fmin(fmax(high, -limit), limit);
    return {low, high};
}

// The seed flow weighs by the sigmoid's slope for tanh too.
double knot_weight(double x) {
    double distance = fabs(x);
    if (distance < 2.0) return 5.0 * (1.0 - distance / 2.0) + 1.0;
    double sigmoid = curve_value(Curve::kSigmoid, x);
    return 1.0 + 0.5 * sigmoid * (1.0 - sigmoid);
}

double sample_at(Interval interval, int32_t i, int32_t count) {
    return interval.low + (interval.high - interval.low) * i / (count - 1);
}

// Ends of equal shares of the weight: knots[0] = low ... knots[16] = high. The flow's total leaves
// the last sample out.
void place_knots(Interval interval, double *knots) {
    double total = 0.0;
    for (int32_t i = 0; i < kSamples - 1; ++i)
        total += knot_weight(sample_at(interval, i, kSamples));
    knots[0] = interval.low;
    double running = 0.0;
    int32_t knot = 1, count = 1;
    for (int32_t i = 0; i < kSamples && knot < kKnotSegments; ++i) {
        double x = sample_at(interval, i, kSamples);
        running += knot_weight(x);
        while (knot < kKnotSegments && running / total >= double(knot) / kKnotSegments) {
            if (x - knots[count - 1] > kSameKnot) knots[count++] = x;
            ++knot;
        }
    }
    if (interval.high - knots[count - 1] > kSameKnot || count == 1)
        knots[count++] = interval.high;
    else
        knots[count - 1] = interval.high;
    while (count < kKnotSegments + 1) {  // knots that fell together: halve the widest gap
        int32_t widest = 1;
        for (int32_t i = 2; i < count; ++i)
            if (knots[i] - knots[i - 1] > knots[widest] - knots[widest - 1]) widest = i;
        for (int32_t i = count; i > widest; --i) knots[i] = knots[i - 1];
        knots[widest] = 0.5 * (knots[widest - 1] + knots[widest + 1]);
        ++count;
    }
}

struct Line {
    double slope, intercept;
};

Line fit(Curve curve, Interval interval) {
    double mean_x = 0.0, mean_y = 0.0, xx = 0.0, xy = 0.0;
    for (int32_t i = 0; i < kSegmentSamples; ++i) {
        double x = sample_at(interval, i, kSegmentSamples);
        mean_x += x / kSegmentSamples;
        mean_y += curve_value(curve, x) / kSegmentSamples;
    }
    for (int32_t i = 0; i < kSegmentSamples; ++i) {
        double x = sample_at(interval, i, kSegmentSamples) - mean_x;
        xx += x * x;
        xy += x * (curve_value(curve, x + mean_x) - mean_y);
    }
    double slope = xx > 0.0 ? xy / xx : 0.0;
    return {slope, mean_y - slope * mean_x};
}

// Largest shift that keeps |value| * 2^shift within the output's largest code.
int32_t coefficient_shift(double largest, double code_max) {
    if (!(largest > 0.0)) return 0;
    int32_t shift = floor_log2(code_max / largest);
    return shift < 0 ? 0 : shift > 30 ? 30 : shift;
}

int32_t to_int32(double value) {
    return int32_t(fmax(double(INT32_MIN), fmin(double(INT32_MAX), value)));
}

}  // namespace

qk_gru_table build_knots(const TableSpec &spec, TableStorage *storage) {
    double knots[kKnotSegments + 1];
    Interval interval = domain(spec, spec.curve == Curve::kTanh ? 4.0 : 8.0);
    place_knots(interval, knots);

    Line lines[kKnotSegments];
    double largest_slope = 0.0, largest_intercept = 0.0;
    double zero = ldexp(double(spec.output_exponent.zero), -spec.output_exponent.shift);
    for (int32_t i = 0; i < kKnotSegments; ++i) {
        lines[i] = fit(spec.curve, {knots[i], knots[i + 1]});
        lines[i].intercept += zero;
        largest_slope = fmax(largest_slope, fabs(lines[i].slope));
        largest_intercept = fmax(largest_intercept, fabs(lines[i].intercept));
    }
    double code_max = code_range(spec.output).max;
    int32_t slope_shift = coefficient_shift(largest_slope, code_max);
    int32_t intercept_shift = coefficient_shift(largest_intercept, code_max);
    CodeRange input = code_range(spec.input);
    for (int32_t i = 0; i < kKnotSegments; ++i) {
        double threshold =
            rint(ldexp(knots[i + 1], spec.input_exponent.shift) + spec.input_exponent.zero);
        storage->threshold[i] = int32_t(fmax(input.min, fmin(input.max, threshold)));
        storage->slope[i] = to_int32(rint(ldexp(lines[i].slope, slope_shift)));
        // The flow floors here rather than rounding.
        double coefficient = rint(ldexp(lines[i].intercept, intercept_shift));
        storage->intercept[i] =
            to_int32(floor(ldexp(coefficient, spec.output_exponent.shift - intercept_shift)));
    }
    qk_gru_table table = {};
    table.kind = QK_GRU_TABLE_KNOTS;
    table.count = kKnotSegments;
    table.shift = slope_shift + spec.input_exponent.shift - spec.output_exponent.shift;
    table.threshold = storage->threshold;
    table.slope = storage->slope;
    table.intercept = storage->intercept;
    return table;
}

namespace {

constexpr int32_t kFraction = 14;

double second_derivative(Curve curve, double x) {
    double y = curve_value(curve, x);
    return curve == Curve::kTanh ? -2.0 * y * (1.0 - y * y) : y * (1.0 - y) * (1.0 - 2.0 * y);
}

// A line between two points of the curve errs to one side by up to h^2/8 f''; moving the points
// by half of that halves the largest error.
double node_value(const TableSpec &spec, double x, double width) {
    double y = curve_value(spec.curve, x);
    if (width > 0.0) y -= width * width / 16.0 * second_derivative(spec.curve, x);
    return fmax(spec.curve == Curve::kTanh ? -1.0 : 0.0, fmin(1.0, y));
}

}  // namespace

qk_gru_table build_uniform(const TableSpec &spec, TableStorage *storage) {
    // Beyond the limit the curve is within a quarter of an output step of its end.
    int32_t places = spec.output_exponent.shift + 2;
    double limit = spec.curve == Curve::kTanh ? 0.5 * (places + 1) * kLn2 : places * kLn2;
    Interval interval = domain(spec, limit);
    int32_t shift = spec.input_exponent.shift;
    int32_t first = int32_t(floor(ldexp(interval.low, shift)));
    int32_t codes = int32_t(ceil(ldexp(interval.high, shift))) - first + 1;
    qk_gru_table table = {};
    while ((codes + (1 << table.width_log2) - 1) >> table.width_log2 > kUniformSegments)
        ++table.width_log2;
    table.kind = QK_GRU_TABLE_UNIFORM;
    table.count = (codes + (1 << table.width_log2) - 1) >> table.width_log2;
    table.shift = kFraction;
    table.first = first;
    table.slope = storage->slope;
    table.intercept = storage->intercept;

    double step = ldexp(1.0, table.width_log2 - shift);
    double curved = table.width_log2 > 0 ? step : 0.0;
    double unit = ldexp(1.0, spec.output_exponent.shift + kFraction);
    double zero = ldexp(double(spec.output_exponent.zero), kFraction);
    double value = node_value(spec, ldexp(double(first), -shift), curved);
    for (int32_t i = 0; i < table.count; ++i) {
        double next = node_value(spec, ldexp(double(first), -shift) + step * (i + 1), curved);
        double from = rint(value * unit + zero), to = rint(next * unit + zero);
        storage->intercept[i] = to_int32(from);
        // Rounded down, a segment never passes the start of the next: the table is monotone.
        storage->slope[i] = to_int32(floor(ldexp(to - from, -table.width_log2)));
        value = next;
    }
    return table;
}

}  // namespace qk::gru
