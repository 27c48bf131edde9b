// DLPack 1.x, as its specification lays the structs out: qk_tensor_to_dlpack hands planes out so.
#pragma once
#include <cstdint>
#include <memory>

extern "C" {

struct DLPackVersion {
    uint32_t major, minor;
};

struct DLTensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides;
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

struct ReleaseView {
    void operator()(DLManagedTensorVersioned *view) const { view->deleter(view); }
};
using PlaneView = std::unique_ptr<DLManagedTensorVersioned, ReleaseView>;
