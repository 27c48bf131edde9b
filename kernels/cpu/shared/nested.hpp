// Tables of 256 numbers indexed by bytes (of nested scales, of LUT8), and the types of functions
// that look up many at once.
#pragma once
#include <stdint.h>
#include <string.h>

#include "backend/backend.hpp"
#include "base/checked.hpp"
#include "format/scale_tables.hpp"

namespace qk::cpu {

struct NestedCode {
    alignas(64) uint8_t plane[4][256];  // byte p of each value
    float value[256];
    bool exponents;  // E8M0's own table: the codes are exponents
    bool e4m3;       // E4M3's
    bool finite;     // all of them
    float divisor;   // of all of E4M3's numbers, where the values are their quotients; else 0
};

// Which second scales 8 rows have from a group on. A second scale belongs to consecutive numbers of
// scales, which differ from row to row.
struct SecondRun {
    const void *plane;  // f32
    int64_t last;       // of the plane: padding rows are past it and may have any second scale
    int64_t size;       // scales that share one
    int32_t shift;      // log2 of it, or -1 where it is no power of two
    int64_t number;     // of row 0's first scale
    int64_t per_row;    // scales
};

// Up to `count` groups of 8 rows: to = value[from] * second + bias, two roundings. `to` has room
// for a multiple of 8 groups. Returns how many it took, those over which every row changes its
// second scale once at most.
using WidenNested = int64_t (*)(const NestedCode &code, const char *from, int64_t count,
                                const SecondRun &run, float bias, float (*to)[8]);

// to[i] = value[from[i]] * scale.
using LookUpBytes = void (*)(const NestedCode &code, const uint8_t *from, int64_t count,
                             float scale, float *to);
// Codes of groups that follow each other: `first` of the first one.
struct GroupCodes {
    const uint8_t *from;
    int64_t count, first, group_size;
    const float *scale;  // of each group
};
// The same, rounded to bf16 or f16, of groups that are multiples of 64; `stream`: past the caches.
using LookUpHalves = void (*)(const NestedCode &code, const GroupCodes &run, bool is_f16,
                              bool stream, char *to);
// Of 16 rows, a column's codes side by side: to[c * pitch + i] = value[from[c][i]] * scale[c][i], a
// multiple of 4 columns.
using LookUpColumns = void (*)(const NestedCode &code, const uint8_t (*from)[16], int64_t columns,
                               const float *const *scale, float *to, int64_t pitch);

namespace {

// body(from, count, scale, to): a group's codes, and where its halves go.
template <class Body>
inline __attribute__((always_inline)) void for_each_group(const GroupCodes &run, char *to,
                                                          const Body &body) {
    const float *scale = run.scale;
    for (int64_t i = 0, end = run.first; i < run.count; end += run.group_size) {
        const int64_t last = end < run.count ? end : run.count;
        body(run.from + i, last - i, *scale++, to + 2 * i);
        i = last;
    }
}

inline void load_nested_code(const void *from, NestedCode *code) {
    memcpy(code->value, from, sizeof(code->value));
    code->exponents = memcmp(from, kScaleTables.e8m0, sizeof(code->value)) == 0;
    code->e4m3 = memcmp(from, kScaleTables.e4m3, sizeof(code->value)) == 0;
    code->finite = true;
    code->divisor = 0;
    for (int64_t i = 0; i < 256; ++i) {
        code->finite &= __builtin_fabsf(code->value[i]) < __builtin_inff();
        for (int64_t p = 0; p < 4; ++p) {
            code->plane[p][i] = static_cast<const uint8_t *>(from)[4 * i + p];
        }
    }
}

// Of a weight whose GLOBAL number divides (fold_global). A quarter of the range of exponents is
// left on either side, so that the numbers may be divided times a power of two.
inline float divisor_of(const Weight &w, const NestedCode &code) {
    if (w.globals != 1 || w.global == nullptr || code.e4m3) return 0;
    float global, numbers[256];
    memcpy(&global, w.global, sizeof(global));
    memcpy(numbers, kScaleTables.e4m3, sizeof(numbers));
    const float magnitude = __builtin_fabsf(global);
    if (!(magnitude > 0x1p-64f && magnitude < 0x1p64f)) return 0;
    for (float &number : numbers) number /= global;
    return memcmp(numbers, code.value, sizeof(numbers)) == 0 ? global : 0;
}
inline void load_nested_code(const Weight &w, const ScalePlane &plane, NestedCode *code) {
    load_nested_code(plane.code, code);
    if (plane.format->id == QK_FORMAT_E4M3) code->divisor = divisor_of(w, *code);
}

// All have the second scale 1 and a bias that adds nothing.
inline bool is_plain(const SecondRun &run, float bias) {
    float second;
    memcpy(&second, run.plane, sizeof(second));
    return run.size == kOneSecond && second == 1.0f && __builtin_signbit(bias) && bias == 0;
}

// Second scales of 8 rows over a run of groups: row r's is first[r], and last[r] from group
// change[r] of the run on.
struct SecondScales {
    float first[8], last[8];
    int32_t change[8];
    int64_t count;  // of groups
};
inline __attribute__((noinline)) SecondScales second_scales(const SecondRun &run, int64_t count) {
    SecondScales second;
    for (int64_t row = 0; row < 8; ++row) {
        const int64_t number = run.number + row * run.per_row;
        const int64_t index = run.shift >= 0 ? number >> run.shift : number / run.size;
        const int64_t change = (index + 1) * run.size - number;
        const char *const plane = static_cast<const char *>(run.plane);
        memcpy(&second.first[row], plane + 4 * (index < run.last ? index : run.last), 4);
        memcpy(&second.last[row], plane + 4 * (index + 1 < run.last ? index + 1 : run.last), 4);
        second.change[row] = int32_t(change < INT32_MAX ? change : INT32_MAX);
        count = count < change + run.size ? count : change + run.size;
    }
    second.count = count;
    return second;
}

}  // namespace

// One look-up in memory each.
template <class Isa>
int64_t widen_gathering(const NestedCode &code, const char *from, int64_t count,
                        const SecondRun &run, float bias, float (*to)[8]) {
    const SecondScales second = second_scales(run, count);
    int64_t unchanged = second.count;  // groups for which every row has its first second scale
    for (const int32_t change : second.change) unchanged = min64(change, unchanged);
    int64_t i = 0;
    for (; i < unchanged; ++i) {
        Isa::widen_nested(from + i * 8, code.value, second.first, bias, to[i]);
    }
    for (; i < second.count; ++i) {
        float of_group[8];
        for (int64_t row = 0; row < 8; ++row) {
            of_group[row] = i < second.change[row] ? second.first[row] : second.last[row];
        }
        Isa::widen_nested(from + i * 8, code.value, of_group, bias, to[i]);
    }
    return second.count;
}

// The fastest that this machine has.
template <class Isa>
WidenNested pick_nested_widener(const Device &device) {
    const WidenNested wider = Isa::nested_widener(device);
    return wider != nullptr ? wider : widen_gathering<Isa>;
}

// LUT8's codes, 16 look-ups at a time.
template <class Isa>
inline void look_up_wide(const NestedCode &code, const uint8_t *from, int64_t count, float scale,
                         float *to) {
    const typename Isa::WideTable table(code.value);
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        Isa::store_f32(to + i, Isa::mul(table.look_up(from + i), Isa::splat(scale)));
    }
    for (; i < count; ++i) to[i] = code.value[from[i]] * scale;
}

template <class Isa>
LookUpBytes pick_byte_lookup(const Device &device) {
    const LookUpBytes wider = Isa::byte_lookup(device);
    return wider != nullptr ? wider : look_up_wide<Isa>;
}

}  // namespace qk::cpu
