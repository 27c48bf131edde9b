// A group has 16 different values at most: they are computed once, rounded once to the output type,
// and then only looked up. Included after an instruction set's codes.hpp.
#pragma once
#include "cpu/access.hpp"
#include "cpu/vector/row_scales.hpp"

namespace qk::cpu {
namespace {

struct FloatValues {
    typedef float Value;
    static constexpr int kBytes = 4, kCodes = 16;

    static void narrow(qk_format, const Lanes &values, float *to) { store_f32(to, values); }
    static Table load(const float *values) { return load_table(values); }
    template <bool high_first, bool stream>
    static void emit(const uint8_t *codes, const Table &table, char *to) {
        emit_floats<high_first, stream>(codes, table, to);
    }
    // Steps 2 * unit and 2 * unit + 1 of a packed chunk.
    template <int unit, bool stream>
    static void emit_packed(const Words &words, const Table &table, char *to) {
        emit_step<2 * unit, stream>(words, table, to);
        emit_step<2 * unit + 1, stream>(words, table, to + 64);
    }
};

struct HalfValues {
    typedef uint16_t Value;
    static constexpr int kBytes = 2, kCodes = 32;

    static void narrow(qk_format format, const Lanes &values, uint16_t *to) {
        format == QK_FORMAT_F16 ? narrow_f16(values, to) : narrow_bf16(values, to);
    }
    static HalfTable load(const uint16_t *values) { return load_halves_table(values); }
    template <bool high_first, bool stream>
    static void emit(const uint8_t *codes, const HalfTable &table, char *to) {
        emit_halves<high_first, stream>(codes, table, to);
    }
    template <int unit, bool stream>
    static void emit_packed(const Words &words, const HalfTable &table, char *to) {
        emit_step_halves<2 * unit, stream>(words, table, to);
    }
};

// The zeros of one row, in any layout: places grow evenly by group, but for the last bit in
// row_high.
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
    // Left alone where the weight has none.
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

// The values of a run of a row's groups, 16 a group.
template <class Values>
class GroupValues {
  public:
    typedef typename Values::Value Value;
    static constexpr int64_t kMost = 32;  // groups

    explicit GroupValues(const DequantizeArgs &args)
        : to_(args.to.format->id), affine_(args.from.format->kind == FormatKind::kAffine),
          scales_(args.from), zeros_(args.from) {
        Entries entries(args.from);
        for (int zero = 0; zero < 16; ++zero) {
            if (affine_) entries.set_zero(zero);
            memcpy(entries_[zero], entries.value, sizeof(entries_[zero]));
        }
    }
    void start(int64_t row) {
        scales_.start(row);
        zeros_.start(row);
    }
    void make(int64_t first, int64_t count, Value (*to)[16]) {
        float scale[kMost];
        uint8_t zero[kMost];
        memset(zero, 8, sizeof(zero));
        scales_.read(first, count, scale);
        if (affine_) zeros_.read(first, count, zero);
        for (int64_t i = 0; i < count; ++i) {
            Values::narrow(to_, mul(load_f32(entries_[zero[i]]), splat(scale[i])), to[i]);
        }
    }

  private:
    qk_format to_;
    bool affine_;
    RowScales scales_;
    RowZeros zeros_;
    alignas(64) float entries_[16][16];  // by zero; where there are none, all the same
};

}  // namespace
}  // namespace qk::cpu
