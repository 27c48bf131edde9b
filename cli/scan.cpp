#include "scan.hpp"

#include <algorithm>
#include <cstring>

namespace {

// Value by value, for the data may have any alignment; by their bits, in runs with counters as wide
// as a value, so that the compiler makes vectors of it.
template <class Bits>
ValueCounts count_bits(const char *data, int64_t count, Bits infinity) {
    constexpr int64_t kRun = 4096;  // fits into 16 bits
    constexpr Bits kMagnitude = static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1);
    ValueCounts counts;
    counts.values = count;
    for (int64_t begin = 0; begin < count; begin += kRun) {
        Bits nan = 0, infinite = 0, zero = 0;
        const int64_t end = std::min(begin + kRun, count);
        for (int64_t i = begin; i < end; ++i) {
            Bits bits;
            std::memcpy(&bits, data + i * static_cast<int64_t>(sizeof bits), sizeof bits);
            bits = static_cast<Bits>(bits & kMagnitude);
            nan = static_cast<Bits>(nan + (bits > infinity));
            infinite = static_cast<Bits>(infinite + (bits == infinity));
            zero = static_cast<Bits>(zero + (bits == 0));
        }
        counts.nan += static_cast<int64_t>(nan);
        counts.infinite += static_cast<int64_t>(infinite);
        counts.zero += static_cast<int64_t>(zero);
    }
    return counts;
}

}  // namespace

void touch(const void *data, int64_t bytes) {
    const volatile char *at = static_cast<const char *>(data);
    for (int64_t i = 0; i < bytes; i += 4096) (void)at[i];
    if (bytes > 0) (void)at[bytes - 1];
}

void ValueCounts::add(const ValueCounts &other) {
    values += other.values;
    nan += other.nan;
    infinite += other.infinite;
    zero += other.zero;
}

ValueCounts count_values(qk_dtype dtype, const void *data, int64_t bytes) {
    const char *values = static_cast<const char *>(data);
    switch (dtype) {
        case QK_DTYPE_F64: return count_bits<uint64_t>(values, bytes / 8, 0x7ff0000000000000);
        case QK_DTYPE_F32: return count_bits<uint32_t>(values, bytes / 4, 0x7f800000);
        case QK_DTYPE_F16: return count_bits<uint16_t>(values, bytes / 2, 0x7c00);
        case QK_DTYPE_BF16: return count_bits<uint16_t>(values, bytes / 2, 0x7f80);
        default: break;
    }
    touch(data, bytes);
    return {};
}
