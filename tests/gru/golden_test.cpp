// Golden integer runs of the seed flow on trained networks, bit for bit.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "gru/golden.hpp"
#include "gru/image.hpp"
#include "gru/step.hpp"
#include "network.hpp"
#include "owned_model.hpp"
#include "qk_gru.h"
#include "reference/gru/gru_reference.hpp"

namespace {

using gru_test::OwnedModel;

using gru_test::data_folder;
using gru_test::load_golden;
using gru_test::read_i32;

class Golden : public testing::TestWithParam<const char *> {};

TEST_P(Golden, EveryCodeOfEveryStepIsTheExpectedOne) {
    std::string folder = data_folder() + "/gru_vectors/" + GetParam();
    int t = 0, b = 0;
    std::unique_ptr<OwnedModel> owned = load_golden(folder, t, b);
    if (owned == nullptr) GTEST_SKIP() << "no golden vectors at " << folder;
    int c = owned->model.input_size, h = owned->model.hidden_size;
    const qk_gru_model &model = owned->view();
    std::vector<std::uint64_t> image(static_cast<std::size_t>(qk::gru::image_bytes(model)) / 8);
    ASSERT_STREQ(qk::gru::fault_text(qk::gru::image_write(model, image.data())), "no fault");
    qk_gru_model loaded;
    qk::gru::Cell cell;
    qk::gru::Fault fault = qk::gru::image_read(image.data(), image.size() * 8, &loaded, &cell);
    ASSERT_STREQ(qk::gru::fault_text(fault), "no fault");

    std::vector<std::int32_t> qx = read_i32(folder + "/qx.i32"),
                              ih = read_i32(folder + "/q_ih.i32");
    std::vector<std::int32_t> expected = read_i32(folder + "/qh_expected.i32");
    ASSERT_EQ(expected.size(), static_cast<std::size_t>(t) * b * h);
    std::vector<std::int64_t> x(qx.begin(), qx.end());
    std::vector<std::int64_t> state(static_cast<std::size_t>(b) * h, model.zero_point[QK_GRU_H]);
    reference::GruTrace trace =
        reference::run_gru(gru_test::reference_model(loaded), x, state, t, b);
    EXPECT_TRUE(std::equal(ih.begin(), ih.end(), trace.ih.begin(), trace.ih.end()));
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), trace.h.begin(), trace.h.end()));

    std::vector<std::int16_t> scratch(static_cast<std::size_t>(h));
    for (int sequence = 0; sequence < b; ++sequence) {
        std::vector<std::int16_t> old(h), next(h), codes(c);
        for (int j = 0; j < h; ++j) qk::gru::store_code(old.data(), cell.h_bytes, j, cell.h_zero);
        for (int step = 0; step < t; ++step) {
            for (int k = 0; k < c; ++k)
                qk::gru::store_code(codes.data(), cell.x_bytes, k,
                                    qx[(std::size_t(step) * b + sequence) * c + k]);
            qk::gru::step(cell, codes.data(), old.data(), next.data(), scratch.data(), nullptr);
            for (int j = 0; j < h; ++j)
                ASSERT_EQ(qk::gru::load_code(next.data(), cell.h_bytes, j),
                          expected[(std::size_t(step) * b + sequence) * h + j])
                    << "step " << step << " sequence " << sequence << " unit " << j;
            old.swap(next);
        }
    }
}

// What a microcontroller gets: tools/amalgamate's two files, which know nothing of the library.
TEST_P(Golden, TheTwoFilesForBoardsGiveEveryCode) {
    const std::string folder = data_folder() + "/gru_vectors/" + GetParam();
    int t = 0, b = 0;
    const std::unique_ptr<OwnedModel> owned = load_golden(folder, t, b);
    if (owned == nullptr) GTEST_SKIP() << "no golden vectors at " << folder;
    const qk_gru_model &model = owned->view();
    std::vector<std::uint64_t> image(static_cast<std::size_t>(qk::gru::image_bytes(model)) / 8);
    ASSERT_STREQ(qk::gru::fault_text(qk::gru::image_write(model, image.data())), "no fault");
    qk_gru_cell cell;
    qk_gru_shape shape;
    ASSERT_EQ(qk_gru_cell_load(&cell, image.data(), image.size() * 8), 0);
    qk_gru_cell_describe(&cell, &shape);
    ASSERT_EQ(shape.input_size, owned->model.input_size);
    const int c = shape.input_size, h = shape.hidden_size;

    const std::vector<std::int32_t> qx = read_i32(folder + "/qx.i32"),
                                    expected = read_i32(folder + "/qh_expected.i32");
    ASSERT_EQ(expected.size(), static_cast<std::size_t>(t) * b * h);
    std::vector<std::int16_t> scratch(static_cast<std::size_t>(shape.scratch_bytes) / 2 + 1);
    for (int sequence = 0; sequence < b; ++sequence) {
        std::vector<std::int16_t> old(h), next(h), codes(c);
        qk_gru_cell_start(&cell, old.data());
        for (int step = 0; step < t; ++step) {
            const std::size_t row = std::size_t(step) * b + sequence;
            for (int k = 0; k < c; ++k)
                qk::gru::store_code(codes.data(), shape.x_bytes, k, qx[row * c + k]);
            qk_gru_cell_step(&cell, codes.data(), old.data(), next.data(), scratch.data());
            for (int j = 0; j < h; ++j)
                ASSERT_EQ(qk::gru::load_code(next.data(), shape.h_bytes, j), expected[row * h + j])
                    << "step " << step << " sequence " << sequence << " unit " << j;
            old.swap(next);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Networks, Golden,
                         testing::Values("ulunas_enc3_H64_w8a8", "ulunas_enc3_H64_w8a16",
                                         "ulunas_enc3_H64_w16a16", "g2p_enc_H256_w8a16"));

// The seed's 8-bit parameters of a trained network, from its float weights and its calibration
// data: every shift, zero point, table entry and weight.
TEST(GruFreeze, FindsTheSeedFlowsParameters) {
    gru_test::Network network;
    int t = 0, b = 0;
    auto golden = load_golden(data_folder() + "/gru_vectors/ulunas_enc3_H64_w8a8", t, b);
    if (golden == nullptr ||
        !gru_test::load_ulunas("encoder_en_convs_3_pconv2_2_ta_gru", 1, network))
        GTEST_SKIP() << "no golden vectors or networks at " << data_folder();
    gru_test::Session session;
    qk_gru_model model;
    model.struct_size = sizeof(model);
    ASSERT_EQ(qk_gru_describe(session.frozen(network, {}), &model), QK_OK);
    for (int which = 0; which < QK_GRU_TENSOR_COUNT; ++which) {
        EXPECT_EQ(model.shift[which], golden->model.shift[which]) << which;
        EXPECT_EQ(model.zero_point[which], golden->model.zero_point[which]) << which;
    }
    const qk_gru_table *tables[] = {&model.update, &model.reset, &model.candidate};
    const qk_gru_table *golden_tables[] = {&golden->model.update, &golden->model.reset,
                                           &golden->model.candidate};
    for (int gate = 0; gate < 3; ++gate) {
        EXPECT_EQ(tables[gate]->shift, golden_tables[gate]->shift);
        for (int i = 0; i < 16; ++i) {
            EXPECT_EQ(tables[gate]->threshold[i], golden->tables[gate].threshold[i]);
            EXPECT_EQ(tables[gate]->slope[i], golden->tables[gate].slope[i]);
            EXPECT_EQ(tables[gate]->intercept[i], golden->tables[gate].intercept[i]);
        }
    }
    auto equal = [](const auto *codes, const auto &expected) {
        return std::equal(expected.begin(), expected.end(), codes);
    };
    EXPECT_TRUE(equal(static_cast<const std::int8_t *>(model.w), golden->w));
    EXPECT_TRUE(equal(static_cast<const std::int8_t *>(model.r), golden->r));
    EXPECT_TRUE(equal(model.bw, golden->bw));
    EXPECT_TRUE(equal(model.br, golden->br));
    EXPECT_TRUE(equal(model.w_shift, golden->w_shift));
    EXPECT_TRUE(equal(model.br_shift, golden->br_shift));
}

}  // namespace
