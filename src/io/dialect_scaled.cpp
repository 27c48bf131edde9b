// Weights of 8 bits beside their scales: X.weight I8 or F8_E4M3 [n,k] and X.weight_scale; of FP8
// also X.weight_scale_inv, which multiplies in spite of its name, or X.scale. Scales are one number
// for the tensor, one a row [n,1], one a group [n,groups], or one a block
// [ceil(n/rows),ceil(k/columns)]. What is stored for activations (X.input_scale) is left alone: qk
// multiplies by x as it is.
// Source: vllm-project/compressed-tensors src/compressed_tensors/compressors/naive_quantized/,
// huggingface/transformers src/transformers/integrations/finegrained_fp8.py.
//
// torchao's are the same by other names, X._weight_qdata beside X._weight_scale and
// X._weight_zero_point, where a code is a byte: Int8Tensor, IntxUnpackedToInt8Tensor, Float8Tensor.
// Source: pytorch/ao torchao/prototype/safetensors/ and quantization/quantize_/workflows/.
#include "dialect.hpp"
#include "methods.hpp"
#include "remake.hpp"

namespace qk_io {
namespace {

constexpr const char *kScaleNames[] = {".weight_scale", ".weight_scale_inv", ".scale"};
constexpr int64_t kUsualBlock = 128;  // of fp8

struct Parts {
    const Tensor *weight, *scale, *zero;
    int64_t n, k;
    bool floats;  // codes are E4M3
};

struct Grid {  // rows and columns of w that share a scale
    int64_t rows, columns;
};

// Codes that mean a number by themselves are its whoever wrote them. Integers beside a weight_scale
// are compressed-tensors' where nothing says otherwise.
bool claims(const Module &module) {
    const Method method = module.checkpoint->config.method;
    if (is(module.anchor, QK_DTYPE_F8_E4M3, 2)) return true;
    return is(module.anchor, QK_DTYPE_I8, 2) &&
           float_format(sibling(module, ".weight_scale")) != 0 &&
           (method == Method::kNone || method == Method::kCompressedTensors);
}

bool claims_torchao(const Module &module) {
    return module.anchor->dtype == QK_DTYPE_F8_E4M3 || module.anchor->dtype == QK_DTYPE_I8;
}

// 0: no scales that qk has.
qk_format scale_format(const Tensor *scale) {
    const bool bytes = scale->dtype == QK_DTYPE_U8 || scale->dtype == QK_DTYPE_F8_E8M0;
    return bytes ? QK_FORMAT_E8M0 : float_format(scale);
}

// Whether the scales are one for so many rows and columns of w.
bool is_grid(const Parts &p, const Grid &grid) {
    if (grid.rows <= 0 || grid.columns <= 0) return false;
    const int64_t lines = ceil_div(p.n, grid.rows), groups = ceil_div(p.k, grid.columns);
    if (p.scale->rank == 2) return p.scale->shape[0] == lines && p.scale->shape[1] == groups;
    // PyTorch's scalars, vectors of one, and of one a row.
    const int64_t count = p.scale->rank == 0 ? 1 : p.scale->rank == 1 ? p.scale->shape[0] : -1;
    return groups == 1 && count == lines;
}

Grid grid_of(const Scheme &scheme, const Parts &p) {
    if (same(scheme.strategy, "tensor")) return {p.n, p.k};
    if (same(scheme.strategy, "block")) return {scheme.block[0], scheme.block[1]};
    if (same(scheme.strategy, "channel") || scheme.group_size <= 0) return {1, p.k};
    return {1, scheme.group_size};
}

bool fits(const Scheme &scheme, const Parts &p) {
    static constexpr const char *kIntegers[] = {"", "int-quantized", "naive-quantized"};
    static constexpr const char *kFloats[] = {"", "float-quantized", "naive-quantized",
                                              "mxfp8-quantized"};
    bool of_format = false;
    for (const char *name : kIntegers) of_format |= !p.floats && same(scheme.format, name);
    for (const char *name : kFloats) of_format |= p.floats && same(scheme.format, name);
    const bool of_type = same(scheme.type, p.floats ? "float" : "int") ||
                         (!p.floats && scheme.type[0] == 0);  // compressed-tensors' default
    const bool of_bits = p.floats ? scheme.bits == 8 : scheme.bits >= 1 && scheme.bits <= 8;
    return of_format && of_type && of_bits && scheme.symmetric == (p.zero == nullptr) &&
           is_grid(p, grid_of(scheme, p));
}

// Config groups say which layers they are for by patterns of module types; the tensors say it
// better. Of the groups that fit them, all must agree on what the tensors leave open.
qk_status grid_of_schemes(const Config &config, const Parts &p, Grid *grid,
                          qk_io_message *message) {
    for (int64_t i = 0; i < config.scheme_count; ++i) {
        const Scheme &scheme = config.schemes[i];
        if (!fits(scheme, p)) continue;
        const Grid found = grid_of(scheme, p);
        if (grid->rows != 0 && (found.rows != grid->rows || found.columns != grid->columns)) {
            return fail(message, QK_ERROR_UNSUPPORTED,
                        "a scale for %lld x %lld and one for %lld x %lld weights both give %s",
                        static_cast<long long>(grid->rows), static_cast<long long>(grid->columns),
                        static_cast<long long>(found.rows), static_cast<long long>(found.columns),
                        shape_text(p.scale).text);
        }
        *grid = found;
    }
    if (grid->rows != 0) return QK_OK;
    return fail(message, QK_ERROR_UNSUPPORTED,
                "no config group is %s 8-bit %s with scales %s of weight %s (%s)",
                p.zero == nullptr ? "symmetric" : "asymmetric", p.floats ? "float" : "int",
                shape_text(p.scale).text, shape_text(p.weight).text, saying_of(config).text);
}

// Without config groups the shapes say it, blocks only with the configuration's or the usual size.
qk_status grid_of_shapes(const Config &config, const Parts &p, Grid *grid, qk_io_message *message) {
    const bool given = config.block[0] > 0 && config.block[1] > 0;
    const Grid block =
        given ? Grid{config.block[0], config.block[1]} : Grid{kUsualBlock, kUsualBlock};
    const int64_t groups = p.scale->rank == 2 ? p.scale->shape[1] : 0;
    const Grid candidates[] = {
        {p.n, p.k}, {1, p.k}, block, {1, groups > 0 && p.k % groups == 0 ? p.k / groups : 0}};
    for (const Grid &candidate : candidates) {
        if (!is_grid(p, candidate)) continue;
        *grid = candidate;
        return QK_OK;
    }
    return fail(message, QK_ERROR_UNSUPPORTED,
                "scales are %s: neither the configuration nor their shape says which of weight %s "
                "share one",
                shape_text(p.scale).text, shape_text(p.weight).text);
}

// Zeros are stored like scales, and in symmetric files that have them they are 0.
qk_status set_zeros(const Parts &p, const Grid &grid, Layer *layer, qk_io_message *message) {
    if (p.zero == nullptr) return QK_OK;
    const DtypeRow *row = dtype_by_code(p.scale->dtype);
    const int64_t scales = p.scale->bytes / (row == nullptr ? 1 : row->bits / 8);
    if (p.zero->dtype != QK_DTYPE_I8 || p.zero->bytes != scales || p.floats) {
        return fail(message, QK_ERROR_CORRUPT, "weight_zero_point is %s beside scales %s of %s",
                    shape_text(p.zero).text, shape_text(p.scale).text, shape_text(p.weight).text);
    }
    bool any = false;
    for (int64_t i = 0; i < p.zero->bytes; ++i) any |= p.zero->data[i] != 0;
    if (!any) return QK_OK;
    return set_minima(layer, {make_wide_repeated, p.scale, grid.rows},
                      {make_minima, p.zero, grid.rows, p.scale}, message);
}

qk_status check_kind(const Module &module, const Parts &p, qk_io_message *message) {
    const Config &config = module.checkpoint->config;
    if (p.scale == nullptr || scale_format(p.scale) == 0) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "FP8 (%s; weight is %s), whose scales are %s; qk loads weight_scale, "
                    "weight_scale_inv and scale of F32, F16, BF16 and E8M0: %s",
                    saying_of(config).text, shape_text(p.weight).text, shape_text(p.scale).text,
                    kInstead);
    }
    const char *transform = config.transforms ? "transform_config" : nullptr;
    if (sibling(module, ".pre_quant_scale") != nullptr) transform = "pre_quant_scale";
    if (sibling(module, "._weight_act_pre_scale") != nullptr) transform = "act_pre_scale";
    if (transform == nullptr) return QK_OK;
    return fail(message, QK_ERROR_UNSUPPORTED,
                "8-bit weights behind a transform of the activations (%s), which qk does not do: "
                "%s",
                transform, kInstead);
}

void set_scales(const Parts &p, const Grid &grid, Layer *layer) {
    const int64_t lines = ceil_div(p.n, grid.rows);
    if (lines == p.n) {
        set_plane(layer, QK_PLANE_SCALE, p.scale);
    } else {
        set_recipe(layer, QK_PLANE_SCALE, {make_repeated, p.scale, grid.rows},
                   p.scale->bytes / lines * p.n);
    }
}

Parts parts_of(const Module &module) {
    return {module.anchor,
            nullptr,
            nullptr,
            module.anchor->shape[0],
            module.anchor->shape[1],
            module.anchor->dtype == QK_DTYPE_F8_E4M3};
}

qk_status describe_parts(qk_checkpoint *checkpoint, const Module &module, const Parts &p,
                         Layer *layer, qk_io_message *message) {
    const Config &config = checkpoint->config;
    QK_IO_TRY(check_kind(module, p, message));
    Grid grid = {0, 0};
    int64_t group = 0;
    QK_IO_TRY(config.scheme_count > 0 ? grid_of_schemes(config, p, &grid, message)
                                      : grid_of_shapes(config, p, &grid, message));
    QK_IO_TRY(normal_group(grid.columns < p.k ? grid.columns : QK_GROUP_ROW, p.k, &group, message));
    set_plane(layer, QK_PLANE_DATA, p.weight);
    set_scales(p, grid, layer);
    // Scales of 32 and of 8 bits are of no type that weights have been.
    const bool halves = p.scale->dtype == QK_DTYPE_F16 || p.scale->dtype == QK_DTYPE_BF16;
    layer->dense_format = halves ? float_format(p.scale) : checkpoint->model_format;
    if (layer->dense_format == 0) layer->dense_format = QK_FORMAT_F32;
    describe_weight(layer, p.floats ? QK_FORMAT_E4M3 : QK_FORMAT_S8, QK_LAYOUT_ROW, group,
                    scale_format(p.scale), p.n, p.k);
    QK_IO_TRY(set_zeros(p, grid, layer, message));
    return take_bias(module, p.n, layer, message);
}

qk_status describe(qk_checkpoint *checkpoint, const Module &module, Layer *layer,
                   qk_io_message *message) {
    Parts p = parts_of(module);
    p.zero = use(module, ".weight_zero_point", layer);
    for (const char *name : kScaleNames) {  // the first that is there
        if (p.scale == nullptr) p.scale = use(module, name, layer);
    }
    use(module, ".input_scale", layer);
    use(module, ".activation_scale", layer);
    layer->dialect = p.floats && checkpoint->config.method != Method::kCompressedTensors
                         ? QK_DIALECT_FP8
                         : QK_DIALECT_COMPRESSED_TENSORS;
    return describe_parts(checkpoint, module, p, layer, message);
}

qk_status describe_torchao(qk_checkpoint *checkpoint, const Module &module, Layer *layer,
                           qk_io_message *message) {
    layer->dialect = QK_DIALECT_TORCHAO;
    if (module.anchor->rank != 2) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "_weight_qdata is %s; qk loads torchao's bytes of rank 2: %s",
                    shape_text(module.anchor).text, kInstead);
    }
    Parts p = parts_of(module);
    p.scale = use(module, "._weight_scale", layer);
    p.zero = use(module, "._weight_zero_point", layer);
    return describe_parts(checkpoint, module, p, layer, message);
}

}  // namespace

extern const Dialect kScaled = {".weight", claims, describe};
extern const Dialect kTorchAo = {"._weight_qdata", claims_torchao, describe_torchao};

}  // namespace qk_io
