// GPTQ: X.qweight I32 [k/8,n], X.qzeros I32 [groups,n/8], X.scales [groups,n], X.g_idx I32 [k].
// Source: AutoGPTQ/AutoGPTQ auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py,
// ModelCloud/GPTQModel gptqmodel/nn_modules/qlinear/__init__.py.
#include "dialect_gptq.hpp"

#include "methods.hpp"
#include "order.hpp"
#include "remake.hpp"

namespace qk_io {
namespace {

bool claims(const Module &module) {
    const Method method = module.checkpoint->config.method;
    return method == Method::kGptq ||
           (method == Method::kNone && sibling(module, ".g_idx") != nullptr);
}

qk_status pick_version(const Config &config, Layer *layer, qk_io_message *message) {
    const char *format = config.checkpoint_format;
    if (config.method == Method::kNone) {
        layer->dialect = QK_DIALECT_UNKNOWN;
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "a GPTQ layer without a configuration: nothing says whether zeros are stored "
                    "minus one (gptq) or as they are (gptq_v2)");
    }
    // Files from before the key existed are all version 1.
    if (format[0] == 0 || same(format, "gptq")) {
        layer->dialect = QK_DIALECT_GPTQ_V1;
        return QK_OK;
    }
    if (same(format, "gptq_v2")) {
        layer->dialect = QK_DIALECT_GPTQ_V2;
        return QK_OK;
    }
    return fail(message, QK_ERROR_UNSUPPORTED,
                "GPTQ checkpoint_format \"%s\", which qk does not load (gptq and gptq_v2 it does): "
                "%s",
                format, kInstead);
}

// The tensors say how many bits a layer has where the configuration speaks for most layers.
int64_t bits_of(const Config &config, const Tensor *qweight, const Tensor *scales,
                const Tensor *qzeros) {
    if (!is(qweight, QK_DTYPE_I32, 2) || scales == nullptr || scales->rank != 2) return config.bits;
    const int64_t stored = bits_of_zeros(qzeros, qweight->shape[1]);
    const bool whole = stored > 0 && scales->shape[1] == qweight->shape[1];
    return whole && (config.differs || config.bits == 0 || stored != 4) ? stored : config.bits;
}

qk_status check_types(const Module &module, const Tensor *scales, const Tensor *qzeros,
                      int64_t bits, qk_io_message *message) {
    const Config &config = module.checkpoint->config;
    const Types words = only(QK_DTYPE_I8) | only(QK_DTYPE_I16) | only(QK_DTYPE_I64);
    if ((words >> module.anchor->dtype & 1) != 0) {
        return fail(message, QK_ERROR_UNSUPPORTED, "qweight is %s; qk loads words of I32: %s",
                    shape_text(module.anchor).text, kInstead);
    }
    if (bits != 4 && bits != 8) {
        return fail(message, QK_ERROR_UNSUPPORTED, "GPTQ with %lld bits; qk loads 4 and 8: %s",
                    static_cast<long long>(bits), kInstead);
    }
    if (config.transforms) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "GPTQ behind a transform of the activations (rotation_config), which qk does "
                    "not do: %s",
                    kInstead);
    }
    const bool typed = is(module.anchor, QK_DTYPE_I32, 2) && is(qzeros, QK_DTYPE_I32, 2) &&
                       float_format(scales) != 0 && scales->rank == 2;
    if (typed) return QK_OK;
    return fail(message, QK_ERROR_CORRUPT,
                "qweight %s, scales %s, qzeros %s; expected I32, F16, I32 of rank 2",
                shape_text(module.anchor).text, shape_text(scales).text, shape_text(qzeros).text);
}

qk_status describe(qk_checkpoint *checkpoint, const Module &module, Layer *layer,
                   qk_io_message *message) {
    const Config &config = checkpoint->config;
    const Tensor *qweight = module.anchor;
    const Tensor *scales = use(module, ".scales", layer);
    const Tensor *qzeros = use(module, ".qzeros", layer);
    const Tensor *g_idx = use(module, ".g_idx", layer);
    QK_IO_TRY(pick_version(config, layer, message));
    const int64_t bits = bits_of(config, qweight, scales, qzeros);
    QK_IO_TRY(check_types(module, scales, qzeros, bits, message));
    if (bits == 8) {
        return describe_gptq8(checkpoint, module, {qweight, scales, qzeros, g_idx}, layer, message);
    }
    int64_t k = 0, group = 0;
    const int64_t n = qweight->shape[1];
    if (__builtin_mul_overflow(qweight->shape[0], 8, &k) || n % 8 != 0) {
        return fail(message, QK_ERROR_CORRUPT, "qweight is %s; columns come in eights",
                    shape_text(qweight).text);
    }
    QK_IO_TRY(normal_group(group_of_layer(config, k, scales->shape[0]), k, &group, message));
    const int64_t groups = group == QK_GROUP_ROW ? 1 : ceil_div(k, group);
    const bool fits = scales->shape[0] == groups && scales->shape[1] == n &&
                      qzeros->shape[0] == groups && qzeros->shape[1] == n / 8;
    if (!fits) {
        return fail(message, QK_ERROR_CORRUPT,
                    "GPTQ, 4 bits, groups a row %lld: qweight %s, scales %s, qzeros %s do not fit "
                    "together",
                    static_cast<long long>(groups), shape_text(qweight).text,
                    shape_text(scales).text, shape_text(qzeros).text);
    }
    QK_IO_TRY(take_gptq_order(checkpoint, g_idx, k, group, layer, message));
    if (order_of(*layer) != nullptr) {
        set_recipe(layer, QK_PLANE_DATA, {make_ordered_words, qweight, 0}, qweight->bytes);
    } else {
        set_plane(layer, QK_PLANE_DATA, qweight);
    }
    set_plane(layer, QK_PLANE_SCALE, scales);
    set_plane(layer, QK_PLANE_ZERO, qzeros);
    layer->dense_format = float_format(scales);
    const bool v1 = layer->dialect == QK_DIALECT_GPTQ_V1;
    describe_weight(layer, QK_FORMAT_U4_AFFINE, v1 ? QK_LAYOUT_GPTQ_V1 : QK_LAYOUT_GPTQ, group,
                    float_format(scales), n, k);
    return take_bias(module, n, layer, message);
}

// X.qweight that no dialect claims.
bool claims_any(const Module &) { return true; }

qk_status describe_unknown(qk_checkpoint *checkpoint, const Module &module, Layer *layer,
                           qk_io_message *message) {
    use(module, ".scales", layer);
    use(module, ".qzeros", layer);
    if (checkpoint->config.method == Method::kNone) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "no configuration says whose qweight this is, and its shapes do not either");
    }
    return fail(message, QK_ERROR_UNSUPPORTED,
                "qweight of %s, which qk does not load (awq, gptq and auto-round it does): %s",
                saying_of(checkpoint->config).text, kInstead);
}

}  // namespace

qk_status take_gptq_order(qk_checkpoint *checkpoint, const Tensor *g_idx, int64_t k, int64_t group,
                          Layer *layer, qk_io_message *message) {
    if (g_idx != nullptr) return take_order(checkpoint, g_idx, "g_idx", k, group, layer, message);
    if (!checkpoint->config.desc_act) return QK_OK;
    return fail(message, QK_ERROR_CORRUPT, "desc_act is true, but there is no g_idx");
}

extern const Dialect kGptq = {".qweight", claims, describe};
extern const Dialect kUnknownWords = {".qweight", claims_any, describe_unknown};

}  // namespace qk_io
