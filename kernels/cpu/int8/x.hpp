// x of int8 mode: every row cut into blocks, rounded to integers and laid out for the kernels that
// read it.
#pragma once
#include "cpu/int8/integers.hpp"
#include "cpu/kernels.hpp"
#include "cpu/shared/chunks.hpp"
#include "cpu/shared/panel.hpp"

namespace qk::cpu {
namespace {

inline uintptr_t aligned_workspace(const Launch &launch) {
    return (uintptr_t(launch.workspace) + 63) / 64 * 64;
}

// body(chunk, x), x 128 numbers: `row` of x as f32, zeros past its end.
template <class Isa, class Body>
QK_INLINE inline void for_each_chunk(const Dense &x, int64_t row, const Body &body) {
    const int64_t k = x.columns;
    for (int64_t column = 0; column < k; column += 128) {
        float values[128];
        const int64_t count = min64(128, k - column), first = row * k + column;
        const char *const from = static_cast<const char *>(x.data) + first * 4;
        if (x.format->id == QK_FORMAT_F32 && count == 128) {
            memcpy(values, from, sizeof(values));
        } else if (x.format->id == QK_FORMAT_F32) {
            memset(values, 0, sizeof(values));
            memcpy(values, from, size_t(count) * 4);
        } else {
            widen_x<Isa>(x, first, count, values);
            for (int64_t i = round_up(count, 16); i < 128; ++i) values[i] = 0;
        }
        body(column / 128, values);
    }
}

template <class Isa>
inline size_t int8_x_bytes(const LinearArgs &args, const Device &) {
    return chunk_workspace(args.w.geometry, args.x.rows, sizeof(typename Isa::XChunk));
}

// Every row of x, on every thread where there are several.
template <class Isa>
inline const typename Isa::XChunk *quantize_x(const LinearArgs &args, const Launch &launch) {
    typename Isa::XChunk *const to =
        reinterpret_cast<typename Isa::XChunk *>(aligned_workspace(launch));
    const int64_t chunks = chunk_count(args.w.geometry);
    const int64_t blocks = groups_of_chunk(args.w.geometry);
    const float unit = 1.0f / int8_steps(*args.w.format);
    parallel_ranges(launch.parallel, args.x.rows, 1, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            for_each_chunk<Isa>(args.x, row, [&](int64_t chunk, const float *x) {
                Isa::quantize_chunk(x, blocks, unit, to + row * chunks + chunk);
            });
        }
    });
    return to;
}

}  // namespace
}  // namespace qk::cpu
