// Codes of NF4 and FP4_BNB without a branch. The thresholds are found, at compile time, by asking
// the rule itself (format/quantizer.hpp) where its codes change.
//
// NF4: a polynomial guesses how many thresholds are below a value, which is right or one too few,
// and one comparison with the next threshold decides. The guess is checked at compile time.
// FP4_BNB: between powers of two and halfway to the next there is one threshold of magnitudes at
// most, so exponent and first bit of a magnitude say how many are below and which may be.
#pragma once
#include "cuda/prim/mma.cuh"
#include "format/quantizer.hpp"

namespace qk::cuda {
namespace {

// Numbers as floats are ordered: 0 for 0, negative for negative ones.
constexpr float ordered_float(int64_t number) {
    return f32_from_bits(number < 0 ? uint32_t(-(number + 1)) | 0x80000000u : uint32_t(number));
}

// The largest number from `low` on, as ordered_float counts, whose rank is not above `rank`.
template <class RankOf>
constexpr float last_of(int rank, int64_t low, const RankOf &rank_of) {
    int64_t high = 0x7f800000;
    while (high - low > 1) {
        const int64_t middle = (low + high) >> 1;
        (rank_of(ordered_float(middle)) <= rank ? low : high) = middle;
    }
    return ordered_float(low);
}

// ---- NF4, whose codes are ranks

constexpr float kMagic = 8388608.0f;  // 2^23: a sum's low bits are the nearest integer
constexpr int kRanks = 16;

// On the GPU one instruction, which nothing but the guess may use: its room for errors covers both
// roundings.
QK_HD constexpr float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
    if (!__builtin_is_constant_evaluated()) return __fmaf_rn(a, b, c);
#endif
    return a * b + c;
}

// Bits 2 to 5: the rank of s or one less. They are the integer part of a rising polynomial that is
// within half of a step of i + 1/2 at the threshold behind rank i, the bits below are its fraction.
QK_HD constexpr float guess(float s) {
    return fused(fused(fused(-12.86781f, s, 2.15907f), s, 42.79737f), s, kMagic + 29);
}

// The largest value of every rank; none is larger than the last one's.
struct Thresholds {
    float last[kRanks];
};

constexpr Thresholds make_thresholds() {
    Thresholds thresholds = {};
    for (int rank = 0; rank < kRanks; ++rank) {
        thresholds.last[rank] =
            rank + 1 < kRanks ? last_of(rank, -0x7f800000, nf4_code) : f32_from_bits(0x7f800000u);
    }
    return thresholds;
}

// At each threshold the guess is within a quarter of a step, so products and sums may be fused or
// not; at the largest ones it stays at the last rank.
constexpr bool guesses_well(const Thresholds &thresholds) {
    for (int rank = 0; rank + 1 < kRanks; ++rank) {
        const float guessed = guess(thresholds.last[rank]) - kMagic - float(4 * rank);
        if (guessed < 1 || guessed > 3) return false;
    }
    const float most = kMagic + float(4 * (kRanks - 1));
    for (int i = 0; i < 512; ++i) {
        const float step = 2.0f / 512, s = -1 + step * float(i);
        const float here = guess(s), next = guess(s + step);
        if (next < (here < most ? here : most) || next > most + 3) return false;
    }
    return guess(-1) >= kMagic;
}

// Four times the code of the s(i), i = 0..3, at bit 4 i: the guess's nearest integer is four times
// the guess, of which two bits are behind the point.
template <class Numbers>
__device__ uint32_t four_codes(const Thresholds &thresholds, const Numbers &s) {
    uint32_t word = 0;
#pragma unroll
    for (int i = 3; i >= 0; --i) {
        const float value = s(i);
        const uint32_t at = __float_as_uint(guess(value)) & (kRanks - 1) * 4;
        word = word * 16 + at;
        add_if_above<4>(
            word, value,
            *reinterpret_cast<const float *>(reinterpret_cast<const char *>(thresholds.last) + at));
    }
    return word;
}

template <class Numbers>
__device__ uint32_t nf4_codes(const Thresholds &thresholds, const Numbers &s) {
    const uint32_t low = four_codes(thresholds, s);
    return low / 4 + (four_codes(thresholds, [&](int i) { return s(i + 4); }) << 14);
}

// ---- FP4_BNB, whose codes are ranks of magnitudes and a sign

constexpr int kMagnitudes = 8;

constexpr int magnitude_rank(float s) {  // s is not negative
    int rank = 0;
    while (fp4_bnb_order(rank) != fp4_bnb_code(s)) ++rank;
    return rank < kMagnitudes ? 0 : rank - kMagnitudes;
}

// Magnitudes order as these integers do, with a sign as the last bit: on a threshold a negative
// number has the larger magnitude's code already.
QK_HD constexpr uint32_t magnitude_key(uint32_t bits) { return bits << 1 | bits >> 31; }

// Magnitudes that share exponent and first bit: how many thresholds are below, and the key of the
// one that is not.
struct Cell {
    uint32_t last, rank;
};

// From 2^-9, below which all magnitudes have rank 0, to 2.
constexpr int kFirstCell = (127 - 9) * 2, kCellCount = 20, kLastCell = kFirstCell + kCellCount;
static_assert(kLastCell == 256);

struct Cells {
    Cell cell[kCellCount];
};
struct AllCells {
    Cell cell[kLastCell];
};

// The bits of the largest magnitude of each rank but the last.
struct Lasts {
    uint32_t bits[kMagnitudes - 1];
};

constexpr Lasts make_lasts() {
    Lasts lasts = {};
    for (int rank = 0; rank + 1 < kMagnitudes; ++rank) {
        lasts.bits[rank] = f32_bits(last_of(rank, 0, magnitude_rank));
    }
    return lasts;
}
constexpr Lasts kLasts = make_lasts();

constexpr Cells make_cells() {
    Cells cells = {};
    for (int i = 0; i < kCellCount; ++i) {
        cells.cell[i] = {~0u, 0};
        for (int rank = 0; rank + 1 < kMagnitudes; ++rank) {
            const uint32_t last = kLasts.bits[rank], at = last >> 22;
            if (at < uint32_t(kFirstCell + i)) ++cells.cell[i].rank;
            if (at == uint32_t(kFirstCell + i)) cells.cell[i].last = magnitude_key(last);
        }
    }
    return cells;
}

// Whether no cell has two thresholds and none is below the first; whether codes of negative numbers
// are those of positive ones with another sign bit, from a threshold on instead of above it.
constexpr bool has_cells() {
    for (int rank = 0; rank + 1 < kMagnitudes; ++rank) {
        const uint32_t last = kLasts.bits[rank];
        const float on = f32_from_bits(last), before = f32_from_bits(last - 1);
        const uint32_t lower = rank == 0 ? kFirstCell - 1 : kLasts.bits[rank - 1] >> 22;
        if (last >> 22 <= lower || last >> 22 >= uint32_t(kLastCell)) return false;
        if (fp4_bnb_code(-before) != (fp4_bnb_code(before) ^ 8)) return false;
        if (fp4_bnb_code(-on) != (fp4_bnb_code(f32_from_bits(last + 1)) ^ 8)) return false;
    }
    return true;
}

// The codes of the s(i), i = 0..7, below 2. `above_zero`: bit 3 of a nibble where a number is.
template <class Numbers>
__device__ uint32_t fp4_codes(const AllCells &cells, const Numbers &s, uint32_t above_zero) {
    constexpr uint32_t kLow =
        fp4_bnb_order(7) | fp4_bnb_order(6) << 8 | fp4_bnb_order(5) << 16 | fp4_bnb_order(4) << 24;
    constexpr uint32_t kHigh =
        fp4_bnb_order(3) | fp4_bnb_order(2) << 8 | fp4_bnb_order(1) << 16 | fp4_bnb_order(0) << 24;
    uint32_t ranks = 0;  // of even numbers in the lower half, of odd ones in the upper one
#pragma unroll
    for (int place = 7; place >= 0; --place) {
        const int i = place % 4 * 2 + place / 4;
        const uint32_t bits = __float_as_uint(s(i)), key = __funnelshift_l(bits, bits, 1);
        const Cell cell = cells.cell[key >> 23];
        ranks = ranks * 16 + cell.rank;
        add_if_above<1>(ranks, key, cell.last);
    }
    const uint32_t even = byte_permute(kLow, kHigh, ranks);
    const uint32_t odd = byte_permute(kLow << 4, kHigh << 4, ranks >> 16);
    return (even | odd) ^ above_zero;
}

}  // namespace
}  // namespace qk::cuda
