// What every kernel of packed tiles knows of a product: how things are dealt to blocks and warps,
// which instance takes the case, and the operands.
#pragma once
#include <stdint.h>
#include <type_traits>

#include "backend/backend.hpp"
#include "base/checked.hpp"
#include "cuda/view.cuh"
#include "format/layouts.hpp"
#include "qk.h"

namespace qk::cuda {

struct Run {
    int32_t first, last;
};

// `count` things dealt to `parts` in order, the first `rest` of which get one more than `each`.
struct Deal {
    int32_t each, rest;

    QK_HD constexpr Run part(int32_t index) const {
        const int32_t first = index * each + (index < rest ? index : rest);
        return {first, first + each + (index < rest)};
    }
};

static constexpr Deal deal(int64_t count, int32_t parts) {
    return {int32_t(count / parts), int32_t(count % parts)};
}

// Bytes of the second scales of a block's rows of tiles, at most; 0: scales are not nested.
static constexpr int64_t second_bytes(const Deal &row_tiles, int64_t groups_per_row,
                                      int64_t second_group) {
    if (second_group == 0) return 0;
    const int64_t rows = int64_t{row_tiles.each + (row_tiles.rest > 0)} * 16;
    return (rows * groups_per_row / second_group + 2) * 4;
}

namespace {

// kNested: all codes of 8 bits, by their table; kE8M0, kE4M3: those that need none and that one
// number multiplies at most (view.cuh, coded_scales), where a kernel has them apart.
enum class ScaleKind { kF16, kBF16, kF32, kNested, kE8M0, kE4M3 };

template <ScaleKind kind>
constexpr bool kIsCoded = kind == ScaleKind::kE8M0 || kind == ScaleKind::kE4M3;

// run(kind), the kind of a scale format as a constant.
template <class Run>
auto with_scale_kind(qk_format scale, Run run) {
    switch (scale) {
        case QK_FORMAT_F16: return run(std::integral_constant<ScaleKind, ScaleKind::kF16>());
        case QK_FORMAT_BF16: return run(std::integral_constant<ScaleKind, ScaleKind::kBF16>());
        case QK_FORMAT_F32: return run(std::integral_constant<ScaleKind, ScaleKind::kF32>());
        default: return run(std::integral_constant<ScaleKind, ScaleKind::kNested>());
    }
}
// The same, with E8M0 and E4M3 apart.
template <class Run>
auto with_coded_kind(const ScalePlane &scale, const ScaleTables &tables, Run run) {
    switch (coded_scales(scale, tables)) {
        case QK_FORMAT_E8M0: return run(std::integral_constant<ScaleKind, ScaleKind::kE8M0>());
        case QK_FORMAT_E4M3: return run(std::integral_constant<ScaleKind, ScaleKind::kE4M3>());
        default: return with_scale_kind(scale.format->id, run);
    }
}

// Bytes of the scales of rows r and r + 8.
template <ScaleKind kind>
constexpr uint32_t kPairBytes = kind == ScaleKind::kF32                        ? 8
                                : kind == ScaleKind::kNested || kIsCoded<kind> ? 2
                                                                               : 4;

}  // namespace

// What the codes of a weight are: 4 bits that are integers (U4_AFFINE) or look up one of 16 values
// (NF4, FP4_BNB, FP4_E2M1), 8 bits that are integers (S8), floats (E4M3) or look up one of 256
// (LUT8).
enum class Codes { kU4, kLut4, kS8, kE4m3, kLut8 };

// Packed tiles of 4-bit codes.
inline Codes codes_of(const Weight &w) {
    return w.layout->id == kLayoutTilesPairs ? Codes::kLut4 : Codes::kU4;
}

// Rows of 8-bit codes.
inline Codes codes_of_bytes(const Weight &w) {
    if (w.format->id == QK_FORMAT_E4M3) return Codes::kE4m3;
    return w.format->kind == FormatKind::kLut8 ? Codes::kLut8 : Codes::kS8;
}

// Kernel<codes, x>::run, for x of 16 bits.
template <template <Codes, qk_format> class Kernel, Codes codes>
auto *instance_for(qk_format x) {
    return x == QK_FORMAT_F16 ? Kernel<codes, QK_FORMAT_F16>::run
                              : Kernel<codes, QK_FORMAT_BF16>::run;
}

// Of 4-bit codes.
template <template <Codes, qk_format> class Kernel>
auto *instance_for(Codes codes, qk_format x) {
    return codes == Codes::kU4 ? instance_for<Kernel, Codes::kU4>(x)
                               : instance_for<Kernel, Codes::kLut4>(x);
}

// The same, and for x of 32 bits.
template <template <Codes, qk_format> class Kernel>
auto *instance_for_any(Codes codes, qk_format x) {
    if (x != QK_FORMAT_F32) return instance_for<Kernel>(codes, x);
    return codes == Codes::kU4 ? Kernel<Codes::kU4, QK_FORMAT_F32>::run
                               : Kernel<Codes::kLut4, QK_FORMAT_F32>::run;
}

struct TilesProblem {
    const uint8_t *codes, *scale, *zero;  // zero: null where every zero is 8
    const float *second, *scale_code, *scale_bias;
    const void *x, *bias;  // bias may be null
    void *y;
    int64_t m, n;
    int32_t k, tiles;      // tiles: of 64 columns, of a row of tiles
    uint32_t groups;       // of a row
    int32_t second_shift;  // nested: log2 of second_group
    qk_format bias_type;
    float entries[16];  // lut4: what codes look up
};

inline TilesProblem tiles_problem(const LinearArgs &args) {
    const Weight &w = args.w;
    const auto bytes = [](const void *plane) { return static_cast<const uint8_t *>(plane); };
    const auto floats = [](const void *plane) { return static_cast<const float *>(plane); };
    TilesProblem p = {bytes(w.data),
                      bytes(w.scale.data),
                      bytes(w.zero),
                      floats(w.scale.second),
                      floats(w.scale.code),
                      floats(w.scale.bias),
                      args.x.data,
                      args.bias != nullptr ? args.bias->data : nullptr,
                      args.y.data,
                      args.x.rows,
                      w.geometry.n,
                      int32_t(w.geometry.k),
                      int32_t(ceil_div(w.geometry.k, 64)),
                      uint32_t(w.geometry.groups_per_row),
                      log2_of(w.scale.second_group),
                      args.bias != nullptr ? args.bias->format->id : QK_FORMAT_F32,
                      {}};
    for (int code = 0; w.layout->id == kLayoutTilesPairs && code < 16; ++code) {
        p.entries[code] = w.format->value(code);
    }
    return p;
}

}  // namespace qk::cuda
