// Every dequantize kernel x every format x layout x grouping x scale kind x shape x output type,
// compared in every bit.
#include "kernel/rig.hpp"

namespace {

using namespace sweep;
using harness::Data;
using harness::Random;
using reference::Format;
using reference::Spec;
using reference::Weight;

class Dequantize : public ::testing::TestWithParam<Format> {
  protected:
    std::vector<std::unique_ptr<Home>> homes_ = homes();
    Tally tally_{"dequantize"};

    void expect(Home *home, const Weight &weight, const qk::Weight &from, Format to,
                uint64_t turn) {
        const Spec &spec = weight.spec;
        const std::vector<uint32_t> expected = reference::dequantize(weight, to);
        void *const output =
            home->memory.space(kY, expected.size() * size_t(reference::bytes_of(to)), turn / 3);
        const qk::DequantizeArgs args = {from, dense(to, spec.n, spec.k, output)};
        for_each_kernel(home, home->backend.dequantize, args, &tally_, [&](const auto &kernel) {
            ASSERT_EQ(run(home, kernel, args, turn), QK_OK);
            const std::vector<uint32_t> got = dense_bits(to, home->memory.get(kY));
            for (size_t i = 0; i < got.size(); ++i) {
                ASSERT_TRUE(reference::same(to, got[i], expected[i]))
                    << kernel.name << " " << harness::title(spec) << " -> " << name(to) << ": code "
                    << i << " is " << std::hex << got[i] << ", expected " << expected[i];
            }
            ASSERT_TRUE(home->memory.intact()) << kernel.name << " " << harness::title(spec);
        });
    }

    // The same weight in the layout that the backend likes best.
    void expect_packed(Home *home, const Weight &weight, const qk::Weight &from, Format to,
                       uint64_t turn) {
        const qk::Weight packed = place_packed(home, kSecond, weight.spec, turn);
        const qk::RepackArgs args = {from, packed};
        const auto *const repack = qk::pick(home->backend.repack, args, home->device);
        ASSERT_NE(repack, nullptr);
        ASSERT_EQ(run(home, *repack, args, turn), QK_OK);
        expect(home, weight, packed, to, turn);
    }
};

TEST_P(Dequantize, EveryLayoutAndShape) {
    Random random(1);
    uint64_t turn = 0;
    for (Spec spec : harness::sweep_of(GetParam())) {
        for (const harness::Shape &shape : sweep::shapes_of(GetParam())) {
            if (harness::thinned(++turn)) continue;
            harness::cut(&spec, shape);
            const Data data = turn % 5 == 0 ? Data::wild : Data::real;
            const Weight weight = random_weight(spec, data, &random);
            const reference::Planes planes = pack(weight, uint32_t(random.next()));
            const Format to = harness::kFloats[turn % 3];
            for (const auto &home : homes_) {
                const qk::Weight from = place(home.get(), kFirst, spec, &planes, turn);
                expect(home.get(), weight, from, to, turn);
                if (spec.layout == reference::Layout::row && has_packed(*home, spec.format)) {
                    expect_packed(home.get(), weight, from, to, turn);
                }
            }
            if (enough()) return;
        }
    }
}

// Every code under every 16-bit scale: 4-bit codes in every lane of 16 too, or, for u4, with every
// zero. Row r of a slice turns the codes by r and has zero r; group g has scale first_scale + g.
class EveryScale : public Dequantize {
  protected:
    static Weight slice(Spec spec, uint32_t first_scale, int64_t scales) {
        const bool wide = reference::eight_bit(spec.format);
        spec.group_size = wide ? 256 : 16;
        spec.n = wide ? 1 : 16;
        spec.k = scales * spec.group_size;
        spec.zeros = spec.format == Format::u4;
        Weight weight;
        weight.spec = spec;
        for (int64_t r = 0; r < spec.n; ++r) {
            for (int64_t c = 0; c < spec.k; ++c) {
                weight.codes.push_back(uint8_t((c + r) % spec.group_size));
            }
            for (int64_t g = 0; g < scales; ++g) {
                weight.scales.push_back(first_scale + uint32_t(g));
                if (spec.zeros) weight.zeros.push_back(uint8_t(r));
            }
        }
        if (spec.format == Format::lut8) weight.table = reference::dynamic_table();
        if (spec.format == Format::lut4) {
            for (int code = 0; code < 16; ++code)
                weight.table.push_back(float(code * code) - 99.5f);
        }
        return weight;
    }
};

TEST_P(EveryScale, BitForBit) {
    constexpr uint32_t kSlice = 1024;
    for (const Format scale_format : {Format::f16, Format::bf16}) {
        Spec spec;
        spec.format = GetParam();
        spec.scale_format = scale_format;
        for (uint32_t scale = 0; scale < 65536; scale += kSlice) {
            if (harness::thinned(scale / kSlice)) continue;
            const Weight weight = slice(spec, scale, kSlice);
            const reference::Planes planes = pack(weight);
            for (const auto &home : homes_) {
                const qk::Weight from = place(home.get(), kFirst, weight.spec, &planes, 0);
                expect(home.get(), weight, from, scale_format, 1);
            }
            if (enough()) return;
        }
    }
}

const Format kQuantized[] = {Format::u4,     Format::nf4,     Format::fp4_bnb, Format::fp4_e2m1,
                             Format::lut8,   Format::s8,      Format::lut4,    Format::e4m3,
                             Format::iq4_nl, Format::fp4_ggml};
INSTANTIATE_TEST_SUITE_P(Kernels, Dequantize, ::testing::ValuesIn(kQuantized),
                         ::testing::PrintToStringParamName());
// fp4_ggml has scales of its own.
INSTANTIATE_TEST_SUITE_P(Kernels, EveryScale,
                         ::testing::ValuesIn(kQuantized, kQuantized + std::size(kQuantized) - 1),
                         ::testing::PrintToStringParamName());

}  // namespace
