// Rules 1 to 25 of docs/gru.md, one named test each; expected numbers are worked by hand.
#include <gtest/gtest.h>

#include <climits>
#include <cmath>

#include "gru/calibrate/build.hpp"
#include "gru/image.hpp"
#include "gru/split.hpp"
#include "gru/step.hpp"
#include "network.hpp"
#include "owned_model.hpp"
#include "reference/gru/gru_reference.hpp"

namespace {

namespace g = qk::gru;
using gru_test::OwnedModel;

// A gate table that hands its input code through: what a gate sees becomes visible.
void identity_table(OwnedModel &m, int gate, int in) {
    qk_gru_table *tables[] = {&m.model.update, &m.model.reset, &m.model.candidate};
    int bits = m.model.quant[in].bits, low = -(1 << (bits - 1));
    *tables[gate] = {};
    tables[gate]->kind = QK_GRU_TABLE_UNIFORM;
    tables[gate]->count = 1;
    tables[gate]->width_log2 = bits < 15 ? bits : 15;
    tables[gate]->shift = 14;
    tables[gate]->first = low - m.model.zero_point[in];
    m.tables[gate].slope = {1 << 14};
    m.tables[gate].intercept = {low * (1 << 14)};
}

// One input, one unit, 8 bits everywhere, every scale 1 but where a test says otherwise; gates
// give their clamped input codes, signed.
struct Tiny : OwnedModel {
    Tiny() : OwnedModel(1, 1) {
        model.flags = QK_GRU_MODEL_CLAMP_TYPE;
        for (auto *shifts : {&w_shift, &r_shift, &bw_shift, &br_shift}) shifts->assign(3, 0);
        model.quant[QK_GRU_UPDATE_OUT].is_unsigned = model.quant[QK_GRU_RESET_OUT].is_unsigned = 0;
        identities();
    }
    void identities() {
        identity_table(*this, 0, QK_GRU_UPDATE_IN);
        identity_table(*this, 1, QK_GRU_RESET_IN);
        identity_table(*this, 2, QK_GRU_NEW_IN);
    }
    g::Fault derive() {
        const qk_gru_model &m = view();
        g::Fault fault = g::check_model(m);
        if (fault == g::Fault::kNone) fault = g::compute_offsets(m, ih_offset, hh_offset);
        if (fault == g::Fault::kNone) fault = g::derive(m, ih_offset, hh_offset, &cell);
        return fault;
    }
    // One step from code h; returns the new code and leaves the gates.
    int step(int x, int h) {
        EXPECT_STREQ(g::fault_text(derive()), "no fault");
        std::int16_t xs, hs, next, scratch;
        g::store_code(&xs, cell.x_bytes, 0, x);
        g::store_code(&hs, cell.h_bytes, 0, h);
        g::step(cell, &xs, &hs, &next, &scratch, &gates);
        return g::load_code(&next, cell.h_bytes, 0);
    }
    std::int64_t ih_offset[3], hh_offset[3];
    g::Cell cell;
    g::Gates gates;
};

const qk_gru_quant kInt8 = {8, 0, 0, 0}, kUint8 = {8, 1, 0, 0}, kSymmetric8 = {8, 0, 1, 0};

TEST(GruRule, 01_RealZeroIsTheZeroPointAndTheZeroPointIsACode) {
    for (int bits : {4, 8, 12, 16})
        for (int is_unsigned : {0, 1})
            for (double low : {-1e6, -7.3, -1.0, -0.4, -1e-4, 0.0})
                for (double high : {0.0, 1e-3, 0.7, 1.0, 20.0, 3e5}) {
                    qk_gru_quant quant = {bits, is_unsigned, 0, 0};
                    g::Exponent e = g::exponent_of_range(quant, low, high);
                    g::CodeRange codes = g::code_range(quant);
                    EXPECT_EQ(g::quantize(0.0, quant, e), e.zero);
                    EXPECT_GE(e.zero, codes.min);
                    EXPECT_LE(e.zero, codes.max);
                }
    g::Exponent e = g::exponent_of_range(kInt8, -1.0, 3.0);  // 256 / 4 = 2^6 steps a unit
    EXPECT_EQ(e.shift, 6);
    EXPECT_EQ(e.zero, -128 + 64);
}

TEST(GruRule, 02_RoundingIsHalfToEvenAsRint) {
    for (int n = -4; n <= 20; ++n)
        for (int x = -70000; x <= 70000; ++x) {
            ASSERT_EQ(qk::rounding_shift(std::int64_t{x}, n), std::rint(std::ldexp(x, -n)));
            if (n >= 0 && n < 31) {
                ASSERT_EQ(qk::rounding_shift(std::int32_t{x}, n), std::rint(std::ldexp(x, -n)));
            }
        }
    std::mt19937_64 random(7);
    for (int i = 0; i < 100000; ++i) {
        std::int64_t x = static_cast<std::int64_t>(random()) >> (2 + random() % 50);
        int n = static_cast<int>(random() % 63);
        ASSERT_EQ(qk::rounding_shift(x, n), reference::divide_by_power(x, n)) << x << " " << n;
    }
}

TEST(GruRule, 03_ShiftsBeyondTheProofAreRefusedAndFarOnesGiveZero) {
    std::int64_t big = (std::int64_t{1} << 62) - 1;
    EXPECT_EQ(qk::rounding_shift(big, 63), 0);
    EXPECT_EQ(qk::rounding_shift(-big, 200), 0);
    EXPECT_EQ(qk::rounding_shift(std::int64_t{-5}, -31), -5 * (std::int64_t{1} << 31));
    Tiny tiny;
    tiny.model.shift[QK_GRU_IH] = 31;  // w x is shifted left by 31, then right by 31
    tiny.model.shift[QK_GRU_UPDATE_IN] = tiny.model.shift[QK_GRU_RESET_IN] = 31;
    tiny.model.shift[QK_GRU_NEW_IN] = 31;
    EXPECT_EQ(tiny.derive(), g::Fault::kNone);
    tiny.model.shift[QK_GRU_IH] = 32;
    EXPECT_EQ(tiny.derive(), g::Fault::kShift);
    Tiny right;
    right.w_shift[1] = right.bw_shift[1] = 62;
    EXPECT_EQ(right.derive(), g::Fault::kNone);
    right.w_shift[1] = right.bw_shift[1] = 63;
    EXPECT_EQ(right.derive(), g::Fault::kShift);
    Tiny overflow;  // 2^31 * 2^31 is 2^62: one too many
    overflow.model.quant[QK_GRU_BW].bits = 32;
    overflow.bw = {INT_MIN, 0, 0};
    overflow.bw_shift[0] = -31;
    EXPECT_EQ(overflow.derive(), g::Fault::kOverflow);
    overflow.bw = {INT_MIN / 4, 0, 0};
    EXPECT_EQ(overflow.derive(), g::Fault::kNone);
}

// All-extreme rows of 4096: the sum must be exact whatever its width.
void extreme_rows(int weight_bits, int x_bits, bool fits_32) {
    OwnedModel m(4096, 1);
    gru_test::RandomOptions options;
    m.model.quant[QK_GRU_W].bits = weight_bits;
    m.model.quant[QK_GRU_X].bits = x_bits;
    m.model.quant[QK_GRU_IH].bits = 16;
    m.w.assign(3 * 4096, -(1 << (weight_bits - 1)));
    m.w_shift.assign(3, static_cast<std::int8_t>(weight_bits + x_bits - 4));
    for (int gate = 0; gate < 3; ++gate)
        identity_table(m, gate,
                       gate == 0   ? QK_GRU_UPDATE_IN
                       : gate == 1 ? QK_GRU_RESET_IN
                                   : QK_GRU_NEW_IN);
    m.model.update.first = 0;  // identity of an unsigned gate starts at 0
    std::vector<std::int64_t> ih(3), hh(3), x(4096, -(1 << (x_bits - 1))), state(1);
    g::Cell cell;
    const qk_gru_model &model = m.view();
    ASSERT_EQ(g::compute_offsets(model, ih.data(), hh.data()), g::Fault::kNone);
    ASSERT_EQ(g::derive(model, ih.data(), hh.data(), &cell), g::Fault::kNone);
    EXPECT_EQ(cell.dot_is_32 != 0, fits_32);
    std::vector<std::int16_t> codes(4096);
    for (int k = 0; k < 4096; ++k)
        g::store_code(codes.data(), cell.x_bytes, k, static_cast<int>(x[k]));
    std::int64_t sums[3];
    g::dot_three(cell.w_bytes, cell.x_bytes, cell.w, 0, 4096, codes.data(), 4096, sums);
    std::int64_t product = std::int64_t{1} << (weight_bits + x_bits - 2);
    for (std::int64_t sum : sums) EXPECT_EQ(sum, 4096 * product);
    std::int16_t h = 0, next = 0;
    g::Gates gates;
    g::step(cell, codes.data(), &h, &next, nullptr, &gates);
    reference::GruTrace trace = reference::run_gru(model, x, state, 1, 1);
    EXPECT_EQ(gates.n, trace.gates[2]);
    EXPECT_EQ(g::load_code(&next, cell.h_bytes, 0), trace.h[0]);
}

TEST(GruRule, 04_AccumulatorsAreExactAtK4096) {
    extreme_rows(8, 8, true);
    extreme_rows(8, 16, false);
    extreme_rows(16, 16, false);
}

TEST(GruRule, 05_NoFloatProductsSumsBeyond2To24AreExact) {
    std::vector<std::int8_t> row(1100, 127), x(1100, 127);
    std::int32_t sums[3];
    g::dot_three(row.data(), 0, x.data(), 1100, sums);
    EXPECT_EQ(sums[0], 17741900);
    float rounded = 0.0f;
    for (int k = 0; k < 1100; ++k) rounded += 127.0f * 127.0f;
    EXPECT_NE(static_cast<std::int32_t>(rounded), sums[0]);  // what f32 would have given
}

TEST(GruRule, 06_SixteenBitOperandsOnEightBitUnits) {
    for (int x = -32768; x <= 32767; ++x) {
        int high = g::split_high(x), low = g::split_low(x);
        ASSERT_TRUE(high >= -128 && high <= 127 && low >= -128 && low <= 127);
        for (int w : {-128, -1, 0, 3, 127})
            ASSERT_EQ(g::split_join(std::int64_t{w} * high, std::int64_t{w} * low, w),
                      std::int64_t{w} * x);
    }
}

TEST(GruRule, 07_ZeroPointAndBiasJoinTheSumBeforeOneShift) {
    Tiny tiny;
    tiny.model.zero_point[QK_GRU_X] = 3;
    tiny.w = {0, 0, 5};
    tiny.bw = {0, 0, 1};
    tiny.w_shift[2] = 2;   // product in units of 1/4
    tiny.bw_shift[2] = 3;  // bias 1/8 is half a unit: rounds to even 0
    // (5*10 - 5*3 + 0) / 4 = 8.75 -> 9; a bias added after a shift, or three shifts, would differ.
    tiny.step(10, 0);
    EXPECT_EQ(tiny.gates.n, 9);
    tiny.bw = {0, 0, 3};  // 3/8 is 1.5 units: rounds to even 2; (35 + 2) / 4 = 9.25 -> 9
    tiny.step(10, 0);
    EXPECT_EQ(tiny.gates.n, 9);
    tiny.bw = {0, 0, 7};  // 3.5 units: rounds to even 4; 39 / 4 = 9.75 -> 10
    tiny.step(10, 0);
    EXPECT_EQ(tiny.gates.n, 10);
}

TEST(GruRule, 08_LinearOutputsSaturateBeforeTheGates) {
    Tiny tiny;
    tiny.w = {2, 0, 0};
    tiny.r = {-1, 0, 0};
    tiny.step(100, 100);  // ih 200 -> 127, hh -100: 27, not 100
    EXPECT_EQ(tiny.gates.u, 27);
}

TEST(GruRule, 09_GateSumsAreClampedOnceAfterAllIsAdded) {
    Tiny tiny;
    tiny.w = {1, 1, 1};
    tiny.r = {1, 0, 1};
    tiny.model.zero_point[QK_GRU_UPDATE_IN] = -100;
    tiny.identities();
    tiny.step(100, 100);  // 100 + 100 - 100: clamping 200 first would give 27
    EXPECT_EQ(tiny.gates.u, 100);
    // n: r = 100 (clamped reset) times hh = 100 is 10000, far beyond 8 bits, then one clamp.
    EXPECT_EQ(tiny.gates.r, 100);
    EXPECT_EQ(tiny.gates.n, 127);
}

TEST(GruRule, 10_EachAddendIsRoundedByItself) {
    Tiny tiny;
    tiny.w = {1, 0, 0};
    tiny.r = {1, 0, 0};
    tiny.model.shift[QK_GRU_IH] = tiny.model.shift[QK_GRU_HH] = 1;
    tiny.w_shift[0] = tiny.r_shift[0] = 1;
    tiny.step(1, 1);  // 0.5 -> 0 twice; their sum would round to 1
    EXPECT_EQ(tiny.gates.u, 0);
    tiny.step(3, 3);  // 1.5 -> 2 twice; their sum would be 3
    EXPECT_EQ(tiny.gates.u, 4);
}

TEST(GruRule, 11_NewGateIsAlignedToHUnclampedAndMayShiftLeft) {
    Tiny tiny;  // u = 0, scale of u is 1: h = one_minus_u * n_aligned = n * 2^3, clamped only as h
    tiny.model.shift[QK_GRU_H] = 3;
    tiny.model.zero_point[QK_GRU_H] = -10;
    tiny.w = {0, 0, 1};
    EXPECT_EQ(tiny.step(9, -10), 72 - 10);
    EXPECT_EQ(tiny.step(100, -10), 127);
    tiny.model.shift[QK_GRU_UPDATE_OUT] = 2;  // 1 is 4: (4 * 800) / 4
    EXPECT_EQ(tiny.step(9, -10), 72 - 10);
}

TEST(GruRule, 12_OneMinusUUsesTheZeroPointOnce) {
    Tiny tiny;
    tiny.model.shift[QK_GRU_UPDATE_OUT] = 8;
    tiny.model.zero_point[QK_GRU_UPDATE_OUT] = -128;
    tiny.w = {1, 0, 1};
    tiny.model.shift[QK_GRU_NEW_IN] = 0;
    // u code 0 is (0+128)/256 = 1/2, and so is 1 - u: (128*h + 128*n)/256 with h 60, n 0.
    EXPECT_EQ(tiny.step(0, 60), 30);
    EXPECT_EQ(tiny.cell.u_one, 128);
    // u code -128 is 0: everything is replaced by n (x = -128 drives both).
    EXPECT_EQ(tiny.step(-128, 60), -128);
}

TEST(GruRule, 13_GatesStayBetweenZeroAndOne) {
    for (bool compatible : {false, true}) {
        Tiny tiny;
        tiny.model.flags = compatible ? QK_GRU_MODEL_CLAMP_TYPE : 0;
        for (int out : {QK_GRU_UPDATE_OUT, QK_GRU_RESET_OUT}) {
            tiny.model.shift[out] = 6;  // 1 is 64 of 127 codes
            tiny.model.zero_point[out] = 10;
        }
        tiny.model.shift[QK_GRU_NEW_OUT] = 6;
        tiny.w = {1, 1, 1};
        tiny.step(127, 0);
        EXPECT_EQ(tiny.gates.u, compatible ? 127 : 74);
        EXPECT_EQ(tiny.gates.r, compatible ? 127 : 74);
        EXPECT_EQ(tiny.gates.n, compatible ? 127 : 64);
        tiny.step(-128, 0);
        EXPECT_EQ(tiny.gates.u, compatible ? -128 : 10);
        EXPECT_EQ(tiny.gates.n, compatible ? -128 : -64);
    }
}

TEST(GruRule, 14_UnsignedGatesUseAllTheirBits) {
    qk_gru_quant quants[QK_GRU_TENSOR_COUNT];
    std::uint32_t flags = 0;
    ASSERT_TRUE(g::preset_quants(QK_GRU_W8A8, quants, &flags));
    gru_test::Network net;
    net.c = net.h = 1;
    net.w = {1, 1, 1}, net.r = {1, 1, 1}, net.bw = {-9, -9, 0}, net.br = {0, 0, 0};
    net.calib = {0.5f, -0.5f};
    gru_test::Session session;
    for (qk_gru_preset preset : {QK_GRU_W8A8, QK_GRU_W16A16}) {
        qk_gru *gru = session.frozen(net, {preset});
        int bits = preset == QK_GRU_W8A8 ? 8 : 16;
        for (int out : {QK_GRU_UPDATE_OUT, QK_GRU_RESET_OUT}) {
            std::int32_t shift = 0, zero = -1;
            ASSERT_EQ(qk_gru_scale(gru, out, 0, &shift, &zero), QK_OK);
            EXPECT_EQ(shift, bits);  // these gates stay below 0.001, and are not cut at 1/2
            EXPECT_EQ(zero, 0);
        }
    }
}

TEST(GruRule, 15_UpdatesBelowHalfAStepVanish) {
    Tiny tiny;  // u = 255/256, n = 0, h in steps of 1/128
    tiny.model.shift[QK_GRU_UPDATE_OUT] = 8;
    tiny.model.zero_point[QK_GRU_UPDATE_OUT] = -128;
    tiny.model.shift[QK_GRU_H] = 7;
    tiny.bw = {127, 0, 0};
    int h = 127;
    for (int t = 0; t < 2000; ++t) h = tiny.step(0, h);
    EXPECT_EQ(h, 127);
    tiny.model.quant[QK_GRU_H].bits = 16;  // the cure
    tiny.model.shift[QK_GRU_H] = 15;
    h = 32512;
    for (int t = 0; t < 2000; ++t) h = tiny.step(0, h);
    EXPECT_LT(h, 256);
}

TEST(GruRule, 16_TablesAreDataAndSurviveSavingUntouched) {
    std::mt19937_64 random(11);
    OwnedModel m(3, 4);
    gru_test::randomize(m, random, {3, 4, false});
    const qk_gru_model &model = m.view();
    std::vector<std::uint64_t> image(static_cast<std::size_t>(g::image_bytes(model)) / 8);
    ASSERT_EQ(g::image_write(model, image.data()), g::Fault::kNone);
    qk_gru_model loaded;
    g::Cell cell;
    ASSERT_EQ(g::image_read(image.data(), image.size() * 8, &loaded, &cell), g::Fault::kNone);
    const qk_gru_table *tables[] = {&loaded.update, &loaded.reset, &loaded.candidate};
    for (int gate = 0; gate < 3; ++gate)
        for (int i = 0; i < tables[gate]->count; ++i) {
            EXPECT_EQ(tables[gate]->slope[i], m.tables[gate].slope[i]);
            EXPECT_EQ(tables[gate]->intercept[i], m.tables[gate].intercept[i]);
        }
}

// Largest distance of a table from its curve over every input code, and whether it ever falls.
struct TableFacts {
    double error;
    bool monotone;
};

TableFacts inspect(g::Curve curve, int bits, int in_shift, int in_zero, bool uniform) {
    qk_gru_quant input = {bits, 0, 0, 0}, output = {bits, curve == g::Curve::kSigmoid, 0, 0};
    int out_shift = curve == g::Curve::kSigmoid ? bits : bits - 1;
    g::TableSpec spec = {curve, input, output, {in_shift, in_zero}, {out_shift, 0}};
    g::TableStorage storage;
    qk_gru_table table =
        uniform ? g::build_uniform(spec, &storage) : g::build_knots(spec, &storage);
    OwnedModel m(1, 1);
    m.model.quant[QK_GRU_NEW_IN] = input, m.model.quant[QK_GRU_NEW_OUT] = output;
    m.model.zero_point[QK_GRU_NEW_IN] = in_zero, m.model.shift[QK_GRU_NEW_OUT] = out_shift;
    m.model.flags = 0;
    TableFacts facts = {0.0, true};
    std::int64_t before = -100000;
    for (int code = -(1 << (bits - 1)); code < 1 << (bits - 1); ++code) {
        std::int64_t y = reference::gate_value(m.model, table, QK_GRU_NEW_IN, QK_GRU_NEW_OUT,
                                               curve == g::Curve::kTanh, code);
        double x = std::ldexp(code - in_zero, -in_shift);
        double exact = curve == g::Curve::kTanh ? std::tanh(x) : 1 / (1 + std::exp(-x));
        facts.error = std::max(facts.error, std::fabs(std::ldexp(double(y), -out_shift) - exact));
        facts.monotone = facts.monotone && y >= before;
        before = y;
    }
    return facts;
}

TEST(GruRule, 17_UniformTablesAreMonotoneAndWithinTheirBound) {
    for (g::Curve curve : {g::Curve::kSigmoid, g::Curve::kTanh})
        for (int bits : {8, 12, 16})
            for (int in_shift : {bits - 6, bits - 5, bits - 4, bits - 2})
                for (int in_zero : {0, 77, -(1 << (bits - 1))}) {
                    TableFacts facts = inspect(curve, bits, in_shift, in_zero, true);
                    int out_shift = curve == g::Curve::kSigmoid ? bits : bits - 1;
                    // The line's own error h^2/16 max|f''|, with h at most range/256 because 512
                    // segments are at least half used; the neglected third derivative; one step
                    // for rounding, the floored slope and the largest code.
                    double limit = curve == g::Curve::kTanh ? (out_shift + 3) * 0.34658
                                                            : (out_shift + 2) * 0.69315;
                    double h = 2 * limit / 256;
                    double bend = curve == g::Curve::kTanh ? 0.7699 : 0.0963;
                    double bound = 1.1 * h * h / 16 * bend + std::ldexp(1.0, -out_shift);
                    EXPECT_TRUE(facts.monotone);
                    EXPECT_LE(facts.error, bound) << bits << " " << in_shift << " " << in_zero;
                }
    // The compatible table is what it is: two orders of magnitude coarser.
    EXPECT_GT(inspect(g::Curve::kTanh, 16, 11, 0, false).error, 5e-3);
}

TEST(GruRule, 18_MovingRangesMoveAtEveryStepAndOnlyForXAndH) {
    gru_test::Network net;
    net.c = net.h = 1;
    net.w = {0, 0, 0}, net.r = {0, 0, 0}, net.bw = {0, 0, 0}, net.br = {0, 0, 0};
    // The largest x is 4, then 0.9*4 + 0.1*1 = 3.7, 3.43 ...: below 2 it gains a bit.
    net.calib = {4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    gru_test::Session session;
    std::int32_t shift = 0, zero = 0;
    double range = 4;
    for (std::size_t i = 1; i < net.calib.size(); ++i) range = 0.9 * range + 0.1;
    qk_gru *moving = session.frozen(net, {QK_GRU_W8A8, 0, QK_GRU_CALIBRATE_MOVING});
    ASSERT_EQ(qk_gru_scale(moving, QK_GRU_X, 0, &shift, &zero), QK_OK);
    ASSERT_LT(range, 2.0);
    EXPECT_EQ(shift, 7);
    qk_gru *global = session.frozen(net, {QK_GRU_W8A8});
    ASSERT_EQ(qk_gru_scale(global, QK_GRU_X, 0, &shift, &zero), QK_OK);
    EXPECT_EQ(shift, 6);
}

TEST(GruRule, 19_ThereAreTwoToTheBStepsNotOneLess) {
    EXPECT_EQ(g::exponent_of_range(kInt8, -1.0, 1.0).shift, 7);
    EXPECT_EQ(g::exponent_of_range(kSymmetric8, -1.0, 1.0).shift, 7);
    EXPECT_EQ(g::exponent_of_range(kUint8, 0.0, 1.0).shift, 8);
}

TEST(GruRule, 20_MinMaxFloorsTheExponentAndMseSearchesIt) {
    EXPECT_EQ(g::exponent_of_range(kInt8, 0.0, 1.01).shift, 7);  // 256/1.01 = 2^7.99
    EXPECT_EQ(g::floor_log2(0.99), -1);
    EXPECT_EQ(g::floor_log2(1.0), 0);
    // A hundred thousand values in +-1 and one at 8: clipping the one is cheaper.
    g::Histogram histogram = {};
    histogram.reach = 3;
    for (int i = 0; i < g::kBins; ++i)
        if (std::abs(i - g::kBins / 2) < g::kBins / 16) histogram.count[i] = 400;
    histogram.count[g::kBins - 1] = 1;
    g::Range range = {-1.0, 8.0, true};
    EXPECT_EQ(g::exponent_of_range(kInt8, -1.0, 8.0).shift, 4);
    g::Exponent best = g::exponent_of_histogram(kInt8, histogram, range);
    EXPECT_GT(best.shift, 4);
    // An empty histogram ties everywhere: the larger range stays.
    g::Histogram empty = {};
    EXPECT_EQ(g::exponent_of_histogram(kInt8, empty, range).shift, 3);
}

TEST(GruRule, 21_GateOrderIsStatedAndOnlyMovesRows) {
    gru_test::Network pytorch;
    pytorch.c = 2, pytorch.h = 1;
    pytorch.w = {1, 2, 3, 4, 5, 6};  // r, z, n
    pytorch.r = {0.1f, 0.2f, 0.3f}, pytorch.bw = {1, 2, 3}, pytorch.br = {4, 5, 6};
    pytorch.calib = {0.5f, -0.5f};
    gru_test::Session session;
    std::vector<char> first = session.save(session.frozen(pytorch, {}));
    qk_gru_config config = QK_GRU_CONFIG_INIT;
    config.input_size = 2, config.hidden_size = 1;
    config.gate_order = QK_GRU_ORDER_ZRN;
    const float w[] = {3, 4, 1, 2, 5, 6}, r[] = {0.2f, 0.1f, 0.3f}, bw[] = {2, 1, 3},
                br[] = {5, 4, 6};
    qk_gru *gru = nullptr;
    ASSERT_EQ(qk_gru_create(session.context, &config, w, r, bw, br, &gru), QK_OK);
    session.calibrate(gru, pytorch.calib, 1, 2);
    session.freeze(gru);
    EXPECT_EQ(first, session.save(gru));
    qk_gru_destroy(gru);
}

TEST(GruRule, 22_NoInitialStateMeansRealZero) {
    gru_test::Network net;
    net.c = net.h = 1;
    net.w = {0, 0, 1}, net.r = {0, 0, 0}, net.bw = {9, 9, 0}, net.br = {0, 0, 0};
    net.calib = {3, 3, 3, 3, -0.2f};
    gru_test::Session session;
    qk_gru *gru = session.frozen(net, {});
    std::int32_t shift = 0, zero = 0;
    ASSERT_EQ(qk_gru_scale(gru, QK_GRU_H, 0, &shift, &zero), QK_OK);
    ASSERT_NE(zero, 0);  // or the test would not tell 0 from the zero point
    qk_gru_state *state = session.state(gru, 1);
    float h = -1;
    ASSERT_EQ(qk_gru_state_read(session.context, state, &h), QK_OK);
    EXPECT_EQ(h, 0.0f);
    float set = 1.0f;
    ASSERT_EQ(qk_gru_state_write(session.context, state, &set), QK_OK);
    ASSERT_EQ(qk_gru_state_reset(session.context, state), QK_OK);
    ASSERT_EQ(qk_gru_state_read(session.context, state, &h), QK_OK);
    EXPECT_EQ(h, 0.0f);
}

TEST(GruRule, 23_ExponentsMayBeNegative) {
    g::Exponent e = g::exponent_of_range(kInt8, -1000.0, 1000.0);
    EXPECT_EQ(e.shift, -3);
    EXPECT_EQ(e.zero, -128 + 125);
    EXPECT_EQ(g::quantize(1000.0, kInt8, e), -3 + 125);
}

TEST(GruRule, 24_AZeroBiasChannelShiftsByMoreThan31) {
    gru_test::Network net;
    net.c = net.h = 1;
    net.w = {10000, 1, 1}, net.r = {0.5f, 0.5f, 0.5f}, net.bw = {0, 0, 1}, net.br = {0, 0, 0};
    net.calib = {10000.0f, -10000.0f};
    gru_test::Session session;
    qk_gru *gru = session.frozen(net, {});
    std::int32_t w = 0, bias = 0, x = 0, zero = 0;
    ASSERT_EQ(qk_gru_scale(gru, QK_GRU_W, 1, &w, &zero), QK_OK);  // row r of the model
    ASSERT_EQ(qk_gru_scale(gru, QK_GRU_BW, 1, &bias, &zero), QK_OK);
    ASSERT_EQ(qk_gru_scale(gru, QK_GRU_X, 0, &x, &zero), QK_OK);
    EXPECT_EQ(bias, 23);
    EXPECT_GT(bias - (w + x), 31);
    std::vector<float> h = session.run(gru, net.calib, 1);
    EXPECT_TRUE(std::isfinite(h[1]));
}

TEST(GruRule, 25_SplitsOfTimeAndBatchGiveTheSameBits) {
    gru_test::Network net;
    net.c = 5, net.h = 7;
    std::mt19937 random(3);
    std::uniform_real_distribution<float> uniform(-1, 1);
    auto fill = [&](std::vector<float> &v, int count) {
        v.resize(count);
        for (float &value : v) value = uniform(random);
    };
    fill(net.w, 3 * 7 * 5), fill(net.r, 3 * 7 * 7), fill(net.bw, 21), fill(net.br, 21);
    const int t = 600, b = 3;
    fill(net.calib, t * b * 5);
    net.calib_b = b;
    for (qk_gru_preset preset : {QK_GRU_W8A8, QK_GRU_W8H16, QK_GRU_W8A16, QK_GRU_W16A16}) {
        gru_test::Session one_thread(1), threads(4);
        qk_gru *gru = one_thread.frozen(net, {preset});
        std::vector<float> whole = one_thread.run(gru, net.calib, b);
        EXPECT_EQ(one_thread.run(gru, one_thread.state(gru, b), net.calib, b, 1), whole);
        EXPECT_EQ(one_thread.run(gru, one_thread.state(gru, b), net.calib, b, 37), whole);
        qk_gru *again = threads.frozen(net, {preset});
        EXPECT_EQ(threads.run(again, net.calib, b), whole);
        for (int sequence = 0; sequence < b; ++sequence) {
            std::vector<float> x, expected;
            for (int step = 0; step < t; ++step) {
                auto row = net.calib.begin() + (step * b + sequence) * 5;
                x.insert(x.end(), row, row + 5);
                auto h = whole.begin() + (step * b + sequence) * 7;
                expected.insert(expected.end(), h, h + 7);
            }
            EXPECT_EQ(one_thread.run(gru, x, 1), expected);
        }
    }
}

}  // namespace
