// Running a frozen GRU, and making one from bytes or integers.
#include <string.h>

#include <initializer_list>

#include "gru/image.hpp"
#include "gru/place.hpp"
#include "op/checks.hpp"
#include "op/gru.hpp"

namespace qk {
namespace {

using ll = long long;

Status check_codes(qk_context *context, const qk_tensor *tensor, const char *name,
                   int32_t code_bytes) {
    const qk_format codes = code_bytes == 1 ? QK_FORMAT_I8 : QK_FORMAT_I16;
    const qk_format format = tensor->shape.format->id;
    QK_CHECK(format == QK_FORMAT_F32 || format == codes, &context->error, FORMAT,
             "%s: is %s, accepted are f32 and %s", name, tensor->shape.format->name,
             code_bytes == 1 ? "i8" : "i16");
    return QK_OK;
}

Status check_live(qk_context *context, const qk_gru *gru) {
    QK_CHECK(gru != nullptr, &context->error, NULL, "gru: is NULL");
    QK_CHECK(check_gru(gru) == QK_OK, &context->error, STATE, "gru: is not a live GRU");
    const qk_context *const home = gru->context;
    QK_CHECK(home->backend == context->backend && home->device.index == context->device.index,
             &context->error, DEVICE_MIX, "gru: lives on %s:%d, the context on %s:%d",
             home->backend->name, home->device.index, context->backend->name,
             context->device.index);
    QK_CHECK(gru->is_frozen, &context->error, STATE, "gru: is not frozen yet");
    return QK_OK;
}

Status check_state(qk_context *context, const qk_gru *gru, const qk_gru_state *state) {
    QK_CHECK(state != nullptr, &context->error, NULL, "state: is NULL");
    QK_CHECK(check_gru_state(state) == QK_OK, &context->error, STATE,
             "state: is not a live GRU state");
    QK_CHECK(state->gru == gru, &context->error, STATE, "state: belongs to another GRU");
    return QK_OK;
}

Status check_operands(qk_context *context, const qk_gru *gru, const qk_gru_state *state,
                      const qk_tensor *x, const qk_tensor *y, const qk_tensor *gates,
                      GruExtent *extent) {
    QK_TRY(check_gru_input(context, gru, x, extent));
    QK_CHECK(extent->batch == state->batch, &context->error, SHAPE,
             "x: has %lld sequences, the state %d", ll(extent->batch), state->batch);
    QK_TRY(check_codes(context, x, "x", gru->cell.x_bytes));
    QK_TRY(check_gru_output(context, x, y, "y", gru->hidden_size));
    QK_TRY(check_codes(context, y, "y", gru->cell.h_bytes));
    if (gates == nullptr) return QK_OK;
    QK_TRY(check_gru_output(context, x, gates, "gates", int64_t{4} * gru->hidden_size));
    QK_CHECK(gates->shape.format->id == QK_FORMAT_F32, &context->error, FORMAT,
             "gates: is %s, accepted is f32", gates->shape.format->name);
    return check_disjoint(context, gates, "gates", y, "y");
}

GruArgs make_args(const qk_gru &gru, GruExtent extent) {
    GruArgs args = {};
    args.cell = &gru.cell;
    args.packed = gru.packed;
    args.steps = extent.steps;
    args.batch = extent.batch;
    return args;
}

}  // namespace

Status check_gru_input(qk_context *context, const qk_gru *gru, const qk_tensor *x,
                       GruExtent *extent) {
    QK_TRY(check_operand(context, x, "x"));
    QK_TRY(check_compact(context, x, "x"));
    const qk_tensor_desc &desc = x->desc;
    QK_CHECK(desc.rank == 2 || desc.rank == 3, &context->error, SHAPE,
             "x: has rank %d, accepted are [t,b,c] and [t,c]", desc.rank);
    QK_CHECK(x->shape.columns == gru->input_size, &context->error, SHAPE,
             "x: c is %lld, the GRU has %d", ll(x->shape.columns), gru->input_size);
    *extent = {desc.shape[0], desc.rank == 3 ? desc.shape[1] : 1};
    QK_CHECK(extent->batch >= 1, &context->error, SHAPE,
             "x: has no sequences, at least 1 is needed");
    return QK_OK;
}

Status check_gru_output(qk_context *context, const qk_tensor *x, const qk_tensor *tensor,
                        const char *name, int64_t columns) {
    QK_TRY(check_output(context, tensor, name));
    QK_TRY(check_compact(context, tensor, name));
    const int64_t batch = x->desc.rank == 3 ? x->desc.shape[1] : 1;
    const int64_t own_batch = tensor->desc.rank == 3 ? tensor->desc.shape[1] : 1;
    QK_CHECK((tensor->desc.rank == 2 || tensor->desc.rank == 3) &&
                 tensor->desc.shape[0] == x->desc.shape[0] && own_batch == batch &&
                 tensor->shape.columns == columns,
             &context->error, SHAPE, "%s: must be [%lld,%lld,%lld]", name, ll(x->desc.shape[0]),
             ll(batch), ll(columns));
    return check_disjoint(context, tensor, name, x, "x");
}

Status gru_run(qk_context *context, const qk_gru *gru, qk_gru_state *state, const qk_tensor *x,
               qk_tensor *y, qk_tensor *gates) {
    QK_TRY(check_live(context, gru));
    QK_TRY(check_state(context, gru, state));
    GruExtent extent = {};
    QK_TRY(check_operands(context, gru, state, x, y, gates, &extent));
    if (extent.steps == 0) return QK_OK;
    GruArgs args = make_args(*gru, extent);
    args.x_format = x->shape.format;
    args.x = x->planes[QK_PLANE_DATA];
    args.y_format = y->shape.format;
    args.y = y->planes[QK_PLANE_DATA];
    args.gates = gates == nullptr ? nullptr : gates->planes[QK_PLANE_DATA];
    gru_state_fill(*state, &args);
    QK_TRY(run_kernel(context, context->backend->gru, args, "gru_run"));
    if (state->is_counting) state->counted_samples += extent.steps * extent.batch;
    return QK_OK;
}

Status gru_workspace(qk_context *context, const qk_gru *gru, int32_t batch, int64_t t_max,
                     size_t *bytes) {
    QK_TRY(check_live(context, gru));
    QK_CHECK(batch >= 1 && t_max >= 1, &context->error, ARGUMENT,
             "batch and t_max: are %d and %lld, must be at least 1", batch, ll(t_max));
    size_t largest = 0;
    for (const qk_format id : {QK_FORMAT_F32, QK_FORMAT_I8, QK_FORMAT_I16}) {
        GruArgs args = make_args(*gru, {t_max, batch});
        args.x_format = args.y_format = find_format(id);
        const Kernel<GruArgs> *const kernel = pick(context->backend->gru, args, context->device);
        if (kernel == nullptr) continue;
        const size_t needed = workspace_of(*kernel, args, context->device);
        if (needed > largest) largest = needed;
    }
    *bytes = largest;
    return QK_OK;
}

namespace {

// `model` is checked as far as the fault goes; arrays are read only past the checks of pointers.
Status refuse_model(qk_context *context, const qk_gru_model &model, gru::Fault fault) {
    if (fault == gru::Fault::kStructSize)
        return fail(&context->error, QK_ERROR_ABI, "model: struct_size is %u, this library has %zu",
                    model.struct_size, sizeof(qk_gru_model));
    char text[gru::kPlaceText];
    return fail(&context->error, fault == gru::Fault::kPointer ? QK_ERROR_NULL : QK_ERROR_ARGUMENT,
                "model: %s%s", gru::place_text(gru::place_of(model, fault), text),
                gru::fault_text(fault));
}

}  // namespace

Status gru_create_from_model(qk_context *context, const qk_gru_model &model, qk_gru **out) {
    gru::Fault fault = gru::check_model(model);
    if (fault != gru::Fault::kNone) return refuse_model(context, model, fault);
    if (gru::broken_granularity(model).tensor >= 0)
        return refuse_model(context, model, gru::Fault::kGranularity);
    const int64_t bytes = gru::image_bytes(model);
    void *const image =
        uint64_t(bytes) > SIZE_MAX ? nullptr : host_allocate(context, size_t(bytes));
    QK_CHECK(image != nullptr, &context->error, MEMORY, "gru: no memory for %lld bytes", ll(bytes));
    fault = gru::image_write(model, image);
    if (fault != gru::Fault::kNone) {
        host_release(context, image);
        return refuse_model(context, model, fault);
    }
    return gru_create_frozen(context, image, size_t(bytes), QK_ERROR_INTERNAL, out);
}

Status gru_load(qk_context *context, const void *data, size_t bytes, qk_gru **out) {
    // A copy: the caller's bytes may move or change once we are back, and may be misaligned.
    QK_CHECK(bytes > 0, &context->error, CORRUPT, "gru: %s", gru::fault_text(gru::Fault::kLength));
    void *const image = host_allocate(context, bytes);
    QK_CHECK(image != nullptr, &context->error, MEMORY, "gru: no memory for %zu bytes", bytes);
    memcpy(image, data, bytes);
    return gru_create_frozen(context, image, bytes, QK_ERROR_CORRUPT, out);
}

Status gru_scale(const qk_gru &gru, qk_gru_tensor which, int32_t channel, int32_t *shift,
                 int32_t *zero_point) {
    if (!gru.is_frozen) return QK_ERROR_STATE;
    if (which < 0 || which >= QK_GRU_TENSOR_COUNT) return QK_ERROR_ARGUMENT;
    const int8_t *rows = nullptr;
    if (which == QK_GRU_W) rows = gru.model.w_shift;
    if (which == QK_GRU_R) rows = gru.model.r_shift;
    if (which == QK_GRU_BW) rows = gru.model.bw_shift;
    if (which == QK_GRU_BR) rows = gru.model.br_shift;
    const int64_t channels = rows == nullptr ? 1 : int64_t{3} * gru.hidden_size;
    if (channel < 0 || channel >= channels) return QK_ERROR_ARGUMENT;
    *shift = rows == nullptr ? gru.model.shift[which] : rows[channel];
    *zero_point = gru.model.zero_point[which];
    return QK_OK;
}

}  // namespace qk
