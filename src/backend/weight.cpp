#include "backend/weight.hpp"

#include <string.h>

namespace qk {
namespace {

// Kernels take pointers that they could write through, but do not.
void *built_in(const float *table) { return const_cast<float *>(table); }

ScalePlane scale_of(const Shape &shape, void *const *planes, const ScaleTables &tables) {
    const Format *const format = shape.scale_format;
    void *const data = planes[QK_PLANE_SCALE];
    void *const one = built_in(tables.one), *const bias = built_in(tables.nothing);
    switch (format != nullptr ? format->id : 0) {
        case QK_FORMAT_LUT8:
            return {format,
                    data,
                    planes[QK_PLANE_SCALE2],
                    planes[QK_PLANE_SCALE_CODE],
                    planes[QK_PLANE_SCALE_BIAS],
                    shape.second_group};
        case QK_FORMAT_I8:
            return {format,
                    data,
                    planes[QK_PLANE_SCALE2],
                    built_in(tables.i8),
                    bias,
                    shape.second_group};
        case QK_FORMAT_E8M0:
        case QK_FORMAT_E4M3: break;
        default: return {format, data, nullptr, nullptr, nullptr, 0};
    }
    if (has_folded_code(shape)) {
        return {format, data, one, planes[QK_PLANE_SCALE_CODE], bias, kOneSecond};
    }
    const bool half = shape.format->id == QK_FORMAT_FP4_GGML;
    void *const code = built_in(format->id == QK_FORMAT_E4M3 ? tables.e4m3
                                : half                       ? tables.e8m0_half
                                                             : tables.e8m0);
    if (shape.globals == 0) return {format, data, one, code, bias, kOneSecond};
    const int64_t group = shape.globals == 1 ? kOneSecond : shape.geometry.groups_per_row;
    return {format, data, planes[QK_PLANE_GLOBAL], code, bias, group, shape.divides};
}

// Stored as the scales are, in planes of their own.
ScalePlane minimum_of(const Shape &shape, void *const *planes, const ScalePlane &scale) {
    if (!shape.has_minimum) return {};
    ScalePlane minimum = scale;
    minimum.data = planes[QK_PLANE_ZERO];
    minimum.second = planes[QK_PLANE_MIN2];
    return minimum;
}

}  // namespace

Weight weight_of(const Shape &shape, void *const *planes, const ScaleTables &tables) {
    Geometry geometry = shape.geometry;
    if (is_dense(*shape.format)) geometry = {shape.rows, shape.columns, shape.columns, 1, 0, false};
    const bool e4m3 = shape.format->id == QK_FORMAT_E4M3;
    const ScalePlane scale = scale_of(shape, planes, tables);
    return {shape.format,
            shape.layout,
            geometry,
            planes[QK_PLANE_DATA],
            scale,
            shape.has_minimum ? nullptr : planes[QK_PLANE_ZERO],
            e4m3 ? built_in(tables.e4m3) : planes[QK_PLANE_TABLE],
            planes[QK_PLANE_GLOBAL],
            shape.globals,
            shape.whole_range,
            minimum_of(shape, planes, scale),
            planes[QK_PLANE_ORDER]};
}

void fold_global(Weight *w, float *room) {
    if (!w->scale.divides || w->globals != 1) return;
    float global, code[256];
    memcpy(&global, w->scale.second, sizeof(global));
    memcpy(code, w->scale.code, sizeof(code));
    for (int i = 0; i < 256; ++i) room[i] = code[i] / global;
    w->scale.code = room;
    w->scale.second = built_in(kScaleTables.one);
    w->scale.divides = false;
}

}  // namespace qk
