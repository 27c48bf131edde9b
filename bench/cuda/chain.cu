// Chains of dependent products whose launches overlap: y of one is x of the next. Squares, the
// layers of two models, pairs of their products in both sequences, and other kernels before and
// after a product: what a kernel leaves to the next one shows only where these differ. And products
// of one x, as lists and as calls.
//   bench_cuda_chain [out.json [siblings]]
// share: of the rate at which this machine reads 2 GiB, measured in the same run.
#include "gru_layer.cuh"
#include "weights.cuh"

namespace bench {

struct Shape {
    int64_t n, k;
};

std::string name_of(Shape shape) {
    return std::to_string(shape.n).append("x").append(std::to_string(shape.k));
}

struct Model {
    const char *name;
    std::vector<Shape> products;        // of a layer: qkv, o, gate and up, down
    std::vector<Shape> attention, mlp;  // q, k, v; gate, up
};

const Model kModels[] = {{"8b",
                          {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}},
                          {{4096, 4096}, {1024, 4096}, {1024, 4096}},
                          {{14336, 4096}, {14336, 4096}}},
                         {"70b",
                          {{10240, 8192}, {8192, 8192}, {57344, 8192}, {8192, 28672}},
                          {{8192, 8192}, {1024, 8192}, {1024, 8192}},
                          {{28672, 8192}, {28672, 8192}}}};
constexpr Kind kKinds[] = {kAwq, kNf4, kNf4Nested};   // packed
constexpr Kind kStored[] = {kNf4, kWord, kAwq, kS8};  // as checkpoints store them

class Chains {
  public:
    explicit Chains(Bench &b)
        : b_(b), rate_(double(kPool) / read_floor(b.timer, b.pool, kPool, kPool, b.sink)) {
        b.report.add("floor: read 2 GiB", 0, 0, 0, double(kPool) / rate_, double(kPool), 1);
        fill<<<256, 256>>>(reinterpret_cast<uint32_t *>(b.out), int64_t{2} << 22, 0x83ff83ffu,
                           0x38003800u, 3);
        BENCH_CHECK(cudaDeviceSynchronize());
    }
    ~Chains() { release(); }

    void squares(const Kind &kind, bool packed) {
        for (const int64_t n : {4096, 8192}) {
            const double bytes = make(kind, {{n, n}}, 2 * copies_for(double(n * n)) + 2, 1, packed);
            const std::string name = std::string("chain ") + kind.name;
            report(packed ? name : name + " as stored", n, 1,
                   b_.timer.run(all(), 2e-3, 11, Edges::kAsCaptured), bytes);
        }
    }

    // Microseconds of a layer; forward as the model runs them. "alone": no launch overlaps.
    void layers(const Model &model, const Kind &kind, int64_t m) {
        for (const bool forward : {true, false}) {
            std::vector<Shape> shapes = model.products;
            if (!forward) std::reverse(shapes.begin(), shapes.end());
            double codes = 0;
            for (const Shape &shape : shapes) codes += double(shape.n * shape.k);
            const double bytes = make(kind, shapes, copies_for(codes / 2), m);
            const std::string name =
                std::string(forward ? "layer " : "backwards ") + model.name + " " + kind.name;
            const double products = double(shapes.size());
            report(name, 0, m, b_.timer.run(all(), 2e-3, 11, Edges::kAsCaptured) * products, bytes);
            if (!forward) continue;
            report(name + ", alone", 0, m, b_.timer.run(all()) * products, bytes);
        }
    }

    // Groups of weights that share x, each group's x the first y of the one in front, in
    // microseconds for all: as a list, as a call each, and as one weight a group.
    void siblings(const std::string &name, const Kind &kind,
                  const std::vector<std::vector<Shape>> &groups) {
        std::vector<Shape> joined;
        double codes = 0, products = 0;
        for (const std::vector<Shape> &group : groups) {
            joined.push_back({0, group[0].k});
            for (const Shape &shape : group) joined.back().n += shape.n;
            codes += double(joined.back().n * joined.back().k);
            products += double(group.size());
        }
        const int copies = copies_for(codes / 2);
        const double bytes = make_groups(kind, groups, copies);
        std::vector<Call> lists;
        for (const std::vector<qk_product> &list : products_) {
            lists.emplace_back([this, &list](cudaStream_t) {
                QK_BENCH(b_.context, qk_multiply(b_.context, list.data(), int32_t(list.size())));
            });
        }
        const double calls = b_.timer.run(all(), 2e-3, 11, Edges::kAsCaptured) * products;
        report(name + ", list", 0, 1, b_.timer.run(lists, 2e-3, 11, Edges::kAsCaptured), bytes);
        report(name + ", calls", 0, 1, calls, bytes);
        make(kind, joined, copies);
        const double one = b_.timer.run(all(), 2e-3, 11, Edges::kAsCaptured);
        report(name + ", one", 0, 1, one * double(groups.size()), bytes);
    }

    // Those of the two models.
    void siblings() {
        for (const Model &model : kModels) {
            for (const Kind &kind : kKinds) {
                const std::string name = std::string(model.name) + " " + kind.name;
                const std::vector<Shape> &joined = model.products;
                siblings("q, k, v " + name, kind, {model.attention});
                siblings("gate, up " + name, kind, {model.mlp});
                siblings("layer " + name, kind,
                         {model.attention, {joined[1]}, model.mlp, {joined[3]}});
            }
        }
    }

    // A graph of two products.
    void pairs(const Model &model, const Kind &kind) {
        for (const Shape &first : model.products) {
            for (const Shape &second : model.products) {
                if (&first == &second) continue;
                const double codes = double(first.n * first.k + second.n * second.k);
                const double bytes = make(kind, {first, second}, copies_for(codes / 2));
                report(name_of(first) + ", " + name_of(second), 0, 1, b_.timer.run_graphs(graphs_),
                       bytes);
            }
        }
    }

    // Graphs of a large product of packed weights and of something else.
    void neighbours() {
        constexpr Shape kLarge = {57344, 8192}, kOther = {8192, 8192};
        constexpr int kCopies = 2;
        double bytes = make(kAwq, {kLarge}, kCopies);
        const std::vector<std::vector<Call>> products = graphs_;
        const auto both = [&](const std::string &name, double other_bytes, const Call &other) {
            for (const bool first : {true, false}) {
                for (int i = 0; i < kCopies; ++i) {
                    graphs_[size_t(i)] = products[size_t(i)];
                    graphs_[size_t(i)].insert(
                        first ? graphs_[size_t(i)].begin() : graphs_[size_t(i)].end(), other);
                }
                report(first ? name + ", " + name_of(kLarge) : name_of(kLarge) + ", " + name, 0, 1,
                       b_.timer.run_graphs(graphs_), bytes + other_bytes);
            }
        };
        for (const Kind &kind : kStored) {
            std::vector<Weight> weights = {make_weight(b_, kind, kOther.n, kOther.k)};
            const qk_tensor_desc desc = describe(kind, QK_LAYOUT_PACKED, kOther.n, kOther.k);
            qk_tensor *const x = wrap_dense(b_, QK_FORMAT_F16, 1, kOther.k, row(0));
            qk_tensor *const y = wrap_dense(b_, QK_FORMAT_F16, 1, kOther.n, row(1));
            qk_tensor *packed = nullptr;
            QK_BENCH(b_.context, qk_tensor_create(b_.context, &desc, &packed));
            both(std::string(kind.name) + " as stored", weights[0].bytes, [&](cudaStream_t) {
                QK_BENCH(b_.context, qk_linear(b_.context, x, weights[0].tensor, nullptr, y));
            });
            if (kind.format == QK_FORMAT_NF4) {
                both("repack", 2 * weights[0].bytes, [&](cudaStream_t) {
                    QK_BENCH(b_.context, qk_repack(b_.context, weights[0].tensor, packed));
                });
            }
            for (qk_tensor *tensor : {x, y, packed}) qk_tensor_destroy(tensor);
            destroy(weights);
        }
        Layer gru(b_.timer.stream(), make_file(QK_GRU_W8A8, 1024), 16, 1, 1024);
        both("gru of 16 steps", 0, [&](cudaStream_t) { gru.run(); });
        Layer step(b_.timer.stream(), make_file(QK_GRU_W8A8, 1024), 1, 1, 1024);
        both("gru of 1 step", 0, [&](cudaStream_t) { step.run(); });
    }

  private:
    double make(const Kind &kind, const std::vector<Shape> &shapes, int copies, int64_t m = 1,
                bool packed = true) {
        std::vector<std::vector<Shape>> groups;
        for (const Shape &shape : shapes) groups.push_back({shape});
        return make_groups(kind, groups, copies, m, packed);
    }
    // `copies` graphs of a product a shape. Those of a group have the same x, the first y of the
    // group in front. Returns the bytes of one graph's weights.
    double make_groups(const Kind &kind, const std::vector<std::vector<Shape>> &groups, int copies,
                       int64_t m = 1, bool packed = true) {
        release();
        graphs_.resize(size_t(copies));
        products_.resize(size_t(copies));
        double bytes = 0;
        for (size_t i = 0; i < groups.size(); ++i) {
            int to = 0;
            for (const Shape &s : groups[i]) {
                bytes += add(kind, s, m, packed, int(i), int(groups.size()), to++);
            }
        }
        return bytes;
    }
    // A product of each graph: x of group number `turn` of `turns`, y number `to` of its group.
    double add(const Kind &kind, Shape s, int64_t m, bool packed, int turn, int turns, int to) {
        const int copies = int(graphs_.size());
        double bytes = 0;
        const auto weights = packed ? make_packed(b_, kind, s.n, s.k, copies, &bytes)
                                    : make_stored(kind, s, copies, &bytes);
        for (int copy = 0; copy < copies; ++copy) {
            qk_tensor *const w = weights[size_t(copy)];
            const int from = (turn + turns * copy) % 2;
            qk_tensor *const x = wrap_dense(b_, QK_FORMAT_F16, m, s.k, row(from));
            qk_tensor *const y =
                wrap_dense(b_, QK_FORMAT_F16, m, s.n, row(to == 0 ? 1 - from : 1 + to));
            products_[size_t(copy)].push_back({sizeof(qk_product), 0, x, w, nullptr, y, nullptr});
            graphs_[size_t(copy)].push_back([this, x, w, y](cudaStream_t) {
                QK_BENCH(b_.context, qk_linear(b_.context, x, w, nullptr, y));
            });
            tensors_.insert(tensors_.end(), {x, y});
            if (packed) tensors_.push_back(w);
        }
        return bytes;
    }
    std::vector<qk_tensor *> make_stored(const Kind &kind, Shape s, int copies, double *bytes) {
        std::vector<qk_tensor *> tensors;
        for (int i = 0; i < copies; ++i) {
            stored_.push_back(make_weight(b_, kind, s.n, s.k));
            tensors.push_back(stored_.back().tensor);
        }
        *bytes = stored_.back().bytes;
        return tensors;
    }
    void release() {
        graphs_.clear();
        products_.clear();
        for (qk_tensor *tensor : tensors_) qk_tensor_destroy(tensor);
        tensors_.clear();
        destroy(stored_);
    }
    void *row(int which) const { return b_.out + which * (int64_t{1} << 24); }
    std::vector<Call> all() const {
        std::vector<Call> calls;
        for (const std::vector<Call> &graph : graphs_) {
            calls.insert(calls.end(), graph.begin(), graph.end());
        }
        return calls;
    }
    void report(const std::string &what, int64_t n, int64_t m, double us, double bytes) {
        b_.report.add(what, n, n, m, us, bytes, bytes / us / rate_);
    }

    Bench &b_;
    double rate_;  // bytes a microsecond
    std::vector<std::vector<Call>> graphs_;
    std::vector<std::vector<qk_product>> products_;  // of each graph
    std::vector<qk_tensor *> tensors_;
    std::vector<Weight> stored_;
};

}  // namespace bench

int main(int argc, char **argv) {
    bench::Bench b(argc > 1 ? argv[1] : nullptr);
    std::printf("%s\n", qk_build_info());
    bench::Chains chains(b);
    if (argc > 2 && std::string(argv[2]) == "siblings") {
        chains.siblings();
        return 0;
    }
    for (const bench::Kind &kind : bench::kKinds) chains.squares(kind, true);
    for (const bench::Kind &kind : bench::kStored) chains.squares(kind, false);
    for (const bench::Model &model : bench::kModels) {
        for (const bench::Kind &kind : bench::kKinds) chains.layers(model, kind, 1);
        for (const int64_t m : {4, 16, 32, 64}) chains.layers(model, bench::kAwq, m);
        chains.pairs(model, bench::kAwq);
    }
    chains.neighbours();
    chains.siblings();
    return 0;
}
