// The table of methods that are named and refused. Sources of the tensors' names: the packages that
// write them, each by its row's name, and transformers' integrations of them.
#include "methods.hpp"

#include <stdio.h>

namespace qk_io {
namespace {

constexpr Types kI8 = only(QK_DTYPE_I8), kU8 = only(QK_DTYPE_U8), kI16 = only(QK_DTYPE_I16),
                kI32 = only(QK_DTYPE_I32), kU32 = only(QK_DTYPE_U32),
                kE8 = kU8 | only(QK_DTYPE_F8_E8M0);
// Beside E4M3 a dialect reads the same names.
constexpr Types kE5M2 = only(QK_DTYPE_F8_E5M2);
// Codes of 4 bits with such scales are NVFP4.
constexpr Types kNoE4M3 = kAnyType & ~only(QK_DTYPE_F8_E4M3);
constexpr Sign kNothing = {nullptr, 0};
constexpr Types kFloats = only(QK_DTYPE_F32) | only(QK_DTYPE_F16) | only(QK_DTYPE_BF16);
// All but those that are codes of bytes.
constexpr Types kNoBytes = kAnyType & ~(kI8 | only(QK_DTYPE_F8_E4M3));

// Why not, where that is not what is stored but how it is computed.
constexpr const char *kFloatZeros =
    "its zeros are floats, applied in 16 bits with roundings that no format of qk has; run qk "
    "quantize on the model's 16-bit checkpoint";
constexpr const char *kTorchAoWords =
    "its words of 4-bit codes are laid out for one device's kernels; run qk quantize on the "
    "model's 16-bit checkpoint";

// The first that fits is the one: signs of few methods before signs of many.
constexpr Foreign kForeign[] = {
    // Codes beside the scales of a tensor and of its blocks.
    {"NVFP4", {"", kU8}, {"_weight_scale_2", kAnyType}, nullptr, nullptr},
    {"FP-Quant", {".qweight", kU8}, {".forward_hadamard_matrix", kAnyType}, nullptr, nullptr},
    {"MXINT4", {".weight_packed", kU8}, {".weight_scale", kE8}, "auto_round", nullptr},
    {"MXFP6", {".weight_packed", kU8}, {".weight_scale", kE8}, "mxfp6-pack-quantized", nullptr},
    {"MXFP4", {".weight", kU8}, {".weight_scale", kE8}, nullptr, nullptr},
    {"MXFP8", {".weight", kE5M2}, {".weight_scale", kE8}, nullptr, nullptr},
    {"FP8 in blocks", {".weight", kE5M2}, {".weight_scale_inv", kAnyType}, nullptr, nullptr},
    {"FP8 in blocks", {"", kF8}, {"_scale_inv", kAnyType}, nullptr, nullptr},
    {"FP8", {".weight", kE5M2}, {".weight_scale", kAnyType}, nullptr, nullptr},
    {"FP8", {"", kF8}, {"_weight_scale", kAnyType}, nullptr, nullptr},
    {"FP8", {"", kF8}, {"_scale", kAnyType}, nullptr, nullptr},
    {"TensorRT-LLM",
     {".weight", kI8 | kU8 | kF8},
     {".weights_scaling_factor", kAnyType},
     nullptr,
     nullptr},
    {"FP8", {".weight", kE5M2}, kNothing, nullptr, nullptr},
    // 8-bit integers.
    {"EETQ", {".weight", kI8}, {".weight_scales", kAnyType}, nullptr, nullptr},
    {"Gemma's integers", {".weight", kI8 | kU8}, {".weight_scale", kAnyType}, "gemma", nullptr},
    // Codes of 4 bits and fewer in bytes and words of other arrangements.
    {"BitNet", {".weight", kU8}, {".weight_scale", kNoE4M3}, "bitnet", nullptr},
    {"INT4 AWQ", {".weight", kU8}, {".weight_scale", kNoE4M3}, "W4A16_AWQ", nullptr},
    {"INT4", {".weight", kU8}, {".weight_scale", kNoE4M3}, "modelopt", nullptr},
    {"packed integers", {".weight", kU8}, {".weight_scale", kNoE4M3}, nullptr, nullptr},
    {"MLX", {".weight", kU32}, {".scales", kAnyType}, nullptr, nullptr},
    {"HIGGS", {".weight", kI16}, {".tables2", kAnyType}, nullptr, nullptr},
    {"SINQ", {".W_q", kAnyType}, kNothing, "sinq", nullptr},
    {"HQQ", {".W_q", kAnyType}, kNothing, nullptr, kFloatZeros},
    {"quanto", {".weight._data", kAnyType}, {".weight._scale", kAnyType}, nullptr, nullptr},
    {"torchao int4", {"._weight_qdata", kI32}, kNothing, nullptr, kTorchAoWords},
    {"torchao NVFP4",
     {"._weight_qdata", kU8},
     {"._weight_scale", only(QK_DTYPE_F8_E4M3)},
     nullptr,
     nullptr},
    {"torchao MXFP4", {"._weight_qdata", kU8}, {"._weight_scale", kE8}, nullptr, nullptr},
    {"torchao int4",
     {"._weight_qdata", kU8 | kI8},
     {"._weight_zero_point", kFloats},
     nullptr,
     kFloatZeros},
    {"torchao", {"._weight_qdata", kNoBytes}, kNothing, nullptr, nullptr},
    {"torchao", {".weight:qdata", kAnyType}, kNothing, nullptr, nullptr},
    {"AQLM", {".codes", kAnyType}, {".codebooks", kAnyType}, nullptr, nullptr},
    {"VPTQ", {".indices", kAnyType}, {".centroids.weight", kAnyType}, nullptr, nullptr},
    {"SpQR", {".dense_weights", kAnyType}, {".row_offsets", kAnyType}, nullptr, nullptr},
    {"QuIP#", {".Qidxs", kAnyType}, kNothing, nullptr, nullptr},
    {"EXL2", {".q_weight", kI32}, {".q_scale", kAnyType}, nullptr, nullptr},
    {"EXL3", {".trellis", kAnyType}, kNothing, nullptr, nullptr},
    {"QQQ", {".B", kI32}, {".s_channel", kAnyType}, nullptr, nullptr},
    {"Marlin", {".B", kI32}, {".s", kAnyType}, nullptr, nullptr},
    {"Marlin 2:4", {".weight_packed", kI32}, {".meta", kAnyType}, nullptr, nullptr},
    {"2:4 sparse", {".compressed", kAnyType}, {".bitmask", kAnyType}, nullptr, nullptr},
    {"SqueezeLLM", {".qweight", kI32}, {".lookup_table", kAnyType}, nullptr, nullptr},
    {"LLM-AWQ", {".qweight", kI16}, {".scaled_zeros", kAnyType}, nullptr, nullptr},
    {"AutoRound with 8-bit activations",
     {".qweight", kI32},
     {".w_bf16_to_fp8_scale", kAnyType},
     nullptr,
     nullptr},
};

// Blocks of a GGUF file are none of these.
bool has_type(const Tensor &tensor, Types types) {
    return tensor.dtype < QK_DTYPE_GGUF && (types >> tensor.dtype & 1) != 0;
}

bool fits(const Foreign &row, const Module &module) {
    const char *wanted = row.configured;
    const Config &config = module.checkpoint->config;
    if (wanted != nullptr && !same(wanted, config.method_name) && !same(wanted, config.detail)) {
        return false;
    }
    // A tensor of any name is experts in one piece: [experts,n,k].
    if (row.anchor.suffix[0] == 0 && module.anchor->rank != 3) return false;
    if (row.beside.suffix == nullptr) return true;
    const Tensor *beside = sibling(module, row.beside.suffix);
    return beside != nullptr && has_type(*beside, row.beside.types);
}

}  // namespace

const Foreign *find_foreign(const qk_checkpoint *c, const Tensor &tensor, char *name) {
    for (const Foreign &row : kForeign) {
        if (!has_type(tensor, row.anchor.types)) continue;
        if (!ends_with(tensor.name, row.anchor.suffix)) continue;
        const size_t length = strlen(tensor.name) - strlen(row.anchor.suffix);
        memcpy(name, tensor.name, length);
        name[length] = 0;
        if (fits(row, Module{c, name, &tensor, &row})) return &row;
    }
    return nullptr;
}

Saying saying_of(const Config &config) {
    Saying saying = {"no configuration names it"};
    if (config.method_name[0] == 0) return saying;
    char *text = saying.text;
    const int at = snprintf(text, sizeof saying.text, "quant_method \"%s\"", config.method_name);
    if (config.detail[0] == 0) return saying;
    snprintf(text + at, sizeof saying.text - static_cast<size_t>(at), ", %s \"%s\"",
             config.detail_key, config.detail);
    return saying;
}

}  // namespace qk_io
