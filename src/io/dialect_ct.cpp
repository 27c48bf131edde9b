// compressed-tensors pack-quantized: X.weight_packed I32 [n,ceil(k/8)], X.weight_scale [n,groups],
// X.weight_shape [2], and for asymmetric weights X.weight_zero_point I32 [ceil(n/8),groups]; with 8
// bits [n,ceil(k/4)] and [ceil(n/4),groups]. The other formats: dialect_scaled.cpp.
// Source: vllm-project/compressed-tensors src/compressed_tensors/compressors/pack_quantized/.
#include "dialect.hpp"
#include "methods.hpp"
#include "order.hpp"
#include "remake.hpp"

namespace qk_io {
namespace {

struct Parts {
    const Tensor *packed, *scale, *shape, *zero, *g_idx;
    int64_t bits, n, k, groups;
};

bool claims(const Module &) { return true; }  // no other dialect uses this name

qk_status read_shape(Parts *p, qk_io_message *message) {
    const Tensor *shape = p->shape;
    const bool typed = shape != nullptr && shape->rank == 1 && shape->shape[0] == 2 &&
                       (shape->dtype == QK_DTYPE_I64 || shape->dtype == QK_DTYPE_I32);
    if (!typed) {
        return fail(message, QK_ERROR_CORRUPT, "weight_shape is %s; expected I64 [2]",
                    shape_text(shape).text);
    }
    int64_t sizes[2] = {0, 0};
    for (int i = 0; i < 2; ++i) {
        int32_t narrow = 0;
        if (shape->dtype == QK_DTYPE_I64) {
            memcpy(&sizes[i], shape->data + i * 8, 8);
        } else {
            memcpy(&narrow, shape->data + i * 4, 4);
            sizes[i] = narrow;
        }
    }
    p->n = sizes[0];
    p->k = sizes[1];
    if (p->n > 0 && p->k > 0) return QK_OK;
    return fail(message, QK_ERROR_CORRUPT, "weight_shape says [%lld,%lld]; sizes are at least 1",
                static_cast<long long>(p->n), static_cast<long long>(p->k));
}

// Words hold 10 codes of 3 bits, or, in newer files, codes go on in the next word.
bool is_packed(const Parts &p, int64_t bits) {
    const int64_t words = p.packed->shape[1];
    const bool whole = words == ceil_div(p.k, 32 / bits);
    const bool dense = words == p.k / 32 * bits + ceil_div(p.k % 32 * bits, 32);
    return p.packed->shape[0] == p.n && (whole || dense);
}

// Of weights of as many bits as the configuration has, of 4, or of 8 or 2 where there is none.
int64_t stored_bits(const Config &config, const Parts &p) {
    for (int64_t i = 0; i < config.scheme_count; ++i) {
        const int64_t bits = config.schemes[i].bits;
        if (bits >= 1 && bits <= 8 && is_packed(p, bits)) return bits;
    }
    if (is_packed(p, 4)) return 4;
    if (config.scheme_count > 0) return 0;
    return is_packed(p, 8) ? 8 : is_packed(p, 2) ? 2 : 0;
}

qk_status check_packed(const Config &config, Parts *p, qk_io_message *message) {
    p->bits = stored_bits(config, *p);
    if (p->bits == 4 || p->bits == 8) return QK_OK;
    if (p->bits != 0) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "compressed-tensors with %lld bits; qk loads 4 and 8: %s",
                    static_cast<long long>(p->bits), kInstead);
    }
    return fail(message, QK_ERROR_CORRUPT,
                "weight_packed is %s, which is neither 4 nor 8 bits of weight_shape [%lld,%lld]",
                shape_text(p->packed).text, static_cast<long long>(p->n),
                static_cast<long long>(p->k));
}

// Intact, but of another arrangement than these files read.
qk_status check_kind(const Config &config, const Parts &p, qk_io_message *message) {
    if (!is(p.packed, QK_DTYPE_I32, 2)) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "weight_packed is %s (%s); qk loads I32 of rank 2 (pack-quantized): %s",
                    shape_text(p.packed).text, saying_of(config).text, kInstead);
    }
    if (config.transforms) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "compressed-tensors behind a transform of the activations (transform_config), "
                    "which qk does not do: %s",
                    kInstead);
    }
    if (p.zero == nullptr || p.zero->dtype == QK_DTYPE_I32) return QK_OK;
    return fail(message, QK_ERROR_UNSUPPORTED,
                "weight_zero_point is %s; qk loads zeros packed into I32: %s",
                shape_text(p.zero).text, kInstead);
}

int64_t groups_of(const Scheme &scheme, int64_t k) {
    if (same(scheme.strategy, "channel") || same(scheme.strategy, "tensor")) return 1;
    if (scheme.group_size == QK_GROUP_ROW) return 1;
    return scheme.group_size > 0 ? ceil_div(k, scheme.group_size) : 0;
}

bool fits(const Scheme &scheme, const Parts &p) {
    return scheme.bits == p.bits && (scheme.type[0] == 0 || same(scheme.type, "int")) &&
           (scheme.format[0] == 0 || same(scheme.format, "pack-quantized")) &&
           scheme.symmetric == (p.zero == nullptr) && groups_of(scheme, p.k) == p.groups;
}

// Config groups say which layers they are for by patterns of module types; the tensors say it
// better. Of the groups that fit them, all must agree on what the tensors leave open.
qk_status pick_group(const Config &config, const Parts &p, int64_t *group, qk_io_message *message) {
    const Scheme *found = nullptr;
    for (int64_t i = 0; i < config.scheme_count; ++i) {
        const Scheme &scheme = config.schemes[i];
        if (!fits(scheme, p)) continue;
        if (found != nullptr && found->group_size != scheme.group_size && p.groups > 1) {
            return fail(message, QK_ERROR_UNSUPPORTED,
                        "groups of %lld and of %lld both give %lld groups a row",
                        static_cast<long long>(found->group_size),
                        static_cast<long long>(scheme.group_size),
                        static_cast<long long>(p.groups));
        }
        if (found == nullptr) found = &scheme;
    }
    if (found == nullptr) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "no config group is %s %lld-bit int pack-quantized with %lld groups a row of "
                    "%lld (%s)",
                    p.zero == nullptr ? "symmetric" : "asymmetric", static_cast<long long>(p.bits),
                    static_cast<long long>(p.groups), static_cast<long long>(p.k),
                    saying_of(config).text);
    }
    if (same(found->actorder, "group") && p.g_idx == nullptr) {
        return fail(message, QK_ERROR_CORRUPT, "actorder is \"group\" without a weight_g_idx");
    }
    if (p.groups == 1) {
        *group = QK_GROUP_ROW;
        return QK_OK;
    }
    return normal_group(found->group_size, p.k, group, message);
}

qk_status group_of(const Config &config, const Parts &p, int64_t *group, qk_io_message *message) {
    if (config.method == Method::kCompressedTensors) {
        return pick_group(config, p, group, message);
    }
    if (config.method != Method::kNone) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "weight_packed belongs to compressed-tensors, quant_method is \"%s\"",
                    config.method_name);
    }
    if (p.groups > 0 && p.k % p.groups == 0) {
        return normal_group(p.groups == 1 ? QK_GROUP_ROW : p.k / p.groups, p.k, group, message);
    }
    return fail(message, QK_ERROR_UNSUPPORTED,
                "no configuration gives a group_size, and %lld groups do not divide %lld",
                static_cast<long long>(p.groups), static_cast<long long>(p.k));
}

// Files of layers that were never given an order hold -1 in its place.
bool has_order(const Tensor *g_idx) {
    if (!is(g_idx, QK_DTYPE_I32, 1)) return g_idx != nullptr;
    for (int64_t at = 0; at < g_idx->bytes; at += 4) {
        int32_t group;
        memcpy(&group, g_idx->data + at, sizeof group);
        if (group == -1) return false;
    }
    return true;
}

qk_status check_scales(Parts *p, bool *whole, qk_io_message *message) {
    const Tensor *scale = p->scale;
    const bool scalar =
        scale != nullptr && (scale->rank == 0 || (scale->rank == 1 && scale->shape[0] == 1));
    *whole = scalar && p->n != 1;
    if (*whole && p->zero != nullptr) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "one scale and one zero for the whole tensor; qk loads zeros of rows and "
                    "groups: %s",
                    kInstead);
    }
    const bool rows = scale != nullptr && scale->rank == 2 && scale->shape[0] == p->n;
    if (float_format(scale) == 0 || (!scalar && !rows)) {
        return fail(message, QK_ERROR_CORRUPT, "weight_scale is %s; expected F16 [%lld,groups]",
                    shape_text(scale).text, static_cast<long long>(p->n));
    }
    p->groups = scalar ? 1 : scale->shape[1];
    if (p->zero == nullptr) return QK_OK;
    const int64_t lines = ceil_div(p->n, 32 / p->bits);
    const bool zeros = is(p->zero, QK_DTYPE_I32, 2) && p->zero->shape[0] == lines &&
                       p->zero->shape[1] == p->groups;
    if (zeros) return QK_OK;
    return fail(message, QK_ERROR_CORRUPT, "weight_zero_point is %s; expected I32 [%lld,%lld]",
                shape_text(p->zero).text, static_cast<long long>(lines),
                static_cast<long long>(p->groups));
}

qk_status set_8_bits(const Parts &p, int64_t group, Layer *layer, qk_io_message *message) {
    set_recipe(layer, QK_PLANE_DATA, {make_offset_rows, p.packed, 0}, p.n * p.k);
    describe_weight(layer, QK_FORMAT_S8, QK_LAYOUT_ROW, group, float_format(p.scale), p.n, p.k);
    if (p.zero == nullptr) return QK_OK;
    return set_minima(layer, {make_wide_repeated, p.scale, 1},
                      {make_minima_of_rows, p.zero, 1, p.scale}, message);
}

qk_status set_4_bits(const Parts &p, int64_t group, Layer *layer) {
    if (order_of(*layer) != nullptr) {
        set_recipe(layer, QK_PLANE_DATA, {make_ordered_rows, p.packed, 0}, p.packed->bytes);
    } else {
        set_plane(layer, QK_PLANE_DATA, p.packed);
    }
    if (p.zero != nullptr) {
        set_plane(layer, QK_PLANE_ZERO, p.zero);
    } else {
        layer->desc.flags |= QK_TENSOR_SYMMETRIC;
    }
    describe_weight(layer, QK_FORMAT_U4_AFFINE, QK_LAYOUT_WORD, group, float_format(p.scale), p.n,
                    p.k);
    return QK_OK;
}

qk_status describe(qk_checkpoint *checkpoint, const Module &module, Layer *layer,
                   qk_io_message *message) {
    layer->dialect = QK_DIALECT_COMPRESSED_TENSORS;
    Parts p = {module.anchor,
               use(module, ".weight_scale", layer),
               use(module, ".weight_shape", layer),
               use(module, ".weight_zero_point", layer),
               use(module, ".weight_g_idx", layer),
               0,
               0,
               0,
               0};
    QK_IO_TRY(check_kind(checkpoint->config, p, message));
    bool whole = false;
    int64_t group = 0;
    QK_IO_TRY(read_shape(&p, message));
    QK_IO_TRY(check_packed(checkpoint->config, &p, message));
    QK_IO_TRY(check_scales(&p, &whole, message));
    QK_IO_TRY(group_of(checkpoint->config, p, &group, message));
    if (has_order(p.g_idx)) {
        QK_IO_TRY(take_order(checkpoint, p.g_idx, "weight_g_idx", p.k, group, layer, message));
    }
    if (whole) {  // one scale for the whole tensor (strategy "tensor") becomes one a row
        set_recipe(layer, QK_PLANE_SCALE, {make_repeated, p.scale, p.n}, p.scale->bytes * p.n);
    } else {
        set_plane(layer, QK_PLANE_SCALE, p.scale);
    }
    QK_IO_TRY(p.bits == 8 ? set_8_bits(p, group, layer, message) : set_4_bits(p, group, layer));
    layer->dense_format = float_format(p.scale);
    return take_bias(module, p.n, layer, message);
}

}  // namespace

extern const Dialect kCompressedTensors = {".weight_packed", claims, describe};

}  // namespace qk_io
