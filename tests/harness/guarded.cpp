#include "harness/guarded.hpp"

#include <algorithm>
#include <cstring>

#include "harness/pages.hpp"

namespace harness {
namespace {

constexpr size_t kBorder = 128;  // poison looked at on each side; beyond it pages fault or rest

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
    if (pages_ != nullptr) give_pages(pages_, mapped_);
    mapped_ = needed + 2 * page;
    pages_ = take_pages(mapped_, page, needed);
    area_ = pages_ + page;
    capacity_ = needed;
}

Guarded::~Guarded() {
    if (pages_ != nullptr) give_pages(pages_, mapped_);
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
