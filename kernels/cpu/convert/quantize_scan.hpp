// What the quantizer reads of its numbers before it picks codes: the range of a group, and of all
// for the GLOBAL plane.
#pragma once
#include "backend/quantize_rule.hpp"
#include "cpu/convert/quantize_codes.hpp"
#include "cpu/kernels.hpp"

namespace qk::cpu {
namespace {

// The elements of a group as (row, column, count) in row-major order.
template <class Body>
void for_each_run(const Geometry &s, GroupIndex group, const Body &body) {
    int64_t row = group.row, column = group.group * s.group_size;
    int64_t left = min64(s.group_size, s.flat ? s.n * s.k - column : s.k - column);
    if (s.flat) {
        row = column / s.k;
        column %= s.k;
    }
    while (left > 0) {
        const int64_t count = min64(min64(left, s.k - column), kQuantizeBlock);
        body(row, column, count);
        left -= count;
        column += count;
        if (column == s.k) {
            ++row;
            column = 0;
        }
    }
}

// `count` numbers from `first` on as f32, in place or widened into `room`.
template <class Isa>
QK_NOINLINE const float *load_values(const Dense &from, int64_t first, int64_t count, float *room) {
    const char *const data = static_cast<const char *>(from.data);
    const int64_t size = from.format->bits / 8;
    for (int64_t i = 0; i < count * size; i += 64) {  // long before it is needed
        __builtin_prefetch(data + first * size + i + 4096, 0, 3);
    }
    if (from.format->id == QK_FORMAT_F32 && uintptr_t(data) % sizeof(float) == 0) {
        return reinterpret_cast<const float *>(data) + first;
    }
    Isa::widen(from, first, count, room);
    return room;
}

template <class Isa>
GroupRange scan_group(const QuantizeArgs &args, GroupIndex group, int64_t *size) {
    GroupRange range;
    *size = 0;
    if (args.to.zero == nullptr) {  // no need for the ends of the range, and rarely of NaN
        uint32_t most = 0;
        for_each_run(args.to.geometry, group, [&](int64_t row, int64_t column, int64_t count) {
            float room[kQuantizeBlock];
            const float *const x =
                load_values<Isa>(args.from, row * args.to.geometry.k + column, count, room);
            const uint32_t of_run = Isa::scan_magnitudes(x, count);
            most = of_run > most ? of_run : most;
            *size += count;
        });
        range.absmax = f32_from_bits(most);
        if (range.absmax == range.absmax) return range;
        range.absmax = 0;
        *size = 0;
    }
    for_each_run(args.to.geometry, group, [&](int64_t row, int64_t column, int64_t count) {
        float room[kQuantizeBlock];
        Isa::scan(load_values<Isa>(args.from, row * args.to.geometry.k + column, count, room),
                  count, &range);
        *size += count;
    });
    return range;
}

// The first number of the largest magnitude, a zero of no sign where there is none.
template <class Isa>
float first_largest(const QuantizeArgs &args, GroupIndex group, float absmax) {
    float most = 0;
    for_each_run(args.to.geometry, group, [&](int64_t row, int64_t column, int64_t count) {
        float room[kQuantizeBlock];
        const float *const x =
            load_values<Isa>(args.from, row * args.to.geometry.k + column, count, room);
        for (int64_t i = 0; i < count && most == 0; ++i) {
            if (magnitude_of(x[i]) == absmax) most = x[i] + 0.0f;
        }
    });
    return most;
}

// The GLOBAL plane, by the largest magnitude of the tensor or of each row: bits order as magnitudes
// do, with NaN above all numbers, and the largest is the same for any split.
template <class Isa>
void store_globals(const QuantizeArgs &args, const Launch &launch) {
    const Weight &w = args.to;
    const Geometry &s = w.geometry;
    const QuantizeRule rule = rule_of(args);
    uint32_t largest = 0;
    parallel_ranges(launch.parallel, s.n, 1, s.k, [&](int64_t first, int64_t last) {
        uint32_t of_rows = 0;
        for (int64_t row = first; row < last; ++row) {
            uint32_t most = 0;
            for (int64_t column = 0; column < s.k; column += kQuantizeBlock) {
                float room[kQuantizeBlock];
                const int64_t count = min64(kQuantizeBlock, s.k - column);
                const uint32_t bits = Isa::scan_magnitudes(
                    load_values<Isa>(args.from, row * s.k + column, count, room), count);
                most = bits > most ? bits : most;
            }
            if (w.globals > 1) store_as(w.global, row, global_of(rule, f32_from_bits(most)));
            of_rows = most > of_rows ? most : of_rows;
        }
        uint32_t seen = __atomic_load_n(&largest, __ATOMIC_RELAXED);
        while (seen < of_rows && !__atomic_compare_exchange_n(&largest, &seen, of_rows, true,
                                                              __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        }
    });
    if (w.globals == 1) store_as(w.global, 0, global_of(rule, f32_from_bits(largest)));
}

}  // namespace
}  // namespace qk::cpu
