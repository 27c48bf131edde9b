#include "gru.hpp"

#include "arrays.hpp"

const char *const kGruTensors[QK_GRU_TENSOR_COUNT] = {
    "x",  "h",         "w",          "r",        "bw",        "br",     "ih",
    "hh", "update_in", "update_out", "reset_in", "reset_out", "new_in", "new_out"};

qk_gru_model describe(const Gru &gru) {
    qk_gru_model model = {};
    model.struct_size = sizeof model;
    check(qk_gru_describe(gru.get(), &model), "GRU", nullptr);
    return model;
}

LoadedGru load_gru(const Context &context, const std::string &path) {
    const std::vector<char> bytes = read_file(path);
    qk_gru *gru = nullptr;
    check(qk_gru_load(context.get(), bytes.data(), bytes.size(), &gru), path,
          qk_context_error(context.get()));
    LoadedGru loaded{static_cast<int64_t>(bytes.size()), Gru(gru), {}};
    loaded.model = describe(loaded.gru);
    return loaded;
}

Tensor wrap_sequence(const Context &context, int64_t steps, int64_t batch, int64_t size,
                     void *values, qk_format format) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = format;
    desc.rank = 3;
    desc.shape[0] = steps;
    desc.shape[1] = batch;
    desc.shape[2] = size;
    qk_tensor *tensor = nullptr;
    check(qk_tensor_wrap(context.get(), &desc, &values, 1, &tensor), "cannot wrap a tensor",
          qk_context_error(context.get()));
    return Tensor(tensor);
}
