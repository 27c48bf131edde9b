// The GRU on RISC-V's vectors: loads part the columns of a group, two products of bytes are added
// in 16 bits where they fit, others in 32. All else is the compiler's vectors of 16 lanes.
#include "cpu/gru/run.hpp"
#include "cpu/kernels.hpp"
#include "cpu/riscv_rvv/vectors.hpp"

namespace qk::cpu {
namespace {

struct GruRvv {
    static constexpr uint32_t kFeature = kRvv;
    static constexpr int kRows = 1;  // the sums of three gates are 12 of the shortest registers
    static constexpr bool kInPlanes = true;

    typedef int32_t Signed __attribute__((vector_size(64)));
    typedef uint32_t Unsigned __attribute__((vector_size(64)));
    typedef int64_t Wide __attribute__((vector_size(128)));
    typedef uint64_t WideUnsigned __attribute__((vector_size(128)));

    struct Ints {
        Signed v;

        QK_INLINE static Ints splat(int32_t value) { return {Signed{} + value}; }
        QK_INLINE static Ints load(const int32_t *from) {
            Ints r;
            memcpy(&r.v, __builtin_assume_aligned(from, 4), sizeof(r.v));
            return r;
        }
        QK_INLINE void store(int32_t *to) const {
            memcpy(__builtin_assume_aligned(to, 4), &v, sizeof(v));
        }
        QK_INLINE friend Ints operator+(const Ints &a, const Ints &b) {
            return {Signed(Unsigned(a.v) + Unsigned(b.v))};
        }
        QK_INLINE friend Ints operator-(const Ints &a, const Ints &b) {
            return {Signed(Unsigned(a.v) - Unsigned(b.v))};
        }
        QK_INLINE friend Ints operator*(const Ints &a, const Ints &b) {
            return {Signed(Unsigned(a.v) * Unsigned(b.v))};
        }
        QK_INLINE friend Ints operator&(const Ints &a, const Ints &b) { return {a.v & b.v}; }
        QK_INLINE friend Ints operator<<(const Ints &a, const Ints &b) {
            return {Signed(Unsigned(a.v) << Unsigned(b.v))};
        }
        QK_INLINE friend Ints operator>>(const Ints &a, const Ints &b) { return {a.v >> b.v}; }
        QK_INLINE friend Ints operator>=(const Ints &a, const Ints &b) { return {a.v >= b.v}; }
        QK_INLINE friend Ints max(const Ints &a, const Ints &b) {
            return {__builtin_elementwise_max(a.v, b.v)};
        }
        QK_INLINE friend Ints min(const Ints &a, const Ints &b) {
            return {__builtin_elementwise_min(a.v, b.v)};
        }
    };
    struct Longs {
        Wide v;

        QK_INLINE friend Longs operator+(const Longs &a, const Longs &b) { return {a.v + b.v}; }
    };

    QK_INLINE static Longs products(const Ints &a, const Ints &b) {
        return {__builtin_convertvector(a.v, Wide) * __builtin_convertvector(b.v, Wide)};
    }
    // Half to even, as Round of gru/gates.hpp.
    struct LongShift {  // the result fits 32 bits
        int64_t left, right;

        LongShift(int32_t left_by, int32_t right_by) : left(left_by), right(right_by) {}
        QK_INLINE Ints operator()(const Longs &x) const {
            const Wide up = Wide(WideUnsigned(x.v) << uint64_t(left));
            if (right == 0) return {__builtin_convertvector(up, Signed)};
            return {__builtin_convertvector(half_to_even(up, Wide{} + right), Signed)};
        }
    };
    // Each lane by its own shift of 1..62, then clamped.
    QK_INLINE static Ints round_lanes(const Longs &x, const Ints &shift, int32_t low,
                                      int32_t high) {
        const Wide wide = half_to_even(x.v, __builtin_convertvector(shift.v, Wide));
        const Wide above = __builtin_elementwise_max(wide, Wide{} + low);
        return {__builtin_convertvector(__builtin_elementwise_min(above, Wide{} + high), Signed)};
    }

    // Tables are in memory, at 4 times the index, or 8 times where entries are pairs.
    struct ByteTable {
        const uint8_t *bytes;

        explicit ByteTable(const uint8_t *from) : bytes(from) {}
        QK_INLINE Ints look_up(const Ints &index) const {
            uint32_t at[16];
            uint8_t found[16];
            memcpy(at, &index.v, sizeof(at));
            const vuint32m4_t places = __riscv_vle32_v_u32m4(at, kLanes16);
            __riscv_vse8(found, __riscv_vluxei32_v_u8m1(bytes, places, kLanes16), kLanes16);
            return load_bytes(found);
        }
    };
    QK_INLINE static Ints look_up_16(const int32_t *table, const Ints &index) {
        return look_up_words(table, index + index + index + index);
    }
    QK_INLINE static void gather_pairs(const int32_t *pairs, const Ints &index, Ints *first,
                                       Ints *second) {
        const Ints places = index << Ints::splat(3);
        *first = look_up_words(pairs, places);
        *second = look_up_words(pairs + 1, places);
    }

    QK_INLINE static Ints load_bytes(const uint8_t *from) { return widen<uint8_t>(from); }
    QK_INLINE static Ints load_codes(const char *from, int32_t bytes, int64_t count) {
        alignas(16) char some[32] = {};
        if (count < kGruUnits) from = copied(some, from, count * bytes);
        return bytes == 1 ? widen<int8_t>(from) : widen<int16_t>(from);
    }
    QK_INLINE static void store_codes(char *to, int32_t bytes, int64_t count, const Ints &a) {
        if (bytes == 1) return narrow<int8_t>(to, a, count);
        narrow<int16_t>(to, a, count);
    }
    // gru::real_to_code without the zero point.
    QK_INLINE static Ints load_reals(const char *from, int64_t count, float factor, float low,
                                     float high) {
        float some[16] = {};
        int32_t codes[16];
        copied(reinterpret_cast<char *>(some), from, count * 4);
        vfloat32m4_t x = __riscv_vfmul(__riscv_vle32_v_f32m4(some, kLanes16), factor, kLanes16);
        x = __riscv_vfmerge(x, 0.0f, __riscv_vmfne(x, x, kLanes16), kLanes16);
        x = __riscv_vfmin(__riscv_vfmax(x, low, kLanes16), high, kLanes16);
        __riscv_vse32(codes, __riscv_vfcvt_x_f_v_i32m4_rm(x, __RISCV_FRM_RNE, kLanes16), kLanes16);
        return Ints::load(codes);
    }
    QK_INLINE static void store_reals(char *to, int64_t count, const Ints &a, float factor) {
        typedef float Floats __attribute__((vector_size(64)));
        const Floats reals = __builtin_convertvector(a.v, Floats) * factor;
        memcpy(to, &reals, size_t(count) * 4);
    }

    // Codes as signed bytes: one plane, or code >> 8 and (code & 255) - 128.
    QK_INLINE static int code_planes(int32_t code_bytes) { return code_bytes; }
    QK_INLINE static void store_operands(uint8_t *row, int64_t plane_stride, int64_t index,
                                         const Ints &code, int planes) {
        char *const to = reinterpret_cast<char *>(row + index);
        if (planes == 1) return narrow<int8_t>(to, code, kGruUnits);
        narrow<int8_t>(to, code >> Ints::splat(8), kGruUnits);
        narrow<int8_t>(to + plane_stride, code - Ints::splat(128), kGruUnits);
    }

    // Of bytes: four columns of 16 units a gate, by their four codes.
    template <int rows>
    QK_NOINLINE static void dot(const int8_t *weights, int64_t groups, const uint8_t *const *codes,
                                GruSums sums) {
        add_groups(weights, groups, codes[0], sums[0],
                   [](vint32m4_t sum, vint8m1x4_t w, const int8_t *x) QK_INLINE {
            sum = __riscv_vwadd_wv(sum, product<0>(w, x), kLanes16);
            sum = __riscv_vwadd_wv(sum, product<1>(w, x), kLanes16);
            sum = __riscv_vwadd_wv(sum, product<2>(w, x), kLanes16);
            return __riscv_vwadd_wv(sum, product<3>(w, x), kLanes16);
        });
    }
    // The same where two products fit 16 bits.
    template <int rows>
    QK_NOINLINE static void dot_pairs(const int8_t *weights, int64_t groups,
                                      const uint8_t *const *codes, GruSums sums) {
        add_groups(weights, groups, codes[0], sums[0],
                   [](vint32m4_t sum, vint8m1x4_t w, const int8_t *x) QK_INLINE {
            const vint16m2_t low =
                __riscv_vwmacc(product<0>(w, x), x[1], __riscv_vget_v_i8m1x4_i8m1(w, 1), kLanes16);
            const vint16m2_t high =
                __riscv_vwmacc(product<2>(w, x), x[3], __riscv_vget_v_i8m1x4_i8m1(w, 3), kLanes16);
            return __riscv_vwadd_wv(__riscv_vwadd_wv(sum, low, kLanes16), high, kLanes16);
        });
    }
    // Of words: two columns.
    template <int rows>
    QK_NOINLINE static void dot_words(const int8_t *weights, int64_t groups,
                                      const uint8_t *const *codes, GruSums sums) {
        const int16_t *w = reinterpret_cast<const int16_t *>(weights);
        const int16_t *x = reinterpret_cast<const int16_t *>(codes[0]);
        vint32m4_t u = __riscv_vmv_v_x_i32m4(0, kLanes16), r = u, n = u;
        for (; groups-- > 0; w += 3 * kPairs, x += 2) {
            u = add_words(u, w, x);
            r = add_words(r, w + kPairs, x);
            n = add_words(n, w + 2 * kPairs, x);
        }
        store_sums(sums[0], u, r, n);
    }

  private:
    static constexpr int64_t kGateBytes = kGruUnits * 4, kPairs = kGruUnits * 2;

    QK_INLINE static Wide half_to_even(const Wide &x, const Wide &shift) {
        const WideUnsigned half = (WideUnsigned{} + 1) << WideUnsigned(shift - 1);
        const WideUnsigned odd = WideUnsigned(x >> shift) & 1;
        return Wide(WideUnsigned(x) + half - 1 + odd) >> shift;
    }
    QK_INLINE static Ints look_up_words(const int32_t *table, const Ints &byte_offsets) {
        uint32_t at[16];
        int32_t found[16];
        memcpy(at, &byte_offsets.v, sizeof(at));
        const vuint32m4_t places = __riscv_vle32_v_u32m4(at, kLanes16);
        __riscv_vse32(found, __riscv_vluxei32_v_i32m4(table, places, kLanes16), kLanes16);
        return Ints::load(found);
    }
    QK_INLINE static const char *copied(char *to, const char *from, int64_t bytes) {
        return static_cast<const char *>(memcpy(to, from, size_t(bytes)));
    }
    template <class Number>
    QK_INLINE static Ints widen(const void *from) {
        typedef Number Numbers __attribute__((vector_size(16 * sizeof(Number))));
        Numbers numbers;
        memcpy(&numbers, from, sizeof(numbers));
        return {__builtin_convertvector(numbers, Signed)};
    }
    template <class Number>
    QK_INLINE static void narrow(char *to, const Ints &a, int64_t count) {
        typedef Number Numbers __attribute__((vector_size(16 * sizeof(Number))));
        const Numbers numbers = __builtin_convertvector(a.v, Numbers);
        if (count == kGruUnits) return void(memcpy(to, &numbers, sizeof(numbers)));
        memcpy(to, &numbers, size_t(count) * sizeof(Number));
    }

    template <int column>
    QK_INLINE static vint16m2_t product(vint8m1x4_t w, const int8_t *x) {
        return __riscv_vwmul(__riscv_vget_v_i8m1x4_i8m1(w, column), x[column], kLanes16);
    }
    template <class Add>
    QK_INLINE static void add_groups(const int8_t *w, int64_t groups, const uint8_t *codes,
                                     int32_t (*sums)[kGruUnits], const Add &add) {
        const int8_t *x = reinterpret_cast<const int8_t *>(codes);
        vint32m4_t u = __riscv_vmv_v_x_i32m4(0, kLanes16), r = u, n = u;
        for (; groups-- > 0; w += 3 * kGateBytes, x += 4) {
            u = add(u, __riscv_vlseg4e8_v_i8m1x4(w, kLanes16), x);
            r = add(r, __riscv_vlseg4e8_v_i8m1x4(w + kGateBytes, kLanes16), x);
            n = add(n, __riscv_vlseg4e8_v_i8m1x4(w + 2 * kGateBytes, kLanes16), x);
        }
        store_sums(sums, u, r, n);
    }
    QK_INLINE static vint32m4_t add_words(vint32m4_t sum, const int16_t *from, const int16_t *x) {
        const vint16m2x2_t w = __riscv_vlseg2e16_v_i16m2x2(from, kLanes16);
        sum = __riscv_vwmacc(sum, x[0], __riscv_vget_v_i16m2x2_i16m2(w, 0), kLanes16);
        return __riscv_vwmacc(sum, x[1], __riscv_vget_v_i16m2x2_i16m2(w, 1), kLanes16);
    }
    QK_INLINE static void store_sums(int32_t (*to)[kGruUnits], vint32m4_t u, vint32m4_t r,
                                     vint32m4_t n) {
        __riscv_vse32(to[0], u, kLanes16);
        __riscv_vse32(to[1], r, kLanes16);
        __riscv_vse32(to[2], n, kLanes16);
    }
};

}  // namespace

const Kernel<GruArgs> kGruRvv = {"rvv", can_run_gru<GruRvv>, nullptr, run_gru<GruRvv>};

}  // namespace qk::cpu
