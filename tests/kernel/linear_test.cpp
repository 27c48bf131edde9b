// Every linear kernel x every format x layout x grouping x scale kind x shape x types of x and
// bias, m = 1..33. Integer data must come out exact, real data within the bound derived in
// docs/formats.md; CPU kernels must also give the documented order's bits.
#include "kernel/rig.hpp"

namespace {

using namespace sweep;
using harness::Data;
using harness::Random;
using reference::Format;
using reference::Product;
using reference::Spec;
using reference::Weight;

struct Case {
    Product product;  // what is multiplied, as f32
    std::string title;
    Format x_format, bias_format;
    Data data;
    uint64_t turn;
};

// Whether a backend promises the documented order of sums.
bool promises_order(const Home &home) { return home.backend.device == QK_DEVICE_CPU; }

class Linear : public ::testing::TestWithParam<Format> {
  protected:
    std::vector<std::unique_ptr<Home>> homes_ = homes();
    Tally tally_{"linear"};
    Random random_{2};
    uint64_t turn_ = 0;

    float number(Data data) {
        if (data == Data::integer) return float(random_.between(-8, 8));
        if (data == Data::wild && random_.one_in(40)) return random_.any_magnitude(-140, 100);
        return 20 * random_.weight_like();
    }

    void fill_dense(Case *c, int64_t m, int64_t n, int64_t k) {
        Product &product = c->product;
        product.m = m, product.n = n, product.k = k;
        c->turn = turn_;
        c->x_format = harness::kFloats[random_.below(3)];
        c->bias_format = harness::kFloats[random_.below(3)];
        for (int64_t i = 0; i < m * k; ++i) product.x.push_back(number(c->data));
        product.x = rounded(c->x_format, product.x);
        if (random_.one_in(2)) return;
        for (int64_t i = 0; i < n; ++i) product.bias.push_back(number(c->data));
        product.bias = rounded(c->bias_format, product.bias);
    }

    Data pick_data(bool integers) {
        if (random_.one_in(11)) return Data::wild;
        return integers && random_.one_in(3) ? Data::integer : Data::real;
    }

    // One row, which has kernels of its own, in two cases of five; else every m up to 33 for small
    // products and a few rows for large ones.
    int64_t rows(int64_t n, int64_t k) {
        const int64_t m = random_.below(5) < 2 ? 1 : random_.between(1, 33);
        return m * n * k <= 40000 ? m : m % 3 + 1;
    }

    struct Expected {
        reference::Bounded exact;
        std::vector<float> ordered;
    };

    void expect(Home *home, const Case &c, const Expected &expected, const qk::Weight &w) {
        const Product &p = c.product;
        Memory &memory = home->memory;
        void *const x = memory.put(kX, dense_bytes(c.x_format, p.x), c.turn + 11);
        const size_t y_bytes = size_t(p.m * p.n) * size_t(reference::bytes_of(c.x_format));
        qk::Dense bias = {};
        if (!p.bias.empty()) {
            void *const data = memory.put(kBias, dense_bytes(c.bias_format, p.bias), c.turn + 5);
            bias = dense(c.bias_format, 1, p.n, data);
        }
        void *const y = memory.space(kY, y_bytes, c.turn + 3);
        const qk::LinearArgs args = {dense(c.x_format, p.m, p.k, x), w,
                                     p.bias.empty() ? nullptr : &bias,
                                     dense(c.x_format, p.m, p.n, y)};
        for_each_kernel(home, home->backend.linear, args, &tally_, [&](const auto &kernel) {
            ASSERT_EQ(run(home, kernel, args, c.turn), QK_OK);
            const std::vector<uint32_t> got = dense_bits(c.x_format, memory.get(kY));
            check(*home, c, expected, kernel.name, got);
            ASSERT_TRUE(memory.intact()) << kernel.name << " " << c.title;
        });
    }

    void check(const Home &home, const Case &c, const Expected &expected, const char *kernel,
               const std::vector<uint32_t> &got) {
        for (size_t i = 0; i < got.size(); ++i) {
            const uint32_t ordered = reference::encode(c.x_format, expected.ordered[i]);
            const double value = expected.exact.value[i], bound = expected.exact.bound[i];
            if (promises_order(home)) {
                ASSERT_TRUE(reference::same(c.x_format, got[i], ordered))
                    << kernel << " " << c.title << " m " << c.product.m << ": y[" << i << "] is "
                    << std::hex << got[i] << ", the documented order gives " << ordered;
            }
            if (c.data == Data::wild) continue;  // overflows: only the order is promised
            const bool right = c.data == Data::integer
                                   ? got[i] == reference::encode(c.x_format, float(value))
                                   : reference::within(c.x_format, got[i], value, bound);
            ASSERT_TRUE(right) << kernel << " " << c.title << " m " << c.product.m << ": y[" << i
                               << "] is " << reference::decode(c.x_format, got[i]) << ", expected "
                               << value << " within " << bound;
        }
    }

    void run_case(const Spec &spec, Data data, int64_t m) {
        Case c;
        c.data = data;
        c.title = harness::title(spec);
        const Weight weight = random_weight(spec, data, &random_);
        fill_dense(&c, m, spec.n, spec.k);
        c.product.entries = entries(weight);
        c.product.scales = scale_values(weight);
        c.product.minima = minimum_values(weight);
        c.product.groups = groups_of(spec);
        c.product.entry_steps = entry_steps(spec);
        const Expected expected = {linear_exact(c.product), linear_ordered(c.product)};
        const reference::Planes planes = pack(weight, uint32_t(random_.next()));
        for (const auto &home : homes_) {
            const qk::Weight w = place(home.get(), kFirst, spec, &planes, turn_);
            expect(home.get(), c, expected, w);
            if (spec.layout != reference::Layout::row || !has_packed(*home, spec.format)) continue;
            const qk::Weight packed = place_packed(home.get(), kSecond, spec, turn_);
            const qk::RepackArgs args = {w, packed};
            const auto &repack = *qk::pick(home->backend.repack, args, home->device);
            ASSERT_EQ(run(home.get(), repack, args, turn_), QK_OK);
            expect(home.get(), c, expected, packed);
        }
    }
};

TEST_P(Linear, EveryLayoutAndShape) {
    const bool integers = harness::has_integer_data(GetParam());
    for (Spec spec : harness::sweep_of(GetParam())) {
        for (const harness::Shape &shape : harness::shapes()) {
            if (harness::thinned(++turn_)) continue;
            harness::cut(&spec, shape);
            const Data data = pick_data(integers);
            run_case(spec, data, rows(spec.n, spec.k));
            if (enough()) return;
        }
    }
}

// The tiles of m, n and k at once, on what real layers look like.
TEST_P(Linear, LargerProducts) {
    for (Spec spec : harness::sweep_of(GetParam())) {
        if (spec.second_group == 16) continue;
        for (const int64_t m : {1, 2, 4, 7, 8, 9, 16, 33}) {
            if (harness::thinned(++turn_)) continue;
            harness::cut(&spec, {41, 515 - int64_t(turn_ % 4), 64});
            run_case(spec, Data::real, m);
            if (enough()) return;
        }
    }
}

class LinearDense : public Linear {};

TEST_P(LinearDense, EveryShape) {
    const Format format = GetParam();
    for (int round = 0; round < 9; ++round) {
        for (const harness::Shape &shape : harness::shapes()) {
            if (harness::thinned(++turn_)) continue;
            const int64_t n = shape.n, k = shape.k;
            Case c;
            c.data = pick_data(true);
            c.title = std::string("dense ") + reference::name(format) + " n " + std::to_string(n) +
                      " k " + std::to_string(k);
            fill_dense(&c, rows(n, k), n, k);
            for (int64_t i = 0; i < n * k; ++i) c.product.entries.push_back(number(c.data));
            c.product.entries = rounded(format, c.product.entries);
            c.product.scales = {1.0f};
            c.product.groups = reference::dense_groups(n, k);
            const Expected expected = {linear_exact(c.product), linear_ordered(c.product)};
            for (const auto &home : homes_) {
                qk::Weight w = {};
                w.format = qk::find_format(harness::code(format));
                w.geometry = {n, k, k, 1, 0, false};
                w.data = home->memory.put(kFirst, dense_bytes(format, c.product.entries), turn_);
                expect(home.get(), c, expected, w);
            }
            if (enough()) return;
        }
    }
}

const Format kQuantized[] = {Format::u4,     Format::nf4,     Format::fp4_bnb, Format::fp4_e2m1,
                             Format::lut8,   Format::s8,      Format::lut4,    Format::e4m3,
                             Format::iq4_nl, Format::fp4_ggml};
const auto kFormatName = [](const auto &info) { return std::string(reference::name(info.param)); };

INSTANTIATE_TEST_SUITE_P(Kernels, Linear, ::testing::ValuesIn(kQuantized), kFormatName);
INSTANTIATE_TEST_SUITE_P(Kernels, LinearDense, ::testing::ValuesIn(harness::kFloats), kFormatName);

}  // namespace
