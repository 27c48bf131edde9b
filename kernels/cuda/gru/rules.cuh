// gates_to_h's rules for the common GRUs: every shift but n's is to the right and leaves what 32
// bits hold. Shifts are prepared, tables are in shared memory; the integers are those of CellRules.
#pragma once
#include <type_traits>

#include "cuda/gru/plan.hpp"
#include "gru/cell.hpp"

namespace qk::cuda {

// By 0..31, half to even: the floor of x + half, made even where the bits that fall off (`mask`)
// were all zero, because these are the ties. By 0 only 0 looks like a tie, and is even.
struct RightShift {
    int32_t count, mask, half;
};
struct Scale {  // times a power of two, then a shift right; one of them does nothing
    int32_t times;
    RightShift right;
};

inline RightShift right_shift(int32_t count) {
    if (count == 0) return {0, -1, 0};
    return {count, int32_t((1u << count) - 1), int32_t(1u << (count - 1))};
}

inline Scale scale_of(int32_t shift) {
    return {shift < 0 ? 1 << -shift : 1, right_shift(shift < 0 ? 0 : shift)};
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

// Of a number to which half was added.
__device__ inline int32_t halved_to_even(int32_t x, int32_t count, int32_t mask) {
    const int32_t floor = x >> count;
    return (x & mask) == 0 ? floor & ~1 : floor;
}

// The result fits 32 bits.
__device__ inline int32_t halved_to_even(int64_t x, int32_t count, int32_t mask) {
    const int32_t floor =
        int32_t(__funnelshift_r(uint32_t(x), uint32_t(uint64_t(x) >> 32), uint32_t(count)));
    return (int32_t(x) & mask) == 0 ? floor & ~1 : floor;
}

template <class Int>
__device__ inline int32_t shifted(Int x, const RightShift &s) {
    return halved_to_even(x + s.half, s.count, s.mask);
}

__device__ inline int32_t shifted(int32_t x, const Scale &s) {
    return halved_to_even(x * s.times + s.right.half, s.right.count, s.right.mask);
}

// By 1..31.
__device__ inline int32_t row_half(int32_t count) { return int32_t(1u << (count - 1)); }
__device__ inline int32_t row_shifted(int32_t x_and_half, int32_t count) {
    return halved_to_even(x_and_half, count, int32_t((1u << count) - 1));
}

__device__ inline int32_t clamped(int32_t x, int32_t low, int32_t high) {
    return max(min(x, high), low);
}

// Tables in shared memory; `fill` is called by the whole block, which must synchronize before use.
struct ValueTables {
    static constexpr bool kAligned = true;   // n comes in h's scale
    static constexpr bool kFromZero = true;  // places begin at 0
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
    static constexpr bool kAligned = false, kFromZero = true;
    int2 lines[3][kPlainLines];  // slope, intercept and the half of the shift

    // All tables are on their way before the first is stored.
    __device__ void fill(const gru::Cell &cell) {
        const gru::Table *const all[] = {&cell.update, &cell.reset, &cell.candidate};
        constexpr int kAtOnce = 2;
        const int32_t threads = int32_t(blockDim.x);
        for (int32_t first = int32_t(threadIdx.x); first < kPlainLines;
             first += kAtOnce * threads) {
            int2 line[3][kAtOnce];
#pragma unroll
            for (int gate = 0; gate < 3; ++gate) {
                const gru::Table &table = *all[gate];
                const int32_t half = table.shift > 0 ? row_half(table.shift) : 0;
#pragma unroll
                for (int k = 0; k < kAtOnce; ++k) {
                    const int32_t i = first + k * threads;
                    line[gate][k] = {};
                    if (i < table.count) {
                        line[gate][k] = {table.slope[i], table.intercept[i] + half};
                    }
                }
            }
#pragma unroll
            for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
                for (int k = 0; k < kAtOnce; ++k) {
                    const int32_t i = first + k * threads;
                    if (i < kPlainLines) lines[gate][i] = line[gate][k];
                }
            }
        }
    }
    __device__ int32_t value(const PlainTable &t, int gate, int32_t place) const {
        const int2 line = lines[gate][place >> t.width_log2];
        const int32_t offset = place & ((1 << t.width_log2) - 1);
        const int32_t value = halved_to_even(line.x * offset + line.y, t.shift.count, t.shift.mask);
        return max(__viaddmin_s32(value, t.minus_zero, t.high), t.low);
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

    // W x + bw in the scales of the gates' arguments, as places in their tables.
    __device__ gru::InputSums<int32_t> input(const int32_t (&ih)[3]) const {
        return {shifted(ih[gru::kUpdate], cell.ih_to_u) + cell.table[gru::kUpdate].bias,
                shifted(ih[gru::kReset], cell.ih_to_r) + cell.table[gru::kReset].bias,
                shifted(ih[gru::kNew], cell.ih_to_n) + cell.table[gru::kNew].bias};
    }
    __device__ int32_t look_up(int gate, int32_t input, int32_t hidden) const {
        const PlainTable &t = cell.table[gate];
        const int32_t place = Tables::kFromZero ? __viaddmin_s32_relu(input, hidden, t.last)
                                                : clamped(input + hidden, t.first, t.last);
        return tables.value(t, gate, place);
    }
    // gates_to_h, with its integers.
    __device__ int32_t next(const gru::InputSums<int32_t> &in, const int32_t (&hh)[3],
                            int32_t h) const {
        const int32_t r = look_up(gru::kReset, in.r, shifted(hh[gru::kReset], cell.hh_to_r));
        const int32_t u = look_up(gru::kUpdate, in.u, shifted(hh[gru::kUpdate], cell.hh_to_u));
        const int32_t n = look_up(gru::kNew, in.n, shifted(Wide(r) * hh[gru::kNew], cell.rhh_to_n));
        const int32_t aligned = Tables::kAligned ? n : shifted(n, cell.n_to_h);
        const Wide kept = Wide(u) * h + cell.u_to_h.half;
        const Wide mixed = Wide(cell.one - u) * aligned + kept;
        return clamped(halved_to_even(mixed, cell.u_to_h.count, cell.u_to_h.mask), cell.h_low,
                       cell.h_high);
    }

    // A row's sum, with its offset and the half of its shift, to hh.
    __device__ int32_t hidden(int32_t sum, int32_t shift) const {
        return clamped(row_shifted(sum, shift), cell.hh_low, cell.hh_high);
    }
    __device__ int32_t offset(int64_t of_row, int32_t shift) const {
        return int32_t(of_row) + row_half(shift);
    }
    __device__ int32_t view(int32_t h) const {  // of a difference from the zero point
        if constexpr (sizeof(Wide) == 4) return h + cell.h_zero;  // plain_kind knows: all of it
        return min(shifted(h + cell.h_zero, cell.h_to_view), cell.view_high);  // h has a least code
    }
};

// Any other GRU: the cell's own words, tables in global memory.
struct AnyRules : gru::CellRules<int32_t, int64_t> {
    struct Tables {};

    __device__ AnyRules(const gru::Cell &any) : gru::CellRules<int32_t, int64_t>{any} {}
    __device__ gru::InputSums<int32_t> input(const int32_t (&ih)[3]) const {
        return gru::input_sums(*this, ih);
    }
    __device__ int32_t next(const gru::InputSums<int32_t> &in, const int32_t (&hh)[3],
                            int32_t h) const {
        return gru::gates_to_h(*this, in, hh, h, nullptr);
    }
    __device__ int32_t offset(int64_t of_row, int32_t) const { return int32_t(of_row); }
    __device__ int32_t hidden(int32_t sum, int32_t shift) const {
        return gru::linear_code(sum, shift, cell.hh_zero, cell.hh_min, cell.hh_max) - cell.hh_zero;
    }
    __device__ int32_t view(int32_t h) const { return gru::view_of_h(cell, h + cell.h_zero); }
};

}  // namespace
#endif

}  // namespace qk::cuda
