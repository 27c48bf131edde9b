#include "scheme.hpp"

#include <algorithm>
#include <cstdlib>

#include "layers.hpp"

namespace {

enum Groups { kPowers, kAny, kFixed };  // of two from 32 to 4096; 16 to 4096 and row; none other
enum Option : unsigned { kNested = 1, kAsymmetric = 2, kScales = 4 };

struct Row {
    Scheme scheme;  // its group: without --group
    Groups groups;
    unsigned options;
    // Types that --scales may name, the first where the weights' is none; or the one type of
    // scales.
    const char *scales;
    uint32_t flags;
};

constexpr const char *kBnb = "bitsandbytes", *kCt = "compressed-tensors", *kFloats = "f16 bf16 f32";
// A format's first row is its default.
constexpr Row kRows[] = {
    {{"nf4", kBnb, QK_DIALECT_BITSANDBYTES, QK_FORMAT_NF4, QK_LAYOUT_ROW_HIGH, 64},
     kPowers,
     kNested,
     "f32",
     0},
    {{"fp4", kBnb, QK_DIALECT_BITSANDBYTES, QK_FORMAT_FP4_BNB, QK_LAYOUT_ROW_HIGH, 64},
     kPowers,
     kNested,
     "f32",
     0},
    {{"int4", kCt, QK_DIALECT_COMPRESSED_TENSORS, QK_FORMAT_U4_AFFINE, QK_LAYOUT_WORD, 128},
     kAny,
     kAsymmetric | kScales,
     kFloats,
     0},
    {{"int4", "awq", QK_DIALECT_AWQ_GEMM, QK_FORMAT_U4_AFFINE, QK_LAYOUT_AWQ_GEMM, 128},
     kAny,
     kAsymmetric | kScales,
     "f16",
     0},
    {{"int4", "gptq-v2", QK_DIALECT_GPTQ_V2, QK_FORMAT_U4_AFFINE, QK_LAYOUT_GPTQ, 128},
     kAny,
     kAsymmetric | kScales,
     "f16 bf16",
     0},
    {{"int8", kCt, QK_DIALECT_COMPRESSED_TENSORS, QK_FORMAT_S8, QK_LAYOUT_ROW, QK_GROUP_ROW},
     kAny,
     kScales,
     kFloats,
     QK_TENSOR_SYMMETRIC},
    {{"mxfp4", kCt, QK_DIALECT_COMPRESSED_TENSORS, QK_FORMAT_FP4_E2M1, QK_LAYOUT_ROW, 32},
     kFixed,
     0,
     "e8m0",
     0},
    {{"mxfp4", "gpt-oss", QK_DIALECT_GPT_OSS, QK_FORMAT_FP4_E2M1, QK_LAYOUT_ROW, 32},
     kFixed,
     0,
     "e8m0",
     0},
    {{"nvfp4", kCt, QK_DIALECT_COMPRESSED_TENSORS, QK_FORMAT_FP4_E2M1, QK_LAYOUT_ROW, 16},
     kFixed,
     0,
     "e4m3",
     QK_TENSOR_GLOBAL | QK_TENSOR_GLOBAL_DIVIDES},
    {{"q4_0", "gguf", QK_DIALECT_GGUF, QK_FORMAT_U4_AFFINE, QK_LAYOUT_GGUF_Q4_0, 32},
     kFixed,
     0,
     "f16",
     QK_TENSOR_SYMMETRIC},
    {{"q8_0", "gguf", QK_DIALECT_GGUF, QK_FORMAT_S8, QK_LAYOUT_GGUF_Q8_0, 32}, kFixed, 0, "f16", 0},
};

[[noreturn]] void usage(const std::string &sentence) { throw Failure(kUsage, sentence); }

// "a", "a and b", "a, b and c", each once.
template <class Has>
std::string all_of(const char *Scheme::*word, Has has) {
    std::vector<std::string> words;
    for (const Row &row : kRows) {
        const std::string text = row.scheme.*word;
        if (has(row) && std::find(words.begin(), words.end(), text) == words.end()) {
            words.push_back(text);
        }
    }
    std::string text;
    for (size_t i = 0; i < words.size(); ++i) {
        text += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
    }
    return text;
}

const Row &row_of(const QuantizeOptions &options) {
    for (const Row &row : kRows) {
        const bool dialect = options.dialect.empty() || options.dialect == row.scheme.dialect_name;
        if (options.format == row.scheme.format && dialect) return row;
    }
    const auto has = [&](const Row &row) { return options.format == row.scheme.format; };
    const std::string others = all_of(&Scheme::dialect_name, has);
    usage(options.dialect + " has no " + options.format + "; " + others +
          (others.find(" and ") == std::string::npos ? " has" : " have"));
}

void refuse_option(const char *name, Option option, const Row &row) {
    if ((row.options & option) != 0) return;
    usage(std::string(name) + " is for " +
          all_of(&Scheme::format, [=](const Row &other) { return (other.options & option) != 0; }));
}

int32_t parse_group(const std::string &text, const Row &row) {
    if (text.empty()) return row.scheme.group;
    const bool any = row.groups == kAny;
    if (any && text == "row") return QK_GROUP_ROW;
    char *end = nullptr;
    const long value = std::strtol(text.c_str(), &end, 10);
    const bool number = end != text.c_str() && *end == 0;
    const bool power = value >= 32 && (value & (value - 1)) == 0;
    const bool fits = any ? value >= 16 : row.groups == kPowers && power;
    const bool fixed = row.groups == kFixed && value == row.scheme.group;
    if (number && (fixed || (fits && value <= 4096))) return static_cast<int32_t>(value);
    if (row.groups == kFixed) {
        usage("--group " + text + ": that of " + row.scheme.format + " is " +
              std::to_string(row.scheme.group));
    }
    usage("--group " + text + ": accepted are " +
          (any ? "16 to 4096 and row" : "powers of two from 32 to 4096"));
}

bool is_among(const std::string &word, const std::string &words) {
    return (" " + words + " ").find(" " + word + " ") != std::string::npos;
}

const Row &row_of(const Scheme &scheme) {
    return *std::find_if(std::begin(kRows), std::end(kRows), [&](const Row &row) {
        return row.scheme.dialect == scheme.dialect &&
               std::string(row.scheme.format) == scheme.format;
    });
}

qk_format scales_of(const QuantizeOptions &options, const Scheme &scheme, const qk_layer &layer) {
    const std::string types = row_of(scheme).scales;
    if (types == "e8m0") return QK_FORMAT_E8M0;
    if (types == "e4m3") return QK_FORMAT_E4M3;
    const std::string own = format_name(layer.dense_format);
    if (!options.scales.empty()) return float_format_of(options.scales);
    return float_format_of(is_among(own, types) ? own : types.substr(0, types.find(' ')));
}

std::string no_multiple(const char *what, int64_t count, const std::string &of) {
    return std::string(what) + " of " + std::to_string(count) + ", no multiple of " + of;
}

}  // namespace

std::vector<std::string> quantize_formats() {
    std::vector<std::string> words;
    for (const Row &row : kRows) {
        if (words.empty() || words.back() != row.scheme.format) words.push_back(row.scheme.format);
    }
    return words;
}

std::vector<std::string> quantize_dialects() {
    std::vector<std::string> words;
    for (const Row &row : kRows) {
        const std::string word = row.scheme.dialect_name;
        if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
    }
    return words;
}

Scheme choose_scheme(const QuantizeOptions &options) {
    const Row &row = row_of(options);
    if (options.nested) refuse_option("--nested", kNested, row);
    if (options.asymmetric) refuse_option("--asymmetric", kAsymmetric, row);
    if (!options.scales.empty()) refuse_option("--scales", kScales, row);
    if (!options.scales.empty() && !is_among(options.scales, row.scales)) {
        usage("--scales " + options.scales + ": those of " + row.scheme.dialect_name + " are " +
              (std::string(row.scales) == "f16" ? "f16" : "f16 or bf16"));
    }
    Scheme scheme = row.scheme;
    scheme.group = parse_group(options.group, row);
    return scheme;
}

Stored describe_stored(const QuantizeOptions &options, const Scheme &scheme,
                       const qk_layer &layer) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = scheme.codes;
    desc.layout = scheme.layout;
    desc.rank = 2;
    desc.shape[0] = layer.desc.shape[0];
    desc.shape[1] = layer.desc.shape[1];
    desc.group_size = scheme.group;
    desc.scale_format = options.nested ? QK_FORMAT_LUT8 : scales_of(options, scheme, layer);
    if (scheme.layout == QK_LAYOUT_ROW_HIGH) desc.grouping = QK_GROUPING_FLAT;
    desc.flags = row_of(scheme).flags;
    Stored both = {desc, desc};
    if (scheme.codes == QK_FORMAT_U4_AFFINE && !options.asymmetric) {
        const bool words = scheme.layout == QK_LAYOUT_AWQ_GEMM || scheme.layout == QK_LAYOUT_GPTQ;
        both.quantized.flags = QK_TENSOR_SYMMETRIC;
        both.stored.flags = words ? 0 : QK_TENSOR_SYMMETRIC;
    }
    return both;
}

std::string unfit(const Scheme &scheme, const qk_layer &layer) {
    const int64_t n = layer.desc.shape[0], k = layer.desc.shape[1];
    const bool gptq = scheme.layout == QK_LAYOUT_GPTQ;
    const bool words = gptq || scheme.layout == QK_LAYOUT_AWQ_GEMM;
    if (words && n % 8 != 0) return std::to_string(n) + " rows, no multiple of 8";
    if (gptq && k % 8 != 0) return no_multiple("rows", k, "8");
    const bool whole_groups = scheme.dialect != QK_DIALECT_BITSANDBYTES && !gptq;
    if (!whole_groups || scheme.group == QK_GROUP_ROW || k % scheme.group == 0) return "";
    return no_multiple("rows", k, "the group of " + std::to_string(scheme.group));
}
