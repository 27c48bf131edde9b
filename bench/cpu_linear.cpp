// qk_linear on the CPU: weights in DRAM (rotated, so that no cache holds them), or resident in L2
// or L3; ratio to a floor in the same run: a loop that only reads the weights, the processor's peak
// of multiplications and additions, or, of groups that straddle rows, the same product with rows of
// whole groups.
//
//     qk_bench_cpu_linear [--filter TEXT] [--threads N] [--seconds S] [--m M] [--place dram|l2|l3]
//                         [--against read|peak|aligned] [--mode exact|bf16|int8]
//                         [--isa all|vnni|avx512|avx_vnni|avx2|generic]
//                         [--layout packed|row|row_high|gptq|awq_gemm|awq_gemv|word]
//                         [--straddle COLUMNS] [--shape NxK]
//     qk_bench_cpu_linear --fork-join|--small [--threads N]
//     qk_bench_cpu_linear --floor [--against read|peak] [--threads N]    a rate for each line of
//     stdin
#include <string.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "../cli/trace.hpp"
#include "instruction_set.hpp"
#include "measure.hpp"
#include "weights.hpp"

namespace {

using namespace bench;

struct Options {
    std::string filter, shape, place = "dram", against = "read", mode = "exact", isa = "all",
                               layout = "packed";
    int threads = 1, m = 1, straddle = 0;
    double seconds = 1;
    bool fork_join = false, small = false, floor = false;
};

// Codes of 8 bits know one layout only.
qk_layout layout_of(const Options &options, const Case &c) {
    constexpr struct {
        const char *name;
        qk_layout layout;
    } layouts[] = {{"row", QK_LAYOUT_ROW},           {"row_high", QK_LAYOUT_ROW_HIGH},
                   {"gptq", QK_LAYOUT_GPTQ},         {"awq_gemm", QK_LAYOUT_AWQ_GEMM},
                   {"awq_gemv", QK_LAYOUT_AWQ_GEMV}, {"word", QK_LAYOUT_WORD}};
    for (const auto &each : layouts) {
        if (options.layout == each.name) return has_bytes(c) ? QK_LAYOUT_ROW : each.layout;
    }
    return QK_LAYOUT_PACKED;
}

constexpr size_t kDramPass = size_t{64} << 20;

// What a case is compared with: `work` bytes or operations a call.
struct Floor {
    std::function<void()> call;
    double work;
};

// Reads so many bytes, so many times; the next call goes on behind them.
Floor read_floor(const Options &options, bench::Threads *threads, size_t pass, int passes) {
    static bench::Buffer buffer(size_t{256} << 20);
    static const bool touched = memset(buffer.data, 7, buffer.bytes) != nullptr;
    static size_t offset = 0;
    if (offset + pass > buffer.bytes || !touched) offset = 0;
    const size_t share = pass / 4096 / size_t(options.threads) * 4096;
    const auto call = [=, count = options.threads] {
        for (int i = 0; i < passes; ++i) {
            threads->run(count, [&](int t) {
                bench::read_stream(buffer.data + offset + size_t(t) * share, share);
            });
        }
        if (passes == 1) offset = (offset + pass) % buffer.bytes;
    };
    return {call, double(pass) * passes};
}

Floor peak_floor(const Options &options, bench::Threads *threads) {
    constexpr int64_t rounds = 1 << 18;
    const auto call = [threads, count = options.threads] {
        threads->run(count, [](int) { bench::multiply_and_add(rounds); });
    };
    return {call, double(options.threads) * double(rounds) * bench::kFlopsPerRound};
}

// A product, and in memory as many copies of its weights as no cache holds.
class Product {
  public:
    Product(const Options &options, qk_context *context, const Case &c, int64_t n, int64_t k)
        : bytes(weight_bytes(c, n, k)), flops(2.0 * options.m * double(n) * double(k)),
          context_(context) {
        const bool dram = options.place == "dram";
        const int copies = dram ? std::max(2, int(3.2e8 / bytes) + 1) : 1;
        calls = options.m >= 64 ? 1 : dram ? copies : std::max(4, int(6.4e7 / bytes));
        const qk_layout layout = layout_of(options, c);
        weights_ = {create_w(context, c, n, k, layout)};
        while (int(weights_.size()) < copies) {
            qk_tensor *const copy = create(context, c.format, layout, n, k, &c);
            check(qk_repack(context, weights_[0], copy), context);
            weights_.push_back(copy);
        }
        x_ = create_x(context, c.x_format, options.m, k);
        y_ = create(context, c.x_format, QK_LAYOUT_ROW, options.m, n, nullptr);
    }
    Product(const Product &) = delete;
    ~Product() {
        for (qk_tensor *const tensor : weights_) qk_tensor_destroy(tensor);
        qk_tensor_destroy(x_);
        qk_tensor_destroy(y_);
    }

    void run() const {
        for (int i = 0; i < calls; ++i) {
            qk_tensor *const w = weights_[size_t(i) % weights_.size()];
            check(qk_linear(context_, x_, w, nullptr, y_), context_);
        }
    }

    const double bytes, flops;  // of a call
    int calls = 0;              // of a run

  private:
    qk_context *const context_;
    std::vector<qk_tensor *> weights_;
    qk_tensor *x_ = nullptr, *y_ = nullptr;
};

// More than any kernel wants of workspace.
qk_context *create_context(const Options &options, int64_t k, const qk_executor &executor,
                           const qk_allocator &allocator) {
    qk_context_options context_options = QK_CONTEXT_OPTIONS_INIT;
    if (options.threads > 1) context_options.executor = &executor;
    context_options.thread_count = 1;
    context_options.instruction_sets = bench::instruction_sets_of(options.isa);
    context_options.allocator = &allocator;
    if (options.mode == "bf16") context_options.flags = QK_CONTEXT_BF16_PRODUCTS;
    if (options.mode == "int8") context_options.flags = QK_CONTEXT_INT8_ACTIVATIONS;
    context_options.workspace_bytes = size_t(options.m + 64) * size_t(k + 1024) * 8;
    qk_context *context = nullptr;
    trace_if_asked(&context_options);
    check(qk_context_create(&context_options, &context), nullptr);
    return context;
}

void run_case(const Options &options, Case c, int64_t n, int64_t aligned_k) {
    const int64_t k = aligned_k + options.straddle;
    bench::Threads threads(options.threads);
    bench::Arena arena(size_t(1) << 31);
    const qk_executor executor = threads.executor();
    const qk_allocator allocator = arena.allocator();
    qk_context *const context = create_context(options, k, executor, allocator);
    {
        std::unique_ptr<Product> aligned;
        if (options.against == "aligned") {
            aligned = std::make_unique<Product>(options, context, c, n, aligned_k);
        }
        c.flat = options.straddle > 0;
        const Product product(options, context, c, n, k);
        const bool dram = options.place == "dram", peak = options.against == "peak";
        const size_t pass = dram ? kDramPass : size_t(product.bytes) / 8192 * 8192;
        const int passes = dram ? 1 : int(6.4e7 / double(pass)) + 1;
        const Floor other = aligned
                                ? Floor{[&] { aligned->run(); }, aligned->bytes * aligned->calls}
                            : peak ? peak_floor(options, &threads)
                                   : read_floor(options, &threads, pass, passes);
        const double work = peak ? product.flops : product.bytes;
        const bench::Result r =
            bench::measure_pairs(options.threads, options.seconds, other.work, other.call,
                                 work * product.calls, [&] { product.run(); });
        const double calls_per_ns = r.gigabytes / work;
        printf(
            "{\"bench\": \"linear\", \"case\": \"%s\", \"mode\": \"%s\", \"isa\": \"%s\", "
            "\"layout\": \"%s\", \"m\": %d, \"n\": %lld, \"k\": %lld, "
            "\"place\": \"%s\", \"threads\": %d, \"GB/s\": %.2f, \"GFLOP/s\": %.1f, "
            "\"against\": \"%s\", \"floor %s\": %.2f, \"ratio\": %.3f, \"p10\": %.3f, "
            "\"p90\": %.3f, \"samples\": %d}\n",
            c.name, options.mode.c_str(), options.isa.c_str(),
            has_bytes(c) ? "row" : options.layout.c_str(), options.m, (long long)n, (long long)k,
            options.place.c_str(), options.threads, calls_per_ns * product.bytes,
            calls_per_ns * product.flops, options.against.c_str(), peak ? "GFLOP/s" : "GB/s",
            r.floor, r.ratio, r.low, r.high, r.samples);
        fflush(stdout);
    }
    qk_context_destroy(context);
}

// Microseconds of a product of 128 x 1024 weights for each of `share` threads, a task each: of
// calls one after the other, and of calls after a pause, in which qk's threads fall asleep. The
// fast ones tell, as another program in a thread's place makes a call slow.
struct CallTimes {
    double at_once, after_pause;
};
CallTimes time_calls(int threads, int share) {
    const int64_t n = 128 * share, k = 1024;
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.thread_count = threads;
    qk_context *context = nullptr;
    trace_if_asked(&options);
    check(qk_context_create(&options, &context), nullptr);
    qk_tensor *const w = create_w(context, kCases[0], n, k);
    qk_tensor *const x = create_x(context, QK_FORMAT_F32, 1, k);
    qk_tensor *const y = create(context, QK_FORMAT_F32, QK_LAYOUT_ROW, 1, n, nullptr);
    const auto time = [&](int samples, int calls, int pause_us) {
        std::vector<double> times;
        for (int i = 0; i < samples; ++i) {
            if (pause_us > 0) usleep(useconds_t(pause_us));
            const double start = bench::seconds(CLOCK_MONOTONIC);
            for (int j = 0; j < calls; ++j) check(qk_linear(context, x, w, nullptr, y), context);
            times.push_back((bench::seconds(CLOCK_MONOTONIC) - start) / calls * 1e6);
        }
        return bench::quantile(times, 0.1);
    };
    const CallTimes times = {time(2000, 50, 0), time(500, 1, 2000)};
    for (qk_tensor *const tensor : {w, x, y}) qk_tensor_destroy(tensor);
    qk_context_destroy(context);
    return times;
}

// A product of one row on qk's own threads.
class SmallProduct {
  public:
    SmallProduct(const Case &c, uint32_t flags, int threads, int64_t n, int64_t k) {
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        options.thread_count = threads;
        options.flags = flags;
        options.workspace_bytes = size_t(k + 128) * 8;
        trace_if_asked(&options);
        check(qk_context_create(&options, &context_), nullptr);
        w_ = create_w(context_, c, n, k);
        x_ = create_x(context_, QK_FORMAT_F32, 1, k);
        y_ = create(context_, QK_FORMAT_F32, QK_LAYOUT_ROW, 1, n, nullptr);
    }
    SmallProduct(const SmallProduct &) = delete;
    ~SmallProduct() {
        for (qk_tensor *const tensor : {w_, x_, y_}) qk_tensor_destroy(tensor);
        qk_context_destroy(context_);
    }

    // Calls one after the other, the first ones aside: threads wake and caches fill.
    void take_turn(double seconds) {
        const double from = bench::seconds(CLOCK_MONOTONIC);
        for (double start = from; start < from + seconds;) {
            start = bench::seconds(CLOCK_MONOTONIC);
            check(qk_linear(context_, x_, w_, nullptr, y_), context_);
            const double end = bench::seconds(CLOCK_MONOTONIC);
            if (start > from + 0.25 * seconds) times_.push_back((end - start) * 1e6);
        }
    }
    // Another program in a thread's place makes a call slow, so the fast ones tell.
    double microseconds() const { return bench::quantile(times_, 0.1); }

  private:
    qk_context *context_ = nullptr;
    qk_tensor *w_ = nullptr, *x_ = nullptr, *y_ = nullptr;
    std::vector<double> times_;
};

// Products that are over soon, on one thread and on several in turns: small ones, and an expert's.
void run_small(const Options &options) {
    const int threads = std::max(2, options.threads);
    constexpr int64_t shapes[][2] = {{64, 1024},   {128, 1024}, {256, 1024}, {512, 1024},
                                     {1024, 1024}, {256, 4096}, {768, 2048}, {2048, 768}};
    for (const char *const name : {"nf4 b64 f32", "u4 g128 f16"}) {
        const Case &c = find_case(name);
        for (const auto &[n, k] : shapes) {
            for (const uint32_t flags : {0u, QK_CONTEXT_INT8_ACTIVATIONS}) {
                SmallProduct one(c, flags, 1, n, k), many(c, flags, threads, n, k);
                const double end = bench::seconds(CLOCK_MONOTONIC) + options.seconds;
                while (bench::seconds(CLOCK_MONOTONIC) < end) {
                    one.take_turn(0.005);
                    many.take_turn(0.005);
                }
                printf(
                    "{\"bench\": \"small\", \"case\": \"%s\", \"mode\": \"%s\", \"n\": %lld, "
                    "\"k\": %lld, \"threads\": %d, \"us\": %.2f, \"us on one thread\": %.2f, "
                    "\"times as fast\": %.2f}\n",
                    c.name, flags == 0 ? "exact" : "int8", (long long)n, (long long)k, threads,
                    many.microseconds(), one.microseconds(),
                    one.microseconds() / many.microseconds());
                fflush(stdout);
            }
        }
    }
}

// What splitting a product among qk's own threads and waiting for the last one costs: the time
// beyond that of one task alone.
void run_fork_join(int threads) {
    const CallTimes one = time_calls(1, 1), many = time_calls(threads, threads);
    printf(
        "{\"bench\": \"fork-join\", \"threads\": %d, \"us\": %.2f, \"us after a pause\": %.2f, "
        "\"call on one thread, us\": %.2f, \"after a pause\": %.2f}\n",
        threads, many.at_once - one.at_once, many.after_pause - one.after_pause, one.at_once,
        one.after_pause);
}

// For programs that measure something else between two of its samples. Threads of this one that
// spun meanwhile would disturb them.
void serve_floor(const Options &options) {
    for (char line[16]; fgets(line, sizeof(line), stdin) != nullptr;) {
        bench::Threads threads(options.threads);
        threads.run(options.threads, [](int) {});  // all have started
        const Floor floor = options.against == "read" ? read_floor(options, &threads, kDramPass, 1)
                                                      : peak_floor(options, &threads);
        printf("%.4f\n", 1e-9 * floor.work / bench::time_of(options.threads, floor.call));
        fflush(stdout);
    }
}

struct Size {
    int64_t n, k;
};
Size shape_in_cache(const Options &options) {
    if (options.shape.empty()) return options.place == "l2" ? Size{1024, 1024} : Size{4096, 4096};
    char *end = nullptr;
    const int64_t n = strtoll(options.shape.c_str(), &end, 10);
    const int64_t k = *end == 'x' ? strtoll(end + 1, nullptr, 10) : 0;
    if (n > 0 && k > 0) return {n, k};
    fprintf(stderr, "--shape: %s, a shape is 256x4096\n", options.shape.c_str());
    exit(1);
}

}  // namespace

int main(int argc, char **argv) {
    Options options;
    CLI::App app{"qk_linear on the CPU beside a floor; one JSON object a line"};
    app.add_option("--filter", options.filter, "only cases whose name contains this text");
    app.add_option("--shape", options.shape,
                   "only this one of the shapes in dram, 4096x14336; any in a cache");
    app.add_option("--place", options.place, "where the weights are")
        ->check(CLI::IsMember({"dram", "l2", "l3"}));
    app.add_option("--mode", options.mode)->check(CLI::IsMember({"exact", "bf16", "int8"}));
    app.add_option("--against", options.against, "the floor")
        ->check(CLI::IsMember({"read", "peak", "aligned"}));
    app.add_option("--threads", options.threads)->check(CLI::Range(1, 1024));
    app.add_option("--m", options.m, "rows of x")->check(CLI::Range(1, 1 << 20));
    app.add_option("--seconds", options.seconds, "of samples, a case")->check(CLI::PositiveNumber);
    app.add_option("--isa", options.isa, "instruction sets that qk may use")
        ->check(CLI::IsMember(bench::instruction_sets()));
    app.add_option("--layout", options.layout, "of 4-bit codes")
        ->check(
            CLI::IsMember({"packed", "row", "row_high", "gptq", "awq_gemm", "awq_gemv", "word"}));
    app.add_option("--straddle", options.straddle,
                   "columns more in every row, of groups that go on in the next row")
        ->check(CLI::Range(0, 4096));
    app.add_flag("--fork-join", options.fork_join, "what splitting work among threads costs");
    app.add_flag("--floor", options.floor, "the floor alone: its rate for each line of stdin");
    app.add_flag("--small", options.small, "small products on one thread and on several");
    CLI11_PARSE(app, argc, argv);
    if (options.against == "aligned" && (options.straddle == 0 || options.floor)) {
        fprintf(stderr, "--against aligned: wants --straddle, and has no floor of its own\n");
        return 1;
    }
    if (options.floor) {
        serve_floor(options);
        return 0;
    }
    if (options.fork_join) {
        run_fork_join(std::max(2, options.threads));
        return 0;
    }
    if (options.small) {
        run_small(options);
        return 0;
    }
    constexpr int64_t large[][2] = {{4096, 4096}, {4096, 14336}, {14336, 4096}};
    for (const Case &c : kCases) {
        if (std::string(c.name).find(options.filter) == std::string::npos) continue;
        if (options.place != "dram") {
            const auto [n, k] = shape_in_cache(options);
            run_case(options, c, n, k);
        } else {
            for (const auto &[n, k] : large) {
                const std::string shape = std::to_string(n) + "x" + std::to_string(k);
                if (options.shape.empty() || options.shape == shape) run_case(options, c, n, k);
            }
        }
    }
}
