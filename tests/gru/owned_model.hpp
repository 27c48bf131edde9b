// A qk_gru_model that owns its arrays, and random valid ones for the tests.
#pragma once
#include <cstdint>
#include <random>
#include <vector>

#include "qk.h"
#include "reference/gru/gru_reference.hpp"

namespace gru_test {

struct OwnedTable {
    std::vector<std::int32_t> threshold, slope, intercept;
};

class OwnedModel {
  public:
    OwnedModel(int c, int h);
    OwnedModel(const OwnedModel &) = delete;

    void set_all_bits(int bits);

    // `model` with its pointers set.
    const qk_gru_model &view();

    qk_gru_model model;
    std::vector<std::int8_t> w_shift, r_shift, bw_shift, br_shift;
    std::vector<std::int32_t> w, r, bw, br;
    OwnedTable tables[3];

  private:
    std::vector<std::int8_t> w8_, r8_;
    std::vector<std::int16_t> w16_, r16_;
};

struct RandomOptions {
    int c = 4, h = 5;
    bool extreme = false;    // codes at the ends of their types
    int weight_bits = 16;    // at most
    int inside_bits = 4;     // of activations, at least
    int most_bits = 16;      // of activations
    bool straight = false;   // lines instead of curves: the same tables with every libm
    bool half_wide = false;  // W8H16's kind: 8-bit weights, x and view of h, 12 to 16 bits inside
};

// Random widths, shifts, zero points, tables and codes; retried by the caller where the proof of
// no overflow refuses the draw.
void randomize(OwnedModel &model, std::mt19937_64 &random, const RandomOptions &options);

std::vector<std::int64_t> random_codes(const qk_gru_quant &quant, std::int64_t count,
                                       std::mt19937_64 &random, bool extreme);

// The same model in the reference's words.
reference::GruTable reference_table(const qk_gru_table &table);
reference::GruModel reference_model(const qk_gru_model &model);

}  // namespace gru_test
