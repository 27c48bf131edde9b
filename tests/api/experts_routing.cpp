// Random routings of products with experts: every row has the bits of its own product of one row,
// as docs/formats.md defines them, and is near the doubles'; sums of slots are those of the stated
// order. All operands are between guard pages, x and y slices of wider arrays half of the time.
// QK_ROUTINGS says how many; before a release 10^5.
#include <gtest/gtest.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "api/guarded_array.hpp"
#include "harness/tensor.hpp"

namespace {

using api::Array;
using reference::Activation;
using reference::Bounded;
using reference::Format;
using reference::Mixture;
using reference::Product;
using reference::Spec;
using reference::Weight;

constexpr int64_t kPool = 4;  // rows of x

struct Context {
    uint32_t mode;
    qk_context *handle;

    Context(uint32_t flags, int32_t threads, size_t workspace) : mode(flags) {
        // Tasks in a sequence of their own: qk's threads are left out where there is so little
        // work.
        const qk_executor executor = {run_backwards, nullptr, threads};
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        if (threads > 1) options.executor = &executor;
        options.flags = flags;
        options.thread_count = threads;
        options.workspace_bytes = workspace;
        EXPECT_EQ(qk_context_create(&options, &handle), QK_OK);
    }
    ~Context() { qk_context_destroy(handle); }

    static void run_backwards(void *, int32_t count, void (*task)(void *, int32_t),
                              void *argument) {
        while (count-- > 0) task(argument, count);
    }
};

// Experts, rows of x for them, and what each row gives with each expert.
class Layer {
  public:
    Layer(const Context &context, const Spec &kind, int64_t experts, int64_t n, int64_t k,
          int64_t group, bool packs, harness::Random *random, uint64_t turn)
        : context_(context), experts_(experts), n_(n) {
        Spec spec = kind;
        harness::cut(&spec, {experts * n, k, group});
        spec.n = experts * n;  // records of many codes are cut short
        weight_ = harness::random_weight(spec, harness::Data::real, random);
        x_format_ = harness::kFloats[random->below(3)];
        bias_ = random->one_in(2);
        fill(random);
        stored_ = std::make_unique<harness::Tensor>(context.handle, weight_, turn);
        EXPECT_EQ(stored_->status(), QK_OK) << qk_context_error(context.handle);
        wrap(packs);
        expect();
    }
    ~Layer() {
        qk_tensor_destroy(experts_tensor_);
        qk_tensor_destroy(rows_tensor_);
    }
    Layer(const Layer &) = delete;
    Layer &operator=(const Layer &) = delete;

    std::string title() const {
        return harness::title(weight_.spec) + " experts " + std::to_string(experts_) + " mode " +
               std::to_string(context_.mode) + (packed_ ? " packed" : "");
    }
    void route(harness::Random *random, uint64_t turn);

  private:
    void fill(harness::Random *random) {
        Product &p = product_;
        const Spec &spec = weight_.spec;
        p.m = 1, p.n = spec.n, p.k = spec.k;
        p.entries = reference::entries(weight_);
        p.scales = reference::scale_values(weight_);
        p.minima = reference::minimum_values(weight_);
        p.groups = reference::groups_of(spec);
        p.entry_steps = reference::entry_steps(spec);
        for (int64_t i = 0; i < kPool * spec.k; ++i) {
            const float value = 20 * random->weight_like();
            pool_.push_back(reference::decode(x_format_, reference::encode(x_format_, value)));
        }
        for (int64_t i = 0; bias_ && i < spec.n; ++i) p.bias.push_back(random->weight_like());
    }

    // [E,n,k] as stored, or packed, and the same as rows of one weight.
    void wrap(bool packs) {
        const qk_tensor_desc two = stored_->desc();
        qk_tensor_desc three = two;
        three.rank = 3;
        three.shape[0] = experts_, three.shape[1] = n_, three.shape[2] = two.shape[1];
        const auto make = [&](qk_tensor_desc desc, bool pack, qk_tensor **out) {
            void *planes[QK_PLANE_COUNT];
            for (int i = 0; i < QK_PLANE_COUNT; ++i) planes[i] = stored_->plane(i).data();
            ASSERT_EQ(qk_tensor_wrap(context_.handle, &desc, planes, QK_PLANE_COUNT, out), QK_OK)
                << qk_context_error(context_.handle);
            if (!pack) return;
            qk_tensor *packed = nullptr;
            desc.layout = QK_LAYOUT_PACKED;
            if (qk_tensor_create(context_.handle, &desc, &packed) != QK_OK) return;
            ASSERT_EQ(qk_repack(context_.handle, *out, packed), QK_OK)
                << qk_context_error(context_.handle);
            qk_tensor_destroy(*out);
            *out = packed;
            packed_ = true;
        };
        const bool pack = packs && stored_->desc().grouping != QK_GROUPING_FLAT;
        make(two, pack, &rows_tensor_);
        make(three, pack, &experts_tensor_);
    }

    // The library's bits of each row of x, and how near they are to the doubles'.
    void expect() {
        const int64_t k = product_.k;
        Product p = product_;
        const bool integers = context_.mode == QK_CONTEXT_INT8_ACTIVATIONS && has_integers();
        for (int64_t row = 0; row < kPool; ++row) {
            p.x.clear();
            for (int64_t c = 0; c < k; ++c) {
                const int64_t from = weight_.order.empty() ? c : weight_.order[size_t(c)];
                p.x.push_back(pool_[size_t(row * k + from)]);
            }
            bool rounded = false;
            if (context_.mode == QK_CONTEXT_BF16_PRODUCTS) {
                rounded = bits_of_one_row(row);
            } else {
                const auto z =
                    integers ? reference::linear_int8(weight_, p) : reference::linear_ordered(p);
                z_.insert(z_.end(), z.begin(), z.end());
            }
            add(rounded    ? reference::linear_bf16(weight_, p)
                : integers ? reference::linear_int8_bound(weight_, p)
                           : reference::linear_exact(p));
        }
    }
    void add(const Bounded &more) {
        exact_.value.insert(exact_.value.end(), more.value.begin(), more.value.end());
        exact_.bound.insert(exact_.bound.end(), more.bound.begin(), more.bound.end());
    }
    bool has_integers() const {
        const Format f = weight_.spec.format;
        const bool steps = product_.k % 16 == 0 && product_.groups.size % 16 == 0;
        if (product_.groups.flat && (!steps || reference::eight_bit(f))) return false;
        return f != Format::lut4 && f != Format::lut8 && f != Format::e4m3;
    }
    // bf16 mode has an order of its own: what the library gives one row. Whether it rounded to
    // bf16.
    bool bits_of_one_row(int64_t row) {
        const Spec &spec = weight_.spec;
        Array x(context_.handle, x_format_, {1, spec.k}, 1);
        Array y(context_.handle, Format::f32, {1, spec.n}, 2);
        Array bias(context_.handle, Format::f32, {spec.n}, 3);
        for (int64_t c = 0; c < spec.k; ++c) x.set(c, pool_[size_t(row * spec.k + c)]);
        for (int64_t i = 0; bias_ && i < spec.n; ++i) bias.set(i, product_.bias[size_t(i)]);
        const qk_product product = {
            sizeof(qk_product), 0,      x.handle(), rows_tensor_, bias_ ? bias.handle() : nullptr,
            y.handle(),         nullptr};
        EXPECT_EQ(qk_multiply(context_.handle, &product, 1), QK_OK)
            << qk_context_error(context_.handle);
        for (int64_t i = 0; i < spec.n; ++i) {
            z_.push_back(reference::decode(Format::f32, y.bits(i)));
        }
        qk_plan plan = QK_PLAN_INIT;
        EXPECT_EQ(qk_explain(context_.handle, &product, &plan), QK_OK);
        return std::strstr(plan.kernel, "bf16") != nullptr;
    }

    Mixture draw(harness::Random *random) const;
    // What the slots of a routing give: bits and bounds, of rows that are there.
    void expected_rows(const Mixture &mixture, const std::vector<int64_t> &x_rows,
                       std::vector<float> *z, Bounded *exact) const;
    void compare(const Mixture &mixture, const std::vector<int64_t> &x_rows, bool summed,
                 Format y_format, const Array &y, const std::vector<float> &held) const;

    const Context &context_;
    const int64_t experts_, n_;
    Weight weight_;
    Format x_format_ = Format::f32;
    bool bias_ = false, packed_ = false;
    Product product_;
    std::vector<float> pool_, z_;  // [pool][k], [pool][experts * n]
    Bounded exact_;
    std::unique_ptr<harness::Tensor> stored_;
    qk_tensor *experts_tensor_ = nullptr, *rows_tensor_ = nullptr;
};

Mixture Layer::draw(harness::Random *random) const {
    Mixture m;
    m.slots = random->between(1, 16);
    m.tokens = random->one_in(6) ? random->between(8, 40) : random->between(1, 6);
    const int64_t pattern = random->below(8), favourite = random->below(experts_);
    for (int64_t i = 0; i < m.tokens * m.slots; ++i) {
        int64_t e = random->below(experts_);
        if (pattern == 0) e = favourite;                    // one for all
        if (pattern == 1) e = e / 2 * 2;                    // every other one has no rows
        if (pattern == 2 && random->one_in(3)) e = -1 - e;  // another machine's
        if (pattern == 3 && random->one_in(9)) e = experts_ + random->below(5);
        if (pattern == 4 && random->one_in(50)) e = random->one_in(2) ? INT32_MAX : INT32_MIN;
        if (pattern == 5 && favourite % 4 == 0) e = -7;  // nobody's
        m.expert.push_back(int32_t(e));
    }
    if (random->one_in(2)) {
        for (size_t i = 0; i < m.expert.size(); ++i) m.weight.push_back(random->weight_like() * 9);
    }
    if (n_ % 2 == 0 && random->one_in(2)) {
        m.activation = Activation(random->between(1, 4));
        m.interleaved = random->one_in(2);
        m.limit = float(random->between(1, 7)), m.alpha = 1.702f;
    }
    return m;
}

void Layer::expected_rows(const Mixture &mixture, const std::vector<int64_t> &x_rows,
                          std::vector<float> *z, Bounded *exact) const {
    for (size_t slot = 0; slot < mixture.expert.size(); ++slot) {
        const int64_t e = mixture.expert[slot];
        for (int64_t i = 0; i < n_; ++i) {
            const bool there = e >= 0 && e < experts_;
            const size_t at = there ? size_t(x_rows[slot] * product_.n + e * n_ + i) : 0;
            const double none = e < 0 ? 0 : std::nan("");
            z->push_back(there ? z_[at] : float(none));
            exact->value.push_back(there ? exact_.value[at] : none);
            exact->bound.push_back(there ? exact_.bound[at] : 0);
        }
    }
}

void Layer::compare(const Mixture &mixture, const std::vector<int64_t> &x_rows, bool summed,
                    Format y_format, const Array &y, const std::vector<float> &held) const {
    std::vector<float> z;
    Bounded exact;
    expected_rows(mixture, x_rows, &z, &exact);
    const bool joins = mixture.activation != Activation::none;
    const int64_t columns = joins ? n_ / 2 : n_;
    exact = reference::joined_rows(mixture, exact, n_);
    if (summed) {
        exact = reference::summed_rows(mixture, exact, columns);
        if (!joins) z = reference::summed_rows(mixture, z, columns);
    }
    for (size_t i = 0; i < exact.value.size(); ++i) {
        const uint32_t bits = y.bits(int64_t(i));
        const bool skipped = !summed && mixture.expert[i / size_t(columns)] < 0;
        if (!joins) {
            float value = skipped ? 0 : z[i];
            if (!held.empty()) value = skipped ? held[i] : value + held[i];
            ASSERT_TRUE(reference::same(y_format, bits, reference::encode(y_format, value)))
                << "number " << i << " is " << reference::decode(y_format, bits) << ", not "
                << value;
        }
        double value = exact.value[i], bound = exact.bound[i];
        if (!held.empty()) {
            value += held[i];
            bound += 0x1p-23 * (std::fabs(value) + std::fabs(held[i]));
        }
        if (std::isnan(value)) {
            ASSERT_TRUE(std::isnan(reference::decode(y_format, bits))) << "number " << i;
        } else {
            ASSERT_TRUE(reference::within(y_format, bits, value, bound))
                << "number " << i << " is " << reference::decode(y_format, bits) << ", not "
                << value << " within " << bound;
        }
    }
}

void Layer::route(harness::Random *random, uint64_t turn) {
    const Mixture mixture = draw(random);
    const bool by_slot = random->one_in(3), summed = random->one_in(2);
    const bool joins = mixture.activation != Activation::none;
    const int64_t k = product_.k, slots = mixture.tokens * mixture.slots;
    const int64_t columns = joins ? n_ / 2 : n_, rows = summed ? mixture.tokens : slots;
    const Format y_format = random->one_in(2) ? Format::f32 : x_format_;
    const int64_t gap_of_x = random->one_in(2) ? random->between(1, 40) : 0;
    const int64_t gap_of_y = random->one_in(2) ? random->between(1, 40) : 0;
    qk_context *const context = context_.handle;
    const int64_t t = mixture.tokens, s = mixture.slots;
    Array x(context, x_format_,
            by_slot ? std::vector<int64_t>{t, s, k} : std::vector<int64_t>{t, k}, turn, gap_of_x);
    Array y(context, y_format,
            summed ? std::vector<int64_t>{t, columns} : std::vector<int64_t>{t, s, columns},
            turn + 1, gap_of_y);
    Array ids(context, mixture.expert, {t, s}, turn + 2);
    Array weight(context, Format::f32, {t, s}, turn + 3);
    Array bias(context, Format::f32, {experts_, n_}, turn + 4);
    std::vector<int64_t> x_rows(size_t(slots), 0);
    for (int64_t i = 0; i < slots; ++i) {
        const int64_t row = by_slot ? i : i / s;
        const int64_t from = by_slot || i % s == 0 ? random->below(kPool) : x_rows[size_t(i - 1)];
        x_rows[size_t(i)] = from;
        for (int64_t c = 0; c < k; ++c) x.set(row * k + c, pool_[size_t(from * k + c)]);
    }
    for (size_t i = 0; i < mixture.weight.size(); ++i) weight.set(int64_t(i), mixture.weight[i]);
    for (size_t i = 0; i < product_.bias.size(); ++i) bias.set(int64_t(i), product_.bias[i]);
    std::vector<float> held;
    const int64_t added_to = random->one_in(4) ? rows * columns : 0;
    for (int64_t i = 0; i < added_to; ++i) held.push_back(float(i % 17) - 8);
    for (size_t i = 0; i < held.size(); ++i) y.set(int64_t(i), held[i]);
    qk_experts experts = QK_EXPERTS_INIT;
    experts.flags = mixture.interleaved ? QK_EXPERTS_INTERLEAVED : 0;
    experts.expert = ids.handle();
    experts.activation = qk_activation(mixture.activation);
    experts.limit = mixture.limit, experts.alpha = mixture.alpha;
    if (summed && !mixture.weight.empty()) experts.weight = weight.handle();
    const qk_product product = {sizeof(qk_product),
                                held.empty() ? 0 : QK_PRODUCT_ACCUMULATE,
                                x.handle(),
                                experts_tensor_,
                                bias_ ? bias.handle() : nullptr,
                                y.handle(),
                                &experts};
    SCOPED_TRACE(title() + " tokens " + std::to_string(t) + " slots " + std::to_string(s) +
                 " activation " + std::to_string(int(mixture.activation)));
    const qk_status status = qk_multiply(context, &product, 1);
    const int64_t x_bytes = (by_slot ? slots : t) * k * reference::bytes_of(x_format_);
    const bool may_lack_room = !weight_.order.empty() && x_bytes > 192 * 1024;  // qk.h
    if (may_lack_room && status == QK_ERROR_WORKSPACE) return;
    ASSERT_EQ(status, QK_OK) << qk_context_error(context);
    compare(mixture, x_rows, summed, y_format, y, held);
    EXPECT_TRUE(x.intact() && y.intact() && ids.intact() && weight.intact() && bias.intact());
    EXPECT_TRUE(stored_->intact());
}

int64_t routings() {
    const char *const given = std::getenv("QK_ROUTINGS");
    if (given != nullptr) return std::strtoll(given, nullptr, 10);
    return harness::thinned(1) ? 80 : 400;
}

// A layer's doubles and a product's copies come and go by tens of megabytes: most of the test's
// time was the system's, which took their pages back and gave them out again.
void keep_memory() {
#if defined(__GLIBC__)
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

TEST(Routings, OfRandomExperts) {
    keep_memory();
    constexpr int64_t kOfSetup = 25;
    constexpr int64_t kExperts[] = {1, 2, 3, 8, 16, 60, 128, 1024};
    const Context contexts[] = {{0, 1, 0},
                                {0, 2, size_t{1} << 22},
                                {QK_CONTEXT_INT8_ACTIVATIONS, 2, size_t{1} << 20},
                                {QK_CONTEXT_INT8_ACTIVATIONS, 3, size_t{1} << 24},
                                {QK_CONTEXT_BF16_PRODUCTS, 2, size_t{1} << 24}};
    constexpr Format kFormats[] = {Format::u4,   Format::nf4,    Format::fp4_bnb, Format::fp4_e2m1,
                                   Format::lut4, Format::s8,     Format::lut8,    Format::e4m3,
                                   Format::u4,   Format::iq4_nl, Format::fp4_ggml};
    harness::Random random{18};
    const int64_t setups = (routings() + kOfSetup - 1) / kOfSetup;
    for (int64_t i = 0; i < setups && !testing::Test::HasFailure(); ++i) {
        const Context &context = contexts[i % 5];
        const std::vector<Spec> kinds = harness::sweep_of(kFormats[random.below(11)]);
        Spec spec = kinds[size_t(random.below(int64_t(kinds.size())))];
        const int64_t experts = kExperts[random.below(random.one_in(10) ? 8 : 7)];
        const int64_t groups[] = {16, 32, 64, 128}, group = groups[random.below(4)];
        const bool bf16 = context.mode == QK_CONTEXT_BF16_PRODUCTS;
        // bf16 mode takes what is packed where experts and their halves begin at eight rows.
        if (bf16 && spec.nested) continue;
        const bool large = experts > 100;
        int64_t n = large ? 16 : 16 * random.between(1, 4);
        if (!bf16 && !large && random.one_in(3)) n = random.between(1, 40);
        // Panels of 64 to 1024 columns, whole and not.
        const bool wide = experts <= 3 && random.one_in(2);
        if (wide) n = bf16 ? 16 * random.between(16, 140) : random.between(250, 2300);
        const int64_t k = group * (wide ? 1 : random.between(1, large ? 2 : 3));
        spec.ordered = reference::record_of(spec.layout) == nullptr && random.one_in(8);
        Layer layer(context, spec, experts, n, k, group, random.one_in(2), &random, uint64_t(i));
        for (int64_t j = 0; j < kOfSetup && !testing::Test::HasFailure(); ++j) {
            layer.route(&random, uint64_t(i * kOfSetup + j));
        }
    }
}

}  // namespace
