// DLPack 1.0's structs, written from its specification (https://dmlc.github.io/dlpack), not from
// the library's own copy.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

struct DLManagedTensorVersioned {
    struct {
        uint32_t major, minor;
    } version;
    void *manager_ctx;
    void (*deleter)(DLManagedTensorVersioned *self);
    uint64_t flags;
    struct {
        void *data;
        struct {
            int32_t device_type, device_id;
        } device;
        int32_t ndim;
        struct {
            uint8_t code, bits;
            uint16_t lanes;
        } dtype;
        int64_t *shape, *strides;
        uint64_t byte_offset;
    } dl_tensor;
};

namespace api {

constexpr uint64_t kDlReadOnly = 1, kDlCopied = 2;
constexpr int32_t kDlCpu = 1;
constexpr uint8_t kDlInt = 0, kDlUint = 1, kDlFloat = 2, kDlBfloat = 4;

// A producer's tensor [rows, columns] of f32 that counts calls of its deleter.
struct DlSource {
    std::vector<float> data;
    int64_t shape[4] = {}, strides[4] = {};
    int deleted = 0;
    DLManagedTensorVersioned managed = {};

    explicit DlSource(int64_t rows = 16, int64_t columns = 32, size_t offset = 0)
        : data(size_t(rows * columns) + offset, 0.5f) {
        shape[0] = rows;
        shape[1] = columns;
        strides[0] = columns;
        strides[1] = 1;
        managed.version = {1, 0};
        managed.manager_ctx = this;
        managed.deleter = [](DLManagedTensorVersioned *self) {
            ++static_cast<DlSource *>(self->manager_ctx)->deleted;
        };
        managed.dl_tensor = {data.data(), {kDlCpu, 0},           2, {kDlFloat, 32, 1}, shape,
                             strides,     offset * sizeof(float)};
    }
    DlSource(const DlSource &) = delete;
    DlSource &operator=(const DlSource &) = delete;
};

}  // namespace api
