#include "format/layouts.hpp"

#include "format/layout_maps.hpp"
#include "format/records.hpp"

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

template <class R>
int64_t record_bytes(const Geometry &s) {
    return s.n * (s.k / R::kCodes) * R::kBytes;
}

template <class R>
void load_record(const Geometry &s, const uint8_t *data, int64_t row, int64_t column, int64_t count,
                 uint8_t *codes) {
    for (int64_t i = 0; i < count; ++i) {
        const int64_t at = row * s.k + column + i;
        codes[i] = R::code(data + at / R::kCodes * R::kBytes, int(at % R::kCodes));
    }
}

template <class R>
void store_record(const Geometry &s, uint8_t *data, int64_t row, int64_t column, int64_t count,
                  const uint8_t *codes) {
    for (int64_t i = 0; i < count; ++i) {
        const int64_t at = row * s.k + column + i;
        R::set_code(data + at / R::kCodes * R::kBytes, int(at % R::kCodes), codes[i]);
    }
}

// What a layout of records has in place of the planes of scales and zeros.
int64_t no_places(const Geometry &) { return 0; }
int64_t no_place(const Geometry &, GroupIndex) { return 0; }

template <class R>
constexpr Record read_only(qk_format format, qk_format scales) {
    return {R::kCodes,
            R::kBytes,
            R::kGroup,
            format,
            scales,
            R::kNested ? R::kCodes / R::kGroup : 0,
            R::kHasMinimum,
            R::scale,
            R::minimum,
            R::second,
            R::minimum_second,
            nullptr,
            nullptr};
}

template <class R>
constexpr Record read_write(qk_format format, qk_format scales) {
    Record record = read_only<R>(format, scales);
    record.set_scale = R::set_scale;
    record.set_minimum = R::set_minimum;
    return record;
}

// Where codes of a record have fewer bits than the format's, it cannot hold all of them: such
// records are read and never written, as those of nested scales.
constexpr Record kQ4_0 = read_write<RecordQ4_0>(QK_FORMAT_U4_AFFINE, QK_FORMAT_F16);
constexpr Record kQ4_1 = read_write<RecordQ4_1>(QK_FORMAT_U4_AFFINE, QK_FORMAT_F16);
constexpr Record kQ5_0 = read_only<RecordQ5_0>(QK_FORMAT_S8, QK_FORMAT_F16);
constexpr Record kQ5_1 = read_only<RecordQ5_1>(QK_FORMAT_S8, QK_FORMAT_F16);
constexpr Record kQ8_0 = read_write<RecordQ8_0>(QK_FORMAT_S8, QK_FORMAT_F16);
constexpr Record kQ4K = read_only<RecordQ4K>(QK_FORMAT_U4_AFFINE, QK_FORMAT_I8);
constexpr Record kQ5K = read_only<RecordQ5K>(QK_FORMAT_S8, QK_FORMAT_I8);
constexpr Record kQ6K = read_only<RecordQ6K>(QK_FORMAT_S8, QK_FORMAT_I8);
constexpr Record kIq4Nl = read_write<RecordIq4Nl>(QK_FORMAT_IQ4_NL, QK_FORMAT_F16);
constexpr Record kIq4Xs = read_only<RecordIq4Xs>(QK_FORMAT_IQ4_NL, QK_FORMAT_I8);
constexpr Record kMxfp4 = read_write<RecordMxfp4>(QK_FORMAT_FP4_GGML, QK_FORMAT_E8M0);

template <class R>
constexpr Layout of_records(qk_layout id, const char *name, const Record *record) {
    void (*store)(const Geometry &, uint8_t *, int64_t, int64_t, int64_t, const uint8_t *) =
        nullptr;
    if constexpr (requires { R::set_code; }) store = store_record<R>;
    const uint8_t bits = record->format == QK_FORMAT_S8 ? 8 : 4;
    return {id,        name,      bits,     0,        false,          false, record_bytes<R>,
            no_places, no_places, no_place, no_place, load_record<R>, store, record};
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
    of_records<RecordQ4_0>(QK_LAYOUT_GGUF_Q4_0, "gguf_q4_0", &kQ4_0),
    of_records<RecordQ4_1>(QK_LAYOUT_GGUF_Q4_1, "gguf_q4_1", &kQ4_1),
    of_records<RecordQ5_0>(QK_LAYOUT_GGUF_Q5_0, "gguf_q5_0", &kQ5_0),
    of_records<RecordQ5_1>(QK_LAYOUT_GGUF_Q5_1, "gguf_q5_1", &kQ5_1),
    of_records<RecordQ8_0>(QK_LAYOUT_GGUF_Q8_0, "gguf_q8_0", &kQ8_0),
    of_records<RecordQ4K>(QK_LAYOUT_GGUF_Q4_K, "gguf_q4_k", &kQ4K),
    of_records<RecordQ5K>(QK_LAYOUT_GGUF_Q5_K, "gguf_q5_k", &kQ5K),
    of_records<RecordQ6K>(QK_LAYOUT_GGUF_Q6_K, "gguf_q6_k", &kQ6K),
    of_records<RecordIq4Nl>(QK_LAYOUT_GGUF_IQ4_NL, "gguf_iq4_nl", &kIq4Nl),
    of_records<RecordIq4Xs>(QK_LAYOUT_GGUF_IQ4_XS, "gguf_iq4_xs", &kIq4Xs),
    of_records<RecordMxfp4>(QK_LAYOUT_GGUF_MXFP4, "gguf_mxfp4", &kMxfp4),
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

const char *layout_name(qk_layout id) {
    for (const Layout &layout : kLayouts) {
        if (layout.id == id) return layout.name;
    }
    return nullptr;
}

}  // namespace qk
