// RISC-V's vectors, of any length from 128 bits on. Their types have no size, so they are neither
// members nor elements: the hot loops hold them by name, 16 lanes of 32 bits at a time, and
// everything that keeps lanes keeps the compiler's vectors of 64 bytes, which run on every length.
#pragma once
#include <riscv_vector.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cpu/isa.hpp"

namespace qk::cpu {
namespace {

constexpr size_t kLanes16 = 16;

// 16 lanes in a group of so many registers.
template <int registers>
struct Lanes16;

#define QK_LANES_16(registers)                                                        \
    template <>                                                                       \
    struct Lanes16<registers> {                                                       \
        using Floats = vfloat32m##registers##_t;                                      \
        using Ints = vint32m##registers##_t;                                          \
        using Words = vuint32m##registers##_t;                                        \
                                                                                      \
        QK_INLINE static Floats load(const float *from) {                             \
            return __riscv_vle32_v_f32m##registers(from, kLanes16);                   \
        }                                                                             \
        QK_INLINE static Ints load(const int32_t *from) {                             \
            return __riscv_vle32_v_i32m##registers(from, kLanes16);                   \
        }                                                                             \
        QK_INLINE static Words load(const uint32_t *from) {                           \
            return __riscv_vle32_v_u32m##registers(from, kLanes16);                   \
        }                                                                             \
        QK_INLINE static Floats look_up(const float *table, Words byte_offsets) {     \
            return __riscv_vluxei32_v_f32m##registers(table, byte_offsets, kLanes16); \
        }                                                                             \
        QK_INLINE static Words look_up(const uint32_t *table, Words byte_offsets) {   \
            return __riscv_vluxei32_v_u32m##registers(table, byte_offsets, kLanes16); \
        }                                                                             \
        QK_INLINE static Ints as_signed(Words a) {                                    \
            return __riscv_vreinterpret_v_u32m##registers##_i32m##registers(a);       \
        }                                                                             \
    };
QK_LANES_16(1)
QK_LANES_16(2)
QK_LANES_16(4)
#undef QK_LANES_16

// body.operator()<registers>(), as few of them as hold 16 lanes on this machine.
template <class Body>
QK_INLINE inline void with_lanes_16(const Body &body) {
    const size_t lanes = __riscv_vsetvlmax_e32m1();  // of a register
    if (lanes >= kLanes16)
        body.template operator()<1>();
    else if (lanes >= kLanes16 / 2)
        body.template operator()<2>();
    else
        body.template operator()<4>();
}

// Vectors of words may not be loaded from anywhere else.
inline bool is_aligned(const void *at) { return reinterpret_cast<uintptr_t>(at) % 4 == 0; }

}  // namespace
}  // namespace qk::cpu
