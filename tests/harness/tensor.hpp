// qk_tensors over guarded planes, through the public header alone.
#pragma once
#include <array>

#include "harness/guarded.hpp"
#include "harness/specs.hpp"
#include "qk.h"

namespace harness {

// A plane's bytes by qk.h's number.
const std::vector<uint8_t> &plane_of(const reference::Planes &planes, int plane);
std::vector<uint8_t> &plane_of(reference::Planes &planes, int plane);

// Borrowed planes with a border around each, and the handle over them.
class Tensor {
  public:
    // A weight with the bytes of `planes`, or poisoned planes of their sizes.
    Tensor(qk_context *context, const reference::Weight &weight, uint64_t turn);
    // A dense tensor of `values`, rounded to `format`.
    Tensor(qk_context *context, reference::Format format, int64_t rows, int64_t columns,
           const std::vector<float> &values, uint64_t turn);
    // A dense output, poisoned.
    Tensor(qk_context *context, reference::Format format, int64_t rows, int64_t columns,
           uint64_t turn);
    ~Tensor() { qk_tensor_destroy(handle_); }
    Tensor(const Tensor &) = delete;
    Tensor &operator=(const Tensor &) = delete;

    qk_tensor *handle() const { return handle_; }  // NULL where wrapping failed; see status()
    qk_status status() const { return status_; }
    const qk_tensor_desc &desc() const { return desc_; }
    Guarded &plane(int plane) { return planes_[size_t(plane)]; }
    bool intact() const;
    // Element `index` of a dense tensor, as bits.
    uint32_t bits(int64_t index) const;

  private:
    void wrap(qk_context *context);

    qk_tensor_desc desc_;
    std::array<Guarded, QK_PLANE_COUNT> planes_;
    qk_tensor *handle_ = nullptr;
    qk_status status_ = QK_OK;
};

}  // namespace harness
