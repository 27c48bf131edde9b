// Products of one row of x as integers with packed codes in groups of 16, 32 or 64
// (linear/gemv_groups.hpp). Lane l has eight columns of nibble l % 8 of words l / 8 * 8 on; turn i
// gives every lane word i of its eight, and shifts it by the lane's own nibble:
//
//     for i of 8:  lanes' words (a look-up in the row's), shifted, & 15, times x, added
#pragma once
#include "cpu/linear/gemv_groups.hpp"
#include "cpu/riscv_rvv/integers.hpp"

namespace qk::cpu {
namespace {

// A block of x as a lane's columns come, one a turn.
struct XTurns {
    alignas(64) int32_t q[8][16];
    alignas(64) int32_t sum[16];  // of a lane
    float unit;

    void place(const int32_t *from) {
        for (int64_t lane = 0; lane < 16; ++lane) {
            sum[lane] = 0;
            for (int64_t i = 0; i < 8; ++i) {
                q[i][lane] = from[eight_of_lane(lane) + i];
                sum[lane] += q[i][lane];
            }
        }
    }
};

template <CodeKind kind>
class RvvGroups {
  public:
    using X = XTurns;
    struct Sums {
        alignas(64) float of[8][16];  // [row][lane]
    };

    explicit RvvGroups(const Weight &w) : steps_(integer_steps(*w.format)), zero_(common_zero(w)) {
        const GroupsOfLanes groups(w.geometry);
        for (uint32_t lane = 0; lane < 16; ++lane) {
            first_word_[lane] = lane / 8 * 8;
            shift_[lane] = lane % 8 * 4;
            group_[lane] = uint32_t(groups.group[lane % 8]);
        }
        for (int code = 0; code < 16; ++code)
            entries_[code] = kind == CodeKind::kTable ? int32_t(w.format->value(code) * steps_) : 0;
        groups_ = groups.count;
    }

    QK_INLINE void add(const uint8_t *codes, const X &x, const char *scales, const uint8_t *zeros,
                       Sums &sums) const {
        const AlignedRows<8 * 32> rows(codes, scales);
        alignas(64) uint32_t all_zeros[8];  // a word a group
        if (kind == CodeKind::kZeros) memcpy(all_zeros, zeros, size_t(groups_) * 4);
        const float factor = x.unit / steps_;
        with_lanes_16([&]<int registers>() QK_INLINE {
            _Pragma("GCC unroll 1") for (int row = 0; row < 8; ++row) {
                using V = Lanes16<registers>;
                const typename V::Words group = V::load(group_);
                const typename V::Floats scale =
                    V::look_up(rows.scales + row, __riscv_vsll(group, 5, kLanes16));
                typename V::Ints dots = __riscv_vmv_v(V::load(x.sum), kLanes16);
                if (kind == CodeKind::kZeros) {
                    const typename V::Words words =
                        V::look_up(all_zeros, __riscv_vsll(group, 2, kLanes16));
                    const typename V::Words zero =
                        __riscv_vand(__riscv_vsrl(words, size_t(4 * row), kLanes16), 15, kLanes16);
                    dots = __riscv_vneg(__riscv_vmul(dots, V::as_signed(zero), kLanes16), kLanes16);
                } else {
                    dots = __riscv_vmul(dots, kind == CodeKind::kTable ? 0 : -zero_, kLanes16);
                }
                dots = add_turns<V>(dots, rows.codes + 16 * row, x);
                const typename V::Floats by = __riscv_vfmul(scale, factor, kLanes16);
                const typename V::Floats dot = __riscv_vfcvt_f(dots, kLanes16);
                float *const sum = sums.of[row];
                __riscv_vse32(sum, __riscv_vfmacc(V::load(sum), by, dot, kLanes16), kLanes16);
            }
        });
    }

    static void to_rows(const Sums &sums, float (*rows)[16]) {
        memcpy(rows, sums.of, sizeof(sums));
    }

  private:
    template <class V>
    QK_INLINE typename V::Ints add_turns(typename V::Ints dots, const uint32_t *codes,
                                         const X &x) const {
        const typename V::Words words = V::load(codes), shift = V::load(shift_);
        const typename V::Words first = V::load(first_word_);
        QK_UNROLL
        for (int i = 0; i < 8; ++i) {
            const typename V::Words at = __riscv_vadd(first, uint32_t(i), kLanes16);
            const typename V::Words word = __riscv_vrgather(words, at, kLanes16);
            const typename V::Words code =
                __riscv_vand(__riscv_vsrl(word, shift, kLanes16), 15, kLanes16);
            dots = __riscv_vmacc(dots, entries_of<V>(code), V::load(x.q[i]), kLanes16);
        }
        return dots;
    }
    template <class V>
    QK_INLINE typename V::Ints entries_of(typename V::Words codes) const {
        if (kind != CodeKind::kTable) return V::as_signed(codes);
        return __riscv_vrgather(V::load(entries_), codes, kLanes16);
    }

    const float steps_;
    const int32_t zero_;  // of all groups where they have none
    int64_t groups_;      // of a block
    alignas(64) uint32_t first_word_[16], shift_[16], group_[16];  // of a lane
    alignas(64) int32_t entries_[16];
};

}  // namespace
}  // namespace qk::cpu
