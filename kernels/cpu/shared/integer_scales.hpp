// Scales of 8 rows of bytes that are i8 codes with a second scale for whole eights of groups: 8
// groups at a time, whose bytes are transposed, instead of a row at a time as floats.
#pragma once
#include "cpu/access.hpp"
#include "cpu/shared/transpose.hpp"

namespace qk::cpu {
namespace {

// to[8 * i + row]: byte i of each of 8 rows.
QK_INLINE inline void transpose_8x8_bytes(const uint8_t *from, int64_t stride, uint8_t *to) {
    typedef uint8_t Bytes __attribute__((vector_size(16)));
    typedef uint16_t Words __attribute__((vector_size(16)));
    typedef uint64_t Halves __attribute__((vector_size(16)));
    Words pairs[4];  // rows 2 i and 2 i + 1 in turn
    QK_UNROLL
    for (int i = 0; i < 4; ++i) {
        const uint8_t *const at = from + 2 * i * stride;
        const Bytes rows =
            Bytes(Halves{load_as<uint64_t>(at, 0), load_as<uint64_t>(at + stride, 0)});
        pairs[i] = Words(__builtin_shufflevector(rows, rows, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13,
                                                 6, 14, 7, 15));
    }
    QK_UNROLL
    for (int half = 0; half < 2; ++half) {
        const auto join = [=](Words a, Words b) QK_INLINE {
            return Quad(half == 0 ? __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
                                  : __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15));
        };
        const Quad low = join(pairs[0], pairs[1]), high = join(pairs[2], pairs[3]);
        const Quad first = __builtin_shufflevector(low, high, 0, 4, 1, 5);
        const Quad last = __builtin_shufflevector(low, high, 2, 6, 3, 7);
        memcpy(to + 32 * half, &first, 16);
        memcpy(to + 32 * half + 16, &last, 16);
    }
}

class IntegerScales {
  public:
    IntegerScales(const Weight &w, const ScalePlane &plane) {
        const Geometry &s = w.geometry;
        if (plane.format == nullptr || plane.format->id != QK_FORMAT_I8 || is_records(w) ||
            s.flat || w.layout->bits != 8) {
            return;
        }
        const int64_t size = plane.second_group;
        if (size < 8 || (size & (size - 1)) != 0 || s.groups_per_row % size != 0) return;
        codes_ = static_cast<const uint8_t *>(plane.data);
        second_ = static_cast<const char *>(plane.second);
        rows_ = s.n;
        of_row_ = s.groups_per_row;
        shift_ = int32_t(__builtin_ctzll(uint64_t(size)));
    }

    bool takes(int64_t row, int64_t first, int64_t count) const {
        return codes_ != nullptr && row + 8 <= rows_ && (first | count) % 8 == 0;
    }

    // Groups first .. first + count as f32 [group][row]. As many of the next 8 rows are fetched, of
    // codes and of second scales one stream each.
    template <class Isa>
    QK_NOINLINE void load(int64_t row, int64_t first, int64_t count, float (*to)[8]) const {
        typedef float Eight __attribute__((vector_size(32)));
        const uint8_t *const codes = codes_ + row * of_row_;
        const int64_t of_row = of_row_ >> shift_;  // second scales
        const char *const second = second_ + 4 * row * of_row;
        prefetch_lines(codes, 8 * count, 8 * (of_row_ + first));
        prefetch_lines(second, 32 * count >> shift_, 32 * (of_row + (first >> shift_)));
        for (int64_t g = first; g < first + count; g += 8, to += 8) {
            alignas(16) uint8_t by_group[64];
            transpose_8x8_bytes(codes + g, of_row_, by_group);
            const char *const at = second + 4 * (g >> shift_);
            const auto of = [=](int64_t i) QK_INLINE { return load_as<float>(at, i * of_row); };
            const Eight eight = {of(0), of(1), of(2), of(3), of(4), of(5), of(6), of(7)};
            float twice[16];
            memcpy(twice, &eight, 32);
            memcpy(twice + 8, &eight, 32);
            const Lanes<Isa> by = Isa::load_f32(twice);
            QK_UNROLL
            for (int i = 0; i < 8; i += 2) {
                Isa::store_f32(to[i], Isa::mul(Isa::load_s8(by_group + 8 * i), by));
            }
        }
    }

  private:
    const uint8_t *codes_ = nullptr;  // null: others
    const char *second_ = nullptr;
    int64_t rows_ = 0, of_row_ = 0;  // groups
    int32_t shift_ = 0;              // log2 of the groups that share a second scale
};

}  // namespace
}  // namespace qk::cpu
