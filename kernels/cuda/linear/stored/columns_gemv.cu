// y = x . transpose(w) + bias for one row of x straight from AWQ_GEMM: codes are stored [k, n / 8],
// in words along n, 8 rows of w to a word.
//
//   unit: 64, 128 or 256 rows of w, a strip, x 128, 64 or 32 columns: 4 KiB
//
//   rows  0..7  8..15  ..  248..255           block: 16 warps, strips dealt in turn
//   k  0 | word | word | .. | word |          warp:  every 16th unit of a strip, two on their way
//      1 | word | ..                                 through shared memory, with all they need
//
// A matrix operand pairs neighbours in k. Half-words of two words, k and k + 1, side by side are
// such pairs (prmt): the low ones hold rows 0, 2, 4, 6, one a nibble, the high ones rows 1, 3, 5,
// 7. So four words of a lane, of columns 4 t .. 4 t + 3 of 16 (t = lane % 4) and one column of
// words, are the left operands of four products: product i has rows 2 i and 2 i + 1 of every word.
// A lane loads the words of 1, 2 or 4 columns of words at once, and keeps the sums of one of them:
// all columns of the right operands hold the same x.
//
// Wide strips read memory better, but are few: so two blocks, a cluster, may share one and divide
// its units; the second one's sums are sent to the first one, which adds them to its own.
//
// Bytes per row of w: k / 2 of codes, its scales and zeros, read once. Nothing is read before the
// kernel ahead in the stream has finished: a checkpoint's weights may be its work.
#include "cuda/kernels.hpp"
#include "cuda/linear/stored/gemv_plan.hpp"
#include "cuda/linear/stored/words_parts.cuh"
#include "cuda/prim/cluster.cuh"
#include "cuda/prim/shared.cuh"

namespace qk::cuda {

namespace {

constexpr int kWarps = kGemvWarps, kThreads = kWarps * 32;
#if defined(QK_CUDA_SIMULATED)
constexpr bool kClusters = false;  // simulated threads have none
#else
constexpr bool kClusters = true;
#endif

struct ColumnsProblem : Problem {
    StripsPlan plan;
    int32_t group_shift;  // log2 of the columns a group
};

// Copies the part of `bytes` at `to` that is the lane's, 16 bytes at a time; zeros from `end` on.
template <int bytes>
__device__ void copy_part(int lane, uint8_t *to, const uint8_t *from, const uint8_t *end) {
#pragma unroll
    for (int first = 0; first < bytes; first += 512) {
        const int at = first + lane * 16;
        copy_ahead<16>(to + at, from + at, from + at < end ? 16 : 0, at < bytes);
    }
}

// kWide: columns of words that a lane loads at once.
template <class T, ScaleKind kind, int kWide>
struct ColumnsWarp {
    using Decode = U4<T>;
    static constexpr int kRows = strip_rows(kWide), kColumns = strip_columns(kWide);
    static constexpr int kLine = kRows / 2;  // bytes of a column of a unit
    static constexpr int kSteps = kColumns / 16;
    static constexpr int kScaleBytes = kind == ScaleKind::kF32 ? 4 : 2;
    // What a unit has beside its codes: scales, zeros, x.
    static constexpr int kZeros = kRows * kScaleBytes, kX = kZeros + kRows / 2,
                         kBeside = strip_beside(kWide, kScaleBytes);

    const ColumnsProblem &p;
    float *partials;          // of the block
    uint8_t *codes, *beside;  // of the warp's units on their way
    int lane, warp;
    int own;                // column of words whose sums the lane keeps
    int32_t cluster, rank;  // of the grid; of the cluster
    int32_t strips, count;  // of the cluster; the warp's units
    Unit unit, ahead;       // to multiply, to issue
    float sum[8] = {};

    // The warp's number is broadcast, so that loops are known to be the same for all lanes.
    __device__ ColumnsWarp(const ColumnsProblem &problem, float *sums, uint8_t *all_slots)
        : p(problem), partials(sums), lane(int(threadIdx.x) % 32),
          warp(__shfl_sync(~0u, int(threadIdx.x) / 32, 0)),
          own(lane / 4 * kWide + lane % 4 * kWide / 4), cluster(int32_t(blockIdx.x) / p.plan.cut),
          rank(int32_t(blockIdx.x) % p.plan.cut) {
        codes = all_slots + warp * kUnitsAhead * kStripCodes;
        beside = all_slots + kWarps * kUnitsAhead * kStripCodes + warp * kUnitsAhead * kBeside;
        strips = p.plan.strips.each + (cluster < p.plan.strips.rest);
        unit = ahead = {0, warp * p.plan.cut + rank};
        const int32_t warps = kWarps * p.plan.cut, left = p.plan.units - unit.column;
        count = left > 0 ? strips * ((left + warps - 1) / warps) : 0;
    }
    // To the warp's next unit: every strip begins with the same one.
    __device__ void advance(Unit *of) const {
        of->column += kWarps * p.plan.cut;
        if (of->column < p.plan.units) return;
        of->column = warp * p.plan.cut + rank;
        ++of->row;
    }
    // Cluster after cluster takes a strip, so that neighbours read neighbouring memory.
    __device__ int64_t strip(int32_t of_cluster) const {
        return cluster + int64_t(of_cluster) * (int32_t(gridDim.x) / p.plan.cut);
    }

    // codes_first: so that the memory is busy while places of scales are found.
    __device__ void issue(int stage, bool there, bool codes_first) {
        if (there) {
            const int64_t of_strip = strip(ahead.row);
            if (codes_first) issue_codes(of_strip, codes + stage * kStripCodes);
            issue_scales(of_strip, beside + stage * kBeside);
            if (!codes_first) issue_codes(of_strip, codes + stage * kStripCodes);
            advance(&ahead);
        }
        copies_commit();
    }
    // Columns 4 t + i of 16 lie so that those of the lanes t are neighbours, and pieces of 16 bytes
    // change places: lanes that load at once find banks of their own.
    static __device__ int place(int piece, int t) {
        return (kWide == 4 ? piece ^ t * 2 : kWide == 2 ? piece ^ (t & 2) : piece) * 16;
    }
    __device__ void issue_codes(int64_t of_strip, uint8_t *slot) const {
        constexpr int kPieces = kLine / 16, kDown = 32 / kPieces;
        const int64_t pitch = p.w.geometry.n / 2;
        const int32_t down = lane / kPieces, first = ahead.column * kColumns + down;
        const int64_t at = of_strip * kLine + lane % kPieces * 16;
        const int32_t left = at < pitch ? int32_t(p.w.geometry.k) - first : 0;
        const uint8_t *from = p.w.data + first * pitch + at;
        uint8_t *const to = slot + (down % 4 * 4 + down / 4) * kLine;
#pragma unroll
        for (int i = 0; i < kColumns / kDown; ++i) {
            const int t = i % kWide * (4 / kWide);  // of the first lanes
            copy_ahead<16>(to + (i / kWide * 16 + t) * kLine + place(lane % kPieces, t), from,
                           i * kDown < left ? 16 : 0, true);
            from += kDown * pitch;
        }
    }
    // Scales and zeros of the unit's group, and x.
    __device__ void issue_scales(int64_t of_strip, uint8_t *slot) const {
        const int64_t n = p.w.geometry.n, first = of_strip * kRows;
        const int32_t column = ahead.column * kColumns;
        const int64_t group =
            min(column >> p.group_shift, int32_t(p.w.geometry.groups_per_row) - 1);
        const uint8_t *const scale = p.w.scale + group * n * kScaleBytes;
        copy_part<kRows * kScaleBytes>(lane, slot, scale + first * kScaleBytes,
                                       scale + n * kScaleBytes);
        if (p.w.zero != nullptr) {
            const uint8_t *const zero = p.w.zero + group * n / 2;
            copy_part<kRows / 2>(lane, slot + kZeros, zero + first / 2, zero + n / 2);
        }
        const auto *const x = static_cast<const uint8_t *>(p.x);
        copy_part<kColumns * 2>(lane, slot + kX, x + column * 2, x + p.w.geometry.k * 2);
    }

    // Of rows 2 i and 2 i + 1 of the lane's 8.
    __device__ float2 scale_pair(const uint8_t *slot, int i) const {
        const uint8_t *const at = slot + (own * 8 + i * 2) * kScaleBytes;
        if constexpr (kind == ScaleKind::kF32) {
            return *reinterpret_cast<const float2 *>(at);
        } else {
            return scale_pair_of<kind>(*reinterpret_cast<const uint32_t *>(at));
        }
    }

    // The products of one column of words, words[step][i], to sums of its 8 rows.
    __device__ void multiply(const uint32_t (&words)[kSteps][4], uint32_t zero,
                             const uint2 (&x)[kSteps], float (&d)[4][4]) const {
        uint32_t zeros[2][4];  // of even rows, of odd rows
        Decode::pairs(byte_permute(zero, 0, 0x1010u), zeros[0]);
        Decode::pairs(byte_permute(zero, 0, 0x3232u), zeros[1]);
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
            uint32_t pairs[2][2][4];  // [columns][odd rows][product]
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint32_t a = words[s][2 * i], b = words[s][2 * i + 1];
                Decode::pairs(byte_permute(a, b, 0x5410u), pairs[i][0]);
                Decode::pairs(byte_permute(a, b, 0x7632u), pairs[i][1]);
            }
#pragma unroll
            for (int product = 0; product < 4; ++product) {
                uint32_t a[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    a[i] = Decode::subtract(pairs[i / 2][i % 2][product], zeros[i % 2][product]);
                }
                mma_16x8x16<T>(d[product], a, x[s].x, x[s].y);
            }
        }
    }

    // kWide words side by side.
    static __device__ void load(const uint8_t *at, uint32_t (&to)[kWide]) {
        if constexpr (kWide == 1) {
            to[0] = *reinterpret_cast<const uint32_t *>(at);
        } else if constexpr (kWide == 2) {
            const auto v = *reinterpret_cast<const uint2 *>(at);
            to[0] = v.x, to[1] = v.y;
        } else {
            const auto v = *reinterpret_cast<const uint4 *>(at);
            to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
        }
    }

    __device__ void add_unit(int stage) {
        const uint8_t *const slot = beside + stage * kBeside;
        uint32_t words[kWide][kSteps][4];
        uint2 x[kSteps];
        const int g = lane / 4, t = lane % 4;
        const uint8_t *const from =
            codes + stage * kStripCodes + t * kLine + place(g * kWide / 4, t) + g * kWide % 4 * 4;
#pragma unroll
        for (int i = 0; i < kSteps * 4; ++i) {
            uint32_t side[kWide];
            load(from + i * (4 * kLine), side);
#pragma unroll
            for (int j = 0; j < kWide; ++j) words[j][i / 4][i % 4] = side[j];
        }
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
            x[s] = *reinterpret_cast<const uint2 *>(slot + kX + s * 32 + t * 8);
        }
        uint32_t zero[kWide];
        if (p.w.zero != nullptr) load(slot + kZeros + g * kWide * 4, zero);
        float kept[8] = {};
#pragma unroll
        for (int word = 0; word < kWide; ++word) {
            float d[4][4] = {};
            multiply(words[word], p.w.zero != nullptr ? zero[word] : 0x88888888u, x, d);
            const bool mine = t * kWide / 4 == word;
#pragma unroll
            for (int i = 0; i < 8; ++i) kept[i] = mine ? d[i / 2][i % 2 * 2] : kept[i];
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 scale = scale_pair(slot, i);
            sum[2 * i] = __fmaf_rn(kept[2 * i], scale.x, sum[2 * i]);
            sum[2 * i + 1] = __fmaf_rn(kept[2 * i + 1], scale.y, sum[2 * i + 1]);
        }
    }

    // The sums of a strip: the block's, once all of its warps have theirs. Two strips' places take
    // turns, so that one barrier is enough.
    __device__ void end_strip(int32_t row) {
        float *const turn = partials + row % 2 * (kWarps * kRows);
        auto *const to = reinterpret_cast<float4 *>(turn + warp * kRows + own * 8);
        if (lane % 4 * kWide % 4 == 0) {
            to[0] = {sum[0], sum[1], sum[2], sum[3]};
            to[1] = {sum[4], sum[5], sum[6], sum[7]};
        }
#pragma unroll
        for (float &one : sum) one = 0;
        add_warps(row);
    }
    // Every warp of the block calls it, those without columns too.
    __device__ void add_warps(int32_t row) const {
        const float *const turn = partials + row % 2 * (kWarps * kRows);
        __syncthreads();
        if (threadIdx.x >= kRows) return;
        float total = turn[threadIdx.x];
        for (int32_t i = 1; i < p.plan.partials; ++i) {
            total = __fadd_rn(total, turn[i * kRows + threadIdx.x]);
        }
        sums()[row * kRows + threadIdx.x] = total;
    }
    // Of the block, of all its strips.
    __device__ float *sums() const { return partials + 2 * kWarps * kRows; }

    __device__ void run() {
#pragma unroll
        for (int i = 0; i < kUnitsAhead; ++i) issue(i, i < count, i == 0);
        int stage = 0;
#pragma unroll 1
        for (int32_t left = count; left > 0; --left) {
            copies_wait_but<kUnitsAhead - 1>();
            __syncwarp();
            add_unit(stage);
            __syncwarp();
            issue(stage, left > kUnitsAhead, false);
            stage = stage + 1 == kUnitsAhead ? 0 : stage + 1;
            const int32_t row = unit.row;
            advance(&unit);
            if (left == 1 || unit.row != row) end_strip(row);
        }
        for (int32_t row = 0; count == 0 && row < strips; ++row) add_warps(row);
        __syncthreads();
    }

    __device__ void store(int64_t row, float y) const {
        if (row < p.w.geometry.n) store_output(p, p.type, row, row, y);
    }
    __device__ void store(int32_t first, const float4 &y) const {
        const int64_t row = strip(first / kRows) * kRows + first % kRows;
        store(row, y.x), store(row + 1, y.y), store(row + 2, y.z), store(row + 3, y.w);
    }

#if !defined(QK_CUDA_SIMULATED)
    // Places of the first block of a cluster for the sums of the others, and their barrier.
    __device__ uint32_t received() const { return shared_address(sums()) + p.plan.sums_bytes; }
    __device__ uint32_t barrier() const {
        return received() + uint32_t(p.plan.cut - 1) * p.plan.sums_bytes;
    }
    __device__ void expect_sums() const {
        if (rank == 0 && threadIdx.x == 0) {
            barrier_init(barrier(), 1);
            barrier_init_fence();
            barrier_expect(barrier(), uint32_t((p.plan.cut - 1) * strips * kRows) * 4);
        }
        cluster_arrive();
    }
    // The block may exit afterwards: no other block reads its memory.
    __device__ void send_sums() const {
        const uint32_t there = remote_address(barrier(), 0);
        const uint32_t to = remote_address(received() + uint32_t(rank - 1) * p.plan.sums_bytes, 0);
        for (int32_t i = int32_t(threadIdx.x); i * 4 < strips * kRows; i += kThreads) {
            const uint4 y = reinterpret_cast<const uint4 *>(sums())[i];
            remote_store_16(true, to + uint32_t(i) * 16, y, there);
        }
    }
#endif
    // Those of four rows, of all blocks.
    __device__ float4 sums_of_cluster(int32_t i) const {
        float4 y = reinterpret_cast<const float4 *>(sums())[i];
        for (int32_t block = 1; block < p.plan.cut; ++block) {
            const float4 more =
                reinterpret_cast<const float4 *>(sums() + block * (p.plan.sums_bytes / 4))[i];
            y.x = __fadd_rn(y.x, more.x), y.y = __fadd_rn(y.y, more.y);
            y.z = __fadd_rn(y.z, more.z), y.w = __fadd_rn(y.w, more.w);
        }
        return y;
    }
    __device__ void store_sums() const {
        for (int32_t i = int32_t(threadIdx.x); i * 4 < strips * kRows; i += kThreads) {
            store(i * 4, sums_of_cluster(i));
        }
    }
};

template <class T, ScaleKind kind, int kWide>
__global__ void __launch_bounds__(kThreads, 1)
    multiply_columns_gemv(const __grid_constant__ ColumnsProblem p) {
    using Warp = ColumnsWarp<T, kind, kWide>;
    QK_LAUNCH_SHARED(shared);
    auto *const slots = reinterpret_cast<uint8_t *>(shared);
    auto *const partials =
        reinterpret_cast<float *>(slots + kWarps * kUnitsAhead * (kStripCodes + Warp::kBeside));
    Warp work(p, partials, slots);
#if !defined(QK_CUDA_SIMULATED)
    if (p.plan.cut > 1) work.expect_sums();
#endif
    work.run();
#if !defined(QK_CUDA_SIMULATED)
    if (p.plan.cut > 1) {
        cluster_wait();
        if (work.rank != 0) return work.send_sums();
        barrier_wait(work.barrier(), 0);
    }
#endif
    work.store_sums();
}

template <class T, ScaleKind kind>
Status run_kind(const ColumnsProblem &p, const Launch &launch) {
    Shape3 shape = {dim3(uint32_t(p.plan.clusters * p.plan.cut)), kThreads};
    shape.shared_bytes = uint32_t(columns_gemv_shared(p.plan, p.scale_bytes));
    shape.cluster = p.plan.cut;
    switch (p.plan.wide) {
        case 1: return launch_kernel(launch, "linear", multiply_columns_gemv<T, kind, 1>, shape, p);
        case 2: return launch_kernel(launch, "linear", multiply_columns_gemv<T, kind, 2>, shape, p);
        default:
            return launch_kernel(launch, "linear", multiply_columns_gemv<T, kind, 4>, shape, p);
    }
}

template <class T>
Status run_type(const ColumnsProblem &p, const Launch &launch) {
    switch (p.w.scale_format) {
        case QK_FORMAT_F16: return run_kind<T, ScaleKind::kF16>(p, launch);
        case QK_FORMAT_BF16: return run_kind<T, ScaleKind::kBF16>(p, launch);
        default: return run_kind<T, ScaleKind::kF32>(p, launch);
    }
}

Status run(const LinearArgs &args, const Launch &launch) {
    const Geometry &s = args.w.geometry;
    const int64_t group = s.groups_per_row == 1 ? s.k : s.group_size;
    const Device &d = launch.device;
    const auto plan =
        plan_columns_gemv({s.n, s.k, group, args.w.scale.format->bits / 8, d.multiprocessors,
                           d.shared_bytes, kClusters && d.capability >= 90});
    const ColumnsProblem p = {problem_of(args, strip_columns(plan.wide)), plan,
                              s.groups_per_row == 1 ? 31 : log2_of(s.group_size)};
    return p.type == QK_FORMAT_F16 ? run_type<F16>(p, launch) : run_type<BF16>(p, launch);
}

}  // namespace

const Kernel<LinearArgs> kLinearColumnsGemv = linear_kernel<LinearKernel::kColumnsGemv>(run);

}  // namespace qk::cuda
