// What becomes of the sums of an item (experts.cuh), a piece of 16 rows of x at a time: a warpgroup
// transposes its 64 rows of w in shared memory, so that whole lines of y leave. Where gate and up
// are halves of an expert, two warps of a warpgroup have 32 rows of gate, the others those of up:
// of two pieces either takes one, and gives the other its sums of the second. So no warpgroup waits
// for another, but lines of y are halved: of two warpgroups, with many rows of x, one has gate and
// the other up. Where gate and up alternate, they meet in lanes four apart.
#pragma once
#include "cuda/linear/sm90/gemm/experts_units.cuh"
#include "cuda/linear/sm90/gemm/large.cuh"

namespace qk::cuda {
namespace {

// Activations in f32: join() of base/activation.hpp, in double, takes half as long as the product,
// whose weights are rounded to 16 bits. For several values at once, so that none waits for another.
template <int count>
using Floats = float[count];

// NaN where v is.
__device__ inline float at_most(float v, float limit) {
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(v), "f"(limit));
    return v;
}
__device__ inline float at_least(float v, float limit) {
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(v), "f"(limit));
    return v;
}

// v = 1 / (1 + exp(-v)). Below -87.3 it is 0: a gate of -inf becomes NaN, as join() makes it.
template <int count>
__device__ inline void sigmoid_f32(Floats<count> &v) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
        const float power = __fmul_rn(v[i], -1.44269504f);
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(v[i]) : "f"(power));
    }
#pragma unroll
    for (int i = 0; i < count; ++i) v[i] = __fadd_rn(1.0f, v[i]);
#pragma unroll
    for (int i = 0; i < count; ++i) asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(v[i]));
}

// gelu(gate) is about gate * sigmoid() of this.
__device__ inline float gelu_tanh_argument(float gate) {
    const float cube = __fmul_rn(__fmul_rn(gate, gate), gate);
    return __fmul_rn(1.5957691f, __fmaf_rn(0.044715f, cube, gate));
}
__device__ inline float gelu_f32(float gate) {
    return __fmul_rn(__fmul_rn(0.5f, gate), __fadd_rn(1.0f, erff(__fmul_rn(gate, 0.70710678f))));
}

// y[i] of pairs of gate and up.
template <int count>
__device__ inline void join_f32(const ExpertsView &e, Floats<count> &gate, Floats<count> &up,
                                Floats<count> &y) {
    if (e.activation == QK_ACTIVATION_GELU) {
#pragma unroll
        for (int i = 0; i < count; ++i) y[i] = __fmul_rn(gelu_f32(gate[i]), up[i]);
        return;
    }
    if (e.activation == QK_ACTIVATION_SWIGLU_CLAMPED) {
#pragma unroll
        for (int i = 0; i < count; ++i) {
            gate[i] = at_most(gate[i], e.limit);
            up[i] = __fadd_rn(at_least(at_most(up[i], e.limit), -e.limit), 1.0f);
            y[i] = __fmul_rn(e.alpha, gate[i]);
        }
    } else {
        const bool tanh = e.activation == QK_ACTIVATION_GELU_TANH;
#pragma unroll
        for (int i = 0; i < count; ++i) y[i] = tanh ? gelu_tanh_argument(gate[i]) : gate[i];
    }
    sigmoid_f32(y);
#pragma unroll
    for (int i = 0; i < count; ++i) y[i] = __fmul_rn(__fmul_rn(gate[i], y[i]), up[i]);
}

// The output of one warpgroup.
template <class S>
struct ListedOutput {
    using T = typename S::T;
    using Eight = float[8];
    static constexpr int kOfHalf = S::kAcross ? 64 : 32;  // columns of y, of two halves

    const GemmExpertsProblem &p;
    const ExpertsView &e;
    const bool whole;                // 16 bytes of y at a time
    const int32_t count, in_list;    // rows of x, and the first of these
    const uint32_t slots;            // in shared memory: of the item's rows
    uint32_t piece_at, partner_at;   // in shared memory: two pieces; where the other half's are
    int64_t first;                   // column of y
    int32_t columns;                 // of y; below 1 where there are none
    float bias[2], partner_bias[2];  // of the rows of w that this thread has sums of

    __device__ ListedOutput(const ListedUnit<S> &unit, uint32_t slots_at, uint32_t pieces)
        : p(unit.p), e(unit.p.e), whole(unit.p.whole), count(unit.count), in_list(unit.first),
          slots(slots_at) {
        const int32_t group = int32_t(threadIdx.x) / 128;
        piece_at = pieces + uint32_t(group) * 2 * S::kPiece;
        partner_at = pieces + uint32_t(S::kAcross ? 1 - group : group) * 2 * S::kPiece;
        const int32_t rows = !e.halves() ? 64 : S::kAcross ? 0 : 32;
        const int32_t row = unit.first_tile() * 16 + group * rows;
        first = e.joins() && e.interleaved ? row / 2 : row;
        columns = int32_t(min64(e.columns - first, e.halves() ? kOfHalf : e.joins() ? 32 : 64));
        const bool is_up = e.halves() && has_up();
        const int32_t above = S::kAcross ? 0 : 32;  // a warp of up: rows of gate
        load_bias(unit, row + (is_up ? e.columns - above : 0), bias);
        load_bias(unit, row + (is_up ? -above : e.columns), partner_bias);
    }
    // Of halves: whether this warp has sums of up.
    __device__ static bool has_up() { return threadIdx.x & (S::kAcross ? 128 : 64); }
    // Of 64 rows, those of this thread; `row`: that of the first.
    __device__ void load_bias(const ListedUnit<S> &unit, int64_t row, float (&to)[2]) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int64_t at = row + own_row() + i * 8;
            const bool there = e.bias != nullptr && at < e.rows;
            to[i] = there ? load_float(e.bias_type, e.bias, unit.expert * e.rows + at) : 0.0f;
        }
    }

    // Of a piece's sums number i: which of its rows of x and of the warpgroup's of w.
    __device__ static int32_t own_row() {
        return int32_t(threadIdx.x) / 32 % 4 * 16 + int32_t(threadIdx.x) % 32 / 4;
    }
    __device__ static int32_t x_row(int i) {
        return i / 4 * 8 + int32_t(threadIdx.x) % 4 * 2 + i % 2;
    }
    __device__ static int32_t w_row(int i) { return own_row() + i / 2 % 2 * 8; }

    __device__ static void add_bias(const float (&of)[2], Eight &z) {
#pragma unroll
        for (int i = 0; i < 8; ++i) z[i] = __fadd_rn(z[i], of[i / 2 % 2]);
    }

    // ---- a piece becomes y: columns of kSize bytes, f32 where single values leave

    template <int kSize>
    __device__ static void put(uint32_t at, int32_t row, int32_t column, float v) {
        const uint32_t to = at + uint32_t(row) * S::kPitch + uint32_t(column * kSize);
        if constexpr (kSize == 4) {
            shared_store_4(to, __float_as_uint(v));
        } else {
            shared_store_2(to, uint16_t(pack_pair(T{}, v, 0.0f)));
        }
    }
    template <int kSize>
    __device__ static void put_all(uint32_t at, const Eight &y) {
        if constexpr (kSize == 4) {
#pragma unroll
            for (int i = 0; i < 8; ++i) put<4>(at, x_row(i), w_row(i), y[i]);
        } else {
            const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
            uint32_t pairs[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) pairs[i] = pack_pair(T{}, y[2 * i], y[2 * i + 1]);
            matrices_store_transposed(
                at + (lane / 16 * 8 + lane % 8) * S::kPitch + warp * 32 + lane / 8 % 2 * 16, pairs);
        }
    }

    // The element of y that the row of this thread begins at. kLanes threads have a row: eight of
    // one piece, four of this and the next.
    template <int kLanes>
    __device__ int64_t row_of_y(int32_t piece) const {
        const int32_t row = min(piece * 16 + int32_t(threadIdx.x) % 128 / kLanes, count - 1);
        return shared_load_4(slots + uint32_t(row) * 4) * e.y_stride + first;
    }
    template <int kSize, int kColumns, int kLanes>
    __device__ void store_rows(uint32_t at, int32_t piece, int64_t y) const {
        constexpr int kBytes = kSize * kColumns, kEach = kBytes >= kLanes * 16 ? 16 : 8;
        const int32_t row = int32_t(threadIdx.x) % 128 / kLanes;
        const int32_t lane = int32_t(threadIdx.x) % kLanes;
        if (piece * 16 + row >= count) return;
        const uint32_t from = at + uint32_t(row % 16) * S::kPitch + uint32_t(row / 16 * kBytes);
        if (!whole) return store_values(e, from, columns, lane, kLanes, y);
        if (kSize == 2 && p.next != nullptr) {
            store_next<kColumns / kLanes / 2>(from, lane, in_list + piece * 16 + row);
        }
        char *const to = static_cast<char *>(e.y) + y * kSize;
#pragma unroll
        for (int i = 0; i < kBytes; i += kEach * kLanes) {
            const int32_t part = i + lane * kEach;
            if (part >= columns * kSize) return;
            if constexpr (kEach == 16) {
                global_store_16(to + part, shared_load_16(from + uint32_t(part)));
            } else {
                global_store_8(to + part, shared_load_8(from + uint32_t(part)));
            }
        }
    }
    // A row of 16-bit values, its columns moved as those of gathered x are (GatheredColumns).
    template <int kWords>
    __device__ void store_next(uint32_t from, int32_t lane, int32_t row) const {
        const int32_t first_word = lane * kWords;
        if (first_word * 2 >= columns) return;
        uint32_t words[kWords];
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            const int32_t to = first_word + i, second = to / 4 % 2;
            const uint32_t two = from + uint32_t(to / 8 * 8 + to % 4 * 2) * 4;
            if constexpr (S::kPlaced) {
                words[i] = byte_permute(shared_load_4(two), shared_load_4(two + 4),
                                        second ? 0x7632u : 0x5410u);
            } else {
                words[i] = shared_load_4(two + uint32_t(second) * 4);
            }
        }
        uint16_t *const at = p.next + int64_t(row) * e.columns + first + first_word * 2;
        if constexpr (kWords == 4) {
            global_store_16(at, {words[0], words[1], words[2], words[3]});
        } else {
            global_store_8(at, {words[0], words[1]});
        }
    }
    // Not a member: registers of a thread that has one would go to memory.
    __device__ static void store_values(const ExpertsView &e, uint32_t from, int32_t columns,
                                        int32_t lane, int32_t lanes, int64_t y) {
#pragma unroll 1
        for (int32_t c = lane; c < columns; c += lanes) {
            float v = __uint_as_float(shared_load_4(from + uint32_t(c) * 4));
            if (e.accumulate) v = __fadd_rn(v, load_float(e.y_type, e.y, y + c));
            store_float(e.y_type, e.y, y + c, v);
        }
    }

    // ---- sums become a piece

    // The sums of rows of x 16 `wanted` and on: which registers these are is known to the compiler.
    template <int piece, int sums>
    __device__ static void pick(int32_t wanted, const float (&acc)[sums], Eight &z) {
        if constexpr (piece * 8 < sums) {
            if (wanted != piece) return pick<piece + 1>(wanted, acc, z);
#pragma unroll
            for (int i = 0; i < 8; ++i) z[i] = acc[piece * 8 + i];
        }
    }

    __device__ static void meet() { named_barrier_wait(3 + int(threadIdx.x) / 128, 128); }
    __device__ static void meet_partner() { S::kAcross ? named_barrier_wait(2, 256) : meet(); }

    // put_y(at, z) makes y of a piece's sums, kColumns of it. Two pieces alternate.
    template <int kSize, int kColumns, int sums, class PutY>
    __device__ void store_pieces(const float (&acc)[sums], const PutY &put_y) const {
#pragma unroll 1
        for (int32_t piece = 0; piece * 16 < count; ++piece) {
            const uint32_t at = piece_at + piece % 2 * S::kPiece;
            Eight z;
            pick<0>(piece, acc, z);
            add_bias(bias, z);
            put_y(at, z);
            const int64_t row = row_of_y<8>(piece);
            meet();
            store_rows<kSize, kColumns, 8>(at, piece, row);
        }
    }

    // Of two rows of x, lanes of even rows of w keep the first.
    template <int kSize>
    __device__ void put_joined(uint32_t at, const Eight &z) const {
        const bool odd = threadIdx.x & 4;
        float gate[4], up[4], y[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float a = z[2 * i], b = z[2 * i + 1];
            const float other = __shfl_xor_sync(~0u, odd ? a : b, 4);
            gate[i] = odd ? other : a;
            up[i] = odd ? b : other;
        }
        join_f32(e, gate, up, y);
#pragma unroll
        for (int i = 0; i < 4; ++i) put<kSize>(at, x_row(2 * i) + odd, w_row(2 * i) / 2, y[i]);
    }

    template <int kSize, int sums>
    __device__ void store_halves(const float (&acc)[sums]) const {
        const bool is_up = has_up();
        const uint32_t here = int32_t(threadIdx.x) % 128 * 16;
        const uint32_t partner = partner_at + (S::kAcross ? here : here ^ 64 * 16);
#pragma unroll 1
        for (int32_t piece = 0; piece * 16 < count; piece += 2) {
            Eight given, z, y;
            pick<0>(piece + !is_up, acc, given);
            pick<0>(piece + is_up, acc, z);
            add_bias(bias, z);
#pragma unroll
            for (int i = 0; i < 8; i += 4) {
                shared_store_16(piece_at + here + i * 512,
                                {__float_as_uint(given[i]), __float_as_uint(given[i + 1]),
                                 __float_as_uint(given[i + 2]), __float_as_uint(given[i + 3])});
            }
            meet_partner();
#pragma unroll
            for (int i = 0; i < 8; i += 4) {
                const float4 v = shared_load_floats(partner + i * 512);
                given[i] = v.x, given[i + 1] = v.y, given[i + 2] = v.z, given[i + 3] = v.w;
            }
            add_bias(partner_bias, given);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float gate = is_up ? given[i] : z[i];
                given[i] = is_up ? z[i] : given[i], z[i] = gate;
            }
            join_f32(e, z, given, y);
            put_all<kSize>(piece_at + S::kPiece, y);  // of two pieces, side by side
            const int32_t its = piece + (S::kAcross && is_up);
            const int64_t row = row_of_y<kOfHalf / 8>(its);
            meet_partner();
            store_rows<kSize, kOfHalf, kOfHalf / 8>(piece_at + S::kPiece, its, row);
        }
    }

    template <int kSize, int sums>
    __device__ void store_as(const float (&acc)[sums]) const {
        if (!e.joins()) return store_pieces<kSize, 64>(acc, put_all<kSize>);
        const auto put_y = [&](uint32_t at, const Eight &z) { put_joined<kSize>(at, z); };
        e.interleaved ? store_pieces<kSize, 32>(acc, put_y) : store_halves<kSize>(acc);
    }
    template <int sums>
    __device__ void store(const float (&acc)[sums]) const {
        if (whole && e.y_type != QK_FORMAT_F32) return store_as<2>(acc);
        store_as<4>(acc);
    }
};

}  // namespace
}  // namespace qk::cuda
