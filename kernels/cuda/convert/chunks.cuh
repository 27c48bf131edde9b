// Numbers to quantize, as lanes hold them: chunks of 8, one from every round of the block.
#pragma once
#include "cuda/convert/parts.cuh"
#include "cuda/prim/copy.cuh"
#include "cuda/prim/mma.cuh"

namespace qk::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kNumbers = 8;                 // of a chunk
constexpr int kStep = kThreads * kNumbers;  // from a lane's chunk to its next

// Chunks that a lane has under way: 64 bytes.
QK_HD constexpr int chunks_of(qk_format from) { return from == QK_FORMAT_F32 ? 2 : 4; }

// The larger magnitude: of f32 bits, the first without a sign, or of pairs.
template <qk_format from>
__device__ uint32_t larger(uint32_t a, uint32_t b) {
    if constexpr (from == QK_FORMAT_F32) {
        return max(a, b & 0x7fffffffu);
    } else {
        return larger_magnitudes(TypeOf<from>{}, a, b);
    }
}

// As bits of f32.
template <qk_format from>
__device__ uint32_t largest_of(uint32_t most) {
    if (from == QK_FORMAT_F32) return most;
    const uint32_t one = max(most & 0xffffu, most >> 16);
    return __float_as_uint(half_in({one, 0, 0, 0}, 0, from));
}

template <qk_format from>
struct Eight {
    static constexpr int kVectors = from == QK_FORMAT_F32 ? 2 : 1;
    uint4 v[kVectors];

    __device__ float operator[](int i) const {
        if constexpr (from == QK_FORMAT_F32) {
            const uint4 &four = v[i / 4];
            const uint32_t words[4] = {four.x, four.y, four.z, four.w};
            return __uint_as_float(words[i % 4]);
        } else {
            return half_in(v[0], i, from);
        }
    }

    // The largest magnitude of pairs of numbers, or of f32 ones; NaN above all.
    __device__ uint32_t largest() const {
        if constexpr (from == QK_FORMAT_F32) {
            uint32_t most = 0;
#pragma unroll
            for (int i = 0; i < kNumbers; ++i)
                most = larger<from>(most, __float_as_uint((*this)[i]));
            return most;
        } else {
            return larger<from>(larger<from>(v[0].x, v[0].y), larger<from>(v[0].z, v[0].w));
        }
    }

    __device__ Eight magnitudes() const {
        constexpr uint32_t kMask = from == QK_FORMAT_F32 ? 0x7fffffffu : 0x7fff7fffu;
        Eight result;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            result.v[i] = {v[i].x & kMask, v[i].y & kMask, v[i].z & kMask, v[i].w & kMask};
        }
        return result;
    }

    // Bit 3 of nibble i: the sign of number i.
    __device__ uint32_t signs() const {
        if constexpr (from == QK_FORMAT_F32) {
            uint32_t signs = 0;
#pragma unroll
            for (int i = 0; i < kNumbers; ++i) {
                signs |= __float_as_uint((*this)[i]) >> (28 - 4 * i) & 8u << 4 * i;
            }
            return signs;
        } else {
            return signs_of(v[0]);
        }
    }

    // The same, where a number is above 0. `scaled`: the numbers times one that is, of which f32
    // ones may have become 0.
    template <class Scaled>
    __device__ uint32_t above_zero(const Scaled &scaled) const {
        if constexpr (from == QK_FORMAT_F32) {
            uint32_t above = 0;
#pragma unroll
            for (int i = 0; i < kNumbers; ++i) above |= scaled(i) > 0 ? 8u << 4 * i : 0;
            return above;
        } else {
            const auto negative = [](uint32_t pair) {  // of either zero: the one without a sign
                return from == QK_FORMAT_F16 ? subtract_f16(0, pair) : subtract_bf16(0, pair);
            };
            return signs_of(
                {negative(v[0].x), negative(v[0].y), negative(v[0].z), negative(v[0].w)});
        }
    }

  private:
    static __device__ uint32_t signs_of(uint4 halves) {
        const uint32_t low = byte_permute(halves.x, halves.y, 0x7351);
        const uint32_t high = byte_permute(halves.z, halves.w, 0x7351);
        const uint32_t even = byte_permute(low, high, 0x5410);
        const uint32_t odd = byte_permute(low, high, 0x7632);
        return (even >> 4 & 0x08080808u) | (odd & 0x80808080u);
    }
};

// 16 bytes of numbers, the first `rest` of which are there. noinline: at the end of a tensor only.
template <qk_format from>
__device__ __noinline__ uint4 load_part(const void *numbers, int32_t rest) {
    using Bits = std::conditional_t<from == QK_FORMAT_F32, uint32_t, uint16_t>;
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < int(16 / sizeof(Bits)); ++i) {
        const Bits bits = i < rest ? static_cast<const Bits *>(numbers)[i] : Bits{0};
        words[i * sizeof(Bits) / 4] |= uint32_t(bits) << i * sizeof(Bits) * 8 % 32;
    }
    return {words[0], words[1], words[2], words[3]};
}

// The chunks of a lane. `rest`: how many numbers there are from its first one on.
template <qk_format from, int kChunks>
__device__ void load_numbers(const uint4 *vectors, int32_t rest, Eight<from> (&x)[kChunks]) {
    constexpr int kVectors = Eight<from>::kVectors, kOfVector = kNumbers / kVectors;
    const bool whole = rest >= (kChunks - 1) * kStep + kNumbers;
    const auto each = [&](const auto &load) {
#pragma unroll
        for (int i = 0; i < kChunks * kVectors; ++i) {
            const int vector = i % kVectors, first = i / kVectors * kStep + vector * kOfVector;
            x[i / kVectors].v[vector] = load(vectors + first / kOfVector, rest - first);
        }
    };
    if (whole) {
        each([](const uint4 *at, int32_t) { return __ldcs(at); });
    } else {
        each([](const uint4 *at, int32_t left) { return load_part<from>(at, left); });
    }
}

// Two rounds of a lane's chunks on their way to it, in shared memory that no other lane reads.
template <qk_format from, int kLanes>
struct Ahead {
    static constexpr int kChunks = chunks_of(from), kVectors = Eight<from>::kVectors;
    static constexpr int kOfVector = kNumbers / kVectors, kRound = kChunks * kStep;
    uint4 vectors[2][kChunks * kVectors][kLanes];

    // Asks for the chunks from number `at` of `count` on; zeros behind the last.
    __device__ void ask(const void *numbers, int64_t count, int64_t at, int stage) {
        const int32_t rest = int32_t(max64(min64(count - at, kRound), 0));
        const uint4 *const first_vector = static_cast<const uint4 *>(numbers) + at / kOfVector;
#pragma unroll
        for (int i = 0; i < kChunks * kVectors; ++i) {
            const int first = i / kVectors * kStep + i % kVectors * kOfVector;
            const int32_t left = min(max(rest - first, 0), kOfVector);
            copy_ahead<16>(&vectors[stage][i][threadIdx.x], first_vector + first / kOfVector,
                           uint32_t(left) * (16 / kOfVector), true);
        }
        copies_commit();
    }

    // Waits for the older round.
    __device__ void take(int stage, Eight<from> (&x)[kChunks]) const {
        copies_wait_but_one();
#pragma unroll
        for (int i = 0; i < kChunks * kVectors; ++i) {
            x[i / kVectors].v[i % kVectors] = vectors[stage][i][threadIdx.x];
        }
    }
};

// ---- Groups

// `value` with `move` applied to each of its words.
template <class Value, class Move>
__device__ Value moved(const Value &value, const Move &move) {
    uint32_t words[sizeof(Value) / 4];
    memcpy(words, &value, sizeof(value));
#pragma unroll
    for (uint32_t &word : words) word = move(word);
    Value result;
    memcpy(&result, words, sizeof(result));
    return result;
}

template <class Value>
__device__ Value shuffled(const Value &value, int source) {
    return moved(value, [&](uint32_t word) { return __shfl_sync(~0u, word, source); });
}

// The value of the lane whose number differs in `bits`.
template <class Value>
__device__ Value exchanged(const Value &value, int bits) {
    return moved(value, [&](uint32_t word) { return __shfl_xor_sync(~0u, word, bits); });
}

// What is known of every chunk, joined over the lanes of its group.
template <int kChunks, class Known, class Join>
__device__ void join_groups(int32_t shift, Known (&known)[kChunks], const Join &join) {
#pragma unroll 1
    for (int other = 1 << (shift - 3) >> 1; other > 0; other /= 2) {
#pragma unroll
        for (Known &own : known) own = join(own, exchanged(own, other));
    }
}

// known[i], without an array in local memory.
template <int kChunks, class Known>
__device__ Known picked(const Known (&known)[kChunks], int i) {
    Known own = known[0];
#pragma unroll
    for (int other = 1; other < kChunks; ++other) own = i == other ? known[other] : own;
    return own;
}

// Of each two a lane keeps one, joined with that of the lane whose number differs in `bit`.
template <int kKept, class Known, class Join>
__device__ void halve(int bit, const Known *known, Known *kept, const Join &join) {
    const bool second = (int(threadIdx.x) & bit) != 0;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
        const Known mine = second ? known[2 * i + 1] : known[2 * i];
        const Known given = second ? known[2 * i] : known[2 * i + 1];
        kept[i] = join(mine, exchanged(given, bit));
    }
}

// A short last group may end before the number of the lane that stores its scale.
__device__ inline int64_t group_start(int32_t shift, int64_t at) { return at >> shift << shift; }

// values[i] = compute(i, joined, stores) for each of a lane's chunks, from what is known of all of
// its group, joined. Each of as many lanes of a group as there are chunks computes one of them,
// groups of two lanes take turns; `stores` in one lane of the group. Lanes join only what they
// compute with, by a third to half of the shuffles that join_groups takes.
template <int kChunks, class Known, class Value, class Join, class Compute>
__device__ void share_groups(int32_t shift, const Known (&known)[kChunks], Value (&values)[kChunks],
                             const Join &join, const Compute &compute) {
    const int lane = int(threadIdx.x & 31), lanes = 1 << (shift - 3), share = min(lanes, kChunks);
    const int shared = lane & (share - 1);
    Known half[kChunks / 2];
    halve<kChunks / 2>(1, known, half, join);
    if (kChunks == 4 && share == 4) halve<1>(2, half, half, join);
    Known joined = half[0];
#pragma unroll 1
    for (int other = share; other < lanes; other *= 2) {
        joined = join(joined, exchanged(joined, other));
    }
#pragma unroll 1
    for (int turn = 0; turn < kChunks; turn += share) {
        const Value mine = compute(turn + shared, joined, (lane & (lanes - 1)) == shared);
        joined = half[kChunks / 2 - 1];  // of the second turn
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
            const Value value = shuffled(mine, (lane - shared + i - turn) & 31);
            if (i >= turn) values[i] = value;
        }
    }
}

// What the codes of a usual group are chosen with; the reciprocal of any other group is a NaN.
struct Multiplier {
    float reciprocal;
};
struct Divisor {
    float reciprocal, value;
};

constexpr uint32_t kNone = 0x7fc00000u, kInfinity = 0x7f800000u;

__device__ inline Divisor divisor(float value) {
    const bool middle = value > 0x1p-60f && value < 0x1p60f;
    return {middle ? __fdiv_rn(1.0f, value) : __uint_as_float(kNone), value};
}

template <qk_format from>
__device__ float quotient_of(float x, Multiplier by) {
    return __fmul_rn(x, by.reciprocal);
}

// As a division rounds it, for a divisor in the middle of the exponents and quotients that matter.
// Numbers of 16 bits need one refinement: so it is for their 2^10 mantissas by all 2^23 of
// divisors.
template <qk_format from>
__device__ float quotient_of(float x, Divisor by) {
    float q = __fmul_rn(x, by.reciprocal);
    q = __fmaf_rn(__fmaf_rn(-q, by.value, x), by.reciprocal, q);
    if (from != QK_FORMAT_F32) return q;
    return __fmaf_rn(__fmaf_rn(-q, by.value, x), by.reciprocal, q);
}

// `plane` is aligned.
__device__ inline void store_scale(qk_format format, void *plane, int64_t number, float scale) {
    switch (format) {
        case QK_FORMAT_F16: static_cast<uint16_t *>(plane)[number] = f16_from_f32(scale); return;
        case QK_FORMAT_BF16: static_cast<uint16_t *>(plane)[number] = bf16_from_f32(scale); return;
        default: static_cast<float *>(plane)[number] = scale;
    }
}

// 1.5 x 2^23: the low bits of a sum with a small number are its nearest integer, ties to even.
constexpr float kInteger = 12582912.0f;
constexpr uint32_t kIntegerBits = 0x4b400000u;

// Eight words, each the bits of kInteger plus 0 to 15, as one of nibbles.
template <class Words>
__device__ uint32_t nibbles_of(const Words &words) {
    uint32_t nibbles = 0;
#pragma unroll
    for (int i = kNumbers - 1; i >= 0; --i) nibbles = nibbles * 16 + words(i);
    // Of each one's upper bits three are left.
    return nibbles - kIntegerBits - (kIntegerBits << 4) - (kIntegerBits << 8);
}

// ---- What kernels of chunks can take

// Whether code number r * k + c is at place r * k + c, but for the order inside a byte.
inline bool runs_in_order(const Weight &w) {
    if (is_records(w)) return false;
    switch (w.layout->id) {
        case QK_LAYOUT_ROW_HIGH: return true;
        case QK_LAYOUT_ROW: return w.format->bits == 8 || w.geometry.k % 2 == 0;
        case QK_LAYOUT_WORD: return w.geometry.k % 8 == 0;
        default: return false;
    }
}

// Whether the numbers are runs of whole groups, a lane's chunk in one group.
inline bool groups_follow(const QuantizeArgs &args) {
    const Weight &w = args.to;
    const Geometry &s = w.geometry;
    return (s.flat || s.k % s.group_size == 0) && s.group_size >= 16 && s.group_size <= 256 &&
           power_of_two(s.group_size) && ceil_div(s.n * s.k, kStep * 2) < (int64_t{1} << 31) &&
           aligned(args.from.data) && aligned(w.data, 8) && aligned(w.scale.data, 4);
}

}  // namespace
}  // namespace qk::cuda
