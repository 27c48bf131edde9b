// y = x . transpose(w) + bias for one or two rows of x where no other kernel takes them: checkpoint
// layouts, 8-bit codes, unusual groups. The sum has the generic kernel's order, so the bits are the
// same.
#pragma once
#include "cpu/kernels.hpp"
#include "cpu/linear/decode.hpp"
#include "cpu/linear/minima.hpp"
#include "cpu/linear/row_of_x.hpp"

namespace qk::cpu {
namespace {

// Up to 512 columns of 8 rows.
struct PanelOf8 {
    int64_t row, column, end;
    const char *scales;  // f32 [group][row]
};
constexpr int64_t kPanelColumns = kPanelSteps * 16;

// Sums of products of floats, in the order of the generic kernel.
template <class Isa>
class FloatSums {
  public:
    explicit FloatSums(const LinearArgs &args) : rows_(args.x.rows), x_(args.x) {}

    // Adds the panel's products to 8 rows' sums, those of each row of x, decoded to `weights` where
    // need be.
    QK_NOINLINE void add(Decoder<Isa> &decoder, const PanelOf8 &p, Weights8 *weights,
                         Lanes<Isa> (*sums)[8]) {
        const char *x[kLaneRows];
        for (int64_t j = 0; j < rows_; ++j) {
            if (p.column % kPanelOfX == 0) panel_[j] = x_[j].panel(p.column);
            x[j] = panel_[j] + p.column % kPanelOfX * 4;
        }
        if (decoder.walks_bytes()) {
            return rows_ == 1
                       ? decoder.template add_bytes<1>(p.row, p.column, p.end, p.scales, x, sums)
                       : decoder.template add_bytes<2>(p.row, p.column, p.end, p.scales, x, sums);
        }
        decoder.decode(p.row, p.column, p.end, p.scales, weights);
        decoder.lower(p.row, p.column, p.end, weights);
        for (int64_t j = 0; j < rows_; ++j) multiply(p, x[j], weights, sums[j]);
    }

    static void take_off(int64_t, float *) {}

  private:
    static void multiply(const PanelOf8 &p, const char *x, const Weights8 *weights,
                         Lanes<Isa> *sums) {
        for (int64_t row = 0; row < 8; ++row) {
            Lanes<Isa> sum = sums[row];
            const float *w = weights[0][row];
            int64_t at = 0;
            for (const int64_t count = p.end - p.column; at + 16 <= count; at += 16, w += 128) {
                sum = Isa::fma(Isa::load_f32(x + at * 4), Isa::load_f32(w), sum);
            }
            const Mask<Isa> mask = Isa::first_lanes(p.end - p.column - at);
            if (at < p.end - p.column) {
                sum = Isa::fma_where(mask, Isa::load_f32(x + at * 4, mask), Isa::load_f32(w), sum);
            }
            sums[row] = sum;
        }
    }

    const int64_t rows_;
    EachRow<RowOfX<Isa>> x_;
    const char *panel_[kLaneRows] = {};
};

// One row of x as integers.
template <class Isa>
class IntegerSums {
  public:
    explicit IntegerSums(const LinearArgs &args)
        : group_size_(args.w.geometry.group_size), x_(args.x) {
        for (auto &group : ones_) {
            for (float &one : group) one = 1;
        }
    }

    // The entries alone are decoded, padding past the last column too: x is 0 there.
    QK_NOINLINE void add(Decoder<Isa> &decoder, const PanelOf8 &p, Weights8 *weights,
                         Lanes<Isa> (*of_rows)[8]) {
        Lanes<Isa> *const sums = of_rows[0];
        if (p.column % kPanelOfX == 0) panel_ = x_.panel(p.column);
        const XHalves *x = panel_ + p.column % kPanelOfX / kBlock;
        const int64_t first_group = p.column / group_size_, count = p.end - p.column;
        decoder.decode(p.row, p.column, p.end, reinterpret_cast<const char *>(ones_), weights);
        for (int64_t at = 0; at < count; at += kBlock, ++x) {
            const int64_t group = (p.column + at) / group_size_ - first_group;
            for (int64_t row = 0; row < 8; ++row) {
                Lanes<Isa> high = Isa::zero_lanes(), low = Isa::zero_lanes();
                for (int64_t c = 0; c < min64(kBlock, count - at); c += 16) {
                    const Lanes<Isa> w = Isa::load_f32(weights[(at + c) / 16][row]);
                    high = Isa::fma(Isa::load_f32(x->high + c), w, high);
                    low = Isa::fma(Isa::load_f32(x->low + c), w, low);
                }
                const Lanes<Isa> dot = Isa::fma(high, Isa::splat(4096), low);
                const float factor = x->unit * load_as<float>(p.scales, group * 8 + row);
                sums[row] = Isa::fma(dot, Isa::splat(factor), sums[row]);
            }
        }
    }

    static void take_off(int64_t, float *) {}

  private:
    const int64_t group_size_;
    BlocksOfX<Isa, XHalves> x_;
    const XHalves *panel_ = nullptr;
    float ones_[kPanelSteps + 1][8];
};

// The same in groups of 16, 32 or 64: a lane has half of a step.
template <class Isa>
class GroupSums {
  public:
    explicit GroupSums(const LinearArgs &args)
        : group_log2_(__builtin_ctzll(uint64_t(args.w.geometry.group_size))),
          groups_(args.w.geometry.groups_per_row), unit_(1 / integer_steps(*args.w.format)),
          x_(args.x), minima_(args, {}) {
        for (auto &group : steps_) {
            for (float &step : group) step = integer_steps(*args.w.format);
        }
    }

    QK_NOINLINE void add(Decoder<Isa> &decoder, const PanelOf8 &p, Weights8 *weights,
                         Lanes<Isa> (*of_rows)[8]) {
        Lanes<Isa> *const sums = of_rows[0];
        if (p.column % kPanelOfX == 0) panel_ = x_.panel(p.column);
        const XHalves *x = panel_ + p.column % kPanelOfX / kBlock;
        decoder.decode(p.row, p.column, p.end, reinterpret_cast<const char *>(steps_), weights);
        for (int64_t at = p.column; at < p.end; at += kBlock, ++x) {
            const int64_t steps = ceil_div(min64(kBlock, p.end - at), 16);
            int group[16];  // of the panel; -1 past the last
            for (int64_t lane = 0; lane < 16; ++lane) {
                const int64_t of_panel = (at - p.column + eight_of_lane(lane)) >> group_log2_;
                const bool there = (p.column >> group_log2_) + of_panel < groups_;
                group[lane] = there ? int(of_panel) : -1;
            }
            for (int64_t row = 0; row < 8; ++row) {
                const float *const w = weights[(at - p.column) / 16][row];
                const Lanes<Isa> high = lane_sums(w, x->high, steps),
                                 low = lane_sums(w, x->low, steps);
                alignas(64) float factor[16];
                for (int lane = 0; lane < 16; ++lane) {
                    const bool there = group[lane] >= 0;
                    const float scale =
                        there ? load_as<float>(p.scales, group[lane] * 8 + row) : 0.0f;
                    factor[lane] = there ? x->unit * unit_ * scale : -0.0f;
                }
                const Lanes<Isa> dot = Isa::fma(high, Isa::splat(4096), low);
                sums[row] = Isa::fma(dot, Isa::load_f32(factor), sums[row]);
            }
        }
    }

    void take_off(int64_t row, float *y) { minima_.take_off(0, row, y); }

  private:
    // Integers: exact in any order.
    static Lanes<Isa> lane_sums(const float *w, const float *x, int64_t steps) {
        alignas(64) float sum[16] = {};
        for (int64_t step = 0; step < steps; ++step, w += 128, x += 16)
            add_eights(w, x, sum + step);
        return Isa::load_f32(sum);
    }
    // Products of columns 0 to 7 to to[0], of 8 to 15 to to[8].
    QK_INLINE static void add_eights(const float *w, const float *x, float *to) {
        if constexpr (requires { Isa::add_integers(w, x, to); }) {
            Isa::add_integers(w, x, to);
        } else {
            alignas(64) float product[16];
            Isa::store_f32(product, Isa::mul(Isa::load_f32(w), Isa::load_f32(x)));
            for (int i = 0; i < 8; ++i) {
                to[0] += product[i];
                to[8] += product[i + 8];
            }
        }
    }

    const int group_log2_;
    const int64_t groups_;
    const float unit_;  // of entries
    BlocksOfX<Isa, XHalves> x_;
    const XHalves *panel_ = nullptr;
    MinimaOfGroups<Isa, ScaleBlock<Isa>> minima_;
    float steps_[kPanelSteps + 1][8];
};

// One block of 8 rows at a time, in panels of 512 columns.
template <class Isa, class Sums>
class SingleRow {
  public:
    QK_NOINLINE SingleRow(const LinearArgs &args, const Device &device)
        : args_(args), packed_(args.w.layout->id == kLayoutRows8 && !args.w.geometry.flat),
          scales_(args.w, device), any_scales_(args.w), decoder_(args.w), sums_(args) {}

    void run(int64_t block) {
        Lanes<Isa> sums[kLaneRows][8];
        for (int64_t j = 0; j < args_.x.rows; ++j) {
            for (Lanes<Isa> &sum : sums[j]) sum = Isa::zero_lanes();
        }
        for (int64_t column = 0; column < args_.w.geometry.k; column += kPanelColumns) {
            sums_.add(decoder_, panel(block * 8, column), weights_, sums);
        }
        for (int64_t j = 0; j < args_.x.rows; ++j) {
            float y[8];
            Isa::fold_rows(sums[j], y);
            sums_.take_off(block * 8, y);
            store_8(args_, j, block, y);
        }
    }

  private:
    QK_NOINLINE PanelOf8 panel(int64_t row, int64_t column) {
        const int64_t size = args_.w.geometry.group_size, group = column / size;
        const int64_t end = min64(column + kPanelColumns, args_.w.geometry.k);
        const int64_t groups = ceil_div(end, size) - group;
        return {row, column, end,
                packed_ ? scales_.load(row / 8, group, groups)
                        : any_scales_.load_columns(row, column, end)};
    }

    const LinearArgs &args_;
    const bool packed_;
    ScalePanel<Isa> scales_;      // packed
    ScaleBlock<Isa> any_scales_;  // every other layout
    Decoder<Isa> decoder_;
    Sums sums_;
    alignas(64) float weights_[kPanelSteps][8][16];
};

template <class Isa>
Status run_single(const LinearArgs &args, const Launch &launch) {
    if (args.x.rows > 1 && may_sum_integers(args)) {
        return row_by_row<run_single<Isa>>(args, launch);
    }
    if (!sums_integers<Isa>(args)) {
        run_blocks<SingleRow<Isa, FloatSums<Isa>>>(args, launch, launch.device);
    } else if (in_small_groups(args.w.geometry)) {
        run_blocks<SingleRow<Isa, GroupSums<Isa>>>(args, launch, launch.device);
    } else {
        run_blocks<SingleRow<Isa, IntegerSums<Isa>>>(args, launch, launch.device);
    }
    return QK_OK;
}

}  // namespace
}  // namespace qk::cpu
