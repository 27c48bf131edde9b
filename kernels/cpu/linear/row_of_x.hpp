// Rows of x for kernels that walk along k: as f32, or as the integers that one of the orders of
// sums takes (docs/formats.md, "Order of sums").
#pragma once
#include <utility>

#include "cpu/access.hpp"
#include "cpu/shared/panel.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kBlock = 128;  // columns that are summed on their own
constexpr int64_t kLaneRows =
    2;  // of x, at most, whose sums are in lanes, each as if it were alone

// The product of one row of x alone.
inline LinearArgs product_of_row(const LinearArgs &args, int64_t row) {
    const auto from_row = [row](const Dense &all) {
        Dense one = all;
        one.data = static_cast<char *>(all.data) + row * row_stride(all) * (all.format->bits / 8);
        one.rows = 1;
        return one;
    };
    LinearArgs one = args;
    one.x = from_row(args.x);
    one.y = from_row(args.y);
    return one;
}

// A kernel of one row of x for all that have sums of their own.
template <Status (*run)(const LinearArgs &, const Launch &)>
Status row_by_row(const LinearArgs &args, const Launch &launch) {
    Status status = QK_OK;
    for (int64_t row = 0; row < args.x.rows && status == QK_OK; ++row) {
        status = run(product_of_row(args, row), launch);
    }
    return status;
}

// Groups of which a block has several; its lanes are eights of columns then, each in one group.
inline bool in_small_groups(const Geometry &s) {
    return s.group_size == 16 || s.group_size == 32 || s.group_size == 64;
}
// Where the columns of a lane start in a block: the first fold adds the halves of 16 columns.
constexpr int64_t eight_of_lane(int64_t lane) { return lane % 8 * 16 + lane / 8 * 8; }

// Entries times this are integers.
inline float integer_steps(const Format &format) {
    return format.id == QK_FORMAT_FP4_E2M1 ? 2.0f : 1.0f;
}

// Whether a row of x meets codes that are integers, a lane's with one scale and zero a block.
inline bool may_sum_integers(const LinearArgs &args) {
    const Weight &w = args.w;
    if (w.geometry.flat) return false;
    const bool u4 = w.format->kind == FormatKind::kU4;
    if (in_small_groups(w.geometry)) return u4 || w.format->id == QK_FORMAT_FP4_E2M1;
    return u4 && w.geometry.group_size % kBlock == 0 && !has_minimum(w);
}

inline uint32_t largest_bits(const float *__restrict x, int64_t count) {
    uint32_t bits = 0;
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t magnitude = f32_bits(x[i]) & 0x7fffffffu;
        bits = magnitude > bits ? magnitude : bits;
    }
    return bits;
}

// Blocks of zeros, and of numbers whose largest is in [2^-64, 2^64).
inline bool fits_integers(uint32_t largest) {
    return largest == 0 || (largest >= (127u - 64) << 23 && largest < (127u + 64) << 23);
}

// Of one row of x; load(column, count, x): x as f32.
template <class Load>
inline bool sums_integers(const LinearArgs &args, const Load &load) {
    if (!may_sum_integers(args)) return false;
    for (int64_t column = 0; column < args.x.columns; column += kBlock) {
        alignas(64) float x[kBlock];
        const int64_t count = min64(kBlock, args.x.columns - column);
        load(column, count, x);
        if (!fits_integers(largest_bits(x, count))) return false;
    }
    return true;
}

// The grid of a block: a power of two below which x is as many units as three signed bytes hold,
// less than 2^23 - 2^16.
struct Grid {
    float unit, inverse;
};
inline Grid grid_of(uint32_t largest) {
    if (largest == 0) return {0, 0};
    const uint32_t exponent = (largest + 0x20000) >> 23;  // of the largest, or one more
    return {f32_from_bits((exponent - 22) << 23), f32_from_bits((2 * 127 + 22 - exponent) << 23)};
}

// x of a block as integers times the returned unit.
inline float integers_of(const float *__restrict x, int64_t count, int32_t *__restrict q) {
    const Grid grid = grid_of(largest_bits(x, count));
    for (int64_t i = 0; i < count; ++i) {  // rounds to the nearest, ties to even
        const double shifted = double(x[i] * grid.inverse) + 0x1.8p52;
        uint64_t bits;
        memcpy(&bits, &shifted, sizeof(bits));
        q[i] = int32_t(uint32_t(bits));
    }
    return grid.unit;
}

// A block of x as integers of three signed bytes each, 65536 * [2] + 256 * [1] + [0], for products
// of bytes by packed codes. Dword j has the columns whose codes are in dword j of a row: byte b is
// column 32 b + j in `low`, the low nibbles' one, and 32 b + 16 + j in `high`.
struct XBytes {
    alignas(64) uint32_t low[3][16], high[3][16];
    alignas(64) uint32_t sum[16];  // of a lane
    float unit;

    void place(const int32_t *__restrict q) {
        for (int j = 0; j < 16; ++j) {
            uint32_t even_bytes[3] = {}, odd_bytes[3] = {}, all = 0;
            for (int b = 0; b < 4; ++b) {
                int32_t even = q[32 * b + j], odd = q[32 * b + 16 + j];
                all += uint32_t(even) + uint32_t(odd);
                for (int i = 0; i < 3; ++i) {  // signed bytes, from the lowest
                    even_bytes[i] |= uint32_t(even & 255) << 8 * b;
                    odd_bytes[i] |= uint32_t(odd & 255) << 8 * b;
                    even = (even - int8_t(even)) >> 8;
                    odd = (odd - int8_t(odd)) >> 8;
                }
            }
            sum[j] = all;
            for (int i = 0; i < 3; ++i) {
                low[i][j] = even_bytes[i];
                high[i][j] = odd_bytes[i];
            }
        }
    }
};

constexpr int64_t kPanelOfX = kPanelGroups * 128;  // the longest panel, in columns

// A row of x as f32: in place, or widened, whole if it is short and else a panel at a time.
template <class Isa>
class RowOfX {
  public:
    // A row that x has not is not asked for.
    explicit RowOfX(const Dense &x, int64_t row = 0)
        : x_(x), first_(row * row_stride(x)), in_place_(x.format->id == QK_FORMAT_F32),
          whole_(x.columns <= kPanelOfX) {
        if (!in_place_ && whole_ && row < x.rows) widen_x<Isa>(x, first_, x.columns, widened_);
    }
    const char *panel(int64_t column) {
        if (in_place_) return static_cast<const char *>(x_.data) + (first_ + column) * 4;
        if (whole_) return reinterpret_cast<const char *>(widened_ + column);
        widen_x<Isa>(x_, first_ + column, min64(kPanelOfX, x_.columns - column), widened_);
        return reinterpret_cast<const char *>(widened_);
    }

  private:
    const Dense &x_;
    const int64_t first_;  // element
    const bool in_place_, whole_;
    float widened_[kPanelOfX];
};

// Of all rows of x.
template <class Isa>
inline bool sums_integers(const LinearArgs &args) {
    bool integers = true;
    for (int64_t row = 0; row < args.x.rows && integers; ++row) {
        const int64_t first = row * row_stride(args.x);
        integers = sums_integers(args, [&](int64_t column, int64_t count, float *x) QK_INLINE {
            widen_x<Isa>(args.x, first + column, count, x);
        });
    }
    return integers;
}

// A row of x as integers, in blocks of the form that a kernel multiplies: Block::place(q) takes
// 128 of them, zeros after the last. The whole row if it is short, else a panel at a time.
template <class Isa, class Block, int64_t kMost = kPanelOfX>
class BlocksOfX {
  public:
    static constexpr int64_t kColumns = kMost;  // of a panel

    explicit BlocksOfX(const Dense &x, int64_t row = 0)
        : x_(x), first_(row * row_stride(x)), whole_(x.columns <= kMost) {
        if (whole_ && row < x.rows) fill(0);
    }
    // Up to kColumns columns from `column` on, a multiple of kBlock.
    const Block *panel(int64_t column) {
        if (whole_) return blocks_ + column / kBlock;
        fill(column);
        return blocks_;
    }

  private:
    QK_NOINLINE void fill(int64_t column) {
        const int64_t end = min64(x_.columns, column + kMost);
        for (Block *to = blocks_; column < end; column += kBlock, ++to) {
            alignas(64) float x[kBlock] = {};
            alignas(64) int32_t q[kBlock];
            widen_x<Isa>(x_, first_ + column, min64(kBlock, end - column), x);
            to->unit = integers_of(x, kBlock, q);
            to->place(q);
        }
    }

    const Dense &x_;
    const int64_t first_;  // element
    const bool whole_;
    Block blocks_[kMost / kBlock];
};

// Rows of x, as blocks of integers, that working memory has room for.
template <class Block>
constexpr int64_t kRowsTogether = sizeof(Block) <= 576 ? kLaneRows : 1;

// An Of for each row of x.
template <class Of, int64_t kCount = kLaneRows>
class EachRow {
  public:
    using Row = Of;

    explicit EachRow(const Dense &x) : EachRow(x, std::make_index_sequence<size_t(kCount)>()) {}
    Row &operator[](int64_t row) { return row_[row]; }

  private:
    template <size_t... rows>
    EachRow(const Dense &x, std::index_sequence<rows...>) : row_{Row(x, int64_t(rows))...} {}

    Row row_[kCount];
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
