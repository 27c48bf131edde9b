// y = x . transpose(w) + bias, any format x layout x scale kind x dtype, any m, n, k.
//
// The order of the sum is part of the contract (docs/formats.md, "Order of sums"), so that kernels
// for other instruction sets can give the same bits:
//
//     w[c] = entry * scale, rounded to f32: what dequantizing gives; a dense weight is itself
//     16 lanes, column c belongs to lane c mod 16
//     sum[lane] = fma(x[c], w[c], sum[lane])                             c ascending
//     at the row's end lanes fold 16 -> 8 -> 4 -> 2 -> 1, lane i with lane i + half
//     then + bias, then one rounding to y's type
//
// A tile of 8 rows of w and 8 rows of x shares each
// conversion of x to f32; columns advance 256 at a time.
#include "cpu/access.hpp"
#include "cpu/lists.hpp"
#include "cpu/split.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kChunk = 256;  // columns, a multiple of kLanes
constexpr int64_t kRows = 8;     // rows of w, and rows of x, in a tile

struct Sum {
    float lane[kLanes];
};

void accumulate(const float *x, const float *w, int64_t count, Sum *sum) {
    for (int64_t c = 0; c < count; ++c) {
        float &lane = sum->lane[c % kLanes];
        lane = __builtin_fmaf(x[c], w[c], lane);
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
    float x[kRows][kChunk];
    Sum sum[kRows][kRows];  // [row of w][row of x]

    explicit Tile(const LinearArgs &linear) : args(&linear), entries(linear.w) {}
};

void load_x(Tile &tile, int64_t column, int64_t count) {
    const Dense &x = tile.args->x;
    for (int64_t i = 0; i < tile.x_rows; ++i) {
        const int64_t first = (tile.x_first + i) * x.columns + column;
        load_floats(x.format->id, x.data, first, count, tile.x[i]);
    }
}

// The chunk's weights of a row.
void load_row(Tile &tile, int64_t row, int64_t column, int64_t count, float *values) {
    const Weight &w = tile.args->w;
    const Geometry &s = w.geometry;
    if (is_dense(*w.format)) {
        return load_floats(w.format->id, w.data, row * s.k + column, count, values);
    }
    uint8_t codes[kChunk];
    w.layout->load(s, static_cast<const uint8_t *>(w.data), row, column, count, codes);
    for (int64_t at = column; at < column + count;) {
        const GroupIndex group = group_of(s, row, at);
        const int64_t last = min64(group_end(s, row, at), column + count);
        if (w.format->kind == FormatKind::kAffine) tile.entries.set_zero(zero_of(w, group));
        const float scale = scale_of(w, group);
        for (; at < last; ++at) {
            values[at - column] = tile.entries.value[codes[at - column]] * scale;
        }
    }
}

void store_row(Tile &tile, int64_t row, Sum *sums) {
    const LinearArgs &args = *tile.args;
    for (int64_t i = 0; i < tile.x_rows; ++i) {
        float y = fold_lanes(sums[i].lane);
        if (args.bias != nullptr) y += load_float(args.bias->format->id, args.bias->data, row);
        store_float(args.y.format->id, args.y.data, (tile.x_first + i) * args.y.columns + row, y);
    }
}

void run_rows(Tile &tile, int64_t first, int64_t last) {
    const Weight &w = tile.args->w;
    memset(tile.sum, 0, sizeof(tile.sum));
    for (int64_t column = 0; column < w.geometry.k; column += kChunk) {
        const int64_t count = min64(kChunk, w.geometry.k - column);
        load_x(tile, column, count);
        for (int64_t row = first; row < last; ++row) {
            float values[kChunk];
            load_row(tile, row, column, count, values);
            for (int64_t i = 0; i < tile.x_rows; ++i) {
                accumulate(tile.x[i], values, count, &tile.sum[row - first][i]);
            }
        }
    }
    for (int64_t row = first; row < last; ++row) store_row(tile, row, tile.sum[row - first]);
}

Status run(const LinearArgs &args, const Launch &launch) {
    parallel_ranges(launch.parallel, args.w.geometry.n, kRows, [&](int64_t first, int64_t last) {
        Tile tile(args);
        for (int64_t row = first; row < last; row += kRows) {
            for (int64_t m = 0; m < args.x.rows; m += kRows) {
                tile.x_first = m;
                tile.x_rows = min64(kRows, args.x.rows - m);
                run_rows(tile, row, min64(row + kRows, last));
            }
        }
    });
    return QK_OK;
}

bool can_run(const LinearArgs &, int32_t) { return true; }

}  // namespace

const Kernel<LinearArgs> kLinearGeneric = {"generic", can_run, nullptr, run};

}  // namespace qk::cpu
