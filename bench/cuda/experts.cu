// Layers of experts: gate and up with their activation, then down with the weighted sum, two calls,
// captured with a routing of their own each, so that weights come from memory.
//   bench_cuda_experts [out.json [tokens | model ...]]
// bytes: of the experts that a call touches; share: of the rate at which this machine reads 2 GiB.
#include <set>
#include <string>

#include "weights.cuh"

namespace bench {

struct Model {
    const char *name;
    int64_t experts, hidden, inner;
    int slots;
    qk_activation activation;
    bool microscaled;  // has MXFP4 weights, too
};

constexpr Model kModels[] = {
    {"Qwen3-30B-A3B", 128, 2048, 768, 8, QK_ACTIVATION_SILU, false},
    {"gpt-oss-120b", 128, 2880, 2880, 4, QK_ACTIVATION_SWIGLU_CLAMPED, true},
    {"Mixtral-8x7B", 8, 4096, 14336, 2, QK_ACTIVATION_SILU, false},
    {"DeepSeek-V3", 256, 7168, 2048, 8, QK_ACTIVATION_SILU, true}};
constexpr Kind kRowU4 = {"u4 g128 f16", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_ROW, 128};
constexpr Kind kRowU4Small = {"u4 g64 f16", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_ROW, 64};
constexpr int kCalls = 24;

qk_tensor_desc experts_desc(const Kind &kind, qk_layout layout, int64_t e, int64_t n, int64_t k) {
    qk_tensor_desc desc = describe(kind, layout, n, k);
    desc.rank = 3;
    desc.shape[0] = e, desc.shape[1] = n, desc.shape[2] = k;
    return desc;
}

// Packed experts of random codes; their bytes, of all of them.
qk_tensor *make_experts(Bench &b, const Kind &kind, int64_t e, int64_t n, int64_t k,
                        double *bytes) {
    std::vector<Weight> rows = {make_weight(b, kind, e * n, k)};
    const qk_tensor_desc stored = experts_desc(kind, kind.layout, e, n, k);
    const qk_tensor_desc desc = experts_desc(kind, QK_LAYOUT_PACKED, e, n, k);
    qk_tensor *from = nullptr, *packed = nullptr;
    QK_BENCH(b.context,
             qk_tensor_wrap(b.context, &stored, rows[0].planes.data(), QK_PLANE_COUNT, &from));
    QK_BENCH(b.context, qk_tensor_create(b.context, &desc, &packed));
    QK_BENCH(b.context, qk_repack(b.context, from, packed));
    QK_BENCH(b.context, qk_context_synchronize(b.context));
    qk_tensor_destroy(from);
    *bytes = rows[0].bytes;
    destroy(rows);
    return packed;
}

qk_tensor *wrap_rows(Bench &b, qk_format format, std::initializer_list<int64_t> shape, void *data) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = format;
    desc.rank = int32_t(shape.size());
    std::copy(shape.begin(), shape.end(), desc.shape);
    qk_tensor *tensor = nullptr;
    QK_BENCH(b.context, qk_tensor_wrap(b.context, &desc, &data, 1, &tensor));
    return tensor;
}

class Layer {
  public:
    Layer(Bench &b, const Model &model, const Kind &kind, double rate)
        : b_(b), model_(model), kind_(kind), rate_(rate) {
        gate_up_ = make_experts(b, kind, model.experts, 2 * model.inner, model.hidden, &up_bytes_);
        down_ = make_experts(b, kind, model.experts, model.hidden, model.inner, &down_bytes_);
    }
    ~Layer() {
        qk_tensor_destroy(gate_up_);
        qk_tensor_destroy(down_);
    }

    void measure(int64_t tokens) {
        const double touched = route(tokens);
        const double up = up_bytes_ * touched, down = down_bytes_ * touched;
        report("layer", tokens, up + down, [&](int i) {
            const qk_product both[] = {product(i, true), product(i, false)};
            QK_BENCH(b_.context, qk_multiply(b_.context, both, 2));
        });
        report("gate-up", tokens, up, [&](int i) {
            const qk_product one = product(i, true);
            QK_BENCH(b_.context, qk_multiply(b_.context, &one, 1));
        });
        report("down", tokens, down, [&](int i) {
            const qk_product one = product(i, false);
            QK_BENCH(b_.context, qk_multiply(b_.context, &one, 1));
        });
        for (qk_tensor *tensor : tensors_) qk_tensor_destroy(tensor);
        tensors_.clear();
        cudaFree(ids_);
    }

  private:
    // A uniform routing a call; the share of the experts that one touches.
    double route(int64_t tokens) {
        const int64_t slots = tokens * model_.slots;
        std::vector<int32_t> ids;
        std::mt19937 random(7);
        double touched = 0;
        for (int call = 0; call < kCalls; ++call) {
            std::set<int32_t> seen;
            for (int64_t t = 0; t < tokens; ++t) {
                std::set<int32_t> mine;
                while (int(mine.size()) < model_.slots) {
                    const int32_t id = int32_t(random() % uint32_t(model_.experts));
                    if (mine.insert(id).second) ids.push_back(id);
                }
                seen.insert(mine.begin(), mine.end());
            }
            touched += double(seen.size()) / double(model_.experts) / kCalls;
        }
        BENCH_CHECK(cudaMalloc(&ids_, ids.size() * 4));
        BENCH_CHECK(cudaMemcpy(ids_, ids.data(), ids.size() * 4, cudaMemcpyHostToDevice));
        fill<<<256, 256>>>(reinterpret_cast<uint32_t *>(b_.out), int64_t{1} << 27, 0x83ff83ffu,
                           0x28002800u, 3);
        BENCH_CHECK(cudaDeviceSynchronize());
        uint8_t *at = b_.out;
        const auto take = [&](qk_format format, std::initializer_list<int64_t> shape) {
            int64_t bytes = 4;
            for (const int64_t size : shape) bytes *= size;
            tensors_.push_back(wrap_rows(b_, format, shape, at));
            at += (bytes + 255) / 256 * 256;
            return tensors_.back();
        };
        x_ = take(QK_FORMAT_F16, {tokens, model_.hidden});
        middle_ = take(QK_FORMAT_F16, {tokens, model_.slots, model_.inner});
        y_ = take(QK_FORMAT_F16, {tokens, model_.hidden});
        weight_ = take(QK_FORMAT_F32, {tokens, model_.slots});
        routed_.assign(2 * kCalls, QK_EXPERTS_INIT);
        for (int call = 0; call < kCalls; ++call) {
            tensors_.push_back(
                wrap_rows(b_, QK_FORMAT_I32, {tokens, model_.slots}, ids_ + int64_t(call) * slots));
            qk_experts &up = routed_[size_t(2 * call)], &down = routed_[size_t(2 * call + 1)];
            up.expert = down.expert = tensors_.back();
            up.activation = model_.activation;
            up.limit = 7, up.alpha = 1.702f;
            down.weight = weight_;
        }
        return touched;
    }
    qk_product product(int call, bool up) const {
        return {sizeof(qk_product),
                0,
                up ? x_ : middle_,
                up ? gate_up_ : down_,
                nullptr,
                up ? middle_ : y_,
                &routed_[size_t(2 * call + !up)]};
    }
    template <class Run>
    void report(const char *what, int64_t tokens, double bytes, const Run &run) {
        std::vector<Call> calls;
        for (int i = 0; i < kCalls; ++i) calls.push_back([&run, i](cudaStream_t) { run(i); });
        const double us = b_.timer.run(calls, 1e-3, 7, Edges::kAsCaptured);
        b_.report.add(std::string(model_.name) + " " + kind_.name + " " + what, model_.hidden,
                      model_.inner, tokens, us, bytes, bytes / us / rate_);
    }

    Bench &b_;
    const Model &model_;
    const Kind kind_;
    double rate_, up_bytes_ = 0, down_bytes_ = 0;
    qk_tensor *gate_up_ = nullptr, *down_ = nullptr;
    qk_tensor *x_ = nullptr, *middle_ = nullptr, *y_ = nullptr, *weight_ = nullptr;
    int32_t *ids_ = nullptr;
    std::vector<qk_experts> routed_;
    std::vector<qk_tensor *> tensors_;
};

}  // namespace bench

int main(int argc, char **argv) {
    using namespace bench;
    Bench b(argc > 1 ? argv[1] : nullptr);
    std::printf("%s\n", qk_build_info());
    std::vector<int64_t> tokens;
    std::set<std::string> models;
    for (int i = 2; i < argc; ++i) {
        const int64_t number = std::atoll(argv[i]);
        number > 0 ? tokens.push_back(number) : void(models.insert(argv[i]));
    }
    if (tokens.empty()) tokens = {1, 4, 16, 64, 256, 1024, 4096};
    const double us = read_floor(b.timer, b.pool, kPool, kPool, b.sink);
    const double rate = double(kPool) / us;
    b.report.add("floor: read 2 GiB", 0, 0, 0, us, double(kPool), 1);
    for (const Model &model : kModels) {
        if (!models.empty() && models.count(model.name) == 0) continue;
        // gpt-oss has rows of 2880 columns, which groups of 128 do not divide.
        const Kind &u4 = model.hidden % 128 == 0 ? kRowU4 : kRowU4Small;
        std::vector<Kind> kinds = {u4};
        if (model.microscaled) kinds.push_back(kMxfp4);
        for (const Kind &kind : kinds) {
            Layer layer(b, model, kind, rate);
            for (const int64_t t : tokens) layer.measure(t);
        }
    }
    return 0;
}
