// The quantizer's part of instruction sets other than AVX-512, in the compiler's vector types.
#pragma once
#include "cpu/access.hpp"
#include "cpu/convert/quantize_codes.hpp"

namespace qk::cpu {

template <class Isa>
struct PlainVectors {
    typedef float Floats __attribute__((vector_size(Isa::kVectorBytes)));
    typedef int32_t Bits __attribute__((vector_size(Isa::kVectorBytes)));
};

template <class Isa>
struct PlainQuantizer {
    using Floats = typename PlainVectors<Isa>::Floats;
    using Bits = typename PlainVectors<Isa>::Bits;
    static constexpr uint32_t kFeature = Isa::kFeature;
    static constexpr int kLanes = Isa::kVectorBytes / 4;

    static void widen(const Dense &from, int64_t first, int64_t count, float *to) {
        if constexpr (requires { typename Isa::Lanes; }) {
            widen_x<Isa>(from, first, count, to);
        } else {
            load_floats(from.format->id, from.data, first, count, to);
        }
    }

    // Largest, smallest and largest magnitude by lanes; no order changes them.
    static void scan(const float *x, int64_t count, GroupRange *range) {
        Floats low = {}, high = {};
        Bits most = {}, nan = {};
        int64_t i = 0;
        for (; i + kLanes <= count; i += kLanes) {
            Floats value;
            memcpy(&value, x + i, sizeof(value));
            const Bits magnitude = Bits(value) & 0x7fffffff, bad = magnitude > 0x7f800000;
            low = value < low ? value : low;
            high = value > high ? value : high;
            const Bits number = magnitude & ~bad;
            most = number > most ? number : most;
            nan |= bad;
        }
        for (int lane = 0; lane < kLanes; ++lane) {
            range->add(low[lane]);
            range->add(high[lane]);
            const float magnitude = f32_from_bits(uint32_t(most[lane]));
            range->absmax = magnitude > range->absmax ? magnitude : range->absmax;
            range->nan |= nan[lane] != 0;
        }
        for (; i < count; ++i) range->add(x[i]);
    }

    // The largest magnitude as bits; those of a NaN are larger than any number's.
    static uint32_t scan_magnitudes(const float *x, int64_t count) {
        Bits most = {};
        int64_t i = 0;
        for (; i + kLanes <= count; i += kLanes) {
            Bits value;
            memcpy(&value, x + i, sizeof(value));
            value &= 0x7fffffff;
            most = value > most ? value : most;
        }
        int32_t largest = 0;
        for (int lane = 0; lane < kLanes; ++lane)
            largest = most[lane] > largest ? most[lane] : largest;
        for (; i < count; ++i) {
            const int32_t value = int32_t(f32_bits(x[i]) & 0x7fffffff);
            largest = value > largest ? value : largest;
        }
        return uint32_t(largest);
    }

    // Codes by the number of thresholds below (not at or above) each of `count` numbers; NaN is
    // above all of them.
    static void rank(const float *thresholds, const uint8_t *code, const float *__restrict s,
                     int64_t count, uint8_t *__restrict codes) {
        float all[15];
        memcpy(all, thresholds, sizeof(all));
        for (int64_t i = 0; i < count; ++i) {
            int32_t rank = 0;
            _Pragma("GCC unroll 15") for (int t = 0; t < 15; ++t) rank += !(s[i] <= all[t]);
            codes[i] = uint8_t(rank);
        }
        for (int64_t i = 0; i < count; ++i) codes[i] = code[codes[i]];
    }

    static void round_s8(const float *x, int64_t count, float divisor, uint8_t *codes) {
        round_s8_each(x, count, divisor, codes);
    }

    // Codes of U4; `zero` is -1 where the tensor is symmetric.
    static void round_u4(const float *__restrict x, int64_t count, float divisor, int zero,
                         uint8_t *__restrict codes) {
        const float low = zero >= 0 ? 0.0f : -8.0f, high = low + 15;
        const float offset = zero >= 0 ? float(zero) : 0.0f;
        const int32_t add = zero >= 0 ? 0 : 8;
        code_each(x, count, codes, [=](float value) {
            return uint8_t(round_and_clamp(value / divisor, offset, low, high) + add);
        });
    }
};

}  // namespace qk::cpu
