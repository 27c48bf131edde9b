// Weights of a GGUF file in blocks of one of ggml's types: one tensor, the records as they are.
#include "dialect.hpp"
#include "gguf.hpp"

namespace qk_io {
namespace {

// A layout is numbered as its type, from 32 on.
struct Blocks {
    qk_layout layout;
    qk_format format, scale_format;
    int32_t group_size, scale_group_size;
    uint32_t flags;
    int32_t halves[2];  // where a record has f16 numbers; -1: none
};
constexpr Blocks kBlocks[] = {
    {QK_LAYOUT_GGUF_Q4_0, QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 32, 0, QK_TENSOR_SYMMETRIC, {0, -1}},
    {QK_LAYOUT_GGUF_Q4_1, QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 32, 0, QK_TENSOR_FLOAT_MIN, {0, 2}},
    {QK_LAYOUT_GGUF_Q5_0, QK_FORMAT_S8, QK_FORMAT_F16, 32, 0, 0, {0, -1}},
    {QK_LAYOUT_GGUF_Q5_1, QK_FORMAT_S8, QK_FORMAT_F16, 32, 0, QK_TENSOR_FLOAT_MIN, {0, 2}},
    {QK_LAYOUT_GGUF_Q8_0, QK_FORMAT_S8, QK_FORMAT_F16, 32, 0, 0, {0, -1}},
    {QK_LAYOUT_GGUF_Q4_K, QK_FORMAT_U4_AFFINE, QK_FORMAT_I8, 32, 8, QK_TENSOR_FLOAT_MIN, {0, 2}},
    {QK_LAYOUT_GGUF_Q5_K, QK_FORMAT_S8, QK_FORMAT_I8, 32, 8, QK_TENSOR_FLOAT_MIN, {0, 2}},
    {QK_LAYOUT_GGUF_Q6_K, QK_FORMAT_S8, QK_FORMAT_I8, 16, 16, 0, {208, -1}},
    {QK_LAYOUT_GGUF_IQ4_NL, QK_FORMAT_IQ4_NL, QK_FORMAT_F16, 32, 0, 0, {0, -1}},
    {QK_LAYOUT_GGUF_IQ4_XS, QK_FORMAT_IQ4_NL, QK_FORMAT_I8, 32, 8, 0, {0, -1}},
    {QK_LAYOUT_GGUF_MXFP4, QK_FORMAT_FP4_GGML, QK_FORMAT_E8M0, 32, 0, 0, {-1, -1}},
};

const Blocks *find_blocks(int32_t type) {
    for (const Blocks &blocks : kBlocks) {
        if (blocks.layout - 32 == type) return &blocks;
    }
    return nullptr;
}

bool is_finite_half(const uint8_t *at) { return (at[1] & 0x7c) != 0x7c; }

// Experts in one tensor [experts,n,k] are a layer as well: their rows are one after the other.
bool claims(const Module &module) {
    const Tensor &weight = *module.anchor;
    return module.checkpoint->config.method == Method::kGguf && float_format(&weight) == 0 &&
           (weight.rank == 2 || weight.rank == 3);
}

qk_status describe(qk_checkpoint *, const Module &module, Layer *layer, qk_io_message *message) {
    const Tensor &weight = *module.anchor;
    const Blocks *blocks = find_blocks(weight.dtype - QK_DTYPE_GGUF);
    layer->method = weight.dtype_name;
    if (blocks == nullptr) {  // no sizes: all layers of a type have one sentence
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "weight is of type %s, which qk does not load; of a GGUF file it loads F32, "
                    "F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS and "
                    "MXFP4",
                    weight.dtype_name);
    }
    layer->dialect = QK_DIALECT_GGUF;
    layer->dense_format = QK_FORMAT_F16;
    set_plane(layer, QK_PLANE_DATA, &weight);
    describe_weight(layer, blocks->format, blocks->layout, blocks->group_size, blocks->scale_format,
                    weight.shape[0], weight.shape[1]);
    layer->desc.scale_group_size = blocks->scale_group_size;
    layer->desc.flags = blocks->flags;
    if (weight.rank == 2) return take_bias(module, weight.shape[0], layer, message);
    layer->desc.rank = 3;
    layer->desc.shape[2] = weight.shape[2];
    return take_biases(module, ".bias", weight.shape[0], weight.shape[1], layer, message);
}

}  // namespace

qk_status check_records(const Layer &layer, qk_io_message *message) {
    const int32_t number = layer.desc.layout - 32;
    const Blocks *blocks = find_blocks(number);
    const GgufType *type = find_gguf_type(static_cast<uint32_t>(number));
    const size_t size = static_cast<size_t>(type->bytes);
    const uint8_t *at = static_cast<const uint8_t *>(layer.planes[QK_PLANE_DATA]);
    for (size_t i = 0; i < layer.plane_bytes[QK_PLANE_DATA] / size; ++i, at += size) {
        for (int32_t half : blocks->halves) {
            if (half < 0 || is_finite_half(at + half)) continue;
            return fail(message, QK_ERROR_CORRUPT,
                        "layer \"%.200s\": the %s of block %lld is not a finite number", layer.name,
                        half == 2 ? "minimum" : "scale", static_cast<long long>(i));
        }
    }
    return QK_OK;
}

extern const Dialect kGguf = {".weight", claims, describe};

}  // namespace qk_io
