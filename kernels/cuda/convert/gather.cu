// Gathers columns: to[i, j] = from[i, order[j]], x of a product whose weight has an order. It
// stands between two products, so what it takes is paid for by each: the order is read while the
// kernel in front still runs, and the product behind starts on its weights while this one runs.
//
// Few rows: a thread has one column, and a block 256 of up to 4 rows; x comes from the L2 by
// elements. More rows: a block copies one row (4 where rows are many) to shared memory first,
// because the L2 gives 32 bytes for each element asked for; where rows do not fill the GPU, blocks
// share one.
#include "cuda/kernels.hpp"
#include "cuda/prim/mma.cuh"
#include "cuda/prim/shared.cuh"
#include "cuda/runtime.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

constexpr int32_t kFewThreads = 256, kFewRows = 4;    // of a block
constexpr int32_t kManyThreads = 512, kManyRows = 4;  // the same; kManyRows at most
constexpr int32_t kUnrolled = 4;
constexpr int64_t kStaged = 17;       // rows of x from which on they are copied first
constexpr int64_t kManyBlocks = 512;  // that fill any GPU: with more, a block has several rows

struct Gather {
    const void *from, *order;
    void *to;
    int64_t rows, columns, from_stride;
};

template <class T, bool kAligned>
__device__ T load(const void *data, int64_t index) {
    if constexpr (kAligned) return static_cast<const T *>(data)[index];
    return load_as<T>(data, index);
}

template <class T, bool kAligned>
__device__ void store(void *data, int64_t index, T value) {
    if constexpr (kAligned) {
        static_cast<T *>(data)[index] = value;
    } else {
        store_as(data, index, value);
    }
}

template <bool kAligned>
__device__ int64_t column_of(const Gather &g, int64_t stored) {
    return ordered_column(load<int32_t, kAligned>(g.order, stored), g.columns);
}

template <class T, bool kAligned>
__global__ void __launch_bounds__(kFewThreads) gather_few(const __grid_constant__ Gather g) {
    allow_next_kernel();
    const int64_t stored = int64_t(blockIdx.x) * kFewThreads + threadIdx.x;
    const bool inside = stored < g.columns;
    const int64_t column = inside ? column_of<kAligned>(g, stored) : 0;
    wait_for_previous_kernel();  // x may be its y, and what it reads may be where x goes
    if (!inside) return;
    const int64_t first = int64_t(blockIdx.y) * kFewRows;
#pragma unroll
    for (int64_t row = first; row < min64(first + kFewRows, g.rows); ++row) {
        const T value = load<T, kAligned>(g.from, row * g.from_stride + column);
        store<T, kAligned>(g.to, row * g.columns + stored, value);
    }
}

// Four values side by side, loaded and stored as one.
template <class T>
struct alignas(4 * sizeof(T)) Four {
    T value[4];
};

// A block has `rows` rows and, of them, a part of the columns: blockIdx.y of gridDim.y. k is a
// multiple of 8, all planes are aligned to 16 bytes.
template <class T>
__global__ void __launch_bounds__(kManyThreads)
    gather_many(const __grid_constant__ Gather g, int32_t block_rows) {
    QK_LAUNCH_SHARED(memory);
    T *const staged = reinterpret_cast<T *>(memory);
    allow_next_kernel();
    const int64_t first = int64_t(blockIdx.x) * block_rows, k = g.columns;
    const int32_t rows = int32_t(min64(block_rows, g.rows - first));
    const int32_t vectors = int32_t(rows * k * int64_t(sizeof(T)) / 16);
    const auto *const from =
        static_cast<const uint4 *>(g.from) + first * k * int64_t(sizeof(T)) / 16;
    wait_for_previous_kernel();
    for (int32_t i = int32_t(threadIdx.x); i < vectors; i += kUnrolled * kManyThreads) {
        uint4 ahead[kUnrolled];  // one load after the other would wait for it
#pragma unroll
        for (int u = 0; u < kUnrolled; ++u) {
            if (i + u * kManyThreads < vectors) ahead[u] = from[i + u * kManyThreads];
        }
#pragma unroll
        for (int u = 0; u < kUnrolled; ++u) {
            if (i + u * kManyThreads < vectors) memory[i + u * kManyThreads] = ahead[u];
        }
    }
    __syncthreads();
    const auto *const order = static_cast<const Four<int32_t> *>(g.order);
    auto *const to = static_cast<Four<T> *>(g.to) + first * (k / 4);
    const int64_t fours = ceil_div(k / 4, gridDim.y), end = min64(k / 4, (blockIdx.y + 1) * fours);
#pragma unroll 2
    for (int64_t at = blockIdx.y * fours + threadIdx.x; at < end; at += kManyThreads) {
        const Four<int32_t> columns = order[at];
        for (int32_t row = 0; row < rows; ++row) {
            Four<T> values;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                values.value[i] = staged[row * k + ordered_column(columns.value[i], k)];
            }
            to[row * (k / 4) + at] = values;
        }
    }
}

template <class T, bool kAligned>
Status launch_few(const Gather &g, const Launch &launch) {
    constexpr int64_t kGridRows = 65535 * int64_t{kFewRows};  // that one launch has room for
    const int64_t row_bytes = g.columns * int64_t(sizeof(T));
    const uint32_t columns = uint32_t(ceil_div(g.columns, kFewThreads));
    for (int64_t first = 0; first < g.rows; first += kGridRows) {
        Gather part = g;
        part.from = static_cast<const char *>(g.from) + first * g.from_stride * int64_t(sizeof(T));
        part.to = static_cast<char *>(g.to) + first * row_bytes;
        part.rows = min64(kGridRows, g.rows - first);
        Shape3 shape = {dim3(columns, uint32_t(ceil_div(part.rows, kFewRows))), kFewThreads};
        shape.overlaps = true;
        QK_TRY(launch_kernel(launch, "gather", gather_few<T, kAligned>, shape, part));
    }
    return QK_OK;
}

template <class T>
Status launch_many(const Gather &g, const Launch &launch) {
    const int64_t row_bytes = g.columns * int64_t(sizeof(T));
    const int64_t fit = min64(kManyRows, launch.device.shared_bytes / row_bytes);
    const int32_t rows = int32_t(max64(1, min64(fit, g.rows / kManyBlocks)));
    const int64_t blocks = ceil_div(g.rows, rows);
    const int64_t parts = min64(ceil_div(2 * launch.device.multiprocessors, blocks),
                                ceil_div(g.columns, 4 * kManyThreads));
    Shape3 shape = {dim3(uint32_t(blocks), uint32_t(parts)), kManyThreads};
    shape.shared_bytes = size_t(rows * row_bytes);
    shape.overlaps = true;
    return launch_kernel(launch, "gather", gather_many<T>, shape, g, rows);
}

template <class T>
Status run_type(const Gather &g, const Launch &launch) {
    const bool vectors = aligned(g.from) && aligned(g.to) && aligned(g.order) &&
                         g.columns % 8 == 0 && g.from_stride == g.columns;
    const bool fits = g.columns * int64_t(sizeof(T)) <= launch.device.shared_bytes;
    if (g.rows >= kStaged && vectors && fits) return launch_many<T>(g, launch);
    const bool whole =
        aligned(g.from, sizeof(T)) && aligned(g.to, sizeof(T)) && aligned(g.order, 4);
    return whole ? launch_few<T, true>(g, launch) : launch_few<T, false>(g, launch);
}

Status run(const GatherArgs &args, const Launch &launch) {
    const Gather g = {args.from.data, args.order,        args.to.data,
                      args.from.rows, args.from.columns, row_stride(args.from)};
    return args.from.format->bits == 16 ? run_type<uint16_t>(g, launch)
                                        : run_type<uint32_t>(g, launch);
}

bool can_run(const GatherArgs &, const Device &) { return true; }

}  // namespace

const Kernel<GatherArgs> kGatherColumns = {"columns", can_run, nullptr, run};

}  // namespace qk::cuda
