// Scales of one row after the other, in any layout.
#pragma once
#include "cpu/access.hpp"

namespace qk::cpu {

// Scales of one row, in order: what scale_of gives, without finding each place again.
template <class Isa>
class RowScales {
  public:
    explicit RowScales(const Weight &w) : w_(w), nested_(is_nested(w)) {
        if (!nested_) return;
        memcpy(code_, w.scale.code, sizeof(code_));
        bias_ = load_as<float>(w.scale.bias, 0);
    }
    void start(int64_t row) {
        const Geometry &s = w_.geometry;
        row_ = s.flat ? 0 : row;
        base_ = w_.layout->scale_at(s, {row_, 0});
        stride_ = s.flat || s.groups_per_row > 1 ? w_.layout->scale_at(s, {row_, 1}) - base_ : 0;
    }
    float at(int64_t group) {
        const int64_t place = base_ + group * stride_;
        if (!nested_) return load_float(w_.scale.format->id, w_.scale.data, place);
        const int64_t number = group_number(w_.geometry, {row_, group});
        if (number < first_ || number >= first_ + w_.scale.second_group) {
            const int64_t second = number / w_.scale.second_group;
            first_ = second * w_.scale.second_group;
            second_ = load_as<float>(w_.scale.second, second);
        }
        const float product = code_[load_as<uint8_t>(w_.scale.data, place)] * second_;
        return product + bias_;
    }
    // Of groups first .. first + count, into whole runs of 16.
    void read(int64_t first, int64_t count, float *to) {
        const qk_format format = w_.scale.format->id;
        const int64_t place = base_ + first * stride_;
        if (nested_) {
            for (int64_t i = 0; i < count; ++i) to[i] = at(first + i);
        } else if (stride_ == 1) {
            widen_x<Isa>({w_.scale.format, 1, count, w_.scale.data}, place, count, to);
        } else {
            for (int64_t i = 0; i < count; ++i) {
                to[i] = load_float(format, w_.scale.data, place + i * stride_);
            }
        }
    }
    int64_t row() const { return row_; }

  private:
    const Weight &w_;
    bool nested_;
    int64_t row_ = 0, base_ = 0, stride_ = 0, first_ = INT64_MIN / 2;
    float second_ = 0, bias_ = 0;
    float code_[256];
};

}  // namespace qk::cpu
