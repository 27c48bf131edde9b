// DLPack 1.x, as its specification lays the structs out (dmlc/dlpack, dlpack.h v1.0): version
// first, so that the deleter can be found whatever follows.
#pragma once
#include <stdint.h>

#include "object/tensor.hpp"

extern "C" {

struct DLPackVersion {
    uint32_t major, minor;
};

struct DLDevice {
    int32_t device_type, device_id;
};

struct DLDataType {
    uint8_t code, bits;
    uint16_t lanes;
};

struct DLTensor {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides;  // in elements; null: compact row-major
    uint64_t byte_offset;
};

struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
};

}  // extern "C"

namespace qk {

Status tensor_from_dlpack(qk_context *context, DLManagedTensorVersioned *managed, qk_tensor **out);
Status tensor_to_dlpack(qk_tensor *tensor, qk_plane plane, DLManagedTensorVersioned **out);

}  // namespace qk
