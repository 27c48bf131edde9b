// Dense tensors of any rank, between guard pages.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "harness/guarded.hpp"
#include "harness/specs.hpp"

namespace api {

using harness::Guarded;
using harness::Placement;

// Areas between guard pages, for the next array to use: making them takes longer than a product.
inline std::vector<std::unique_ptr<Guarded>> areas;

inline std::unique_ptr<Guarded> take_area() {
    if (areas.empty()) return std::make_unique<Guarded>();
    std::unique_ptr<Guarded> area = std::move(areas.back());
    areas.pop_back();
    return area;
}

// A dense tensor of any rank, whose rows are `gap` numbers apart.
class Array {
  public:
    Array(qk_context *context, reference::Format format, const std::vector<int64_t> &shape,
          uint64_t turn, int64_t gap = 0)
        : format_(format), gap_(gap) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.format = harness::code(format);
        wrap(context, desc, shape, size_t(reference::bytes_of(format)), turn);
    }
    // Of 32-bit integers.
    Array(qk_context *context, const std::vector<int32_t> &ids, const std::vector<int64_t> &shape,
          uint64_t turn)
        : format_(reference::Format::f32) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.format = QK_FORMAT_I32;
        wrap(context, desc, shape, 4, turn);
        std::memcpy(memory_->data(), ids.data(), ids.size() * 4);
    }
    ~Array() {
        qk_tensor_destroy(handle_);
        areas.push_back(std::move(memory_));
    }
    Array(const Array &) = delete;
    Array &operator=(const Array &) = delete;

    qk_tensor *handle() const { return handle_; }
    // Neither what is around it nor what is between its rows has changed.
    bool intact() const {
        for (const size_t at : between_) {
            if (memory_->data()[at] != harness::kPoison) return false;
        }
        return memory_->intact();
    }
    uint32_t bits(int64_t at) const {
        const size_t size = size_t(reference::bytes_of(format_));
        uint32_t bits = 0;
        std::memcpy(&bits, memory_->data() + place_of(at) * size, size);
        return bits;
    }
    void set(int64_t at, float value) {
        const size_t size = size_t(reference::bytes_of(format_));
        const uint32_t bits = reference::encode(format_, value);
        std::memcpy(memory_->data() + place_of(at) * size, &bits, size);
    }

  private:
    size_t place_of(int64_t at) const { return size_t(at + at / columns_ * gap_); }
    void wrap(qk_context *context, qk_tensor_desc desc, const std::vector<int64_t> &shape,
              size_t size, uint64_t turn) {
        desc.rank = int32_t(shape.size());
        columns_ = shape.back();
        int64_t rows = 1;
        for (size_t i = 0; i < shape.size(); ++i) desc.shape[i] = shape[i];
        for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
        if (gap_ > 0) desc.row_stride = columns_ + gap_;
        const size_t line = size_t(columns_ + gap_) * size, used = size_t(columns_) * size;
        void *planes[1] = {memory_->place(rows > 0 ? size_t(rows) * line - size_t(gap_) * size : 0,
                                          Placement::turn(turn))};
        for (size_t row = 0; gap_ > 0 && row + 1 < size_t(rows); ++row) {
            for (size_t i = used; i < line; ++i) between_.push_back(row * line + i);
        }
        EXPECT_EQ(qk_tensor_wrap(context, &desc, planes, 1, &handle_), QK_OK)
            << qk_context_error(context);
    }

    reference::Format format_;
    int64_t gap_ = 0, columns_ = 0;
    std::vector<size_t> between_;  // bytes
    std::unique_ptr<Guarded> memory_ = take_area();
    qk_tensor *handle_ = nullptr;
};

}  // namespace api
