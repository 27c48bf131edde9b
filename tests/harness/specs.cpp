#include "harness/specs.hpp"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>

namespace harness {

using reference::Format;
using reference::Global;
using reference::Layout;
using reference::Spec;
using reference::Weight;

qk_format code(Format format) {
    switch (format) {
        case Format::f32: return QK_FORMAT_F32;
        case Format::f16: return QK_FORMAT_F16;
        case Format::bf16: return QK_FORMAT_BF16;
        case Format::u4: return QK_FORMAT_U4_AFFINE;
        case Format::nf4: return QK_FORMAT_NF4;
        case Format::fp4_bnb: return QK_FORMAT_FP4_BNB;
        case Format::fp4_e2m1: return QK_FORMAT_FP4_E2M1;
        case Format::lut8: return QK_FORMAT_LUT8;
        case Format::s8: return QK_FORMAT_S8;
        case Format::lut4: return QK_FORMAT_LUT4;
        case Format::e4m3: return QK_FORMAT_E4M3;
        case Format::e8m0: return QK_FORMAT_E8M0;
        case Format::i8: return QK_FORMAT_I8;
        case Format::iq4_nl: return QK_FORMAT_IQ4_NL;
        case Format::fp4_ggml: return QK_FORMAT_FP4_GGML;
    }
    return 0;
}

qk_layout code(Layout layout) {
    switch (layout) {
        case Layout::row: return QK_LAYOUT_ROW;
        case Layout::row_high: return QK_LAYOUT_ROW_HIGH;
        case Layout::awq_gemm: return QK_LAYOUT_AWQ_GEMM;
        case Layout::awq_gemv: return QK_LAYOUT_AWQ_GEMV;
        case Layout::gptq: return QK_LAYOUT_GPTQ;
        case Layout::gptq_v1: return QK_LAYOUT_GPTQ_V1;
        case Layout::word: return QK_LAYOUT_WORD;
        case Layout::gguf_q4_0: return QK_LAYOUT_GGUF_Q4_0;
        case Layout::gguf_q4_1: return QK_LAYOUT_GGUF_Q4_1;
        case Layout::gguf_q5_0: return QK_LAYOUT_GGUF_Q5_0;
        case Layout::gguf_q5_1: return QK_LAYOUT_GGUF_Q5_1;
        case Layout::gguf_q8_0: return QK_LAYOUT_GGUF_Q8_0;
        case Layout::gguf_iq4_nl: return QK_LAYOUT_GGUF_IQ4_NL;
        case Layout::gguf_mxfp4: return QK_LAYOUT_GGUF_MXFP4;
        case Layout::gguf_q4_k: return QK_LAYOUT_GGUF_Q4_K;
        case Layout::gguf_q5_k: return QK_LAYOUT_GGUF_Q5_K;
        case Layout::gguf_q6_k: return QK_LAYOUT_GGUF_Q6_K;
        case Layout::gguf_iq4_xs: return QK_LAYOUT_GGUF_IQ4_XS;
    }
    return 0;
}

qk_tensor_desc describe_dense(Format format, int64_t rows, int64_t columns) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = code(format);
    desc.rank = 2;
    desc.shape[0] = rows;
    desc.shape[1] = columns;
    return desc;
}

static uint32_t flags_of(Global global) {
    switch (global) {
        case Global::none: return 0;
        case Global::one: return QK_TENSOR_GLOBAL;
        case Global::rows: return QK_TENSOR_GLOBAL_ROWS;
        case Global::one_divides: return QK_TENSOR_GLOBAL | QK_TENSOR_GLOBAL_DIVIDES;
        case Global::rows_divide: return QK_TENSOR_GLOBAL_ROWS | QK_TENSOR_GLOBAL_DIVIDES;
    }
    return 0;
}

qk_tensor_desc describe(const Spec &spec) {
    qk_tensor_desc desc = describe_dense(spec.format, spec.n, spec.k);
    desc.scale_format = spec.nested ? QK_FORMAT_LUT8 : code(spec.scale_format);
    desc.layout = code(spec.layout);
    desc.group_size = int32_t(spec.group_size);
    const bool flat = spec.flat && spec.group_size > 0;
    desc.grouping = flat ? QK_GROUPING_FLAT : QK_GROUPING_ALONG_K;
    const bool seconds = spec.nested || spec.scale_format == Format::i8;
    desc.scale_group_size = seconds ? int32_t(spec.second_group) : 0;
    if (spec.format == Format::u4 && !spec.zeros) desc.flags = QK_TENSOR_SYMMETRIC;
    if (spec.float_min) desc.flags = QK_TENSOR_FLOAT_MIN;
    if (spec.whole_range) desc.flags = QK_TENSOR_SYMMETRIC;
    desc.flags |= flags_of(spec.global);
    if (spec.ordered) desc.flags |= QK_TENSOR_ORDERED;
    return desc;
}

static void add_scale_kinds(Spec spec, std::vector<Spec> *list) {
    for (const Format scale : kFloats) {
        spec.scale_format = scale;
        list->push_back(spec);
    }
    spec.nested = true;
    spec.scale_format = Format::f32;
    for (const int64_t second : {int64_t(256), int64_t(16)}) {
        spec.second_group = second;
        list->push_back(spec);
    }
}

std::vector<Spec> kinds_of(Format format) {
    std::vector<Spec> list;
    for (const bool zeros : {false, true}) {
        if (zeros && format != Format::u4) continue;
        for (const Layout layout :
             {Layout::row, Layout::row_high, Layout::awq_gemm, Layout::awq_gemv, Layout::gptq,
              Layout::gptq_v1, Layout::word}) {
            if (reference::eight_bit(format) && layout != Layout::row) continue;
            for (const bool flat : {false, true}) {
                if (flat && layout != Layout::row && layout != Layout::row_high) continue;
                Spec spec;
                spec.format = format;
                spec.layout = layout;
                spec.flat = flat;
                spec.zeros = zeros;
                add_scale_kinds(spec, &list);
            }
        }
    }
    return list;
}

std::vector<Spec> small_scale_kinds(Format format) {
    std::vector<Spec> list;
    for (const Layout layout : {Layout::row, Layout::gptq, Layout::awq_gemm}) {
        if (reference::eight_bit(format) && layout != Layout::row) continue;
        Spec spec;
        spec.format = format;
        spec.layout = layout;
        spec.scale_format = Format::e8m0;
        list.push_back(spec);
        spec.scale_format = Format::e4m3;
        for (const Global global :
             {Global::none, Global::one, Global::rows, Global::one_divides, Global::rows_divide}) {
            spec.global = global;
            list.push_back(spec);
        }
    }
    return list;
}

// GGUF's records and what they are repacked to: minima, scales of I8, tables of ggml.
static std::vector<Spec> ggml_kinds(Format format) {
    std::vector<Spec> list;
    for (const reference::RecordKind &record : reference::record_kinds()) {
        if (record.format != format) continue;
        Spec spec;
        spec.format = format;
        spec.scale_format = record.scale_format;
        spec.float_min = record.has_minimum;
        spec.second_group = record.second_group > 0 ? record.second_group : spec.second_group;
        list.push_back(spec);
        if (format == Format::u4 && record.has_minimum) {  // the scales lie across
            spec.layout = Layout::gptq;
            list.push_back(spec);
        }
        spec.layout = record.layout;
        list.push_back(spec);
    }
    for (const Format scale : {Format::f32, Format::bf16}) {  // minima of other files
        if (format != Format::u4 && format != Format::s8) continue;
        Spec spec;
        spec.format = format;
        spec.scale_format = scale;
        spec.float_min = true;
        list.push_back(spec);
        spec.flat = true;
        list.push_back(spec);
    }
    return list;
}

void cut(Spec *spec, const Shape &shape) {
    spec->n = shape.n, spec->k = shape.k, spec->group_size = shape.group_size;
    const reference::RecordKind *const record = reference::record_of(spec->layout);
    if (record == nullptr) return;
    spec->group_size = record->group;
    spec->k = (shape.k + record->codes - 1) / record->codes * record->codes;
    if (record->codes == 256) spec->n = shape.n % 11 + 1;
}

std::vector<Spec> sweep_of(Format format) {
    if (format == Format::iq4_nl || format == Format::fp4_ggml) return ggml_kinds(format);
    if (format == Format::lut4) {  // codes are stored as those of any 4-bit format
        std::vector<Spec> list = small_scale_kinds(format);
        Spec spec;
        spec.format = format;
        add_scale_kinds(spec, &list);
        return list;
    }
    std::vector<Spec> list = kinds_of(format);
    if (format == Format::fp4_e2m1) {
        for (const Spec &spec : small_scale_kinds(format)) list.push_back(spec);
    }
    for (const Spec &spec : ggml_kinds(format)) list.push_back(spec);
    return list;
}

std::vector<Spec> kinds() {
    std::vector<Spec> list;
    for (const Format format :
         {Format::u4, Format::nf4, Format::fp4_bnb, Format::fp4_e2m1, Format::lut8, Format::s8}) {
        for (const Spec &spec : kinds_of(format)) list.push_back(spec);
    }
    return list;
}

const char *scale_name(const Spec &spec) {
    return spec.nested ? "nested" : reference::name(spec.scale_format);
}

std::string title(const Spec &spec) {
    return std::string(reference::name(spec.format)) + (spec.zeros ? "+zeros " : " ") +
           reference::name(spec.layout) + (spec.flat ? " flat " : " ") + scale_name(spec) + " n " +
           std::to_string(spec.n) + " k " + std::to_string(spec.k) + " group " +
           std::to_string(spec.group_size);
}

const std::vector<Shape> &shapes() {
    static const std::vector<Shape> list = [] {
        const int64_t rows[] = {1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 15, 16, 17, 23, 31, 33, 64, 65};
        const int64_t columns[] = {1,   2,   3,   5,   7,   8,   9,   13,  15,  16,  17,  24,
                                   31,  32,  33,  47,  48,  49,  63,  64,  65,  79,  96,  97,
                                   127, 128, 129, 191, 255, 256, 257, 300, 511, 513, 1021};
        const int64_t groups[] = {16, -1, 32, 17, 64, 48, 128, 100, 256, 512, 33, 1024, 4096};
        std::vector<Shape> made;
        size_t turn = 0;
        for (const int64_t n : rows) {
            for (const int64_t k : columns) {
                if (n * k > 2600) continue;
                made.push_back({n, k, groups[turn++ % 13]});
            }
        }
        for (const int64_t group : groups) {  // long rows with every group
            for (const int64_t k : {4096, 4097, 5003}) made.push_back({1, k, group});
            made.push_back({3, 1537, group});
            made.push_back({9, 321, group});
        }
        for (int64_t k = 1; k <= 65; ++k) made.push_back({k % 5 + 1, k, k % 2 == 0 ? 16 : -1});
        return made;
    }();
    return list;
}

bool thinned(uint64_t number, uint64_t at_most) {
    static const uint64_t asked = [] {
        const char *const text = std::getenv("QK_SWEEP_EVERY");
        const uint64_t value = text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
        if (value > 1) std::printf("QK_SWEEP_EVERY=%llu\n", (unsigned long long)value);
        return value > 1 ? value : 1;
    }();
    const uint64_t every = std::min(asked, at_most);
    return every > 1 && Random(number).next() % every != 0;
}

bool has_integer_data(Format format) {
    return format == Format::u4 || format == Format::s8 || format == Format::fp4_e2m1 ||
           format == Format::lut8 || format == Format::lut4;
}

static uint32_t small_scale(const Spec &spec, Data data, Random *random) {
    const bool e8m0 = spec.scale_format == Format::e8m0;
    if (data == Data::wild) return uint32_t(random->below(256));
    if (data == Data::integer)
        return (e8m0 ? 128u : 0x40u) + uint32_t(random->below(2)) * (e8m0 ? 1u : 8u);
    return uint32_t(e8m0 ? random->between(115, 124) : random->between(0, 0x7e));
}

// What makes E4M3 scales those of a model.
static float random_global(const Spec &spec, Data data, Random *random) {
    if (data == Data::integer) return 1;
    if (data == Data::wild) return std::bit_cast<float>(uint32_t(random->next()));
    const bool divides = spec.global == Global::one_divides || spec.global == Global::rows_divide;
    const float value = float(0.0001 * (0.1 + random->unit()));
    return divides ? 1 / value : value;
}

// Within what a record holds, whose minima have the scales' numbers.
static uint32_t i8_scale(const Spec &spec, Data data, Random *random) {
    if (data == Data::integer) return uint32_t(1 + random->below(2));
    const reference::RecordKind *const record = reference::record_of(spec.layout);
    const int lowest = record != nullptr ? record->lowest_scale : -128;
    const int highest = record != nullptr ? record->highest_scale : 127;
    return uint32_t(random->between(lowest, highest)) & 255;
}

// Second scales of I8, which records keep as f16.
static std::vector<float> second_scales(const Spec &spec, Data data, int64_t count,
                                        Random *random) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t bits = uint32_t(random->next());
        const bool record = reference::record_of(spec.layout) != nullptr;
        const float wild =
            record ? reference::decode_f16(uint16_t(bits)) : std::bit_cast<float>(bits);
        const float real = float(0.0005 * (0.1 + random->unit()));
        const float value = data == Data::wild ? wild : data == Data::integer ? 2.0f : real;
        values.push_back(record ? reference::decode_f16(reference::encode_f16(value)) : value);
    }
    return values;
}

static uint32_t random_scale(const Spec &spec, Data data, Random *random) {
    if (spec.nested) return uint32_t(random->below(256));
    if (spec.scale_format == Format::i8) return i8_scale(spec, data, random);
    if (reference::bytes_of(spec.scale_format) == 1) return small_scale(spec, data, random);
    if (data == Data::wild) {
        const uint32_t bits = uint32_t(random->next());
        return spec.scale_format == Format::f32 ? bits : bits & 0xffffu;
    }
    float scale = float(0.02 * (0.1 + random->unit()));
    if (data == Data::real && random->one_in(50)) scale = -scale;
    if (data == Data::integer) scale = float(2 << random->below(2));  // 2 or 4: E2M1 in halves
    return reference::encode(spec.scale_format, scale);
}

// Nested scales that come out as 2 or 4 whatever the code: the table holds 0 and 1 alone.
static void fill_nested(const Spec &spec, Data data, int64_t groups, Random *random,
                        Weight *weight) {
    const int64_t blocks = (groups + spec.second_group - 1) / spec.second_group;
    const bool integer = data == Data::integer;
    for (int64_t i = 0; i < blocks; ++i) {
        weight->second_scales.push_back(integer ? 2.0f : float(0.01 * random->unit()));
    }
    if (integer) {
        for (int i = 0; i < 256; ++i) weight->scale_code.push_back(float(i % 2));
    } else {
        weight->scale_code = reference::dynamic_table();
    }
    weight->scale_bias = integer ? 2.0f : float(0.02 * random->unit());
    if (data == Data::wild) {
        for (float &second : weight->second_scales) {
            second = std::bit_cast<float>(uint32_t(random->next()));
        }
    }
}

Weight random_weight(const Spec &spec, Data data, Random *random) {
    const int64_t groups = reference::groups_of(spec).count;
    Weight weight;
    weight.spec = spec;
    weight.codes.resize(size_t(spec.n * spec.k));
    const bool wide = reference::eight_bit(spec.format);
    const reference::RecordKind *const record = reference::record_of(spec.layout);
    for (uint8_t &code : weight.codes) {
        code = uint8_t(random->next() >> 40) & (wide ? 255 : 15);
        const bool nan = spec.format == Format::e4m3 && code % 128 == 127;
        if (nan && data != Data::wild) code = uint8_t(code - 1);
        if (data == Data::integer && wide && spec.format != Format::e4m3)
            code = uint8_t(int(code % 31) - 15);
        if (record != nullptr && wide && record->highest < 127) {
            const int count = record->highest - record->lowest + 1;
            code = uint8_t(int(code % count) + record->lowest);
        }
    }
    for (int64_t g = 0; g < groups; ++g) {
        weight.scales.push_back(random_scale(spec, data, random));
        if (spec.zeros) weight.zeros.push_back(uint8_t(random->below(16)));
        if (spec.float_min) weight.minima.push_back(random_scale(spec, data, random));
    }
    if (spec.scale_format == Format::i8 && !spec.nested) {
        const int64_t blocks = (groups + spec.second_group - 1) / spec.second_group;
        weight.second_scales = second_scales(spec, data, blocks, random);
        if (spec.float_min) weight.second_minima = second_scales(spec, data, blocks, random);
    }
    if (spec.nested) fill_nested(spec, data, groups, random, &weight);
    if (spec.global != Global::none) {
        const bool rows = spec.global == Global::rows || spec.global == Global::rows_divide;
        for (int64_t i = 0; i < (rows ? spec.n : 1); ++i) {
            weight.global.push_back(random_global(spec, data, random));
        }
    }
    for (int32_t i = 0; spec.ordered && i < spec.k; ++i) {  // a shuffle
        const size_t other = random->below(uint64_t(i) + 1);
        weight.order.push_back(i);
        std::swap(weight.order[size_t(i)], weight.order[other]);
    }
    if (spec.format == Format::lut8 || spec.format == Format::lut4) {
        for (int i = 0; i < (wide ? 256 : 16); ++i) {
            weight.table.push_back(data == Data::integer ? float(i < 128 ? i % 16 : i % 16 - 16)
                                                         : random->weight_like());
        }
    }
    return weight;
}

}  // namespace harness
