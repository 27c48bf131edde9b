// Dequantize and the matrix-vector product on a GPU against the floors of the same machine,
// measured in the same run.  bench_cuda [out.json] [section ...]; sections: dequantize packed
// quantize repack matvec batch layouts bytes transposed (and nofloors: without the floors; probe:
// one call of each kernel).
#include <cstring>
#include <map>

#include "weights.cuh"

namespace bench {

const char *name_of(qk_format type) {
    return type == QK_FORMAT_F16 ? "f16" : type == QK_FORMAT_BF16 ? "bf16" : "f32";
}

void bench_dequantize(Bench &b) {
    const int64_t shapes[][2] = {{4096, 4096}, {4096, 14336}, {8192, 8192}, {8192, 28672}};
    for (const auto &[n, k] : shapes) {
        const int64_t codes = n * k;
        const double floor =
            b.floors ? expand_floor(b.timer, b.pool, kPool, b.out, kPool, codes / 2) : 0;
        b.report.add("floor: expand 4 to 16 bits", n, k, 0, floor, 2.5 * double(codes), 1);
        for (const Kind &kind : {kNf4, kNf4Nested, kFp4, kAwq, kGptq, kGemv, kWord, kS8Row, kLut8,
                                 kU4Small, kMxfp4, kNvfp4, kFp8Row}) {
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
                b.report.add(std::string("dequantize ") + kind.name + " to " + name_of(to), n, k, 0,
                             us, bytes, ceiling / us);
                for (qk_tensor *tensor : outs) qk_tensor_destroy(tensor);
                destroy(weights);
            }
        }
    }
}

// Packed weights to dense numbers, [n, k] and [k, n].
void bench_packed(Bench &b) {
    const int64_t shapes[][2] = {{4096, 4096}, {8192, 8192}, {8192, 28672}};
    for (const auto &[n, k] : shapes) {
        const int64_t codes = n * k;
        const double floor =
            b.floors ? expand_floor(b.timer, b.pool, kPool, b.out, kPool, codes / 2) : 0;
        for (const Kind &kind : {kAwq, kU4Small, kNf4, kNf4Nested, kFp4, kMxfp4, kNvfp4}) {
            double weight_bytes = 0;
            const int copies = copies_for(2.5 * double(codes));
            const std::vector<qk_tensor *> weights =
                make_packed(b, kind, n, k, copies, &weight_bytes);
            const uint32_t columns = QK_TENSOR_COLUMN_MAJOR;
            for (const auto &[to, flags] :
                 {std::pair{QK_FORMAT_F16, 0u}, std::pair{QK_FORMAT_BF16, 0u},
                  std::pair{QK_FORMAT_F32, 0u}, std::pair{QK_FORMAT_F16, columns},
                  std::pair{QK_FORMAT_F32, columns}}) {
                const bool every = kind.format == QK_FORMAT_NF4 && kind.scale == QK_FORMAT_F32;
                if (to != QK_FORMAT_F16 && !every) continue;
                const int64_t out_bytes = codes * (to == QK_FORMAT_F32 ? 4 : 2);
                std::vector<qk_tensor *> outs;
                std::vector<Call> calls;
                for (int i = 0; i < copies; ++i) {
                    void *const out = b.out + i % (kPool / out_bytes) * out_bytes;
                    outs.push_back(wrap_dense(b, to, n, k, out, flags));
                    calls.push_back([&b, w = weights[size_t(i)], y = outs.back()](cudaStream_t) {
                        QK_BENCH(b.context, qk_dequantize(b.context, w, y));
                    });
                }
                const double us = b.timer.run(calls), bytes = weight_bytes + double(out_bytes);
                const std::string order = flags != 0 ? " [k,n]" : "";
                b.report.add("packed " + (kind.name + (" to " + (name_of(to) + order))), n, k, 0,
                             us, bytes, floor * bytes / (2.5 * double(codes)) / us);
                for (qk_tensor *tensor : outs) qk_tensor_destroy(tensor);
            }
            for (qk_tensor *w : weights) qk_tensor_destroy(w);
        }
    }
}

// Codes and scales from a layout to another, beside a copy of the same bytes.
void bench_repack(Bench &b) {
    constexpr qk_layout layouts[] = {QK_LAYOUT_ROW,      QK_LAYOUT_ROW_HIGH, QK_LAYOUT_WORD,
                                     QK_LAYOUT_AWQ_GEMV, QK_LAYOUT_GPTQ,     QK_LAYOUT_AWQ_GEMM,
                                     QK_LAYOUT_PACKED};
    constexpr const char *names[] = {"ROW",  "ROW_HIGH", "WORD",  "AWQ_GEMV",
                                     "GPTQ", "AWQ_GEMM", "PACKED"};
    const int64_t shapes[][2] = {{4096, 4096}, {8192, 8192}};
    for (const auto &[n, k] : shapes) {
        for (size_t source = 0; source < 7; ++source) {
            for (size_t target = 0; target < 7; ++target) {
                if (source == target) continue;
                Kind kind = kAwq;
                kind.layout = layouts[source];
                const qk_tensor_desc desc = describe(kind, layouts[target], n, k);
                std::vector<Weight> sources;
                std::vector<qk_tensor *> from, to;
                std::vector<Call> calls;
                double bytes = 0;
                const int copies = copies_for(double(n * k));
                if (source == 6) from = make_packed(b, kAwq, n, k, copies, &bytes);
                for (int i = 0; i < copies; ++i) {
                    if (source != 6) {
                        sources.push_back(make_weight(b, kind, n, k));
                        from.push_back(sources.back().tensor);
                        bytes = sources.back().bytes;
                    }
                    to.push_back(nullptr);
                    QK_BENCH(b.context, qk_tensor_create(b.context, &desc, &to.back()));
                    calls.push_back([&b, x = from[size_t(i)], y = to.back()](cudaStream_t) {
                        QK_BENCH(b.context, qk_repack(b.context, x, y));
                    });
                }
                const double floor =
                    b.floors ? copy_floor(b.timer, b.pool, kPool, b.out, kPool, int64_t(bytes)) : 0;
                const double us = b.timer.run(calls);
                b.report.add(std::string("repack ") + names[source] + " to " + names[target], n, k,
                             0, us, 2 * bytes, floor / us);
                for (qk_tensor *tensor : to) qk_tensor_destroy(tensor);
                if (source == 6)
                    for (qk_tensor *tensor : from) qk_tensor_destroy(tensor);
                destroy(sources);
            }
        }
    }
}

// Dense numbers to codes and scales, beside a copy of the same bytes.
void bench_quantize(Bench &b) {
    const int64_t shapes[][2] = {{4096, 4096}, {8192, 8192}, {8192, 28672}};
    for (const auto &[n, k] : shapes) {
        for (const Kind &kind :
             {kNf4, kFp4, kNf4Nested, kE2m1, kU4Symmetric, kU4Zeros, kS8, kLut8}) {
            const int64_t codes = n * k;
            const int copies = copies_for(2.5 * double(codes));
            std::vector<Weight> weights;
            std::vector<qk_tensor *> dense;
            std::vector<Call> calls;
            for (int i = 0; i < copies; ++i) {
                weights.push_back(make_weight(b, kind, n, k));
                dense.push_back(wrap_dense(b, QK_FORMAT_F16, n, k,
                                           b.out + i % (kPool / codes / 2) * codes * 2));
                calls.push_back([&b, x = dense.back(), w = weights.back().tensor](cudaStream_t) {
                    QK_BENCH(b.context, qk_quantize(b.context, x, w));
                });
            }
            const double bytes = weights[0].bytes + 2 * double(codes);
            const double floor =
                b.floors ? copy_floor(b.timer, b.pool, kPool, b.out, kPool, int64_t(bytes) / 2) : 0;
            // Behind the floor, which leaves random bits there: NaN and infinities.
            fill<<<4096, 256>>>(reinterpret_cast<uint32_t *>(b.out), kPool / 4, 0x83ff83ffu,
                                0x38003800u, 3);
            BENCH_CHECK(cudaDeviceSynchronize());
            // Launches of one call may overlap, the first one of a call waits for the one before.
            const double us = b.timer.run(calls, 2e-3, 11, Edges::kAsCaptured);
            b.report.add(std::string("quantize f16 to ") + kind.name, n, k, 0, us, bytes,
                         floor / us);
            for (qk_tensor *tensor : dense) qk_tensor_destroy(tensor);
            destroy(weights);
        }
    }
}

double time_linear(Bench &b, const std::vector<qk_tensor *> &weights, qk_format type, int64_t n,
                   int64_t k, int64_t m, Edges edges, bool transposed = false) {
    const int64_t x_columns = transposed ? n : k, y_columns = transposed ? k : n;
    qk_tensor *const x = wrap_dense(b, type, m, x_columns, b.out);
    qk_tensor *const y = wrap_dense(b, type, m, y_columns, b.out + (int64_t{1} << 28));
    // f16 and bf16 values of moderate size
    fill<<<256, 256>>>(reinterpret_cast<uint32_t *>(b.out), m * x_columns, 0x83ff83ffu, 0x38003800u,
                       3);
    BENCH_CHECK(cudaDeviceSynchronize());
    std::vector<Call> calls;
    for (qk_tensor *w : weights) {
        qk_product product = QK_PRODUCT_INIT;
        product.flags = transposed ? QK_PRODUCT_TRANSPOSED : 0;
        product.x = x, product.w = w, product.y = y;
        calls.push_back([&b, product](cudaStream_t) {
            QK_BENCH(b.context, qk_multiply(b.context, &product, 1));
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
        for (const Kind &kind :
             {kAwq, kActOrder, kNf4, kNf4Nested, kFp4, kU4Small, kMxfp4, kNvfp4}) {
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
                    const bool few = type == QK_FORMAT_F32 && (m == 4 || m == 16);
                    if (m > 1 && type != QK_FORMAT_F16 && !few) continue;
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
        for (const Kind &kind : {kS8, kS8Row, kLut8, kFp8Row}) {
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

// y = x . w, what comes back through a layer; share: to 16 rows of x of the read floor, then of the
// time of dense weights.
constexpr int64_t kTransposedRows[] = {1, 4, 16, 48, 64, 128, 512, 2048};
void bench_transposed(Bench &b) {
    const int64_t shapes[][2] = {{4096, 4096}, {28672, 4096}, {4096, 14336}, {8192, 8192}};
    for (const auto &[n, k] : shapes) {
        std::vector<qk_tensor *> dense;
        const int64_t dense_bytes = n * k * 2;
        const int copies =
            int(std::min<int64_t>(copies_for(double(dense_bytes)), kPool / dense_bytes));
        // As numbers: the pool's bits are NaN, too.
        fill<<<4096, 256>>>(reinterpret_cast<uint32_t *>(b.pool), copies * dense_bytes / 4,
                            0x83ff83ffu, 0x38003800u, 1);
        for (int i = 0; i < copies; ++i) {  // [k, n]: a product that the library writes as y is
            dense.push_back(wrap_dense(b, QK_FORMAT_F16, k, n, b.pool + i * dense_bytes));
        }
        std::map<int64_t, double> dense_us;
        for (const int64_t m : kTransposedRows) {
            if (m < 16) continue;  // which the library does not get
            dense_us[m] = time_linear(b, dense, QK_FORMAT_F16, k, n, m, Edges::kFull);
            b.report.add("transposed dense f16 cuBLASLt", n, k, m, dense_us[m], double(dense_bytes),
                         1);
        }
        for (qk_tensor *w : dense) qk_tensor_destroy(w);
        for (const Kind &kind : {kAwq, kNf4, kNf4Nested, kMxfp4, kNvfp4}) {
            double bytes = 0;
            std::vector<qk_tensor *> weights =
                make_packed(b, kind, n, k, copies_for(double(n * k / 2)), &bytes);
            const double floor =
                b.floors ? read_floor(b.timer, b.pool, kPool, int64_t(bytes), b.sink) : 0;
            for (const int64_t m : kTransposedRows) {
                const double us =
                    time_linear(b, weights, QK_FORMAT_F16, n, k, m, Edges::kFull, true);
                b.report.add(std::string("transposed ") + kind.name, n, k, m, us, bytes,
                             (m <= 16 ? floor : dense_us[m]) / us);
            }
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
    if (wanted("packed")) bench::bench_packed(b);
    if (wanted("quantize")) bench::bench_quantize(b);
    if (wanted("repack")) bench::bench_repack(b);
    if (wanted("matvec")) bench::bench_matvec(b, false);
    if (wanted("batch")) bench::bench_matvec(b, true);
    if (wanted("layouts")) bench::bench_layouts(b);
    if (wanted("bytes")) bench::bench_bytes(b);
    if (wanted("transposed")) bench::bench_transposed(b);
    return 0;
}
