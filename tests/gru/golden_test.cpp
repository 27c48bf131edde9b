// Golden integer runs of the seed flow on trained networks, bit for bit.
#include <gtest/gtest.h>
#include <jansson.h>

#include <memory>
#include <string>

#include "gru/image.hpp"
#include "gru/step.hpp"
#include "network.hpp"
#include "owned_model.hpp"
#include "reference/gru/gru_reference.hpp"

namespace {

using gru_test::OwnedModel;

using gru_test::data_folder;
using gru_test::read_i32;

int integer(json_t *object, const char *key) {
    return static_cast<int>(json_integer_value(json_object_get(object, key)));
}

std::vector<std::int32_t> integers(json_t *object, const char *key) {
    std::vector<std::int32_t> values;
    json_t *array = json_object_get(object, key);
    for (std::size_t i = 0; i < json_array_size(array); ++i)
        values.push_back(static_cast<std::int32_t>(json_integer_value(json_array_get(array, i))));
    return values;
}

void load_types(json_t *root, OwnedModel &owned) {
    // The vectors' names of the activations, in qk_gru_tensor's order; "" is a weight.
    const char *names[] = {"x", "h", "", "", "", "", "ih", "hh", "ui", "u", "ri", "r", "ni", "n"};
    const char *bits[] = {"x",  "h",  "w",  "r",  "b",  "b",  "ih",
                          "hh", "gi", "uo", "gi", "ro", "gi", "no"};
    for (int which = 0; which < QK_GRU_TENSOR_COUNT; ++which) {
        bool weight = names[which][0] == '\0';
        owned.model.quant[which].bits = integer(json_object_get(root, "bits"), bits[which]);
        owned.model.quant[which].is_symmetric = weight ? 1 : 0;
        if (weight) continue;
        owned.model.shift[which] = integer(json_object_get(root, "shift"), names[which]);
        owned.model.zero_point[which] = integer(json_object_get(root, "zp"), names[which]);
    }
}

void load_tables(json_t *root, OwnedModel &owned) {
    const char *names[] = {"update", "reset", "new"};
    qk_gru_table *tables[] = {&owned.model.update, &owned.model.reset, &owned.model.candidate};
    for (int gate = 0; gate < 3; ++gate) {
        json_t *lut = json_object_get(json_object_get(root, "lut"), names[gate]);
        owned.tables[gate] = {integers(lut, "threshold"), integers(lut, "q_b"),
                              integers(lut, "term_c")};
        *tables[gate] = {};
        tables[gate]->kind = QK_GRU_TABLE_KNOTS;
        tables[gate]->count = static_cast<std::int32_t>(owned.tables[gate].slope.size());
        tables[gate]->shift = integer(lut, "n_BX");
    }
}

std::unique_ptr<OwnedModel> load_golden(const std::string &folder, int &t, int &b) {
    json_error_t error;
    json_t *root = json_load_file((folder + "/vector.json").c_str(), 0, &error);
    if (root == nullptr) return nullptr;
    t = integer(root, "T"), b = integer(root, "B");
    auto result = std::make_unique<OwnedModel>(integer(root, "C"), integer(root, "H"));
    OwnedModel &owned = *result;
    load_types(root, owned);
    load_tables(root, owned);
    json_decref(root);
    owned.model.flags = QK_GRU_MODEL_CLAMP_TYPE;
    owned.w = read_i32(folder + "/qW.i32"), owned.r = read_i32(folder + "/qR.i32");
    owned.bw = read_i32(folder + "/qbw.i32"), owned.br = read_i32(folder + "/qbr.i32");
    auto shifts = [&](const char *name) {
        auto wide = read_i32(folder + name);
        return std::vector<std::int8_t>(wide.begin(), wide.end());
    };
    owned.w_shift = shifts("/shift_W.i32"), owned.r_shift = shifts("/shift_R.i32");
    owned.bw_shift = shifts("/shift_bw.i32"), owned.br_shift = shifts("/shift_br.i32");

    return result;
}

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
