#include "format/describe.hpp"

#include <stddef.h>

#include "base/growing.hpp"

namespace qk {
namespace {

using ll = long long;

constexpr uint32_t kOfQuantized = QK_TENSOR_SYMMETRIC | QK_TENSOR_GLOBAL | QK_TENSOR_GLOBAL_ROWS |
                                  QK_TENSOR_GLOBAL_DIVIDES | QK_TENSOR_FLOAT_MIN |
                                  QK_TENSOR_ORDERED;

Status check_header(const qk_tensor_desc &desc, ErrorText *error) {
    constexpr uint32_t known = QK_TENSOR_READ_ONLY | QK_TENSOR_COLUMN_MAJOR | kOfQuantized;
    QK_CHECK((desc.flags & ~known) == 0, error, ARGUMENT, "desc: flags 0x%x has unknown bits",
             desc.flags);
    QK_CHECK(desc.reserved == 0, error, ARGUMENT, "desc: reserved is %u, must be 0", desc.reserved);
    return QK_OK;
}

// Rows and columns in int64, with room to count bytes. Dense tensors may have no rows.
Status check_shape(const qk_tensor_desc &desc, Shape *shape, ErrorText *error) {
    QK_CHECK(desc.rank >= 1 && desc.rank <= QK_MAX_RANK, error, SHAPE,
             "desc: rank is %d, accepted are 1 to %d", desc.rank, QK_MAX_RANK);
    Checked rows(1);
    for (int32_t i = 0; i < desc.rank; ++i) {
        const int32_t least = is_dense(*shape->format) && i < desc.rank - 1 ? 0 : 1;
        QK_CHECK(desc.shape[i] >= least, error, SHAPE,
                 "desc: shape[%d] is %lld, must be at least %d", i, ll(desc.shape[i]), least);
        if (i < desc.rank - 1) rows = rows * desc.shape[i];
    }
    shape->columns = desc.shape[desc.rank - 1];
    shape->rows = rows.value;
    QK_CHECK(rows.ok && (rows * shape->columns * 8).ok, error, SHAPE,
             "desc: the shape's element count overflows 64-bit sizes");
    return QK_OK;
}

// Lines, rows or columns, that may be apart; bytes are counted from the first number to the last.
Status check_stride(const qk_tensor_desc &desc, Shape *shape, ErrorText *error) {
    shape->column_major = (desc.flags & QK_TENSOR_COLUMN_MAJOR) != 0;
    const int64_t lines = shape->column_major ? shape->columns : shape->rows;
    const int64_t length = shape->column_major ? shape->rows : shape->columns;
    const bool empty = shape->rows == 0;  // nothing is between no rows
    shape->stride = desc.row_stride != 0 && !empty ? desc.row_stride : length;
    QK_CHECK(shape->stride >= length, error, SHAPE,
             "desc: row_stride is %lld, must be 0 or at least %lld, or %s overlap",
             ll(desc.row_stride), ll(length), shape->column_major ? "columns" : "rows");
    const Checked numbers = empty ? Checked(0) : Checked(lines - 1) * shape->stride + length;
    QK_CHECK((numbers * 8).ok, error, SHAPE, "desc: row_stride %lld overflows 64-bit sizes",
             ll(desc.row_stride));
    shape->plane_bytes[QK_PLANE_DATA] = numbers.value * (shape->format->bits / 8);
    return QK_OK;
}

Status check_dense(const qk_tensor_desc &desc, Shape *shape, ErrorText *error) {
    QK_CHECK(desc.layout == QK_LAYOUT_ROW || desc.layout == QK_LAYOUT_PACKED, error, FORMAT,
             "desc: a dense tensor has layout row, not %d", desc.layout);
    QK_CHECK(desc.scale_format == 0 && desc.group_size == 0 && desc.scale_group_size == 0 &&
                 desc.grouping == QK_GROUPING_DEFAULT && (desc.flags & kOfQuantized) == 0,
             error, FORMAT, "desc: %s is dense and has no scales, groups, zeros or order",
             shape->format->name);
    return check_stride(desc, shape, error);
}

Status check_groups(const qk_tensor_desc &desc, Shape *shape, ErrorText *error) {
    const Layout &layout = *shape->layout;
    QK_CHECK(desc.grouping >= QK_GROUPING_DEFAULT && desc.grouping <= QK_GROUPING_FLAT, error,
             ARGUMENT, "desc: grouping is %d, accepted are 0 to 2", desc.grouping);
    const bool row_group = desc.group_size == QK_GROUP_ROW;
    const bool any_size = shape->format->id == QK_FORMAT_LUT8;
    const int32_t least = any_size ? 1 : 16, most = any_size ? INT32_MAX : 4096;
    QK_CHECK(row_group || (desc.group_size >= least && desc.group_size <= most), error, SHAPE,
             "desc: group_size is %d, accepted are %d to %d and QK_GROUP_ROW", desc.group_size,
             least, most);
    const bool flat_default = layout.flat_default || shape->format->id == QK_FORMAT_LUT8;
    const bool flat = desc.grouping == QK_GROUPING_FLAT ||
                      (desc.grouping == QK_GROUPING_DEFAULT && flat_default && !row_group);
    QK_CHECK(!flat || !row_group, error, SHAPE,
             "desc: groups over the flattened tensor need a group_size, not QK_GROUP_ROW");
    QK_CHECK(!flat || layout.flat_allowed, error, FORMAT,
             "desc: layout %s cannot hold groups over the flattened tensor", layout.name);
    QK_CHECK(make_geometry(shape->rows, shape->columns, desc.group_size, flat, &shape->geometry),
             error, SHAPE, "desc: %lld x %lld codes overflow 64-bit sizes", ll(shape->rows),
             ll(shape->columns));
    return QK_OK;
}

Status check_scales(const qk_tensor_desc &desc, Shape *shape, ErrorText *error) {
    shape->scale_format = find_format(desc.scale_format);
    const bool i8 = desc.scale_format == QK_FORMAT_I8;
    const bool nested = i8 || desc.scale_format == QK_FORMAT_LUT8;
    const bool small = desc.scale_format == QK_FORMAT_E8M0 || desc.scale_format == QK_FORMAT_E4M3;
    QK_CHECK(shape->scale_format != nullptr && (nested || small || is_float(*shape->scale_format)),
             error, FORMAT,
             "desc: scale_format is %d, accepted are f32, f16, bf16, e8m0, e4m3, i8 and lut8 "
             "(nested)",
             desc.scale_format);
    QK_CHECK(nested || desc.scale_group_size == 0, error, FORMAT,
             "desc: scale_group_size is %d, but only nested scales (lut8, i8) have one",
             desc.scale_group_size);
    const int32_t least = i8 ? 8 : 16;
    QK_CHECK(desc.scale_group_size == 0 ||
                 (desc.scale_group_size >= least && desc.scale_group_size <= 4096),
             error, SHAPE, "desc: scale_group_size is %d, accepted are 0 (256) and %d to 4096",
             desc.scale_group_size, least);
    if (nested) {
        shape->second_group =
            desc.scale_group_size != 0 ? desc.scale_group_size : kDefaultSecondGroup;
    }
    return QK_OK;
}

Status check_ggml(Shape *shape, ErrorText *error) {
    QK_CHECK(shape->format->id != QK_FORMAT_FP4_GGML || shape->scale_format->id == QK_FORMAT_E8M0,
             error, FORMAT, "desc: fp4_ggml has e8m0 scales, not %s", shape->scale_format->name);
    return QK_OK;
}

Status check_minimum(const qk_tensor_desc &desc, Shape *shape, ErrorText *error) {
    if ((desc.flags & QK_TENSOR_FLOAT_MIN) == 0) return QK_OK;
    const FormatKind kind = shape->format->kind;
    QK_CHECK(kind == FormatKind::kU4 || kind == FormatKind::kS8, error, FORMAT,
             "desc: %s has no minima, u4 and s8 may", shape->format->name);
    QK_CHECK((desc.flags & QK_TENSOR_SYMMETRIC) == 0, error, FORMAT,
             "desc: QK_TENSOR_FLOAT_MIN and QK_TENSOR_SYMMETRIC exclude each other");
    QK_CHECK(is_float(*shape->scale_format) || desc.scale_format == QK_FORMAT_I8, error, FORMAT,
             "desc: minima are stored as scales are, in f32, f16, bf16 or i8, not %s",
             shape->scale_format->name);
    shape->has_minimum = true;
    shape->has_zero = false;
    return QK_OK;
}

// A layout of records says all of it.
Status check_record(const qk_tensor_desc &desc, Shape *shape, ErrorText *error) {
    const Record *const record = shape->layout->record;
    if (record == nullptr) return QK_OK;
    const char *const name = shape->layout->name;
    const bool symmetric = record->format == QK_FORMAT_U4_AFFINE && !record->has_minimum;
    const uint32_t flags =
        (symmetric ? QK_TENSOR_SYMMETRIC : 0) | (record->has_minimum ? QK_TENSOR_FLOAT_MIN : 0);
    QK_CHECK(desc.format == record->format && desc.scale_format == record->scale_format &&
                 desc.group_size == record->group && (desc.flags & kOfQuantized) == flags,
             error, FORMAT,
             "desc: %s holds format %d with scale_format %d, groups of %d and flags 0x%x", name,
             record->format, record->scale_format, record->group, flags);
    QK_CHECK(desc.scale_group_size == 0 || desc.scale_group_size == record->second_group, error,
             SHAPE, "desc: scale_group_size is %d, %s has %d", desc.scale_group_size, name,
             record->second_group);
    QK_CHECK(shape->columns % record->codes == 0, error, SHAPE,
             "desc: rows of %lld codes are no whole records of %d, %s's", ll(shape->columns),
             record->codes, name);
    shape->second_group = record->second_group;
    return QK_OK;
}

Status check_global(const qk_tensor_desc &desc, Shape *shape, ErrorText *error) {
    const uint32_t one = desc.flags & QK_TENSOR_GLOBAL, rows = desc.flags & QK_TENSOR_GLOBAL_ROWS;
    shape->divides = (desc.flags & QK_TENSOR_GLOBAL_DIVIDES) != 0;
    QK_CHECK(one == 0 || rows == 0, error, ARGUMENT,
             "desc: QK_TENSOR_GLOBAL and QK_TENSOR_GLOBAL_ROWS exclude each other");
    QK_CHECK(!shape->divides || one != 0 || rows != 0, error, ARGUMENT,
             "desc: QK_TENSOR_GLOBAL_DIVIDES needs QK_TENSOR_GLOBAL or QK_TENSOR_GLOBAL_ROWS");
    if (one == 0 && rows == 0) return QK_OK;
    QK_CHECK(desc.scale_format == QK_FORMAT_E8M0 || desc.scale_format == QK_FORMAT_E4M3, error,
             FORMAT, "desc: %s scales have no global one, e8m0 and e4m3 may",
             shape->scale_format->name);
    QK_CHECK(rows == 0 || !shape->geometry.flat, error, FORMAT,
             "desc: groups that straddle rows have no scale of their row");
    shape->globals = rows != 0 ? shape->rows : 1;
    return QK_OK;
}

void count_planes(Shape *shape) {
    const Layout &layout = *shape->layout;
    const Geometry &geometry = shape->geometry;
    int64_t *const bytes = shape->plane_bytes;
    bytes[QK_PLANE_DATA] = layout.data_bytes(geometry);
    bytes[QK_PLANE_SCALE] = layout.scale_count(geometry) * (shape->scale_format->bits / 8);
    if (shape->has_zero) bytes[QK_PLANE_ZERO] = layout.zero_bytes(geometry);
    if (shape->has_minimum) bytes[QK_PLANE_ZERO] = bytes[QK_PLANE_SCALE];
    if (shape->second_group != 0 && layout.record == nullptr) {
        const bool i8 = shape->scale_format->id == QK_FORMAT_I8;
        bytes[QK_PLANE_SCALE2] = ceil_div(geometry.group_count, shape->second_group) * 4;
        bytes[QK_PLANE_SCALE_CODE] = i8 ? 0 : 256 * 4;
        bytes[QK_PLANE_SCALE_BIAS] = i8 ? 0 : 4;
        if (shape->has_minimum) bytes[QK_PLANE_MIN2] = bytes[QK_PLANE_SCALE2];
    }
    bytes[QK_PLANE_TABLE] = table_entries(*shape->format) * 4;
    bytes[QK_PLANE_GLOBAL] = shape->globals * 4;
    if (shape->ordered) bytes[QK_PLANE_ORDER] = shape->columns * 4;
    if (has_folded_code(*shape)) bytes[QK_PLANE_SCALE_CODE] = 256 * 4;
}

Status check_quantized(const qk_tensor_desc &desc, qk_layout packed, Shape *shape,
                       ErrorText *error) {
    const Format &format = *shape->format;
    QK_CHECK(desc.row_stride == 0 && (desc.flags & QK_TENSOR_COLUMN_MAJOR) == 0, error, FORMAT,
             "desc: %s is quantized: its layout places rows, and row_stride and "
             "QK_TENSOR_COLUMN_MAJOR are of dense tensors",
             format.name);
    const qk_layout id = desc.layout == QK_LAYOUT_PACKED ? packed : desc.layout;
    QK_CHECK(id != QK_LAYOUT_PACKED, error, UNSUPPORTED,
             "desc: layout packed has no byte counts of its own; only a device gives it a meaning");
    const char *const name = id >= 0 ? layout_name(id) : nullptr;
    const bool known =
        name != nullptr && (id < QK_LAYOUT_PACKED || desc.layout == QK_LAYOUT_PACKED);
    QK_CHECK(known, error, FORMAT, "desc: layout %d is unknown", desc.layout);
    shape->layout = find_layout(id, format.bits);
    QK_CHECK(shape->layout != nullptr, error, FORMAT, "desc: layout %s does not hold %d-bit codes",
             name, format.bits);
    const bool affine = format.kind == FormatKind::kU4;
    const bool symmetric = (desc.flags & QK_TENSOR_SYMMETRIC) != 0;
    shape->whole_range = format.kind == FormatKind::kS8 && symmetric;
    QK_CHECK(affine || !symmetric || shape->whole_range, error, FORMAT,
             "desc: %s has no zeros, so QK_TENSOR_SYMMETRIC means nothing", format.name);
    shape->has_zero = affine && !symmetric;
    shape->ordered = (desc.flags & QK_TENSOR_ORDERED) != 0;
    QK_CHECK(!shape->ordered || shape->columns <= INT32_MAX, error, SHAPE,
             "desc: k is %lld, an order has 32-bit indices", ll(shape->columns));
    QK_TRY(check_scales(desc, shape, error));
    QK_TRY(check_groups(desc, shape, error));
    QK_TRY(check_ggml(shape, error));
    QK_TRY(check_minimum(desc, shape, error));
    QK_TRY(check_record(desc, shape, error));
    QK_TRY(check_global(desc, shape, error));
    count_planes(shape);
    return QK_OK;
}

}  // namespace

Status read_desc(const qk_tensor_desc *given, qk_tensor_desc *desc, ErrorText *error) {
    constexpr uint32_t first_release = offsetof(qk_tensor_desc, row_stride);
    QK_TRY(read_growing(given, first_release, "desc: ", desc, error));
    desc->struct_size = sizeof(qk_tensor_desc);
    return QK_OK;
}

Status resolve_format(const qk_tensor_desc &desc, const Format **format, ErrorText *error) {
    QK_TRY(check_header(desc, error));
    *format = find_format(desc.format);
    QK_CHECK(*format != nullptr, error, FORMAT, "desc: format %d is unknown", desc.format);
    return QK_OK;
}

Status resolve(const qk_tensor_desc &desc, qk_layout packed, Shape *out, ErrorText *error) {
    Shape shape = {};
    QK_TRY(resolve_format(desc, &shape.format, error));
    QK_CHECK(shape.format->kind != FormatKind::kScale, error, FORMAT,
             "desc: %s is a format of scales alone", shape.format->name);
    QK_TRY(check_shape(desc, &shape, error));
    QK_TRY(is_dense(*shape.format) ? check_dense(desc, &shape, error)
                                   : check_quantized(desc, packed, &shape, error));
    *out = shape;
    return QK_OK;
}

}  // namespace qk
