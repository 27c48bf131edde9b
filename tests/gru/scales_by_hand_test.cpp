// Scales that can be counted by hand: of gates, of a candidate that stays near 0, with headroom.
#include <gtest/gtest.h>

#include <vector>

#include "qk.h"

namespace {

constexpr int32_t kHidden = 2;

// A GRU of one input: every weight of a gate (u, r, n) is that gate's number.
struct ByHand {
    qk_context *context = nullptr;
    qk_gru *gru = nullptr;

    ByHand(qk_gru_preset preset, uint32_t flags, const std::vector<float> &gates) {
        EXPECT_EQ(qk_context_create(nullptr, &context), QK_OK);
        qk_gru_config config = QK_GRU_CONFIG_INIT;
        config.preset = preset;
        config.flags = flags;
        config.input_size = 1;
        config.hidden_size = kHidden;
        config.gate_order = QK_GRU_ORDER_ZRN;
        std::vector<float> w, r(3 * kHidden * kHidden, 0.0f);
        for (const float gate : gates) w.insert(w.end(), kHidden, gate);
        EXPECT_EQ(qk_gru_create(context, &config, w.data(), r.data(), nullptr, nullptr, &gru),
                  QK_OK);
    }
    ~ByHand() {
        qk_gru_destroy(gru);
        qk_context_destroy(context);
    }
    void freeze(std::vector<float> x) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.rank = 2, desc.shape[0] = int64_t(x.size()), desc.shape[1] = 1;
        void *plane = x.data();
        qk_tensor *tensor = nullptr;
        ASSERT_EQ(qk_tensor_wrap(context, &desc, &plane, 1, &tensor), QK_OK);
        EXPECT_EQ(qk_gru_calibrate(context, gru, tensor, nullptr), QK_OK);
        qk_tensor_destroy(tensor);
        EXPECT_EQ(qk_gru_freeze(context, gru), QK_OK) << qk_context_error(context);
    }
    int32_t shift(qk_gru_tensor which, int32_t channel = 0) { return scale(which, channel).first; }
    std::pair<int32_t, int32_t> scale(qk_gru_tensor which, int32_t channel = 0) {
        int32_t shift = 0, zero = 0;
        EXPECT_EQ(qk_gru_scale(gru, which, channel, &shift, &zero), QK_OK);
        return {shift, zero};
    }
};

// 1, 1/2 and 1/4 in 8 bits: 2^-7, 2^-8 and 2^-9 a code.
TEST(GruScalesByHand, EveryGateHasItsOwn) {
    for (const int32_t granularity : {0, 1, 2}) {
        ByHand hand(QK_GRU_W8A8, 0, {1.0f, 0.5f, 0.25f});
        const qk_gru_quant quant = {8, 0, 1, granularity};
        ASSERT_EQ(qk_gru_set_quant(hand.gru, QK_GRU_W, &quant), QK_OK);
        hand.freeze({-1, 1});
        for (int32_t row = 0; row < 3 * kHidden; ++row) {
            const int32_t expected = granularity == 0 ? 7 : 7 + row / kHidden;
            EXPECT_EQ(hand.shift(QK_GRU_W, row), expected) << granularity << ", row " << row;
        }
        int32_t shift = 0, zero = 0;
        EXPECT_EQ(qk_gru_scale(hand.gru, QK_GRU_W, 3 * kHidden, &shift, &zero), QK_ERROR_ARGUMENT);
        EXPECT_EQ(qk_gru_scale(hand.gru, QK_GRU_X, 1, &shift, &zero), QK_ERROR_ARGUMENT);
    }
}

// A candidate that calibration saw near 0 may still come up to 1/4: 2^-9 a code, not finer.
TEST(GruScalesByHand, ACandidateNearZeroKeepsAQuarter) {
    ByHand hand(QK_GRU_W8A8, 0, {1.0f, 1.0f, 1e-4f});
    hand.freeze({-1, 1});
    EXPECT_EQ(hand.shift(QK_GRU_NEW_OUT), 9);
}

// x in [-1, 1] in 16 bits: 2^-15 a code, and with twice the range 2^-14; the zero stays at 0.
TEST(GruScalesByHand, HeadroomIsTheSameOnBothSides) {
    ByHand tight(QK_GRU_W8A16, 0, {1.0f, 1.0f, 1.0f});
    tight.freeze({-1, 1});
    EXPECT_EQ(tight.scale(QK_GRU_X), std::make_pair(15, 0));
    ByHand wide(QK_GRU_W8A16, QK_GRU_HEADROOM, {1.0f, 1.0f, 1.0f});
    wide.freeze({-1, 1});
    EXPECT_EQ(wide.scale(QK_GRU_X), std::make_pair(14, 0));
}

}  // namespace
