// y = x . transpose(w) + bias with x as int8: what the mode means, for any layout, scale kind and
// dtype. Integer sums are exact, so only the last lines have an order (docs/formats.md):
//
//     for each block, ascending     factor = fl(x scale * w scale)
//                                   acc    = fma(float(integer sum), factor, acc)
//
// and with minima low = fma(minimum, fl(x scale * sum of x's integers), low), y = fl(acc - low).
#include "base/fused.hpp"
#include "cpu/int8/x.hpp"
#include "cpu/kernels.hpp"
#include "cpu/linear/select.hpp"

namespace qk::cpu {
namespace {

// In a tile. x is rounded for each of them, which takes longer than two rows of w do.
constexpr int64_t kRowsOfW = 64, kRowsOfX = 8;

class Tile {
  public:
    explicit Tile(const LinearArgs &args)
        : args_(args), entries_(args.w), unit_(1.0f / int8_steps(*args.w.format)) {}

    void run(int64_t row, int64_t row_end, int64_t x_row) {
        const Geometry s = geometry_of_blocks(args_.w.geometry);
        x_row_ = x_row;
        x_rows_ = min64(kRowsOfX, args_.x.rows - x_row);
        memset(acc_, 0, sizeof(acc_));
        memset(low_, 0, sizeof(low_));
        for (int64_t column = 0; column < s.k;) {
            const int64_t chunk_end = (column / kInt8Block + 1) * kInt8Block;
            const int64_t end = min64(group_end(s, 0, column), chunk_end);
            load_x(column, end - column);
            for (int64_t r = row; r < row_end; ++r) {
                add(r, column, end - column, acc_[r - row]);
                if (has_minimum(args_.w)) lower(r, column, low_[r - row]);
            }
            column = end;
        }
        for (int64_t r = row; r < row_end; ++r) store(r, acc_[r - row], low_[r - row]);
    }

  private:
    void load_x(int64_t column, int64_t count) {
        float x[kInt8Block];
        for (int64_t i = 0; i < x_rows_; ++i) {
            const int64_t first = (x_row_ + i) * row_stride(args_.x) + column;
            load_floats(args_.x.format->id, args_.x.data, first, count, x);
            scale_[i] = int8_block(x, count, unit_, x_[i]);
        }
    }

    void add(int64_t row, int64_t column, int64_t count, float *acc) {
        const Weight &w = args_.w;
        row += args_.first_row;
        uint8_t codes[kInt8Block];
        int8_t integers[kInt8Block];
        w.layout->load(w.geometry, static_cast<const uint8_t *>(w.data), row, column, count, codes);
        const bool bytes = w.format->kind == FormatKind::kS8;
        for (int64_t c = 0; c < count; ++c) {
            integers[c] = bytes ? int8_t(codes[c]) : entries_.value[codes[c]];
        }
        const GroupIndex group = group_of(w.geometry, row, column);
        const int32_t zero = w.format->kind == FormatKind::kU4 ? zero_of(w, group) : 0;
        const float scale = scale_of(w, group);
        for (int64_t i = 0; i < x_rows_; ++i) {
            int32_t sum = -zero * scale_[i].sum;
            for (int64_t c = 0; c < count; ++c) sum += integers[c] * x_[i][c];
            acc[i] = fused(float(sum), scale_[i].scale * scale, acc[i]);
        }
    }

    void lower(int64_t row, int64_t column, float *low) const {
        const GroupIndex group = group_of(args_.w.geometry, args_.first_row + row, column);
        const float minimum = minimum_of(args_.w, group);
        for (int64_t i = 0; i < x_rows_; ++i) {
            low[i] = fused(minimum, scale_[i].scale * float(scale_[i].sum), low[i]);
        }
    }

    void store(int64_t row, const float *acc, const float *low) const {
        for (int64_t i = 0; i < x_rows_; ++i) {
            const float sum = has_minimum(args_.w) ? acc[i] - low[i] : acc[i];
            store_y(args_, x_row_ + i, row, sum);
        }
    }

    const LinearArgs &args_;
    Int8Entries entries_;
    float unit_;
    int64_t x_row_ = 0, x_rows_ = 0;
    Int8Scale scale_[kRowsOfX];
    int8_t x_[kRowsOfX][kInt8Block];
    float acc_[kRowsOfW][kRowsOfX], low_[kRowsOfW][kRowsOfX];
};

Status run(const LinearArgs &args, const Launch &launch) {
    parallel_ranges(launch.parallel, rows_of_w(args), 8, work_of_row(args) * kPortable,
                    [&](int64_t first, int64_t last) {
        Tile tile(args);
        for (int64_t row = first; row < last; row += kRowsOfW) {
            for (int64_t m = 0; m < args.x.rows; m += kRowsOfX) {
                tile.run(row, min64(row + kRowsOfW, last), m);
            }
        }
    });
    return QK_OK;
}

}  // namespace

const Kernel<LinearArgs> kLinearInt8Generic = linear_kernel<row_of("generic int8")>(run);

}  // namespace qk::cpu
