// A step of a frozen GRU on the CPU: whole sequences and streaming, against the time that only
// reading the recurrent weights would take, and against an int8 GRU with float gates.
//
//     qk_bench_cpu_gru [--h H,H...] [--preset NAME] [--batch N] [--threads N] [--seconds S]
#include <math.h>
#include <string.h>

#include <CLI/CLI.hpp>
#include <random>

#include "../cli/trace.hpp"
#include "gru_peer.hpp"
#include "measure.hpp"

namespace {

struct Options {
    std::vector<int> sizes = {64, 128, 256, 512, 1024};
    std::string preset;
    int threads = 1, batch = 1;
    double seconds = 0.5;
};

struct Preset {
    const char *name;
    qk_gru_preset preset;
};
constexpr Preset kPresets[] = {{"W8A8", QK_GRU_W8A8},
                               {"W8H16", QK_GRU_W8H16},
                               {"W8A16", QK_GRU_W8A16},
                               {"W16A16", QK_GRU_W16A16}};

void check(qk_status status, const qk_context *context) {
    if (status == QK_OK) return;
    fprintf(stderr, "%s: %s\n", qk_status_string(status), qk_context_error(context));
    exit(1);
}

// What a layer of c = h could have been trained to: weights within +-1/sqrt(h), unit inputs.
struct Layer {
    int h;
    std::vector<float> w, r, bw, br;

    explicit Layer(int size) : h(size) {
        std::mt19937 random(7);
        std::uniform_real_distribution<float> uniform(-1, 1);
        const float reach = 1 / sqrtf(float(size));
        const size_t rows = size_t(3) * size_t(size);
        for (auto *matrix : {&w, &r})
            for (size_t i = 0; i < rows * size_t(size); ++i)
                matrix->push_back(reach * uniform(random));
        for (auto *bias : {&bw, &br})
            for (size_t i = 0; i < rows; ++i) bias->push_back(reach * uniform(random));
    }
};

std::vector<float> signal(int64_t steps, int64_t columns) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    std::vector<float> x(size_t(steps * columns), 0);
    for (float &value : x) value = normal(random);
    return x;
}

qk_tensor *create(qk_context *context, qk_format format, int64_t t, int64_t b, int64_t columns) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = format;
    desc.layout = QK_LAYOUT_ROW;
    desc.rank = 3;
    desc.shape[0] = t;
    desc.shape[1] = b;
    desc.shape[2] = columns;
    qk_tensor *tensor = nullptr;
    check(qk_tensor_create(context, &desc, &tensor), context);
    return tensor;
}

qk_gru *freeze(qk_context *context, const Layer &layer, qk_gru_preset preset) {
    qk_gru_config config = QK_GRU_CONFIG_INIT;
    config.input_size = config.hidden_size = layer.h;
    config.preset = preset;
    qk_gru *gru = nullptr;
    check(qk_gru_create(context, &config, layer.w.data(), layer.r.data(), layer.bw.data(),
                        layer.br.data(), &gru),
          context);
    qk_tensor *const x = create(context, QK_FORMAT_F32, 32, 1, layer.h);
    const std::vector<float> values = signal(32, layer.h);
    check(qk_tensor_upload(context, x, QK_PLANE_DATA, values.data(), values.size() * 4), context);
    check(qk_gru_calibrate(context, gru, x, nullptr), context);
    check(qk_gru_freeze(context, gru), context);
    qk_tensor_destroy(x);
    return gru;
}

// A state and its tensors: f32 x and y of `steps` at a time.
struct Stream {
    qk_context *context;
    const qk_gru *gru;
    qk_gru_state *state = nullptr;
    qk_tensor *x, *y;

    Stream(qk_context *c, const qk_gru *g, int64_t steps, int batch, int h)
        : context(c), gru(g), x(create(c, QK_FORMAT_F32, steps, batch, h)),
          y(create(c, QK_FORMAT_F32, steps, batch, h)) {
        const std::vector<float> values = signal(steps * batch, h);
        check(qk_tensor_upload(c, x, QK_PLANE_DATA, values.data(), values.size() * 4), c);
        check(qk_gru_state_create(c, g, batch, &state), c);
    }
    Stream(const Stream &) = delete;
    ~Stream() {
        qk_gru_state_destroy(state);
        qk_tensor_destroy(x);
        qk_tensor_destroy(y);
    }
    void run() { check(qk_gru_run(context, gru, state, x, y), context); }
};

// Times of one thing each, in turns, so that what else the machine does hits all of them.
struct Contender {
    const char *name;
    double steps;  // a call
    std::function<void()> call;
    std::vector<double> us;
};

void measure(const Options &options, std::vector<Contender> &contenders) {
    for (Contender &contender : contenders) contender.call();
    const double start = bench::seconds(CLOCK_MONOTONIC);
    while (contenders[0].us.size() < 15 ||
           bench::seconds(CLOCK_MONOTONIC) - start < options.seconds) {
        for (Contender &contender : contenders) {
            contender.call();  // its weights back into the caches
            const int calls = 1 + int(2e3 / contender.steps);
            const double time = bench::time_of(options.threads, [&] {
                for (int i = 0; i < calls; ++i) contender.call();
            });
            contender.us.push_back(1e6 * time / contender.steps / calls);
        }
    }
}

void run_case(const Options &options, const Preset &preset, int h) {
    bench::Threads threads(options.threads);
    const qk_executor executor = threads.executor();
    qk_context_options context_options = QK_CONTEXT_OPTIONS_INIT;
    if (options.threads > 1) context_options.executor = &executor;
    context_options.thread_count = 1;
    bench::Arena arena(size_t(256) << 20);
    const qk_allocator allocator = arena.allocator();
    context_options.allocator = &allocator;
    qk_context *context = nullptr;
    trace_if_asked(&context_options);
    check(qk_context_create(&context_options, &context), nullptr);
    const Layer layer(h);
    qk_gru *const gru = freeze(context, layer, preset.preset);
    Stream sequence(context, gru, 256, options.batch, h), step(context, gru, 1, options.batch, h);
    const int64_t weights = int64_t{3} * h * h;
    bench::Buffer floor((size_t(weights) + 511) / 512 * 512);
    memset(floor.data, 7, floor.bytes);
    const float *const arrays[] = {layer.w.data(), layer.r.data(), layer.bw.data(),
                                   layer.br.data()};
    bench::PeerGru vnni(h, false, arrays[0], arrays[1], arrays[2], arrays[3]);
    bench::PeerGru avx2(h, true, arrays[0], arrays[1], arrays[2], arrays[3]);
    const std::vector<float> x = signal(256, h);
    int64_t t = 0;
    std::vector<Contender> contenders = {
        {"sequence", 256.0, [&] { sequence.run(); }, {}},
        {"streaming", 1.0, [&] { step.run(); }, {}},
        {"read of R", 1.0, [&] { bench::read_stream(floor.data, floor.bytes); }, {}},
        {"int8 float gates vnni", 1.0, [&] { vnni.step(x.data() + t++ % 256 * h); }, {}},
        {"int8 float gates avx2", 1.0, [&] { avx2.step(x.data() + t++ % 256 * h); }, {}}};
    measure(options, contenders);
    printf("{\"bench\": \"gru\", \"preset\": \"%s\", \"h\": %d, \"batch\": %d, \"threads\": %d",
           preset.name, h, options.batch, options.threads);
    for (const Contender &contender : contenders)
        printf(", \"%s us\": %.3f, \"%s p10\": %.3f, \"%s p90\": %.3f", contender.name,
               bench::quantile(contender.us, 0.5), contender.name,
               bench::quantile(contender.us, 0.1), contender.name,
               bench::quantile(contender.us, 0.9));
    printf(", \"samples\": %zu}\n", contenders[0].us.size());
    fflush(stdout);
    qk_gru_destroy(gru);
    qk_context_destroy(context);
}

}  // namespace

int main(int argc, char **argv) {
    Options options;
    CLI::App app{"A GRU step on the CPU beside int8 GRUs with float gates; one JSON object a line"};
    app.add_option("--h", options.sizes, "sizes: h = c, separated by commas")
        ->delimiter(',')
        ->check(CLI::Range(1, 1 << 16));
    app.add_option("--preset", options.preset, "W8A8, W8H16, W8A16 or W16A16; none: all");
    app.add_option("--batch", options.batch)->check(CLI::Range(1, 1 << 16));
    app.add_option("--threads", options.threads)->check(CLI::Range(1, 1024));
    app.add_option("--seconds", options.seconds, "of samples, a case")->check(CLI::PositiveNumber);
    CLI11_PARSE(app, argc, argv);
    for (const int h : options.sizes) {
        for (const Preset &preset : kPresets) {
            if (options.preset.empty() || options.preset == preset.name)
                run_case(options, preset, h);
        }
    }
}
