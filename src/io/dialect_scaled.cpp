// Weights of 8 bits beside their scales: X.weight I8 [n,k] and X.weight_scale, one number for the
// tensor, one a row [n,1], one a group [n,groups], or one a block [ceil(n/rows),ceil(k/columns)].
// Source: vllm-project/compressed-tensors src/compressed_tensors/compressors/naive_quantized/.
#include "dialect.hpp"
#include "methods.hpp"
#include "remake.hpp"

namespace qk_io {
namespace {

struct Parts {
    const Tensor *weight, *scale, *zero;
    int64_t n, k;
};

struct Grid {  // rows and columns of w that share a scale
    int64_t rows, columns;
};

// Other packages' X.weight_scale belongs to other arrangements of the codes.
bool claims(const Module &module) {
    const Method method = module.checkpoint->config.method;
    return is(module.anchor, QK_DTYPE_I8, 2) &&
           float_format(sibling(module, ".weight_scale")) != 0 &&
           (method == Method::kNone || method == Method::kCompressedTensors);
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
    return scheme.bits >= 1 && scheme.bits <= 8 &&
           (scheme.type[0] == 0 || same(scheme.type, "int")) &&
           (scheme.format[0] == 0 || same(scheme.format, "int-quantized") ||
            same(scheme.format, "naive-quantized")) &&
           scheme.symmetric == (p.zero == nullptr) && is_grid(p, grid_of(scheme, p));
}

// Config groups say which layers they are for by patterns of module types; the tensors say it
// better. Of the groups that fit them, all must agree on what the tensors leave open.
qk_status grid_of_schemes(const Config &config, const Parts &p, Grid *grid,
                          qk_io_message *message) {
    *grid = {0, 0};
    for (int64_t i = 0; i < config.scheme_count; ++i) {
        const Scheme &scheme = config.schemes[i];
        if (!fits(scheme, p)) continue;
        const Grid found = grid_of(scheme, p);
        if (grid->rows != 0 && (found.rows != grid->rows || found.columns != grid->columns)) {
            return fail(message, QK_ERROR_UNSUPPORTED,
                        "scales of %lld x %lld and of %lld x %lld weights are both %s",
                        static_cast<long long>(grid->rows), static_cast<long long>(grid->columns),
                        static_cast<long long>(found.rows), static_cast<long long>(found.columns),
                        shape_text(p.scale).text);
        }
        *grid = found;
    }
    if (grid->rows != 0) return QK_OK;
    return fail(message, QK_ERROR_UNSUPPORTED,
                "no config group is %s 8-bit int with weight_scale %s of weight %s (%s)",
                p.zero == nullptr ? "symmetric" : "asymmetric", shape_text(p.scale).text,
                shape_text(p.weight).text, saying_of(config).text);
}

// Without config groups the shapes say it.
qk_status grid_of_shapes(const Parts &p, Grid *grid, qk_io_message *message) {
    const int64_t groups = p.scale->rank == 2 ? p.scale->shape[1] : 0;
    const Grid candidates[] = {
        {p.n, p.k}, {1, p.k}, {1, groups > 0 && p.k % groups == 0 ? p.k / groups : 0}};
    for (const Grid &candidate : candidates) {
        if (!is_grid(p, candidate)) continue;
        *grid = candidate;
        return QK_OK;
    }
    return fail(message, QK_ERROR_UNSUPPORTED,
                "weight_scale is %s: no configuration says which of weight %s share a scale",
                shape_text(p.scale).text, shape_text(p.weight).text);
}

// Zeros are stored like scales, and in symmetric files that have them they are 0.
qk_status check_zeros(const Parts &p, qk_io_message *message) {
    if (p.zero == nullptr) return QK_OK;
    for (int64_t i = 0; i < p.zero->bytes; ++i) {
        if (p.zero->data[i] == 0) continue;
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "asymmetric 8-bit codes (weight_zero_point); qk loads symmetric ones: %s",
                    kInstead);
    }
    return QK_OK;
}

qk_status describe(qk_checkpoint *checkpoint, const Module &module, Layer *layer,
                   qk_io_message *message) {
    layer->dialect = QK_DIALECT_COMPRESSED_TENSORS;
    const Config &config = checkpoint->config;
    const Parts p = {module.anchor, use(module, ".weight_scale", layer),
                     use(module, ".weight_zero_point", layer), module.anchor->shape[0],
                     module.anchor->shape[1]};
    Grid grid = {0, 0};
    int64_t group = 0;
    if (config.transforms) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "compressed-tensors behind a transform of the activations (transform_config), "
                    "which qk does not do: %s",
                    kInstead);
    }
    QK_IO_TRY(config.scheme_count > 0 ? grid_of_schemes(config, p, &grid, message)
                                      : grid_of_shapes(p, &grid, message));
    QK_IO_TRY(check_zeros(p, message));
    QK_IO_TRY(normal_group(grid.columns < p.k ? grid.columns : QK_GROUP_ROW, p.k, &group, message));
    set_plane(layer, QK_PLANE_DATA, p.weight);
    if (grid.rows == 1) {
        set_plane(layer, QK_PLANE_SCALE, p.scale);
    } else {
        const int64_t lines = ceil_div(p.n, grid.rows);
        set_recipe(layer, QK_PLANE_SCALE, {make_repeated, p.scale, grid.rows},
                   p.scale->bytes / lines * p.n);
    }
    layer->dense_format = float_format(p.scale);
    if (layer->dense_format == QK_FORMAT_F32 && checkpoint->model_format != 0) {
        layer->dense_format = checkpoint->model_format;
    }
    describe_weight(layer, QK_FORMAT_S8, QK_LAYOUT_ROW, group, float_format(p.scale), p.n, p.k);
    return take_bias(module, p.n, layer, message);
}

}  // namespace

extern const Dialect kScaled = {".weight", claims, describe};

}  // namespace qk_io
