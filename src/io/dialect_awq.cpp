// AutoAWQ: X.qweight I32, X.qzeros I32, X.scales, in the "gemm" or the "gemv" arrangement.
// Source: casper-hansen/AutoAWQ awq/modules/linear/{gemm,gemv,gemv_fast,marlin}.py.
#include "dialect.hpp"
#include "methods.hpp"

namespace qk_io {
namespace {

enum class Version { kGemm, kGemv, kOther };

// Shapes alone: gemm's scales have 8 columns for a word of qweight; gemv's have qweight's rows.
// Groups have at least 16 codes, so that no other arrangement satisfies either by accident.
Version version_of_shapes(const Tensor *qweight, const Tensor *scales) {
    if (!is(qweight, QK_DTYPE_I32, 2) || scales == nullptr || scales->rank != 2) {
        return Version::kOther;
    }
    if (scales->shape[1] % 8 == 0 && scales->shape[1] / 8 == qweight->shape[1]) {
        return Version::kGemm;
    }
    return scales->shape[0] == qweight->shape[0] ? Version::kGemv : Version::kOther;
}

bool claims(const Module &module) {
    const Config &config = module.checkpoint->config;
    if (config.method == Method::kAwq) return true;
    if (config.method != Method::kNone || sibling(module, ".g_idx") != nullptr) return false;
    return version_of_shapes(module.anchor, sibling(module, ".scales")) != Version::kOther;
}

qk_status pick_version(const Module &module, const Tensor *scales, Version *version,
                       qk_io_message *message) {
    const Config &config = module.checkpoint->config;
    if (module.anchor->dtype == QK_DTYPE_I16) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "qweight is %s: AutoAWQ's gemv_fast arrangement, which qk does not load: %s",
                    shape_text(module.anchor).text, kInstead);
    }
    if (config.version[0] == 0) {
        *version = version_of_shapes(module.anchor, scales);
        if (*version != Version::kOther) return QK_OK;
        return fail(message, QK_ERROR_CORRUPT,
                    "qweight %s with scales %s is neither AutoAWQ's gemm nor its gemv",
                    shape_text(module.anchor).text, shape_text(scales).text);
    }
    *version = same(config.version, "gemm")   ? Version::kGemm
               : same(config.version, "gemv") ? Version::kGemv
                                              : Version::kOther;
    if (*version != Version::kOther) return QK_OK;
    return fail(message, QK_ERROR_UNSUPPORTED,
                "AutoAWQ version \"%s\", which qk does not load (gemm and gemv it does): %s",
                config.version, kInstead);
}

qk_status group_of(const Module &module, int64_t k, int64_t rows_of_scales, int64_t *group,
                   qk_io_message *message) {
    const Config &config = module.checkpoint->config;
    int64_t given = config.group_size;
    if (given != 0) given = group_of_layer(config, k, rows_of_scales);
    // Without a configuration gemm's scales say it: AutoAWQ only writes whole groups.
    if (given == 0 && rows_of_scales > 0 && k % rows_of_scales == 0) given = k / rows_of_scales;
    if (given == 0) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "no configuration gives a group_size, and the shapes leave it open");
    }
    return normal_group(given, k, group, message);
}

qk_status shapes_differ(const char *version, const Tensor *qweight, const Tensor *scales,
                        const Tensor *qzeros, int64_t group, qk_io_message *message) {
    return fail(message, QK_ERROR_CORRUPT,
                "AutoAWQ %s, group_size %lld: qweight %s, scales %s, qzeros %s do not fit together",
                version, static_cast<long long>(group), shape_text(qweight).text,
                shape_text(scales).text, shape_text(qzeros).text);
}

qk_status describe_gemm(const Module &module, const Tensor *scales, const Tensor *qzeros,
                        Layer *layer, qk_io_message *message) {
    const Tensor *qweight = module.anchor;
    layer->dialect = QK_DIALECT_AWQ_GEMM;
    const int64_t k = qweight->shape[0], n = scales->shape[1];
    int64_t group = 0;
    QK_IO_TRY(group_of(module, k, scales->shape[0], &group, message));
    const int64_t groups = group == QK_GROUP_ROW ? 1 : ceil_div(k, group);
    const bool fits = n % 8 == 0 && qweight->shape[1] == n / 8 && scales->shape[0] == groups &&
                      qzeros->shape[0] == groups && qzeros->shape[1] == n / 8;
    if (!fits) return shapes_differ("gemm", qweight, scales, qzeros, group, message);
    describe_weight(layer, QK_FORMAT_U4_AFFINE, QK_LAYOUT_AWQ_GEMM, group, float_format(scales), n,
                    k);
    return take_bias(module, n, layer, message);
}

qk_status describe_gemv(const Module &module, const Tensor *scales, const Tensor *qzeros,
                        Layer *layer, qk_io_message *message) {
    const Tensor *qweight = module.anchor;
    layer->dialect = QK_DIALECT_AWQ_GEMV;
    const int64_t n = qweight->shape[0];
    int64_t k = 0, group = 0;
    if (__builtin_mul_overflow(qweight->shape[1], 8, &k)) {
        return fail(message, QK_ERROR_CORRUPT, "qweight is %s", shape_text(qweight).text);
    }
    QK_IO_TRY(group_of(module, k, 0, &group, message));
    // How wide the padded zeros are is checked in bytes, by the description.
    const bool fits = scales->shape[0] == n && qzeros->shape[0] == n && scales->shape[1] % 8 == 0 &&
                      qzeros->shape[1] == scales->shape[1] / 8;
    if (!fits) return shapes_differ("gemv", qweight, scales, qzeros, group, message);
    describe_weight(layer, QK_FORMAT_U4_AFFINE, QK_LAYOUT_AWQ_GEMV, group, float_format(scales), n,
                    k);
    return take_bias(module, n, layer, message);
}

// The tensors say how many bits a layer has where the configuration speaks for most layers.
int64_t bits_of(const Config &config, const Tensor *qweight, const Tensor *scales,
                const Tensor *qzeros) {
    if (!is(qweight, QK_DTYPE_I32, 2) || scales == nullptr || scales->rank != 2) return config.bits;
    const int64_t stored = bits_of_zeros(qzeros, scales->shape[1]);
    const bool whole = stored > 0 && qzeros->shape[1] == qweight->shape[1];
    return whole && (config.differs || stored != 4) ? stored : config.bits;
}

qk_status check_kind(const Config &config, int64_t bits, qk_io_message *message) {
    if (bits != 0 && bits != 4) {
        return fail(message, QK_ERROR_UNSUPPORTED, "AWQ with %lld bits; qk loads 4: %s",
                    static_cast<long long>(bits), kInstead);
    }
    if (!config.transforms) return QK_OK;
    return fail(message, QK_ERROR_UNSUPPORTED,
                "AWQ behind a transform of the activations (rotation_config), which qk does not "
                "do: %s",
                kInstead);
}

qk_status describe(qk_checkpoint *checkpoint, const Module &module, Layer *layer,
                   qk_io_message *message) {
    const Tensor *scales = use(module, ".scales", layer);
    const Tensor *qzeros = use(module, ".qzeros", layer);
    const int64_t bits = bits_of(checkpoint->config, module.anchor, scales, qzeros);
    QK_IO_TRY(check_kind(checkpoint->config, bits, message));
    Version version = Version::kOther;
    QK_IO_TRY(pick_version(module, scales, &version, message));
    const bool typed = is(module.anchor, QK_DTYPE_I32, 2) && is(qzeros, QK_DTYPE_I32, 2) &&
                       float_format(scales) != 0 && scales->rank == 2;
    if (!typed) {
        return fail(message, QK_ERROR_CORRUPT,
                    "qweight %s, scales %s, qzeros %s; expected I32, F16, I32 of rank 2",
                    shape_text(module.anchor).text, shape_text(scales).text,
                    shape_text(qzeros).text);
    }
    layer->dense_format = float_format(scales);
    set_plane(layer, QK_PLANE_DATA, module.anchor);
    set_plane(layer, QK_PLANE_SCALE, scales);
    set_plane(layer, QK_PLANE_ZERO, qzeros);
    return version == Version::kGemm ? describe_gemm(module, scales, qzeros, layer, message)
                                     : describe_gemv(module, scales, qzeros, layer, message);
}

}  // namespace

extern const Dialect kAwq = {".qweight", claims, describe};

}  // namespace qk_io
