#include "object/tensor.hpp"

#include <string.h>

namespace qk {
namespace {

constexpr int64_t kPlaneAlignment = 256;  // enough for any vector load or bulk copy

// A handle without planes.
Status make_handle(qk_context *context, const qk_tensor_desc &desc, const Shape &shape,
                   qk_tensor **out) {
    void *const memory = host_allocate(context, sizeof(qk_tensor));
    QK_CHECK(memory != nullptr, &context->error, MEMORY, "tensor: no memory for a handle");
    memset(memory, 0, sizeof(qk_tensor));
    qk_tensor *const tensor = static_cast<qk_tensor *>(memory);
    tensor->magic = kTensorMagic;
    tensor->references.store(1);
    tensor->context = context;
    tensor->desc = desc;
    tensor->shape = shape;
    if (!is_dense(*shape.format)) {
        const bool asked_flat = desc.grouping == QK_GROUPING_FLAT;
        const bool flat = shape.geometry.flat || asked_flat;
        tensor->desc.grouping = flat ? QK_GROUPING_FLAT : QK_GROUPING_ALONG_K;
        tensor->desc.scale_group_size = int32_t(shape.second_group);
    }
    context_retain(context);
    *out = tensor;
    return QK_OK;
}

void free_tensor(qk_tensor *tensor) {
    qk_context *const context = tensor->context;
    device_release(context, tensor->storage);
    if (tensor->release_borrowed != nullptr) tensor->release_borrowed(tensor->borrowed_from);
    tensor->magic = kDestroyedMagic;
    host_release(context, tensor);
    context_release(context);
}

// Whether a dense tensor's numbers, by rows or by columns, follow one another.
bool has_gaps(const Shape &shape) {
    return is_dense(*shape.format) && shape.plane_bytes[QK_PLANE_DATA] !=
                                          shape.rows * shape.columns * (shape.format->bits / 8);
}

Status check_transfer(qk_context *context, const qk_tensor *tensor, qk_plane plane,
                      const void *host, size_t bytes) {
    QK_CHECK(tensor->context->backend == context->backend &&
                 tensor->context->device.index == context->device.index,
             &context->error, DEVICE_MIX, "tensor: lives on %s:%d, the context on %s:%d",
             tensor->context->backend->name, tensor->context->device.index, context->backend->name,
             context->device.index);
    QK_CHECK(plane >= 0 && plane < QK_PLANE_COUNT, &context->error, ARGUMENT,
             "plane: is %d, accepted are 0 to %d", plane, QK_PLANE_COUNT - 1);
    const int64_t expected = tensor->shape.plane_bytes[plane];
    QK_CHECK(has_plane(*tensor, plane), &context->error, FORMAT, "plane: %s has no plane %d",
             tensor->shape.format->name, plane);
    QK_CHECK(!has_gaps(tensor->shape), &context->error, UNSUPPORTED,
             "tensor: has a row_stride of %lld; what is between its %s is not its own",
             (long long)tensor->shape.stride, tensor->shape.column_major ? "columns" : "rows");
    QK_CHECK(bytes == size_t(expected), &context->error, BUFFER_SIZE,
             "bytes: is %zu, plane %d has %lld", bytes, plane, (long long)expected);
    QK_CHECK(host != nullptr || bytes == 0, &context->error, NULL, "host: is NULL");
    QK_CHECK(!overlap(host, expected, tensor->planes[plane], expected), &context->error, STATE,
             "host: overlaps plane %d of the tensor", plane);
    return QK_OK;
}

}  // namespace

Status resolve_on(qk_context *context, const qk_tensor_desc &desc, Shape *shape) {
    const Format *format = nullptr;
    QK_TRY(resolve_format(desc, &format, &context->error));
    return resolve(desc, context->backend->packed_layout(*format), shape, &context->error);
}

Status tensor_create(qk_context *context, const qk_tensor_desc &desc, qk_tensor **out) {
    Shape shape;
    QK_TRY(resolve_on(context, desc, &shape));
    Checked total(0);
    for (const int64_t bytes : shape.plane_bytes) {
        total = total + Checked(ceil_div(bytes, kPlaneAlignment)) * kPlaneAlignment;
    }
    // Beyond this no allocator can help, and size_t may be 32 bits wide.
    QK_CHECK(total.ok && uint64_t(total.value) <= uint64_t(SIZE_MAX / 2), &context->error, MEMORY,
             "tensor: its planes exceed the address space");
    qk_tensor *tensor = nullptr;
    QK_TRY(make_handle(context, desc, shape, &tensor));
    // The context's allocator aligns to 64 bytes: pad, and start at the next plane boundary.
    const size_t bytes = size_t(total.value) + size_t(kPlaneAlignment);
    tensor->storage = device_allocate(context, bytes);
    if (tensor->storage == nullptr) {
        tensor_release(tensor);
        return fail(&context->error, QK_ERROR_MEMORY, "tensor: no memory for %zu bytes on %s:%d",
                    bytes, context->backend->name, context->device.index);
    }
    const uintptr_t start = uintptr_t(tensor->storage);
    uintptr_t at = uintptr_t(round_up(int64_t(start), kPlaneAlignment));
    for (int32_t i = 0; i < QK_PLANE_COUNT; ++i) {
        if (shape.plane_bytes[i] == 0) continue;
        tensor->planes[i] = reinterpret_cast<void *>(at);
        at += uintptr_t(round_up(shape.plane_bytes[i], kPlaneAlignment));
    }
    *out = tensor;
    return QK_OK;
}

Status tensor_wrap(qk_context *context, const qk_tensor_desc &desc, void *const *planes,
                   int32_t plane_count, qk_tensor **out) {
    Shape shape;
    QK_TRY(resolve_on(context, desc, &shape));
    QK_CHECK(desc.layout != QK_LAYOUT_PACKED || is_dense(*shape.format), &context->error,
             UNSUPPORTED,
             "desc: layout packed cannot be wrapped; create the tensor and repack into it");
    QK_CHECK(plane_count >= 1 && plane_count <= QK_PLANE_COUNT, &context->error, ARGUMENT,
             "plane_count: is %d, accepted are 1 to %d", plane_count, QK_PLANE_COUNT);
    for (int32_t i = 0; i < QK_PLANE_COUNT; ++i) {
        const bool given = i < plane_count && planes[i] != nullptr;
        if (shape.plane_bytes[i] != 0) {
            QK_CHECK(given, &context->error, NULL, "planes[%d]: is missing, %s needs %lld bytes", i,
                     shape.format->name, (long long)shape.plane_bytes[i]);
        } else {
            QK_CHECK(!given || i == QK_PLANE_DATA, &context->error, FORMAT,
                     "planes[%d]: %s has no such plane", i, shape.format->name);
        }
    }
    qk_tensor *tensor = nullptr;
    QK_TRY(make_handle(context, desc, shape, &tensor));
    for (int32_t i = 0; i < plane_count; ++i) tensor->planes[i] = planes[i];
    *out = tensor;
    return QK_OK;
}

Status tensor_wrap_sized(qk_context *context, const qk_tensor_desc &desc, const qk_span *planes,
                         int32_t plane_count, qk_tensor **out) {
    Shape shape;
    void *data[QK_PLANE_COUNT] = {};
    QK_TRY(resolve_on(context, desc, &shape));
    for (int32_t i = 0; i < min64(plane_count, QK_PLANE_COUNT); ++i) {
        data[i] = planes[i].data;
        const uint64_t needed = uint64_t(shape.plane_bytes[i]);
        QK_CHECK(data[i] == nullptr || planes[i].bytes >= needed, &context->error, BUFFER_SIZE,
                 "planes[%d]: has %zu bytes, %s needs %llu", i, planes[i].bytes, shape.format->name,
                 (unsigned long long)needed);
    }
    return tensor_wrap(context, desc, data, plane_count, out);
}

void tensor_retain(qk_tensor *tensor) {
    tensor->references.fetch_add(1, std::memory_order_relaxed);
}

void tensor_release(qk_tensor *tensor) {
    if (tensor->references.fetch_sub(1, std::memory_order_acq_rel) == 1) free_tensor(tensor);
}

void tensor_destroy(qk_tensor *tensor) {
    if (check_tensor(tensor) != QK_OK) return;
    tensor->magic = kDestroyedMagic;
    tensor_release(tensor);
}

Status check_tensor(const qk_tensor *tensor) {
    if (tensor == nullptr) return QK_ERROR_NULL;
    return tensor->magic == kTensorMagic ? QK_OK : QK_ERROR_STATE;
}

bool has_plane(const qk_tensor &tensor, qk_plane plane) {
    return plane == QK_PLANE_DATA || tensor.shape.plane_bytes[plane] != 0;
}

Dense dense_view(const qk_tensor &tensor) {
    const Shape &shape = tensor.shape;
    return {shape.format, shape.rows,        shape.columns, tensor.planes[QK_PLANE_DATA],
            shape.stride, shape.column_major};
}

Weight stored_view(const qk_tensor &tensor) {
    return weight_of(tensor.shape, tensor.planes, *tensor.context->device.tables);
}

Weight weight_view(const qk_tensor &tensor, float *folded) {
    Weight w = stored_view(tensor);
    if (tensor.context->backend->device == QK_DEVICE_CPU) fold_global(&w, folded);
    return w;
}

Status tensor_upload(qk_context *context, qk_tensor *tensor, qk_plane plane, const void *host,
                     size_t bytes) {
    QK_TRY(check_transfer(context, tensor, plane, host, bytes));
    QK_CHECK((tensor->desc.flags & QK_TENSOR_READ_ONLY) == 0, &context->error, STATE,
             "tensor: is read-only");
    if (bytes == 0) return QK_OK;
    return context->backend->memory.upload(make_launch(context), tensor->planes[plane], host,
                                           bytes);
}

Status tensor_download(qk_context *context, const qk_tensor *tensor, qk_plane plane, void *host,
                       size_t bytes) {
    QK_TRY(check_transfer(context, tensor, plane, host, bytes));
    if (bytes == 0) return QK_OK;
    return context->backend->memory.download(make_launch(context), host, tensor->planes[plane],
                                             bytes);
}

}  // namespace qk
