// Builds the gate tables, once, on a host, in double; from then on they are data (rule 16).
#pragma once
#include <stdint.h>

#include "gru/calibrate/exponent.hpp"
#include "qk.h"

namespace qk::gru {

inline constexpr int32_t kKnotSegments = 16;
// 512 segments hold the error near one step of a 16-bit gate and the table near 4 kB.
inline constexpr int32_t kUniformSegments = 512;

enum class Curve : int32_t { kSigmoid, kTanh };

struct TableSpec {
    Curve curve;
    qk_gru_quant input, output;
    Exponent input_exponent, output_exponent;
};

// Room the caller owns; a table of either kind fits.
struct TableStorage {
    int32_t threshold[kKnotSegments];
    int32_t slope[kUniformSegments];
    int32_t intercept[kUniformSegments];
};

double curve_value(Curve curve, double x);

// The seed flow's 16 least-squares lines between knots (rule 17, compatible).
qk_gru_table build_knots(const TableSpec &spec, TableStorage *storage);
// Segments of 2^k codes: continuous but for less than a step, monotone, no search.
qk_gru_table build_uniform(const TableSpec &spec, TableStorage *storage);

}  // namespace qk::gru
