#include "scan.hpp"

#include <cmath>
#include <cstring>

namespace {

// value by value: the data may have any alignment
template <class Read>
ValueCounts count_each(const void *data, int64_t count, int64_t size, Read read) {
    ValueCounts counts;
    const char *at = static_cast<const char *>(data);
    for (int64_t i = 0; i < count; ++i) counts.add(read(at + i * size));
    return counts;
}

double read_double(const char *at) {
    double value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

}  // namespace

void touch(const void *data, int64_t bytes) {
    const volatile char *at = static_cast<const char *>(data);
    for (int64_t i = 0; i < bytes; i += 4096) (void)at[i];
    if (bytes > 0) (void)at[bytes - 1];
}

void ValueCounts::add(double value) {
    ++values;
    nan += std::isnan(value);
    infinite += std::isinf(value);
    zero += value == 0;
}

void ValueCounts::add(const ValueCounts &other) {
    values += other.values;
    nan += other.nan;
    infinite += other.infinite;
    zero += other.zero;
}

ValueCounts count_values(qk_dtype dtype, const void *data, int64_t bytes) {
    if (dtype == QK_DTYPE_F64) return count_each(data, bytes / 8, 8, read_double);
    const qk_format format = dtype == QK_DTYPE_F32    ? QK_FORMAT_F32
                             : dtype == QK_DTYPE_F16  ? QK_FORMAT_F16
                             : dtype == QK_DTYPE_BF16 ? QK_FORMAT_BF16
                                                      : 0;
    if (format != 0) {
        const int64_t size = element_bytes(format);
        return count_each(data, bytes / size, size,
                          [=](const char *at) { return float_value(format, at); });
    }
    touch(data, bytes);
    return {};
}
