// Weights of the CPU's benches: kinds by name, random numbers, repacked.
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <random>
#include <vector>

#include "qk.h"

namespace bench {

struct Case {
    const char *name;
    qk_format format, scale_format;
    int32_t group_size;
    qk_format x_format;
    uint32_t flags = 0;            // QK_TENSOR_...
    int32_t scale_group_size = 0;  // of i8 scales
    bool flat = false;             // groups may straddle rows
};

constexpr Case kCases[] = {
    {"nf4 b64 f32", QK_FORMAT_NF4, QK_FORMAT_F32, 64, QK_FORMAT_F32},
    {"fp4 b64 f32", QK_FORMAT_FP4_BNB, QK_FORMAT_F32, 64, QK_FORMAT_F32},
    {"nf4 b64 nested", QK_FORMAT_NF4, QK_FORMAT_LUT8, 64, QK_FORMAT_F32},
    {"nf4 b64 bf16 x", QK_FORMAT_NF4, QK_FORMAT_F32, 64, QK_FORMAT_BF16},
    {"e2m1 g32 f16", QK_FORMAT_FP4_E2M1, QK_FORMAT_F16, 32, QK_FORMAT_F32},
    {"nf4 g32 f32", QK_FORMAT_NF4, QK_FORMAT_F32, 32, QK_FORMAT_F32},
    {"e2m1 g16 f16", QK_FORMAT_FP4_E2M1, QK_FORMAT_F16, 16, QK_FORMAT_F32},
    {"mxfp4", QK_FORMAT_FP4_E2M1, QK_FORMAT_E8M0, 32, QK_FORMAT_F32},
    {"nvfp4", QK_FORMAT_FP4_E2M1, QK_FORMAT_E4M3, 16, QK_FORMAT_F32},
    {"nvfp4 divided", QK_FORMAT_FP4_E2M1, QK_FORMAT_E4M3, 16, QK_FORMAT_F32,
     QK_TENSOR_GLOBAL | QK_TENSOR_GLOBAL_DIVIDES},
    {"nvfp4 multiplied", QK_FORMAT_FP4_E2M1, QK_FORMAT_E4M3, 16, QK_FORMAT_F32, QK_TENSOR_GLOBAL},
    {"u4 g128 f16", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 128, QK_FORMAT_F32},
    {"u4 g128 f16 f16 x", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 128, QK_FORMAT_F16},
    {"u4 g32 f16", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 32, QK_FORMAT_F32},
    {"s8 g128 f16", QK_FORMAT_S8, QK_FORMAT_F16, 128, QK_FORMAT_F32},
    {"lut8 g256 f32", QK_FORMAT_LUT8, QK_FORMAT_F32, 256, QK_FORMAT_F32},
    {"q4_0", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 32, QK_FORMAT_F32, QK_TENSOR_SYMMETRIC},
    {"q4_1", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 32, QK_FORMAT_F32, QK_TENSOR_FLOAT_MIN},
    {"q8_0", QK_FORMAT_S8, QK_FORMAT_F16, 32, QK_FORMAT_F32},
    {"q4_k", QK_FORMAT_U4_AFFINE, QK_FORMAT_I8, 32, QK_FORMAT_F32, QK_TENSOR_FLOAT_MIN, 8},
    {"q5_k", QK_FORMAT_S8, QK_FORMAT_I8, 32, QK_FORMAT_F32, QK_TENSOR_FLOAT_MIN, 8},
    {"q6_k", QK_FORMAT_S8, QK_FORMAT_I8, 16, QK_FORMAT_F32, 0, 16},
    {"iq4_nl", QK_FORMAT_IQ4_NL, QK_FORMAT_F16, 32, QK_FORMAT_F32},
};

inline const Case &find_case(const char *name) {
    for (const Case &c : kCases) {
        if (strcmp(c.name, name) == 0) return c;
    }
    abort();
}

inline bool has_bytes(const Case &c) {
    return c.format == QK_FORMAT_S8 || c.format == QK_FORMAT_LUT8;
}

inline void check(qk_status status, const qk_context *context) {
    if (status == QK_OK) return;
    fprintf(stderr, "%s: %s\n", qk_status_string(status), qk_context_error(context));
    exit(1);
}

inline qk_tensor_desc describe(qk_format format, qk_layout layout, int64_t rows, int64_t columns,
                               const Case *c) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = format;
    desc.layout = layout;
    desc.rank = 2;
    desc.shape[0] = rows;
    desc.shape[1] = columns;
    if (c != nullptr) {
        desc.scale_format = c->scale_format;
        desc.group_size = c->group_size;
        desc.grouping = c->flat ? QK_GROUPING_FLAT : QK_GROUPING_ALONG_K;
        desc.flags = c->flags;
        desc.scale_group_size = c->scale_group_size;
    }
    return desc;
}

inline qk_tensor *create(qk_context *context, const qk_tensor_desc &desc) {
    qk_tensor *tensor = nullptr;
    check(qk_tensor_create(context, &desc, &tensor), context);
    return tensor;
}

inline qk_tensor *create(qk_context *context, qk_format format, qk_layout layout, int64_t rows,
                         int64_t columns, const Case *c) {
    return create(context, describe(format, layout, rows, columns, c));
}

// A dense tensor of normal values, rounded to bf16, which every type holds.
inline qk_tensor *create_x(qk_context *context, qk_format format, int64_t rows, int64_t columns) {
    qk_tensor *const tensor = create(context, format, QK_LAYOUT_ROW, rows, columns, nullptr);
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> values(size_t(rows * columns));
    for (float &value : values) value = float(int(normal(random) * 32)) / 32;
    if (format == QK_FORMAT_F32) {
        check(qk_tensor_upload(context, tensor, QK_PLANE_DATA, values.data(), values.size() * 4),
              context);
        return tensor;
    }
    std::vector<uint16_t> halves;
    for (const float value : values) {
        uint32_t wide = 0;
        memcpy(&wide, &value, 4);
        const uint32_t exponent = value == 0 ? 0 : 112u << 10;  // f32's beyond f16's
        const uint32_t f16 = (wide >> 16 & 0x8000u) + ((wide & 0x7fffffffu) >> 13) - exponent;
        halves.push_back(uint16_t(format == QK_FORMAT_F16 ? f16 : wide >> 16));  // both exact
    }
    check(qk_tensor_upload(context, tensor, QK_PLANE_DATA, halves.data(), halves.size() * 2),
          context);
    return tensor;
}

// Bytes that a product reads: codes, scales, zeros; as in the checkpoint's own layout.
inline double weight_bytes(const Case &c, int64_t n, int64_t k) {
    const int64_t size = c.group_size;
    const int64_t groups = c.flat ? (n * k + size - 1) / size : n * ((k + size - 1) / size);
    const bool half = c.scale_format == QK_FORMAT_F16;
    const double scale = c.scale_format == QK_FORMAT_F32 ? 4 : half ? 2 : 1;
    const bool zeros = c.format == QK_FORMAT_U4_AFFINE &&
                       (c.flags & (QK_TENSOR_SYMMETRIC | QK_TENSOR_FLOAT_MIN)) == 0;
    const double stored = (c.flags & QK_TENSOR_FLOAT_MIN) != 0 ? 2 : 1;  // scales and minima
    const double second = c.scale_group_size != 0 ? 4.0 / c.scale_group_size : 0;
    return double(n) * double(k) / (has_bytes(c) ? 1 : 2) + groups * (scale + second) * stored +
           (zeros ? groups / 2 : 0);
}

// Random codes, scales of one byte about 1 (i8: 32), of more bytes about 1 / 256; zeros stay 0.
inline void fill(qk_context *context, const Case &c, int64_t n, int64_t k, qk_tensor *row) {
    std::mt19937 random(5);
    const auto upload = [&](qk_plane plane, const auto &values) {
        const size_t bytes = values.size() * sizeof(values[0]);
        check(qk_tensor_upload(context, row, plane, values.data(), bytes), context);
    };
    const int64_t groups = (n * k + c.group_size - 1) / c.group_size;
    std::vector<uint8_t> codes(size_t(has_bytes(c) ? n * k : n * k / 2));
    for (uint8_t &code : codes) code = uint8_t(random());
    upload(QK_PLANE_DATA, codes);
    const auto upload_scales = [&](qk_plane plane, qk_plane second) {
        if (c.scale_format == QK_FORMAT_F16) {
            std::vector<uint16_t> halves(static_cast<size_t>(groups));
            for (uint16_t &half : halves) half = uint16_t(0x1c00 + random() % 256);
            return upload(plane, halves);
        }
        if (c.scale_format == QK_FORMAT_F32) {
            return upload(plane, std::vector<float>(static_cast<size_t>(groups), 0x1p-8f));
        }
        const int one = c.scale_format == QK_FORMAT_E8M0 ? 127
                        : c.scale_format == QK_FORMAT_I8 ? 32
                                                         : 0x38;
        std::vector<uint8_t> scales(static_cast<size_t>(groups));
        for (uint8_t &scale : scales) scale = uint8_t(one - 4 + int(random() % 9));
        upload(plane, scales);
        if (c.scale_format != QK_FORMAT_I8) return;
        upload(second, std::vector<float>(size_t(groups / c.scale_group_size), 0x1p-13f));
    };
    upload_scales(QK_PLANE_SCALE, QK_PLANE_SCALE2);
    if ((c.flags & QK_TENSOR_FLOAT_MIN) != 0) upload_scales(QK_PLANE_ZERO, QK_PLANE_MIN2);
    if ((c.flags & QK_TENSOR_GLOBAL) != 0) upload(QK_PLANE_GLOBAL, std::vector<float>{3});
}

// Weights that qk_quantize does not make.
inline bool is_filled(const Case &c) {
    return c.scale_format == QK_FORMAT_E8M0 || c.scale_format == QK_FORMAT_E4M3 ||
           c.scale_format == QK_FORMAT_I8 || c.format == QK_FORMAT_IQ4_NL ||
           (c.flags & QK_TENSOR_FLOAT_MIN) != 0;
}

inline qk_tensor *create_w(qk_context *context, const Case &c, int64_t n, int64_t k,
                           qk_layout layout = QK_LAYOUT_PACKED) {
    qk_tensor *const row = create(context, c.format, QK_LAYOUT_ROW, n, k, &c);
    if (is_filled(c)) {
        fill(context, c, n, k, row);
        qk_tensor *const w = create(context, c.format, layout, n, k, &c);
        check(qk_repack(context, row, w), context);
        qk_tensor_destroy(row);
        return w;
    }
    qk_tensor *const dense = create_x(context, QK_FORMAT_F32, n, k);
    const auto upload_table = [&](qk_plane plane) {
        float table[256];
        qk_dynamic_table(table);
        check(qk_tensor_upload(context, row, plane, table, sizeof(table)), context);
    };
    if (c.scale_format == QK_FORMAT_LUT8) upload_table(QK_PLANE_SCALE_CODE);
    if (c.format == QK_FORMAT_LUT8) upload_table(QK_PLANE_TABLE);
    check(qk_quantize(context, dense, row), context);
    qk_tensor *const w = create(context, c.format, layout, n, k, &c);
    check(qk_repack(context, row, w), context);
    qk_tensor_destroy(row);
    qk_tensor_destroy(dense);
    return w;
}

}  // namespace bench
