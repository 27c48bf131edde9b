// Rules 2 to 13 and 15 of docs/gru.md: the arithmetic, one named test each, worked by hand.
#include <gtest/gtest.h>

#include <climits>
#include <cmath>

#include "gru/calibrate/curve.hpp"
#include "gru/image.hpp"
#include "gru/split.hpp"
#include "gru/step.hpp"
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
    reference::GruTrace trace =
        reference::run_gru(gru_test::reference_model(model), x, state, 1, 1);
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

// The example of docs/gru.md, number by number.
TEST(GruDocs, WorkedExample) {
    Tiny tiny;
    tiny.model.flags = 0;
    const int shifts[] = {6, 7, 0, 0, 0, 0, 5, 6, 5, 8, 5, 8, 5, 7};
    const int zeros[] = {-28, 0, 0, 0, 0, 0, 10, -4, 3, 0, 0, 0, -6, 0};
    for (int which = 0; which < QK_GRU_TENSOR_COUNT; ++which) {
        tiny.model.shift[which] = shifts[which];
        tiny.model.zero_point[which] = zeros[which];
    }
    tiny.w = {96, -64, 80}, tiny.r = {50, -30, 100};
    tiny.bw = {25, -13, 77}, tiny.br = {-51, 20, 9};
    tiny.w_shift = {7, 7, 6}, tiny.r_shift = {7, 7, 7};
    tiny.bw_shift = {8, 8, 8}, tiny.br_shift = {9, 9, 9};
    tiny.model.quant[QK_GRU_UPDATE_OUT].is_unsigned = 1;
    tiny.model.quant[QK_GRU_RESET_OUT].is_unsigned = 1;
    qk_gru_table *tables[] = {&tiny.model.update, &tiny.model.reset, &tiny.model.candidate};
    for (int gate = 0; gate < 3; ++gate) {
        int in = QK_GRU_UPDATE_IN + 2 * gate, out = in + 1;
        g::TableStorage storage;
        *tables[gate] = g::build_uniform({gate == 2 ? g::Curve::kTanh : g::Curve::kSigmoid,
                                          tiny.model.quant[in],
                                          tiny.model.quant[out],
                                          {shifts[in], zeros[in]},
                                          {shifts[out], zeros[out]}},
                                         &storage);
        int count = tables[gate]->count;
        tiny.tables[gate].slope.assign(storage.slope, storage.slope + count);
        tiny.tables[gate].intercept.assign(storage.intercept, storage.intercept + count);
    }
    EXPECT_EQ(tiny.step(20, -40), 17);
    EXPECT_EQ(tiny.gates.u, 156);
    EXPECT_EQ(tiny.gates.r, 108);
    EXPECT_EQ(tiny.gates.n, 105);
    EXPECT_EQ(tiny.gates.hh_n, -18);
    EXPECT_EQ(g::ih_code<std::int64_t>(tiny.cell, 0, 1920), 31);
    EXPECT_EQ(g::ih_code<std::int64_t>(tiny.cell, 1, -1280), -4);
    EXPECT_EQ(g::ih_code<std::int64_t>(tiny.cell, 2, 1600), 50);
}

}  // namespace
