#include "object/gru.hpp"

#include <string.h>

#include <initializer_list>

#include "backend/backend.hpp"
#include "base/checked.hpp"
#include "gru/place.hpp"

namespace qk {

namespace {

constexpr int32_t kSmallestReach = -126;  // histograms start at +-2^-126 and grow

Status make_gru(qk_context *context, qk_gru **out) {
    void *const memory = host_allocate(context, sizeof(qk_gru));
    QK_CHECK(memory != nullptr, &context->error, MEMORY, "gru: no memory for a handle");
    memset(memory, 0, sizeof(qk_gru));
    qk_gru *const gru = static_cast<qk_gru *>(memory);
    gru->magic = kGruMagic;
    gru->references.store(1);
    gru->context = context;
    context_retain(context);
    *out = gru;
    return QK_OK;
}

void drop_training(qk_gru *gru) {
    if (gru->training.memory != nullptr) host_release(gru->context, gru->training.memory);
    memset(&gru->training, 0, sizeof(gru->training));
}

void free_gru(qk_gru *gru) {
    qk_context *const context = gru->context;
    drop_training(gru);
    device_release(context, gru->device_image);
    if (gru->packed != nullptr) host_release(context, gru->packed);
    if (gru->image != nullptr) host_release(context, gru->image);
    gru->magic = kDestroyedMagic;
    host_release(context, gru);
    context_release(context);
}

// Hands out pieces of a block whose size was counted by the same calls.
struct Carver {
    char *block;  // null while counting
    int64_t used;

    void *take(int64_t count, int64_t element_bytes) {
        void *const piece = block == nullptr ? nullptr : block + used;
        used += round_up(count * element_bytes, 64);
        return piece;
    }
};

void carve_training(Carver *carver, int32_t c, int32_t h, bool with_histogram,
                    GruTraining *training) {
    const int64_t rows = int64_t{3} * h, padded = gru::panels_rows(rows);
    training->weights = {c,
                         h,
                         static_cast<float *>(carver->take(rows * c, 4)),
                         static_cast<float *>(carver->take(rows * h, 4)),
                         static_cast<float *>(carver->take(padded, 4)),
                         static_cast<float *>(carver->take(padded, 4)),
                         static_cast<float *>(carver->take(padded * c, 4)),
                         static_cast<float *>(carver->take(padded * h, 4))};
    training->ranges.x_sum = static_cast<double *>(carver->take(c, 8));
    training->ranges.h_sum = static_cast<double *>(carver->take(h, 8));
    training->ranges.histogram = static_cast<gru::Histogram *>(
        carver->take(with_histogram ? QK_GRU_TENSOR_COUNT : 0, sizeof(gru::Histogram)));
    if (!with_histogram) training->ranges.histogram = nullptr;
}

// A pointer into the host's image, moved to the same place in the device's.
template <class T>
void move_pointer(const T *&pointer, const void *from, const void *to) {
    if (pointer == nullptr) return;
    const char *const at = reinterpret_cast<const char *>(pointer);
    pointer = reinterpret_cast<const T *>(static_cast<const char *>(to) +
                                          (at - static_cast<const char *>(from)));
}

void move_void(const void *&pointer, const void *from, const void *to) {
    const char *at = static_cast<const char *>(pointer);
    move_pointer(at, from, to);
    pointer = at;
}

void move_cell(gru::Cell *cell, const void *from, const void *to) {
    move_void(cell->w, from, to);
    move_void(cell->r, from, to);
    move_pointer(cell->w_shift, from, to);
    move_pointer(cell->r_shift, from, to);
    move_pointer(cell->ih_offset, from, to);
    move_pointer(cell->hh_offset, from, to);
    for (gru::Table *table : {&cell->update, &cell->reset, &cell->candidate}) {
        move_pointer(table->threshold, from, to);
        move_pointer(table->slope, from, to);
        move_pointer(table->intercept, from, to);
    }
}

Status make_packed(qk_context *context, const gru::Cell &cell, void **packed) {
    const GruPacking &packing = context->backend->gru_packing;
    *packed = nullptr;
    const int64_t bytes = packing.bytes == nullptr ? 0 : packing.bytes(cell);
    if (bytes == 0) return QK_OK;
    if (uint64_t(bytes) <= SIZE_MAX) *packed = host_allocate(context, size_t(bytes));
    QK_CHECK(*packed != nullptr, &context->error, MEMORY,
             "gru: no memory for %lld bytes of packed weights", (long long)bytes);
    packing.make(cell, *packed);
    return QK_OK;
}

}  // namespace

Status check_gru(const qk_gru *gru) {
    if (gru == nullptr) return QK_ERROR_NULL;
    return gru->magic == kGruMagic ? QK_OK : QK_ERROR_STATE;
}

Status gru_create_float(qk_context *context, const qk_gru_config &config, qk_gru **out) {
    qk_gru *gru = nullptr;
    QK_TRY(make_gru(context, &gru));
    const bool with_histogram = config.calibration == QK_GRU_CALIBRATE_MSE;
    const int32_t c = config.input_size, h = config.hidden_size;
    Carver counter = {nullptr, 0};
    carve_training(&counter, c, h, with_histogram, &gru->training);
    void *const memory =
        uint64_t(counter.used) > SIZE_MAX ? nullptr : host_allocate(context, size_t(counter.used));
    if (memory == nullptr) {
        free_gru(gru);
        return fail(&context->error, QK_ERROR_MEMORY, "gru: no memory for %lld bytes of weights",
                    (long long)counter.used);
    }
    memset(memory, 0, size_t(counter.used));
    Carver carver = {static_cast<char *>(memory), 0};
    carve_training(&carver, c, h, with_histogram, &gru->training);
    gru->training.memory = memory;
    gru->input_size = c;
    gru->hidden_size = h;
    for (int32_t i = 0; with_histogram && i < QK_GRU_TENSOR_COUNT; ++i)
        gru->training.ranges.histogram[i].reach = kSmallestReach;
    *out = gru;
    return QK_OK;
}

Status gru_adopt_image(qk_context *context, qk_gru *gru, void *image, size_t bytes,
                       Status corrupt) {
    qk_gru_model model;
    gru::Cell cell;
    gru::Fault fault = gru::image_read(image, bytes, &model, &cell);
    if (fault == gru::Fault::kNone && gru::broken_granularity(model).tensor >= 0)
        fault = gru::Fault::kGranularity;
    if (fault != gru::Fault::kNone)
        return fail(&context->error, corrupt, "gru: %s", gru::fault_text(fault));
    void *device_image = nullptr;
    if (context->backend->memory.allocate != nullptr) {
        device_image = device_allocate(context, bytes);
        QK_CHECK(device_image != nullptr, &context->error, MEMORY,
                 "gru: no memory for %zu bytes on %s", bytes, context->backend->name);
        const Status status =
            context->backend->memory.upload(make_launch(context), device_image, image, bytes);
        if (status != QK_OK) {
            device_release(context, device_image);
            return status;
        }
        move_cell(&cell, image, device_image);
    }
    void *packed = nullptr;
    const Status status = make_packed(context, cell, &packed);
    if (status != QK_OK) {
        device_release(context, device_image);
        return status;
    }
    drop_training(gru);
    gru->packed = packed;
    gru->image = image;
    gru->image_bytes = bytes;
    gru->device_image = device_image;
    gru->model = model;
    gru->cell = cell;
    gru->input_size = model.input_size;
    gru->hidden_size = model.hidden_size;
    gru->is_frozen = true;
    return QK_OK;
}

Status gru_create_frozen(qk_context *context, void *image, size_t bytes, Status corrupt,
                         qk_gru **out) {
    qk_gru *gru = nullptr;
    Status status = make_gru(context, &gru);
    if (status == QK_OK) {
        status = gru_adopt_image(context, gru, image, bytes, corrupt);
        if (status != QK_OK) free_gru(gru);
    }
    if (status != QK_OK) {
        host_release(context, image);
        return status;
    }
    *out = gru;
    return QK_OK;
}

void gru_release(qk_gru *gru) {
    if (gru->references.fetch_sub(1, std::memory_order_acq_rel) == 1) free_gru(gru);
}

void gru_destroy(qk_gru *gru) {
    if (check_gru(gru) != QK_OK) return;
    gru->magic = kDestroyedMagic;
    gru_release(gru);
}

}  // namespace qk
