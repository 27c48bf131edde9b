// What a warp of the kernel for one row of x from stored words (words_gemv.cu) knows of a unit: its
// way to shared memory, its scales and zeros, x for its columns.
#pragma once
#include "cuda/linear/sm90/gemv/plan.hpp"
#include "cuda/linear/stored/gemv_plan.hpp"
#include "cuda/linear/stored/words_parts.cuh"

namespace qk::cuda {
namespace {

struct RowProblem : Problem {
    GemvPlan plan;
    int32_t group_shift;  // log2 of the tiles a group
};

// A unit's way to shared memory and to the lanes, whose rows of it are low and high. A half of a
// unit is 16 lines of 128 bytes (of a row of w; GPTQ: of words). Their 16-byte pieces are swapped
// by the number of the line, mod 8, so that lanes that load at once find banks of their own.
template <bool gptq>
struct UnitCopy {
    static constexpr int kTall = unit_tall(gptq), kTiles = kUnitTiles / kTall;  // down and along k
    static constexpr int kLanes = 4 / kTall;  // that have sums of a row, neighbours
    const uint8_t *data;                      // the plane, from the lane's first 16 bytes of it on:
    int64_t pitch;                            // bytes from a line to the next
    int64_t bytes;                            // to the right
    int32_t lines;                            // below
    int to, below;  // places in a half: of the lane's first 16 bytes; from there, four lines below
    int words_at;   // place in a unit of the lane's first words

    __device__ explicit UnitCopy(const Problem &p)
        : pitch(gptq ? p.w.geometry.n * 4 : p.w.geometry.k / 2) {
        const int lane = int(threadIdx.x) % 32, down = lane / 8, piece = lane % 8;
        data = p.w.data + down * pitch + piece * 16;
        bytes = pitch - piece * 16;
        lines = int32_t(gptq ? p.w.geometry.k / 8 : p.w.geometry.n) - down;
        to = down * 128 + (piece ^ down) * 16;
        below = 512 + ((piece ^ down) < 4 ? 64 : -64);
        const int pair = lane % 4, line = gptq ? pair * 2 : low(lane);
        words_at = line * 128 + ((gptq ? lane / 8 : pair / 2) ^ line % 8) * 16 +
                   (gptq ? lane / 4 : pair) % 2 * 8;
    }
    static __device__ int low(int lane) {
        return gptq ? lane / 4 * 2 : lane / 4 % 4 * 2 + lane / 16;
    }
    static __device__ int high(int lane) { return low(lane) + (gptq ? 1 : 8); }

    __device__ void issue(int32_t unit_row, int32_t column, int half, uint8_t *slot) const {
        const int32_t line = gptq ? column * (unit_columns(gptq) / 8) + half * 16 : unit_row * 16;
        const int64_t byte =
            gptq ? unit_row * int64_t{128} : column * (kUnitColumns / 2) + half * 128;
        const uint8_t *const from = data + line * pitch + byte;
        const int32_t left = byte < bytes ? lines - line : 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            copy_ahead<16>(slot + half * kHalfBytes + to + i / 2 * 1024 + i % 2 * below,
                           from + i * 4 * pitch, i * 4 < left ? 16 : 0, true);
        }
        copies_commit();
    }
    // The words of the lane's rows, of its 16 columns of a tile: two of the low one, two of the
    // high.
    __device__ void words(const uint8_t *slot, int tile, uint32_t (&to)[2][2]) const {
        if constexpr (gptq) {
            const int at = words_at ^ tile / kTiles * 64, down = tile % kTiles * 1024;
            const auto first = *reinterpret_cast<const uint2 *>(slot + at + down);
            const auto then = *reinterpret_cast<const uint2 *>(slot + (at ^ 16) + down + 128);
            to[0][0] = first.x, to[1][0] = first.y;
            to[0][1] = then.x, to[1][1] = then.y;
        } else {
            const uint8_t *const at = slot + (words_at ^ tile % 4 * 32) + tile / 4 * kHalfBytes;
            const auto of_low = *reinterpret_cast<const uint2 *>(at);
            const auto of_high = *reinterpret_cast<const uint2 *>(at + 1024);
            to[0][0] = of_low.x, to[0][1] = of_low.y;
            to[1][0] = of_high.x, to[1][1] = of_high.y;
        }
    }
};

// Scales and zeros of a lane's two rows, of the groups of its tiles 2 pair and 2 pair + 1, as they
// are stored: whatever is done with a load at once would wait for it.
template <ScaleKind kind, int kGroups, bool zeros>
struct RowGroups {
    uint32_t scale[kGroups][2], zero[kGroups][zeros ? 2 : 1];  // a zero: the byte that has it
    uint32_t odd;  // bit 2 i + j: whether group i's zero of row j is the byte's upper nibble
    float second[kGroups][kind == ScaleKind::kNested ? 2 : 1];

    // tile: the lane's first.
    __device__ void load(const RowProblem &p, const uint32_t (&row)[2], uint32_t first_tile) {
        odd = p.w.layout == QK_LAYOUT_ROW_HIGH ? 0xf : 0;  // neighbours are swapped
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
            const uint32_t tile = first_tile + uint32_t(i);
            const uint32_t groups = uint32_t(p.w.geometry.groups_per_row);
            const uint32_t group = min(tile >> p.group_shift, groups - 1);
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const uint32_t at = row[j] * p.scale_row + group * p.scale_step;
                if constexpr (kind == ScaleKind::kF32) {
                    scale[i][j] = __ldg(reinterpret_cast<const uint32_t *>(p.w.scale) + at);
                } else if constexpr (kind == ScaleKind::kNested) {
                    scale[i][j] = __ldg(p.w.scale + at);
                    second[i][j] = __ldg(reinterpret_cast<const float *>(p.w.second) +
                                         ((row[j] * groups + group) >> p.second_shift));
                } else {
                    scale[i][j] = __ldg(reinterpret_cast<const uint16_t *>(p.w.scale) + at);
                }
            }
            if constexpr (zeros) {
                zero[i][0] = zero[i][1] = uint32_t(8 - p.w.zero_offset) * 0x11;
                if (p.w.zero == nullptr) continue;
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const uint32_t at = zero_place(p, row[j], group);
                    odd ^= (at & 1) << (2 * i + j);
                    zero[i][j] = __ldg(p.w.zero + (at >> 1));
                }
            }
        }
    }
    __device__ float2 scales(const float *codes, float bias, int i) const {
        if constexpr (kind == ScaleKind::kF32) {
            return {__uint_as_float(scale[i][0]), __uint_as_float(scale[i][1])};
        } else if constexpr (kind == ScaleKind::kNested) {
            return {nested_scale(codes[scale[i][0]], second[i][0], bias),
                    nested_scale(codes[scale[i][1]], second[i][1], bias)};
        } else {
            return scale_pair_of<kind>(scale[i][0] | scale[i][1] << 16);
        }
    }
    // The low row's in the low nibble, the high one's above.
    __device__ uint32_t zero_byte(int32_t offset, int i) const {
        uint32_t byte = 0;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const uint32_t value = (zero[i][j] >> (odd >> (2 * i + j) & 1) * 4) + uint32_t(offset);
            byte |= (value & 15) << j * 4;
        }
        return byte;
    }
};

// x of a lane's 16 columns of its tile, as the operands of that tile's four products. What is
// loaded is paired only when it is used.
template <bool lut4, bool gptq>
struct RowX {
    uint4 of[2], next[2];

    __device__ void load(const RowProblem &p, int32_t unit, int lane) {
        constexpr int kColumns = unit_columns(gptq);
        const int32_t column = unit * kColumns + lane / 4 * 64 % kColumns + lane % 4 * 16;
        const auto *const from = reinterpret_cast<const uint4 *>(p.x) + column / 8;
        const bool there = column < int32_t(p.w.geometry.k);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            next[j] = {0, 0, 0, 0};
            if (there) next[j] = __ldg(from + j);
        }
    }
    __device__ void take(bool high_first) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            if (lut4) {
                of[j] = next[j];
            } else {
                of[j] = high_first ? paired(next[j], kOddColumns, kEvenColumns)
                                   : paired(next[j], kEvenColumns, kOddColumns);
            }
        }
    }
};

}  // namespace
}  // namespace qk::cuda
