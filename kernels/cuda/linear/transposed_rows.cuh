// What a warp of the kernel of transposed products of few rows (linear/transposed_rows.cu) does:
// how its stacks of tiles come to it, and what it adds up of them.
#pragma once
#include "cuda/linear/transposed_kinds.cuh"
#include "cuda/linear/transposed_rows_plan.hpp"
#include "cuda/linear/transposed_scales.cuh"
#include "cuda/prim/tensor_copy.cuh"

namespace qk::cuda {
namespace {

struct StripProblem : LinearView {
    // Boxes of a stack: its tiles, all of x that meets them, and the scales of its groups.
    CUtensorMap code_map, x_map, scale_map;
    // What the first copies are told, in one line of constants, for lines come one by one. As in a
    // TransposedView and a WeightView, and the bytes of the three boxes.
    int32_t row_tiles, group_shift, second_shift;
    uint32_t box_bytes;
    StripPlan plan;
    int32_t groups;  // of a row
    const uint8_t *zero;
};

// An instance. kParts: groups of a tile; kX: 8 rows of x each.
template <class T_, Codes codes, StripScales scales, int kParts_, int kX_>
struct StripKind {
    using T = T_;
    static constexpr bool kZeros = codes == Codes::kU4, kNested = scales == StripScales::kNested;
    // Beside so many scales is no room for the large table.
    static constexpr bool kWide = kX_ == 1 || kParts_ < 4 || scales == StripScales::kCodes;
    using Code = std::conditional_t<kZeros, AcrossU4<T>, AcrossLut4<T, kWide>>;
    using Made = Quad<kZeros>;
    static constexpr StripScales kScales = scales;
    static constexpr int kParts = kParts_, kX = kX_;
    static_assert(!kNested || kParts == 1);
};

// One of two stages, which hold a stack for every warp: boxes of codes and of x, as the copy engine
// swizzles lines of 128 bytes; boxes of scales; second scales of the tiles' groups; barriers.
template <class S>
struct StageMap {
    static constexpr uint32_t kCodes = kStackTiles * 512, kBoxes = kCodes + S::kX * 1024;
    static constexpr uint32_t kScaleBytes = kStackTiles * S::kParts * 4 * kQuadBytes<S::kScales>;
    static constexpr uint32_t kScale = kScaleBytes < 128 ? 128 : kScaleBytes;  // a box's place
    static constexpr uint32_t kSecond = S::kNested ? kStackTiles * 64 : 0;
    static constexpr uint32_t kScales = kStripWarps * kBoxes;
    static constexpr uint32_t kSeconds = kScales + kStripWarps * kScale;
    static constexpr uint32_t kFull = kSeconds + kStripWarps * kSecond;  // whether boxes are there
    static constexpr uint32_t kPosted = kFull + kStripWarps * 8;         // the same of others' sums
    static constexpr uint32_t kStage = uint32_t(round_up(kPosted + kStripWarps * 8, 1024));

    static constexpr uint32_t kQuads = kStackTiles * 4 * S::kParts;  // of a stack
    static constexpr uint32_t kQuad = sizeof(typename S::Made), kMade = kQuads * kQuad;
    static constexpr uint32_t kTable = S::Code::kTableBytes, kScaleTable = 1024;
    // A warp's sums of 64 columns and 8 rows of x: a lane's four of 16 columns are side by side, in
    // lines of 128 bytes by its q, which start at different banks. Those of 16 rows find room where
    // the stack was that the warp has added up last.
    static constexpr uint32_t kSums = 16 * 32 * 4;
    static constexpr bool kInStage = S::kX > 1;
    static constexpr uint32_t kAllSums = kInStage ? 0 : kStripWarps * kSums;
    static_assert(S::kX * kSums <= kBoxes);
    // What blocks of a cluster send each other: of each 32 threads' sums, one of every block.
    static constexpr uint32_t kMail = (kStripWarps + kMaxSplit) * 128 * S::kX;
    static constexpr uint32_t kShared =
        kTable + kScaleTable + 2 * kStage + kAllSums + kStripWarps * (kMade + 4) + 2 * kMail;
    static_assert(kShared <= kStripShared);
};

// Where things are in a block's memory: at addresses that are constants.
template <class Map>
struct StripRoom {
    uint32_t *const table;
    // Of coded scales: 256 numbers, nested ones as f32, others times their second in x's type.
    float *const scale_table;
    uint8_t *const stages;
    uint8_t *const sums;
    uint8_t *const mail;  // two, in turns
    uint8_t *const made;
    uint32_t *const last;  // the stage that each warp's sums are in

    __device__ explicit StripRoom(uint4 *shared)
        : table(reinterpret_cast<uint32_t *>(shared)),
          scale_table(reinterpret_cast<float *>(table + Map::kTable / 4)),
          stages(reinterpret_cast<uint8_t *>(scale_table) + Map::kScaleTable),
          sums(stages + 2 * Map::kStage), mail(sums + Map::kAllSums), made(mail + 2 * Map::kMail),
          last(reinterpret_cast<uint32_t *>(made + kStripWarps * Map::kMade)) {}
};

template <class S>
struct StripWarp {
    using T = typename S::T;
    using Code = typename S::Code;
    using Map = StageMap<S>;
    using Acc = float[S::kX][4][4];
    static constexpr bool kNested = S::kNested, kZeros = S::kZeros;
    static constexpr int kX = S::kX, kParts = S::kParts;
    static constexpr uint32_t kQuadBytes = cuda::kQuadBytes<S::kScales>;
    static constexpr uint32_t kQuadsEach = Map::kQuads > 32 ? Map::kQuads / 32 : 1;  // of a lane
    const StripProblem &p;
    const StripRoom<Map> &room;
    // Places in a stage: of the warp's boxes; of a row of a matrix of codes and of x; of
    // what the lane makes a quad of.
    uint32_t boxes, scale_box, place, x_place, stored, second;
    // Of the quad that the lane makes, or its half, and of those that it takes; the row of w of its
    // first scale.
    uint32_t made, made_half, taken;
    uint32_t lanes;  // what look-ups begin with
    int32_t scale_row;
    uint32_t full;  // the warp's barrier in the first stage
    float scale_bias = 0;
    int32_t lane, q, g;
    int32_t first, own;  // stacks: the warp's first of a strip, how many of a strip
    // The next stack to be asked for: its strip, its row of tiles, and how many the warp has of the
    // strip from it on; the strip's first group.
    int32_t strip, row, more = 0;
    uint32_t group;
    const uint8_t *zeros;  // of the quads that the lane makes
    int32_t zero_tile;     // the first one's, of the stack's
    uint32_t zero_now[kQuadsEach] = {}, zero_next[kQuadsEach] = {};  // a stack ahead
    uint32_t number = 0;  // of the lane's group among second scales

    __device__ StripWarp(const StripProblem &problem, const StripRoom<Map> &of_block, int warp,
                         uint32_t cluster, uint32_t rank)
        : p(problem), room(of_block), boxes(uint32_t(warp) * Map::kBoxes),
          scale_box(Map::kScales + uint32_t(warp) * Map::kScale),
          full(shared_address(room.stages) + Map::kFull + uint32_t(warp) * 8),
          lane(int32_t(threadIdx.x % 32)), q(lane % 4), g(lane / 4) {
        second = Map::kSeconds + uint32_t(warp) * Map::kSecond + uint32_t(lane) * 4;
        keep(second);
        const Run of_block_stacks = p.plan.stacks.part(int32_t(rank));
        first = of_block_stacks.first + warp;
        own =
            int32_t(uint32_t(max(of_block_stacks.last - first + kStripWarps - 1, 0)) / kStripWarps);
        strip = int32_t(cluster);
        if constexpr (kZeros) {
#pragma unroll
            for (uint32_t &zero : zero_next) zero = p.zero == nullptr ? 0x8888 : 0;  // 8
        }
        if (own > 0) find();
        if (lane == 0) barrier_init(full, 1);
        barrier_init_fence();
        __syncwarp();
    }

    // The warp's other barriers, for which the first copies need not wait.
    __device__ void prepare_barriers() const {
        constexpr uint32_t kApart = Map::kPosted - Map::kFull;
        if (lane > 0 && lane < 4) {
            barrier_init(full + lane / 2 * Map::kStage + lane % 2 * kApart, 1);
        }
        barrier_init_fence();
        __syncwarp();
    }

    // Of the table of coded scales, by threads of this number.
    __device__ void store_scale(float code, float one) const {
        if constexpr (kNested) {
            room.scale_table[threadIdx.x] = code;
        } else {
            const float scale = nested_scale(code, one, scale_bias);
            reinterpret_cast<uint16_t *>(room.scale_table)[threadIdx.x] =
                uint16_t(pack_pair(T{}, scale, 0.0f));
        }
    }

    // What is not needed before copies are under way.
    __device__ void settle() {
        const uint32_t r = uint32_t(lane) % 8, i = uint32_t(lane) / 8, warp = threadIdx.x / 32;
        // Rows of a matrix, lanes (r, i) of one i, are in different banks.
        place = boxes + r / 2 * 128 + (r % 2 * 4 + (i ^ r / 2)) * 16;
        x_place = boxes + Map::kCodes + r * 128 + (i ^ r) * 16;
        taken = warp * Map::kMade + uint32_t(q) * Map::kQuad;
        const uint32_t quad = uint32_t(lane) % Map::kQuads;
        made = warp * Map::kMade + quad * Map::kQuad;
        if constexpr (kNested) {
            stored = scale_box + uint32_t(lane);
            made_half = warp * Map::kMade + uint32_t(lane / 4) * Map::kQuad +
                        uint32_t(lane % 2 * 4 + lane / 2 % 2 * 2);
            scale_row = row_of_scale();
            keep(made_half);
        } else {
            stored = scale_box + quad * kQuadBytes;
            scale_row = int32_t(quad / (4 * kParts) * 16 + quad % 4 * 2);
        }
        lanes = Code::lanes_of(room.table);
        keep(place), keep(x_place), keep(stored), keep(taken), keep(made), keep(lanes);
        keep(scale_row);
    }

    // Nested scales: the lane's in each half of a stack.
    __device__ int32_t row_of_scale() const {
        return lane / 16 * 16 + lane % 16 / 2 + lane % 2 * 8;
    }

    // The warp's first stack of the strip: what boxes need, which are asked for before the rest.
    __device__ void find() {
        row = first * kStackTiles, more = own;
        group = uint32_t(strip * int32_t(kStripColumns)) >> p.group_shift;
    }
    __device__ void find_rest() {
        const uint32_t groups = uint32_t(p.groups);
        if constexpr (kZeros) {
            const uint32_t quad = uint32_t(lane) % Map::kQuads, of = group + quad / 4 % kParts;
            const bool some = p.zero != nullptr && of < groups;
            zero_tile = some ? int32_t(quad / (4 * kParts)) : INT32_MAX / 2;
            zeros = p.zero + (uint64_t(uint32_t(row + zero_tile)) * groups + of) * 8;
            zeros += quad % 4 * 2;
        }
        if constexpr (kNested) number = uint32_t(row * 16 + row_of_scale()) * groups + group;
    }

    // Asks for the next stack, which goes to stage `to`.
    __device__ void issue(uint32_t to) {
        if (more > 0) {
            copy_boxes(to);
            constexpr int kDown = kStripWarps * kStackTiles;  // rows of tiles to the next stack
            if constexpr (kNested || kZeros) {
                if (more == own) find_rest();
                copy_rest(room.stages + to);
                const int64_t groups = p.groups;
                if constexpr (kZeros) zeros += groups * 8 * kDown;
                if constexpr (kNested) number += uint32_t(16 * kDown * groups);
            }
            row += kDown;
            if (--more == 0 && (strip += p.plan.clusters) < p.plan.strips) find();
        }
        if constexpr (kNested) copies_commit();
    }

    // Zeros where there are no tiles, no columns of x, no groups.
    __device__ void copy_boxes(uint32_t to) const {
        if (elect_one()) {
            const uint32_t stage = shared_address(room.stages) + to, barrier = full + to;
            const uint32_t at = stage + boxes;
            barrier_expect(barrier, p.box_bytes);
            tensor_copy(at, p.code_map, 0, strip * 4, row, barrier);
            tensor_copy(stage + scale_box, p.scale_map, int32_t(group * kQuadBytes), row, barrier);
            tensor_copy(at + Map::kCodes, p.x_map, row * 16, 0, barrier);
        }
        __syncwarp();
    }

    // Zeros of the stack that was asked for last are those of the one that comes now.
    __device__ void take_zeros() {
        if constexpr (kZeros) {
#pragma unroll
            for (uint32_t i = 0; i < kQuadsEach; ++i) zero_now[i] = zero_next[i];
        }
    }

    __device__ void copy_rest(uint8_t *to) {
        if constexpr (kZeros) {
#pragma unroll
            for (uint32_t i = 0; i < kQuadsEach; ++i) {
                if (row + zero_tile + int32_t(i) * 2 < p.row_tiles) {
                    zero_next[i] = global_load_2(zeros + i * 16 * int64_t{p.groups});
                }
            }
        }
        if constexpr (kNested) {
            const uint32_t groups = uint32_t(p.w.geometry.groups_per_row);
            const uint32_t last = uint32_t(p.w.geometry.n) * groups - 1;
#pragma unroll
            for (int half = 0; half < kStackTiles / 2; ++half) {
                const uint32_t of = min(number + uint32_t(half * 32) * groups, last);
                const uint32_t at = p.second_shift < 31 ? of >> p.second_shift : 0;
                copy_ahead<4>(to + half * 128 + second, p.w.second + uint64_t(at) * 4, 4, true);
            }
        }
    }

    // ---- What has arrived

    // The stack's scales and zeros, for all lanes. `rows`: of w from the stack's first on.
    __device__ void make_quads(const uint8_t *stage, int32_t rows) const {
        if constexpr (kNested) make_nested(stage, rows);
        if constexpr (!kNested) make_scales(stage, rows);
        if constexpr (kZeros) make_zeros();
        __syncwarp();
    }

    __device__ void make_scales(const uint8_t *stage, int32_t rows) const {
        const auto *const table = reinterpret_cast<const uint16_t *>(room.scale_table);
#pragma unroll
        for (uint32_t i = 0; i < kQuadsEach; ++i) {
            uint2 scale = scales_of_quad<T, S::kScales>(stage + stored + i * 32 * kQuadBytes,
                                                        p.w.scale_format, table);
            if (rows < 16 * kStackTiles) {
                scale = scales_there(scale, scale_row + int32_t(i) * 32, rows);
            }
            *reinterpret_cast<uint2 *>(room.made + made + i * 32 * Map::kQuad) = scale;
        }
    }

    // Those of one row in each half of a stack.
    __device__ void make_nested(const uint8_t *stage, int32_t rows) const {
#pragma unroll
        for (int half = 0; half < kStackTiles / 2; ++half) {
            const uint32_t code = stage[stored + half * 32];
            const auto of_row = *reinterpret_cast<const float *>(stage + half * 128 + second);
            const float scale = nested_scale(room.scale_table[code], of_row, scale_bias);
            const uint16_t bits = uint16_t(pack_pair(T{}, scale, 0.0f));
            *reinterpret_cast<uint16_t *>(room.made + made_half + half * 8 * Map::kQuad) =
                half * 32 + scale_row < rows ? bits : 0;
        }
    }

    __device__ void make_zeros() const {
#pragma unroll
        for (uint32_t i = 0; i < kQuadsEach; ++i) {
            const Zeros zeros_made = Code::zeros_of(byte_permute(zero_now[i], 0, 0x4140));
            uint8_t *const to = room.made + made + i * 32 * Map::kQuad + sizeof(uint2);
            *reinterpret_cast<uint2 *>(to) = {zeros_made.low, zeros_made.high};
        }
    }

    __device__ void add_stack(const uint8_t *stage, int32_t rows, Acc &sum) const {
        uint32_t b[kX][4], words[4];
        const auto load_x = [&](int half) {
#pragma unroll
            for (int block = 0; block < kX; ++block) {
                load_matrices(stage + block * 1024 + (x_place ^ half * 64), b[block]);
            }
        };
        const auto load_codes = [&](int t) {
            load_matrices_transposed(stage + t * 512 + (place ^ t % 2 * 64), words);
        };
        constexpr bool kEarly = !kZeros;  // those of the first tile
        if constexpr (kEarly) load_x(0), load_codes(0);
        make_quads(stage, rows);
        const uint8_t *const quads = room.made + taken;
#pragma unroll
        for (int t = 0; t < kStackTiles; ++t) {
            const bool there = kEarly && t == 0;
            if (t % 2 == 0 && !there) load_x(t / 2);
            if (!there) load_codes(t);
            add_columns(words, quads + t * kParts * 4 * Map::kQuad, b, t % 2, sum);
        }
    }

    // `words`: of 16 columns each.
    __device__ void add_columns(const uint32_t (&words)[4], const uint8_t *quads,
                                const uint32_t (&b)[kX][4], int odd, Acc &sum) const {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            const auto quad =
                *reinterpret_cast<const typename S::Made *>(quads + part * 4 * Map::kQuad);
#pragma unroll
            for (int j = part * 4 / kParts; j < (part + 1) * 4 / kParts; ++j) {
                uint32_t a[4];
                Code::decode(words[j], quad.zeros(), room.table, lanes, a);
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    a[c] = multiply_pair<T>(a[c], c % 2 == 0 ? quad.scale.x : quad.scale.y);
                }
                const uint32_t columns[4] = {a[0], a[2], a[1], a[3]};
#pragma unroll
                for (int block = 0; block < kX; ++block) {
                    mma_16x8x16<T>(sum[block][j], columns, b[block][odd * 2],
                                   b[block][odd * 2 + 1]);
                }
            }
        }
    }

    // Sums of a strip, of the rows of x that are there. `stage`: the one that is free.
    __device__ void put(const Acc &sum, uint32_t stage) const {
        const uint32_t warp = threadIdx.x / 32;
        uint8_t *to = room.sums + warp * Map::kSums;
        if constexpr (Map::kInStage) {
            to = room.stages + stage + boxes;
            if (lane == 0) room.last[warp] = stage;
        }
        auto *const fours = reinterpret_cast<float4 *>(to) + place_of(q, g);
#pragma unroll
        for (int block = 0; block < kX; ++block) {
            if (block * 8 + q * 2 >= p.m) return;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float(&v)[4] = sum[block][j];
                const int even = kX == 1 ? j % 2 : 0, odd = 1 - even;
                fours[block * int(Map::kSums / 16) + j * 32] = {v[even], v[odd], v[2 + even],
                                                                v[2 + odd]};
            }
        }
    }
    static __device__ int32_t place_of(int32_t q, int32_t g) { return q * 8 + (g + q * 2) % 8; }
    // Bytes from the first of a warp's sums to that of a column and a row of x. Where threads take
    // one each, rows change places in every other 16 columns: other banks.
    static __device__ uint32_t place_of_sum(int32_t column, int32_t row) {
        const int32_t sixteen = row / 8 * 4 + column / 16, other = column / Code::kOther % 2;
        const int32_t four = sixteen * 32 + place_of(row % 8 / 2, Code::lane_of(column % 16));
        const int32_t swapped = kX == 1 ? sixteen % 2 : 0;
        return uint32_t(four * 16 + other * 8 + (row % 2 ^ swapped) * 4);
    }
};

}  // namespace
}  // namespace qk::cuda
