// y = x . transpose(w) + bias for layouts whose rows follow each other (ROW, ROW_HIGH,
// AWQ_GEMV, WORD, 8-bit codes), of any format and any type of x, in f32 on plain lanes: what tensor
// cores cannot multiply without rounding (f32 x and tables, 8-bit codes), odd sizes and addresses,
// and GPUs without tensor cores for it.
//
//   warp: 2 rows of w, 1 or 4 rows of x      | unit 0 | unit 1 | .. | unit 31 | unit 32 | ..
//   unit: 8 codes of one group                 lane 0   lane 1       lane 31    lane 0
//
// A lane sums a unit's products, folds the sum with the group's scale, and goes on 32 units
// further (of weights with minima, the products of their values); 4 units of both rows are loaded
// before the first is used. At the end lanes fold by halves, so y depends on k and the groups
// alone. Bytes per output row: its codes (k / 2 or k), scales and zeros, once for 4 rows of x.
#include "cuda/kernels.hpp"
#include "cuda/linear/stored/floats_of_x.cuh"
#include "cuda/runtime.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

constexpr int kRowsOfW = 2, kUnits = 4, kUnit = 8;
constexpr int32_t kThreads = 256;
constexpr int64_t kBlockRows = kThreads / 32 * kRowsOfW;

struct Problem : LinearView {
    int32_t group_shift;   // log2 of group_size, or -1
    int32_t second_shift;  // nested: log2 of second_group
};

// Codes of units of 8: 4 bits each in the first word, or 8 in both.
struct Unit {
    uint32_t low, high;
};

// Where a row's codes and scales begin.
struct Row {
    int64_t row, codes, scales, number;  // number: nested, of its first group

    __device__ Row(const Problem &p, int64_t r) {
        const Geometry &s = p.w.geometry;
        row = min64(r, s.n - 1);
        codes = code_at(p.w, row, 0);
        scales = s.flat ? 0 : scale_at(p.w, {row, 0});  // the next group's is the next
        number = s.flat ? 0 : row * s.groups_per_row;
    }
};

// A unit at any address, cut off at the end of the row. Not inlined: once is enough of its loops.
template <int bits>
__device__ __noinline__ Unit gather_unit(const Problem &p, int64_t row, int64_t column) {
    Unit unit = {0, 0};
#pragma unroll 1
    for (int i = 0; i < kUnit && column + i < p.w.geometry.k; ++i) {
        const uint32_t code = uint32_t(code_of(p.w, row, column + i));
        if (bits == 4) unit.low |= code << 4 * i;
        if (bits == 8) (i < 4 ? unit.low : unit.high) |= code << 8 * (i % 4);
    }
    return unit;
}

// `whole`: k is whole units, and their addresses are aligned.
template <int bits, bool whole>
__device__ Unit load_unit(const Problem &p, const Row &at, int64_t column) {
    if constexpr (whole) {
        if constexpr (bits == 8) {
            const uint2 v = __ldcs(reinterpret_cast<const uint2 *>(p.w.data + at.codes + column));
            return {v.x, v.y};
        }
        const int64_t byte = at.codes / 2 + column / 2;  // ROW_HIGH: neighbours are swapped
        uint32_t word = __ldcs(reinterpret_cast<const uint32_t *>(p.w.data + byte));
        if (p.w.layout == QK_LAYOUT_ROW_HIGH) {
            word = (word & 0x0f0f0f0fu) << 4 | (word >> 4 & 0x0f0f0f0fu);
        }
        return {word, 0};
    }
    return gather_unit<bits>(p, at.row, column);
}

__device__ inline GroupIndex group_at(const Problem &p, const Row &at, int64_t column) {
    const Geometry &s = p.w.geometry;
    if (p.group_shift < 0) return group_of(s, at.row, column);
    if (s.flat) return {0, (at.row * s.k + column) >> p.group_shift};
    return {at.row, column >> p.group_shift};
}

// Scales, or minima, of `plane`.
__device__ inline uint32_t load_scale(const Problem &p, const uint8_t *plane, int64_t place) {
    switch (p.w.scale_format) {
        case QK_FORMAT_F32: return __ldg(reinterpret_cast<const uint32_t *>(plane) + place);
        case QK_FORMAT_LUT8: return __ldg(plane + place);
        default: return __ldg(reinterpret_cast<const uint16_t *>(plane) + place);
    }
}

__device__ inline float scale_value(const Problem &p, uint32_t raw, const uint8_t *seconds,
                                    int64_t number) {
    switch (p.w.scale_format) {
        case QK_FORMAT_F32: return __uint_as_float(raw);
        case QK_FORMAT_F16: return __half2float(__ushort_as_half(uint16_t(raw)));
        case QK_FORMAT_BF16: return __uint_as_float(raw << 16);
        default: {
            const float second =
                __ldg(reinterpret_cast<const float *>(seconds) + (number >> p.second_shift));
            const float code = __ldg(reinterpret_cast<const float *>(p.w.code) + raw);
            return nested_scale(code, second, __ldg(reinterpret_cast<const float *>(p.w.bias)));
        }
    }
}

// Codes as numbers minus `zero` (an integer: exact), or as entries of the table; 0 past the last
// of `columns`, since a table may hold anything.
template <int bits, bool table>
__device__ void values_of(const Unit &unit, const float *entries, float zero, int64_t columns,
                          float (&value)[kUnit]) {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
        const uint32_t word = bits == 8 && i >= 4 ? unit.high : unit.low;
        const uint32_t code = word >> bits * i % 32 & ((1u << bits) - 1);
        if constexpr (table) {
            value[i] = entries[code];
        } else {  // 2^23 + the number, S8's sign bit turned
            const uint32_t number = bits == 8 ? code ^ 0x80u : code;
            value[i] = __fadd_rn(__uint_as_float(0x4b000000u | number), -zero);
        }
        if (i >= columns) value[i] = 0;
    }
}

__device__ __noinline__ float zero_number(const Problem &p, GroupIndex group) {
    return float(zero_of(p.w, group));
}

// What `values_of` takes off.
template <int bits, bool table, bool lowered>
__device__ float bias_of(const Problem &p, GroupIndex group) {
    if (table) return 0;
    if (lowered) return bits == 8 ? 0x1p23f + 128.0f : 0x1p23f;
    return bits == 8 ? 0x1p23f + 128.0f : 0x1p23f + zero_number(p, group);
}

template <bool whole>
__device__ void load_x(const Problem &p, int64_t row, int64_t column, float (&x)[kUnit]) {
    const int64_t at = row * p.w.geometry.k + column;
    if constexpr (!whole) {
#pragma unroll
        for (int i = 0; i < kUnit; ++i) {
            x[i] = column + i < p.w.geometry.k ? load_float(p.type, p.x, at + i) : 0.0f;
        }
    } else {
        load_eight(p, at, x);
    }
}

template <int kX>
__device__ void store_sums(const Problem &p, int64_t row, int64_t x_first,
                           const float (&sum)[kRowsOfW][kX]) {
    const Geometry &s = p.w.geometry;
#pragma unroll
    for (int r = 0; r < kRowsOfW; ++r) {
#pragma unroll
        for (int i = 0; i < kX; ++i) {
            float y = sum[r][i];
            for (unsigned half = 16; half > 0; half /= 2) {
                y = __fadd_rn(y, __shfl_down_sync(~0u, y, half, 32));
            }
            if (threadIdx.x % 32 != 0 || row + r >= s.n || x_first + i >= p.m) continue;
            if (p.bias != nullptr) y = __fadd_rn(y, load_float(p.bias_type, p.bias, row + r));
            store_float(p.type, p.y, (x_first + i) * s.n + row + r, y);
        }
    }
}

// Of numbers less a minimum; 0 past the last of `columns`.
__device__ inline void lower(float scale, float minimum, int64_t columns, float (&value)[kUnit]) {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
        value[i] = i < columns ? __fadd_rn(__fmul_rn(value[i], scale), -minimum) : 0.0f;
    }
}

template <int bits, bool table, bool lowered, int kX, bool whole>
__global__ void __launch_bounds__(kThreads) multiply_lanes(const __grid_constant__ Problem p) {
    __shared__ float entries[256];
    fill_entries(p.w, entries);
    const Geometry &s = p.w.geometry;
    const int64_t row = int64_t(blockIdx.x) * kBlockRows + threadIdx.x / 32 * kRowsOfW;
    const int64_t x_first = int64_t(blockIdx.y) * kX;
    const Row rows[kRowsOfW] = {{p, row}, {p, row + 1}};
    float sum[kRowsOfW][kX] = {};
    for (int64_t first = int64_t(threadIdx.x % 32) * kUnit; first < s.k;
         first += 32 * kUnit * (whole ? kUnits : 1)) {
        constexpr int kAhead = whole ? kUnits : 1;
        Unit units[kAhead][kRowsOfW];
        uint32_t scale[kAhead][kRowsOfW], minimum[lowered ? kAhead : 1][kRowsOfW];
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {  // past the end of k the first once more: never skipped
            const int64_t column = first + u * 32 * kUnit < s.k ? first + u * 32 * kUnit : first;
#pragma unroll
            for (int r = 0; r < kRowsOfW; ++r) {
                units[u][r] = load_unit<bits, whole>(p, rows[r], column);
                const int64_t place = rows[r].scales + group_at(p, rows[r], column).group;
                scale[u][r] = load_scale(p, p.w.scale, place);
                if (lowered) minimum[u][r] = load_scale(p, p.w.minimum, place);
            }
        }
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
            const int64_t column = first + u * 32 * kUnit;
            if (column >= s.k) break;
            float x[kX][kUnit];
#pragma unroll
            for (int i = 0; i < kX; ++i) {
                load_x<whole>(p, min64(x_first + i, p.m - 1), column, x[i]);
            }
#pragma unroll
            for (int r = 0; r < kRowsOfW; ++r) {
                const GroupIndex group = group_at(p, rows[r], column);
                const int64_t number = rows[r].number + group.group;
                const int64_t columns = whole ? kUnit : s.k - column;
                const float factor = scale_value(p, scale[u][r], p.w.second, number);
                float value[kUnit];
                values_of<bits, table>(units[u][r], entries,
                                       bias_of<bits, table, lowered>(p, group), columns, value);
                if (lowered) {
                    const uint32_t raw = minimum[lowered ? u : 0][r];
                    lower(factor, scale_value(p, raw, p.w.minimum_second, number), columns, value);
                }
#pragma unroll
                for (int i = 0; i < kX; ++i) {
                    float part = __fmul_rn(value[0], x[i][0]);
#pragma unroll
                    for (int c = 1; c < kUnit; ++c) part = __fmaf_rn(value[c], x[i][c], part);
                    sum[r][i] =
                        lowered ? __fadd_rn(part, sum[r][i]) : __fmaf_rn(part, factor, sum[r][i]);
                }
            }
        }
    }
    store_sums<kX>(p, row, x_first, sum);
}

template <int bits, bool table, bool lowered>
Status run_rows(const Problem &p, bool whole, const Launch &launch) {
    constexpr int kMany = 4;
    const uint32_t blocks = uint32_t(ceil_div(p.w.geometry.n, kBlockRows));
    const Shape3 one = {dim3(blocks, uint32_t(p.m)), kThreads};
    const Shape3 many = {dim3(blocks, uint32_t(ceil_div(p.m, kMany))), kThreads};
    const auto multiply = [&](auto kernel, const Shape3 &shape) {
        return launch_kernel(launch, "linear", kernel, shape, p);
    };
    if (!whole) return multiply(multiply_lanes<bits, table, lowered, kMany, false>, many);
    return p.m == 1 ? multiply(multiply_lanes<bits, table, lowered, 1, true>, one)
                    : multiply(multiply_lanes<bits, table, lowered, kMany, true>, many);
}

template <int bits>
Status run_kind(const Problem &p, bool whole, const Launch &launch) {
    const bool table = p.w.kind == FormatKind::kLut4 || p.w.kind == FormatKind::kLut8;
    if (table) return run_rows<bits, true, false>(p, whole, launch);
    return p.w.lowered ? run_rows<bits, false, true>(p, whole, launch)
                       : run_rows<bits, false, false>(p, whole, launch);
}

int32_t group_shift(const Geometry &s) {
    if (s.groups_per_row == 1 && !s.flat) return 62;
    return power_of_two(s.group_size) ? log2_of(s.group_size) : -1;
}

Status run(const LinearArgs &args, const Launch &launch) {
    const Geometry &s = args.w.geometry;
    const bool eight = args.w.format->bits == 8;
    const Problem p = {view_of(args), group_shift(s), second_shift_of(args.w.scale)};
    const bool whole =
        s.k % kUnit == 0 && aligned(args.x.data) && aligned(args.w.data, eight ? 8 : 4);
    return eight ? run_kind<8>(p, whole, launch) : run_kind<4>(p, whole, launch);
}

}  // namespace

const Kernel<LinearArgs> kLinearLanes = linear_kernel<LinearKernel::kLanes>(run);

}  // namespace qk::cuda
