#include "op/gru.hpp"

#include <string.h>

#include "api/check.hpp"

namespace {

qk_status check_frozen(qk_context *context, const qk_gru *gru) {
    QK_API_POINTER(context, gru);
    QK_CHECK(qk::check_gru(gru) == QK_OK, &context->error, STATE, "gru: is not a live GRU");
    QK_CHECK(gru->is_frozen, &context->error, STATE, "gru: is not frozen yet");
    return QK_OK;
}

qk_status check_state(qk_context *context, const qk_gru_state *state) {
    QK_API_POINTER(context, state);
    QK_CHECK(qk::check_gru_state(state) == QK_OK, &context->error, STATE,
             "state: is not a live GRU state");
    return QK_OK;
}

}  // namespace

extern "C" {

qk_status qk_gru_create(qk_context *context, const qk_gru_config *config, const float *w_ih,
                        const float *w_hh, const float *b_ih, const float *b_hh, qk_gru **out) {
    QK_API_CONTEXT(context);
    QK_API_POINTER(context, config);
    QK_API_POINTER(context, w_ih);
    QK_API_POINTER(context, w_hh);
    QK_API_POINTER(context, out);
    return qk::compute(context, [&] {
        return qk::gru_create(context, *config, {w_ih, w_hh, b_ih, b_hh}, out);
    });
}

qk_status qk_gru_set_quant(qk_gru *gru, qk_gru_tensor which, const qk_gru_quant *quant) {
    if (quant == nullptr) return QK_ERROR_NULL;
    QK_TRY(qk::check_gru(gru));
    return qk::gru_set_quant(gru, which, *quant);
}

qk_status qk_gru_calibrate(qk_context *context, qk_gru *gru, const qk_tensor *x, const float *h0) {
    QK_API_CONTEXT(context);
    return qk::compute(context, [&] { return qk::gru_calibrate(context, gru, x, h0); });
}

qk_status qk_gru_run_float(qk_context *context, const qk_gru *gru, const qk_tensor *x,
                           const float *h0, qk_tensor *y) {
    QK_API_CONTEXT(context);
    return qk::compute(context, [&] { return qk::gru_run_float(context, gru, x, h0, y); });
}

qk_status qk_gru_get_ranges(qk_context *context, const qk_gru *gru, qk_gru_ranges *ranges) {
    QK_API_CONTEXT(context);
    QK_API_POINTER(context, ranges);
    return qk::compute(context, [&] { return qk::gru_get_ranges(context, gru, ranges); });
}

qk_status qk_gru_set_ranges(qk_context *context, qk_gru *gru, const qk_gru_ranges *ranges) {
    QK_API_CONTEXT(context);
    QK_API_POINTER(context, ranges);
    return qk::compute(context, [&] { return qk::gru_give_ranges(context, gru, *ranges, false); });
}

qk_status qk_gru_merge_ranges(qk_context *context, qk_gru *gru, const qk_gru_ranges *ranges) {
    QK_API_CONTEXT(context);
    QK_API_POINTER(context, ranges);
    return qk::compute(context, [&] { return qk::gru_give_ranges(context, gru, *ranges, true); });
}

qk_status qk_gru_freeze(qk_context *context, qk_gru *gru) {
    QK_API_CONTEXT(context);
    return qk::compute(context, [&] { return qk::gru_freeze(context, gru); });
}

qk_status qk_gru_create_from_model(qk_context *context, const qk_gru_model *model, qk_gru **out) {
    QK_API_CONTEXT(context);
    QK_API_POINTER(context, model);
    QK_API_POINTER(context, out);
    return qk::compute(context, [&] { return qk::gru_create_from_model(context, *model, out); });
}

qk_status qk_gru_describe(const qk_gru *gru, qk_gru_model *model) {
    if (model == nullptr) return QK_ERROR_NULL;
    QK_TRY(qk::check_gru(gru));
    if (!qk::is_growing_size(model->struct_size)) return QK_ERROR_ABI;
    if (!gru->is_frozen) return QK_ERROR_STATE;
    qk::fill_growing(gru->model, model);
    return QK_OK;
}

qk_status qk_gru_scale(const qk_gru *gru, qk_gru_tensor which, int32_t channel, int32_t *shift,
                       int32_t *zero_point) {
    if (shift == nullptr || zero_point == nullptr) return QK_ERROR_NULL;
    QK_TRY(qk::check_gru(gru));
    return qk::gru_scale(*gru, which, channel, shift, zero_point);
}

qk_status qk_gru_state_create(qk_context *context, const qk_gru *gru, int32_t batch,
                              qk_gru_state **out) {
    QK_API_CONTEXT(context);
    QK_TRY(check_frozen(context, gru));
    QK_API_POINTER(context, out);
    QK_CHECK(batch >= 1, &context->error, ARGUMENT, "batch: is %d, must be at least 1", batch);
    return qk::compute(context, [&] { return qk::gru_state_create(context, gru, batch, out); });
}

qk_status qk_gru_state_reset(qk_context *context, qk_gru_state *state) {
    QK_API_CONTEXT(context);
    QK_TRY(check_state(context, state));
    return qk::compute(context, [&] { return qk::gru_state_reset(context, state); });
}

qk_status qk_gru_state_write(qk_context *context, qk_gru_state *state, const float *h) {
    QK_API_CONTEXT(context);
    QK_TRY(check_state(context, state));
    QK_API_POINTER(context, h);
    return qk::compute(context, [&] { return qk::gru_state_write(context, state, h); });
}

qk_status qk_gru_state_read(qk_context *context, const qk_gru_state *state, float *h) {
    QK_API_CONTEXT(context);
    QK_TRY(check_state(context, state));
    QK_API_POINTER(context, h);
    return qk::compute(context, [&] { return qk::gru_state_read(context, state, h); });
}

qk_status qk_gru_state_count_clipped(qk_context *context, qk_gru_state *state, int32_t on) {
    QK_API_CONTEXT(context);
    QK_TRY(check_state(context, state));
    QK_CHECK(on == 0 || on == 1, &context->error, ARGUMENT, "on: is %d, accepted are 0 and 1", on);
    return qk::gru_state_count(context, state, on == 1);
}

qk_status qk_gru_state_clipped(qk_context *context, const qk_gru_state *state,
                               qk_gru_clipped *clipped) {
    QK_API_CONTEXT(context);
    QK_TRY(check_state(context, state));
    QK_API_POINTER(context, clipped);
    QK_CHECK(qk::is_growing_size(clipped->struct_size), &context->error, ABI,
             "clipped: struct_size is %u, this library has %zu", clipped->struct_size,
             sizeof(qk_gru_clipped));
    qk_gru_clipped found = {sizeof(qk_gru_clipped), 0, state->counted_samples, {}};
    QK_TRY(qk::gru_state_counts(context, state, found.codes));
    qk::fill_growing(found, clipped);
    return QK_OK;
}

void qk_gru_state_destroy(qk_gru_state *state) { qk::gru_state_destroy(state); }

qk_status qk_gru_run(qk_context *context, const qk_gru *gru, qk_gru_state *state,
                     const qk_tensor *x, qk_tensor *y) {
    QK_API_CONTEXT(context);
    return qk::compute(context, [&] { return qk::gru_run(context, gru, state, x, y, nullptr); });
}

qk_status qk_gru_run_gates(qk_context *context, const qk_gru *gru, qk_gru_state *state,
                           const qk_tensor *x, qk_tensor *y, qk_tensor *gates) {
    QK_API_CONTEXT(context);
    QK_API_POINTER(context, gates);
    return qk::compute(context, [&] { return qk::gru_run(context, gru, state, x, y, gates); });
}

qk_status qk_gru_workspace(qk_context *context, const qk_gru *gru, int32_t batch, int64_t t_max,
                           size_t *bytes) {
    QK_API_CONTEXT(context);
    QK_API_POINTER(context, bytes);
    return qk::gru_workspace(context, gru, batch, t_max, bytes);
}

qk_status qk_gru_save(const qk_gru *gru, void *buffer, size_t capacity, size_t *bytes) {
    if (bytes == nullptr) return QK_ERROR_NULL;
    QK_TRY(qk::check_gru(gru));
    if (!gru->is_frozen) return QK_ERROR_STATE;
    *bytes = gru->image_bytes;
    if (buffer == nullptr) return QK_OK;
    if (capacity < gru->image_bytes) return QK_ERROR_BUFFER_SIZE;
    memcpy(buffer, gru->image, gru->image_bytes);
    return QK_OK;
}

qk_status qk_gru_load(qk_context *context, const void *data, size_t bytes, qk_gru **out) {
    QK_API_CONTEXT(context);
    QK_API_POINTER(context, data);
    QK_API_POINTER(context, out);
    return qk::compute(context, [&] { return qk::gru_load(context, data, bytes, out); });
}

void qk_gru_destroy(qk_gru *gru) { qk::gru_destroy(gru); }

}  // extern "C"
