// What the integer GRU asks of an instruction set: a type with lanes of int32 (lanes_of), sums of
// products in 64 bits, tables, codes as memory has them, and dot products of weights and codes. The
// type is in an unnamed namespace, so that all that is built of it stays in its own object file.
#pragma once
#include <stdint.h>

#include "cpu/gru/pack.hpp"
#include "cpu/isa.hpp"

namespace qk::cpu {

template <class Isa>
using Ints = typename Isa::Ints;  // int32
template <class Isa>
using Longs = typename Isa::Longs;  // int64, as many

// 16, or Isa::kLanes, a divisor of it, where registers are few.
template <class Isa>
constexpr int64_t lanes_of() {
    if constexpr (requires { Isa::kLanes; })
        return Isa::kLanes;
    else
        return kGruUnits;
}

// Sums of products of a panel: [row of codes][gate][unit].
using GruSums = int32_t (*)[3][kGruUnits];

template <class Isa>
concept GruShape = requires {
    {Isa::kFeature + 0u};  // bits of cpu/kernels.hpp
    {Isa::kRows + 0};      // rows of codes, at most 8, whose sums fit the registers
    {!Isa::kInPlanes};     // codes are multiplied as planes of bytes, not as words
};

// Sums, products and left shifts wrap; shifts are by the lane.
template <class Isa>
concept GruIntegers = requires(Ints<Isa> a, const int32_t *from, int32_t *to) {
    a = Ints<Isa>::splat(1);
    a = Ints<Isa>::load(from);
    a.store(to);
    a = a + a - a * a;
    a = a & a;
    a = a << a;
    a = a >> a;  // keeps the sign
    a = a >= a;  // all bits where it holds
    a = max(a, a);
    a = min(a, a);
};

// Where the instruction set rounds as it shifts: all lanes to the left, then to the right, or each
// by its own 1..31 to the right.
template <class Isa>
concept ShiftsHalfToEven = requires(Ints<Isa> a) {
    a = typename Isa::Shift(0, 8)(a);
    a = Isa::round_each(a, a);
};

// Products in 64 bits, rounded half to even to what fits 32 bits.
template <class Isa>
concept GruProducts = requires(Ints<Isa> a, Longs<Isa> sum) {
    sum = Isa::products(a, a);
    sum = sum + sum;
    a = typename Isa::LongShift(0, 8)(sum);   // all lanes to the left, then to the right
    a = Isa::round_lanes(sum, a, -128, 127);  // each by its own 1..62 to the right, then clamped
};

template <class Isa>
concept GruTables = requires(Ints<Isa> a, const uint8_t *bytes, const int32_t *words) {
    a = typename Isa::ByteTable(bytes).look_up(a);  // 256 bytes, or none
    a = Isa::look_up_16(words, a);
    Isa::gather_pairs(words, a, &a, &a);  // words 2 * a and 2 * a + 1
};

// The first `count` elements of the lanes; no others are touched.
template <class Isa>
concept GruMemory = requires(Ints<Isa> a, const uint8_t *bytes, const char *from, char *to,
                             int32_t code_bytes, int64_t count) {
    a = Isa::load_bytes(bytes);  // without a sign
    a = Isa::load_codes(from, code_bytes, count);
    Isa::store_codes(to, code_bytes, count, a);
    a = Isa::load_reals(from, count, 0.5f, -1.0f, 1.0f);  // times, then clamped; a NaN is 0
    Isa::store_reals(to, count, a, 0.5f);
};

// Codes as the dot products read them, planes `stride` bytes apart, and a panel of 48 rows of
// weights times kRows rows of codes, or 1, 2, 4: groups of 4 columns of 8 bits or 2 of 16 bits.
template <class Isa>
concept GruDots = requires(Ints<Isa> a, uint8_t *row, int64_t stride, const int8_t *weights,
                           int64_t groups, const uint8_t *const *codes, GruSums sums) {
    {Isa::code_planes(2) + 0};  // of a code of so many bytes
    Isa::store_operands(row, stride, int64_t{16}, a, 2);
    Isa::template dot<Isa::kRows>(weights, groups, codes, sums);
};

// Where products of words are summed in 64 bits at once, whatever the code's bytes: 48 sums, 16 of
// each gate, in Longs as they come.
template <class Isa>
concept DotsOfLongs = requires(const int8_t *weights, int64_t groups, const uint8_t *codes,
                               Longs<Isa> (*sums)[kGruUnits / lanes_of<Isa>()]) {
    Isa::dot_longs(weights, groups, codes, sums);
};

template <class Isa>
concept DotsOfWords = requires(const int8_t *weights, int64_t groups, const uint8_t *const *codes,
                               GruSums sums) {
    Isa::template dot_words<Isa::kRows>(weights, groups, codes, sums);
};

template <class Isa>
concept GruIsa = GruShape<Isa> && GruIntegers<Isa> && GruProducts<Isa> && GruTables<Isa> &&
    GruMemory<Isa> && GruDots<Isa> &&(DotsOfWords<Isa> || DotsOfLongs<Isa>);

}  // namespace qk::cpu
