// What qk_gru and qk_gru_state point to. A GRU is born float or frozen: float ones gather ranges,
// frozen ones are the bytes of their file and nothing else.
#pragma once
#include "gru/calibrate/build.hpp"
#include "gru/image.hpp"
#include "object/context.hpp"

namespace qk {

// What lives until the freeze.
struct GruTraining {
    gru::FloatGru weights;  // gates in the order u, r, n
    gru::BuildOptions options;
    gru::Ranges ranges;
    void *memory;  // of the weights and the ranges
};

}  // namespace qk

struct qk_gru {
    uint32_t magic;
    std::atomic<int64_t> references;  // the handle, and every state
    qk_context *context;
    int32_t input_size, hidden_size;
    bool is_frozen;
    qk::GruTraining training;  // where not frozen
    void *image;               // the file, 64-byte aligned
    size_t image_bytes;
    qk_gru_model model;  // points into image
    void *device_image;  // a copy in the device's memory, null on the CPU
    qk::gru::Cell cell;  // points into what the device reads
    void *packed;        // the backend's own layout of the weights (GruPacking), or null
};

struct qk_gru_state {
    uint32_t magic;
    qk_context *context;
    const qk_gru *gru;
    int32_t batch;
    void *memory;  // device memory: turns, two states, the kernel's scratch
    void *scratch;
    void *staging;  // host memory for turns and both states
    bool is_counting;
    int64_t *clipped;         // device memory, [batch,QK_GRU_TENSOR_COUNT]; null until asked for
    int64_t counted_samples;  // steps times sequences
};

namespace qk {

constexpr uint32_t kGruMagic = 0x716b4752;       // 'qkGR'
constexpr uint32_t kGruStateMagic = 0x716b4753;  // 'qkGS'

Status check_gru(const qk_gru *gru);
Status check_gru_state(const qk_gru_state *state);

// A float GRU with room for its weights and ranges, uninitialised weights.
Status gru_create_float(qk_context *context, const qk_gru_config &config, qk_gru **out);
// A frozen one; `image` is host memory of the context's allocator and becomes the GRU's, on
// failure too. corrupt: the code for a fault in it.
Status gru_create_frozen(qk_context *context, void *image, size_t bytes, Status corrupt,
                         qk_gru **out);
// Gives a GRU its image, on its device too, and drops what the float one had.
Status gru_adopt_image(qk_context *context, qk_gru *gru, void *image, size_t bytes, Status corrupt);
void gru_release(qk_gru *gru);
void gru_destroy(qk_gru *gru);

constexpr int64_t kTurnsBytes = 64;  // what precedes the states

Status gru_state_create(qk_context *context, const qk_gru *gru, int32_t batch, qk_gru_state **out);
// What a kernel is given of a state.
void gru_state_fill(const qk_gru_state &state, GruArgs *args);
Status gru_state_reset(qk_context *context, qk_gru_state *state);
Status gru_state_write(qk_context *context, qk_gru_state *state, const float *h);
Status gru_state_read(qk_context *context, const qk_gru_state *state, float *h);
// Counting codes that their types cut. On: from zero.
Status gru_state_count(qk_context *context, qk_gru_state *state, bool on);
// Sums over the batch.
Status gru_state_counts(qk_context *context, const qk_gru_state *state,
                        int64_t counts[QK_GRU_TENSOR_COUNT]);
void gru_state_destroy(qk_gru_state *state);

}  // namespace qk
