// compressed-tensors mxfp4-pack-quantized and nvfp4-pack-quantized: X.weight_packed U8 [n,k/2],
// even k in the low nibble; X.weight_scale, U8 powers of two [n,k/32] or F8_E4M3 [n,k/16], which
// X.weight_global_scale F32 [1] divides.
// Source: vllm-project/compressed-tensors src/compressed_tensors/compressors/{mxfp4,nvfp4}/.
#include "dialect.hpp"
#include "methods.hpp"

namespace qk_io {
namespace {

// U8 scales are also those of other formats of a configuration (methods.cpp), E4M3 ones are not.
bool claims(const Module &module) {
    const Tensor *scale = sibling(module, ".weight_scale");
    return module.anchor->dtype == QK_DTYPE_U8 && module.foreign == nullptr && scale != nullptr &&
           (scale->dtype == QK_DTYPE_U8 || scale->dtype == QK_DTYPE_F8_E8M0 ||
            scale->dtype == QK_DTYPE_F8_E4M3);
}

qk_status check_parts(const Tensor *codes, const Tensor *scale, const Tensor *global, int64_t group,
                      qk_io_message *message) {
    const bool shapes = codes->rank == 2 && scale->rank == 2 &&
                        codes->shape[0] == scale->shape[0] && codes->shape[1] % (group / 2) == 0 &&
                        codes->shape[1] / (group / 2) == scale->shape[1];
    if (!shapes) {
        return fail(message, QK_ERROR_CORRUPT,
                    "weight_packed is %s, weight_scale is %s; expected U8 [n,k/2] and [n,k/%d]",
                    shape_text(codes).text, shape_text(scale).text, static_cast<int>(group));
    }
    // One number: some writers give it no dimension.
    if (group == 32 || (global != nullptr && global->dtype == QK_DTYPE_F32 && global->bytes == 4)) {
        return QK_OK;
    }
    return fail(message, QK_ERROR_CORRUPT, "weight_global_scale is %s; expected F32 [1]",
                shape_text(global).text);
}

qk_status describe(qk_checkpoint *checkpoint, const Module &module, Layer *layer,
                   qk_io_message *message) {
    layer->dialect = QK_DIALECT_COMPRESSED_TENSORS;
    const Tensor *codes = module.anchor, *scale = use(module, ".weight_scale", layer);
    const bool nvfp4 = scale->dtype == QK_DTYPE_F8_E4M3;
    const int64_t group = nvfp4 ? 16 : 32;
    const Tensor *global = nvfp4 ? use(module, ".weight_global_scale", layer) : nullptr;
    layer->method = nvfp4 ? "compressed-tensors NVFP4" : "compressed-tensors MXFP4";
    if (checkpoint->config.transforms) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "compressed-tensors behind a transform of the activations (transform_config), "
                    "which qk does not do: %s",
                    kInstead);
    }
    QK_IO_TRY(check_parts(codes, scale, global, group, message));
    set_plane(layer, QK_PLANE_DATA, codes);
    set_plane(layer, QK_PLANE_SCALE, scale);
    // The package decodes to what the model computes in, which the tensors do not say.
    layer->dense_format = checkpoint->model_format != 0 ? checkpoint->model_format : QK_FORMAT_BF16;
    const int64_t n = codes->shape[0], k = codes->shape[1] * 2;
    describe_weight(layer, QK_FORMAT_FP4_E2M1, QK_LAYOUT_ROW, group,
                    nvfp4 ? QK_FORMAT_E4M3 : QK_FORMAT_E8M0, n, k);
    if (nvfp4) {
        set_plane(layer, QK_PLANE_GLOBAL, global);
        layer->desc.flags |= QK_TENSOR_GLOBAL | QK_TENSOR_GLOBAL_DIVIDES;
    }
    return take_bias(module, n, layer, message);
}

}  // namespace

extern const Dialect kCompressedFp4 = {".weight_packed", claims, describe};

}  // namespace qk_io
