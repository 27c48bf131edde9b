// The hidden state of a batch: codes on the device, a copy's room on the host.
#include <string.h>

#include "backend/backend.hpp"
#include "base/checked.hpp"
#include "gru/border.hpp"
#include "gru/step.hpp"
#include "object/gru.hpp"

namespace qk {
namespace {

int64_t h_count(const qk_gru_state &state) { return int64_t{state.batch} * state.gru->hidden_size; }

int64_t state_bytes(const qk_gru_state &state) {
    return gru_state_bytes(state.gru->cell, state.batch);
}

int64_t count_bytes(const qk_gru_state &state) {
    return int64_t{state.batch} * QK_GRU_TENSOR_COUNT * int64_t(sizeof(int64_t));
}

// State `index` of two in the host's copy.
void *staged(const qk_gru_state &state, int64_t index) {
    return static_cast<char *>(state.staging) + kTurnsBytes + index * state_bytes(state);
}

void free_state(qk_gru_state *state) {
    qk_context *const context = state->context;
    device_release(context, state->memory);
    device_release(context, state->clipped);
    if (state->staging != nullptr) host_release(context, state->staging);
    gru_release(const_cast<qk_gru *>(state->gru));
    state->magic = kDestroyedMagic;
    host_release(context, state);
    context_release(context);
}

Status check_home(qk_context *context, const qk_gru_state *state) {
    const qk_context *const home = state->context;
    QK_CHECK(home->backend == context->backend && home->device.index == context->device.index,
             &context->error, DEVICE_MIX, "state: lives on %s:%d, the context on %s:%d",
             home->backend->name, home->device.index, context->backend->name,
             context->device.index);
    return QK_OK;
}

Status upload_staging(qk_context *context, qk_gru_state *state) {
    memset(state->staging, 0, size_t(kTurnsBytes));  // the first of the two is the current one
    return context->backend->memory.upload(make_launch(context), state->memory, state->staging,
                                           size_t(kTurnsBytes + state_bytes(*state)));
}

}  // namespace

Status check_gru_state(const qk_gru_state *state) {
    if (state == nullptr) return QK_ERROR_NULL;
    return state->magic == kGruStateMagic ? QK_OK : QK_ERROR_STATE;
}

Status gru_state_create(qk_context *context, const qk_gru *gru, int32_t batch, qk_gru_state **out) {
    void *const handle = host_allocate(context, sizeof(qk_gru_state));
    QK_CHECK(handle != nullptr, &context->error, MEMORY, "state: no memory for a handle");
    memset(handle, 0, sizeof(qk_gru_state));
    qk_gru_state *const state = static_cast<qk_gru_state *>(handle);
    state->magic = kGruStateMagic;
    state->context = context;
    state->gru = gru;
    state->batch = batch;
    context_retain(context);
    const_cast<qk_gru *>(gru)->references.fetch_add(1, std::memory_order_relaxed);
    // batch and h are below 2^31 and 2^16, a sequence's scratch below 2^25: no overflow.
    const int64_t codes = kTurnsBytes + 2 * state_bytes(*state);
    int64_t scratch = int64_t{batch} * gru_scratch_bytes(gru->cell);
    if (gru->packed != nullptr)
        scratch += context->backend->gru_packing.scratch_bytes(gru->cell, batch);
    const int64_t bytes = codes + scratch;
    if (uint64_t(bytes) <= SIZE_MAX) {
        state->memory = device_allocate(context, size_t(bytes));
        state->staging = host_allocate(context, size_t(codes));
    }
    if (state->memory == nullptr || state->staging == nullptr) {
        free_state(state);
        return fail(&context->error, QK_ERROR_MEMORY, "state: no memory for %lld bytes",
                    (long long)bytes);
    }
    state->scratch = static_cast<char *>(state->memory) + codes;
    if (gru->packed != nullptr) memset(state->scratch, 0, size_t(scratch));  // kernels count there
    memset(state->staging, 0, size_t(codes));
    const Status status = gru_state_reset(context, state);
    if (status != QK_OK) {
        free_state(state);
        return status;
    }
    *out = state;
    return QK_OK;
}

void gru_state_fill(const qk_gru_state &state, GruArgs *args) {
    args->turns = static_cast<uint32_t *>(state.memory);
    args->h = static_cast<char *>(state.memory) + kTurnsBytes;
    args->scratch = state.scratch;
    args->clipped = state.is_counting ? state.clipped : nullptr;
}

Status gru_state_reset(qk_context *context, qk_gru_state *state) {
    QK_TRY(check_home(context, state));
    const gru::Cell &cell = state->gru->cell;
    for (int64_t i = 0; i < h_count(*state); ++i)
        gru::store_code(staged(*state, 0), cell.h_bytes, i, cell.h_zero);
    return upload_staging(context, state);
}

Status gru_state_write(qk_context *context, qk_gru_state *state, const float *h) {
    QK_TRY(check_home(context, state));
    const gru::Cell &cell = state->gru->cell;
    const float factor = gru::power_of_two(cell.h_scale);
    for (int64_t i = 0; i < h_count(*state); ++i)
        gru::store_code(staged(*state, 0), cell.h_bytes, i,
                        gru::real_to_code(h[i], factor, cell.h_zero, cell.h_min, cell.h_max));
    return upload_staging(context, state);
}

Status gru_state_read(qk_context *context, const qk_gru_state *state, float *h) {
    QK_TRY(check_home(context, state));
    QK_TRY(context->backend->memory.download(make_launch(context), state->staging, state->memory,
                                             size_t(kTurnsBytes + 2 * state_bytes(*state))));
    uint32_t turns = 0;
    memcpy(&turns, state->staging, sizeof(turns));
    const void *const codes = staged(*state, turns / kTurn % 2);
    const gru::Cell &cell = state->gru->cell;
    const float factor = gru::power_of_two(-cell.h_scale);
    for (int64_t i = 0; i < h_count(*state); ++i)
        h[i] = gru::code_to_real(gru::load_code(codes, cell.h_bytes, i), factor, cell.h_zero);
    return QK_OK;
}

Status gru_state_count(qk_context *context, qk_gru_state *state, bool on) {
    QK_TRY(check_home(context, state));
    if (!on) {
        state->is_counting = false;
        return QK_OK;
    }
    const size_t bytes = size_t(count_bytes(*state));
    void *const zeros = host_allocate(context, bytes);
    int64_t *counts = state->clipped;
    if (counts == nullptr) counts = static_cast<int64_t *>(device_allocate(context, bytes));
    Status status = QK_OK;
    if (zeros == nullptr || counts == nullptr) {
        status = fail(&context->error, QK_ERROR_MEMORY, "state: no memory for %zu bytes of counts",
                      bytes);
    } else {
        memset(zeros, 0, bytes);
        status = context->backend->memory.upload(make_launch(context), counts, zeros, bytes);
    }
    if (zeros != nullptr) host_release(context, zeros);
    if (status != QK_OK) {
        if (state->clipped == nullptr) device_release(context, counts);
        return status;
    }
    state->clipped = counts;
    state->is_counting = true;
    state->counted_samples = 0;
    return QK_OK;
}

Status gru_state_counts(qk_context *context, const qk_gru_state *state,
                        int64_t counts[QK_GRU_TENSOR_COUNT]) {
    QK_TRY(check_home(context, state));
    memset(counts, 0, sizeof(int64_t) * QK_GRU_TENSOR_COUNT);
    if (state->clipped == nullptr) return QK_OK;
    const size_t bytes = size_t(count_bytes(*state));
    int64_t *const all = static_cast<int64_t *>(host_allocate(context, bytes));
    QK_CHECK(all != nullptr, &context->error, MEMORY, "state: no memory for %zu bytes of counts",
             bytes);
    const Status status =
        context->backend->memory.download(make_launch(context), all, state->clipped, bytes);
    for (int64_t i = 0; status == QK_OK && i < int64_t{state->batch} * QK_GRU_TENSOR_COUNT; ++i)
        counts[i % QK_GRU_TENSOR_COUNT] += all[i];
    host_release(context, all);
    return status;
}

void gru_state_destroy(qk_gru_state *state) {
    if (check_gru_state(state) == QK_OK) free_state(state);
}

}  // namespace qk
