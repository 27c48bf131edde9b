// Dequantize, any format x layout x scale kind: value = entry * scale as one fp32 product, less a
// minimum where there is one, rounded once to the output type. Repack: the same codes, scales and
// zeros in another layout, nothing is decoded. Quantize: as every instruction set does, in the
// compiler's vectors.
#include "cpu/access.hpp"
#include "cpu/convert/quantize.hpp"
#include "cpu/convert/quantize_plain.hpp"
#include "cpu/convert/repack.hpp"
#include "cpu/isa.hpp"
#include "cpu/kernels.hpp"
#include "cpu/zero_words.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kBlock = 256;  // codes at a time

// Elements of a dense matrix from one to the next of a column, and of a row.
struct Steps {
    int64_t row, column;
};
Steps steps_of(const Dense &a) {
    if (!a.column_major) return {row_stride(a), 1};
    return {1, a.stride != 0 ? a.stride : a.rows};
}

void dequantize_row(const DequantizeArgs &args, Entries &entries, int64_t row) {
    const Steps steps = steps_of(args.to);
    const Weight &w = args.from;
    const Geometry &s = w.geometry;
    const bool affine = w.format->kind == FormatKind::kU4;
    uint8_t codes[kBlock];
    for (int64_t column = 0; column < s.k;) {
        const GroupIndex group = group_of(s, row, column);
        const int64_t end = group_end(s, row, column);
        const float scale = scale_of(w, group);
        if (affine) entries.set_zero(zero_of(w, group));
        const bool lowered = has_minimum(w);
        const float minimum = lowered ? minimum_of(w, group) : 0;
        for (; column < end;) {
            const int64_t count = min64(kBlock, end - column);
            w.layout->load(s, static_cast<const uint8_t *>(w.data), row, column, count, codes);
            for (int64_t i = 0; i < count; ++i) {
                const int64_t to = w.order == nullptr ? column + i : column_at(w, column + i);
                const float value = entries.value[codes[i]] * scale;
                store_float(args.to.format->id, args.to.data, row * steps.row + to * steps.column,
                            lowered ? value - minimum : value);
            }
            column += count;
        }
    }
}

Status run(const DequantizeArgs &args, const Launch &launch) {
    parallel_ranges(launch.parallel, args.from.geometry.n, 1, args.from.geometry.k * kPortable,
                    [&](int64_t first, int64_t last) {
        Entries entries(args.from);
        for (int64_t row = first; row < last; ++row) dequantize_row(args, entries, row);
    });
    return QK_OK;
}

bool can_run(const DequantizeArgs &, const Device &) { return true; }

}  // namespace

const Kernel<DequantizeArgs> kDequantizeGeneric = {"generic", can_run, nullptr, run};

using Quantizer = PlainQuantizer<Generic>;
const Kernel<QuantizeArgs> kQuantizeGeneric = {"generic", can_run_quantize<Quantizer>, nullptr,
                                               run_quantize<Quantizer>};

namespace {

void move_codes(const RepackArgs &args, int64_t row) {
    const Geometry &s = args.from.geometry;
    uint8_t codes[kBlock];
    for (int64_t column = 0; column < s.k; column += kBlock) {
        const int64_t count = min64(kBlock, s.k - column);
        args.from.layout->load(s, static_cast<const uint8_t *>(args.from.data), row, column, count,
                               codes);
        args.to.layout->store(s, static_cast<uint8_t *>(args.to.data), row, column, count, codes);
    }
}

void move_group(const RepackArgs &args, GroupIndex group) {
    const int64_t from = args.from.layout->scale_at(args.from.geometry, group);
    const int64_t to = args.to.layout->scale_at(args.to.geometry, group);
    const auto move = [=](const ScalePlane &in, const ScalePlane &out) {
        switch (in.format->bits) {
            case 8: store_as(out.data, to, load_as<uint8_t>(in.data, from)); break;
            case 16: store_as(out.data, to, load_as<uint16_t>(in.data, from)); break;
            default: store_as(out.data, to, load_as<uint32_t>(in.data, from));
        }
    };
    move(args.from.scale, args.to.scale);
    if (has_minimum(args.from)) move(args.from.minimum, args.to.minimum);
    if (args.to.zero != nullptr) store_zero(args.to, group, zero_of(args.from, group));
}

// Places within 8 rows grow evenly, by row and by group.
struct ScalePlaces {
    int64_t first, by_row, by_group;

    ScalePlaces(const Weight &w, int64_t row, int64_t rows)
        : first(w.layout->scale_at(w.geometry, {row, 0})),
          by_row(rows > 1 ? w.layout->scale_at(w.geometry, {row + 1, 0}) - first : 1),
          by_group(w.geometry.groups_per_row > 1 ? w.layout->scale_at(w.geometry, {row, 1}) - first
                                                 : 0) {}
};

template <class T>
void move_scales(const RepackArgs &args, int64_t row, int64_t rows, const void *from_data,
                 void *to_data) {
    const ScalePlaces from(args.from, row, rows), to(args.to, row, rows);
    const int64_t groups = args.from.geometry.groups_per_row;
    const char *const in = static_cast<const char *>(from_data);
    char *const out = static_cast<char *>(to_data);
    constexpr int64_t size = sizeof(T);
    if (rows == kRowBlock && from.by_row == 1 && to.by_row == 1) {
        for (int64_t g = 0; g < groups; ++g) {
            memcpy(out + (to.first + g * to.by_group) * size,
                   in + (from.first + g * from.by_group) * size, kRowBlock * size);
        }
        return;
    }
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = from.first + r * from.by_row, place = to.first + r * to.by_row;
        for (int64_t g = 0; g < groups; ++g) {
            store_as(out, place + g * to.by_group, load_as<T>(in, at + g * from.by_group));
        }
    }
}

// Of scales, or of minima.
void move_scales(const RepackArgs &args, int64_t row, int64_t rows, const ScalePlane &from,
                 const ScalePlane &to) {
    switch (from.format->bits) {
        case 8: return move_scales<uint8_t>(args, row, rows, from.data, to.data);
        case 16: return move_scales<uint16_t>(args, row, rows, from.data, to.data);
        default: return move_scales<uint32_t>(args, row, rows, from.data, to.data);
    }
}

// Codes of a byte have one layout.
void copy_bytes(const RepackArgs &args, const Launch &launch) {
    const Weight &from = args.from, &to = args.to;
    const size_t scales =
        size_t(from.layout->scale_count(from.geometry) * from.scale.format->bits / 8);
    memcpy(to.scale.data, from.scale.data, scales);
    if (has_minimum(from)) memcpy(to.minimum.data, from.minimum.data, scales);
    parallel_ranges(launch.parallel, from.layout->data_bytes(from.geometry), int64_t{1} << 20, 1,
                    [&](int64_t first, int64_t last) {
        memcpy(static_cast<char *>(to.data) + first, static_cast<const char *>(from.data) + first,
               size_t(last - first));
    });
}

// Bits of scales or minima where they are: a plane, or a field of records.
uint16_t bits_at(const Weight &w, const ScalePlane &plane, GroupIndex group, bool minimum) {
    if (is_records(w)) {
        const auto [record, at, i] = find_in_record(w, group);
        return minimum ? record.minimum(at, i) : record.scale(at, i);
    }
    const int64_t at = w.layout->scale_at(w.geometry, group);
    return plane.format->bits == 8 ? load_as<uint8_t>(plane.data, at)
                                   : load_as<uint16_t>(plane.data, at);
}

void set_bits(const Weight &w, const ScalePlane &plane, GroupIndex group, bool minimum,
              uint16_t bits) {
    if (is_records(w)) {
        const auto [record, at, i] = find_in_record(w, group);
        return minimum ? record.set_minimum(at, i, bits) : record.set_scale(at, i, bits);
    }
    const int64_t at = w.layout->scale_at(w.geometry, group);
    plane.format->bits == 8 ? store_as(plane.data, at, uint8_t(bits))
                            : store_as(plane.data, at, bits);
}

// Records that are written have no second scales, so these come from records.
void move_second_scales(const RepackArgs &args, int64_t row) {
    const Weight &from = args.from, &to = args.to;
    const Record &record = *from.layout->record;
    if (record.second_group == 0) return;
    const int64_t count = from.geometry.k / record.codes;
    for (int64_t i = row * count; i < (row + 1) * count; ++i) {
        const uint8_t *const at = record_at(from, i);
        store_as(to.scale.second, i, f32_from_f16(record.second(at)));
        if (!has_minimum(from)) continue;
        store_as(to.minimum.second, i, f32_from_f16(record.minimum_second(at)));
    }
}

// From records or to them: scales and minima are moved one at a time.
void repack_records(const RepackArgs &args, const Launch &launch) {
    const Weight &from = args.from, &to = args.to;
    const Geometry &s = from.geometry;
    clear(launch.parallel, to.data, to.layout->data_bytes(to.geometry));
    parallel_ranges(launch.parallel, s.n, kRowBlock, s.k * kPortable,
                    [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            move_codes(args, row);
            if (is_records(from) && !is_records(to)) move_second_scales(args, row);
            for (int64_t g = 0; g < s.groups_per_row; ++g) {
                const GroupIndex group = {row, g};
                set_bits(to, to.scale, group, false, bits_at(from, from.scale, group, false));
                if (to.zero != nullptr) store_zero(to, group, zero_of(from, group));
                if (!has_minimum(from)) continue;
                set_bits(to, to.minimum, group, true, bits_at(from, from.minimum, group, true));
            }
        }
    });
}

Status run(const RepackArgs &args, const Launch &launch) {
    const Geometry &s = args.from.geometry;
    start_repacking_planes(args, launch.parallel);
    if (is_records(args.from) || is_records(args.to)) {
        repack_records(args, launch);
        return QK_OK;
    }
    if (args.from.layout->bits == 8) {
        copy_bytes(args, launch);
        return QK_OK;
    }
    clear(launch.parallel, args.to.data, args.to.layout->data_bytes(args.to.geometry));
    parallel_ranges(launch.parallel, s.n, kRowBlock, s.k * kPortable,
                    [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) move_codes(args, row);
        if (!s.flat) repack_scales_and_zeros(args, first, last);
    });
    if (s.flat) {
        for (int64_t group = 0; group < s.group_count; ++group) move_group(args, {0, group});
    }
    return QK_OK;
}

bool can_run(const RepackArgs &, const Device &) { return true; }

}  // namespace

void start_repacking_planes(const RepackArgs &args, const Parallel &parallel) {
    const ScalePlane &from = args.from.scale, &to = args.to.scale;
    clear_scales_and_zeros(args.to, parallel);
    if (args.from.scale.format->id == QK_FORMAT_I8 && !is_records(args.from)) {
        const size_t bytes = size_t(second_count(args.from)) * sizeof(float);
        memcpy(to.second, from.second, bytes);
        if (has_minimum(args.from)) memcpy(args.to.minimum.second, args.from.minimum.second, bytes);
    }
    if (is_nested(args.from)) {
        memcpy(to.second, from.second, size_t(second_count(args.from)) * sizeof(float));
        memcpy(to.code, from.code, 256 * sizeof(float));
        memcpy(to.bias, from.bias, sizeof(float));
    }
    const size_t entries = size_t(table_entries(*args.from.format));
    if (entries > 0) memcpy(args.to.table, args.from.table, entries * sizeof(float));
    if (args.from.order != nullptr) {
        memcpy(args.to.order, args.from.order, size_t(args.from.geometry.k) * sizeof(int32_t));
    }
    if (args.from.globals > 0) {
        memcpy(args.to.global, args.from.global, size_t(args.from.globals) * sizeof(float));
    }
}

void repack_scales_and_zeros(const RepackArgs &args, int64_t first, int64_t last) {
    const ZeroWords from(args.from), to(args.to);
    for (int64_t row = first; row < last; row += kRowBlock) {
        const int64_t rows = min64(kRowBlock, last - row);
        move_scales(args, row, rows, args.from.scale, args.to.scale);
        if (has_minimum(args.from)) {
            move_scales(args, row, rows, args.from.minimum, args.to.minimum);
        }
        if (args.to.zero == nullptr) continue;
        for (int64_t g = 0; g < args.from.geometry.groups_per_row; ++g) {
            to.write(row / kRowBlock, g, from.read(row / kRowBlock, g));
        }
    }
}

const Kernel<RepackArgs> kRepackGeneric = {"generic", can_run, nullptr, run};

}  // namespace qk::cpu
