// qk_dequantize on the CPU against the floor of moving its bytes: reading as many as the codes take
// and writing the output past the caches, or (--against write) writing alone.
//
//     qk_bench_cpu_dequantize [--filter TEXT] [--threads N] [--seconds S] [--against move|write]
#include <string.h>

#include <CLI/CLI.hpp>

#include "measure.hpp"

namespace {

void check(qk_status status, const qk_context *context) {
    if (status == QK_OK) return;
    fprintf(stderr, "%s: %s\n", qk_status_string(status), qk_context_error(context));
    exit(1);
}

struct Case {
    const char *name;
    qk_format format, scale_format;
    qk_layout layout;
    int32_t group_size;
};

constexpr Case kCases[] = {
    {"nf4 b64 row_high", QK_FORMAT_NF4, QK_FORMAT_F32, QK_LAYOUT_ROW_HIGH, 64},
    {"nf4 b64 row_high nested", QK_FORMAT_NF4, QK_FORMAT_LUT8, QK_LAYOUT_ROW_HIGH, 64},
    {"fp4 b64 packed", QK_FORMAT_FP4_BNB, QK_FORMAT_F32, QK_LAYOUT_PACKED, 64},
    {"u4 g128 word", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_WORD, 128},
    {"u4 g128 packed", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_PACKED, 128},
    {"u4 g128 awq_gemm", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_AWQ_GEMM, 128},
    {"u4 g128 gptq", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_GPTQ, 128},
    {"s8 row", QK_FORMAT_S8, QK_FORMAT_F32, QK_LAYOUT_ROW, QK_GROUP_ROW},
    {"lut8 b256", QK_FORMAT_LUT8, QK_FORMAT_F32, QK_LAYOUT_ROW, 256},
};

struct Options {
    std::string filter, against = "move";
    int threads = 1;
    double seconds = 1;
};

qk_tensor *create(qk_context *context, qk_tensor_desc desc, int64_t n, int64_t k) {
    desc.rank = 2;
    desc.shape[0] = n;
    desc.shape[1] = k;
    qk_tensor *tensor = nullptr;
    check(qk_tensor_create(context, &desc, &tensor), context);
    return tensor;
}

void run_case(const Options &run, const Case &c, qk_format to) {
    const int thread_count = run.threads;
    constexpr int64_t n = 4096, k = 4096;
    bench::Threads threads(thread_count);
    const qk_executor executor = threads.executor();
    bench::Arena arena(size_t{1} << 30);
    const qk_allocator allocator = arena.allocator();
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.thread_count = 1;
    options.allocator = &allocator;
    if (thread_count > 1) options.executor = &executor;
    qk_context *context = nullptr;
    check(qk_context_create(&options, &context), nullptr);

    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    qk_tensor *const source = create(context, desc, n, k);
    std::vector<float> values(size_t(n * k));
    for (size_t i = 0; i < values.size(); ++i) values[i] = float(i * 7919 % 1000) * 0.001f - 0.5f;
    check(qk_tensor_upload(context, source, QK_PLANE_DATA, values.data(), values.size() * 4),
          context);
    desc.format = c.format;
    desc.scale_format = c.scale_format;
    desc.group_size = c.group_size;
    desc.layout = c.layout;
    qk_tensor *const weight = create(context, desc, n, k);
    if (c.format == QK_FORMAT_LUT8) {
        float table[256];
        qk_dynamic_table(table);
        check(qk_tensor_upload(context, weight, QK_PLANE_TABLE, table, sizeof(table)), context);
    }
    if (c.scale_format == QK_FORMAT_LUT8) {
        float table[256];
        qk_dynamic_table(table);
        check(qk_tensor_upload(context, weight, QK_PLANE_SCALE_CODE, table, sizeof(table)),
              context);
    }
    check(qk_quantize(context, source, weight), context);
    qk_tensor_desc dense = QK_TENSOR_DESC_INIT;
    dense.format = to;
    qk_tensor *const output = create(context, dense, n, k);

    const size_t bytes = size_t(n * k) * (to == QK_FORMAT_F32 ? 4 : 2);
    const bool four_bits = c.format != QK_FORMAT_S8 && c.format != QK_FORMAT_LUT8;
    const size_t read_bytes =
        run.against == "write" ? 0 : size_t(n * k) / (four_bits ? 2 : 1);
    bench::Buffer floor_buffer(bytes), codes_buffer(size_t(n * k));
    memset(codes_buffer.data, 7, codes_buffer.bytes);
    const auto floor = [&] {
        const size_t count = size_t(threads.count());
        const size_t share = bytes / count, read = read_bytes / count;
        threads.run(threads.count(), [&](int t) {
            bench::move_stream(codes_buffer.data + size_t(t) * read, read,
                               floor_buffer.data + size_t(t) * share, share);
        });
    };
    floor();
    const auto kernel = [&] { check(qk_dequantize(context, weight, output), context); };
    const bench::Result r = bench::measure_pairs(thread_count, run.seconds, double(bytes), floor,
                                                 double(bytes), kernel);
    printf("{\"bench\": \"dequantize\", \"case\": \"%s\", \"to\": \"%s\", \"n\": %lld, "
           "\"k\": %lld, \"threads\": %d, \"written GB/s\": %.2f, \"packed GB/s\": %.2f, "
           "\"against\": \"%s\", "
           "\"floor GB/s\": %.2f, \"ratio\": %.3f, \"p10\": %.3f, \"p90\": %.3f, "
           "\"samples\": %d}\n",
           c.name, to == QK_FORMAT_F32 ? "f32" : to == QK_FORMAT_F16 ? "f16" : "bf16",
           (long long)n, (long long)k, thread_count, r.gigabytes,
           r.gigabytes * double(n * k) / (four_bits ? 2 : 1) / double(bytes), run.against.c_str(),
           r.floor, r.ratio, r.low, r.high,
           r.samples);
    fflush(stdout);
    for (qk_tensor *const tensor : {source, weight, output}) qk_tensor_destroy(tensor);
    qk_context_destroy(context);
}

}  // namespace

int main(int argc, char **argv) {
    Options run;
    CLI::App app{"qk_dequantize on the CPU beside a floor; one JSON object a line"};
    app.add_option("--filter", run.filter, "only cases whose name contains this text");
    app.add_option("--against", run.against, "the floor: reads and writes, or only writes")
        ->check(CLI::IsMember({"move", "write"}));
    app.add_option("--threads", run.threads)->check(CLI::Range(1, 1024));
    app.add_option("--seconds", run.seconds, "of samples, a case")->check(CLI::PositiveNumber);
    CLI11_PARSE(app, argc, argv);
    for (const Case &c : kCases) {
        if (std::string(c.name).find(run.filter) == std::string::npos) continue;
        for (const qk_format to : {QK_FORMAT_F32, QK_FORMAT_BF16}) run_case(run, c, to);
    }
}
