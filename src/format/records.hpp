// The records of GGUF files: runs of k codes with their scales and minima between them. Each struct
// reads and fills one record; docs/formats.md draws them. Scales and minima are bits of their
// formats: f16, the byte of e8m0, or an i8 code that is multiplied by the record's f16.
#pragma once
#include <stdint.h>

#include "base/hd.hpp"

namespace qk {
namespace {  // internal linkage: files built for one instruction set may not lend theirs to others

QK_HD static inline uint16_t record_u16(const uint8_t *at) { return uint16_t(at[0] | at[1] << 8); }
QK_HD static inline void set_record_u16(uint8_t *at, uint16_t value) {
    at[0] = uint8_t(value);
    at[1] = uint8_t(value >> 8);
}

// 32 nibbles: codes 0..15 are the low halves of 16 bytes, codes 16..31 the high ones.
QK_HD static inline int split_nibble(const uint8_t *bytes, int i) {
    return bytes[i & 15] >> (i >> 4) * 4 & 15;
}
QK_HD static inline void set_split_nibble(uint8_t *bytes, int i, int code) {
    bytes[i & 15] = uint8_t(bytes[i & 15] | code << (i >> 4) * 4);
}

// One scale, f16 or a byte, perhaps an f16 minimum that is added; then fifth bits, then nibbles.
template <int scale_bytes, bool has_minimum, int code_bits>
struct SimpleRecord {
    static constexpr int kCodes = 32, kGroup = 32;
    static constexpr bool kHasMinimum = has_minimum, kNested = false;
    static constexpr int kHigh = scale_bytes + (has_minimum ? 2 : 0);  // where fifth bits begin
    static constexpr int kLow = kHigh + (code_bits == 5 ? 4 : 0);
    static constexpr int kBytes = kLow + (code_bits == 8 ? 32 : 16);
    // Signed where there is no minimum; codes of 5 bits are read as bytes.
    static constexpr int kOffset = code_bits == 5 && !has_minimum ? 16 : 0;

    QK_HD static uint8_t code(const uint8_t *record, int i) {
        if (code_bits == 8) return record[kLow + i];
        const int low = split_nibble(record + kLow, i);
        if (code_bits == 4) return uint8_t(low);
        return uint8_t(low + (record[kHigh + (i >> 3)] >> (i & 7) & 1) * 16 - kOffset);
    }
    // Of 4 and 8 bits.
    QK_HD static void set_code(uint8_t *record, int i, uint8_t code) {
        if (code_bits == 8) {
            record[kLow + i] = code;
        } else {
            set_split_nibble(record + kLow, i, code);
        }
    }
    QK_HD static uint16_t scale(const uint8_t *record, int) {
        return scale_bytes == 1 ? record[0] : record_u16(record);
    }
    QK_HD static void set_scale(uint8_t *record, int, uint16_t bits) {
        if (scale_bytes == 1) {
            record[0] = uint8_t(bits);
        } else {
            set_record_u16(record, bits);
        }
    }
    // qk takes a minimum off where the file adds one.
    QK_HD static uint16_t minimum(const uint8_t *record, int) {
        return has_minimum ? uint16_t(record_u16(record + 2) ^ 0x8000) : uint16_t(0);
    }
    QK_HD static void set_minimum(uint8_t *record, int, uint16_t bits) {
        if (has_minimum) set_record_u16(record + 2, uint16_t(bits ^ 0x8000));
    }
    QK_HD static uint16_t second(const uint8_t *) { return 0; }
    QK_HD static uint16_t minimum_second(const uint8_t *) { return 0; }
};

using RecordQ4_0 = SimpleRecord<2, false, 4>;
using RecordQ4_1 = SimpleRecord<2, true, 4>;
using RecordQ5_0 = SimpleRecord<2, false, 5>;
using RecordQ5_1 = SimpleRecord<2, true, 5>;
using RecordQ8_0 = SimpleRecord<2, false, 8>;
using RecordIq4Nl = RecordQ4_0;
using RecordMxfp4 = SimpleRecord<1, false, 4>;

// 256 codes in 8 groups of 32, whose 6-bit scales and minima share 12 bytes: those of groups 0..3
// are the low bits of bytes 0..3 and 4..7; groups 4..7 have the nibbles of bytes 8..11, and two
// bits each from the top of bytes 0..3 and 4..7. Q5_K has fifth bits in front of the nibbles.
template <int code_bits>
struct RecordQ45K {
    static constexpr int kCodes = 256, kGroup = 32;
    static constexpr bool kHasMinimum = true, kNested = true;
    static constexpr int kSixes = 4, kHigh = 16, kLow = code_bits == 5 ? 48 : 16;
    static constexpr int kBytes = kLow + 128;

    // Pairs of groups share 32 bytes: the first the low nibbles, the second the high ones.
    QK_HD static uint8_t code(const uint8_t *record, int i) {
        const int group = i >> 5, column = i & 31;
        const int low = record[kLow + (group >> 1) * 32 + column] >> (group & 1) * 4 & 15;
        if (code_bits == 4) return uint8_t(low);
        return uint8_t(low + (record[kHigh + column] >> group & 1) * 16);
    }
    QK_HD static uint16_t scale(const uint8_t *record, int group) {
        const uint8_t *const s = record + kSixes;
        if (group < 4) return s[group] & 63;
        return uint16_t((s[group + 4] & 15) | s[group - 4] >> 6 << 4);
    }
    QK_HD static uint16_t minimum(const uint8_t *record, int group) {
        const uint8_t *const s = record + kSixes;
        if (group < 4) return s[group + 4] & 63;
        return uint16_t(s[group + 4] >> 4 | s[group] >> 6 << 4);
    }
    QK_HD static uint16_t second(const uint8_t *record) { return record_u16(record); }
    QK_HD static uint16_t minimum_second(const uint8_t *record) { return record_u16(record + 2); }
};
using RecordQ4K = RecordQ45K<4>;
using RecordQ5K = RecordQ45K<5>;

// 256 codes of 6 bits, minus 32, in 16 groups of 16 with an i8 scale each. Of each half, 64 bytes
// of nibbles and 32 of upper pairs of bits: codes 32 q + j have bits 2 q of pair byte j.
struct RecordQ6K {
    static constexpr int kCodes = 256, kGroup = 16, kBytes = 210;
    static constexpr bool kHasMinimum = false, kNested = true;

    QK_HD static uint8_t code(const uint8_t *record, int i) {
        const int half = i >> 7, quarter = i >> 5 & 3, j = i & 31;
        const int low = record[half * 64 + (quarter & 1) * 32 + j] >> (quarter >> 1) * 4 & 15;
        const int high = record[128 + half * 32 + j] >> quarter * 2 & 3;
        return uint8_t(low + high * 16 - 32);
    }
    QK_HD static uint16_t scale(const uint8_t *record, int group) { return record[192 + group]; }
    QK_HD static uint16_t minimum(const uint8_t *, int) { return 0; }
    QK_HD static uint16_t second(const uint8_t *record) { return record_u16(record + 208); }
    QK_HD static uint16_t minimum_second(const uint8_t *) { return 0; }
};

// 256 codes of IQ4_NL in 8 groups of 32, whose 6-bit scales, minus 32, have their upper two bits in
// a u16 and their nibbles in four bytes.
struct RecordIq4Xs {
    static constexpr int kCodes = 256, kGroup = 32, kBytes = 136;
    static constexpr bool kHasMinimum = false, kNested = true;

    QK_HD static uint8_t code(const uint8_t *record, int i) {
        return uint8_t(split_nibble(record + 8 + (i >> 5) * 16, i & 31));
    }
    QK_HD static uint16_t scale(const uint8_t *record, int group) {
        const int low = record[4 + (group >> 1)] >> (group & 1) * 4 & 15;
        const int high = record_u16(record + 2) >> group * 2 & 3;
        return uint8_t(low + high * 16 - 32);
    }
    QK_HD static uint16_t minimum(const uint8_t *, int) { return 0; }
    QK_HD static uint16_t second(const uint8_t *record) { return record_u16(record); }
    QK_HD static uint16_t minimum_second(const uint8_t *) { return 0; }
};

}  // namespace
}  // namespace qk
