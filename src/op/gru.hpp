// What the GRU calls mean.
#pragma once
#include "object/gru.hpp"
#include "object/tensor.hpp"

namespace qk {

struct GruWeights {  // host f32, gates in the caller's order; biases may be null
    const float *w, *r, *bw, *br;
};

Status gru_create(qk_context *context, const qk_gru_config &config, const GruWeights &weights,
                  qk_gru **out);
Status gru_set_quant(qk_gru *gru, qk_gru_tensor which, const qk_gru_quant &quant);
// h0: host [b,h] or null for zeros.
Status gru_calibrate(qk_context *context, qk_gru *gru, const qk_tensor *x, const float *h0);
Status gru_run_float(qk_context *context, const qk_gru *gru, const qk_tensor *x, const float *h0,
                     qk_tensor *y);
// `gru` is live and not frozen.
Status check_float_gru(qk_context *context, const qk_gru *gru);
Status gru_get_ranges(qk_context *context, const qk_gru *gru, qk_gru_ranges *ranges);
Status gru_give_ranges(qk_context *context, qk_gru *gru, const qk_gru_ranges &ranges, bool merge);
Status gru_freeze(qk_context *context, qk_gru *gru);
Status gru_create_from_model(qk_context *context, const qk_gru_model &model, qk_gru **out);
Status gru_load(qk_context *context, const void *data, size_t bytes, qk_gru **out);
Status gru_scale(const qk_gru &gru, qk_gru_tensor which, int32_t channel, int32_t *shift,
                 int32_t *zero_point);
// gates may be null.
Status gru_run(qk_context *context, const qk_gru *gru, qk_gru_state *state, const qk_tensor *x,
               qk_tensor *y, qk_tensor *gates);
Status gru_workspace(qk_context *context, const qk_gru *gru, int32_t batch, int64_t t_max,
                     size_t *bytes);

// Steps and sequences of x [t,b,c] or [t,c], checked against the GRU.
struct GruExtent {
    int64_t steps, batch;
};
Status check_gru_input(qk_context *context, const qk_gru *gru, const qk_tensor *x,
                       GruExtent *extent);
// `name` [t,b,columns] with x's leading dimensions.
Status check_gru_output(qk_context *context, const qk_tensor *x, const qk_tensor *tensor,
                        const char *name, int64_t columns);

}  // namespace qk
