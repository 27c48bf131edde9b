// Every repack kernel x every pair of layouts x grouping x scale kind x shape: the planes come out
// byte for byte as the reference packs them, padding zeroed, and come back.
#include "kernel/rig.hpp"

namespace {

using namespace sweep;
using harness::Data;
using harness::Random;
using reference::Format;
using reference::Layout;
using reference::Planes;
using reference::Spec;
using reference::Weight;

constexpr Layout kLayouts[] = {Layout::row,  Layout::row_high, Layout::awq_gemm, Layout::awq_gemv,
                               Layout::gptq, Layout::gptq_v1,  Layout::word};

class Repack : public ::testing::TestWithParam<Format> {
  protected:
    std::vector<std::unique_ptr<Home>> homes_ = homes();
    Tally tally_{"repack"};
    Random random_{3};
    uint64_t turn_ = 0;

    void expect_planes(Home *home, int slot, const Spec &spec, const Planes &expected,
                       const std::string &what) {
        const Planes got = planes_of(home, slot, spec);
        for (int plane = 0; plane < QK_PLANE_COUNT; ++plane) {
            ASSERT_EQ(harness::plane_of(got, plane), harness::plane_of(expected, plane))
                << what << ", plane " << plane;
        }
        ASSERT_TRUE(home->memory.intact()) << what;
    }

    void expect_move(Home *home, const Weight &from, const Weight &to) {
        const Planes source = pack(from, uint32_t(random_.next())), expected = pack(to);
        const qk::Weight a = place(home, kFirst, from.spec, &source, turn_);
        const qk::Weight b = place(home, kSecond, to.spec, nullptr, turn_ + 7);
        const qk::RepackArgs args = {a, b};
        for_each_kernel(home, home->backend.repack, args, &tally_, [&](const auto &kernel) {
            ASSERT_EQ(run(home, kernel, args, turn_), QK_OK);
            expect_planes(home, kSecond, to.spec, expected,
                          harness::title(from.spec) + " -> " + name(to.spec.layout));
        });
    }

    // Into the layout that the backend likes best, and from there to every other.
    void expect_packed_round_trip(Home *home, const Weight &from, const Weight &to) {
        const Planes source = pack(from), expected = pack(to);
        const qk::Weight a = place(home, kFirst, from.spec, &source, turn_);
        const qk::Weight packed = place_packed(home, kSecond, from.spec, turn_ + 3);
        const qk::RepackArgs there = {a, packed};
        for_each_kernel(home, home->backend.repack, there, &tally_, [&](const auto &kernel) {
            ASSERT_EQ(run(home, kernel, there, turn_), QK_OK);
            const qk::Weight b = place(home, kThird, to.spec, nullptr, turn_ + 9);
            const qk::RepackArgs back = {packed, b};
            for_each_kernel(home, home->backend.repack, back, &tally_, [&](const auto &other) {
                if (&other != &kernel) return;  // packed bytes: tests/kernel/cpu_repack.cpp
                ASSERT_EQ(run(home, other, back, turn_), QK_OK);
                expect_planes(home, kThird, to.spec, expected,
                              harness::title(from.spec) + " -> packed -> " + name(to.spec.layout));
            });
        });
    }

    void run_pair(Spec spec, Layout from_layout, Layout to_layout) {
        if (harness::thinned(++turn_)) return;
        spec.layout = from_layout;
        const Weight from = random_weight(spec, Data::wild, &random_);
        Weight to = from;
        to.spec.layout = to_layout;
        // A weight without zeros may move into planes that have them: every zero is 8.
        if (spec.format == Format::u4 && !spec.zeros && turn_ % 7 == 0) {
            to.spec.zeros = true;
            to.zeros.assign(to.scales.size(), 8);
        }
        for (const auto &home : homes_) {
            expect_move(home.get(), from, to);
            if (has_packed(*home, spec.format) && to.spec.zeros == from.spec.zeros) {
                expect_packed_round_trip(home.get(), from, to);
            }
        }
    }
};

bool may_be_flat(Layout layout) { return layout == Layout::row || layout == Layout::row_high; }

void small_scales(Spec *spec) {
    using reference::Global;
    constexpr Global kinds[] = {Global::none, Global::one, Global::one_divides};
    spec->nested = false;
    spec->scale_format = spec->k % 4 == 0 ? Format::e8m0 : Format::e4m3;
    spec->global = kinds[spec->k % 3];
}

TEST_P(Repack, EveryPairOfLayouts) {
    const bool wide = reference::eight_bit(GetParam());
    for (const harness::Shape &shape : harness::shapes()) {
        for (const Layout from : kLayouts) {
            for (const Layout to : kLayouts) {
                if (wide && (from != Layout::row || to != Layout::row)) continue;
                Spec spec;
                spec.format = GetParam();
                spec.n = shape.n, spec.k = shape.k, spec.group_size = shape.group_size;
                spec.zeros = spec.format == Format::u4 && turn_ % 3 != 0;
                spec.nested = turn_ % 4 == 3;
                spec.scale_format = harness::kFloats[turn_ % 4 % 3];
                if (spec.format == Format::fp4_e2m1 && turn_ % 5 == 4) small_scales(&spec);
                run_pair(spec, from, to);
                if (!may_be_flat(from) || !may_be_flat(to)) continue;
                spec.flat = true;
                run_pair(spec, from, to);
            }
        }
        if (enough()) return;
    }
}

// Codes are moved, not decoded: one format of each kind of planes.
const Format kQuantized[] = {Format::u4, Format::fp4_e2m1, Format::lut8,
                             Format::s8, Format::lut4,     Format::e4m3};
INSTANTIATE_TEST_SUITE_P(Kernels, Repack, ::testing::ValuesIn(kQuantized),
                         ::testing::PrintToStringParamName());

}  // namespace
