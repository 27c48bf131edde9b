// The records of GGUF files: a weight's codes, scales and minima to bytes, type by type.
#include "reference.hpp"

namespace reference {
namespace {

using Bytes = std::vector<uint8_t>;

// One record under construction, and what goes into it.
struct Record {
    const Weight &weight;
    const RecordKind &kind;
    size_t number;
    Bytes bytes = Bytes(size_t(kind.bytes));

    uint8_t byte(int j) const { return weight.codes[number * size_t(kind.codes) + size_t(j)]; }
    // Code j of 4 to 6 bits, from 0 on.
    int code(int j) const {
        if (weight.spec.format != Format::s8) return byte(j);
        return int(int8_t(byte(j))) - kind.lowest;
    }
    size_t group(int g) const { return number * size_t(kind.codes / kind.group) + size_t(g); }
    int scale(int g) const { return int(int8_t(weight.scales[group(g)])); }
    int minimum(int g) const { return int(weight.minima[group(g)]); }

    void add(size_t at, int bits) { bytes[at] = uint8_t(bytes[at] | bits); }
    void number16(size_t at, uint32_t bits) {
        bytes[at] = uint8_t(bits), bytes[at + 1] = uint8_t(bits >> 8);
    }
    // Runs of 32 codes in 16 bytes: the first 16 low, the others high.
    void nibbles(size_t at) {
        for (int run = 0; run < kind.codes / 32; ++run) {
            for (int j = 0; j < 16; ++j) {
                add(at + size_t(16 * run + j), code(32 * run + j) & 15);
                add(at + size_t(16 * run + j), (code(32 * run + 16 + j) & 15) << 4);
            }
        }
    }
    // Runs of 64 codes in 32 bytes.
    void pairs(size_t at) {
        for (int j = 0; j < 256; ++j) {
            add(at + size_t(j / 64 * 32 + j % 32), (code(j) & 15) << (j / 32 % 2 * 4));
        }
    }
    void fifths_of_32(size_t at) {
        for (int j = 0; j < 32; ++j) add(at + size_t(j / 8), (code(j) >> 4 & 1) << (j % 8));
    }
    void fifths_of_256(size_t at) {
        for (int j = 0; j < 256; ++j) add(at + size_t(j % 32), (code(j) >> 4 & 1) << (j / 32));
    }
    void sixes(size_t at) {
        for (int g = 0; g < 4; ++g) {
            add(at + size_t(g), scale(g));
            add(at + size_t(g + 4), minimum(g));
        }
        for (int g = 4; g < 8; ++g) {
            add(at + size_t(g + 4), (scale(g) & 15) | (minimum(g) & 15) << 4);
            add(at + size_t(g - 4), (scale(g) >> 4) << 6);
            add(at + size_t(g), (minimum(g) >> 4) << 6);
        }
    }
    void sixes_of_codes() {
        for (int j = 0; j < 256; ++j) {
            const int h = j / 128, q = j / 32 % 4, byte = j % 32;
            add(size_t(64 * h + 32 * (q & 1) + byte), (code(j) & 15) << (q < 2 ? 0 : 4));
            add(size_t(128 + 32 * h + byte), (code(j) >> 4) << (2 * q));
        }
        for (int g = 0; g < 16; ++g) bytes[size_t(192 + g)] = uint8_t(scale(g));
    }
    void scales_of_iq4_xs() {
        for (int g = 0; g < 8; ++g) {
            const int bits = scale(g) + 32;
            add(size_t(4 + g / 2), (bits & 15) << (g % 2 * 4));
            add(size_t(2 + g / 4), (bits >> 4) << (g % 4 * 2));
        }
    }
    uint32_t second(const std::vector<float> &of) const { return encode(Format::f16, of[number]); }
};

void fill(Record *record) {
    const Weight &weight = record->weight;
    const uint32_t scale = weight.scales[record->group(0)];
    // What is stored is added: the minimum with its sign turned.
    const uint32_t added = weight.minima.empty() ? 0 : weight.minima[record->group(0)] ^ 0x8000u;
    const bool seconds = weight.spec.scale_format == Format::i8;
    const uint32_t d = seconds ? record->second(weight.second_scales) : scale;
    if (weight.spec.layout != Layout::gguf_q6_k && weight.spec.layout != Layout::gguf_mxfp4)
        record->number16(0, d);
    switch (weight.spec.layout) {
        case Layout::gguf_q4_0:
        case Layout::gguf_iq4_nl: record->nibbles(2); break;
        case Layout::gguf_q4_1:
            record->number16(2, added);
            record->nibbles(4);
            break;
        case Layout::gguf_q5_0:
            record->fifths_of_32(2);
            record->nibbles(6);
            break;
        case Layout::gguf_q5_1:
            record->number16(2, added);
            record->fifths_of_32(4);
            record->nibbles(8);
            break;
        case Layout::gguf_q8_0:
            for (int j = 0; j < 32; ++j) record->bytes[size_t(2 + j)] = record->byte(j);
            break;
        case Layout::gguf_mxfp4:
            record->bytes[0] = uint8_t(scale);
            record->nibbles(1);
            break;
        case Layout::gguf_q4_k:
        case Layout::gguf_q5_k:
            record->number16(2, record->second(weight.second_minima));
            record->sixes(4);
            if (weight.spec.layout == Layout::gguf_q5_k) record->fifths_of_256(16);
            record->pairs(weight.spec.layout == Layout::gguf_q5_k ? 48 : 16);
            break;
        case Layout::gguf_q6_k:
            record->sixes_of_codes();
            record->number16(208, d);
            break;
        case Layout::gguf_iq4_xs:
            record->scales_of_iq4_xs();
            record->nibbles(8);
            break;
        default: break;
    }
}

}  // namespace

const std::vector<RecordKind> &record_kinds() {
    using F = Format;
    using L = Layout;
    static const std::vector<RecordKind> kinds = {
        // bytes, codes, group, second group; minima; codes from, to; I8 scales from, to
        {L::gguf_q4_0, F::u4, F::f16, 18, 32, 32, 0, false, 0, 15, 0, 0},
        {L::gguf_q4_1, F::u4, F::f16, 20, 32, 32, 0, true, 0, 15, 0, 0},
        {L::gguf_q5_0, F::s8, F::f16, 22, 32, 32, 0, false, -16, 15, 0, 0},
        {L::gguf_q5_1, F::s8, F::f16, 24, 32, 32, 0, true, 0, 31, 0, 0},
        {L::gguf_q8_0, F::s8, F::f16, 34, 32, 32, 0, false, -128, 127, 0, 0},
        {L::gguf_iq4_nl, F::iq4_nl, F::f16, 18, 32, 32, 0, false, 0, 15, 0, 0},
        {L::gguf_mxfp4, F::fp4_ggml, F::e8m0, 17, 32, 32, 0, false, 0, 15, 0, 0},
        {L::gguf_q4_k, F::u4, F::i8, 144, 256, 32, 8, true, 0, 15, 0, 63},
        {L::gguf_q5_k, F::s8, F::i8, 176, 256, 32, 8, true, 0, 31, 0, 63},
        {L::gguf_q6_k, F::s8, F::i8, 210, 256, 16, 16, false, -32, 31, -128, 127},
        {L::gguf_iq4_xs, F::iq4_nl, F::i8, 136, 256, 32, 8, false, 0, 15, -32, 31},
    };
    return kinds;
}

const RecordKind *record_of(Layout layout) {
    for (const RecordKind &kind : record_kinds()) {
        if (kind.layout == layout) return &kind;
    }
    return nullptr;
}

Bytes pack_records(const Weight &weight) {
    const RecordKind &kind = *record_of(weight.spec.layout);
    Bytes bytes;
    for (size_t number = 0; number < weight.codes.size() / size_t(kind.codes); ++number) {
        Record record = {weight, kind, number};
        fill(&record);
        bytes.insert(bytes.end(), record.bytes.begin(), record.bytes.end());
    }
    return bytes;
}

}  // namespace reference
