// What the `qk gru` commands share.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "common.hpp"

struct DestroyGru {
    void operator()(qk_gru *gru) const { qk_gru_destroy(gru); }
    void operator()(qk_gru_state *state) const { qk_gru_state_destroy(state); }
};
using Gru = std::unique_ptr<qk_gru, DestroyGru>;
using GruState = std::unique_ptr<qk_gru_state, DestroyGru>;

extern const char *const kGruTensors[QK_GRU_TENSOR_COUNT];  // names, as the command shows them

struct LoadedGru {
    int64_t bytes = 0;  // of the file
    Gru gru;
    qk_gru_model model;
};
LoadedGru load_gru(const Context &context, const std::string &path);
qk_gru_model describe(const Gru &gru);
// [t,b,size] over memory of the caller.
Tensor wrap_sequence(const Context &context, int64_t steps, int64_t batch, int64_t size,
                     void *values, qk_format format = QK_FORMAT_F32);
