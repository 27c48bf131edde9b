#include "format/layouts.hpp"

#include "format/layout_maps.hpp"

namespace qk {
namespace {

template <class Map, int bits>
int64_t data_bytes(const Geometry &s) {
    return ceil_div(Map::code_count(s) * bits, 8);
}

template <class Map>
int64_t zero_bytes(const Geometry &s) {
    return ceil_div(Map::zero_count(s), 2);
}

template <class Map, int bits>
void load(const Geometry &s, const uint8_t *data, int64_t row, int64_t column, int64_t count,
          uint8_t *codes) {
    for (int64_t i = 0; i < count; ++i) {
        const int64_t at = Map::code_at(s, row, column + i);
        codes[i] = bits == 8 ? data[at] : uint8_t(data[at >> 1] >> (at & 1) * 4 & 15);
    }
}

template <class Map, int bits>
void store(const Geometry &s, uint8_t *data, int64_t row, int64_t column, int64_t count,
           const uint8_t *codes) {
    for (int64_t i = 0; i < count; ++i) {
        const int64_t at = Map::code_at(s, row, column + i);
        if (bits == 8) {
            data[at] = codes[i];
        } else {
            data[at >> 1] = uint8_t(data[at >> 1] | codes[i] << (at & 1) * 4);
        }
    }
}

struct Traits {
    uint8_t zero_offset = 0;
    bool flat_allowed = false, flat_default = false;
};

template <class Map, int bits>
constexpr Layout make_layout(qk_layout id, const char *name, Traits traits = {}) {
    return {id,
            name,
            bits,
            traits.zero_offset,
            traits.flat_allowed,
            traits.flat_default,
            data_bytes<Map, bits>,
            Map::scale_count,
            zero_bytes<Map>,
            Map::scale_at,
            Map::zero_at,
            load<Map, bits>,
            store<Map, bits>};
}

constexpr Traits kFlatAllowed = {0, true, false};
constexpr Traits kFlatDefault = {0, true, true};
constexpr Traits kZeroMinusOne = {1, false, false};

constexpr Layout kLayouts[] = {
    make_layout<MapRow, 4>(QK_LAYOUT_ROW, "row", kFlatAllowed),
    make_layout<MapRowBytes, 8>(QK_LAYOUT_ROW, "row", kFlatAllowed),
    make_layout<MapRowHigh, 4>(QK_LAYOUT_ROW_HIGH, "row_high", kFlatDefault),
    make_layout<MapAwqGemm, 4>(QK_LAYOUT_AWQ_GEMM, "awq_gemm"),
    make_layout<MapAwqGemv, 4>(QK_LAYOUT_AWQ_GEMV, "awq_gemv"),
    make_layout<MapGptq, 4>(QK_LAYOUT_GPTQ, "gptq"),
    make_layout<MapGptq, 4>(QK_LAYOUT_GPTQ_V1, "gptq_v1", kZeroMinusOne),
    make_layout<MapWord, 4>(QK_LAYOUT_WORD, "word"),
    make_layout<MapRows8, 4>(kLayoutRows8, "rows8", kFlatAllowed),
    make_layout<MapTiles<false>, 4>(kLayoutTiles, "tiles", kFlatAllowed),
    make_layout<MapTiles<true>, 4>(kLayoutTilesPairs, "tiles_pairs", kFlatAllowed),
};

}  // namespace

const Layout *find_layout(qk_layout id, int bits) {
    for (const Layout &layout : kLayouts) {
        if (layout.id == id && layout.bits == bits) return &layout;
    }
    return nullptr;
}

bool layout_exists(qk_layout id) {
    return find_layout(id, 4) != nullptr || find_layout(id, 8) != nullptr;
}

}  // namespace qk
