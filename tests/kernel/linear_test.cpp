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
    Format x_format, bias_format, y_format;
    Data data;
    uint64_t turn;
    // Beyond y = x . transpose(w) + bias over rows without gaps.
    bool transposed = false, accumulate = false;
    int64_t x_gap = 0, y_gap = 0;

    int64_t x_columns() const { return transposed ? product.n : product.k; }
    int64_t y_columns() const { return transposed ? product.k : product.n; }
};

constexpr uint8_t kGap = 0xff;  // NaN in every format

// Rows with gaps between them.
Bytes apart(const Bytes &rows, int64_t count, int64_t gap_bytes) {
    Bytes all;
    const int64_t row = int64_t(rows.size()) / count;
    for (int64_t i = 0; i < count; ++i) {
        if (i > 0) all.insert(all.end(), size_t(gap_bytes), kGap);
        all.insert(all.end(), rows.begin() + i * row, rows.begin() + (i + 1) * row);
    }
    return all;
}

// And back; false where a gap was written.
bool gather(const Bytes &all, int64_t count, int64_t gap_bytes, Bytes *rows) {
    const int64_t row = (int64_t(all.size()) + gap_bytes) / count - gap_bytes;
    bool whole = true;
    for (int64_t i = 0; i < int64_t(all.size()); ++i) {
        const bool in_row = i % (row + gap_bytes) < row;
        if (in_row) rows->push_back(all[size_t(i)]);
        whole = whole && (in_row || all[size_t(i)] == kGap);
    }
    return whole;
}

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
        c->y_format = random_.one_in(4) ? Format::f32 : c->x_format;
        c->transposed = random_.one_in(4);
        c->accumulate = random_.one_in(4);
        if (random_.one_in(4)) c->x_gap = random_.between(1, 9);
        if (random_.one_in(4)) c->y_gap = random_.between(1, 9);
        for (int64_t i = 0; i < m * c->x_columns(); ++i) product.x.push_back(number(c->data));
        product.x = rounded(c->x_format, product.x);
        if (random_.one_in(2)) return;
        for (int64_t i = 0; i < c->y_columns(); ++i) product.bias.push_back(number(c->data));
        product.bias = rounded(c->bias_format, product.bias);
    }

    Data pick_data(bool integers) {
        if (random_.one_in(11)) return Data::wild;
        return integers && random_.one_in(3) ? Data::integer : Data::real;
    }

    // One row or two, which have kernels of their own, in two cases of five; else every m up to 33
    // for small products and a few rows for large ones.
    int64_t rows(int64_t n, int64_t k) {
        const int64_t m = random_.below(5) < 2 ? random_.between(1, 2) : random_.between(1, 33);
        return m * n * k <= 40000 ? m : m % 3 + 1;
    }

    struct Expected {
        reference::Bounded exact;
        std::vector<float> ordered;
    };

    void expect(Home *home, const Case &c, const Expected &expected, const qk::Weight &w) {
        const Product &p = c.product;
        Memory &memory = home->memory;
        const int64_t x_gap = c.x_gap * reference::bytes_of(c.x_format);
        const int64_t y_gap = c.y_gap * reference::bytes_of(c.y_format);
        const int64_t columns = c.y_columns();
        void *const x =
            memory.put(kX, apart(dense_bytes(c.x_format, p.x), p.m, x_gap), c.turn + 11);
        qk::Dense bias = {};
        if (!p.bias.empty()) {
            void *const data = memory.put(kBias, dense_bytes(c.bias_format, p.bias), c.turn + 5);
            bias = dense(c.bias_format, 1, columns, data);
        }
        std::vector<float> held;
        for (int64_t i = 0; i < p.m * columns; ++i) held.push_back(float(i % 17) - 8);
        const Bytes before = apart(dense_bytes(c.y_format, held), p.m, y_gap);
        qk::LinearArgs args = {dense(c.x_format, p.m, c.x_columns(), x), w,
                               p.bias.empty() ? nullptr : &bias,
                               dense(c.y_format, p.m, columns, nullptr)};
        args.x.stride = c.x_columns() + c.x_gap;
        args.y.stride = columns + c.y_gap;
        args.transposed = c.transposed, args.accumulate = c.accumulate;
        args.y.data = memory.put(kY, before, c.turn + 3);
        const bool own_list = c.transposed && home->backend.transposed.count > 0;
        const auto &list = own_list ? home->backend.transposed : home->backend.linear;
        for_each_kernel(home, list, args, &tally_, [&](const auto &kernel) {
            args.y.data = memory.put(kY, before, c.turn + 3);
            ASSERT_EQ(run(home, kernel, args, c.turn), QK_OK);
            Bytes rows;
            ASSERT_TRUE(gather(memory.get(kY), p.m, y_gap, &rows)) << kernel.name << " " << c.title;
            check(*home, c, expected, held, kernel.name, dense_bits(c.y_format, rows));
            ASSERT_TRUE(memory.intact()) << kernel.name << " " << c.title;
        });
    }

    void check(const Home &home, const Case &c, const Expected &expected,
               const std::vector<float> &held, const char *kernel,
               const std::vector<uint32_t> &got) {
        for (size_t i = 0; i < got.size(); ++i) {
            const float sum = expected.ordered[i];
            const uint32_t ordered =
                reference::encode(c.y_format, c.accumulate ? held[i] + sum : sum);
            double value = expected.exact.value[i], bound = expected.exact.bound[i];
            if (c.accumulate) {
                value += double(held[i]);
                bound += std::ldexp(std::fabs(value) + bound, -24);
            }
            if (promises_order(home)) {
                ASSERT_TRUE(reference::same(c.y_format, got[i], ordered))
                    << kernel << " " << c.title << " m " << c.product.m << ": y[" << i << "] is "
                    << std::hex << got[i] << ", the documented order gives " << ordered;
            }
            if (c.data == Data::wild) continue;  // overflows: only the order is promised
            const bool right = c.data == Data::integer
                                   ? got[i] == reference::encode(c.y_format, float(value))
                                   : reference::within(c.y_format, got[i], value, bound);
            ASSERT_TRUE(right) << kernel << " " << c.title << " m " << c.product.m << ": y[" << i
                               << "] is " << reference::decode(c.y_format, got[i]) << ", expected "
                               << value << " within " << bound;
        }
    }

    static Expected expected_of(const Case &c) {
        const Product &p = c.product;
        if (c.transposed) return {transposed_exact(p), transposed_ordered(p)};
        return {linear_exact(p), linear_ordered(p)};
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
        const Expected expected = expected_of(c);
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
        for (const harness::Shape &shape : sweep::shapes_of(GetParam())) {
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
            const bool tall = turn_ % 3 == 0;  // rows of w in blocks, for transposed products
            harness::cut(&spec, {tall ? 259 : 41, (tall ? 133 : 515) - int64_t(turn_ % 4), 64});
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
            const Expected expected = expected_of(c);
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
INSTANTIATE_TEST_SUITE_P(Kernels, Linear, ::testing::ValuesIn(kQuantized),
                         ::testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Kernels, LinearDense, ::testing::ValuesIn(harness::kFloats),
                         ::testing::PrintToStringParamName());

}  // namespace
