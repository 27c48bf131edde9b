// Layers of experts on the CPU: gate and up with their activation, then down with the weighted sum,
// two products a call, each call with a routing of its own, so that weights come from memory. Bytes
// are those of the experts that a call touches; ratio: to a loop that only reads, in the same run.
//
//     qk_bench_cpu_experts [--model TEXT] [--case NAME] [--tokens N,...] [--threads N]
//                          [--mode exact|bf16|int8] [--isa all|avx512|avx2|generic] [--seconds S]
#include <CLI/CLI.hpp>
#include <set>

#include "../cli/trace.hpp"
#include "instruction_set.hpp"
#include "measure.hpp"
#include "weights.hpp"

namespace {

using namespace bench;

struct Options {
    std::string model, kind = "u4 g128 f16", mode = "exact", isa = "all";
    std::vector<int64_t> tokens = {1, 4, 16, 256, 1024};
    int threads = 1;
    double seconds = 1;
};

struct Model {
    const char *name;
    int64_t experts, hidden, inner;
    int64_t slots;
    qk_activation activation;
};

constexpr Model kModels[] = {{"Qwen3-30B-A3B", 128, 2048, 768, 8, QK_ACTIVATION_SILU},
                             {"gpt-oss-120b", 128, 2880, 2880, 4, QK_ACTIVATION_SWIGLU_CLAMPED},
                             {"Mixtral-8x7B", 8, 4096, 14336, 2, QK_ACTIVATION_SILU},
                             {"DeepSeek-V3", 256, 7168, 2048, 8, QK_ACTIVATION_SILU}};

// Packed experts of random codes.
qk_tensor *create_experts(qk_context *context, const Case &c, int64_t experts, int64_t n,
                          int64_t k) {
    qk_tensor_desc desc = describe(c.format, QK_LAYOUT_ROW, experts, n, &c);
    desc.rank = 3;
    desc.shape[2] = k;
    qk_tensor *const row = create(context, desc);
    fill(context, c, experts * n, k, row);
    if (!has_bytes(c)) desc.layout = QK_LAYOUT_PACKED;
    qk_tensor *const packed = create(context, desc);
    check(qk_repack(context, row, packed), context);
    qk_tensor_destroy(row);
    return packed;
}

qk_tensor *create_dense(qk_context *context, qk_format format, std::vector<int64_t> shape) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = format;
    desc.rank = int32_t(shape.size());
    std::copy(shape.begin(), shape.end(), desc.shape);
    return create(context, desc);
}

struct Layer {
    qk_context *context;
    const Model &model;
    qk_tensor *gate_up, *down;

    Layer(qk_context *c, const Model &m, const Case &kind)
        : context(c), model(m), gate_up(create_experts(c, kind, m.experts, 2 * m.inner, m.hidden)),
          down(create_experts(c, kind, m.experts, m.hidden, m.inner)) {}
    ~Layer() {
        qk_tensor_destroy(gate_up);
        qk_tensor_destroy(down);
    }
};

// A number of tokens with routings of their own, a call each.
class Calls {
  public:
    Calls(const Layer &layer, int64_t tokens, int count) : layer_(layer), context_(layer.context) {
        const Model &m = layer.model;
        x_ = create_x(context_, QK_FORMAT_F32, tokens, m.hidden);
        joined_ = create_dense(context_, QK_FORMAT_F32, {tokens, m.slots, m.inner});
        y_ = create_dense(context_, QK_FORMAT_F32, {tokens, m.hidden});
        weight_ = create_dense(context_, QK_FORMAT_F32, {tokens, m.slots});
        const std::vector<float> equal(size_t(tokens * m.slots), 1.0f / float(m.slots));
        check(qk_tensor_upload(context_, weight_, QK_PLANE_DATA, equal.data(), equal.size() * 4),
              context_);
        for (int i = 0; i < count; ++i) route(tokens);
    }
    ~Calls() {
        for (qk_tensor *const tensor : {x_, joined_, y_, weight_}) qk_tensor_destroy(tensor);
        for (qk_tensor *const ids : routings_) qk_tensor_destroy(ids);
    }
    int64_t touched() const { return touched_; }  // experts, of all calls

    void run() const {
        for (const qk_tensor *const ids : routings_) {
            qk_experts first = QK_EXPERTS_INIT, second = QK_EXPERTS_INIT;
            first.expert = second.expert = ids;
            first.activation = layer_.model.activation;
            first.limit = 7, first.alpha = 1.702f;
            second.weight = weight_;
            const qk_product both[] = {
                {sizeof(qk_product), 0, x_, layer_.gate_up, nullptr, joined_, &first},
                {sizeof(qk_product), 0, joined_, layer_.down, nullptr, y_, &second}};
            check(qk_multiply(context_, both, 2), context_);
        }
    }

  private:
    // Uniform, no expert twice for a token.
    void route(int64_t tokens) {
        std::vector<int32_t> ids;
        std::set<int32_t> all;
        for (int64_t t = 0; t < tokens; ++t) {
            std::set<int32_t> own;
            while (int64_t(own.size()) < layer_.model.slots) {
                const int32_t e = int32_t(random_() % uint64_t(layer_.model.experts));
                if (own.insert(e).second) ids.push_back(e);
            }
            all.insert(own.begin(), own.end());
        }
        touched_ += int64_t(all.size());
        qk_tensor *const made = create_dense(context_, QK_FORMAT_I32, {tokens, layer_.model.slots});
        check(qk_tensor_upload(context_, made, QK_PLANE_DATA, ids.data(), ids.size() * 4),
              context_);
        routings_.push_back(made);
    }

    const Layer &layer_;
    qk_context *context_;
    qk_tensor *x_, *joined_, *y_, *weight_;
    std::vector<qk_tensor *> routings_;
    std::mt19937 random_{7};
    int64_t touched_ = 0;
};

void measure(const Options &options, const Layer &layer, const Case &c, int64_t tokens,
             Threads *threads) {
    const Model &m = layer.model;
    const double of_expert =
        weight_bytes(c, 2 * m.inner, m.hidden) + weight_bytes(c, m.hidden, m.inner);
    const double most = of_expert * double(std::min(m.experts, tokens * m.slots));
    const int count = std::max(1, int(std::min(3.2e8 / most, 64.0 / double(tokens))));
    const Calls calls(layer, tokens, count);

    static Buffer floor_buffer(size_t{256} << 20);
    static const bool touched = memset(floor_buffer.data, 7, floor_buffer.bytes) != nullptr;
    constexpr size_t pass = size_t{64} << 20;
    size_t offset = 0;
    const auto floor = [&] {
        const size_t share = pass / 4096 / size_t(options.threads) * 4096;
        threads->run(options.threads, [&](int t) {
            read_stream(floor_buffer.data + offset + size_t(t) * share, share);
        });
        if (touched) offset = (offset + pass) % floor_buffer.bytes;
    };
    const double bytes = of_expert * double(calls.touched());
    const Result r = measure_pairs(options.threads, options.seconds, double(pass), floor, bytes,
                                   [&] { calls.run(); });
    const double us = bytes / r.gigabytes * 1e-3 / count;
    const double flops = 6.0 * double(m.inner * m.hidden) * double(tokens * m.slots);
    printf(
        "{\"bench\": \"experts\", \"model\": \"%s\", \"case\": \"%s\", \"mode\": \"%s\", "
        "\"isa\": \"%s\", \"tokens\": %lld, \"threads\": %d, \"us\": %.1f, \"GB/s\": %.2f, "
        "\"GFLOP/s\": %.1f, \"floor GB/s\": %.2f, \"ratio\": %.3f, \"p10\": %.3f, "
        "\"p90\": %.3f, \"samples\": %d}\n",
        m.name, c.name, options.mode.c_str(), options.isa.c_str(), (long long)tokens,
        options.threads, us, r.gigabytes, flops / us * 1e-3, r.floor, r.ratio, r.low, r.high,
        r.samples);
    fflush(stdout);
}

void run_model(const Options &options, const Model &model, const Case &c) {
    Threads threads(options.threads);
    const qk_executor executor = threads.executor();
    qk_context_options context_options = QK_CONTEXT_OPTIONS_INIT;
    if (options.threads > 1) context_options.executor = &executor;
    context_options.thread_count = 1;
    context_options.instruction_sets = instruction_sets_of(options.isa);
    if (options.mode == "bf16") context_options.flags = QK_CONTEXT_BF16_PRODUCTS;
    if (options.mode == "int8") context_options.flags = QK_CONTEXT_INT8_ACTIVATIONS;
    context_options.workspace_bytes = size_t{1} << 28;  // more than any call's
    trace_if_asked(&context_options);
    qk_context *context = nullptr;
    check(qk_context_create(&context_options, &context), nullptr);
    {
        const Layer layer(context, model, c);
        for (const int64_t tokens : options.tokens) measure(options, layer, c, tokens, &threads);
    }
    qk_context_destroy(context);
}

}  // namespace

int main(int argc, char **argv) {
    Options options;
    CLI::App app{"Layers of experts on the CPU beside a floor; one JSON object a line"};
    app.add_option("--model", options.model, "only models whose name contains this text");
    app.add_option("--case", options.kind,
                   "the case of this name; as those of qk_bench_cpu_linear");
    app.add_option("--tokens", options.tokens)->delimiter(',')->check(CLI::PositiveNumber);
    app.add_option("--mode", options.mode)->check(CLI::IsMember({"exact", "bf16", "int8"}));
    app.add_option("--threads", options.threads)->check(CLI::Range(1, 1024));
    app.add_option("--seconds", options.seconds, "of samples, a line")->check(CLI::PositiveNumber);
    app.add_option("--isa", options.isa, "instruction sets that qk may use")
        ->check(CLI::IsMember(instruction_sets()));
    CLI11_PARSE(app, argc, argv);
    for (const Model &model : kModels) {
        if (std::string(model.name).find(options.model) == std::string::npos) continue;
        for (const Case &c : kCases) {
            if (options.kind != c.name) continue;
            if (model.hidden % c.group_size != 0 || model.inner % c.group_size != 0) continue;
            run_model(options, model, c);
        }
    }
}
