// Dequantize, any format x layout x scale kind: value = entry * scale as one fp32 product, rounded
// once to the output type. Repack: the same codes, scales and zeros in another layout, nothing is
// decoded. Quantize: as every instruction set does, in the compiler's vectors.
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

void dequantize_row(const DequantizeArgs &args, Entries &entries, int64_t row) {
    const Weight &w = args.from;
    const Geometry &s = w.geometry;
    const bool affine = w.format->kind == FormatKind::kU4;
    uint8_t codes[kBlock];
    for (int64_t column = 0; column < s.k;) {
        const GroupIndex group = group_of(s, row, column);
        const int64_t end = group_end(s, row, column);
        const float scale = scale_of(w, group);
        if (affine) entries.set_zero(zero_of(w, group));
        for (; column < end;) {
            const int64_t count = min64(kBlock, end - column);
            w.layout->load(s, static_cast<const uint8_t *>(w.data), row, column, count, codes);
            for (int64_t i = 0; i < count; ++i) {
                store_float(args.to.format->id, args.to.data, row * s.k + column + i,
                            entries.value[codes[i]] * scale);
            }
            column += count;
        }
    }
}

Status run(const DequantizeArgs &args, const Launch &launch) {
    parallel_ranges(launch.parallel, args.from.geometry.n, 1, [&](int64_t first, int64_t last) {
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
    void *const out = args.to.scale.data;
    const void *const in = args.from.scale.data;
    switch (args.from.scale.format->bits) {
        case 8: store_as(out, to, load_as<uint8_t>(in, from)); break;
        case 16: store_as(out, to, load_as<uint16_t>(in, from)); break;
        default: store_as(out, to, load_as<uint32_t>(in, from));
    }
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
void move_scales(const RepackArgs &args, int64_t row, int64_t rows) {
    const ScalePlaces from(args.from, row, rows), to(args.to, row, rows);
    const int64_t groups = args.from.geometry.groups_per_row;
    const char *const in = static_cast<const char *>(args.from.scale.data);
    char *const out = static_cast<char *>(args.to.scale.data);
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

// Codes of a byte have one layout.
void copy_bytes(const RepackArgs &args, const Launch &launch) {
    const Weight &from = args.from, &to = args.to;
    const int64_t scales = from.layout->scale_count(from.geometry);
    memcpy(to.scale.data, from.scale.data, size_t(scales * from.scale.format->bits / 8));
    parallel_ranges(launch.parallel, from.layout->data_bytes(from.geometry), int64_t{1} << 20,
                    [&](int64_t first, int64_t last) {
        memcpy(static_cast<char *>(to.data) + first, static_cast<const char *>(from.data) + first,
               size_t(last - first));
    });
}

Status run(const RepackArgs &args, const Launch &launch) {
    const Geometry &s = args.from.geometry;
    start_repacking_planes(args);
    if (args.from.layout->bits == 8) {
        copy_bytes(args, launch);
        return QK_OK;
    }
    memset(args.to.data, 0, size_t(args.to.layout->data_bytes(args.to.geometry)));
    parallel_ranges(launch.parallel, s.n, kRowBlock, [&](int64_t first, int64_t last) {
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

void start_repacking_planes(const RepackArgs &args) {
    const ScalePlane &from = args.from.scale, &to = args.to.scale;
    clear_scales_and_zeros(args.to);
    if (is_nested(args.from)) {
        memcpy(to.second, from.second, size_t(second_count(args.from)) * sizeof(float));
        memcpy(to.code, from.code, 256 * sizeof(float));
        memcpy(to.bias, from.bias, sizeof(float));
    }
    const size_t entries = size_t(table_entries(*args.from.format));
    if (entries > 0) memcpy(args.to.table, args.from.table, entries * sizeof(float));
    if (args.from.globals > 0) {
        memcpy(args.to.global, args.from.global, size_t(args.from.globals) * sizeof(float));
    }
}

void repack_scales_and_zeros(const RepackArgs &args, int64_t first, int64_t last) {
    const ZeroWords from(args.from), to(args.to);
    for (int64_t row = first; row < last; row += kRowBlock) {
        const int64_t rows = min64(kRowBlock, last - row);
        switch (args.from.scale.format->bits) {
            case 8: move_scales<uint8_t>(args, row, rows); break;
            case 16: move_scales<uint16_t>(args, row, rows); break;
            default: move_scales<uint32_t>(args, row, rows);
        }
        if (args.to.zero == nullptr) continue;
        for (int64_t g = 0; g < args.from.geometry.groups_per_row; ++g) {
            to.write(row / kRowBlock, g, from.read(row / kRowBlock, g));
        }
    }
}

const Kernel<RepackArgs> kRepackGeneric = {"generic", can_run, nullptr, run};

}  // namespace qk::cpu
