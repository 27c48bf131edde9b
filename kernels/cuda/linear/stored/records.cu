// y = x . transpose(w) + bias straight from the records of a GGUF file, few rows of x, any type of
// x, in f32 on plain lanes. Weights are those that qk_dequantize gives in f32.
//
//   warp: a row of w, 1 or 4 rows of x      | unit 0 | unit 1 | .. | unit 31 | unit 32 | ..
//   unit: 8 codes of one group                lane 0   lane 1        lane 31   lane 0
//
// A warp copies 2048 codes of its row, with all that is between them, to shared memory, and loads
// the next ones while it decodes these. At the end lanes fold by halves, so y depends on k alone.
// Bytes per output row: the records of a row, once for 4 rows of x.
#include "cuda/kernels.hpp"
#include "cuda/linear/stored/floats_of_x.cuh"
#include "cuda/records.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

constexpr int kWarps = 8, kUnit = 8, kChunk = 2048;  // rows of w a block; codes
constexpr int32_t kThreads = kWarps * 32;

struct Problem : LinearView {
    int64_t bytes;  // of w
};

template <class Reader, int kX>
__global__ void __launch_bounds__(kThreads) multiply_records(const __grid_constant__ Problem p) {
    using R = typename Reader::Record;
    constexpr int kBytes = kChunk / R::kCodes * R::kBytes, kPieces = kBytes / 16 + 1;
    constexpr int kLoads = (kPieces + 31) / 32;
    __shared__ uint4 staged[kWarps][kPieces];
    __shared__ float entries[16];
    if (threadIdx.x < 16) entries[threadIdx.x] = p.w.entries[threadIdx.x];
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const int64_t n = p.w.geometry.n, k = p.w.geometry.k, pitch = k / R::kCodes * R::kBytes;
    const int64_t wanted = int64_t(blockIdx.x) * kWarps + warp, row = min64(wanted, n - 1);
    const int64_t x_first = int64_t(blockIdx.y) * kX;
    const auto bytes_of = [&](int64_t column) {
        const int64_t first = row * pitch + column / R::kCodes * R::kBytes;
        return RecordBytes{p.w.data, p.bytes, first, min64(first + kBytes, (row + 1) * pitch)};
    };
    uint4 pieces[kLoads];
    const auto load = [&](int64_t column) {
#pragma unroll
        for (int i = 0; i < kLoads; ++i) pieces[i] = bytes_of(column).load(lane + i * 32);
    };
    load(0);
    float sum[kX] = {};
    for (int64_t column = 0; column < k; column += kChunk) {
        __syncthreads();  // the last chunk has been decoded
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            if (lane + i * 32 < kPieces) staged[warp][lane + i * 32] = pieces[i];
        }
        __syncthreads();
        if (column + kChunk < k) load(column + kChunk);
        const uint8_t *const records =
            reinterpret_cast<const uint8_t *>(staged[warp]) + bytes_of(column).ahead();
        const uint32_t units = uint32_t(min64(k - column, kChunk)) / kUnit;
#pragma unroll 2
        for (uint32_t unit = uint32_t(lane); unit < units; unit += 32) {
            const uint32_t code = unit * kUnit;
            float value[kUnit];
            record_values<Reader>(records + code / R::kCodes * R::kBytes, code % R::kCodes, entries,
                                  value);
#pragma unroll
            for (int i = 0; i < kX; ++i) {
                float x[kUnit];
                load_eight(p, min64(x_first + i, p.m - 1) * k + column + code, x);
#pragma unroll
                for (int c = 0; c < kUnit; ++c) sum[i] = __fmaf_rn(value[c], x[c], sum[i]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < kX; ++i) {
        float y = sum[i];
        for (unsigned half = 16; half > 0; half /= 2) {
            y = __fadd_rn(y, __shfl_down_sync(~0u, y, half, 32));
        }
        if (lane != 0 || wanted >= n || x_first + i >= p.m) continue;
        store_output(p, p.type, row, (x_first + i) * n + row, y);
    }
}

Status run(const LinearArgs &args, const Launch &launch) {
    constexpr int kMany = 4;
    const Problem p = {view_of(args), args.w.layout->data_bytes(args.w.geometry)};
    const uint32_t blocks = uint32_t(ceil_div(p.w.geometry.n, kWarps));
    return with_reader(p.w.layout, [&](auto reader) {
        using Reader = decltype(reader);
        if (p.m == 1) {
            return launch_kernel(launch, "linear", multiply_records<Reader, 1>,
                                 {dim3(blocks), kThreads}, p);
        }
        const Shape3 many = {dim3(blocks, uint32_t(ceil_div(p.m, kMany))), kThreads};
        return launch_kernel(launch, "linear", multiply_records<Reader, kMany>, many, p);
    });
}

}  // namespace

const Kernel<LinearArgs> kLinearRecords = linear_kernel<LinearKernel::kRecords>(run);

}  // namespace qk::cuda
