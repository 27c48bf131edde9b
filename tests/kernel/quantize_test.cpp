// Every quantize kernel x every format x layout x grouping x scale kind x shape x input type: every
// plane as docs/formats.md's rules make it.
#include <algorithm>
#include <cstring>
#include <limits>

#include "kernel/rig.hpp"

namespace {

using namespace sweep;
using harness::Random;
using reference::Format;
using reference::Planes;
using reference::Spec;

enum class Input { weights, grid, zeros, constant, tiny, wild, count };

class Quantize : public ::testing::TestWithParam<Format> {
  protected:
    std::vector<std::unique_ptr<Home>> homes_ = homes();
    Tally tally_{"quantize"};
    Random random_{4};
    uint64_t turn_ = 0;

    float number(Input input) {
        switch (input) {
            case Input::grid: return float(random_.between(-64, 64)) / 64;  // ties of every rule
            case Input::zeros:
                return random_.one_in(9) ? random_.weight_like() : random_.one_in(2) ? 0.0f : -0.0f;
            case Input::constant: return turn_ % 7 < 3 ? 0.375f : -0.375f;
            case Input::tiny: return random_.any_magnitude(-149, -110);
            case Input::wild: return wild();
            default: return random_.weight_like();
        }
    }

    float wild() {
        switch (random_.below(60)) {
            case 0: return std::numeric_limits<float>::quiet_NaN();
            case 1: return std::numeric_limits<float>::infinity();
            case 2: return -std::numeric_limits<float>::infinity();
            default: return random_.any_magnitude(-149, 127);
        }
    }

    std::vector<float> numbers(const Spec &spec, Format format) {
        const Input input = Input(random_.below(int64_t(Input::count)));
        std::vector<float> x;
        for (int64_t i = 0; i < spec.n * spec.k; ++i) x.push_back(number(input));
        if (random_.one_in(4)) {  // whole groups of zeros among others
            std::fill(x.begin(), x.begin() + int64_t(x.size() / 2), 0.0f);
        }
        return rounded(format, x);
    }

    // An ascending table: bitsandbytes' own, or one of random steps.
    std::vector<float> table() {
        if (!random_.one_in(3)) return reference::dynamic_table();
        std::vector<float> values;
        for (int i = 0; i < 256; ++i) values.push_back(float(2 * random_.unit() - 1));
        std::sort(values.begin(), values.end());
        return values;
    }

    void expect_scales(const Spec &spec, const std::vector<uint8_t> &got,
                       const std::vector<uint8_t> &expected, const std::string &what) {
        if (spec.nested || reference::bytes_of(spec.scale_format) == 1) {
            ASSERT_EQ(got, expected) << what;
            return;
        }
        expect_floats(spec.scale_format, got, expected, what);
    }

    void expect_floats(Format format, const std::vector<uint8_t> &got,
                       const std::vector<uint8_t> &expected, const std::string &what) {
        const std::vector<uint32_t> a = dense_bits(format, got), b = dense_bits(format, expected);
        ASSERT_EQ(a.size(), b.size()) << what;
        for (size_t i = 0; i < a.size(); ++i) {
            ASSERT_TRUE(reference::same(format, a[i], b[i]))
                << what << ": scale " << i << " is " << std::hex << a[i] << ", expected " << b[i];
        }
    }

    void expect(Home *home, const Spec &spec, Format x_format, const std::vector<float> &x) {
        const std::vector<float> code_table = table();
        const reference::Quantized made = quantize(spec, x, code_table, code_table, x_format);
        Planes expected = pack(made.weight);
        if (spec.layout == reference::Layout::row_high && spec.n * spec.k % 2 != 0) {
            expected.data.back() |= made.tail_nibble;
        }
        void *const input = home->memory.put(kX, dense_bytes(x_format, x), turn_ + 4);
        const qk::Weight to = place(home, kFirst, spec, nullptr, turn_);
        const Bytes table_bytes = dense_bytes(Format::f32, code_table);
        if (to.table != nullptr) {
            home->memory.put(kFirst + QK_PLANE_TABLE, table_bytes, turn_ + QK_PLANE_TABLE);
        }
        if (spec.nested) {
            home->memory.put(kFirst + QK_PLANE_SCALE_CODE, table_bytes,
                             turn_ + QK_PLANE_SCALE_CODE);
        }
        const qk::QuantizeArgs args = {dense(x_format, spec.n, spec.k, input), to};
        for_each_kernel(home, home->backend.quantize, args, &tally_, [&](const auto &kernel) {
            const std::string what =
                std::string(kernel.name) + " " + harness::title(spec) + " from " + name(x_format);
            ASSERT_EQ(run(home, kernel, args, turn_), QK_OK) << what;
            const Planes got = planes_of(home, kFirst, spec);
            expect_scales(spec, got.scale, expected.scale, what);
            ASSERT_EQ(got.zero, expected.zero) << what;
            ASSERT_EQ(got.data, expected.data) << what;
            ASSERT_EQ(got.scale_code, expected.scale_code) << what;
            ASSERT_EQ(got.table, expected.table) << what;
            expect_floats(Format::f32, got.second_scale, expected.second_scale, what);
            expect_floats(Format::f32, got.scale_bias, expected.scale_bias, what);
            ASSERT_EQ(got.global, expected.global) << what;
            ASSERT_TRUE(home->memory.intact()) << what;
        });
    }
};

// All that has a rule.
std::vector<Spec> quantized_kinds(Format format) {
    std::vector<Spec> list = harness::kinds_of(format);
    for (Spec spec : harness::small_scale_kinds(format)) {
        const bool e8m0 = spec.scale_format == Format::e8m0;
        if (format == Format::fp4_e2m1 || (format == Format::e4m3 && e8m0)) list.push_back(spec);
    }
    for (size_t i = 0; format == Format::s8 && i < list.size(); ++i) {
        if (list[i].whole_range) break;
        list.push_back(list[i]);
        list.back().whole_range = true;
    }
    return list;
}

TEST_P(Quantize, EveryLayoutAndShape) {
    for (Spec spec : quantized_kinds(GetParam())) {
        for (const harness::Shape &shape : sweep::shapes_of(GetParam())) {
            if (harness::thinned(++turn_)) continue;
            spec.n = shape.n, spec.k = shape.k, spec.group_size = shape.group_size;
            const Format x_format = harness::kFloats[turn_ % 3];
            const std::vector<float> x = numbers(spec, x_format);
            for (const auto &home : homes_) expect(home.get(), spec, x_format, x);
            if (enough()) return;
        }
    }
}

// Enough groups for every level of the cascaded mean: 8 lanes x 4 rows x 16^2 and past it.
TEST_P(Quantize, ManyNestedScales) {
    for (const int64_t groups :
         {1, 7, 8, 31, 32, 33, 100, 511, 512, 513, 8191, 8192, 8200, 40001}) {
        Spec spec;
        spec.format = GetParam();
        spec.nested = true;
        spec.zeros = spec.format == Format::u4;
        spec.group_size = 16;
        spec.k = groups * 16;
        ++turn_;
        std::vector<float> x;
        for (int64_t i = 0; i < spec.k; ++i) x.push_back(random_.weight_like());
        for (const auto &home : homes_) expect(home.get(), spec, Format::f32, x);
    }
}

class QuantizeLut8 : public Quantize {};

// Two numbers for each point of the grid, which is enough for a table of all points, and at last
// infinity, which is a NaN by its own scale.
// Several times, as every third table is not bitsandbytes'. Then the same in rows that are too
// short for it.
TEST_P(QuantizeLut8, EveryPoint) {
    std::vector<float> x;
    for (int i = 0; i <= 131072; ++i) x.push_back(float(i) / 65536 - 1);
    Spec spec;
    spec.format = GetParam();
    for (int i = 0; i < 4; ++i) {
        if (i == 3) x.push_back(std::numeric_limits<float>::infinity());
        spec.k = int64_t(x.size());
        spec.group_size = i == 0 ? 40001 : spec.k;
        ++turn_;
        for (const auto &home : homes_) expect(home.get(), spec, Format::f32, x);
    }
    spec.k = spec.group_size = 383;
    for (size_t i = 0; i + 383 <= x.size(); i += 9 * 383) {
        ++turn_;
        const std::vector<float> some(x.begin() + ptrdiff_t(i), x.begin() + ptrdiff_t(i) + 383);
        for (const auto &home : homes_) expect(home.get(), spec, Format::f32, some);
    }
}

const Format kQuantized[] = {Format::u4,   Format::nf4, Format::fp4_bnb, Format::fp4_e2m1,
                             Format::lut8, Format::s8,  Format::e4m3};
INSTANTIATE_TEST_SUITE_P(Kernels, Quantize, ::testing::ValuesIn(kQuantized),
                         ::testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Kernels, QuantizeLut8, ::testing::Values(Format::lut8),
                         ::testing::PrintToStringParamName());

}  // namespace
