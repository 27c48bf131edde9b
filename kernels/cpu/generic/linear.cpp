// y = x . transpose(w) + bias, any format x layout x scale kind x dtype, any m, n, k.
//
// The order of the sum is part of the contract (docs/formats.md, "Order of sums"), so that kernels
// for other instruction sets can give the same bits. w[c] = entry * scale, rounded to f32: what
// dequantizing gives; a dense weight is itself.
//
//     three rows of x and more: blocks of 128 columns, a chain each
//         block = fma(x[c], w[c], block), c ascending;  sum = sum + block
//     one row, two: 16 lanes, column c belongs to lane c mod 16
//         sum[lane] = fma(x[c], w[c], sum[lane]), c ascending
//         at the row's end lanes fold 16 -> 8 -> 4 -> 2 -> 1, lane i with lane i + half
//     and U4_AFFINE in groups of a multiple of 128: the same lanes, a block at a time, of
//         integers: sum[lane] = fma(sum of integer * (code - zero), unit * scale, sum[lane])
//     in groups of 16, 32 and 64 lanes of eight columns, and minima in four sums of their own
//     transposed: blocks of 128 rows of w, a chain each, for any number of rows of x
//     then + bias, then + what y held if it accumulates, then one rounding to y's type
//
// A tile of 8 rows of w and 8 rows of x shares each conversion of x to f32.
#include "base/fused.hpp"
#include "cpu/kernels.hpp"
#include "cpu/linear/row_of_x.hpp"
#include "cpu/linear/select.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kRows = 8;  // rows of w, and rows of x, in a tile

struct Sum {
    float lane[kLanes];  // the first alone where rows of x are several
    float low[4];        // what minima take off integers of x
};

void add_lanes(const float *x, const float *w, int64_t count, Sum *sum) {
    for (int64_t c = 0; c < count; ++c) {
        float &lane = sum->lane[c % kLanes];
        lane = fused(x[c], w[c], lane);
    }
}

float fold_lanes(float *lanes) {
    for (int64_t half = kLanes / 2; half > 0; half /= 2) {
        for (int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
}

struct Tile {
    const LinearArgs *args;
    Entries entries;
    int64_t x_first, x_rows;
    float x[kRows][kBlock];
    Sum sum[kRows][kRows];  // [row of w][row of x]

    explicit Tile(const LinearArgs &linear) : args(&linear), entries(linear.w) {}
};

void add_block(const Tile &tile, const float *w, int64_t count, Sum *sums) {
    float block[kRows] = {};
    for (int64_t c = 0; c < count; ++c) {
        for (int64_t i = 0; i < tile.x_rows; ++i) {
            block[i] = fused(tile.x[i][c], w[c], block[i]);
        }
    }
    for (int64_t i = 0; i < tile.x_rows; ++i) sums[i].lane[0] += block[i];
}

void load_x(Tile &tile, int64_t column, int64_t count) {
    const Dense &x = tile.args->x;
    for (int64_t i = 0; i < tile.x_rows; ++i) {
        const int64_t first = (tile.x_first + i) * row_stride(x) + column;
        load_floats(x.format->id, x.data, first, count, tile.x[i]);
    }
}

// The chunk's weights of a row.
void load_row(Tile &tile, int64_t row, int64_t column, int64_t count, float *values) {
    const Weight &w = tile.args->w;
    const Geometry &s = w.geometry;
    row += tile.args->first_row;
    if (is_dense(*w.format)) {
        return load_floats(w.format->id, w.data, row * s.k + column, count, values);
    }
    uint8_t codes[kBlock];
    w.layout->load(s, static_cast<const uint8_t *>(w.data), row, column, count, codes);
    for (int64_t at = column; at < column + count;) {
        const GroupIndex group = group_of(s, row, at);
        const int64_t last = min64(group_end(s, row, at), column + count);
        if (w.format->kind == FormatKind::kU4) tile.entries.set_zero(zero_of(w, group));
        const float scale = scale_of(w, group);
        const bool lowered = has_minimum(w);
        const float minimum = lowered ? minimum_of(w, group) : 0;
        for (; at < last; ++at) {
            const float value = tile.entries.value[codes[at - column]] * scale;
            values[at - column] = lowered ? value - minimum : value;
        }
    }
}

void store_row(Tile &tile, int64_t row, Sum *sums) {
    const LinearArgs &args = *tile.args;
    for (int64_t i = 0; i < tile.x_rows; ++i) {
        float sum = args.x.rows == 1 ? fold_lanes(sums[i].lane) : sums[i].lane[0];
        const float *const low = sums[i].low;
        if (has_minimum(args.w)) sum -= (low[0] + low[2]) + (low[1] + low[3]);
        store_y(args, tile.x_first + i, row, sum);
    }
}

void run_rows(Tile &tile, int64_t first, int64_t last) {
    const Weight &w = tile.args->w;
    memset(tile.sum, 0, sizeof(tile.sum));
    for (int64_t column = 0; column < w.geometry.k; column += kBlock) {
        const int64_t count = min64(kBlock, w.geometry.k - column);
        load_x(tile, column, count);
        for (int64_t row = first; row < last; ++row) {
            float values[kBlock];
            load_row(tile, row, column, count, values);
            Sum *const sums = tile.sum[row - first];
            tile.args->x.rows == 1 ? add_lanes(tile.x[0], values, count, sums)
                                   : add_block(tile, values, count, sums);
        }
    }
    for (int64_t row = first; row < last; ++row) store_row(tile, row, tile.sum[row - first]);
}

// A block of a row: its lanes' exact sums, and what each is multiplied by.
struct IntegerLanes {
    int64_t dot[kLanes] = {};
    float factor[kLanes];
};

// Of lanes of every 16th column: the block has one group.
void load_whole(const Weight &w, int64_t row, int64_t column, int64_t count, const int32_t *q,
                float unit, IntegerLanes *to) {
    uint8_t codes[kBlock];
    w.layout->load(w.geometry, static_cast<const uint8_t *>(w.data), row, column, count, codes);
    const GroupIndex group = group_of(w.geometry, row, column);
    const int zero = zero_of(w, group);
    for (int64_t c = 0; c < count; ++c) to->dot[c % kLanes] += int64_t(codes[c] - zero) * q[c];
    for (float &factor : to->factor) factor = unit * scale_of(w, group);
}

// Of lanes of eight columns in one of the block's groups; past the row's last the factor leaves a
// sum as it is.
void load_eights(Tile &tile, int64_t row, int64_t column, int64_t count, const int32_t *q,
                 float unit, IntegerLanes *to) {
    const Weight &w = tile.args->w;
    const Geometry &s = w.geometry;
    const float steps = integer_steps(*w.format);
    uint8_t codes[kBlock];
    w.layout->load(s, static_cast<const uint8_t *>(w.data), row, column, count, codes);
    for (int64_t lane = 0; lane < kLanes; ++lane) {
        const int64_t first = eight_of_lane(lane), last = min64(first + 8, count);
        const int64_t number = (column + first) / s.group_size;
        const GroupIndex group = {row, number};
        const bool there = number < s.groups_per_row;
        to->factor[lane] = there ? unit / steps * scale_of(w, group) : -0.0f;
        if (first >= last) continue;
        if (w.format->kind == FormatKind::kU4) tile.entries.set_zero(zero_of(w, group));
        for (int64_t c = first; c < last; ++c) {
            to->dot[lane] += int64_t(tile.entries.value[codes[c]] * steps) * q[c];
        }
    }
}

// A block's minima times what x comes to over their groups.
void lower(const Weight &w, int64_t row, int64_t column, int64_t count, const int32_t *q,
           float unit, float *low) {
    for (int64_t at = 0; at < count;) {
        const GroupIndex group = group_of(w.geometry, row, column + at);
        int32_t sum = 0;
        for (const int64_t last = min64(at + w.geometry.group_size, count); at < last; ++at) {
            sum += q[at];
        }
        float &to = low[group.group % 4];
        to = fused(minimum_of(w, group), unit * float(sum), to);
    }
}

// Rows of codes that are integers against one row of x as integers.
void run_integers(Tile &tile, int64_t first, int64_t last) {
    const Weight &w = tile.args->w;
    const Geometry &s = w.geometry;
    const int64_t above = tile.args->first_row;
    memset(tile.sum, 0, sizeof(tile.sum));
    for (int64_t column = 0; column < s.k; column += kBlock) {
        const int64_t count = min64(kBlock, s.k - column);
        load_x(tile, column, count);
        int32_t q[kBlock];
        const float unit = integers_of(tile.x[0], count, q);
        for (int64_t row = first; row < last; ++row) {
            IntegerLanes lanes;
            in_small_groups(s) ? load_eights(tile, above + row, column, count, q, unit, &lanes)
                               : load_whole(w, above + row, column, count, q, unit, &lanes);
            float *const sum = tile.sum[row - first][0].lane;
            for (int64_t i = 0; i < kLanes; ++i) {
                sum[i] = fused(float(lanes.dot[i]), lanes.factor[i], sum[i]);
            }
            float *const low = tile.sum[row - first][0].low;
            if (has_minimum(w)) lower(w, above + row, column, count, q, unit, low);
        }
    }
    for (int64_t row = first; row < last; ++row) store_row(tile, row, tile.sum[row - first]);
}

// Some columns of y for some rows of x: the sums of a block of rows of w, and all before it.
struct ColumnTile {
    int64_t x_first, x_rows, first, count;
    float block[kRows][kBlock], total[kRows][kBlock];
};

void add_columns(const Tile &tile, int64_t row, const float *w, ColumnTile *to) {
    const Dense &x = tile.args->x;
    for (int64_t i = 0; i < to->x_rows; ++i) {
        const int64_t at = (to->x_first + i) * row_stride(x) + row;
        const float value = load_float(x.format->id, x.data, at);
        for (int64_t c = 0; c < to->count; ++c) {
            to->block[i][c] = fused(value, w[c], to->block[i][c]);
        }
    }
}

void run_columns(Tile &tile, ColumnTile *to) {
    const LinearArgs &args = *tile.args;
    const int64_t n = args.w.geometry.n;
    memset(to->total, 0, sizeof(to->total));
    for (int64_t start = 0; start < n; start += kBlock) {
        memset(to->block, 0, sizeof(to->block));
        for (int64_t row = start; row < min64(start + kBlock, n); ++row) {
            float values[kBlock];
            load_row(tile, row, to->first, to->count, values);
            add_columns(tile, row, values, to);
        }
        for (int64_t i = 0; i < to->x_rows; ++i) {
            for (int64_t c = 0; c < to->count; ++c) to->total[i][c] += to->block[i][c];
        }
    }
    for (int64_t i = 0; i < to->x_rows; ++i) {
        for (int64_t c = 0; c < to->count; ++c) {
            const int64_t stored = to->first + c;
            const int64_t column = args.w.order == nullptr ? stored : column_at(args.w, stored);
            store_y(args, to->x_first + i, column, to->total[i][c]);
        }
    }
}

Status run_transposed(const LinearArgs &args, const Launch &launch) {
    const int64_t k = args.w.geometry.k, m = args.x.rows;
    parallel_ranges(launch.parallel, k, kBlock, work_of_column(args) * kPortable,
                    [&](int64_t first, int64_t last) {
        Tile tile(args);
        for (int64_t column = first; column < min64(last, k); column += kBlock) {
            for (int64_t i = 0; i < m; i += kRows) {
                ColumnTile columns;
                columns.x_first = i, columns.x_rows = min64(kRows, m - i);
                columns.first = column, columns.count = min64(kBlock, k - column);
                run_columns(tile, &columns);
            }
        }
    });
    return QK_OK;
}

Status run(const LinearArgs &args, const Launch &launch) {
    const bool alone = args.x.rows == 1;
    if (!alone && args.x.rows <= kLaneRows) return row_by_row<run>(args, launch);
    const bool integers =
        alone && sums_integers(args, [&](int64_t column, int64_t count, float *x) {
            load_floats(args.x.format->id, args.x.data, column, count, x);
        });
    parallel_ranges(launch.parallel, rows_of_w(args), kRows, work_of_row(args) * kPortable,
                    [&](int64_t first, int64_t last) {
        Tile tile(args);
        for (int64_t row = first; row < last; row += kRows) {
            for (int64_t m = 0; m < args.x.rows; m += kRows) {
                tile.x_first = m;
                tile.x_rows = min64(kRows, args.x.rows - m);
                const int64_t end = min64(row + kRows, last);
                integers ? run_integers(tile, row, end) : run_rows(tile, row, end);
            }
        }
    });
    return QK_OK;
}

}  // namespace

const Kernel<LinearArgs> kLinearGeneric = linear_kernel<row_of("generic")>(run);
const Kernel<LinearArgs> kTransposedGeneric =
    transposed_kernel<transposed_row_of("generic transposed")>(run_transposed);

}  // namespace qk::cpu
