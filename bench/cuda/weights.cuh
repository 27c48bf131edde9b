// What the programs here share: a context on the timer's stream, weights of random codes.
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>

#include "../../cli/trace.hpp"
#include "floors.cuh"

namespace bench {

constexpr int64_t kPool = int64_t{1} << 31;

// (random & mask) | bits in every 32-bit word: random codes, or floats of about one size.
__global__ void fill(uint32_t *p, int64_t words, uint32_t mask, uint32_t bits, uint32_t seed) {
    const int64_t stride = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < words; i += stride) {
        uint32_t x = uint32_t(i) * 2654435761u ^ seed;
        x = (x ^ x >> 16) * 0x7feb352du;
        x = (x ^ x >> 15) * 0x846ca68bu;
        p[i] = ((x ^ x >> 16) & mask) | bits;
    }
}

struct Bench {
    Timer timer;
    Report report;
    qk_context *context = nullptr;
    uint8_t *pool = nullptr, *out = nullptr;
    uint32_t *sink = nullptr;
    bool floors = true;  // else shares are not known and read 0

    explicit Bench(const char *path) : report(path) {
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        options.device = QK_DEVICE_CUDA;
        options.stream = timer.stream();
        options.workspace_bytes = size_t{256} << 20;
        trace_if_asked(&options);
        QK_BENCH(context, qk_context_create(&options, &context));
        BENCH_CHECK(cudaMalloc(&pool, kPool));
        BENCH_CHECK(cudaMalloc(&out, kPool));
        BENCH_CHECK(cudaMalloc(&sink, 256));
        fill<<<4096, 256>>>(reinterpret_cast<uint32_t *>(pool), kPool / 4, ~0u, 0, 1);
        BENCH_CHECK(cudaDeviceSynchronize());
    }
};

struct Kind {
    const char *name;
    qk_format format, scale;
    qk_layout layout;
    int32_t group;
    bool ordered = false;  // columns in an order of their own
    bool symmetric = false;
};

constexpr Kind kAwq = {"u4 g128 f16", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_AWQ_GEMM, 128};
constexpr Kind kNf4 = {"nf4 b64 f32", QK_FORMAT_NF4, QK_FORMAT_F32, QK_LAYOUT_ROW_HIGH, 64};
constexpr Kind kNf4Nested = {"nf4 b64 nested", QK_FORMAT_NF4, QK_FORMAT_LUT8, QK_LAYOUT_ROW_HIGH,
                             64};
constexpr Kind kFp4 = {"fp4 b64 f32", QK_FORMAT_FP4_BNB, QK_FORMAT_F32, QK_LAYOUT_ROW_HIGH, 64};
constexpr Kind kE2m1 = {"e2m1 b64 f32", QK_FORMAT_FP4_E2M1, QK_FORMAT_F32, QK_LAYOUT_ROW, 64};
constexpr Kind kU4Symmetric = {
    "u4 g128 symmetric", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_WORD, 128, false, true};
constexpr Kind kU4Zeros = {"u4 g128 zeros", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_ROW, 128};
constexpr Kind kGptq = {"u4 g128 GPTQ", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_GPTQ, 128};
constexpr Kind kGemv = {"u4 g128 AWQ_GEMV", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_AWQ_GEMV,
                        128};
constexpr Kind kWord = {"u4 g128 WORD", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_WORD, 128};
constexpr Kind kU4Small = {"u4 g32 f16", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_WORD, 32};
constexpr Kind kActOrder = {
    "u4 g128 act-order", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_GPTQ, 128, true};
constexpr Kind kMxfp4 = {"mxfp4", QK_FORMAT_FP4_E2M1, QK_FORMAT_E8M0, QK_LAYOUT_ROW, 32};
constexpr Kind kNvfp4 = {"nvfp4", QK_FORMAT_FP4_E2M1, QK_FORMAT_E4M3, QK_LAYOUT_ROW, 16};
constexpr Kind kFp8Row = {"fp8 row f32", QK_FORMAT_E4M3, QK_FORMAT_F32, QK_LAYOUT_ROW,
                          QK_GROUP_ROW};
constexpr Kind kS8 = {"s8 g128 f32", QK_FORMAT_S8, QK_FORMAT_F32, QK_LAYOUT_ROW, 128};
constexpr Kind kS8Row = {"s8 row f16", QK_FORMAT_S8, QK_FORMAT_F16, QK_LAYOUT_ROW, QK_GROUP_ROW};
constexpr Kind kLut8 = {"lut8 b256 f32", QK_FORMAT_LUT8, QK_FORMAT_F32, QK_LAYOUT_ROW, 256};

qk_tensor_desc describe(const Kind &kind, qk_layout layout, int64_t n, int64_t k) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = kind.format;
    desc.scale_format = kind.scale;
    desc.layout = layout;
    desc.group_size = kind.group;
    if (kind.scale == QK_FORMAT_E4M3) desc.flags = QK_TENSOR_GLOBAL;
    if (kind.ordered) desc.flags |= QK_TENSOR_ORDERED;
    if (kind.symmetric) desc.flags |= QK_TENSOR_SYMMETRIC;
    desc.rank = 2;
    desc.shape[0] = n;
    desc.shape[1] = k;
    return desc;
}

// A weight of random codes; its planes and their bytes are counted.
struct Weight {
    qk_tensor *tensor = nullptr;
    std::vector<void *> planes = std::vector<void *>(QK_PLANE_COUNT, nullptr);
    double bytes = 0;
};

// Columns 0 .. k - 1 in a random order, as act-order has them.
void shuffle_columns(void *plane, int64_t k) {
    std::vector<int32_t> order(size_t(k), 0);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(1));
    BENCH_CHECK(cudaMemcpy(plane, order.data(), order.size() * 4, cudaMemcpyHostToDevice));
}

Weight make_weight(Bench &b, const Kind &kind, int64_t n, int64_t k) {
    const qk_tensor_desc desc = describe(kind, kind.layout, n, k);
    Weight w;
    for (int plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        size_t bytes = 0;
        QK_BENCH(b.context, qk_tensor_plane_bytes(&desc, plane, &bytes));
        if (bytes == 0) continue;
        w.bytes += double(bytes);
        BENCH_CHECK(cudaMalloc(&w.planes[size_t(plane)], (bytes + 15) / 4 * 4));
        uint32_t mask = ~0u, bits = 0;
        if (plane == QK_PLANE_SCALE && kind.scale == QK_FORMAT_F16) {
            mask = 0x03ff03ffu, bits = 0x20002000u;
        } else if (plane == QK_PLANE_SCALE && kind.scale == QK_FORMAT_E8M0) {
            mask = 0x07070707u, bits = 0x70707070u;
        } else if (plane == QK_PLANE_SCALE && kind.scale == QK_FORMAT_E4M3) {
            mask = 0x0f0f0f0fu, bits = 0x30303030u;
        } else if (plane == QK_PLANE_SCALE2 || plane == QK_PLANE_GLOBAL ||
                   (plane == QK_PLANE_SCALE && kind.scale == QK_FORMAT_F32) ||
                   plane == QK_PLANE_SCALE_BIAS) {
            mask = 0x007fffffu, bits = 0x3c000000u;
        }
        fill<<<1024, 256>>>(static_cast<uint32_t *>(w.planes[size_t(plane)]),
                            int64_t(bytes + 3) / 4, mask, bits, uint32_t(plane));
        BENCH_CHECK(cudaDeviceSynchronize());
        if (plane == QK_PLANE_ORDER) shuffle_columns(w.planes[QK_PLANE_ORDER], k);
        if (plane == QK_PLANE_TABLE || plane == QK_PLANE_SCALE_CODE) {
            float table[256];
            QK_BENCH(b.context, qk_dynamic_table(table));
            BENCH_CHECK(
                cudaMemcpy(w.planes[size_t(plane)], table, sizeof(table), cudaMemcpyHostToDevice));
        }
    }
    QK_BENCH(b.context,
             qk_tensor_wrap(b.context, &desc, w.planes.data(), QK_PLANE_COUNT, &w.tensor));
    return w;
}

void destroy(std::vector<Weight> &weights) {
    for (Weight &w : weights) {
        qk_tensor_destroy(w.tensor);
        for (void *plane : w.planes) cudaFree(plane);
    }
    weights.clear();
}

qk_tensor *wrap_dense(Bench &b, qk_format format, int64_t rows, int64_t columns, void *data,
                      uint32_t flags = 0) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.flags = flags;
    desc.format = format;
    desc.rank = 2;
    desc.shape[0] = rows;
    desc.shape[1] = columns;
    qk_tensor *tensor = nullptr;
    QK_BENCH(b.context, qk_tensor_wrap(b.context, &desc, &data, 1, &tensor));
    return tensor;
}

// Packed copies of one random weight.
std::vector<qk_tensor *> make_packed(Bench &b, const Kind &kind, int64_t n, int64_t k, int copies,
                                     double *bytes) {
    std::vector<Weight> source = {make_weight(b, kind, n, k)};
    *bytes = source[0].bytes;
    const qk_tensor_desc desc = describe(kind, QK_LAYOUT_PACKED, n, k);
    std::vector<qk_tensor *> packed(size_t(copies), nullptr);
    for (qk_tensor *&tensor : packed) {
        QK_BENCH(b.context, qk_tensor_create(b.context, &desc, &tensor));
        QK_BENCH(b.context, qk_repack(b.context, source[0].tensor, tensor));
    }
    QK_BENCH(b.context, qk_context_synchronize(b.context));
    destroy(source);
    return packed;
}

}  // namespace bench
