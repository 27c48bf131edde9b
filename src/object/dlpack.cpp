#include "object/dlpack.hpp"

#include <string.h>

namespace qk {
namespace {

constexpr uint32_t kMajor = 1, kMinor = 0;
constexpr uint64_t kReadOnly = 1;  // DLPACK_FLAG_BITMASK_READ_ONLY
constexpr uint8_t kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4;

struct TypeRow {
    qk_format format;
    uint8_t code, bits;
};
constexpr TypeRow kTypes[] = {
    {QK_FORMAT_F32, kFloat, 32}, {QK_FORMAT_F16, kFloat, 16}, {QK_FORMAT_BF16, kBfloat, 16},
    {QK_FORMAT_I8, kInt, 8},     {QK_FORMAT_I16, kInt, 16},   {QK_FORMAT_I32, kInt, 32},
};

// What a consumer of a plane holds: the view, and one reference to the tensor.
struct Export {
    DLManagedTensorVersioned managed;
    qk_tensor *tensor;
    int64_t shape[QK_MAX_RANK], strides[QK_MAX_RANK];
};

void delete_export(DLManagedTensorVersioned *self) {
    Export *const view = static_cast<Export *>(self->manager_ctx);
    qk_tensor *const tensor = view->tensor;
    host_release(tensor->context, view);
    tensor_release(tensor);
}

void release_managed(void *managed) {
    DLManagedTensorVersioned *const self = static_cast<DLManagedTensorVersioned *>(managed);
    if (self->deleter != nullptr) self->deleter(self);
}

// Has no elements, so that its strides mean nothing and its data may be NULL.
bool is_empty(const DLTensor &tensor) {
    bool empty = false;
    for (int32_t i = 0; i < tensor.ndim; ++i) empty |= tensor.shape[i] == 0;
    return empty;
}

// Row-major, rows equally far apart.
Status read_strides(qk_context *context, const DLTensor &tensor, qk_tensor_desc *desc) {
    if (tensor.strides == nullptr || is_empty(tensor)) return QK_OK;
    const int32_t last = tensor.ndim - 1;
    int64_t row_stride = 0;  // 0: one row so far
    Checked expected(1);
    for (int32_t i = last; i >= 0; --i) {
        const int64_t stride = tensor.strides[i];
        if (tensor.shape[i] == 1) continue;  // may carry any stride
        const bool rows = i < last && row_stride == 0;
        QK_CHECK(rows ? stride >= expected.value : stride == expected.value, &context->error, SHAPE,
                 "managed: stride[%d] is %lld, row-major needs %s%lld", i, (long long)stride,
                 rows ? "at least " : "", (long long)expected.value);
        if (rows) expected = Checked(row_stride = stride);
        expected = expected * tensor.shape[i];
        QK_CHECK(expected.ok, &context->error, SHAPE,
                 "managed: the shape's element count overflows 64-bit sizes");
    }
    if (row_stride != tensor.shape[last]) desc->row_stride = row_stride;
    return QK_OK;
}

Status describe_dlpack(qk_context *context, const DLManagedTensorVersioned &managed,
                       qk_tensor_desc *desc) {
    ErrorText *const error = &context->error;
    const DLTensor &tensor = managed.dl_tensor;
    QK_CHECK(managed.version.major == kMajor, error, ABI,
             "managed: DLPack version %u.%u, accepted is 1.x", managed.version.major,
             managed.version.minor);
    QK_CHECK(tensor.device.device_type == context->backend->device &&
                 tensor.device.device_id == context->device.index,
             error, DEVICE_MIX, "managed: lives on DLPack device %d:%d, the context on %s:%d",
             tensor.device.device_type, tensor.device.device_id, context->backend->name,
             context->device.index);
    QK_CHECK(tensor.ndim >= 1 && tensor.ndim <= QK_MAX_RANK, error, SHAPE,
             "managed: ndim is %d, accepted are 1 to %d", tensor.ndim, QK_MAX_RANK);
    QK_CHECK(tensor.shape != nullptr && (tensor.data != nullptr || is_empty(tensor)), error, NULL,
             "managed: shape or data is NULL");
    for (const TypeRow &row : kTypes) {
        const DLDataType &type = tensor.dtype;
        if (row.code == type.code && row.bits == type.bits && type.lanes == 1) {
            desc->format = row.format;
        }
    }
    QK_CHECK(desc->format != 0, error, FORMAT,
             "managed: type (code %d, %d bits, %d lanes) is not f32, f16, bf16, i8, i16 or i32",
             tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes);
    desc->rank = tensor.ndim;
    for (int32_t i = 0; i < tensor.ndim; ++i) desc->shape[i] = tensor.shape[i];
    if ((managed.flags & kReadOnly) != 0) desc->flags |= QK_TENSOR_READ_ONLY;
    return QK_OK;
}

// The element type of a plane; code and nibble planes are runs of bytes.
DLDataType plane_type(const qk_tensor &tensor, qk_plane plane) {
    qk_format format = 0;
    switch (plane) {
        case QK_PLANE_ORDER: return {kInt, 32, 1};
        case QK_PLANE_DATA: format = tensor.shape.format->id; break;
        case QK_PLANE_SCALE: format = tensor.shape.scale_format->id; break;
        case QK_PLANE_ZERO:
            if (tensor.shape.has_minimum) format = tensor.shape.scale_format->id;
            break;
        default: format = QK_FORMAT_F32;
    }
    for (const TypeRow &row : kTypes) {
        if (row.format == format) return {row.code, row.bits, 1};
    }
    return {kUint, 8, 1};
}

void fill_export(Export *view, qk_plane plane) {
    const qk_tensor &tensor = *view->tensor;
    const DLDataType type = plane_type(tensor, plane);
    const bool dense = is_dense(*tensor.shape.format);
    const int32_t rank = dense ? tensor.desc.rank : 1;
    if (dense) memcpy(view->shape, tensor.desc.shape, sizeof(view->shape));
    if (!dense) view->shape[0] = tensor.shape.plane_bytes[plane] / (type.bits / 8);
    const bool columns = tensor.shape.column_major;
    int64_t stride = columns ? 1 : tensor.shape.stride;  // of rows
    for (int32_t i = rank - 2; i >= 0; --i) {
        view->strides[i] = stride;
        stride *= view->shape[i];
    }
    view->strides[rank - 1] = columns ? tensor.shape.stride : 1;
    const bool read_only = (tensor.desc.flags & QK_TENSOR_READ_ONLY) != 0;
    view->managed = {{kMajor, kMinor},
                     view,
                     delete_export,
                     read_only ? kReadOnly : 0,
                     {tensor.planes[plane],
                      {tensor.context->backend->device, tensor.context->device.index},
                      rank,
                      type,
                      view->shape,
                      view->strides,
                      0}};
}

}  // namespace

Status tensor_from_dlpack(qk_context *context, DLManagedTensorVersioned *managed, qk_tensor **out) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = 0;
    QK_TRY(describe_dlpack(context, *managed, &desc));
    QK_TRY(read_strides(context, managed->dl_tensor, &desc));
    const DLTensor &tensor = managed->dl_tensor;
    char *const start = static_cast<char *>(tensor.data);
    void *const data = start == nullptr ? nullptr : start + tensor.byte_offset;
    QK_TRY(tensor_wrap(context, desc, &data, 1, out));
    (*out)->borrowed_from = managed;
    (*out)->release_borrowed = release_managed;
    return QK_OK;
}

Status tensor_to_dlpack(qk_tensor *tensor, qk_plane plane, DLManagedTensorVersioned **out) {
    qk_context *const context = tensor->context;
    ErrorText *const error = &context->error;
    QK_CHECK(plane >= 0 && plane < QK_PLANE_COUNT, error, ARGUMENT,
             "plane: is %d, accepted are 0 to %d", plane, QK_PLANE_COUNT - 1);
    QK_CHECK(has_plane(*tensor, plane), error, FORMAT, "plane: %s has no plane %d",
             tensor->shape.format->name, plane);
    void *const memory = host_allocate(context, sizeof(Export));
    QK_CHECK(memory != nullptr, error, MEMORY, "tensor: no memory for a DLPack view");
    memset(memory, 0, sizeof(Export));
    Export *const view = static_cast<Export *>(memory);
    view->tensor = tensor;
    tensor_retain(tensor);
    fill_export(view, plane);
    *out = &view->managed;
    return QK_OK;
}

}  // namespace qk
