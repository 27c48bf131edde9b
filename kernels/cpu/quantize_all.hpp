// Quantize, any dtype -> any format x layout x scale kind; the rules are docs/formats.md's
// ("Quantizing"). Three passes, so that nothing is allocated: nested scales first need the mean of
// all scales, then each block's largest deviation, and only then are codes stored. Plain scales
// are stored with their codes. Scales are computed anew in each pass.
#pragma once
#include "base/torch_sum.hpp"
#include "cpu/lists.hpp"
#include "cpu/quantize_runs.hpp"
#include "cpu/split.hpp"

namespace qk::cpu {
namespace {

// The elements of a group as (row, column, count) in row-major order.
template <class Body>
void for_each_run(const Geometry &s, int64_t number, const Body &body) {
    const GroupIndex group = group_from_number(s, number);
    int64_t at = s.flat ? number * s.group_size : group.row * s.k + group.group * s.group_size;
    int64_t end = at + s.group_size;
    const int64_t limit = s.flat ? s.n * s.k : (group.row + 1) * s.k;
    end = min64(end, limit);
    while (at < end) {
        const int64_t row = at / s.k, column = at % s.k;
        const int64_t count = min64(min64(end - at, s.k - column), kQuantizeBlock);
        body(row, column, count);
        at += count;
    }
}

inline void load_run(const Dense &from, int64_t first, int64_t count, float *x) {
    if (from.format->id == QK_FORMAT_F32) {
        memcpy(x, static_cast<const char *>(from.data) + first * 4, size_t(count) * 4);
    } else {
        load_floats(from.format->id, from.data, first, count, x);
    }
}

GroupRange scan_group(const QuantizeArgs &args, int64_t number, int64_t *size) {
    GroupRange range;
    *size = 0;
    for_each_run(args.to.geometry, number, [&](int64_t row, int64_t column, int64_t count) {
        float x[kQuantizeBlock];
        load_run(args.from, row * args.to.geometry.k + column, count, x);
        scan_run(x, count, &range);
        *size += count;
    });
    return range;
}

QuantizeRule rule_of(const Weight &w) {
    return {w.format->id,        w.format->kind,    w.format->largest,
            w.scale.format->id, w.zero != nullptr, w.geometry.group_size};
}

GroupScale group_scale(const QuantizeArgs &args, int64_t number) {
    int64_t size = 0;
    const GroupRange range = scan_group(args, number, &size);
    return scale_of_range(rule_of(args.to), range, size);
}

struct Coder {
    QuantizeRule rule;
    float table[256];

    explicit Coder(const Weight &w) : rule(rule_of(w)) {
        if (w.table != nullptr) memcpy(table, w.table, sizeof(table));
    }
};

void store_codes(const QuantizeArgs &args, const Coder &coder, int64_t number) {
    const Weight &w = args.to;
    const GroupScale group = group_scale(args, number);
    const GroupIndex index = group_from_number(w.geometry, number);
    if (!is_nested(w)) {
        store_float(w.scale.format->id, w.scale.data, w.layout->scale_at(w.geometry, index),
                    group.scale);
    }
    if (w.zero != nullptr) store_zero(w, index, group.zero);
    for_each_run(w.geometry, number, [&](int64_t row, int64_t column, int64_t count) {
        float x[kQuantizeBlock];
        uint8_t codes[kQuantizeBlock];
        load_run(args.from, row * w.geometry.k + column, count, x);
        code_run(coder.rule, group, coder.table, x, count, codes);
        w.layout->store(w.geometry, static_cast<uint8_t *>(w.data), row, column, count, codes);
    });
}

// bitsandbytes fills the spare nibble of an odd run with the code of 0.
void store_pad(const QuantizeArgs &args) {
    const Weight &w = args.to;
    const Geometry &s = w.geometry;
    if (w.layout->id != QK_LAYOUT_ROW_HIGH || s.n * s.k % 2 == 0) return;
    if (w.format->kind != FormatKind::kTable) return;
    const uint8_t code = table_code(w.format->id, 0.0f);
    w.layout->store(s, static_cast<uint8_t *>(w.data), s.n - 1, s.k, 1, &code);
}

// The mean of all scales, in bitsandbytes' (PyTorch's) order of summation.
float mean_scale(const QuantizeArgs &args, const Parallel &parallel) {
    constexpr int64_t kBatch = 2048;
    const int64_t count = args.to.geometry.group_count;
    TorchSum sum(count);
    float scales[kBatch];
    for (int64_t first = 0; first < count; first += kBatch) {
        const int64_t size = min64(kBatch, count - first);
        parallel_ranges(parallel, size, 16, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) scales[i] = group_scale(args, first + i).scale;
        });
        for (int64_t i = 0; i < size; ++i) sum.add(scales[i]);
    }
    return sum.total() / float(count);
}

// One second scale and its codes: the 8-bit blockwise rule over (scale - mean).
void nest_block(const QuantizeArgs &args, const float *table, float mean, int64_t block) {
    const Weight &w = args.to;
    const int64_t first = block * w.scale.second_group;
    const int64_t last = min64(first + w.scale.second_group, w.geometry.group_count);
    float deviations[4096];  // the largest second group
    float absmax = 0;
    for (int64_t number = first; number < last; ++number) {
        const float deviation = group_scale(args, number).scale - mean;
        if (__builtin_fabsf(deviation) > absmax) absmax = __builtin_fabsf(deviation);
        deviations[number - first] = deviation;
    }
    store_as(w.scale.second, block, absmax);
    const float multiplier = 1.0f / absmax;
    for (int64_t number = first; number < last; ++number) {
        const float s = clamp_to_one(deviations[number - first] * multiplier);
        const uint8_t code = absmax == 0 ? 0 : lut8_code(s, table);
        const GroupIndex group = group_from_number(w.geometry, number);
        store_as(w.scale.data, w.layout->scale_at(w.geometry, group), code);
    }
}

void nest_scales(const QuantizeArgs &args, const Parallel &parallel) {
    const Weight &w = args.to;
    const float mean = mean_scale(args, parallel);
    store_as(w.scale.bias, 0, mean);
    float table[256];
    memcpy(table, w.scale.code, sizeof(table));
    parallel_ranges(parallel, second_count(w), 1, [&](int64_t first, int64_t last) {
        for (int64_t block = first; block < last; ++block) nest_block(args, table, mean, block);
    });
}

Status run_quantize(const QuantizeArgs &args, const Launch &launch) {
    const Geometry &s = args.to.geometry;
    const Coder coder(args.to);
    clear_planes(args.to);
    if (is_nested(args.to)) nest_scales(args, launch.parallel);
    // Flat groups share bytes with neighbours in every layout but the one made for them.
    const bool shared = s.flat && args.to.layout->id != QK_LAYOUT_ROW_HIGH;
    const int64_t block = s.flat ? (shared ? s.group_count : 2) : kRowBlock * s.groups_per_row;
    parallel_ranges(launch.parallel, s.group_count, block, [&](int64_t first, int64_t last) {
        for (int64_t number = first; number < last; ++number) store_codes(args, coder, number);
    });
    store_pad(args);
    return QK_OK;
}

}  // namespace
}  // namespace qk::cpu
