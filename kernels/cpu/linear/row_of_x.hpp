// One row of x for kernels that walk along k: as f32, or as integers in two halves.
#pragma once
#include "cpu/linear/order.hpp"
#include "cpu/shared/panel.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kPanelOfX = kPanelGroups * 128;  // the longest panel, in columns

// The row of x as f32: in place, or widened, whole if it is short and else a panel at a time.
template <class Isa>
class RowOfX {
  public:
    explicit RowOfX(const Dense &x)
        : x_(x), in_place_(x.format->id == QK_FORMAT_F32), whole_(x.columns <= kPanelOfX) {
        if (!in_place_ && whole_) widen_x<Isa>(x, 0, x.columns, widened_);
    }
    const char *panel(int64_t column) {
        if (in_place_) return static_cast<const char *>(x_.data) + column * 4;
        if (whole_) return reinterpret_cast<const char *>(widened_ + column);
        widen_x<Isa>(x_, column, min64(kPanelOfX, x_.columns - column), widened_);
        return reinterpret_cast<const char *>(widened_);
    }

  private:
    const Dense &x_;
    bool in_place_, whole_;
    float widened_[kPanelOfX];
};

template <class Isa>
inline bool sums_integers(const LinearArgs &args) {
    return sums_integers(args, [&](int64_t column, int64_t count, float *x)
                                   QK_INLINE { widen_x<Isa>(args.x, column, count, x); });
}

// The row of x as integers, in blocks of the form that a kernel multiplies: Block::place(q) takes
// 128 of them, zeros after the last. The whole row if it is short, else a panel at a time.
template <class Isa, class Block>
class BlocksOfX {
  public:
    explicit BlocksOfX(const Dense &x) : x_(x), whole_(x.columns <= kPanelOfX) {
        if (whole_) fill(0);
    }
    // Up to kPanelOfX columns from `column` on, a multiple of kBlock.
    const Block *panel(int64_t column) {
        if (whole_) return blocks_ + column / kBlock;
        fill(column);
        return blocks_;
    }

  private:
    QK_NOINLINE void fill(int64_t column) {
        const int64_t end = min64(x_.columns, column + kPanelOfX);
        for (Block *to = blocks_; column < end; column += kBlock, ++to) {
            alignas(64) float x[kBlock] = {};
            alignas(64) int32_t q[kBlock];
            widen_x<Isa>(x_, column, min64(kBlock, end - column), x);
            to->unit = integers_of(x, kBlock, q);
            to->place(q);
        }
    }

    const Dense &x_;
    bool whole_;
    Block blocks_[kPanelOfX / kBlock];
};

// q = 4096 * high + low, whose products with codes are exact in f32 and so are the sums of 8: every
// machine that multiplies floats has this order.
struct XHalves {
    alignas(64) float high[kBlock], low[kBlock];
    float unit;

    void place(const int32_t *q) {
        for (int64_t i = 0; i < kBlock; ++i) {
            const int32_t upper = (q[i] + 2048) >> 12;
            high[i] = float(upper);
            low[i] = float(q[i] - upper * 4096);
        }
    }
};

}  // namespace
}  // namespace qk::cpu
