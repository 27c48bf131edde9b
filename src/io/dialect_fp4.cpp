// E2M1 codes in rows, even columns in the low nibbles, and a scale of one byte for a group:
//   ModelOpt  X.weight U8 [n,k/2], X.weight_scale E4M3 [n,k/16], X.weight_scale_2 F32, which
//             multiplies
//   gpt-oss   X_blocks U8 [experts,n,k/32,16], X_scales U8 [experts,n,k/32], X_bias [experts,n]: a
//             layer of experts * n rows
//   DeepSeek  X.weight I8 [n,k/2], X.scale (or .weight_scale_inv) E8M0 [n,k/32]
// What is stored for activations (X.input_scale) is left alone.
// compressed-tensors' own: dialect_ct_fp4.cpp.
// Source: NVIDIA/Model-Optimizer modelopt/torch/quantization/qtensor/nvfp4_tensor.py,
// huggingface/transformers src/transformers/integrations/{mxfp4,finegrained_fp8}.py.
#include "dialect.hpp"
#include "methods.hpp"

namespace qk_io {
namespace {

constexpr int64_t kMxGroup = 32, kNvGroup = 16;

bool is_e8m0(const Tensor *tensor) {
    return tensor != nullptr && (tensor->dtype == QK_DTYPE_F8_E8M0 || tensor->dtype == QK_DTYPE_U8);
}

struct Parts {
    const Tensor *codes, *scale;
    int64_t n, bytes_of_row;  // of codes
    int64_t group;
};

// NVFP4's scales can be laid out as one GPU's tensor cores read them, in tiles of 128 x 4. Where
// the tiles do not fit the weight, the shape shows it.
bool is_tiled(const Parts &p, int64_t groups) {
    const int64_t lines = ceil_div(p.n, 128) * 128, columns = ceil_div(groups, 4) * 4;
    return p.scale->bytes == lines * columns;
}

qk_status set_codes(const Parts &p, Layer *layer, qk_io_message *message) {
    if (p.codes->bytes == 0) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "weight is %s; a weight of qk has at least 1 of each",
                    shape_text(p.codes).text);
    }
    const int64_t k = p.bytes_of_row * 2, groups = ceil_div(k, p.group);
    if (p.scale->bytes != p.n * groups || p.scale->rank == 1) {
        if (is_tiled(p, groups)) {
            return fail(message, QK_ERROR_UNSUPPORTED,
                        "scales are %s of weight [%lld,%lld], in tiles of 128 x 4 for one GPU's "
                        "tensor cores; qk loads scales in rows: %s",
                        shape_text(p.scale).text, static_cast<long long>(p.n),
                        static_cast<long long>(k), kInstead);
        }
        return fail(message, QK_ERROR_CORRUPT,
                    "scales are %s; weight [%lld,%lld] needs %lld x %lld", shape_text(p.scale).text,
                    static_cast<long long>(p.n), static_cast<long long>(k),
                    static_cast<long long>(p.n), static_cast<long long>(groups));
    }
    set_plane(layer, QK_PLANE_DATA, p.codes);
    set_plane(layer, QK_PLANE_SCALE, p.scale);
    const bool mx = p.group == kMxGroup;
    layer->method = mx ? "MXFP4" : "NVFP4";
    describe_weight(layer, QK_FORMAT_FP4_E2M1, QK_LAYOUT_ROW, p.group,
                    mx ? QK_FORMAT_E8M0 : QK_FORMAT_E4M3, p.n, k);
    return QK_OK;
}

qk_status set_global(const Tensor *global, const char *name, uint32_t flags, Layer *layer,
                     qk_io_message *message) {
    if (global == nullptr || global->dtype != QK_DTYPE_F32 || global->bytes != 4) {
        return fail(message, QK_ERROR_CORRUPT, "%s is %s; expected one F32", name,
                    shape_text(global).text);
    }
    set_plane(layer, QK_PLANE_GLOBAL, global);
    layer->desc.flags |= flags;
    return QK_OK;
}

qk_format model_format(const qk_checkpoint *c) {
    return c->model_format != 0 ? c->model_format : QK_FORMAT_BF16;
}

// What stands in front of a layer, or beside it, that qk does not compute.
qk_status check_alone(const Module &module, qk_io_message *message) {
    static constexpr struct {
        const char *suffix, *what;
    } kOthers[] = {{".svdquant_lora_a", "beside a low-rank part (SVDQuant)"},
                   {".pre_quant_scale", "behind a scale of the activations (pre_quant_scale)"}};
    for (const auto &other : kOthers) {
        if (sibling(module, other.suffix) == nullptr) continue;
        return fail(message, QK_ERROR_UNSUPPORTED, "FP4 codes %s, which qk does not do: %s",
                    other.what, kInstead);
    }
    return QK_OK;
}

qk_status check_kind(const Module &module, const Parts &p, qk_io_message *message) {
    QK_IO_TRY(check_alone(module, message));
    const bool fits = p.group == kMxGroup
                          ? is_e8m0(p.scale)
                          : p.scale != nullptr && p.scale->dtype == QK_DTYPE_F8_E4M3;
    if (fits && p.codes->rank == 2) return QK_OK;
    return fail(message, QK_ERROR_UNSUPPORTED,
                "FP4 codes are %s, scales %s (%s); qk loads codes of rank 2 with scales of E8M0 or "
                "E4M3: %s",
                shape_text(p.codes).text, shape_text(p.scale).text,
                saying_of(module.checkpoint->config).text, kInstead);
}

// ---- ModelOpt ----

bool claims_modelopt(const Module &module) {
    const Tensor *scale = sibling(module, ".weight_scale");
    return module.anchor->dtype == QK_DTYPE_U8 &&
           (sibling(module, ".weight_scale_2") != nullptr ||
            (scale != nullptr && scale->dtype == QK_DTYPE_F8_E4M3));
}

qk_status describe_modelopt(qk_checkpoint *c, const Module &module, Layer *layer,
                            qk_io_message *message) {
    layer->dialect = QK_DIALECT_MODELOPT;
    layer->dense_format = model_format(c);
    const Tensor *scale = use(module, ".weight_scale", layer);
    const Tensor *global = use(module, ".weight_scale_2", layer);
    use(module, ".input_scale", layer);
    const Parts p = {module.anchor, scale, module.anchor->rank == 2 ? module.anchor->shape[0] : 0,
                     module.anchor->rank == 2 ? module.anchor->shape[1] : 0, kNvGroup};
    QK_IO_TRY(check_kind(module, p, message));
    if (global == nullptr) {
        layer->method = "NVFP4";
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "NVFP4 without weight_scale_2, which its scales are multiplied by: %s",
                    kInstead);
    }
    QK_IO_TRY(set_codes(p, layer, message));
    QK_IO_TRY(set_global(global, "weight_scale_2", QK_TENSOR_GLOBAL, layer, message));
    return take_bias(module, p.n, layer, message);
}

// ---- DeepSeek ----

const Tensor *deepseek_scale(const Module &module) {
    const Tensor *scale = sibling(module, ".scale");
    return scale != nullptr ? scale : sibling(module, ".weight_scale_inv");
}

bool claims_deepseek(const Module &module) {
    return is(module.anchor, QK_DTYPE_I8, 2) && is_e8m0(deepseek_scale(module));
}

qk_status describe_deepseek(qk_checkpoint *c, const Module &module, Layer *layer,
                            qk_io_message *message) {
    layer->dialect = QK_DIALECT_DEEPSEEK;
    layer->dense_format = model_format(c);
    const Tensor *scale = deepseek_scale(module);
    layer->bytes += scale->bytes;
    const Parts p = {module.anchor, scale, module.anchor->shape[0], module.anchor->shape[1],
                     kMxGroup};
    QK_IO_TRY(check_kind(module, p, message));
    QK_IO_TRY(set_codes(p, layer, message));
    return take_bias(module, p.n, layer, message);
}

// ---- gpt-oss ----

bool claims_gpt_oss(const Module &module) {
    return module.anchor->dtype == QK_DTYPE_U8 && is_e8m0(sibling(module, "_scales"));
}

qk_status describe_gpt_oss(qk_checkpoint *c, const Module &module, Layer *layer,
                           qk_io_message *message) {
    layer->dialect = QK_DIALECT_GPT_OSS;
    layer->dense_format = model_format(c);
    const Tensor *blocks = module.anchor, *scales = use(module, "_scales", layer);
    const bool shaped = blocks->rank == 4 && blocks->shape[3] == kMxGroup / 2 &&
                        scales->rank == 3 && scales->shape[0] == blocks->shape[0] &&
                        scales->shape[1] == blocks->shape[1] &&
                        scales->shape[2] == blocks->shape[2];
    if (!shaped) {
        return fail(message, QK_ERROR_CORRUPT,
                    "blocks are %s, scales %s; expected U8 [experts,n,groups,16] and "
                    "[experts,n,groups]",
                    shape_text(blocks).text, shape_text(scales).text);
    }
    // Sizes of a tensor of so many bytes do not overflow, unless one of them is 0.
    const int64_t experts = blocks->shape[0], n = blocks->shape[1];
    const int64_t rows = blocks->bytes == 0 ? 0 : experts * n;
    const Parts p = {blocks, scales, rows, blocks->bytes == 0 ? 0 : blocks->bytes / rows, kMxGroup};
    QK_IO_TRY(set_codes(p, layer, message));
    return take_biases(module, "_bias", experts, n, layer, message);
}

}  // namespace

extern const Dialect kModelOpt = {".weight", claims_modelopt, describe_modelopt};
extern const Dialect kDeepSeek = {".weight", claims_deepseek, describe_deepseek};
extern const Dialect kGptOss = {"_blocks", claims_gpt_oss, describe_gpt_oss};

}  // namespace qk_io
