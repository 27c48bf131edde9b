#include "cpu/gru/pack.hpp"

#include <string.h>

#include "cpu/kernels.hpp"

namespace qk::cpu {
namespace {

int64_t magnitude(int64_t value) { return value < 0 ? -value : value; }

int64_t widest(int32_t min, int32_t max, int32_t zero) {
    const int64_t low = magnitude(int64_t{min} - zero), high = magnitude(int64_t{max} - zero);
    return low > high ? low : high;
}

// Whether 32-bit lanes hold each value on the way, given what it can reach. derive() has proven
// less: it asks for a bit of room everywhere, and knows two widths only.
struct Reach {
    bool fits = true;

    int64_t value(int64_t bound) {
        if (bound > INT32_MAX) fits = false;
        return bound > INT32_MAX ? INT32_MAX : bound;
    }
    // A rounding shift whose operand is computed in 64 bits: the result alone must fit.
    int64_t long_shift(int64_t bound, int32_t n) {
        if (n <= 0) return value(bound > INT32_MAX ? bound : bound << -n);
        return value((bound >> n) + 1);
    }
    // All of it in 32 bits: beyond 31 the shift is 31, which rounds such operands to 0 as well.
    int64_t shift(int64_t bound, int32_t n) {
        if (n > 31 && bound > INT32_MAX / 2) fits = false;
        if (n > 0) value(bound + (int64_t{1} << ((n < 31 ? n : 31) - 1)));
        return long_shift(bound, n);
    }
};

GruShift make_shift(int32_t n) {
    if (n <= 0) return {-n, 0};
    return {0, n < 31 ? n : 31};
}
GruShift make_long_shift(int32_t n) { return n <= 0 ? GruShift{-n, 0} : GruShift{0, n}; }

bool is_direct(const gru::Table &table) {
    return table.input_max - table.input_min <= 255 && table.output_max - table.output_min <= 255;
}

void reach_table(const gru::Table &table, int64_t sum, Reach *reach) {
    reach->value(sum + (1 << 17) + magnitude(table.first));
    if (is_direct(table)) return;
    if (table.kind == QK_GRU_TABLE_UNIFORM) {
        const int64_t last = (int64_t{1} << table.width_log2) - 1;
        for (int32_t i = 0; i < table.count; ++i) {
            const int64_t line = int64_t{table.slope[i]} * last;
            reach->value(magnitude(line));
            reach->shift(magnitude(line) + magnitude(table.intercept[i]), table.shift);
        }
        return;
    }
    if (table.count > 16) reach->fits = false;
    const int64_t code = widest(table.input_min, table.input_max, table.input_zero);
    for (int32_t i = 0; i < table.count; ++i) {
        const int64_t line = magnitude(table.slope[i]) * code;
        reach->value(reach->long_shift(line, table.shift) + magnitude(table.intercept[i]));
    }
}

// Everything between the clamped linear outputs and the next h but the two sums of products.
void reach_gates(const gru::Cell &cell, Reach *reach) {
    const int64_t ih = widest(cell.ih_min, cell.ih_max, cell.ih_zero);
    const int64_t hh = widest(cell.hh_min, cell.hh_max, cell.hh_zero);
    reach_table(cell.update, reach->shift(ih, cell.ih_to_u) + reach->shift(hh, cell.hh_to_u),
                reach);
    reach_table(cell.reset, reach->shift(ih, cell.ih_to_r) + reach->shift(hh, cell.hh_to_r), reach);
    const int64_t r = widest(cell.reset.output_min, cell.reset.output_max, cell.r_zero);
    reach_table(cell.candidate,
                reach->shift(ih, cell.ih_to_n) + reach->long_shift(r * hh, cell.rhh_to_n), reach);
}

int64_t reach_of_h(const gru::Cell &cell, Reach *reach) {
    const int64_t n = widest(cell.candidate.output_min, cell.candidate.output_max, cell.n_zero);
    const int64_t u = widest(cell.update.output_min, cell.update.output_max, cell.u_zero);
    const int64_t rest = widest(cell.update.output_min, cell.update.output_max, cell.u_one);
    const int64_t h = widest(cell.h_min, cell.h_max, cell.h_zero);
    const int64_t sum = u * h + reach->value(rest) * reach->shift(n, cell.n_to_h);
    reach->value(reach->long_shift(sum, cell.u_shift) + (1 << 17));
    return sum;
}

bool is_wide(const gru::Cell &cell) {
    const int64_t hh = widest(cell.hh_min, cell.hh_max, cell.hh_zero);
    const int64_t r = widest(cell.reset.output_min, cell.reset.output_max, cell.r_zero);
    Reach reach;
    reach.shift(r * hh, cell.rhh_to_n);
    reach.shift(reach_of_h(cell, &reach), cell.u_shift);
    return !reach.fits;
}

struct Source {  // a linear part as the cell has it
    const void *weights;
    int32_t weight_bytes;
    const int64_t *offset;
    const int8_t *row_shift;
    int32_t shift, columns, code_bound, bytes;
    int32_t min, max, zero;

    int32_t weight(int64_t row, int64_t column) const {
        const int64_t at = row * columns + column;
        return weight_bytes == 1 ? static_cast<const int8_t *>(weights)[at]
                                 : static_cast<const int16_t *>(weights)[at];
    }
};

Source x_source(const gru::Cell &cell) {
    return {cell.w,      cell.w_bytes, cell.ih_offset, cell.w_shift, cell.ih_shift, cell.input_size,
            -cell.x_min, cell.x_bytes, cell.ih_min,    cell.ih_max,  cell.ih_zero};
}
Source h_source(const gru::Cell &cell) {
    return {cell.r,        cell.r_bytes,     cell.hh_offset, cell.r_shift,
            cell.hh_shift, cell.hidden_size, -cell.view_min, cell.view_bytes,
            cell.hh_min,   cell.hh_max,      cell.hh_zero};
}

// Makes the least shift of a row one to the right. x of 8 bits with an ih of 16 needs that.
int32_t lift_of(const Source &source, int64_t rows) {
    int32_t lift = 0;
    for (int64_t row = 0; row < rows; ++row) {
        const int32_t lacking = 1 - (source.row_shift[row] + source.shift);
        if (lift < lacking) lift = lacking;
    }
    return lift;
}

bool rows_fit(const Source &source, int64_t rows) {
    Reach reach;
    const int32_t lift = lift_of(source, rows);
    if (lift > (source.weight_bytes == 2 ? 0 : 16)) return false;
    for (int64_t row = 0; row < rows && reach.fits; ++row) {
        if (source.weight_bytes == 2) {  // in 64 bits, as derive() has proven
            if (magnitude(source.offset[row]) >> (30 + kWordOffsetBits) != 0) return false;
            continue;
        }
        int64_t sum = 0;
        for (int64_t k = 0; k < source.columns; ++k) sum += magnitude(source.weight(row, k));
        sum = reach.value(sum * source.code_bound + magnitude(source.offset[row]));
        reach.shift(sum << lift, source.row_shift[row] + source.shift + lift);
    }
    return reach.fits;
}

// The least that the vector kernels of this build ask for.
bool has_vectors() {
#if defined(QK_CPU_X86) || defined(QK_CPU_ARM) || defined(QK_CPU_RVV)
    return (features() & (kAvx2 | kNeon | kRvv)) != 0;
#else
    return false;
#endif
}

bool is_packed(const gru::Cell &cell) {
    if (!has_vectors()) return false;
    Reach reach;
    reach_gates(cell, &reach);
    reach_of_h(cell, &reach);
    const int64_t rows = int64_t{3} * cell.hidden_size;
    return reach.fits && rows_fit(x_source(cell), rows) && rows_fit(h_source(cell), rows);
}

struct Carver {
    char *memory;  // null while counting
    int64_t used = 0;

    template <class T>
    T *take(int64_t count) {
        char *const taken = memory == nullptr ? nullptr : memory + used;
        used = round_up(used + count * int64_t{sizeof(T)}, 64);
        return reinterpret_cast<T *>(taken);
    }
};

// Row `row` becomes row `at` of the packed ones, `columns` neighbours side by side; its sum.
template <int columns, class Weight>
int64_t pack_row(const Source &source, int64_t row, int64_t at, int64_t groups, Weight *weights) {
    constexpr int64_t panel_rows = 3 * kGruUnits;
    Weight *const to = weights + at / panel_rows * groups * panel_rows * columns;
    int64_t sum = 0;
    for (int64_t k = 0; k < source.columns; ++k) {
        const int32_t weight = source.weight(row, k);
        to[(k / columns * panel_rows + at % panel_rows) * columns + k % columns] = Weight(weight);
        sum += weight;
    }
    return sum;
}

// Two products of bytes exceed 16 bits only where all four are -128. Which columns are added first
// is the instruction set's choice among a row's two groups.
bool fit_in_pairs(const int8_t *weights, int64_t panels, int64_t groups) {
    constexpr int64_t rows = 3 * kGruUnits;
    for (; panels-- > 0; weights += groups * rows * 4) {
        for (int64_t group = 0; group < groups; group += 2) {
            for (int64_t row = 0; row < rows; ++row) {
                int lowest = 0;
                for (int64_t at = group; at < min64(group + 2, groups); ++at)
                    for (int column = 0; column < 4; ++column)
                        lowest += weights[(at * rows + row) * 4 + column] == -128;
                if (lowest > 1) return false;
            }
        }
    }
    return true;
}

// body(row, at): rows of the cell and their places in the packed panels.
template <class Body>
void for_each_row(int64_t units, const Body &body) {
    for (int64_t gate = 0; gate < 3; ++gate) {
        for (int64_t unit = 0; unit < units; ++unit) {
            body(gate * units + unit, (unit / kGruUnits * 3 + gate) * kGruUnits + unit % kGruUnits);
        }
    }
}

void pack_words(const Source &source, int64_t units, GruRows *rows, Carver *carver) {
    const int64_t panels = ceil_div(units, kGruUnits), groups = ceil_div(source.columns, 2);
    int16_t *const weights = carver->take<int16_t>(panels * groups * 3 * kGruUnits * 2);
    int32_t *const offset = carver->take<int32_t>(panels * 3 * kGruUnits * 2);
    uint8_t *const shift = carver->take<uint8_t>(panels * 3 * kGruUnits);
    if (carver->memory == nullptr) return;
    memset(shift, 1, size_t(panels * 3 * kGruUnits));
    for_each_row(units, [&](int64_t row, int64_t at) {
        int64_t sum = pack_row<2>(source, row, at, groups, weights);
        sum = source.offset[row] + (source.bytes == 2 ? kWordShift * sum : 0);
        int32_t *const parts = offset + at + at / kGruUnits * kGruUnits;
        parts[0] = int32_t(sum >> kWordOffsetBits);
        parts[kGruUnits] = int32_t(sum & ((1 << kWordOffsetBits) - 1));
        shift[at] = uint8_t(source.row_shift[row] + source.shift);
    });
    rows->weights = reinterpret_cast<const int8_t *>(weights);
    rows->word_offset = offset;
    rows->shift = shift;
    rows->groups = groups;
    rows->min = source.min - source.zero;
    rows->max = source.max - source.zero;
}

void pack_rows(const Source &source, int64_t units, GruRows *rows, Carver *carver) {
    if (source.weight_bytes == 2) return pack_words(source, units, rows, carver);
    const int64_t panels = ceil_div(units, kGruUnits), groups = ceil_div(source.columns, 4);
    int8_t *const weights = carver->take<int8_t>(panels * groups * 3 * kGruUnits * 4);
    int32_t *const offset = carver->take<int32_t>(panels * 3 * kGruUnits);
    int32_t *const plane_offset = carver->take<int32_t>(panels * 3 * kGruUnits);
    int32_t *const half = carver->take<int32_t>(panels * 3 * kGruUnits);
    uint8_t *const shift = carver->take<uint8_t>(panels * 3 * kGruUnits);
    if (carver->memory == nullptr) return;
    memset(shift, 1, size_t(panels * 3 * kGruUnits));
    const int32_t lift = lift_of(source, 3 * units);
    for_each_row(units, [&](int64_t row, int64_t at) {
        const int64_t sum = pack_row<4>(source, row, at, groups, weights);
        const int64_t in_planes = source.offset[row] + sum * kPlaneShift[source.bytes - 1];
        offset[at] = int32_t(uint64_t(source.offset[row]) << lift);
        plane_offset[at] = int32_t(uint64_t(in_planes) << lift);
        shift[at] = uint8_t(make_shift(source.row_shift[row] + source.shift + lift).right);
        half[at] = int32_t((1u << (shift[at] - 1)) - 1);
    });
    *rows = {weights,
             offset,
             plane_offset,
             half,
             shift,
             nullptr,
             groups,
             source.min - source.zero,
             source.max - source.zero,
             {},
             lift,
             fit_in_pairs(weights, panels, groups)};
}

void pack_table(const gru::Table &table, GruTable *to, Carver *carver) {
    to->width_log2 = table.width_log2;
    to->zero = table.input_zero;
    to->output_min = table.output_min;
    to->output_max = table.output_max;
    to->bias = table.input_zero;
    to->low = table.input_min;
    to->high = table.input_max;
    if (is_direct(table)) {
        to->curve = GruCurve::kDirect;
        to->bias -= table.input_min;
        to->low = 0;
        to->high = table.input_max - table.input_min;
        uint8_t *const direct = carver->take<uint8_t>(256 + 4);
        if (carver->memory == nullptr) return;
        for (int32_t i = 0; i <= to->high; ++i) {
            const int32_t value = gru::table_value<int64_t>(table, int64_t{table.input_min} + i);
            direct[i] = uint8_t(value - table.output_min);
        }
        to->direct = direct;
    } else if (table.kind == QK_GRU_TABLE_UNIFORM) {
        to->curve = GruCurve::kUniform;
        to->shift = make_shift(table.shift);
        // The clamp to the type and the clamp to the table are one: both are monotone.
        const int64_t last = (int64_t{table.count} << table.width_log2) - 1;
        const int64_t first = int64_t{table.input_zero} + table.first;
        to->bias = -table.first;
        to->low = int32_t(gru::clamp<int64_t>(table.input_min - first, 0, last));
        to->high = int32_t(gru::clamp<int64_t>(table.input_max - first, 0, last));
        int32_t *const pairs = carver->take<int32_t>(int64_t{2} * table.count);
        if (carver->memory == nullptr) return;
        for (int32_t i = 0; i < table.count; ++i) {
            pairs[2 * i] = table.slope[i];
            pairs[2 * i + 1] = table.intercept[i];
        }
        to->pairs = pairs;
    } else {
        to->curve = GruCurve::kKnots;
        to->shift = make_long_shift(table.shift);
        int32_t *const knots = carver->take<int32_t>(48);
        if (carver->memory == nullptr) return;
        for (int32_t i = 0; i < 16; ++i) {
            knots[i] = i < table.count - 1 ? table.threshold[i] : INT32_MAX;
            knots[16 + i] = i < table.count ? table.slope[i] : 0;
            knots[32 + i] = i < table.count ? table.intercept[i] : 0;
        }
        to->threshold = knots;
        to->slope = knots + 16;
        to->intercept = knots + 32;
    }
}

void pack(const gru::Cell &cell, GruPack *to, Carver *carver) {
    carver->take<GruPack>(1);
    pack_rows(x_source(cell), cell.hidden_size, &to->x, carver);
    pack_rows(h_source(cell), cell.hidden_size, &to->h, carver);
    pack_table(cell.update, &to->update, carver);
    pack_table(cell.reset, &to->reset, carver);
    pack_table(cell.candidate, &to->candidate, carver);
    to->x.to_gate[gru::kUpdate] = make_shift(cell.ih_to_u);
    to->x.to_gate[gru::kReset] = make_shift(cell.ih_to_r);
    to->x.to_gate[gru::kNew] = make_shift(cell.ih_to_n);
    to->h.to_gate[gru::kUpdate] = make_shift(cell.hh_to_u);
    to->h.to_gate[gru::kReset] = make_shift(cell.hh_to_r);
    to->is_wide = is_wide(cell);
    to->reset_shift = to->is_wide ? make_long_shift(cell.rhh_to_n) : make_shift(cell.rhh_to_n);
    to->u_shift = to->is_wide ? make_long_shift(cell.u_shift) : make_shift(cell.u_shift);
    to->n_shift = make_shift(cell.n_to_h);
    to->view_shift = make_shift(cell.view_shift);
    to->panels = ceil_div(cell.hidden_size, kGruUnits);
    to->bytes = carver->used;
}

}  // namespace

int64_t gru_pack_bytes(const gru::Cell &cell) {
    if (!is_packed(cell)) return 0;
    GruPack none = {};
    Carver counter = {nullptr};
    pack(cell, &none, &counter);
    return counter.used;
}

void gru_pack_make(const gru::Cell &cell, void *memory) {
    memset(memory, 0, size_t(gru_pack_bytes(cell)));
    Carver carver = {static_cast<char *>(memory)};
    pack(cell, static_cast<GruPack *>(memory), &carver);
}

GruRoom gru_room(const gru::Cell &cell, int64_t batch) {
    GruRoom room = {};
    // Enough rows for W x to be a product of matrices; their results should stay in the caches.
    room.steps = batch < 16 ? 16 / batch : 1;
    room.units = round_up(cell.hidden_size, kGruUnits);
    // Two bytes a code, or two planes of one; weights of 16 bits take two planes of two.
    room.h_stride = round_up(2 * cell.r_bytes * room.units, 64);
    room.x_stride = round_up(2 * cell.w_bytes * round_up(cell.input_size, kGruUnits), 64);
    const int64_t sums = 3 * room.units * 4;
    room.h_at = 64;  // before it: counters
    room.view_at = round_up(room.h_at + room.units * 4, 64);
    room.x_at = room.view_at + room.h_stride;
    room.ih_at = room.x_at + room.steps * room.x_stride;
    room.hh_at = room.ih_at + room.steps * sums;
    room.bytes = round_up(room.hh_at + sums, 64);
    return room;
}

int64_t gru_room_bytes(const gru::Cell &cell, int64_t batch) {
    return batch * gru_room(cell, batch).bytes + 64;
}

}  // namespace qk::cpu
