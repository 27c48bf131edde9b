#include <algorithm>
#include <cstdio>

#include "commands.hpp"
#include "gru.hpp"
#include "json.hpp"

namespace {

const char *table_name(const qk_gru_table &table) {
    return table.kind == QK_GRU_TABLE_KNOTS ? "knots" : "uniform";
}

struct Shifts {
    int32_t least = 0, most = 0;
};

// Weights and biases have one shift a row, everything else one.
Shifts shifts_of(const qk_gru_model &model, int which) {
    const int8_t *rows = which == QK_GRU_W    ? model.w_shift
                         : which == QK_GRU_R  ? model.r_shift
                         : which == QK_GRU_BW ? model.bw_shift
                         : which == QK_GRU_BR ? model.br_shift
                                              : nullptr;
    if (rows == nullptr) return {model.shift[which], model.shift[which]};
    const auto ends = std::minmax_element(rows, rows + 3 * model.hidden_size);
    return {*ends.first, *ends.second};
}

void print_json(const std::string &file, const LoadedGru &loaded) {
    const qk_gru_model &model = loaded.model;
    const Json root = json_new_object();
    json_set(root, "file", file);
    json_set(root, "bytes", loaded.bytes);
    json_set(root, "input_size", model.input_size);
    json_set(root, "hidden_size", model.hidden_size);
    json_set(root, "h_view_shift", model.h_view_shift);
    json_set(root, "tables", table_name(model.update));
    json_set(root, "segments", model.update.count);
    Json tensors = json_new_array();
    for (int i = 0; i < QK_GRU_TENSOR_COUNT; ++i) {
        Json tensor = json_new_object();
        const Shifts shifts = shifts_of(model, i);
        json_set(tensor, "name", kGruTensors[i]);
        json_set(tensor, "bits", model.quant[i].bits);
        json_set(tensor, "unsigned", model.quant[i].is_unsigned != 0);
        json_set(tensor, "shift_min", shifts.least);
        json_set(tensor, "shift_max", shifts.most);
        json_set(tensor, "zero_point", model.zero_point[i]);
        json_append(tensors, std::move(tensor));
    }
    json_set(root, "tensors", std::move(tensors));
    json_print(root);
}

}  // namespace

ExitCode run_gru_info(const CommonOptions &common, const GruInfoOptions &options) {
    CommonOptions one_thread = common;
    one_thread.threads = 1;
    const Context context = create_context(one_thread);
    const LoadedGru loaded = load_gru(context, options.file);
    if (common.json) {
        print_json(options.file, loaded);
        return kOk;
    }
    const qk_gru_model &model = loaded.model;
    std::printf("GRU of %d inputs and %d units, %s\ntables: %s, %d segments", model.input_size,
                model.hidden_size, human_bytes(double(loaded.bytes)).c_str(),
                table_name(model.update), model.update.count);
    if (model.h_view_shift != 0) std::printf("; R reads h >> %d", model.h_view_shift);
    std::printf("\n\n%-12s%-8s%-10s%s\n", "tensor", "type", "shift", "zero point");
    for (int i = 0; i < QK_GRU_TENSOR_COUNT; ++i) {
        const Shifts shifts = shifts_of(model, i);
        std::string type = model.quant[i].is_unsigned != 0 ? "u" : "i";
        type += std::to_string(model.quant[i].bits);
        std::string shift = std::to_string(shifts.least);
        if (shifts.most != shifts.least) shift += ".." + std::to_string(shifts.most);
        std::printf("%-12s%-8s%-10s%d\n", kGruTensors[i], type.c_str(), shift.c_str(),
                    model.zero_point[i]);
    }
    return kOk;
}
