// Memory that ends (or starts) at an inaccessible page: one byte too far is a crash.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

class Guarded {
  public:
    enum Side { kEnd, kStart };

    Guarded() = default;
    explicit Guarded(size_t bytes, Side side = kEnd) {
        const size_t page = size_t(sysconf(_SC_PAGESIZE));
        const size_t body = (bytes + page - 1) / page * page;
        length_ = body + 2 * page;
        base_ = static_cast<uint8_t *>(
            mmap(nullptr, length_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (base_ == MAP_FAILED) __builtin_trap();
        constexpr int kOpen = PROT_READ | PROT_WRITE;
        if (body != 0 && mprotect(base_ + page, body, kOpen) != 0) __builtin_trap();
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
        if (base_ != nullptr) munmap(base_, length_);
    }

    uint8_t *data() const { return data_; }

  private:
    uint8_t *base_ = nullptr, *data_ = nullptr;
    size_t length_ = 0;
};
