// The life of a GRU before the freeze: float weights, ranges, the float run itself.
#include <math.h>
#include <string.h>

#include <initializer_list>

#include "base/checked.hpp"
#include "gru/calibrate/build.hpp"
#include "gru/place.hpp"
#include "op/checks.hpp"
#include "op/gru.hpp"

namespace qk {
namespace {

using ll = long long;

constexpr float kLargest = 1e15f;      // 65535 products of two such values stay finite in f32
constexpr int64_t kRowsTogether = 64;  // of x that one product with W takes
constexpr uint32_t kConfigFlags =
    QK_GRU_UNIFORM_TABLES | QK_GRU_BIAS_CORRECTION | QK_GRU_HEADROOM | QK_GRU_H_VIEW_8;

Status check_config(qk_context *context, const qk_gru_config &config) {
    ErrorText *const error = &context->error;
    QK_CHECK(config.struct_size == sizeof(qk_gru_config), error, ABI,
             "config: struct_size is %u, this library has %zu", config.struct_size,
             sizeof(qk_gru_config));
    QK_CHECK((config.flags & ~kConfigFlags) == 0 && config.reserved == 0, error, ARGUMENT,
             "config: unknown flags 0x%x, or reserved is not 0", config.flags);
    for (const int32_t size : {config.input_size, config.hidden_size})
        QK_CHECK(size >= 1 && size <= gru::kMaxSize, error, SHAPE,
                 "config: a size is %d, accepted are 1 to %d", size, gru::kMaxSize);
    QK_CHECK(config.gate_order == QK_GRU_ORDER_RZN || config.gate_order == QK_GRU_ORDER_ZRN, error,
             ARGUMENT, "config: gate_order is %d", config.gate_order);
    QK_CHECK(config.calibration >= QK_GRU_CALIBRATE_MIN_MAX &&
                 config.calibration <= QK_GRU_CALIBRATE_MSE,
             error, ARGUMENT, "config: calibration is %d", config.calibration);
    return QK_OK;
}

Status check_values(qk_context *context, const float *values, int64_t count, const char *name) {
    for (int64_t i = 0; i < count; ++i)
        QK_CHECK(fabsf(values[i]) <= kLargest, &context->error, ARGUMENT,
                 "%s: value %lld is %g, accepted are -1e15 to 1e15", name, ll(i),
                 double(values[i]));
    return QK_OK;
}

// Rows of three gates in the caller's order to u, r, n.
void copy_gates(int32_t order, const float *from, int64_t per_gate, float *to) {
    const bool reset_first = order == QK_GRU_ORDER_RZN;
    const int64_t source[] = {reset_first ? 1 : 0, reset_first ? 0 : 1, 2};
    for (int32_t gate = 0; gate < 3; ++gate)
        memcpy(to + gate * per_gate, from + source[gate] * per_gate, size_t(per_gate) * 4);
}

// Host memory of one call, freed with it.
class HostBlock {
  public:
    HostBlock(qk_context *context, Checked bytes) : context_(context) {
        if (bytes.ok && uint64_t(bytes.value) <= SIZE_MAX)
            memory_ = host_allocate(context, size_t(bytes.value));
    }
    ~HostBlock() {
        if (memory_ != nullptr) host_release(context_, memory_);
    }
    HostBlock(const HostBlock &) = delete;
    HostBlock &operator=(const HostBlock &) = delete;

    void *get() const { return memory_; }
    float *floats() const { return static_cast<float *>(memory_); }

  private:
    qk_context *context_;
    void *memory_ = nullptr;
};

// A step's arrays, one behind the other.
gru::FloatTrace make_trace(float *block, int64_t batch, int64_t n) {
    const int64_t states = batch * n;
    return {nullptr,
            block,
            block + 3 * states,
            block + 4 * states,
            block + 5 * states,
            block + 6 * states,
            block + 7 * states,
            block + 8 * states,
            block + 9 * states};
}

template <class Args>
Status run_float_kernel(const KernelList<Args> &list, const Args &args, const Launch &launch) {
    return pick(list, args, launch.device)->run(args, launch);  // the portable one ends the list
}

// Runs x through the float GRU; each_step(t, x of the step, old states, trace). W x of some steps
// is one product; the recurrence reads R alone.
template <class EachStep>
Status run_steps(qk_context *context, const gru::FloatGru &weights, const float *x, const float *h0,
                 GruExtent extent, const EachStep &each_step) {
    const Backend &cpu = *find_backend(QK_DEVICE_CPU);
    Launch launch = make_launch(context);
    if (context->backend != &cpu) launch.device = device_at(cpu, 0);
    const int64_t c = weights.input_size, n = weights.hidden_size, batch = extent.batch;
    const int64_t most = batch >= kRowsTogether ? 1 : kRowsTogether / batch;
    const int64_t together = extent.steps < most ? extent.steps : most;
    // ih of all of them, the rest of one step, and the states it starts from.
    HostBlock block(context, Checked(batch) * (3 * n * together + 11 * n) * 4);
    QK_CHECK(block.get() != nullptr, &context->error, MEMORY,
             "gru: no memory to run %lld sequences in f32", ll(batch));
    float *const ih = block.floats(), *const h = ih + 3 * n * together * batch;
    gru::FloatTrace trace = make_trace(h + batch * n, batch, n);
    if (h0 != nullptr)
        memcpy(h, h0, size_t(batch * n) * 4);
    else
        memset(h, 0, size_t(batch * n) * 4);
    for (int64_t t = 0; t < extent.steps; ++t) {
        const int64_t step = t % together, left = extent.steps - t;
        const float *const x_step = x + t * batch * c;
        if (step == 0)
            QK_TRY(run_float_kernel(cpu.float_product,
                                    {weights.w_panels, weights.bw, x_step,
                                     batch * (left < together ? left : together), c, 3 * n, ih},
                                    launch));
        trace.ih = ih + step * batch * 3 * n;
        QK_TRY(run_float_kernel(cpu.float_product,
                                {weights.r_panels, weights.br, h, batch, n, 3 * n, trace.hh},
                                launch));
        QK_TRY(run_float_kernel(cpu.float_gates,
                                {batch, n, trace.ih, trace.hh, h, trace.u_in, trace.u, trace.r_in,
                                 trace.r, trace.n_in, trace.n, trace.h},
                                launch));
        each_step(t, x_step, h, trace);
        memcpy(h, trace.h, size_t(batch * n) * 4);
    }
    return QK_OK;
}

Status check_float_input(qk_context *context, const qk_gru *gru, const qk_tensor *x,
                         GruExtent *extent) {
    QK_TRY(check_gru_input(context, gru, x, extent));
    QK_CHECK(x->shape.format->id == QK_FORMAT_F32, &context->error, FORMAT,
             "x: is %s, accepted is f32", x->shape.format->name);
    return QK_OK;
}

// x on the host, checked value by value.
Status fetch_input(qk_context *context, const qk_tensor *x, const HostBlock &host) {
    const size_t bytes = size_t(x->shape.plane_bytes[QK_PLANE_DATA]);
    QK_CHECK(host.get() != nullptr, &context->error, MEMORY, "gru: no memory for a copy of x");
    QK_TRY(tensor_download(context, x, QK_PLANE_DATA, host.get(), bytes));
    return check_values(context, host.floats(), int64_t(bytes / 4), "x");
}

}  // namespace

Status check_float_gru(qk_context *context, const qk_gru *gru) {
    QK_CHECK(gru != nullptr, &context->error, NULL, "gru: is NULL");
    QK_CHECK(check_gru(gru) == QK_OK, &context->error, STATE, "gru: is not a live GRU");
    QK_CHECK(!gru->is_frozen, &context->error, STATE, "gru: is frozen, its f32 weights are gone");
    return QK_OK;
}

Status gru_create(qk_context *context, const qk_gru_config &config, const GruWeights &weights,
                  qk_gru **out) {
    QK_TRY(check_config(context, config));
    gru::BuildOptions options = {};
    QK_CHECK(gru::preset_quants(config.preset, options.quant, &options.flags), &context->error,
             ARGUMENT, "config: preset is %d", config.preset);
    options.flags |= config.flags;
    options.calibration = config.calibration;
    const int64_t c = config.input_size, h = config.hidden_size;
    QK_TRY(check_values(context, weights.w, 3 * h * c, "w_ih"));
    QK_TRY(check_values(context, weights.r, 3 * h * h, "w_hh"));
    if (weights.bw != nullptr) QK_TRY(check_values(context, weights.bw, 3 * h, "b_ih"));
    if (weights.br != nullptr) QK_TRY(check_values(context, weights.br, 3 * h, "b_hh"));
    qk_gru *gru = nullptr;
    QK_TRY(gru_create_float(context, config, &gru));
    gru->training.options = options;
    const gru::FloatGru &to = gru->training.weights;
    copy_gates(config.gate_order, weights.w, h * c, const_cast<float *>(to.w));
    copy_gates(config.gate_order, weights.r, h * h, const_cast<float *>(to.r));
    if (weights.bw != nullptr)
        copy_gates(config.gate_order, weights.bw, h, const_cast<float *>(to.bw));
    if (weights.br != nullptr)
        copy_gates(config.gate_order, weights.br, h, const_cast<float *>(to.br));
    gru::fill_panels(to.w, 3 * h, c, const_cast<float *>(to.w_panels));
    gru::fill_panels(to.r, 3 * h, h, const_cast<float *>(to.r_panels));
    *out = gru;
    return QK_OK;
}

Status gru_set_quant(qk_gru *gru, qk_gru_tensor which, const qk_gru_quant &quant) {
    if (gru->is_frozen) return QK_ERROR_STATE;
    if (which < 0 || which >= QK_GRU_TENSOR_COUNT) return QK_ERROR_ARGUMENT;
    if (!gru::quant_is_valid(which, quant)) return QK_ERROR_ARGUMENT;
    gru->training.options.quant[which] = quant;
    return QK_OK;
}

Status gru_calibrate(qk_context *context, qk_gru *gru, const qk_tensor *x, const float *h0) {
    QK_TRY(check_float_gru(context, gru));
    GruExtent extent;
    QK_TRY(check_float_input(context, gru, x, &extent));
    if (extent.steps == 0) return QK_OK;
    HostBlock host(context, x->shape.plane_bytes[QK_PLANE_DATA]);
    QK_TRY(fetch_input(context, x, host));
    if (h0 != nullptr) QK_TRY(check_values(context, h0, extent.batch * gru->hidden_size, "h0"));
    GruTraining &training = gru->training;
    return run_steps(
        context, training.weights, host.floats(), h0, extent,
        [&](int64_t, const float *x_step, const float *h, const gru::FloatTrace &trace) {
        gru::observe_step(&training.ranges, training.weights, training.options.calibration,
                          extent.batch, x_step, h, trace);
        });
}

Status gru_run_float(qk_context *context, const qk_gru *gru, const qk_tensor *x, const float *h0,
                     qk_tensor *y) {
    QK_TRY(check_float_gru(context, gru));
    GruExtent extent;
    QK_TRY(check_float_input(context, gru, x, &extent));
    QK_TRY(check_gru_output(context, x, y, "y", gru->hidden_size));
    QK_CHECK(y->shape.format->id == QK_FORMAT_F32, &context->error, FORMAT,
             "y: is %s, accepted is f32", y->shape.format->name);
    if (extent.steps == 0) return QK_OK;
    HostBlock host(context, x->shape.plane_bytes[QK_PLANE_DATA]);
    QK_TRY(fetch_input(context, x, host));
    if (h0 != nullptr) QK_TRY(check_values(context, h0, extent.batch * gru->hidden_size, "h0"));
    const int64_t n = gru->hidden_size;
    const size_t y_bytes = size_t(y->shape.plane_bytes[QK_PLANE_DATA]);
    HostBlock result(context, y->shape.plane_bytes[QK_PLANE_DATA]);
    QK_CHECK(result.get() != nullptr, &context->error, MEMORY, "gru: no memory for y");
    QK_TRY(run_steps(context, gru->training.weights, host.floats(), h0, extent,
                     [&](int64_t t, const float *, const float *, const gru::FloatTrace &trace) {
        memcpy(result.floats() + t * extent.batch * n, trace.h, size_t(extent.batch * n) * 4);
    }));
    return tensor_upload(context, y, QK_PLANE_DATA, result.get(), y_bytes);
}

Status gru_freeze(qk_context *context, qk_gru *gru) {
    QK_TRY(check_float_gru(context, gru));
    const GruTraining &training = gru->training;
    QK_CHECK(training.ranges.samples > 0, &context->error, STATE,
             "gru: was not calibrated, call qk_gru_calibrate first");
    const int64_t rows = int64_t{3} * gru->hidden_size;
    const qk_gru_quant *const quant = training.options.quant;
    const int64_t w_bytes = rows * gru->input_size * gru::code_bytes(quant[QK_GRU_W].bits);
    const int64_t r_bytes = rows * gru->hidden_size * gru::code_bytes(quant[QK_GRU_R].bits);
    // In falling order of alignment: biases, weights, shifts.
    HostBlock block(context,
                    Checked(8 * rows) + round_up(w_bytes, 8) + round_up(r_bytes, 8) + 4 * rows);
    HostBlock storage_block(context, int64_t(sizeof(gru::ModelStorage)));
    QK_CHECK(block.get() != nullptr && storage_block.get() != nullptr, &context->error, MEMORY,
             "gru: no memory to quantize the weights");
    gru::ModelStorage *const storage = static_cast<gru::ModelStorage *>(storage_block.get());
    storage->bw = static_cast<int32_t *>(block.get());
    storage->br = storage->bw + rows;
    char *const w = reinterpret_cast<char *>(storage->br + rows);
    char *const r = w + round_up(w_bytes, 8);
    storage->w = w;
    storage->r = r;
    storage->w_shift = reinterpret_cast<int8_t *>(r + round_up(r_bytes, 8));
    storage->r_shift = storage->w_shift + rows;
    storage->bw_shift = storage->r_shift + rows;
    storage->br_shift = storage->bw_shift + rows;

    qk_gru_model model;
    gru::build_model(training.weights, training.ranges, training.options, storage, &model);
    const int64_t bytes = gru::image_bytes(model);
    void *const image =
        uint64_t(bytes) > SIZE_MAX ? nullptr : host_allocate(context, size_t(bytes));
    QK_CHECK(image != nullptr, &context->error, MEMORY, "gru: no memory for %lld bytes", ll(bytes));
    const gru::Fault fault = gru::image_write(model, image);
    Status status = QK_OK;
    char text[gru::kPlaceText];
    if (fault != gru::Fault::kNone)
        status = fail(&context->error, QK_ERROR_ARGUMENT, "gru: the ranges cannot be frozen: %s%s",
                      gru::place_text(gru::place_of(model, fault), text), gru::fault_text(fault));
    if (status == QK_OK)
        status = gru_adopt_image(context, gru, image, size_t(bytes), QK_ERROR_INTERNAL);
    if (status != QK_OK) host_release(context, image);
    return status;
}

}  // namespace qk
