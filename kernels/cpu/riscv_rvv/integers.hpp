// Sums by lanes of codes times one row of x as integers, in words: 8 * 15 * 2^23 < 2^30.
// Two rows share what is loaded of x (linear/gemv_integers.hpp).
#pragma once
#include "cpu/linear/gemv_integers.hpp"
#include "cpu/riscv_rvv/isa.hpp"

namespace qk::cpu {
namespace {

struct XInts {
    alignas(64) int32_t q[kBlock];
    alignas(64) int32_t sum[16];  // of a lane
    float unit;

    void place(const int32_t *from) {
        memcpy(q, from, sizeof(q));
        memset(sum, 0, sizeof(sum));
        for (int64_t i = 0; i < kBlock; ++i) sum[i % 16] += from[i];
    }
};

// Codes and scales of 8 rows where vectors of words may be loaded from: there, or a copy.
template <size_t scales_bytes>
struct AlignedRows {
    const uint32_t *codes;
    const float *scales;

    QK_INLINE AlignedRows(const uint8_t *from, const char *scales_from) {
        codes = reinterpret_cast<const uint32_t *>(from);
        scales = reinterpret_cast<const float *>(scales_from);
        if (!is_aligned(from) || !is_aligned(scales_from)) copy(from, scales_from);
    }

  private:
    QK_NOINLINE void copy(const uint8_t *from, const char *scales_from) {
        memcpy(some_codes_, from, sizeof(some_codes_));
        memcpy(some_scales_, scales_from, scales_bytes);
        codes = some_codes_;
        scales = some_scales_;
    }
    alignas(64) uint32_t some_codes_[8 * 16];
    alignas(64) float some_scales_[scales_bytes / 4];
};

class RvvIntegers {
  public:
    using X = XInts;

    explicit RvvIntegers(const Weight &) {}

    QK_INLINE void add(const uint8_t *codes, const X &x, const char *scales, const uint8_t *zeros,
                       Sums<Rvv> &sums) const {
        const AlignedRows<32> rows(codes, scales);
        with_lanes_16([&]<int registers>() QK_INLINE {
            _Pragma("GCC unroll 1") for (int row = 0; row < 8; row += 2) {
                const uint8_t zero = zeros[row / 2];
                const float factor[2] = {x.unit * rows.scales[row], x.unit * rows.scales[row + 1]};
                add_two<registers>(rows.codes + 16 * row, x, zero & 15, zero >> 4, factor,
                                   &sums.row[row]);
            }
        });
    }

  private:
    template <int registers>
    QK_INLINE static void add_two(const uint32_t *codes, const X &x, int32_t first_zero,
                                  int32_t second_zero, const float (&factor)[2], Lanes<Rvv> *to) {
        using V = Lanes16<registers>;
        const typename V::Ints sum = V::load(x.sum);
        typename V::Ints first = __riscv_vmul(sum, -first_zero, kLanes16);
        typename V::Ints second = __riscv_vmul(sum, -second_zero, kLanes16);
        typename V::Words first_words = V::load(codes), second_words = V::load(codes + 16);
        QK_UNROLL
        for (int step = 0; step < 8; ++step) {
            const typename V::Ints q = V::load(x.q + 16 * step);
            first = add_step<V>(first, first_words, q, step);
            second = add_step<V>(second, second_words, q, step);
            first_words = __riscv_vsrl(first_words, 4, kLanes16);
            second_words = __riscv_vsrl(second_words, 4, kLanes16);
        }
        add_dots<V>(first, factor[0], to[0]);
        add_dots<V>(second, factor[1], to[1]);
    }
    template <class V>
    QK_INLINE static typename V::Ints add_step(typename V::Ints dots, typename V::Words words,
                                               typename V::Ints q, int step) {
        const typename V::Words codes = step < 7 ? __riscv_vand(words, 15, kLanes16) : words;
        return __riscv_vmacc(dots, V::as_signed(codes), q, kLanes16);
    }
    template <class V>
    QK_INLINE static void add_dots(typename V::Ints dots, float factor, Lanes<Rvv> &to) {
        float *const sum = reinterpret_cast<float *>(&to.v);
        const typename V::Floats dot = __riscv_vfcvt_f(dots, kLanes16);
        __riscv_vse32(sum, __riscv_vfmacc(V::load(sum), factor, dot, kLanes16), kLanes16);
    }
};

using RvvIntegerRows = RowsOfIntegers<Rvv, RvvIntegers>;

}  // namespace
}  // namespace qk::cpu
