// Fallbacks for instruction sets without a faster instruction, made of what `Base` offers.
#pragma once
#include <stdint.h>
#include <string.h>

#include "cpu/isa.hpp"
#include "cpu/shared/transpose.hpp"

namespace qk::cpu {
namespace {

// A row of 128 nibbles to a packed chunk and back, in 128-bit registers, which every instruction
// set has: bytes are permuted, and the middle nibbles of pairs of bytes exchanged.
typedef uint8_t Bytes16 __attribute__((vector_size(16)));
typedef uint16_t Pairs8 __attribute__((vector_size(16)));

inline Bytes16 swap_middle_nibbles(Bytes16 bytes) {
    const Pairs8 x = Pairs8(bytes);
    return Bytes16((x & 0xf00f) | (x >> 4 & 0x00f0) | (x << 4 & 0x0f00));
}

inline Bytes16 swap_outer_nibbles(Bytes16 bytes) {
    const Pairs8 x = Pairs8(bytes);
    return Bytes16((x & 0x0ff0) | x >> 12 | x << 12);
}

inline Bytes16 low_bytes(Bytes16 a, Bytes16 b) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
inline Bytes16 high_bytes(Bytes16 a, Bytes16 b) {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                   31);
}
inline Bytes16 low_pairs(Bytes16 a, Bytes16 b) {
    return Bytes16(__builtin_shufflevector(Pairs8(a), Pairs8(b), 0, 8, 1, 9, 2, 10, 3, 11));
}
inline Bytes16 high_pairs(Bytes16 a, Bytes16 b) {
    return Bytes16(__builtin_shufflevector(Pairs8(a), Pairs8(b), 4, 12, 5, 13, 6, 14, 7, 15));
}
inline Bytes16 even_bytes(Bytes16 a, Bytes16 b) {
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}
inline Bytes16 odd_bytes(Bytes16 a, Bytes16 b) {
    return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}
inline Bytes16 even_pairs(Bytes16 a, Bytes16 b) {
    return Bytes16(__builtin_shufflevector(Pairs8(a), Pairs8(b), 0, 2, 4, 6, 8, 10, 12, 14));
}
inline Bytes16 odd_pairs(Bytes16 a, Bytes16 b) {
    return Bytes16(__builtin_shufflevector(Pairs8(a), Pairs8(b), 1, 3, 5, 7, 9, 11, 13, 15));
}

// Byte p of dword j has columns 32 p + j and 32 p + 16 + j. `high_first`: of nibbles whose pairs
// are swapped.
template <bool high_first>
inline void pack_chunk_bytes(const uint8_t *from, uint8_t *to) {
    Bytes16 v[4];
    memcpy(v, from, 64);
    for (Bytes16 &each : v) {
        const Bytes16 upper = __builtin_shufflevector(each, each, 8, 9, 10, 11, 12, 13, 14, 15, 8,
                                                      9, 10, 11, 12, 13, 14, 15);
        each = high_first ? swap_outer_nibbles(low_bytes(upper, each))
                          : swap_middle_nibbles(low_bytes(each, upper));
    }
    const Bytes16 a = low_bytes(v[0], v[1]), b = high_bytes(v[0], v[1]);
    const Bytes16 c = low_bytes(v[2], v[3]), d = high_bytes(v[2], v[3]);
    v[0] = low_pairs(a, c);
    v[1] = high_pairs(a, c);
    v[2] = low_pairs(b, d);
    v[3] = high_pairs(b, d);
    memcpy(to, v, 64);
}

inline void unpack_chunk_bytes(const uint8_t *from, uint8_t *to) {
    Bytes16 v[4];
    memcpy(v, from, 64);
    const Bytes16 a = even_pairs(v[0], v[1]), b = even_pairs(v[2], v[3]);
    const Bytes16 c = odd_pairs(v[0], v[1]), d = odd_pairs(v[2], v[3]);
    v[0] = even_bytes(a, b);
    v[1] = odd_bytes(a, b);
    v[2] = even_bytes(c, d);
    v[3] = odd_bytes(c, d);
    for (Bytes16 &each : v) {
        each = swap_middle_nibbles(each);
        each = __builtin_shufflevector(each, each, 0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13,
                                       15);
    }
    memcpy(to, v, 64);
}

}  // namespace

template <class Base>
struct Fallbacks : Base {
    using typename Base::Lanes;
    using typename Base::Table;
    using typename Base::Words;

    // 256 floats in memory, to be indexed by bytes.
    struct WideTable {
        const float *entries;

        explicit WideTable(const float *from) : entries(from) {}
        Lanes look_up(const uint8_t *codes) const {
            float values[16];
            for (int i = 0; i < 16; ++i) values[i] = entries[codes[i]];
            return Base::load_f32(values);
        }
    };

    static WidenNested nested_widener(const Device &) { return nullptr; }
    static LookUpBytes byte_lookup(const Device &) { return nullptr; }
    static LookUpHalves halves_lookup(const Device &) { return nullptr; }
    static LookUpColumns columns_lookup(const Device &) { return nullptr; }

    static void narrow_two_f16(const Lanes &a, const Lanes &b, uint16_t *to) {
        Base::narrow_f16(a, to);
        Base::narrow_f16(b, to + 16);
    }
    static void narrow_two_bf16(const Lanes &a, const Lanes &b, uint16_t *to) {
        Base::narrow_bf16(a, to);
        Base::narrow_bf16(b, to + 16);
    }

    // 32 numbers, 64 bytes.
    static void put_f16(const Lanes &a, const Lanes &b, char *to, bool stream) {
        alignas(64) uint16_t half[32];
        narrow_two_f16(a, b, half);
        put_64(half, to, stream);
    }
    static void put_bf16(const Lanes &a, const Lanes &b, char *to, bool stream) {
        alignas(64) uint16_t half[32];
        narrow_two_bf16(a, b, half);
        put_64(half, to, stream);
    }
    static void put_64(const uint16_t *from, char *to, bool stream) {
        stream ? Base::stream_64(reinterpret_cast<const char *>(from), to)
               : void(memcpy(to, from, 64));
    }

    // Weights of 16 rows' codes: nibble `step` of dword j of every row is column 16 * step + j,
    // stored at to[column * pitch]. `codes`: of rows 0..7 and 8..15.
    template <bool zeros, bool cuts>
    static void look_up_transposed(const uint8_t *const (&codes)[2], const Table &entries,
                                   const StepsOf<16> &steps, float *to, int64_t pitch) {
        uint8_t columns[16][64];
        transpose_rows(codes[0], codes[1], columns);
        const Table table = entries;  // a copy that nothing points to
        const auto scale = [&](int64_t step, int32_t column) QK_INLINE {
            return steps.template at_column<Base>(steps.scale[step], step, column);
        };
        float starts[8][16];
        for (int64_t step = 0; step < 8; ++step) Base::store_f32(starts[step], scale(step, 0));
        for (int32_t j = 0; j < 16; ++j, to += pitch) {
            const Words words = Base::load_words(columns[j]);
            const auto put = [&]<int step>() QK_INLINE {
                Lanes entry = Base::template look_up<step>(table, words);
                if (zeros) entry = Base::add(entry, Base::load_f32(steps.less[step]));
                const Lanes of_column = cuts ? scale(step, j) : Base::load_f32(starts[step]);
                Base::store_f32(to + 16 * step * pitch, Base::mul(entry, of_column));
            };
            for_each_step(put);
        }
    }

    // A packed chunk, whose quarters, two steps each, have tables of their own.
    template <bool stream, class HalfTable>
    QK_INLINE static void emit_chunk_halves(const Words &words, const HalfTable (&tables)[4],
                                            char *to) {
        Base::template emit_step_halves<0, stream>(words, tables[0], to);
        Base::template emit_step_halves<2, stream>(words, tables[1], to + 64);
        Base::template emit_step_halves<4, stream>(words, tables[2], to + 128);
        Base::template emit_step_halves<6, stream>(words, tables[3], to + 192);
    }

    // to[i * to_stride][j] = from[j * from_stride][i] for 16 x 16 dwords, strides in bytes.
    static void transpose_block(const void *from, int64_t from_stride, void *to,
                                int64_t to_stride) {
        transpose_in_memory(from, from_stride, to, to_stride);
    }

    // to[c][i] = from[i * stride + c]: 16 rows of 64 bytes.
    static void transpose_bytes(const uint8_t *from, int64_t stride, uint8_t (*to)[16]) {
        alignas(64) uint8_t words[16][64];
        transpose_block(from, stride, words, 64);
        for (int64_t i = 0; i < 16; ++i) {  // 4 columns of 16 rows
            Bytes16 v[4];
            memcpy(v, words[i], 64);
            for (Bytes16 &each : v) {
                each = __builtin_shufflevector(each, each, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14,
                                               3, 7, 11, 15);
            }
            transpose_4x4(v, 16, to[4 * i], 16);
        }
    }

    template <bool high_first = false>
    static void pack_chunk(const uint8_t *from, uint8_t *to) {
        pack_chunk_bytes<high_first>(from, to);
    }
    static void unpack_chunk(const uint8_t *from, uint8_t *to) { unpack_chunk_bytes(from, to); }
};

}  // namespace qk::cpu
