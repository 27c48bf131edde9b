#include "gru/golden.hpp"

#include <jansson.h>

#include "gru/network.hpp"

namespace gru_test {
namespace {

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

}  // namespace

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

}  // namespace gru_test
