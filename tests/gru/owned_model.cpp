#include "owned_model.hpp"

#include <algorithm>
#include <cmath>

namespace gru_test {

OwnedModel::OwnedModel(int c, int h) : model{} {
    model.struct_size = sizeof(model);
    model.input_size = c;
    model.hidden_size = h;
    std::size_t rows = 3u * static_cast<std::size_t>(h);
    for (auto *shifts : {&w_shift, &r_shift, &bw_shift, &br_shift}) shifts->assign(rows, 7);
    w.assign(rows * c, 0);
    r.assign(rows * h, 0);
    bw.assign(rows, 0);
    br.assign(rows, 0);
    for (int which = QK_GRU_W; which <= QK_GRU_BR; ++which) model.quant[which] = {8, 0, 1, 2};
    set_all_bits(8);
}

void OwnedModel::set_all_bits(int bits) {
    for (int which = 0; which < QK_GRU_TENSOR_COUNT; ++which) model.quant[which].bits = bits;
    model.quant[QK_GRU_UPDATE_OUT].is_unsigned = 1;
    model.quant[QK_GRU_RESET_OUT].is_unsigned = 1;
}

const qk_gru_model &OwnedModel::view() {
    w8_.assign(w.begin(), w.end());
    r8_.assign(r.begin(), r.end());
    w16_.assign(w.begin(), w.end());
    r16_.assign(r.begin(), r.end());
    bool w_is_8 = model.quant[QK_GRU_W].bits <= 8, r_is_8 = model.quant[QK_GRU_R].bits <= 8;
    model.w = w_is_8 ? static_cast<const void *>(w8_.data()) : w16_.data();
    model.r = r_is_8 ? static_cast<const void *>(r8_.data()) : r16_.data();
    model.bw = bw.data(), model.br = br.data();
    model.w_shift = w_shift.data(), model.r_shift = r_shift.data();
    model.bw_shift = bw_shift.data(), model.br_shift = br_shift.data();
    qk_gru_table *views[] = {&model.update, &model.reset, &model.candidate};
    for (int gate = 0; gate < 3; ++gate) {
        bool knots = views[gate]->kind == QK_GRU_TABLE_KNOTS;
        views[gate]->threshold = knots ? tables[gate].threshold.data() : nullptr;
        views[gate]->slope = tables[gate].slope.data();
        views[gate]->intercept = tables[gate].intercept.data();
    }
    return model;
}

namespace {

int pick(std::mt19937_64 &random, int low, int high) {
    return low + static_cast<int>(random() % static_cast<std::uint64_t>(high - low + 1));
}

std::int64_t low_of(const qk_gru_quant &q) {
    return q.is_unsigned ? 0 : -(std::int64_t{1} << (q.bits - 1));
}

std::int64_t high_of(const qk_gru_quant &q) {
    return (std::int64_t{1} << (q.is_unsigned ? q.bits : q.bits - 1)) - 1;
}

// A table near the curve itself, so that the values that follow are not all clamped.
void random_table(OwnedModel &m, int gate, const RandomOptions &options, std::mt19937_64 &random) {
    const int in[] = {QK_GRU_UPDATE_IN, QK_GRU_RESET_IN, QK_GRU_NEW_IN};
    const int out[] = {QK_GRU_UPDATE_OUT, QK_GRU_RESET_OUT, QK_GRU_NEW_OUT};
    qk_gru_table *views[] = {&m.model.update, &m.model.reset, &m.model.candidate};
    qk_gru_table &table = *views[gate];
    OwnedTable &data = m.tables[gate];
    data = {};
    table = {};
    double in_scale = std::ldexp(1.0, -m.model.shift[in[gate]]);
    double out_scale = std::ldexp(1.0, m.model.shift[out[gate]]);
    double out_zero = m.model.zero_point[out[gate]];
    auto curve = [&](double x) {
        if (options.straight)
            x = gate == 2 ? std::clamp(x, -1.0, 1.0) : std::clamp(x / 4 + 0.5, 0.0, 1.0);
        if (options.straight) return x * out_scale + out_zero;
        return (gate == 2 ? std::tanh(x) : 1 / (1 + std::exp(-x))) * out_scale + out_zero;
    };
    bool uniform = pick(random, 0, 1) == 1 || options.half_wide;
    table.kind = uniform ? QK_GRU_TABLE_UNIFORM : QK_GRU_TABLE_KNOTS;
    table.count = uniform ? pick(random, 1, 80) : 16;
    table.shift = uniform ? 14 : pick(random, 0, 12);
    if (uniform) table.width_log2 = pick(random, 0, m.model.quant[in[gate]].bits - 3);
    int width = 1 << table.width_log2;
    if (uniform) table.first = -table.count * width / 2;
    for (int i = 0; i < table.count; ++i) {
        double begin = uniform ? table.first + double(i) * width
                               : std::ldexp(i - 8.0, m.model.shift[in[gate]] - 1);
        double y0 = curve(begin * in_scale), y1 = curve((begin + width) * in_scale);
        double fraction = std::ldexp(1.0, table.shift);
        data.slope.push_back(static_cast<std::int32_t>((y1 - y0) / width * fraction));
        data.intercept.push_back(
            static_cast<std::int32_t>(uniform ? y0 * fraction : y0 - begin * (y1 - y0)));
        double end =
            begin + std::ldexp(0.5, m.model.shift[in[gate]]) + m.model.zero_point[in[gate]];
        data.threshold.push_back(static_cast<std::int32_t>(std::clamp(end, -4e4, 4e4)));
    }
}

}  // namespace

std::vector<std::int64_t> random_codes(const qk_gru_quant &quant, std::int64_t count,
                                       std::mt19937_64 &random, bool extreme) {
    std::vector<std::int64_t> codes(static_cast<std::size_t>(count));
    std::int64_t low = low_of(quant), high = high_of(quant);
    for (auto &code : codes) {
        std::uint64_t draw = random();
        if (extreme && draw % 8 != 0)
            code = draw & 8 ? low : high;
        else
            code = low + static_cast<std::int64_t>((draw >> 8) %
                                                   static_cast<std::uint64_t>(high - low + 1));
    }
    return codes;
}

void randomize(OwnedModel &m, std::mt19937_64 &random, const RandomOptions &options) {
    qk_gru_model &model = m.model;
    for (int which = 0; which < QK_GRU_TENSOR_COUNT; ++which) {
        qk_gru_quant &q = model.quant[which];
        bool weight = which >= QK_GRU_W && which <= QK_GRU_BR;
        bool bias = which == QK_GRU_BW || which == QK_GRU_BR;
        const bool narrow = options.half_wide && (weight || which == QK_GRU_X);
        const int most = bias ? 32 : narrow ? 8 : weight ? options.weight_bits : options.most_bits;
        const int least = weight || narrow ? 4 : options.half_wide ? 12 : options.inside_bits;
        q = {pick(random, least, most), 0, 0, weight ? 2 : 0};
        q.is_symmetric = weight ? 1 : pick(random, 0, 1);
        if (!weight && which > QK_GRU_HH) q.is_unsigned = pick(random, 0, 1);
        model.shift[which] = weight ? 0 : q.bits - pick(random, 1, 4);
        model.zero_point[which] = 0;
        if (!weight && q.is_symmetric == 0)
            model.zero_point[which] =
                static_cast<std::int32_t>(random_codes(q, 1, random, options.extreme)[0]);
    }
    model.flags = pick(random, 0, 3) == 0 ? QK_GRU_MODEL_CLAMP_TYPE : 0;
    int spare = model.quant[QK_GRU_H].bits - 4;
    model.h_view_shift = pick(random, 0, 1) == 1 ? std::min(pick(random, 0, 8), spare) : 0;
    if (options.half_wide) model.h_view_shift = 8;
    int step = 1 << model.h_view_shift;
    model.zero_point[QK_GRU_H] = model.zero_point[QK_GRU_H] / step * step;
    std::size_t rows = 3u * static_cast<std::size_t>(options.h);
    auto fill = [&](std::vector<std::int32_t> &codes, int which, std::size_t count) {
        auto wide = random_codes(model.quant[which], static_cast<std::int64_t>(count), random,
                                 options.extreme);
        codes.assign(wide.begin(), wide.end());
    };
    fill(m.w, QK_GRU_W, rows * static_cast<std::size_t>(options.c));
    fill(m.r, QK_GRU_R, rows * static_cast<std::size_t>(options.h));
    fill(m.bw, QK_GRU_BW, rows);
    fill(m.br, QK_GRU_BR, rows);
    for (std::size_t row = 0; row < rows; ++row) {
        m.w_shift[row] = static_cast<std::int8_t>(model.quant[QK_GRU_W].bits + pick(random, -1, 3));
        m.r_shift[row] = static_cast<std::int8_t>(model.quant[QK_GRU_R].bits + pick(random, -1, 3));
        m.bw_shift[row] =
            static_cast<std::int8_t>(model.quant[QK_GRU_BW].bits + pick(random, -1, 6));
        m.br_shift[row] =
            static_cast<std::int8_t>(model.quant[QK_GRU_BR].bits + pick(random, -1, 6));
    }
    for (int gate = 0; gate < 3; ++gate) random_table(m, gate, options, random);
}

reference::GruTable reference_table(const qk_gru_table &table) {
    reference::GruTable result;
    result.uniform = table.kind == QK_GRU_TABLE_UNIFORM;
    result.shift = table.shift, result.width_log2 = table.width_log2, result.first = table.first;
    if (!result.uniform) result.threshold.assign(table.threshold, table.threshold + table.count);
    result.slope.assign(table.slope, table.slope + table.count);
    result.intercept.assign(table.intercept, table.intercept + table.count);
    return result;
}

reference::GruModel reference_model(const qk_gru_model &model) {
    reference::GruModel result;
    result.c = model.input_size, result.h = model.hidden_size;
    result.view_shift = model.h_view_shift;
    result.clamp_to_type = (model.flags & QK_GRU_MODEL_CLAMP_TYPE) != 0;
    for (int which = 0; which < QK_GRU_TENSOR_COUNT; ++which) {
        result.bits[which] = model.quant[which].bits;
        result.is_unsigned[which] = model.quant[which].is_unsigned != 0;
        result.shift[which] = model.shift[which];
        result.zero[which] = model.zero_point[which];
    }
    std::int64_t rows = std::int64_t{3} * model.hidden_size;
    auto weights = [&](const void *codes, int which, std::int64_t count) {
        std::vector<std::int64_t> wide(static_cast<std::size_t>(count));
        for (std::int64_t i = 0; i < count; ++i)
            wide[static_cast<std::size_t>(i)] = model.quant[which].bits <= 8
                                                    ? static_cast<const std::int8_t *>(codes)[i]
                                                    : static_cast<const std::int16_t *>(codes)[i];
        return wide;
    };
    result.w = weights(model.w, QK_GRU_W, rows * model.input_size);
    result.r = weights(model.r, QK_GRU_R, rows * model.hidden_size);
    result.bw.assign(model.bw, model.bw + rows), result.br.assign(model.br, model.br + rows);
    result.w_shift.assign(model.w_shift, model.w_shift + rows);
    result.r_shift.assign(model.r_shift, model.r_shift + rows);
    result.bw_shift.assign(model.bw_shift, model.bw_shift + rows);
    result.br_shift.assign(model.br_shift, model.br_shift + rows);
    result.update = reference_table(model.update);
    result.reset = reference_table(model.reset);
    result.candidate = reference_table(model.candidate);
    return result;
}

}  // namespace gru_test
