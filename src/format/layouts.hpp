// The layout table: where codes, scales and zeros are stored, one row a layout. A place is an
// index: of a nibble (nibble 2b is the low half of byte b, so little-endian 32-bit words need no
// special care) or of a byte for 8-bit codes; of an element for scales; of a nibble for zeros.
#pragma once
#include <stdint.h>

#include "format/geometry.hpp"
#include "qk.h"

namespace qk {

// Layouts that qk_repack chooses behind QK_LAYOUT_PACKED; never in a file, never in the ABI.
constexpr qk_layout kLayoutRows8 = 1000;       // the CPU's
constexpr qk_layout kLayoutTiles = 1001;       // CUDA's, for u4
constexpr qk_layout kLayoutTilesPairs = 1002;  // CUDA's, for 4-bit codes that are looked up

// Records of a GGUF file: `codes` of a row with their scales and minima between them. A layout of
// records holds one format with one kind of scales; bits are those of scale_format.
struct Record {
    int32_t codes, bytes, group;
    qk_format format, scale_format;
    int32_t second_group;  // scales of a record where they are nested (i8), else 0
    bool has_minimum;
    uint16_t (*scale)(const uint8_t *record, int group);
    uint16_t (*minimum)(const uint8_t *record, int group);
    uint16_t (*second)(const uint8_t *record);  // f16, nested scales; so are those of the minima
    uint16_t (*minimum_second)(const uint8_t *record);
    void (*set_scale)(uint8_t *record, int group, uint16_t bits);  // null: records are only read
    void (*set_minimum)(uint8_t *record, int group, uint16_t bits);
};

// A group of a row of records.
struct RecordGroup {
    int64_t record;  // of the whole weight
    int group;       // in the record
};
static inline RecordGroup record_group(const Record &record, const Geometry &s, GroupIndex i) {
    const int64_t groups = record.codes / record.group;
    return {i.row * (s.k / record.codes) + i.group / groups, int(i.group % groups)};
}

struct Layout {
    qk_layout id;
    const char *name;
    uint8_t bits;         // of a code: 4 or 8
    uint8_t zero_offset;  // zeros are stored as (zero - zero_offset) & 15
    bool flat_allowed;    // can hold groups that straddle rows
    bool flat_default;    // QK_GROUPING_DEFAULT means flat here

    // Counts include padding.
    int64_t (*data_bytes)(const Geometry &);
    int64_t (*scale_count)(const Geometry &);
    int64_t (*zero_bytes)(const Geometry &);
    int64_t (*scale_at)(const Geometry &, GroupIndex);
    int64_t (*zero_at)(const Geometry &, GroupIndex);

    // `count` codes of one row from `column` on, to and from one byte each. `store` ORs into
    // planes that were zeroed before, so neighbours in a byte may be stored one at a time.
    void (*load)(const Geometry &, const uint8_t *data, int64_t row, int64_t column, int64_t count,
                 uint8_t *codes);
    void (*store)(const Geometry &, uint8_t *data, int64_t row, int64_t column, int64_t count,
                  const uint8_t *codes);
    const Record *record = nullptr;  // of GGUF's layouts, whose scales and minima are in DATA
};

// Blocks of this many rows, counted from row 0, share no byte of any plane with other rows (groups
// along k), so one task may store them without a lock.
constexpr int64_t kRowBlock = 8;

// nullptr where no such layout stores codes of that width.
const Layout *find_layout(qk_layout id, int bits);
// nullptr where no width of code has this layout (an unknown one, not a wrong pairing).
const char *layout_name(qk_layout id);

}  // namespace qk
