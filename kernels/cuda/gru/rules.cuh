// gates_to_h's rules for the GRUs that one meets: every shift but n's goes right and leaves what 32
// bits hold. Shifts are prepared, tables lie in shared memory; the integers are those of CellRules.
#pragma once
#include <type_traits>

#include "cuda/choose/gru.hpp"
#include "gru/cell.hpp"

namespace qk::cuda {

struct RightShift {  // by 0..31, half to even
    int32_t count, odd_mask, half;
};
struct Scale {  // a shift left, then one right; one of them by 0
    int32_t left;
    RightShift right;
};

inline RightShift right_shift(int32_t count) {
    return {count, count > 0 ? 1 : 0, count > 0 ? int32_t((1u << (count - 1)) - 1) : 0};
}

inline Scale scale_of(int32_t shift) {
    return {shift < 0 ? -shift : 0, right_shift(shift < 0 ? 0 : shift)};
}

// How a kernel keeps a gate's table: a value for each code, uniform lines, lines between knots.
enum class TableForm { kValues, kLines, kKnots };

struct PlainTable {
    int32_t bias;         // what makes a place in the table of a sum without zero point
    int32_t first, last;  // the places that codes can have
    int32_t width_log2;
    RightShift shift;
    int32_t low, high, minus_zero;  // of the result, a difference from its zero point
    int32_t minus_input_zero;
};

struct PlainCell {
    Scale ih_to_u, ih_to_r, ih_to_n, hh_to_u, hh_to_r, n_to_h;
    RightShift rhh_to_n, u_to_h, h_to_view;
    PlainTable table[3];
    int32_t one, hh_low, hh_high, h_low, h_high, h_zero, view_low, view_high;
};

PlainCell plain_cell(const gru::Cell &cell, TableForm form);

#if defined(__CUDACC__)
namespace {

__device__ inline int32_t shifted(int32_t x, const RightShift &s) {
    return (x + s.half + ((x >> s.count) & s.odd_mask)) >> s.count;
}

__device__ inline int32_t shifted(int32_t x, const Scale &s) {
    return shifted(x << s.left, s.right);
}

// The result fits 32 bits.
__device__ inline int32_t shifted(int64_t x, const RightShift &s) {
    const auto bits = [&](int64_t v) {
        return int32_t(__funnelshift_r(uint32_t(v), uint32_t(uint64_t(v) >> 32), s.count));
    };
    return bits(x + (s.half + (bits(x) & s.odd_mask)));
}

// By 1..31.
__device__ inline int32_t row_shifted(int32_t x, int32_t count) {
    return (x + ((1 << (count - 1)) - 1) + ((x >> count) & 1)) >> count;
}

__device__ inline int32_t clamped(int32_t x, int32_t low, int32_t high) {
    return max(min(x, high), low);
}

// Tables in shared memory; `fill` is called by the whole block, which must synchronize before use.
struct ValueTables {
    static constexpr bool kAligned = true;  // n comes in h's scale
    int32_t values[3][kDirectCodes];

    __device__ void fill(const gru::Cell &cell) {
        const gru::Table *const all[] = {&cell.update, &cell.reset, &cell.candidate};
        const int32_t zero[] = {cell.u_zero, cell.r_zero, cell.n_zero};
        for (int gate = 0; gate < 3; ++gate) {
            const gru::Table &table = *all[gate];
            const int32_t count = table.input_max - table.input_min + 1;
            for (int32_t i = int32_t(threadIdx.x); i < count; i += int32_t(blockDim.x)) {
                const int32_t value =
                    gru::table_value<int32_t>(table, table.input_min + i) - zero[gate];
                values[gate][i] = gate == gru::kNew ? rounding_shift(value, cell.n_to_h) : value;
            }
        }
    }
    __device__ int32_t value(const PlainTable &, int gate, int32_t place) const {
        return values[gate][place];
    }
};

struct LineTables {
    static constexpr bool kAligned = false;
    int2 lines[3][kPlainLines];  // slope, intercept

    __device__ void fill(const gru::Cell &cell) {
        const gru::Table *const all[] = {&cell.update, &cell.reset, &cell.candidate};
        for (int gate = 0; gate < 3; ++gate) {
            const gru::Table &table = *all[gate];
            for (int32_t i = int32_t(threadIdx.x); i < table.count; i += int32_t(blockDim.x)) {
                lines[gate][i] = {table.slope[i], table.intercept[i]};
            }
        }
    }
    __device__ int32_t value(const PlainTable &t, int gate, int32_t place) const {
        const int2 line = lines[gate][place >> t.width_log2];
        const int32_t offset = place & ((1 << t.width_log2) - 1);
        return clamped(shifted(line.x * offset + line.y, t.shift) + t.minus_zero, t.low, t.high);
    }
};

// Wide_: of products.
template <class Wide_, class Tables_>
struct PlainRules {
    using Int = int32_t;
    using Wide = Wide_;
    using Tables = Tables_;
    const PlainCell &cell;
    const Tables &tables;

    __device__ int32_t look_up(int gate, int32_t sum) const {
        const PlainTable &t = cell.table[gate];
        return tables.value(t, gate, clamped(sum + t.bias, t.first, t.last));
    }
    __device__ int32_t ih_to_u(int32_t ih) const { return shifted(ih, cell.ih_to_u); }
    __device__ int32_t ih_to_r(int32_t ih) const { return shifted(ih, cell.ih_to_r); }
    __device__ int32_t ih_to_n(int32_t ih) const { return shifted(ih, cell.ih_to_n); }
    __device__ int32_t hh_to_u(int32_t hh) const { return shifted(hh, cell.hh_to_u); }
    __device__ int32_t hh_to_r(int32_t hh) const { return shifted(hh, cell.hh_to_r); }
    __device__ int32_t rhh_to_n(Wide rhh) const { return shifted(rhh, cell.rhh_to_n); }
    __device__ int32_t n_to_h(int32_t n) const {
        return Tables::kAligned ? n : shifted(n, cell.n_to_h);
    }
    __device__ int32_t update(int32_t sum) const { return look_up(gru::kUpdate, sum); }
    __device__ int32_t reset(int32_t sum) const { return look_up(gru::kReset, sum); }
    __device__ int32_t candidate(int32_t sum) const { return look_up(gru::kNew, sum); }
    __device__ int32_t one() const { return cell.one; }
    __device__ int32_t to_h(Wide product) const {
        return clamped(shifted(product, cell.u_to_h), cell.h_low, cell.h_high);
    }

    // A row's sum, offset included, to hh.
    __device__ int32_t hidden(int32_t sum, int32_t shift) const {
        return clamped(row_shifted(sum, shift), cell.hh_low, cell.hh_high);
    }
    __device__ int32_t view(int32_t h) const {  // of a difference from the zero point
        if constexpr (sizeof(Wide) == 4) return h + cell.h_zero;  // plain_kind knows: all of it
        return clamped(shifted(h + cell.h_zero, cell.h_to_view), cell.view_low, cell.view_high);
    }
};

// Any other GRU: the cell's own words, tables in global memory.
struct AnyRules : gru::CellRules<int32_t, int64_t> {
    struct Tables {};

    __device__ AnyRules(const gru::Cell &any) : gru::CellRules<int32_t, int64_t>{any} {}
    __device__ int32_t hidden(int32_t sum, int32_t shift) const {
        return gru::linear_code(sum, shift, cell.hh_zero, cell.hh_min, cell.hh_max) - cell.hh_zero;
    }
    __device__ int32_t view(int32_t h) const { return gru::view_of_h(cell, h + cell.h_zero); }
};

}  // namespace
#endif

}  // namespace qk::cuda
