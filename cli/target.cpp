#include "target.hpp"

#include <algorithm>

#include "commands.hpp"

namespace {

const std::vector<Target> &all_targets() {
    constexpr qk_format kF32 = QK_FORMAT_F32, kF16 = QK_FORMAT_F16, kBf16 = QK_FORMAT_BF16;
    static const std::vector<Target> targets = {
        {"compressed-tensors",
         QK_DIALECT_COMPRESSED_TENSORS,
         QK_LAYOUT_WORD,
         false,
         {Kind::kInt4, Kind::kInt8, Kind::kFp8, Kind::kMxfp4, Kind::kNvfp4},
         {kF32, kF16, kBf16},
         "integers of 4 and 8 bits, FP8, MXFP4 and NVFP4"},
        {"awq",
         QK_DIALECT_AWQ_GEMM,
         QK_LAYOUT_AWQ_GEMM,
         false,
         {Kind::kInt4},
         {kF16},
         "integers of 4 bits"},
        {"awq-gemv",
         QK_DIALECT_AWQ_GEMV,
         QK_LAYOUT_AWQ_GEMV,
         false,
         {Kind::kInt4},
         {kF16},
         "integers of 4 bits"},
        {"gptq",
         QK_DIALECT_GPTQ_V1,
         QK_LAYOUT_GPTQ_V1,
         false,
         {Kind::kInt4, Kind::kInt8},
         {kF16, kBf16},
         "integers of 4 and 8 bits"},
        {"gptq-v2",
         QK_DIALECT_GPTQ_V2,
         QK_LAYOUT_GPTQ,
         false,
         {Kind::kInt4, Kind::kInt8},
         {kF16, kBf16},
         "integers of 4 and 8 bits"},
        {"bitsandbytes",
         QK_DIALECT_BITSANDBYTES,
         QK_LAYOUT_ROW_HIGH,
         false,
         {Kind::kInt8, Kind::kTable},
         {kF32},
         "NF4, FP4 and integers of 8 bits with a scale a row"},
        {"bitsandbytes-nested",
         QK_DIALECT_BITSANDBYTES,
         QK_LAYOUT_ROW_HIGH,
         true,
         {Kind::kTable},
         {},
         "NF4 and FP4"},
        {"modelopt", QK_DIALECT_MODELOPT, QK_LAYOUT_ROW, false, {Kind::kNvfp4}, {}, "NVFP4"},
        {"deepseek", QK_DIALECT_DEEPSEEK, QK_LAYOUT_ROW, false, {Kind::kMxfp4}, {}, "MXFP4"},
        {"gguf",
         QK_DIALECT_GGUF,
         QK_LAYOUT_GGUF_Q4_0,
         false,
         {Kind::kInt4, Kind::kInt8, Kind::kMxfp4},
         {kF16},
         "Q4_0, Q8_0 and MXFP4"}};
    return targets;
}

bool has(const std::vector<Kind> &kinds, Kind kind) {
    return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

std::string codes_of(const qk_tensor_desc &desc) {
    const Kind kind = kind_of(desc);
    std::string text = std::string("its codes are ") + format_name(desc.format);
    if (kind == Kind::kMxfp4 || kind == Kind::kNvfp4) {
        text += std::string(" with ") + format_name(desc.scale_format) + " scales";
    }
    const bool uneven =
        desc.format == QK_FORMAT_IQ4_NL || desc.format == QK_FORMAT_LUT8 || kind == Kind::kTable;
    return text + (uneven ? ", values that are not evenly spaced" : "");
}

// Groups along k that fill their rows can be cut into smaller ones, which repeat their scale.
bool can_cut(const qk_tensor_desc &desc, int32_t group) {
    const int64_t k = desc.shape[1];
    const int64_t own = desc.group_size == QK_GROUP_ROW ? k : desc.group_size;
    return k % group == 0 && (own % group == 0 || own >= k);
}

// Integers of 8 bits with zeros are loaded with minima, their products with the scales.
bool has_zeros(const qk_tensor_desc &desc) {
    return desc.format == QK_FORMAT_S8 && desc.scale_format == QK_FORMAT_F32;
}

void refuse_form(const Target &target, const qk_layer &layer) {
    const qk_tensor_desc &desc = layer.desc;
    const std::string name = qk_dialect_name(target.dialect);
    if (has_minima(desc) && !(has_zeros(desc) && holds_order(target))) {
        cannot_hold(layer, "its groups have minima that are numbers, and " + name + " has none");
    }
    if (!has(target.kinds, kind_of(desc))) {
        cannot_hold(layer,
                    codes_of(desc) + "; " + name + ", as qk writes it, holds " + target.holds);
    }
    if (desc.format == QK_FORMAT_LUT4) {
        cannot_hold(layer, "its table of 16 values is its own; " + name +
                               ", as qk writes it, has those of NF4 and FP4");
    }
    if ((desc.flags & QK_TENSOR_ORDERED) != 0 && !holds_order(target)) {
        cannot_hold(layer, "its groups are not runs of columns (act-order), and " + name +
                               " has no others");
    }
    if (is_gguf(target) && !can_cut(desc, 32)) {
        cannot_hold(layer, "its group is " + group_name(desc) + " in rows of " +
                               std::to_string(desc.shape[1]) +
                               "; those of GGUF's types are of 32, and whole");
    }
    const bool a_row = desc.group_size == QK_GROUP_ROW || desc.group_size >= desc.shape[1];
    if (target.dialect == QK_DIALECT_BITSANDBYTES && kind_of(desc) == Kind::kInt8 && !a_row) {
        cannot_hold(layer, "its group is " + group_name(desc) + "; LLM.int8 has one scale a row");
    }
}

void store_integers(const Target &target, qk_tensor_desc *desc) {
    if (has_minima(*desc)) {  // the writer narrows the scales
        desc->layout = QK_LAYOUT_ROW;
        return;
    }
    const std::vector<qk_format> &held = target.scales;
    if (std::find(held.begin(), held.end(), desc->scale_format) == held.end()) {
        desc->scale_format = held.front();
    }
    const bool int8 = desc->format == QK_FORMAT_S8;
    desc->layout = int8 ? QK_LAYOUT_ROW : target.layout;
    if (int8 && target.dialect == QK_DIALECT_BITSANDBYTES) desc->group_size = QK_GROUP_ROW;
    if (!is_gguf(target)) return;
    if (int8) desc->layout = QK_LAYOUT_GGUF_Q8_0;
    desc->group_size = 32;
}

}  // namespace

std::vector<std::string> convert_targets() {
    std::vector<std::string> words;
    for (const Target &target : all_targets()) words.emplace_back(target.word);
    return words;
}

const Target &target_of(const std::string &word) {
    const std::vector<Target> &targets = all_targets();
    return *std::find_if(targets.begin(), targets.end(),
                         [&](const Target &target) { return word == target.word; });
}

Kind kind_of(const qk_tensor_desc &desc) {
    switch (desc.format) {
        case QK_FORMAT_U4_AFFINE: return Kind::kInt4;
        case QK_FORMAT_S8: return Kind::kInt8;
        case QK_FORMAT_E4M3: return Kind::kFp8;
        case QK_FORMAT_FP4_GGML: return Kind::kMxfp4;
        case QK_FORMAT_FP4_E2M1:
            return desc.scale_format == QK_FORMAT_E8M0 ? Kind::kMxfp4 : Kind::kNvfp4;
        case QK_FORMAT_NF4:
        case QK_FORMAT_FP4_BNB:
        case QK_FORMAT_LUT4: return Kind::kTable;
        default: return Kind::kOther;
    }
}

void cannot_hold(const qk_layer &layer, const std::string &why) {
    throw Failure(kUnsupported, std::string(layer.name) + ": " + why);
}

qk_tensor_desc stored_as(const Target &target, const qk_layer &layer) {
    refuse_form(target, layer);
    qk_tensor_desc desc = layer.desc;
    desc.flags &= QK_TENSOR_ORDERED | QK_TENSOR_FLOAT_MIN;
    desc.scale_group_size = 0;
    switch (kind_of(desc)) {
        case Kind::kMxfp4:
            desc.format = is_gguf(target) ? QK_FORMAT_FP4_GGML : QK_FORMAT_FP4_E2M1;
            desc.layout = is_gguf(target) ? QK_LAYOUT_GGUF_MXFP4 : QK_LAYOUT_ROW;
            break;
        case Kind::kNvfp4:
            desc.flags = QK_TENSOR_GLOBAL;
            if (target.dialect != QK_DIALECT_MODELOPT) desc.flags |= QK_TENSOR_GLOBAL_DIVIDES;
            break;
        case Kind::kFp8:
            // Powers of two have a place of their own in groups of 32.
            if (desc.scale_format == QK_FORMAT_E8M0 && desc.group_size != 32) {
                desc.scale_format = QK_FORMAT_F32;
            }
            break;
        case Kind::kTable:
            if (target.nested && desc.scale_format == QK_FORMAT_LUT8) {
                desc.scale_group_size = layer.desc.scale_group_size;
            }
            desc.scale_format = target.nested ? QK_FORMAT_LUT8 : QK_FORMAT_F32;
            break;
        default: store_integers(target, &desc);
    }
    return desc;
}

bool is_already(const Target &target, const qk_layer &layer) {
    if (layer.dialect != target.dialect) return false;
    const bool scales = layer.desc.scale_format == QK_FORMAT_LUT8;
    return kind_of(layer.desc) != Kind::kTable || scales == target.nested;
}
