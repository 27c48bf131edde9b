// A group has 16 different values at most: they are computed once, rounded once to the output type,
// and then only looked up.
#pragma once
#include "cpu/access.hpp"
#include "cpu/shared/row_scales.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kSlot = 64;  // bytes for the values of a group, at most

template <class Set>
struct FloatValues {
    using Isa = Set;
    static constexpr int kBytes = 4, kCodes = 16, kSlot = 64;

    using Table = typename Isa::FloatTable;

    static Table load(const char *slot) {
        return Isa::load_floats_table(reinterpret_cast<const float *>(slot));
    }
    template <bool high_first, bool stream>
    static void emit(const uint8_t *codes, const Table &table, char *to) {
        Isa::template emit_floats<high_first, stream>(codes, table, to);
    }
    // A quarter of a packed chunk: 32 columns, two of its steps.
    template <int quarter, bool stream>
    static void emit_packed(const Words<Isa> &words, const Table &table, char *to) {
        Isa::template emit_step<2 * quarter, stream>(words, table, to);
        Isa::template emit_step<2 * quarter + 1, stream>(words, table, to + 64);
    }
};

template <class Set>
struct HalfValues {
    using Isa = Set;
    static constexpr int kBytes = 2, kCodes = 32, kSlot = 32;

    using Table = typename Isa::HalfTable;

    static Table load(const char *slot) {
        return Isa::load_halves_table(reinterpret_cast<const uint16_t *>(slot));
    }
    template <bool high_first, bool stream>
    static void emit(const uint8_t *codes, const Table &table, char *to) {
        Isa::template emit_halves<high_first, stream>(codes, table, to);
    }
    template <int quarter, bool stream>
    static void emit_packed(const Words<Isa> &words, const Table &table, char *to) {
        Isa::template emit_step_halves<2 * quarter, stream>(words, table, to);
    }
};

// The zeros of one row, in any layout: from group to group the place grows by a constant, but for
// the last bit in row_high.
class RowZeros {
  public:
    explicit RowZeros(const Weight &w) : w_(w), flip_(w.layout->id == QK_LAYOUT_ROW_HIGH) {}

    void start(int64_t row) {
        if (w_.zero == nullptr) return;
        const Geometry &s = w_.geometry;
        const int64_t at = s.flat ? 0 : row;
        base_ = place(at, 0);
        stride_ = s.flat || s.groups_per_row > 1 ? place(at, 1) - base_ : 0;
    }
    // `to` stays as it is where the weight has no zeros.
    void read(int64_t first, int64_t count, uint8_t *to) const {
        const uint8_t *const data = static_cast<const uint8_t *>(w_.zero);
        if (data == nullptr) return;
        for (int64_t i = 0; i < count; ++i) {
            const int64_t at = (base_ + (first + i) * stride_) ^ flip_;
            to[i] = uint8_t(((data[at >> 1] >> (at & 1) * 4 & 15) + w_.layout->zero_offset) & 15);
        }
    }

  private:
    int64_t place(int64_t row, int64_t group) const {
        return w_.layout->zero_at(w_.geometry, {row, group}) ^ flip_;
    }

    const Weight &w_;
    int64_t flip_, base_ = 0, stride_ = 0;
};

// From the scales and zeros of groups to their values.
template <class Isa>
class GroupValues {
  public:
    GroupValues(const Weight &w, qk_format to) : to_(to) {
        Entries entries(w);
        for (int zero = 0; zero < 16; ++zero) {
            if (w.format->kind == FormatKind::kU4) entries.set_zero(zero);
            memcpy(entries_[zero], entries.value, sizeof(entries_[zero]));
        }
    }
    // Of `count` groups, whose scales (f32) and zeros are `stride` elements apart: 16 values each.
    QK_NOINLINE void make(const char *scales, const uint8_t *zeros, int64_t stride, int64_t count,
                          char *to) const {
        const auto values = [&](int64_t i) QK_INLINE {
            const float scale = load_as<float>(scales, i * stride);
            return Isa::mul(Isa::load_f32(entries_[zeros[i * stride]]), Isa::splat(scale));
        };
        uint16_t *const half = reinterpret_cast<uint16_t *>(to);
        int64_t i = 0;
        switch (to_) {
            case QK_FORMAT_F16:
                for (; i + 2 <= count; i += 2) {
                    Isa::narrow_two_f16(values(i), values(i + 1), half + 16 * i);
                }
                if (i < count) Isa::narrow_f16(values(i), half + 16 * i);
                break;
            case QK_FORMAT_BF16:
                for (; i + 2 <= count; i += 2) {
                    Isa::narrow_two_bf16(values(i), values(i + 1), half + 16 * i);
                }
                if (i < count) Isa::narrow_bf16(values(i), half + 16 * i);
                break;
            default:
                for (; i < count; ++i)
                    Isa::store_f32(reinterpret_cast<float *>(to) + 16 * i, values(i));
        }
    }

  private:
    qk_format to_;
    alignas(64) float entries_[16][16];  // by zero; where there are none, all the same
};

}  // namespace
}  // namespace qk::cpu
