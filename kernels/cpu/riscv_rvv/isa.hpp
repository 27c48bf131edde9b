// RISC-V's vectors as `class Isa`: 16 lanes of f32 are a vector of the compiler's, which becomes
// instructions for 16 lanes whatever the length of the registers. What has no operator for it, a
// look-up, goes through memory.
#pragma once
#include "cpu/kernels.hpp"
#include "cpu/riscv_rvv/vectors.hpp"
#include "cpu/shared/fallbacks.hpp"

namespace qk::cpu {
namespace {

struct RvvBase {
    static constexpr uint32_t kFeature = kRvv;
    static constexpr int kVectorBytes = 16;
    static constexpr int kRowsTogether = 1;
    static constexpr int kTileVectors = 1, kTileBatch = 6;  // sums that fit 32 short registers

    typedef float Floats __attribute__((vector_size(64)));
    typedef int32_t Signed __attribute__((vector_size(64)));
    typedef uint32_t Unsigned __attribute__((vector_size(64)));

    struct Lanes {  // 16 floats
        Floats v;
    };
    struct Words {  // 16 32-bit words, a chunk of packed codes
        Unsigned v;
    };
    struct Mask {
        int64_t count;  // of lanes that are on, from the first; may be more or less than there are
    };
    using Table = Lanes;  // 16 floats

    static Lanes splat(float value) { return {value - Floats{}}; }  // which keeps the sign of -0
    static Lanes splat_two(const float *two) {
        return {__builtin_shufflevector(splat(two[0]).v, splat(two[1]).v, 0, 1, 2, 3, 4, 5, 6, 7,
                                        16, 17, 18, 19, 20, 21, 22, 23)};
    }
    static Lanes zero_lanes() { return {Floats{}}; }
    static Lanes add(const Lanes &a, const Lanes &b) { return {a.v + b.v}; }
    static Lanes mul(const Lanes &a, const Lanes &b) { return {a.v * b.v}; }
    static Lanes fma(const Lanes &a, const Lanes &b, const Lanes &c) {
        return {__builtin_elementwise_fma(a.v, b.v, c.v)};
    }
    static Mask first_lanes(int64_t count) { return {count}; }
    static Lanes where(Mask mask, const Lanes &a, const Lanes &b) {
        constexpr Signed lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        return {lane < int32_t(lanes_on(mask)) ? a.v : b.v};
    }
    static Lanes where_past(const int32_t *ends, int32_t column, const Lanes &a, const Lanes &b) {
        Signed end;
        memcpy(&end, ends, sizeof(end));
        return {end <= column ? a.v : b.v};
    }
    static Lanes fma_where(Mask mask, const Lanes &a, const Lanes &b, const Lanes &c) {
        constexpr Signed lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        return {lane < int32_t(lanes_on(mask)) ? fma(a, b, c).v : c.v};
    }

    // Numbers of any alignment; f32 of a `float *` have theirs.
    static Lanes load_f32(const float *from) { return {load_16<Floats>(from)}; }
    static Lanes load_f32(const void *from) {
        Lanes r;
        memcpy(&r.v, from, sizeof(r.v));
        return r;
    }
    static Lanes load_f32(const void *from, Mask mask) {
        float some[16] = {};
        memcpy(some, from, lanes_on(mask) * 4);
        return load_f32(some);
    }
    static Lanes load_f16(const void *from, Mask mask) {
        uint16_t some[16] = {};
        memcpy(some, from, lanes_on(mask) * 2);
        return f16_to_f32(some);
    }
    static Lanes load_bf16(const void *from, Mask mask) {
        uint16_t some[16] = {};
        memcpy(some, from, lanes_on(mask) * 2);
        return bf16_to_f32(some);
    }
    static Lanes load_s8(const uint8_t *from) {  // 16 bytes
        typedef int8_t Bytes __attribute__((vector_size(16)));
        Bytes bytes;
        memcpy(&bytes, from, sizeof(bytes));
        return {__builtin_convertvector(bytes, Floats)};
    }
    static void store_f32(float *to, const Lanes &a) {
        typedef Floats AtFloats __attribute__((aligned(4), may_alias));
        *reinterpret_cast<AtFloats *>(to) = a.v;
    }

    static Words load_words(const uint8_t *from) {
        Words r;
        memcpy(&r.v, from, sizeof(r.v));
        return r;
    }
    static Table load_table(const float *entries) { return load_f32(entries); }
    static Table scale_table(const Table &table, float scale) { return {table.v * scale}; }
    static Table lower_table(const Table &table, float by) { return {table.v - by}; }
    template <int step>
    QK_INLINE static Lanes look_up(const Table &table, const Words &words) {
        return look_up_codes(table, words.v >> (4 * step) & 15);
    }
    // 8 bytes, 16 codes in order -> 16 floats.
    template <bool high_first, bool stream>
    static void emit_floats(const uint8_t *codes, const Table &table, char *to) {
        typedef uint8_t Bytes8 __attribute__((vector_size(8)));
        constexpr uint8_t even = high_first ? 4 : 0, odd = high_first ? 0 : 4;
        constexpr Bytes16 shifts = {even, odd, even, odd, even, odd, even, odd,
                                    even, odd, even, odd, even, odd, even, odd};
        Bytes8 bytes;
        memcpy(&bytes, codes, sizeof(bytes));
        const Bytes16 twice =
            __builtin_shufflevector(bytes, bytes, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
        const Bytes16 index = twice >> shifts & 15;
        const Lanes lanes = look_up_codes(table, __builtin_convertvector(index, Unsigned));
        memcpy(to, &lanes.v, sizeof(lanes.v));
    }

    // 16 -> 8 -> 4 -> 2 -> 1, lane i with lane i + half.
    static float fold_lanes(const Lanes &lanes) {
        float sum[16];
        store_f32(sum, lanes);
        size_t half = 8;
        vfloat32m2_t low = __riscv_vle32_v_f32m2(sum, half);
        low = __riscv_vfadd(low, __riscv_vle32_v_f32m2(sum + half, half), half);
        for (half /= 2; half > 0; half /= 2)
            low = __riscv_vfadd(low, __riscv_vslidedown(low, half, half), half);
        return __riscv_vfmv_f(low);
    }
    static void fold_rows(const Lanes *rows, float *to) {
        for (int row = 0; row < 8; ++row) to[row] = fold_lanes(rows[row]);
    }

    // 8 scales, one a row.
    static void widen_f16(const char *from, float *to) { widen_8<f16_to_f32>(from, to); }
    static void widen_bf16(const char *from, float *to) { widen_8<bf16_to_f32>(from, to); }
    // 8 scales from 8 codes: code * second + bias.
    static void widen_nested(const char *from, const float *code, const float *second, float bias,
                             float *to) {
        for (int row = 0; row < 8; ++row) {
            const float product = code[uint8_t(from[row])] * second[row];
            to[row] = product + bias;
        }
    }

    // What add_products looks up in: entries that are the same for every group.
    struct Planes {
        alignas(64) float entries[16];
    };
    static Planes load_planes(const float *entries) {
        Planes r;
        memcpy(r.entries, entries, sizeof(r.entries));
        return r;
    }
    // Adds the 128 products of a chunk of a row to its sum, of each row of x; a group has kSteps
    // steps, and its scale is 8 floats after the one before.
    template <int kSteps, int kCount>
    QK_INLINE static void add_products(const Planes &planes, const uint8_t *codes,
                                       const float *scales, const float *const (&x)[kCount],
                                       Lanes *const (&sum)[kCount]) {
        for (int j = 0; j < kCount; ++j) {
            add_row_of_x<kSteps>(planes, codes, scales, x[j], *sum[j]);
        }
    }

  private:
    template <int kSteps>
    QK_INLINE static void add_row_of_x(const Planes &planes, const uint8_t *codes,
                                       const float *scales, const float *x, Lanes &sum) {
        float *const to = reinterpret_cast<float *>(&sum.v);
        if (!is_aligned(codes) || !is_aligned(scales) || !is_aligned(x))
            return add_copied<kSteps>(planes, codes, scales, x, to);
        add_aligned<kSteps>(planes, codes, scales, x, to);
    }

    template <int kSteps>
    QK_INLINE static void add_aligned(const Planes &planes, const uint8_t *codes,
                                      const float *scales, const float *x, float *sum) {
        with_lanes_16([&]<int registers>() QK_INLINE {
            using V = Lanes16<registers>;
            const typename V::Floats entries = V::load(planes.entries);
            typename V::Floats total = V::load(sum), table = entries;
            typename V::Words words = V::load(reinterpret_cast<const uint32_t *>(codes));
            QK_UNROLL
            for (int step = 0; step < 8; ++step) {
                if (step % kSteps == 0)
                    table = __riscv_vfmul(entries, scales[step / kSteps * 8], kLanes16);
                const typename V::Words code = step < 7 ? __riscv_vand(words, 15, kLanes16) : words;
                total = __riscv_vfmacc(total, __riscv_vrgather(table, code, kLanes16),
                                       V::load(x + 16 * step), kLanes16);
                words = __riscv_vsrl(words, 4, kLanes16);
            }
            __riscv_vse32(sum, total, kLanes16);
        });
    }
    template <int kSteps>
    QK_NOINLINE static void add_copied(const Planes &planes, const uint8_t *codes,
                                       const float *scales, const float *x, float *sum) {
        alignas(64) uint8_t some_codes[64];
        alignas(64) float some_scales[8 / kSteps * 8], some_x[128];
        memcpy(some_codes, codes, sizeof(some_codes));
        for (int group = 0; group < 8 / kSteps; ++group)
            memcpy(some_scales + 8 * group, reinterpret_cast<const char *>(scales) + 32 * group, 4);
        memcpy(some_x, static_cast<const void *>(x), sizeof(some_x));
        add_aligned<kSteps>(planes, some_codes, some_scales, some_x, sum);
    }

    static size_t lanes_on(Mask mask) {
        return size_t(mask.count > 16 ? 16 : mask.count < 0 ? 0 : mask.count);
    }
    template <class Vector, class Number>
    static Vector load_16(const Number *from) {
        typedef Vector AtNumbers __attribute__((aligned(alignof(Number)), may_alias));
        return *reinterpret_cast<const AtNumbers *>(from);
    }
    QK_INLINE static Lanes look_up_codes(const Table &table, Unsigned codes) {
        alignas(64) float entries[16];
        alignas(64) uint32_t places[16];
        codes *= 4;
        memcpy(entries, &table.v, sizeof(entries));
        memcpy(places, &codes, sizeof(places));
        using V = Lanes16<4>;
        __riscv_vse32(entries, V::look_up(entries, V::load(places)), kLanes16);
        return load_f32(entries);
    }

    // Their numbers are scaled up by a product, subnormal ones too; infinities and NaN keep theirs.
    static Lanes f16_to_f32(const uint16_t *from) {
        const Unsigned half = __builtin_convertvector(load_halves(from), Unsigned);
        const Unsigned magnitude = (half & 0x7fff) << 13;
        const Floats scaled = Floats(magnitude) * 0x1p112f;
        const Unsigned bits = (half & 0x7c00) == 0x7c00 ? magnitude | 0x7f800000 : Unsigned(scaled);
        return {Floats(bits | (half & 0x8000) << 16)};
    }
    static Lanes bf16_to_f32(const uint16_t *from) {
        return {Floats(__builtin_convertvector(load_halves(from), Unsigned) << 16)};
    }
    typedef uint16_t Halves __attribute__((vector_size(32)));
    static Halves load_halves(const uint16_t *from) { return load_16<Halves>(from); }

    template <Lanes (*widen)(const uint16_t *)>
    static void widen_8(const char *from, float *to) {
        uint16_t some[16] = {};
        memcpy(some, from, 16);
        const Lanes wide = widen(some);
        memcpy(to, &wide.v, 32);
    }
};

// Internal linkage, and with it that of every template over it.
struct Rvv : Fallbacks<RvvBase> {};

static_assert(Shape<Rvv> && Arithmetic<Rvv> && LookUps<Rvv> && Scales<Rvv>);

}  // namespace
}  // namespace qk::cpu
