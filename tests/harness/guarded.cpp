#include "harness/guarded.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace harness {
namespace {

constexpr size_t kBorder = 128;  // poison looked at on each side; beyond it pages fault or rest

size_t page_size() {
    static const size_t size = size_t(sysconf(_SC_PAGESIZE));
    return size;
}

}  // namespace

Placement Placement::turn(uint64_t number) {
    const uint64_t step = number % 66;
    if (step == 0) return {at_end, 0};
    if (step == 1) return {at_start, 0};
    return {at_offset, int(step - 2)};
}

void Guarded::reserve(size_t bytes) {
    const size_t page = page_size(), needed = (bytes + 2 * kBorder + 64 + page - 1) / page * page;
    if (needed <= capacity_) return;
    if (pages_ != nullptr) munmap(pages_, mapped_);
    mapped_ = needed + 2 * page;
    void *const memory = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    pages_ = static_cast<uint8_t *>(memory);
    area_ = pages_ + page;
    capacity_ = needed;
    if (mprotect(area_, capacity_, PROT_READ | PROT_WRITE) != 0) std::abort();
}

Guarded::~Guarded() {
    if (pages_ != nullptr) munmap(pages_, mapped_);
}

uint8_t *Guarded::place(size_t bytes, Placement placement, uint8_t poison) {
    reserve(bytes);
    bytes_ = bytes;
    poison_ = poison;
    switch (placement.kind) {
        case Placement::at_end: data_ = area_ + capacity_ - bytes; break;
        case Placement::at_start: data_ = area_; break;
        case Placement::at_offset: data_ = area_ + kBorder + placement.offset; break;
    }
    uint8_t *const first = std::max(area_, data_ - kBorder);
    uint8_t *const last = std::min(area_ + capacity_, data_ + bytes + kBorder);
    std::memset(first, poison, size_t(last - first));
    return data_;
}

bool Guarded::intact() const {
    const auto poisoned = [this](const uint8_t *first, const uint8_t *last) {
        return std::all_of(first, last, [this](uint8_t byte) { return byte == poison_; });
    };
    if (data_ == nullptr) return true;
    return poisoned(std::max<const uint8_t *>(area_, data_ - kBorder), data_) &&
           poisoned(data_ + bytes_,
                    std::min<const uint8_t *>(area_ + capacity_, data_ + bytes_ + kBorder));
}

}  // namespace harness
