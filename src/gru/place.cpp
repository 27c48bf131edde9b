#include "gru/place.hpp"

#include <stdio.h>

#include <initializer_list>

namespace qk::gru {

const char *tensor_name(int32_t which) {
    static constexpr const char *const names[QK_GRU_TENSOR_COUNT] = {
        "x",  "h",         "w",          "r",        "bw",        "br",     "ih",
        "hh", "update_in", "update_out", "reset_in", "reset_out", "new_in", "new_out"};
    return which < 0 || which >= QK_GRU_TENSOR_COUNT ? "?" : names[which];
}

const char *place_text(const Place &place, char *text) {
    text[0] = '\0';
    if (place.tensor >= 0 && place.row >= 0)
        snprintf(text, kPlaceText, "%s, row %lld: ", tensor_name(place.tensor),
                 (long long)place.row);
    else if (place.tensor >= 0)
        snprintf(text, kPlaceText, "%s: ", tensor_name(place.tensor));
    return text;
}

namespace {

constexpr int64_t kLimit = int64_t{1} << 62;

struct Rows {  // W with bw, or R with br
    int32_t weight, bias, out;
    const void *codes;
    const int8_t *weight_shift, *bias_shift;
    const int32_t *bias_codes;
    int64_t count;
    int32_t code_shift;
};

struct Sides {
    Rows side[2];
};

Sides sides_of(const qk_gru_model &m) {
    const int32_t view = m.shift[QK_GRU_H] - m.h_view_shift;
    return {
        {{QK_GRU_W, QK_GRU_BW, QK_GRU_IH, m.w, m.w_shift, m.bw_shift, m.bw, m.input_size,
          m.shift[QK_GRU_X]},
         {QK_GRU_R, QK_GRU_BR, QK_GRU_HH, m.r, m.r_shift, m.br_shift, m.br, m.hidden_size, view}}};
}

bool is_legal(int32_t shift) { return shift >= -31 && shift <= 62; }

// A field of the header: what check_header judges tensor by tensor.
Place place_in_header(const qk_gru_model &model, Fault fault) {
    for (int32_t which = 0; which < QK_GRU_TENSOR_COUNT; ++which) {
        const bool is_weight = which >= QK_GRU_W && which <= QK_GRU_BR;
        const qk_gru_quant &quant = model.quant[which];
        const int32_t zero = model.zero_point[which], shift = model.shift[which];
        if (fault == Fault::kQuant && !quant_is_valid(which, quant)) return {which};
        if (fault == Fault::kShift && (is_weight ? shift != 0 : shift < -126 || shift > 126))
            return {which};
        if (fault != Fault::kZeroPoint) continue;
        const CodeRange codes = is_weight ? CodeRange{0, 0} : code_range(quant);
        if (zero < codes.min || zero > codes.max) return {which};
        if (quant.is_symmetric != 0 && zero != 0) return {which};
    }
    return {};
}

Place place_of_code(const qk_gru_model &model) {
    const int64_t rows = int64_t{3} * model.hidden_size;
    for (const Rows &side : sides_of(model).side) {
        const CodeRange weights = code_range(model.quant[side.weight]);
        const bool bytes = code_bytes(model.quant[side.weight].bits) == 1;
        for (int64_t i = 0; i < rows * side.count; ++i) {
            const int32_t code = bytes ? static_cast<const int8_t *>(side.codes)[i]
                                       : static_cast<const int16_t *>(side.codes)[i];
            if (code < weights.min || code > weights.max) return {side.weight, i / side.count};
        }
        const CodeRange biases = code_range(model.quant[side.bias]);
        for (int64_t row = 0; row < rows; ++row)
            if (side.bias_codes[row] < biases.min || side.bias_codes[row] > biases.max)
                return {side.bias, row};
    }
    return {};
}

// A row whose bias, or whose sum, is shifted too far, or whose bias grows too large.
Place place_of_row(const qk_gru_model &model) {
    const int64_t rows = int64_t{3} * model.hidden_size;
    for (const Rows &side : sides_of(model).side)
        for (int64_t row = 0; row < rows; ++row) {
            const int32_t products = side.weight_shift[row] + side.code_shift;
            const int32_t up = products - side.bias_shift[row];
            const int64_t code = side.bias_codes[row];
            if (!is_legal(-up)) return {side.bias, row};
            if (up > 0 && (code < 0 ? -code : code) >= kLimit >> up) return {side.bias, row};
            if (!is_legal(products - model.shift[side.out])) return {side.weight, row};
        }
    return {};
}

// Shifts between activations; the tensor is the one whose scale is out of step.
Place place_of_gate(const qk_gru_model &model) {
    const int32_t *const s = model.shift;
    for (const int32_t in : {QK_GRU_UPDATE_IN, QK_GRU_RESET_IN, QK_GRU_NEW_IN}) {
        const int32_t hh = in == QK_GRU_NEW_IN ? s[QK_GRU_RESET_OUT] + s[QK_GRU_HH] : s[QK_GRU_HH];
        if (!is_legal(s[QK_GRU_IH] - s[in]) || !is_legal(hh - s[in])) return {in};
    }
    if (!is_legal(s[QK_GRU_NEW_OUT] - s[QK_GRU_H])) return {QK_GRU_H};
    if (s[QK_GRU_UPDATE_OUT] < 0 || s[QK_GRU_UPDATE_OUT] > 30) return {QK_GRU_UPDATE_OUT};
    const struct {
        const qk_gru_table &table;
        int32_t in;
    } tables[] = {{model.update, QK_GRU_UPDATE_IN},
                  {model.reset, QK_GRU_RESET_IN},
                  {model.candidate, QK_GRU_NEW_IN}};
    for (const auto &gate : tables)
        if (!is_legal(gate.table.shift)) return {gate.in};
    return {};
}

}  // namespace

Place broken_granularity(const qk_gru_model &model) {
    const int64_t rows = int64_t{3} * model.hidden_size;
    for (const Rows &side : sides_of(model).side)
        for (const bool is_bias : {false, true}) {
            const int32_t which = is_bias ? side.bias : side.weight;
            const int8_t *const shifts = is_bias ? side.bias_shift : side.weight_shift;
            const int32_t granularity = model.quant[which].granularity;
            if (granularity == 2) continue;
            const int64_t together = granularity == 1 ? model.hidden_size : rows;
            for (int64_t row = 0; row < rows; ++row)
                if (shifts[row] != shifts[row / together * together]) return {which, row};
        }
    return {};
}

Place place_of(const qk_gru_model &model, Fault fault) {
    const bool is_header = fault == Fault::kQuant || fault == Fault::kZeroPoint;
    if (is_header || fault == Fault::kShift) {
        const Place place = place_in_header(model, fault);
        if (is_header || place.tensor >= 0) return place;
    }
    if (fault == Fault::kView) return {QK_GRU_H};
    if (fault == Fault::kGranularity) return broken_granularity(model);
    if (fault == Fault::kWeight) return place_of_code(model);
    if (fault != Fault::kShift && fault != Fault::kOverflow) return {};
    const Place place = place_of_row(model);
    return place.tensor >= 0 ? place : place_of_gate(model);
}

}  // namespace qk::gru
