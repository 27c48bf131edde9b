// Fallbacks for instruction sets without a faster instruction, made of what `Base` offers.
#pragma once
#include <string.h>

#include "cpu/isa.hpp"
#include "cpu/shared/chunk_bytes.hpp"
#include "cpu/shared/transpose.hpp"

namespace qk::cpu {

template <class Base>
struct Fallbacks : Base {
    using typename Base::Lanes;
    using typename Base::Table;
    using typename Base::Words;

    static WidenNested nested_widener(const Device &) { return nullptr; }
    static LookUpBytes byte_lookup(const Device &) { return nullptr; }
    static LookUpHalves halves_lookup(const Device &) { return nullptr; }

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
    // stored at to[column * pitch]. `codes`: of rows 0..7 and 8..15; scales (and zeros, negated) by
    // step.
    template <bool zeros>
    static void look_up_transposed(const uint8_t *const (&codes)[2], const Table &entries,
                                   const float *const *scales, const float *const *minus_zeros,
                                   float *to, int64_t pitch) {
        uint8_t columns[16][64];
        transpose_rows(codes[0], codes[1], columns);
        const Table table = entries;  // a copy that nothing points to
        for (int64_t j = 0; j < 16; ++j, to += pitch) {
            const Words words = Base::load_words(columns[j]);
            const auto put = [&]<int step>() QK_INLINE {
                Lanes entry = Base::template look_up<step>(table, words);
                if (zeros) entry = Base::add(entry, Base::load_f32(minus_zeros[step]));
                Base::store_f32(to + 16 * step * pitch,
                                Base::mul(entry, Base::load_f32(scales[step])));
            };
            for_each_step(put);
        }
    }

    // to[i * to_stride][j] = from[j * from_stride][i] for 16 x 16 dwords, strides in bytes.
    static void transpose_block(const void *from, int64_t from_stride, void *to,
                                int64_t to_stride) {
        transpose_in_memory(from, from_stride, to, to_stride);
    }

    static void pack_chunk(const uint8_t *from, uint8_t *to) { pack_chunk_bytes(from, to); }
    static void unpack_chunk(const uint8_t *from, uint8_t *to) { unpack_chunk_bytes(from, to); }
};

}  // namespace qk::cpu
