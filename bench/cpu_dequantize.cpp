// The conversions of the CPU (qk_dequantize, qk_quantize, qk_repack) against the floor of moving
// their bytes: reading as many as the source's codes or numbers take and writing the output past
// the caches, or (--against write) writing alone. Scales are not counted.
//
//     qk_bench_cpu_dequantize [--op dequantize|quantize|repack] [--filter TEXT] [--n N] [--k K]
//                             [--threads N] [--seconds S] [--against move|write]
//                             [--isa all|vnni|avx512|avx_vnni|avx2|generic]
#include <string.h>

#include <CLI/CLI.hpp>

#include "../cli/trace.hpp"
#include "instruction_set.hpp"
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
    {"nf4 b64 packed nested", QK_FORMAT_NF4, QK_FORMAT_LUT8, QK_LAYOUT_PACKED, 64},
    {"fp4 b64 packed", QK_FORMAT_FP4_BNB, QK_FORMAT_F32, QK_LAYOUT_PACKED, 64},
    {"u4 g128 row", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_ROW, 128},
    {"u4 g128 word", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_WORD, 128},
    {"u4 g128 packed", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_PACKED, 128},
    {"u4 g128 awq_gemm", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_AWQ_GEMM, 128},
    {"u4 g128 gptq", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_GPTQ, 128},
    {"s8 row", QK_FORMAT_S8, QK_FORMAT_F32, QK_LAYOUT_ROW, QK_GROUP_ROW},
    {"e4m3 g128", QK_FORMAT_E4M3, QK_FORMAT_F32, QK_LAYOUT_ROW, 128},
    {"lut8 b256", QK_FORMAT_LUT8, QK_FORMAT_F32, QK_LAYOUT_ROW, 256},
};

struct Options {
    std::string filter, against = "move", op = "dequantize", isa = "all";
    int threads = 1;
    int64_t n = 0, k = 0;
    double seconds = 1;
};

const char *name_of(qk_format format) {
    return format == QK_FORMAT_F32 ? "f32" : format == QK_FORMAT_F16 ? "f16" : "bf16";
}
int64_t bits_of(qk_format format) {
    switch (format) {
        case QK_FORMAT_F32: return 32;
        case QK_FORMAT_F16:
        case QK_FORMAT_BF16: return 16;
        case QK_FORMAT_S8:
        case QK_FORMAT_E4M3:
        case QK_FORMAT_LUT8: return 8;
        default: return 4;
    }
}

// A context on the bench's threads and large pages, and the tensors in it.
class Room {
  public:
    explicit Room(const Options &run) : run_(run), threads_(run.threads) {
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        options.thread_count = 1;
        options.allocator = &allocator_;
        options.instruction_sets = bench::instruction_sets_of(run.isa);
        if (run.threads > 1) options.executor = &executor_;
        trace_if_asked(&options);
        check(qk_context_create(&options, &context), nullptr);
    }
    ~Room() {
        for (qk_tensor *const tensor : tensors_) qk_tensor_destroy(tensor);
        qk_context_destroy(context);
    }

    qk_tensor *dense(qk_format format) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.format = format;
        return create(desc);
    }
    qk_tensor *weight(const Case &c, qk_layout layout) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.format = c.format;
        desc.scale_format = c.scale_format;
        desc.group_size = c.group_size;
        desc.grouping = QK_GROUPING_ALONG_K;
        desc.layout = layout;
        qk_tensor *const tensor = create(desc);
        float table[256];
        qk_dynamic_table(table);
        if (c.format == QK_FORMAT_LUT8) upload(tensor, QK_PLANE_TABLE, table);
        if (c.scale_format == QK_FORMAT_LUT8) upload(tensor, QK_PLANE_SCALE_CODE, table);
        return tensor;
    }
    // Numbers to quantize.
    qk_tensor *numbers(qk_format format) {
        qk_tensor *const tensor = dense(format);
        const size_t count = size_t(run_.n * run_.k);
        std::vector<float> values(format == QK_FORMAT_F32 ? count : 0);
        std::vector<uint16_t> halves(format == QK_FORMAT_F32 ? 0 : count);
        for (size_t i = 0; i < count; ++i) {
            const float value = float(i * 7919 % 1000) * 0.001f - 0.5f;
            uint32_t bits;
            memcpy(&bits, &value, 4);
            format == QK_FORMAT_F32 ? void(values[i] = value) : void(halves[i] = bits >> 16);
        }
        const void *const data = values.empty() ? static_cast<void *>(halves.data()) : &values[0];
        check(qk_tensor_upload(context, tensor, QK_PLANE_DATA, data,
                               count * size_t(bits_of(format) / 8)),
              context);
        return tensor;
    }

    // The kernel, which reads and writes so many bits a weight, against moving them.
    void report(const char *name, const std::string &what, int64_t read_bits, int64_t write_bits,
                const std::function<void()> &kernel) {
        const int64_t count = run_.n * run_.k;
        const size_t written = size_t(count * write_bits / 8);
        const size_t read = run_.against == "write" ? 0 : size_t(count * read_bits / 8);
        bench::Buffer to(written), from(read + 1);
        memset(from.data, 7, from.bytes);
        const auto floor = [&] {
            const size_t shares = size_t(threads_.count());
            threads_.run(threads_.count(), [&](int t) {
                bench::move_stream(from.data + size_t(t) * (read / shares), read / shares,
                                   to.data + size_t(t) * (written / shares), written / shares);
            });
        };
        floor();
        const double bytes = double(count * (read_bits + write_bits)) / 8;
        const bench::Result r =
            bench::measure_pairs(run_.threads, run_.seconds, bytes, floor, bytes, kernel);
        const double weights = r.gigabytes / double(read_bits + write_bits);  // 8e9 a second
        printf(
            "{\"bench\": \"%s\", \"case\": \"%s\", \"isa\": \"%s\", \"to\": \"%s\", \"n\": %lld, "
            "\"k\": %lld, \"threads\": %d, \"read GB/s\": %.2f, \"written GB/s\": %.2f, "
            "\"packed GB/s\": %.2f, \"against\": \"%s\", \"floor written GB/s\": %.2f, "
            "\"ratio\": %.3f, \"p10\": %.3f, \"p90\": %.3f, \"samples\": %d}\n",
            run_.op.c_str(), name, run_.isa.c_str(), what.c_str(), (long long)run_.n,
            (long long)run_.k, run_.threads, weights * double(read_bits),
            weights * double(write_bits), weights * double(std::min(read_bits, write_bits)),
            run_.against.c_str(), r.floor / double(read_bits + write_bits) * double(write_bits),
            r.ratio, r.low, r.high, r.samples);
        fflush(stdout);
    }

    qk_context *context = nullptr;

  private:
    qk_tensor *create(qk_tensor_desc desc) {
        desc.rank = 2;
        desc.shape[0] = run_.n;
        desc.shape[1] = run_.k;
        qk_tensor *tensor = nullptr;
        check(qk_tensor_create(context, &desc, &tensor), context);
        tensors_.push_back(tensor);
        return tensor;
    }
    void upload(qk_tensor *tensor, qk_plane plane, const float (&table)[256]) {
        check(qk_tensor_upload(context, tensor, plane, table, sizeof(table)), context);
    }

    const Options &run_;
    bench::Threads threads_;
    bench::Arena arena_{size_t{2} << 30};
    const qk_executor executor_ = threads_.executor();
    const qk_allocator allocator_ = arena_.allocator();
    std::vector<qk_tensor *> tensors_;
};

void run_dequantize(const Options &run, const Case &c, qk_format to) {
    Room room(run);
    qk_tensor *const source = room.numbers(QK_FORMAT_F32);
    qk_tensor *const weight = room.weight(c, c.layout), *const output = room.dense(to);
    check(qk_quantize(room.context, source, weight), room.context);
    room.report(c.name, name_of(to), bits_of(c.format), bits_of(to),
                [&] { check(qk_dequantize(room.context, weight, output), room.context); });
}

void run_quantize(const Options &run, const Case &c, qk_format from) {
    Room room(run);
    qk_tensor *const source = room.numbers(from), *const weight = room.weight(c, c.layout);
    room.report(c.name, std::string("from ") + name_of(from), bits_of(from), bits_of(c.format),
                [&] { check(qk_quantize(room.context, source, weight), room.context); });
}

// There and back.
void run_repack(const Options &run, const Case &c) {
    Room room(run);
    qk_tensor *const source = room.numbers(QK_FORMAT_F32);
    qk_tensor *const weight = room.weight(c, c.layout);
    qk_tensor *const packed = room.weight(c, QK_LAYOUT_PACKED);
    check(qk_quantize(room.context, source, weight), room.context);
    const int64_t bits = bits_of(c.format);
    room.report(c.name, "packed", bits, bits,
                [&] { check(qk_repack(room.context, weight, packed), room.context); });
    room.report(c.name, "back", bits, bits,
                [&] { check(qk_repack(room.context, packed, weight), room.context); });
}

}  // namespace

int main(int argc, char **argv) {
    Options run;
    CLI::App app{
        "qk_dequantize, qk_quantize or qk_repack on the CPU beside a floor; one JSON "
        "object a line. The floor reads as many bytes as the source's codes or numbers "
        "take and writes the output past the caches; a ratio of 1 is as fast."};
    app.add_option("--op", run.op, "what to time (default dequantize)")
        ->check(CLI::IsMember({"dequantize", "quantize", "repack"}));
    app.add_option("--filter", run.filter, "only cases whose name contains this text");
    app.add_option("--against", run.against, "the floor: reads and writes, or only writes")
        ->check(CLI::IsMember({"move", "write"}));
    app.add_option("--isa", run.isa, "instruction sets that qk may use")
        ->check(CLI::IsMember(bench::instruction_sets()));
    app.add_option("--n", run.n, "rows (default 4096)")->check(CLI::Range(8, 65536));
    app.add_option("--k", run.k, "columns (default 4096, to repack 14336)")
        ->check(CLI::Range(128, 65536));
    app.add_option("--threads", run.threads)->check(CLI::Range(1, 1024));
    app.add_option("--seconds", run.seconds, "of samples, a case")->check(CLI::PositiveNumber);
    CLI11_PARSE(app, argc, argv);
    if (run.n == 0) run.n = 4096;
    if (run.k == 0) run.k = run.op == "repack" ? 14336 : 4096;
    for (const Case &c : kCases) {
        if (std::string(c.name).find(run.filter) == std::string::npos) continue;
        if (run.op == "repack") {
            if (c.layout != QK_LAYOUT_PACKED) run_repack(run, c);
            continue;
        }
        for (const qk_format dense : {QK_FORMAT_F32, QK_FORMAT_BF16}) {
            run.op == "quantize" ? run_quantize(run, c, dense) : run_dequantize(run, c, dense);
        }
    }
}
