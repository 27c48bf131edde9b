// Dequantize and the matrix-vector product on a GPU against the floors of the same machine,
// measured in the same run.  bench_cuda [out.json] [section ...]; sections: dequantize matvec batch
// layouts bytes chain (and nofloors: without the floors; probe: one call of each kernel).
#include <cstdint>
#include <cstring>

#include "floors.cuh"
#include "qk.h"

namespace bench {

#define QK_BENCH(context, call)                                           \
    do {                                                                  \
        const qk_status status_ = (call);                                 \
        if (status_ != QK_OK) {                                           \
            std::printf("%s: %s: %s\n", #call, qk_status_string(status_), \
                        qk_context_error(context));                       \
            std::exit(1);                                                 \
        }                                                                 \
    } while (0)

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
};

constexpr Kind kAwq = {"u4 g128 f16", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_AWQ_GEMM, 128};
constexpr Kind kNf4 = {"nf4 b64 f32", QK_FORMAT_NF4, QK_FORMAT_F32, QK_LAYOUT_ROW_HIGH, 64};
constexpr Kind kNf4Nested = {"nf4 b64 nested", QK_FORMAT_NF4, QK_FORMAT_LUT8, QK_LAYOUT_ROW_HIGH,
                             64};
constexpr Kind kFp4 = {"fp4 b64 f32", QK_FORMAT_FP4_BNB, QK_FORMAT_F32, QK_LAYOUT_ROW_HIGH, 64};
constexpr Kind kGptq = {"u4 g128 GPTQ", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_GPTQ, 128};
constexpr Kind kGemv = {"u4 g128 AWQ_GEMV", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16,
                        QK_LAYOUT_AWQ_GEMV, 128};
constexpr Kind kWord = {"u4 g128 WORD", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_WORD, 128};
constexpr Kind kS8 = {"s8 g128 f32", QK_FORMAT_S8, QK_FORMAT_F32, QK_LAYOUT_ROW, 128};
constexpr Kind kS8Row = {"s8 row f16", QK_FORMAT_S8, QK_FORMAT_F16, QK_LAYOUT_ROW, QK_GROUP_ROW};
constexpr Kind kLut8 = {"lut8 b256 f32", QK_FORMAT_LUT8, QK_FORMAT_F32, QK_LAYOUT_ROW, 256};

qk_tensor_desc describe(const Kind &kind, qk_layout layout, int64_t n, int64_t k) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = kind.format;
    desc.scale_format = kind.scale;
    desc.layout = layout;
    desc.group_size = kind.group;
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
        } else if (plane == QK_PLANE_SCALE2 ||
                   (plane == QK_PLANE_SCALE && kind.scale == QK_FORMAT_F32) ||
                   plane == QK_PLANE_SCALE_BIAS) {
            mask = 0x007fffffu, bits = 0x3c000000u;
        }
        fill<<<1024, 256>>>(static_cast<uint32_t *>(w.planes[size_t(plane)]),
                            int64_t(bytes + 3) / 4, mask, bits, uint32_t(plane));
        BENCH_CHECK(cudaDeviceSynchronize());
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

qk_tensor *wrap_dense(Bench &b, qk_format format, int64_t rows, int64_t columns, void *data) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = format;
    desc.rank = 2;
    desc.shape[0] = rows;
    desc.shape[1] = columns;
    qk_tensor *tensor = nullptr;
    QK_BENCH(b.context, qk_tensor_wrap(b.context, &desc, &data, 1, &tensor));
    return tensor;
}

void bench_dequantize(Bench &b) {
    const int64_t shapes[][2] = {{4096, 4096}, {4096, 14336}, {8192, 8192}, {8192, 28672}};
    for (const auto &[n, k] : shapes) {
        const int64_t codes = n * k;
        const double floor =
            b.floors ? expand_floor(b.timer, b.pool, kPool, b.out, kPool, codes / 2) : 0;
        b.report.add("floor: expand 4 to 16 bits", n, k, 0, floor, 2.5 * double(codes), 1);
        for (const Kind &kind :
             {kNf4, kNf4Nested, kFp4, kAwq, kGptq, kGemv, kWord, kS8Row, kLut8}) {
            for (const qk_format to : {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32}) {
                const bool every = kind.format == QK_FORMAT_NF4 || kind.layout == QK_LAYOUT_GPTQ ||
                                   kind.layout == QK_LAYOUT_AWQ_GEMM;
                if (to != QK_FORMAT_F16 && !every) continue;
                const int64_t out_bytes = codes * (to == QK_FORMAT_F32 ? 4 : 2);
                std::vector<Weight> weights;
                std::vector<qk_tensor *> outs;
                std::vector<Call> calls;
                const int copies =
                    int(std::min<int64_t>(copies_for(2.5 * double(codes)), kPool / out_bytes));
                for (int i = 0; i < copies; ++i) {
                    weights.push_back(make_weight(b, kind, n, k));
                    outs.push_back(wrap_dense(b, to, n, k, b.out + i * out_bytes));
                    calls.push_back([&b, w = weights.back().tensor, y = outs.back()](cudaStream_t) {
                        QK_BENCH(b.context, qk_dequantize(b.context, w, y));
                    });
                }
                const double us = b.timer.run(calls);
                const double bytes = weights[0].bytes + double(out_bytes);
                // The ceiling's rate, over the bytes that this format must move.
                const double ceiling = floor * bytes / (2.5 * double(codes));
                const char *type = to == QK_FORMAT_F16    ? "f16"
                                   : to == QK_FORMAT_BF16 ? "bf16"
                                                          : "f32";
                b.report.add(std::string("dequantize ") + kind.name + " to " + type, n, k, 0, us,
                             bytes, ceiling / us);
                for (qk_tensor *tensor : outs) qk_tensor_destroy(tensor);
                destroy(weights);
            }
        }
    }
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

double time_linear(Bench &b, const std::vector<qk_tensor *> &weights, qk_format type, int64_t n,
                   int64_t k, int64_t m, Edges edges) {
    qk_tensor *const x = wrap_dense(b, type, m, k, b.out);
    qk_tensor *const y = wrap_dense(b, type, m, n, b.out + (int64_t{1} << 28));
    // f16 and bf16 values of moderate size
    fill<<<256, 256>>>(reinterpret_cast<uint32_t *>(b.out), m * k, 0x83ff83ffu, 0x38003800u, 3);
    BENCH_CHECK(cudaDeviceSynchronize());
    std::vector<Call> calls;
    for (qk_tensor *w : weights) {
        calls.push_back([&b, x, w, y](cudaStream_t) {
            QK_BENCH(b.context, qk_linear(b.context, x, w, nullptr, y));
        });
    }
    const double us = b.timer.run(calls, 2e-3, 11, edges);
    qk_tensor_destroy(x);
    qk_tensor_destroy(y);
    return us;
}

void bench_matvec(Bench &b, bool all_batches) {
    const int64_t shapes[][2] = {{4096, 4096}, {6144, 4096},  {28672, 4096}, {4096, 14336},
                                 {8192, 8192}, {57344, 8192}, {8192, 28672}};
    for (const auto &[n, k] : shapes) {
        for (const Kind &kind : {kAwq, kNf4, kNf4Nested, kFp4}) {
            if (all_batches && (kind.scale == QK_FORMAT_LUT8 || kind.format == QK_FORMAT_FP4_BNB))
                continue;
            double bytes = 0;
            const int64_t estimate = n * k / 2;
            std::vector<qk_tensor *> weights =
                make_packed(b, kind, n, k, copies_for(double(estimate)), &bytes);
            const double floor =
                b.floors ? read_floor(b.timer, b.pool, kPool, int64_t(bytes), b.sink) : 0;
            const std::string name = std::string("linear ") + kind.name;
            b.report.add(std::string("floor: read ") + kind.name, n, k, 1, floor, bytes, 1);
            for (const int64_t m : {1, 2, 4, 8, 16, 32}) {
                if (!all_batches && m > 1) break;
                for (const qk_format type : {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32}) {
                    if (m > 1 && type != QK_FORMAT_F16) continue;
                    const double us = time_linear(b, weights, type, n, k, m, Edges::kFull);
                    const char *x = type == QK_FORMAT_F16    ? " x f16"
                                    : type == QK_FORMAT_BF16 ? " x bf16"
                                                             : " x f32";
                    b.report.add(name + x, n, k, m, us, bytes, floor / us);
                }
                if (m > 1) continue;
                const double us =
                    time_linear(b, weights, QK_FORMAT_F16, n, k, m, Edges::kAsCaptured);
                b.report.add(name + " x f16 overlapped", n, k, m, us, bytes, floor / us);
            }
            for (qk_tensor *w : weights) qk_tensor_destroy(w);
        }
    }
}

// Weights as checkpoints store them, not repacked.
void bench_layouts(Bench &b) {
    const int64_t shapes[][2] = {{4096, 4096}, {6144, 4096},  {28672, 4096}, {4096, 14336},
                                 {8192, 8192}, {57344, 8192}, {8192, 28672}};
    for (const auto &[n, k] : shapes) {
        for (const Kind &kind : {kNf4, kNf4Nested, kAwq, kGptq, kGemv}) {
            std::vector<Weight> weights;
            std::vector<qk_tensor *> tensors;
            for (int i = 0; i < copies_for(double(n * k / 2)); ++i) {
                weights.push_back(make_weight(b, kind, n, k));
                tensors.push_back(weights.back().tensor);
            }
            const double bytes = weights[0].bytes;
            const double floor =
                b.floors ? read_floor(b.timer, b.pool, kPool, int64_t(bytes), b.sink) : 0;
            for (const int64_t m : {1, 4, 16}) {
                for (const qk_format type : {QK_FORMAT_F16, QK_FORMAT_F32}) {
                    if (type == QK_FORMAT_F32 && m > 1) continue;
                    const double us = time_linear(b, tensors, type, n, k, m, Edges::kFull);
                    b.report.add(std::string("layout ") + kind.name +
                                     (type == QK_FORMAT_F16 ? " x f16" : " x f32"),
                                 n, k, m, us, bytes, floor / us);
                }
            }
            destroy(weights);
        }
    }
}

// 8-bit codes, which have one layout.
void bench_bytes(Bench &b) {
    const int64_t shapes[][2] = {{4096, 4096}, {6144, 4096},  {28672, 4096}, {4096, 14336},
                                 {8192, 8192}, {57344, 8192}, {8192, 28672}};
    for (const auto &[n, k] : shapes) {
        for (const Kind &kind : {kS8, kS8Row, kLut8}) {
            std::vector<Weight> weights;
            std::vector<qk_tensor *> tensors;
            for (int i = 0; i < copies_for(double(n * k)); ++i) {
                weights.push_back(make_weight(b, kind, n, k));
                tensors.push_back(weights.back().tensor);
            }
            const double bytes = weights[0].bytes;
            const double floor =
                b.floors ? read_floor(b.timer, b.pool, kPool, int64_t(bytes), b.sink) : 0;
            b.report.add(std::string("floor: read ") + kind.name, n, k, 1, floor, bytes, 1);
            for (const int64_t m : {1, 2, 4, 8, 16, 17, 32, 64, 128}) {
                for (const qk_format type : {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32}) {
                    if (type != QK_FORMAT_F16 && m != 1 && m != 16) continue;
                    const double us = time_linear(b, tensors, type, n, k, m, Edges::kFull);
                    const char *x = type == QK_FORMAT_F16    ? " x f16"
                                    : type == QK_FORMAT_BF16 ? " x bf16"
                                                             : " x f32";
                    b.report.add(std::string("bytes ") + kind.name + x, n, k, m, us, bytes,
                                 floor / us);
                }
            }
            destroy(weights);
        }
    }
}

// y of one product is x of the next; share: of 4672 GB/s, this machine's streaming rate in
// docs/performance.md.
void bench_chain(Bench &b) {
    for (const int64_t n : {4096, 8192}) {
        for (const Kind &kind : {kAwq, kNf4, kNf4Nested}) {
            double bytes = 0;
            std::vector<qk_tensor *> weights =
                make_packed(b, kind, n, n, copies_for(double(n * n / 2)) / 2 * 2 + 2, &bytes);
            qk_tensor *const a = wrap_dense(b, QK_FORMAT_F16, 1, n, b.out);
            qk_tensor *const c = wrap_dense(b, QK_FORMAT_F16, 1, n, b.out + (1 << 20));
            fill<<<256, 256>>>(reinterpret_cast<uint32_t *>(b.out), n / 2, 0x83ff83ffu, 0x38003800u,
                               3);
            BENCH_CHECK(cudaDeviceSynchronize());
            std::vector<Call> calls;
            for (size_t i = 0; i < weights.size(); ++i) {
                calls.push_back([&b, w = weights[i], x = i % 2 == 0 ? a : c,
                                 y = i % 2 == 0 ? c : a](cudaStream_t) {
                    QK_BENCH(b.context, qk_linear(b.context, x, w, nullptr, y));
                });
            }
            const double us = b.timer.run(calls, 2e-3, 11, Edges::kAsCaptured);
            b.report.add(std::string("chain ") + kind.name, n, n, 1, us, bytes,
                         bytes / us * 1e-3 / 4672);
            qk_tensor_destroy(a);
            qk_tensor_destroy(c);
            for (qk_tensor *w : weights) qk_tensor_destroy(w);
        }
    }
}

// One call of each kernel, for a profiler.
void probe(Bench &b) {
    const int64_t n = 28672, k = 4096;
    for (const Kind &kind : {kAwq, kNf4}) {
        double bytes = 0;
        std::vector<qk_tensor *> weights = make_packed(b, kind, n, k, 1, &bytes);
        std::vector<Weight> source = {make_weight(b, kind, n, k)};
        qk_tensor *const dense = wrap_dense(b, QK_FORMAT_F16, n, k, b.out);
        QK_BENCH(b.context, qk_dequantize(b.context, source[0].tensor, dense));
        for (const int64_t m : {1, 16}) {
            qk_tensor *const x = wrap_dense(b, QK_FORMAT_F16, m, k, b.pool);
            qk_tensor *const y = wrap_dense(b, QK_FORMAT_F16, m, n, b.out);
            QK_BENCH(b.context, qk_linear(b.context, x, weights[0], nullptr, y));
        }
        QK_BENCH(b.context, qk_context_synchronize(b.context));
        destroy(source);
    }
}

}  // namespace bench

int main(int argc, char **argv) {
    bench::Bench b(argc > 1 ? argv[1] : nullptr);
    const auto wanted = [&](const char *section) {
        for (int i = 2; i < argc; ++i) {
            if (std::strcmp(argv[i], section) == 0) return true;
        }
        return argc <= 2;
    };
    b.floors = argc <= 2 || !wanted("nofloors");
    cudaDeviceProp device = {};
    BENCH_CHECK(cudaGetDeviceProperties(&device, 0));
    std::printf("%s, %d multiprocessors, %s\n", device.name, device.multiProcessorCount,
                qk_build_info());
    if (argc > 2 && wanted("probe")) bench::probe(b);
    if (wanted("dequantize")) bench::bench_dequantize(b);
    if (wanted("chain")) bench::bench_chain(b);
    if (wanted("matvec")) bench::bench_matvec(b, false);
    if (wanted("batch")) bench::bench_matvec(b, true);
    if (wanted("layouts")) bench::bench_layouts(b);
    if (wanted("bytes")) bench::bench_bytes(b);
    return 0;
}
