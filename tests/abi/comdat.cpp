// A C++ program built without optimization emits its own copies of the std inline functions that
// qk uses too. If libqk.a still had its COMDAT groups, the linker would keep one copy by name and
// drop the other, with the functions in the archive then undefined or replaced.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>

extern "C" int consume(void);

template <class T>
static T count_up() {
    std::atomic<T> value{1};
    value.fetch_add(2);
    value.fetch_sub(1, std::memory_order_acq_rel);
    T expected = value.load(std::memory_order_acquire);
    while (!value.compare_exchange_weak(expected, expected + 1, std::memory_order_acq_rel)) {
    }
    value.store(value.load() + 1);
    return std::max<T>(value.load(), 0);
}

int main() {
    std::atomic<bool> flag{false};
    std::atomic<void *> pointer{nullptr};
    flag.store(true);
    pointer.store(&flag, std::memory_order_release);
    const bool counts = count_up<int32_t>() == 4 && count_up<uint64_t>() == 4 &&
                        count_up<int64_t>() == 4 && flag.load() &&
                        pointer.load(std::memory_order_acquire) == &flag &&
                        std::bit_cast<uint32_t>(1.0f) == 0x3f800000u;
    if (!counts) std::printf("comdat: this program's own atomics are broken\n");
    return consume() != 0 || !counts;
}
