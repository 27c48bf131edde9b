// The modes of qk_linear over the shape table, every layout and scale kind: int8 to the bit and
// within its bound of the exact product; bf16 within the bounds of products of rounded factors.
#include "kernel/rig.hpp"

namespace {

using namespace sweep;
using harness::Data;
using harness::Random;
using reference::Format;
using reference::Product;
using reference::Spec;

enum class Mode { bf16, int8 };

struct Case {
    Product product;
    Format x_format, bias_format;
    std::string title;
    Data data;
    uint64_t turn;
    std::vector<float> bits;          // int8: what y is to the bit
    reference::Bounded bound, batch;  // bf16: batches round weights, not their entries
};

// Groups that straddle rows are those of nibbles and end after whole steps of 16 columns.
bool takes_int8(const Spec &spec) {
    if (!groups_of(spec).flat) return true;
    return !reference::eight_bit(spec.format) && spec.k % 16 == 0 && spec.group_size % 16 == 0;
}

class Modes : public ::testing::TestWithParam<Format> {
  protected:
    std::vector<std::unique_ptr<Home>> homes_ = homes();
    Tally tally_{"linear mode"};
    Random random_{3};
    uint64_t turn_ = 0;

    float number(Data data) {
        if (data == Data::wild && random_.one_in(30)) return random_.any_magnitude(-140, 100);
        return 20 * random_.weight_like();
    }

    void fill(Case *c, const Spec &spec, int64_t m) {
        Product &p = c->product;
        p.m = m, p.n = spec.n, p.k = spec.k;
        c->x_format = harness::kFloats[random_.below(3)];
        c->bias_format = harness::kFloats[random_.below(3)];
        const bool loud = random_.one_in(4);  // every integer the largest, nearly all of one sign
        for (int64_t i = 0; i < m * p.k; ++i) {
            p.x.push_back(loud ? (random_.one_in(9) ? -20.0f : 20.0f) : number(c->data));
        }
        if (c->data == Data::wild && random_.one_in(4)) p.x[0] = INFINITY;
        p.x = rounded(c->x_format, p.x);
        if (random_.one_in(2)) return;
        for (int64_t i = 0; i < p.n; ++i) p.bias.push_back(number(Data::real));
        p.bias = rounded(c->bias_format, p.bias);
    }

    void expect(Home *home, const Case &c, Mode mode, const qk::Weight &w) {
        const Product &p = c.product;
        Memory &memory = home->memory;
        void *const x = memory.put(kX, dense_bytes(c.x_format, p.x), c.turn + 11);
        qk::Dense bias = {};
        if (!p.bias.empty()) {
            void *const data = memory.put(kBias, dense_bytes(c.bias_format, p.bias), c.turn + 5);
            bias = dense(c.bias_format, 1, p.n, data);
        }
        const size_t y_bytes = size_t(p.m * p.n) * size_t(reference::bytes_of(c.x_format));
        void *const y = memory.space(kY, y_bytes, c.turn + 3);
        const qk::LinearArgs args = {dense(c.x_format, p.m, p.k, x), w,
                                     p.bias.empty() ? nullptr : &bias,
                                     dense(c.x_format, p.m, p.n, y)};
        const qk::Backend &backend = home->backend;
        const auto &list = mode == Mode::int8 ? backend.linear_int8 : backend.linear_bf16;
        for (int32_t i = 0; i < list.count; ++i) {
            const qk::Kernel<qk::LinearArgs> &kernel = *list.kernels[i];
            if (!taken(*home, kernel, args)) {
                tally_.refused(*home, kernel.name);
                continue;
            }
            tally_.ran(*home, kernel.name);
            ASSERT_EQ(run(home, kernel, args, c.turn), QK_OK);
            check(c, kernel.name, dense_bits(c.x_format, memory.get(kY)));
            ASSERT_TRUE(memory.intact()) << kernel.name << " " << c.title;
        }
    }

    static void check(const Case &c, const char *kernel, const std::vector<uint32_t> &got) {
        const bool batch = std::string(kernel).ends_with("bf16 batch");
        const reference::Bounded &expected = batch ? c.batch : c.bound;
        for (size_t i = 0; i < got.size(); ++i) {
            if (!c.bits.empty()) {
                const uint32_t bits = reference::encode(c.x_format, c.bits[i]);
                ASSERT_TRUE(reference::same(c.x_format, got[i], bits))
                    << kernel << " " << c.title << " m " << c.product.m << ": y[" << i << "] is "
                    << std::hex << got[i] << ", documented is " << bits;
            }
            if (c.data == Data::wild) continue;
            ASSERT_TRUE(reference::within(c.x_format, got[i], expected.value[i], expected.bound[i]))
                << kernel << " " << c.title << " m " << c.product.m << ": y[" << i << "] is "
                << reference::decode(c.x_format, got[i]) << ", expected " << expected.value[i]
                << " within " << expected.bound[i];
        }
    }

    void run_case(const Spec &spec, Mode mode, int64_t m) {
        Case c;
        c.data = random_.one_in(6) && mode == Mode::int8 ? Data::wild : Data::real;
        c.turn = turn_;
        c.title = harness::title(spec);
        const reference::Weight weight = random_weight(spec, c.data, &random_);
        fill(&c, spec, m);
        c.product.entries = entries(weight);
        c.product.scales = scale_values(weight);
        c.product.minima = minimum_values(weight);
        c.product.groups = groups_of(spec);
        const bool int8 = mode == Mode::int8;
        if (int8) c.bits = linear_int8(weight, c.product);
        c.bound = int8 ? linear_int8_bound(weight, c.product) : linear_bf16(weight, c.product);
        if (!int8) c.batch = linear_bf16_batch(c.product);
        const reference::Planes planes = pack(weight, uint32_t(random_.next()));
        for (const auto &home : homes_) {
            if (!home->backend.has_modes) continue;
            const qk::Weight w = place(home.get(), kFirst, spec, &planes, turn_);
            if (int8 || m >= reference::kBf16Batch) expect(home.get(), c, mode, w);
            if (spec.layout != reference::Layout::row || !has_packed(*home, spec.format)) continue;
            const qk::Weight packed = place_packed(home.get(), kSecond, spec, turn_);
            const qk::RepackArgs args = {w, packed};
            const auto &repack = *qk::pick(home->backend.repack, args, home->device);
            ASSERT_EQ(run(home.get(), repack, args, turn_), QK_OK);
            expect(home.get(), c, mode, packed);
        }
    }

    void sweep(Mode mode) {
        for (Spec spec : harness::sweep_of(GetParam())) {
            if (spec.float_min && mode == Mode::bf16) continue;  // runs exact
            const bool packs = spec.layout == reference::Layout::row;
            for (const harness::Shape &shape : harness::shapes()) {
                ++turn_;
                if (!packs && turn_ % 48 != 0) continue;  // one kernel takes these layouts
                if (turn_ % 12 != 0 || harness::thinned(turn_ / 12)) continue;
                harness::cut(&spec, shape);
                if (mode == Mode::int8 && !takes_int8(spec)) continue;
                run_case(spec, mode, 1 + int64_t(turn_ / 12) % 3 * int64_t(turn_ % 7));
                if (enough()) return;
            }
            if (!packs) continue;
            for (const int64_t m : {1, 5, 17, 73, 170}) {  // batches keep sums of 64 rows and more
                if (harness::thinned(++turn_)) continue;
                for (const int64_t group : {16, 32, 64, 128, 256, -1}) {
                    if (m > 160 && (mode == Mode::int8 || group != 64)) continue;
                    if (m > 64 && group != 16 && group != 64 && group != 128) continue;
                    spec.n = 37, spec.k = 530 - int64_t(turn_ % 4) * 6, spec.group_size = group;
                    if (spec.flat && turn_ % 3 != 0) spec.k = 528 + int64_t(turn_ % 4) * 16;
                    if (mode == Mode::bf16 || takes_int8(spec)) run_case(spec, mode, m);
                    if (enough()) return;
                }
            }
        }
    }
};

TEST_P(Modes, Int8) { sweep(Mode::int8); }
TEST_P(Modes, Bf16) {
    if (GetParam() == Format::s8) GTEST_SKIP() << "8-bit codes run exact in this mode";
    sweep(Mode::bf16);
}

const Format kQuantized[] = {Format::u4, Format::nf4,    Format::fp4_bnb, Format::fp4_e2m1,
                             Format::s8, Format::iq4_nl, Format::fp4_ggml};

INSTANTIATE_TEST_SUITE_P(Kernels, Modes, ::testing::ValuesIn(kQuantized),
                         ::testing::PrintToStringParamName());

}  // namespace
