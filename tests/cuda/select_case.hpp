// Products that exist as facts only, on cards that need not be there.
#pragma once
#include <stdio.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "cuda/linear/select.hpp"
#include "format/describe.hpp"

namespace select_test {

struct Card {
    const char *name;
    qk::Device device;
};

// Compute capability, multiprocessors, bytes of memory of a block, bytes of L2.
constexpr Card kH200 = {"H200", {0, 0, 90, 132, 227 << 10, 50 << 20}};
constexpr Card kA100 = {"A100", {0, 0, 80, 108, 163 << 10, 40 << 20}};
constexpr Card kRtx4090 = {"RTX 4090", {0, 0, 89, 128, 99 << 10, 72 << 20}};
constexpr Card kOrin = {"Jetson Orin", {0, 0, 87, 16, 163 << 10, 4 << 20}};
constexpr Card kB200 = {"B200", {0, 0, 100, 148, 227 << 10, 126 << 20}};
constexpr Card kRtx5090 = {"RTX 5090", {0, 0, 120, 170, 99 << 10, 96 << 20}};
constexpr Card kCards[] = {kH200, kA100, kRtx4090, kOrin, kB200, kRtx5090};

struct Case {
    qk_format format = QK_FORMAT_U4_AFFINE;
    qk_layout layout = QK_LAYOUT_PACKED;
    int64_t n = 4096, k = 4096, m = 1;
    qk_format x = QK_FORMAT_F16;
    int32_t group = 128;
    qk_format scale = QK_FORMAT_F16;
    bool flat = false;
    bool lowered = false;  // with minima
    bool transposed = false;
    int64_t experts = 0, slots = 2;  // experts: that n is the rows of; 0: w is one weight
    int64_t off_x = 0, off_y = 0, off_w = 0, off_scale = 0, off_second = 0, off_zero = 0;  // bytes
};

inline qk::cuda::Facts facts_of(const Case &c, const qk::Device &device) {
    const qk::Format *const x = qk::find_format(c.x);
    const auto at = [](int64_t plane, int64_t off) {
        return reinterpret_cast<void *>(uintptr_t((plane + 1) << 40) + uintptr_t(off));
    };
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = c.format;
    desc.rank = 2;
    desc.shape[0] = c.n;
    desc.shape[1] = c.k;
    if (!qk::is_dense(*qk::find_format(c.format))) {
        desc.layout = c.layout;
        desc.group_size = c.group;
        desc.scale_format = c.scale;
        desc.flags = c.lowered ? QK_TENSOR_FLOAT_MIN : 0;
        if (c.layout == QK_LAYOUT_GGUF_Q4_0) desc.flags |= QK_TENSOR_SYMMETRIC;
        desc.grouping = c.flat ? QK_GROUPING_FLAT : QK_GROUPING_ALONG_K;
    }
    qk::Shape shape = {};
    qk::ErrorText error = {};
    const qk_layout packed =
        c.format == QK_FORMAT_U4_AFFINE ? qk::kLayoutTiles : qk::kLayoutTilesPairs;
    if (qk::resolve(desc, packed, &shape, &error) != QK_OK) {
        fprintf(stderr, "%s\n", error.text);
        abort();
    }
    qk::Weight w = {};
    w.format = shape.format;
    w.layout = shape.layout;
    w.geometry = shape.geometry;
    w.geometry.n = c.n;
    w.geometry.k = c.k;
    const auto plane = [&](qk_plane p, int64_t off) {
        return shape.plane_bytes[p] > 0 ? at(p, off) : nullptr;
    };
    w.data = at(QK_PLANE_DATA, c.off_w);
    w.scale.format = shape.scale_format;
    const bool one = c.scale == QK_FORMAT_E8M0 || c.scale == QK_FORMAT_E4M3;
    w.scale.second_group = one ? qk::kOneSecond : shape.second_group;
    w.scale.data = plane(QK_PLANE_SCALE, c.off_scale);
    w.scale.second = plane(QK_PLANE_SCALE2, c.off_second);
    const float *const built_in = c.scale == QK_FORMAT_E8M0   ? device.tables->e8m0
                                  : c.scale == QK_FORMAT_E4M3 ? device.tables->e4m3
                                                              : nullptr;
    w.scale.code = one ? const_cast<float *>(built_in) : plane(QK_PLANE_SCALE_CODE, 0);
    w.scale.bias = plane(QK_PLANE_SCALE_BIAS, 0);
    w.zero = c.lowered ? nullptr : plane(QK_PLANE_ZERO, c.off_zero);
    if (shape.has_minimum) {
        w.minimum = w.scale;
        w.minimum.data = plane(QK_PLANE_ZERO, 0);
        w.minimum.second = plane(QK_PLANE_MIN2, 0);
    }
    w.table = plane(QK_PLANE_TABLE, 0);
    const int64_t x_columns = c.transposed ? c.n : c.k, y_columns = c.transposed ? c.k : c.n;
    qk::LinearArgs args = {{x, c.m, x_columns, at(20, c.off_x)},
                           w,
                           nullptr,
                           {x, c.m, y_columns, at(21, c.off_y)},
                           c.transposed};
    qk::Experts experts = {at(22, 0), nullptr, c.m, c.slots, c.experts, false,
                           true,      false,   0,   0,       0};
    if (c.experts > 0) {
        args.y.columns = c.n / c.experts;
        args.experts = &experts;
    }
    return qk::cuda::facts_of(args, device);
}

constexpr int64_t kAmple = int64_t{1} << 40;  // of workspace

inline std::string kernel_of(const qk::cuda::Facts &f, const qk::Device &d, int64_t workspace) {
    const int32_t row = qk::cuda::select(f, d, workspace).row;
    if (row < 0) return "none";
    return qk::cuda::kLinearNames[int(qk::cuda::kLinearTable[row].kernel)];
}

inline std::string reason_of(const qk::cuda::Facts &f, const qk::Device &d, int64_t workspace) {
    char text[192];
    qk::cuda::explain(f, d, workspace, text, sizeof(text));
    return text;
}

}  // namespace select_test
