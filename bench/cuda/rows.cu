// Products of 17 to 4096 rows of x: packed weights, weights as a checkpoint stores them, and dense
// f16 weights of the same shape through cuBLASLt (its own first choice), in one run.
//   bench_cuda_rows [out.json] [largest weight, in millions of codes] [most rows]
// share: dense time / time.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <random>

#include "../../cli/trace.hpp"
#include "timing.cuh"

namespace bench {

// (random & mask) | bits in every 32-bit word.
__global__ void fill(uint32_t *p, int64_t words, uint32_t mask, uint32_t bits, uint32_t seed) {
    const int64_t stride = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < words; i += stride) {
        uint32_t x = uint32_t(i) * 2654435761u ^ seed;
        x = (x ^ x >> 16) * 0x7feb352du;
        x = (x ^ x >> 15) * 0x846ca68bu;
        p[i] = ((x ^ x >> 16) & mask) | bits;
    }
}

void fill_device(void *p, size_t bytes, uint32_t mask, uint32_t bits, uint32_t seed) {
    fill<<<1024, 256>>>(static_cast<uint32_t *>(p), int64_t(bytes / 4), mask, bits, seed);
    BENCH_CHECK(cudaDeviceSynchronize());
}

struct Kind {
    const char *name;
    qk_format format, scale;
    qk_layout layout;
    int32_t group;
    bool packed;
    bool ordered = false;  // columns in an order of their own
};

constexpr Kind kKinds[] = {
    {"u4 g128 packed", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_AWQ_GEMM, 128, true},
    {"u4 g128 act-order packed", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_GPTQ, 128, true,
     true},
    {"nf4 b64 packed", QK_FORMAT_NF4, QK_FORMAT_F32, QK_LAYOUT_ROW_HIGH, 64, true},
    {"nf4 b64 nested packed", QK_FORMAT_NF4, QK_FORMAT_LUT8, QK_LAYOUT_ROW_HIGH, 64, true},
    {"u4 g32 packed", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_WORD, 32, true},
    {"mxfp4 packed", QK_FORMAT_FP4_E2M1, QK_FORMAT_E8M0, QK_LAYOUT_ROW, 32, true},
    {"nvfp4 packed", QK_FORMAT_FP4_E2M1, QK_FORMAT_E4M3, QK_LAYOUT_ROW, 16, true},
    {"u4 g128 AWQ_GEMM", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_AWQ_GEMM, 128, false},
    {"nf4 b64 ROW_HIGH", QK_FORMAT_NF4, QK_FORMAT_F32, QK_LAYOUT_ROW_HIGH, 64, false},
    {"s8 g128 ROW", QK_FORMAT_S8, QK_FORMAT_F32, QK_LAYOUT_ROW, 128, false},
    {"lut8 b256 ROW", QK_FORMAT_LUT8, QK_FORMAT_F32, QK_LAYOUT_ROW, 256, false}};

struct Bench {
    Timer timer;
    Report report;
    qk_context *context = nullptr;
    std::vector<void *> buffers;

    explicit Bench(const char *path) : report(path) {
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        options.device = QK_DEVICE_CUDA;
        options.stream = timer.stream();
        options.workspace_bytes = size_t{256} << 20;
        trace_if_asked(&options);
        QK_BENCH(context, qk_context_create(&options, &context));
    }
    void *allocate(size_t bytes) {
        void *p = nullptr;
        BENCH_CHECK(cudaMalloc(&p, (bytes + 255) / 256 * 256));
        buffers.push_back(p);
        return p;
    }
    void release() {
        for (void *p : buffers) BENCH_CHECK(cudaFree(p));
        buffers.clear();
    }
};

qk_tensor *make_dense(Bench &b, int64_t rows, int64_t columns, uint32_t seed) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = QK_FORMAT_F16;
    desc.rank = 2;
    desc.shape[0] = rows;
    desc.shape[1] = columns;
    const size_t bytes = size_t(rows * columns * 2);
    void *data = b.allocate(bytes);
    fill_device(data, bytes, 0x83ff83ffu, 0x38003800u, seed);
    qk_tensor *tensor = nullptr;
    QK_BENCH(b.context, qk_tensor_wrap(b.context, &desc, &data, 1, &tensor));
    return tensor;
}

qk_tensor *make_weight(Bench &b, const Kind &kind, int64_t n, int64_t k) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = kind.format;
    desc.scale_format = kind.scale;
    desc.layout = kind.layout;
    desc.group_size = kind.group;
    if (kind.scale == QK_FORMAT_E4M3) desc.flags = QK_TENSOR_GLOBAL;
    if (kind.ordered) desc.flags |= QK_TENSOR_ORDERED;
    desc.rank = 2;
    desc.shape[0] = n;
    desc.shape[1] = k;
    void *planes[QK_PLANE_COUNT] = {};
    for (int plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        size_t bytes = 0;
        QK_BENCH(b.context, qk_tensor_plane_bytes(&desc, plane, &bytes));
        if (bytes == 0) continue;
        planes[plane] = b.allocate(bytes);
        const bool half = plane == QK_PLANE_SCALE && kind.scale == QK_FORMAT_F16;
        const bool e8m0 = plane == QK_PLANE_SCALE && kind.scale == QK_FORMAT_E8M0;
        const bool e4m3 = plane == QK_PLANE_SCALE && kind.scale == QK_FORMAT_E4M3;
        const bool raw = plane == QK_PLANE_DATA || plane == QK_PLANE_ZERO ||
                         (plane == QK_PLANE_SCALE && kind.scale == QK_FORMAT_LUT8);
        fill_device(planes[plane], bytes,
                    raw    ? ~0u
                    : half ? 0x03ff03ffu
                    : e8m0 ? 0x07070707u
                    : e4m3 ? 0x0f0f0f0fu
                           : 0x007fffffu,
                    raw    ? 0
                    : half ? 0x20002000u
                    : e8m0 ? 0x70707070u
                    : e4m3 ? 0x30303030u
                           : 0x3c000000u,
                    uint32_t(plane));
    }
    if (kind.ordered) {
        std::vector<int32_t> order(size_t(k), 0);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), std::mt19937(1));
        BENCH_CHECK(cudaMemcpy(planes[QK_PLANE_ORDER], order.data(), order.size() * 4,
                               cudaMemcpyHostToDevice));
    }
    qk_tensor *tensor = nullptr;
    QK_BENCH(b.context, qk_tensor_wrap(b.context, &desc, planes, QK_PLANE_COUNT, &tensor));
    if (!kind.packed) return tensor;
    qk_tensor *packed = nullptr;
    desc.layout = QK_LAYOUT_PACKED;
    QK_BENCH(b.context, qk_tensor_create(b.context, &desc, &packed));
    QK_BENCH(b.context, qk_repack(b.context, tensor, packed));
    QK_BENCH(b.context, qk_context_synchronize(b.context));
    qk_tensor_destroy(tensor);
    return packed;
}

double time_products(Bench &b, const std::vector<qk_tensor *> &weights, qk_tensor *x,
                     qk_tensor *y) {
    std::vector<Call> calls;
    for (qk_tensor *w : weights) {
        calls.push_back([&b, x, w, y](cudaStream_t) {
            QK_BENCH(b.context, qk_linear(b.context, x, w, nullptr, y));
        });
    }
    return b.timer.run(calls, 2e-3, 7);
}

constexpr int64_t kRows[] = {17, 32, 33, 48, 64, 128, 256, 512, 1024, 2048, 4096};

void run_shape(Bench &b, int64_t n, int64_t k, int64_t most_rows) {
    std::vector<qk_tensor *> xs, ys;
    for (const int64_t m : kRows) {
        xs.push_back(make_dense(b, m, k, 3));
        ys.push_back(make_dense(b, m, n, 4));
    }
    double dense[std::size(kRows)] = {};
    for (int kind = -1; kind < int(std::size(kKinds)); ++kind) {
        const bool byte = kind >= 0 && (kKinds[kind].format == QK_FORMAT_S8 ||
                                        kKinds[kind].format == QK_FORMAT_LUT8);
        const double bytes = (kind < 0 ? 2.0 : byte ? 1.0 : 0.5) * double(n * k);
        std::vector<qk_tensor *> weights;
        for (int i = 0; i < std::max(2, int(200e6 / bytes)); ++i) {
            weights.push_back(kind < 0 ? make_dense(b, n, k, uint32_t(i))
                                       : make_weight(b, kKinds[kind], n, k));
        }
        // The clock falls while weights are made: raise it again.
        for (int i = 0; i < 5; ++i) time_products(b, weights, xs[4], ys[4]);
        for (size_t i = 0; i < std::size(kRows) && kRows[i] <= most_rows; ++i) {
            const double us = time_products(b, weights, xs[i], ys[i]);
            if (kind < 0) dense[i] = us;
            b.report.add(kind < 0 ? "dense f16 cuBLASLt" : kKinds[kind].name, n, k, kRows[i], us,
                         bytes, dense[i] / us);
        }
        for (qk_tensor *w : weights) qk_tensor_destroy(w);
    }
    for (qk_tensor *tensor : xs) qk_tensor_destroy(tensor);
    for (qk_tensor *tensor : ys) qk_tensor_destroy(tensor);
    b.release();
}

}  // namespace bench

int main(int argc, char **argv) {
    bench::Bench b(argc > 1 ? argv[1] : nullptr);
    const double most = (argc > 2 ? std::atof(argv[2]) : 1000) * 1e6;
    const int64_t most_rows = argc > 3 ? std::atoi(argv[3]) : INT64_MAX;
    cudaDeviceProp device = {};
    BENCH_CHECK(cudaGetDeviceProperties(&device, 0));
    std::printf("%s, %d multiprocessors, %s\n", device.name, device.multiProcessorCount,
                qk_build_info());
    const int64_t shapes[][2] = {{4096, 4096},  {6144, 4096},  {4096, 14336}, {8192, 8192},
                                 {28672, 4096}, {8192, 28672}, {57344, 8192}};
    for (const auto &[n, k] : shapes) {
        if (double(n) * double(k) <= most) bench::run_shape(b, n, k, most_rows);
    }
    qk_context_destroy(b.context);
    return 0;
}
