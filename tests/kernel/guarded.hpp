// Memory that ends (or starts) at an inaccessible page: one byte too far is a crash.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <utility>

#include "harness/pages.hpp"

class Guarded {
  public:
    enum Side { kEnd, kStart };

    Guarded() = default;
    explicit Guarded(size_t bytes, Side side = kEnd) {
        const size_t page = harness::page_size();
        const size_t body = (bytes + page - 1) / page * page;
        length_ = body + 2 * page;
        base_ = harness::take_pages(length_, page, body);
        data_ = base_ + page + (side == kEnd ? body - bytes : 0);
    }
    Guarded(Guarded &&other) noexcept { *this = std::move(other); }
    Guarded &operator=(Guarded &&other) noexcept {
        std::swap(base_, other.base_);
        std::swap(length_, other.length_);
        std::swap(data_, other.data_);
        return *this;
    }
    ~Guarded() {
        if (base_ != nullptr) harness::give_pages(base_, length_);
    }

    uint8_t *data() const { return data_; }

  private:
    uint8_t *base_ = nullptr, *data_ = nullptr;
    size_t length_ = 0;
};
