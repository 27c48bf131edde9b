// The GRU's plain rules (gru/rules.cpp prepares their shifts and tables on the host) against the
// cell's own: the same integers.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "cuda/gru/rules.cuh"
#include "object/gru.hpp"

namespace {

using qk::cuda::PlainCell;
using qk::cuda::PlainKind;
using qk::cuda::PlainRules;
using qk::cuda::TableForm;

class CudaGruRules : public ::testing::Test {
  protected:
    CudaGruRules() { EXPECT_EQ(qk_context_create(nullptr, &context_), QK_OK); }
    ~CudaGruRules() override { qk_context_destroy(context_); }

    // A frozen GRU of random weights.
    qk_gru *freeze(qk_gru_preset preset, unsigned seed) {
        constexpr int32_t kSize = 24, kRows = 3 * kSize, kSteps = 8;
        qk_gru_config config = QK_GRU_CONFIG_INIT;
        config.preset = preset;
        config.input_size = config.hidden_size = kSize;
        std::mt19937 random(seed);
        const auto fill = [&](int count, float size) {
            std::uniform_real_distribution<float> uniform(-size, size);
            std::vector<float> values(static_cast<size_t>(count));
            for (float &value : values) value = uniform(random);
            return values;
        };
        const float size = float(1 + seed % 4) * 0.2f;
        const auto w = fill(kRows * kSize, size), r = fill(kRows * kSize, size),
                   b = fill(kRows, 0.3f);
        auto x = fill(kSteps * kSize, 2);
        qk_gru *gru = nullptr;
        EXPECT_EQ(qk_gru_create(context_, &config, w.data(), r.data(), b.data(), b.data(), &gru),
                  QK_OK);
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.rank = 2;
        desc.shape[0] = kSteps;
        desc.shape[1] = kSize;
        void *plane = x.data();
        qk_tensor *tensor = nullptr;
        EXPECT_EQ(qk_tensor_wrap(context_, &desc, &plane, 1, &tensor), QK_OK);
        EXPECT_EQ(qk_gru_calibrate(context_, gru, tensor, nullptr), QK_OK);
        qk_tensor_destroy(tensor);
        EXPECT_EQ(qk_gru_freeze(context_, gru), QK_OK) << qk_context_error(context_);
        return gru;
    }

    qk_context *context_ = nullptr;
};

// Random linear outputs and states, their ends among them.
template <class Wide, class Tables>
void compare(const qk::gru::Cell &cell, TableForm form, unsigned seed) {
    const PlainCell plain = qk::cuda::plain_cell(cell, form);
    const Tables *tables = nullptr;
    static Tables filled;
    threadIdx = {0, 0, 0};
    blockDim = {1, 1, 1};
    filled.fill(cell);
    tables = &filled;
    const PlainRules<Wide, Tables> rules = {plain, *tables};
    const qk::gru::CellRules<int32_t, int64_t> expected = {cell};
    std::mt19937 random(seed);
    const auto code = [&](int32_t low, int32_t high) {
        const uint32_t kind = random() % 16;
        return kind == 0   ? low
               : kind == 1 ? high
                           : low + int32_t(random() % uint32_t(high - low + 1));
    };
    for (int i = 0; i < 20000; ++i) {
        int32_t ih[3], hh[3];
        for (int gate = 0; gate < 3; ++gate) {
            ih[gate] = code(cell.ih_min, cell.ih_max) - cell.ih_zero;
            hh[gate] = code(cell.hh_min, cell.hh_max) - cell.hh_zero;
        }
        const int32_t h = code(cell.h_min, cell.h_max) - cell.h_zero;
        const int32_t next = rules.next(rules.input(ih), hh, h);
        ASSERT_EQ(next,
                  qk::gru::gates_to_h(expected, qk::gru::input_sums(expected, ih), hh, h, nullptr))
            << ih[0] << " " << ih[1] << " " << ih[2] << " " << hh[0] << " " << hh[1] << " " << hh[2]
            << " " << h;
        ASSERT_EQ(rules.view(h), qk::gru::view_of_h(cell, h + cell.h_zero)) << h;
        const int32_t shift = code(1, 12), sum = code(-(1 << 22), 1 << 22);
        ASSERT_EQ(rules.hidden(sum + rules.offset(0, shift), shift),
                  qk::gru::linear_code(sum, shift, cell.hh_zero, cell.hh_min, cell.hh_max) -
                      cell.hh_zero);
    }
}

TEST_F(CudaGruRules, DirectTablesGiveTheCellsIntegers) {
    for (unsigned seed = 1; seed <= 6; ++seed) {
        qk_gru *const gru = freeze(QK_GRU_W8A8, seed);
        ASSERT_EQ(qk::cuda::plain_kind(gru->cell), PlainKind::kDirect);
        compare<int32_t, qk::cuda::ValueTables>(gru->cell, TableForm::kValues, seed);
        qk_gru_destroy(gru);
    }
}

TEST_F(CudaGruRules, LinesGiveTheCellsIntegers) {
    for (unsigned seed = 1; seed <= 6; ++seed) {
        qk_gru *const gru = freeze(QK_GRU_W8H16, seed);
        ASSERT_EQ(qk::cuda::plain_kind(gru->cell), PlainKind::kLines);
        compare<int64_t, qk::cuda::LineTables>(gru->cell, TableForm::kLines, seed);
        qk_gru_destroy(gru);
    }
}

TEST_F(CudaGruRules, KnotsKeepTheirPlacesAndShifts) {
    qk_gru *const gru = freeze(QK_GRU_W8A8, 1);
    const qk::gru::Cell &cell = gru->cell;
    const PlainCell p = qk::cuda::plain_cell(cell, TableForm::kKnots);
    const qk::gru::Table *const tables[] = {&cell.update, &cell.reset, &cell.candidate};
    for (int gate = 0; gate < 3; ++gate) {
        const qk::gru::Table &table = *tables[gate];
        EXPECT_EQ(p.table[gate].first, table.input_min - table.input_zero);
        EXPECT_EQ(p.table[gate].last, table.input_max - table.input_zero);
        EXPECT_EQ(p.table[gate].shift.count, table.shift);
        EXPECT_EQ(p.table[gate].bias, 0);
    }
    EXPECT_EQ(p.one, cell.u_one - cell.u_zero);
    EXPECT_EQ(p.view_low, cell.view_min);
    EXPECT_EQ(p.view_high, cell.view_max);
    qk_gru_destroy(gru);
}

}  // namespace
