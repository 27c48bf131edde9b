// What an instruction set offers the kernels: 16 lanes of f32, however many registers they take.
// Kernels are templates over `class Isa`; x86_avx512/isa.hpp, x86_avx2/isa.hpp, arm_neon/isa.hpp
// and riscv_rvv/isa.hpp are the types that fit, and each kernel is instantiated in their folders.
// Everywhere lanes hold the same bits: a product and a sum round once each (f32, to nearest even),
// fma rounds once, and lanes are always folded in the same order.
#pragma once
#include <stdint.h>

#include "backend/backend.hpp"
#include "cpu/shared/nested.hpp"

#define QK_UNROLL _Pragma("GCC unroll 8")
// Where a call would cost more than the work: 16 lanes do not fit the registers of a call.
#define QK_INLINE __attribute__((always_inline))
// A function of its own, which has the hot loops: it starts at a cache line, so that their speed
// does not depend on what the linker puts before it.
#define QK_NOINLINE __attribute__((noinline, aligned(64)))

namespace qk::cpu {

template <class Isa>
using Lanes = typename Isa::Lanes;  // 16 floats
template <class Isa>
using Words = typename Isa::Words;  // 16 words of 32 bits, 8 packed 4-bit codes each
template <class Isa>
using Mask = typename Isa::Mask;  // which lanes are on
template <class Isa>
using Table = typename Isa::Table;  // 16 floats, to be looked up by 4-bit codes

// Constants: what a machine must have, and shapes that fit the registers.
template <class Isa>
concept Shape = requires {
    {Isa::kFeature + 0u};      // bits of cpu/kernels.hpp
    {Isa::kVectorBytes + 0};   // of a native register
    {Isa::kRowsTogether + 0};  // rows of packed codes that one row of x meets together
    {Isa::kTileVectors + 0};   // 16 rows of w each, in a tile of sums
    {Isa::kTileBatch + 0};     // rows of x in a tile of sums
};

// f32 by the lane.
template <class Isa>
concept Arithmetic = requires(Lanes<Isa> a, Mask<Isa> mask, const void *from, float *to,
                              const float *values, const int32_t *ends) {
    a = Isa::zero_lanes();
    a = Isa::splat(1.0f);
    a = Isa::splat_two(values);           // one number to lanes 0 to 7, the next to the others
    a = Isa::add(a, a);                   // rounded once
    a = Isa::mul(a, a);                   // rounded once
    a = Isa::fma(a, a, a);                // a * b + c, rounded once
    mask = Isa::first_lanes(int64_t{3});  // any count: none below 0, all from 16
    a = Isa::fma_where(mask, a, a, a);    // c where the mask is off
    a = Isa::where(mask, a, a);           // b where the mask is off
    a = Isa::where_past(ends, 3, a, a);   // b where a lane's number, of 16, is greater than 3
    *to = Isa::fold_lanes(a);             // 16 -> 8 -> 4 -> 2 -> 1, lane i with lane i + half
    Isa::fold_rows(&a, to);               // the same of 8 Lanes, to 8 floats
    a = Isa::load_f32(from);
    a = Isa::load_f32(from, mask);  // lanes that are off read as 0 and touch no memory
    a = Isa::load_f16(from, mask);
    a = Isa::load_bf16(from, mask);
    a = Isa::load_s8(static_cast<const uint8_t *>(from));  // 16 signed bytes
    Isa::store_f32(to, a);
};

// 4-bit codes: words of the packed layout, whose nibble `step` is column 16 * step + lane.
template <class Isa>
concept LookUps = requires(Lanes<Isa> a, Words<Isa> words, Table<Isa> table, const uint8_t *codes,
                           const float *values, char *to) {
    words = Isa::load_words(codes);
    table = Isa::load_table(values);
    table = Isa::scale_table(table, 2.0f);       // every entry rounded once
    table = Isa::lower_table(table, 2.0f);       // by so much, rounded once
    a = Isa::template look_up<3>(table, words);  // entries of nibble 3 of every word
    // 8 bytes, 16 codes in order, as floats; <the high nibble first, past the caches>
    Isa::template emit_floats<false, false>(codes, table, to);
};

// Scales of 8 rows, to f32.
template <class Isa>
concept Scales = requires(const char *from, const float *values, float *to, const Device &device) {
    Isa::widen_f16(from, to);
    Isa::widen_bf16(from, to);
    Isa::widen_nested(from, values, values, 1.0f, to);  // code * second + bias, rounded twice
    // Wider ways of this machine, or null.
    static_cast<WidenNested>(Isa::nested_widener(device));
    static_cast<LookUpBytes>(Isa::byte_lookup(device));
    static_cast<LookUpHalves>(Isa::halves_lookup(device));
    static_cast<LookUpColumns>(Isa::columns_lookup(device));
};

// What kRows rows of w have in the 8 steps of 128 columns, one number a row. Where groups straddle
// rows a row has its group's numbers up to ends[row] columns of it, then those of the group after,
// which are kRows numbers on.
template <int64_t kRows>
struct StepsOf {
    const float *scale[8];
    const float *less[8];  // is added: minus the group's zero, or minus its minimum
    int32_t at[8];         // columns of the group before the step
    const int32_t *ends;

    // Steps from `column` columns of the first group on; groups have `size` columns, 16 or more, or
    // are rows, whose steps past the end are not used.
    QK_INLINE void place(int64_t column, int64_t size, const float (*scales)[kRows],
                         const float (*of_less)[kRows]) {
        int64_t group = column / size, of_group = column % size;
        for (int64_t step = 0; step < 8; ++step, of_group += 16) {
            if (of_group >= size) ++group, of_group -= size;
            scale[step] = scales[group];
            less[step] = of_less[group];
            at[step] = int32_t(of_group);
        }
    }

    // Where groups straddle rows: the numbers of 16 rows from `row` on, out of scale[step] or
    // less[step], at a column of the step.
    template <class Isa>
    QK_INLINE Lanes<Isa> at_column(const float *of_step, int64_t step, int32_t column,
                                   int64_t row = 0) const {
        const float *const now = of_step + row;
        return Isa::where_past(ends + row, at[step] + column, Isa::load_f32(now + kRows),
                               Isa::load_f32(now));
    }
};

// Rows to columns: 16 x 16 dwords, 16 x 64 bytes, strides in bytes, and packed codes straight to
// weights.
template <class Isa>
concept Transposes = requires(const uint8_t *const (&codes)[2], Table<Isa> table,
                              const StepsOf<16> &steps, const void *from, void *to, float *out,
                              const uint8_t *bytes, uint8_t (*columns)[16]) {
    Isa::transpose_block(from, int64_t{64}, to, int64_t{64});
    Isa::transpose_bytes(bytes, int64_t{64}, columns);  // 16 rows of 64 bytes
    // <zeros, cuts>: groups that straddle rows end within a step
    Isa::template look_up_transposed<true, false>(codes, table, steps, out, int64_t{16});
};

// f32 to 16 bits, rounded to the nearest, ties to even, a NaN quiet; `stream` is past the caches.
template <class Isa>
concept Stores = requires(Lanes<Isa> a, uint16_t *halves, const char *from, char *to, bool stream) {
    Isa::narrow_f16(a, halves);
    Isa::narrow_bf16(a, halves);
    Isa::narrow_two_f16(a, a, halves);
    Isa::narrow_two_bf16(a, a, halves);
    Isa::put_f16(a, a, to, stream);
    Isa::put_bf16(a, a, to, stream);
    Isa::stream_64(from, to);
    Isa::end_stream();
};

// Runs of codes straight to 16-bit and 32-bit values, and a packed chunk of 128 codes of a row.
template <class Isa>
concept Emits = requires(Words<Isa> words, typename Isa::FloatTable floats,
                         typename Isa::HalfTable halves, const uint8_t *codes, uint8_t *packed,
                         const uint16_t *half_values, const float *values,
                         const typename Isa::HalfTable (&quarters)[4], char *to) {
    floats = Isa::load_floats_table(values);
    halves = Isa::load_halves_table(half_values);
    Isa::template emit_floats<true, true>(codes, floats, to);    // 8 bytes, 16 codes
    Isa::template emit_halves<true, true>(codes, halves, to);    // 16 bytes, 32 codes
    Isa::template emit_step<0, true>(words, floats, to);         // nibble 0
    Isa::template emit_chunk_halves<true>(words, quarters, to);  // a table for 32 columns
    (typename Isa::WideTable(values)).look_up(codes);            // 256 floats, 16 bytes
    Isa::pack_chunk(codes, packed);
    Isa::unpack_chunk(codes, packed);
};

template <class Isa>
concept InstructionSet = Shape<Isa> && Arithmetic<Isa> && LookUps<Isa> && Scales<Isa> &&
    Transposes<Isa> && Stores<Isa> && Emits<Isa>;

// The compiler's vector types at the least width of x86-64 and aarch64, for kernels that need no
// more; other processors run what the compiler makes of them.
namespace {
struct Generic {
    static constexpr uint32_t kFeature = 0;
    static constexpr int kVectorBytes = 16;
};
}  // namespace

// To the first cache.
static inline void prefetch(const uint8_t *address) { __builtin_prefetch(address, 0, 3); }
// To the second cache: weights that are read once would push x, which is read for every row, out of
// the first.
static inline void prefetch_stream(const uint8_t *address) { __builtin_prefetch(address, 0, 2); }
// As much as is taken at a time from a stream that is read slowly, `ahead` bytes further on.
static inline void prefetch_lines(const void *at, int64_t bytes, int64_t ahead) {
    const uint8_t *const from = static_cast<const uint8_t *>(at) + ahead;
    for (int64_t i = 0; i < bytes; i += 64) prefetch(from + i);
}

// The eight steps of a word, each with its number as a constant: body.operator()<step>().
template <class Body>
QK_INLINE static inline void for_each_step(const Body &body) {
    body.template operator()<0>();
    body.template operator()<1>();
    body.template operator()<2>();
    body.template operator()<3>();
    body.template operator()<4>();
    body.template operator()<5>();
    body.template operator()<6>();
    body.template operator()<7>();
}

}  // namespace qk::cpu
