// a * b + c, rounded once: what exact sums are made of. The C library of mingw-w64 rounds twice.
#pragma once
#include <stdint.h>
#include <string.h>

namespace qk {

// The product is exact in double. So is the sum, but for what falls off below its last bit; that
// bit then becomes odd, so that rounding to float sees on which side of a tie the sum was.
inline float fused_in_double(float a, float b, float c) {
    const double product = double(a) * double(b), sum = product + double(c);
    const double of_c = sum - product;
    const double rest = (product - (sum - of_c)) + (double(c) - of_c);
    uint64_t bits;
    memcpy(&bits, &sum, sizeof(bits));
    const bool finite = (bits >> 52 & 0x7ff) != 0x7ff;
    if (finite && rest != 0 && bits % 2 == 0) {
        bits += (rest > 0) == (sum > 0) ? 1 : ~uint64_t{0};
        double odd;
        memcpy(&odd, &bits, sizeof(odd));
        return float(odd);
    }
    return float(sum);
}

inline float fused(float a, float b, float c) {
#if defined(QK_FMA_ROUNDS_TWICE)
    return fused_in_double(a, b, c);
#else
    return __builtin_fmaf(a, b, c);
#endif
}

}  // namespace qk
