// Random models over many shapes and widths: the library's step against the naive reference,
// code by code, for every gate and state.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "gru/image.hpp"
#include "gru/step.hpp"
#include "owned_model.hpp"
#include "reference/gru/gru_reference.hpp"

namespace {

using gru_test::OwnedModel;
using gru_test::RandomOptions;
using qk::gru::Fault;

struct Counts {
    std::int64_t steps = 0, models = 0, refused = 0, narrow = 0, mixed = 0, wide_dot = 0,
                 half_wide = 0;
};

// A unit whose sums are in 32 bits and whose products are in 64, as a GPU computes it.
int mixed_unit(const qk::gru::Cell &cell, int unit, const void *x, const void *view, int h_old) {
    const int c = cell.input_size, h = cell.hidden_size;
    std::int32_t ih_sum[3], hh_sum[3], ih[3], hh[3];
    qk::gru::dot_three(cell.w_bytes, cell.x_bytes, cell.w, unit, std::int64_t{h} * c, x, c, ih_sum);
    qk::gru::dot_three(cell.r_bytes, cell.view_bytes, cell.r, unit, std::int64_t{h} * h, view, h,
                       hh_sum);
    for (int gate = 0; gate < 3; ++gate) {
        ih[gate] =
            qk::gru::ih_code<std::int32_t>(cell, gate * h + unit, ih_sum[gate]) - cell.ih_zero;
        hh[gate] =
            qk::gru::hh_code<std::int32_t>(cell, gate * h + unit, hh_sum[gate]) - cell.hh_zero;
    }
    qk::gru::CellRules<std::int32_t, std::int64_t> rules = {cell};
    return cell.h_zero + qk::gru::gates_to_h(rules, qk::gru::input_sums(rules, ih), hh,
                                             h_old - cell.h_zero, nullptr);
}

void run_one(std::mt19937_64 &random, const RandomOptions &options, int steps, Counts &counts) {
    OwnedModel owned(options.c, options.h);
    gru_test::randomize(owned, random, options);
    const qk_gru_model &model = owned.view();
    ASSERT_EQ(qk::gru::check_model(model), Fault::kNone);
    std::vector<std::int64_t> ih_offset(3 * options.h), hh_offset(3 * options.h);
    qk::gru::Cell cell;
    Fault fault = qk::gru::compute_offsets(model, ih_offset.data(), hh_offset.data());
    if (fault == Fault::kNone)
        fault = qk::gru::derive(model, ih_offset.data(), hh_offset.data(), &cell);
    if (fault != Fault::kNone) {
        ASSERT_TRUE(fault == Fault::kShift || fault == Fault::kOverflow);
        ++counts.refused;
        return;
    }
    ++counts.models;
    if (cell.cell_is_32) ++counts.narrow;
    if (!cell.dot_is_32) ++counts.wide_dot;
    bool is_mixed = cell.sums_is_32 && !cell.cell_is_32;
    if (is_mixed) ++counts.mixed;
    if (qk::gru::is_half_wide(cell)) ++counts.half_wide;

    auto x = gru_test::random_codes(model.quant[QK_GRU_X], std::int64_t{steps} * options.c, random,
                                    options.extreme);
    auto state = gru_test::random_codes(model.quant[QK_GRU_H], options.h, random, options.extreme);
    std::vector<std::int16_t> old(options.h), next(options.h), codes(options.c), scratch(options.h);
    for (int j = 0; j < options.h; ++j)
        qk::gru::store_code(old.data(), cell.h_bytes, j, static_cast<std::int32_t>(state[j]));
    reference::GruTrace trace =
        reference::run_gru(gru_test::reference_model(model), x, state, steps, 1);
    std::vector<qk::gru::Gates> gates(options.h);
    for (int step = 0; step < steps; ++step) {
        for (int k = 0; k < options.c; ++k)
            qk::gru::store_code(codes.data(), cell.x_bytes, k,
                                static_cast<std::int32_t>(x[std::size_t(step) * options.c + k]));
        qk::gru::step(cell, codes.data(), old.data(), next.data(), scratch.data(), gates.data());
        // Without gates to show, cells that allow it take faster ways.
        std::vector<std::int16_t> plain(next), plain_scratch(options.h);
        if (qk::gru::is_small(cell) || qk::gru::is_half_wide(cell))
            qk::gru::step(cell, codes.data(), old.data(), plain.data(), plain_scratch.data(),
                          nullptr);
        const void *view = cell.view_shift != 0 ? scratch.data() : old.data();
        for (int j = 0; j < options.h; ++j) {
            const std::int64_t *expected = trace.gates.data() + std::size_t(step) * 4 * options.h;
            ASSERT_EQ(gates[j].hh_n, expected[3 * options.h + j]);
            ASSERT_EQ(gates[j].u, expected[j]);
            ASSERT_EQ(gates[j].r, expected[options.h + j]);
            ASSERT_EQ(gates[j].n, expected[2 * options.h + j]);
            ASSERT_EQ(qk::gru::load_code(next.data(), cell.h_bytes, j),
                      trace.h[std::size_t(step) * options.h + j]);
            ASSERT_EQ(qk::gru::load_code(plain.data(), cell.h_bytes, j),
                      trace.h[std::size_t(step) * options.h + j]);
            if (!is_mixed) continue;
            ASSERT_EQ(mixed_unit(cell, j, codes.data(), view,
                                 qk::gru::load_code(old.data(), cell.h_bytes, j)),
                      trace.h[std::size_t(step) * options.h + j]);
        }
        old.swap(next);
        ++counts.steps;
    }
}

// QK_GRU_RANDOM_STEPS in the environment asks for more, as before a release; QK_GRU_RANDOM_SEED for
// others, so that such a run can be made in parts.
std::int64_t steps_wanted(std::int64_t usual) {
    const char *set = std::getenv("QK_GRU_RANDOM_STEPS");
#if defined(QK_SANITIZED) || defined(QK_EMULATED)
    usual /= 10;  // a step takes ten times as long
#endif
    return set != nullptr ? std::atoll(set) : usual;
}

void run_many(bool extreme, std::int64_t wanted, std::uint64_t seed) {
    const char *part = std::getenv("QK_GRU_RANDOM_SEED");
    std::mt19937_64 random(seed + (part != nullptr ? 1000 * std::strtoull(part, nullptr, 10) : 0));
    Counts counts;
    while (counts.steps < wanted && !testing::Test::HasFatalFailure()) {
        RandomOptions options;
        options.extreme = extreme;
        options.c = 1 + static_cast<int>(random() % 12);
        options.h = 1 + static_cast<int>(random() % 12);
        run_one(random, options, 64, counts);
    }
    // The draw must reach every path: all in 32 bits, dots in 64 bits, and refused models.
    EXPECT_GT(counts.narrow, 0);
    EXPECT_GT(counts.mixed, 0);
    EXPECT_GT(counts.models, counts.narrow);
    EXPECT_LT(counts.refused, counts.models);
    std::printf(
        "%lld steps, %lld models (%lld all 32-bit, %lld but for products, "
        "%lld with 64-bit dots), %lld refused\n",
        static_cast<long long>(counts.steps), static_cast<long long>(counts.models),
        static_cast<long long>(counts.narrow), static_cast<long long>(counts.mixed),
        static_cast<long long>(counts.wide_dot), static_cast<long long>(counts.refused));
}

TEST(GruRandom, StepsAtTheEndsOfEveryType) { run_many(true, steps_wanted(100000), 1); }

TEST(GruRandom, StepsOverManyShapesAndWidths) { run_many(false, steps_wanted(900000), 2); }

TEST(GruRandom, ModelsLikeW8H16) {
    std::mt19937_64 random(4);
    Counts counts;
    for (int model = 0; model < 400 && !testing::Test::HasFatalFailure(); ++model) {
        RandomOptions options{1 + int(random() % 12), 1 + int(random() % 12), model % 2 == 1};
        options.half_wide = true;
        run_one(random, options, 16, counts);
    }
    EXPECT_GT(counts.half_wide, counts.models / 4);
}

TEST(GruRandom, LargerShapes) {
    std::mt19937_64 random(3);
    Counts counts;
    for (int c : {1, 17, 64, 129})
        for (int h : {1, 31, 64, 100})
            for (int repeat = 0; repeat < 4; ++repeat)
                run_one(random, RandomOptions{c, h, repeat % 2 == 1}, 8, counts);
    EXPECT_GT(counts.models, 8);
}

}  // namespace
