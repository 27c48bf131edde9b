// What every kernel of packed tiles on sm_90 knows of a product; each adds its plan.
#pragma once
#include "backend/backend.hpp"
#include "cuda/conditions.hpp"
#include "format/layouts.hpp"

namespace qk::cuda {

struct TilesProblem {
    const uint8_t *codes, *scale, *zero;  // zero: null where every zero is 8
    const float *second, *scale_code, *scale_bias;
    const void *x, *bias;  // bias may be null
    void *y;
    int64_t m, n;
    int32_t k;
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
