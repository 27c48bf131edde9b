// The records of GGUF files as device code reads them: one reader a layout, and what a run of its
// codes, its scales and minima are worth.
#pragma once
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda/view.cuh"
#include "format/codebook.hpp"
#include "format/records.hpp"

namespace qk::cuda {

#if defined(__CUDACC__)
namespace {

// What codes are before the scale: numbers of 4 bits (minus 8 where there is no minimum), signed
// bytes, or places in a table of 16 entries.
enum class RecordCodes { kNumbers, kBytes, kTable };

template <class R, RecordCodes codes>
struct RecordReader {
    using Record = R;
    static constexpr RecordCodes kKind = codes;
};

// Calls body(reader) with the reader of a layout of records, on the host or the device.
#pragma nv_exec_check_disable
template <class Body>
QK_HD inline auto with_reader(qk_layout layout, const Body &body) {
    using C = RecordCodes;
    switch (layout) {
        case QK_LAYOUT_GGUF_Q4_1: return body(RecordReader<RecordQ4_1, C::kNumbers>{});
        case QK_LAYOUT_GGUF_Q5_0: return body(RecordReader<RecordQ5_0, C::kBytes>{});
        case QK_LAYOUT_GGUF_Q5_1: return body(RecordReader<RecordQ5_1, C::kBytes>{});
        case QK_LAYOUT_GGUF_Q8_0: return body(RecordReader<RecordQ8_0, C::kBytes>{});
        case QK_LAYOUT_GGUF_Q4_K: return body(RecordReader<RecordQ4K, C::kNumbers>{});
        case QK_LAYOUT_GGUF_Q5_K: return body(RecordReader<RecordQ5K, C::kBytes>{});
        case QK_LAYOUT_GGUF_Q6_K: return body(RecordReader<RecordQ6K, C::kBytes>{});
        case QK_LAYOUT_GGUF_IQ4_NL: return body(RecordReader<RecordIq4Nl, C::kTable>{});
        case QK_LAYOUT_GGUF_IQ4_XS: return body(RecordReader<RecordIq4Xs, C::kTable>{});
        case QK_LAYOUT_GGUF_MXFP4: return body(RecordReader<RecordMxfp4, C::kTable>{});
        default: return body(RecordReader<RecordQ4_0, C::kNumbers>{});
    }
}

// A scale or minimum from its bits and, nested, its f16.
template <class R>
__device__ inline float record_value(uint16_t bits, uint16_t second) {
    if (std::is_same_v<R, RecordMxfp4>) return e8m0_half_value(bits);
    if (!R::kNested) return __half2float(__ushort_as_half(bits));
    return __fmul_rn(float(int8_t(bits)), __half2float(__ushort_as_half(second)));
}

// What all codes of a group share.
struct GroupValues {
    float zero, scale, minimum;
};

// Of group number `group` of a record.
template <class R>
__device__ inline GroupValues record_group_values(const uint8_t *record, int group) {
    const float scale = record_value<R>(R::scale(record, group), R::second(record));
    if (!R::kHasMinimum) return {8, scale, 0};
    return {0, scale, record_value<R>(R::minimum(record, group), R::minimum_second(record))};
}

// `count` (4 or 8) codes from number `first` on, a multiple of it: all of one group. `first` is
// unsigned so that the compiler knows its bits, and finds one address for all codes.
template <class Reader, int count>
__device__ inline void record_values(const uint8_t *record, uint32_t first, const float *entries,
                                     float (&value)[count]) {
    using R = typename Reader::Record;
    constexpr bool kBytes = Reader::kKind == RecordCodes::kBytes;
    const GroupValues group = record_group_values<R>(record, int(first / R::kGroup));
    // 2^23 and the number, a byte's sign turned: one subtraction is exact, and cheaper than a
    // conversion.
    constexpr float kZero = 0x1p23f + (kBytes ? 128.0f : R::kHasMinimum ? 0.0f : 8.0f);
#pragma unroll
    for (int i = 0; i < count; ++i) {
        const uint32_t code = R::code(record, int(first + uint32_t(i)));
        float entry;
        if (Reader::kKind == RecordCodes::kTable) {
            entry = entries[code];
        } else {
            entry = __fadd_rn(__uint_as_float(0x4b000000u | (kBytes ? code ^ 128 : code)), -kZero);
        }
        value[i] = __fmul_rn(entry, group.scale);
        if (R::kHasMinimum) value[i] = __fadd_rn(value[i], -group.minimum);
    }
}

// Less than 16 bytes at the end of a plane; zeros behind them. Not inlined: it is met once.
__device__ __noinline__ uint4 load_end(const uint8_t *from, uint32_t bytes) {
    uint64_t low = 0, high = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < bytes; ++i) {
        (i < 8 ? low : high) |= uint64_t(from[i]) << i % 8 * 8;
    }
    return {uint32_t(low), uint32_t(low >> 32), uint32_t(high), uint32_t(high >> 32)};
}

// Bytes of records on their way to shared memory, 16 at a time at aligned addresses: up to 15 in
// front of them and behind come along, never from outside of the plane, which is aligned.
struct RecordBytes {
    const uint8_t *plane;
    int64_t size, first, last;  // of the plane; of the piece

    __device__ int64_t base() const { return first & ~int64_t{15}; }
    __device__ int ahead() const { return int(first & 15); }  // bytes in front
    __device__ uint4 load(int number) const {
        const int64_t at = base() + int64_t(number) * 16;
        if (at >= last) return {0, 0, 0, 0};
        if (at + 16 <= size) return __ldcs(reinterpret_cast<const uint4 *>(plane + at));
        return load_end(plane + at, uint32_t(size - at));
    }
};

}  // namespace
#endif

}  // namespace qk::cuda
