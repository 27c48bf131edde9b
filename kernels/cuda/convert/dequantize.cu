// Dequantize, any format x layout x scale kind x type: value = entry * scale as one fp32 product,
// less a minimum where there is one, rounded once. One thread an element; right everywhere, fast
// nowhere.
#include "cuda/any_weight.cuh"
#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

constexpr int32_t kThreads = 256;

__global__ void dequantize_elements(const __grid_constant__ WeightView w, qk_format to, void *out,
                                    int64_t row_step, int64_t column_step, int64_t first_row,
                                    int64_t rows, const void *order) {
    __shared__ float entries[256];
    fill_entries(w, entries);
    const Geometry &s = w.geometry;
    const int64_t count = rows * s.k, stride = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        const int64_t row = first_row + i / s.k, column = i % s.k;
        const GroupValues group = any_group(w, group_of(s, row, column));
        const float value = any_value(w, entries, any_code(w, row, column), group);
        const int64_t to_column =
            order == nullptr ? column : ordered_column(load_as<int32_t>(order, column), s.k);
        store_float(to, out, i / s.k * row_step + to_column * column_step, value);
    }
}

Status run(const DequantizeArgs &args, const Launch &launch) {
    const int64_t count = args.to.rows * args.from.geometry.k;
    const Dense &to = args.to;
    const int64_t column_stride = to.stride != 0 ? to.stride : to.rows;
    return launch_kernel(
        launch, "dequantize", dequantize_elements, {dim3(blocks_for(count, kThreads)), kThreads},
        view_of(args.from), to.format->id, to.data, to.column_major ? 1 : row_stride(to),
        to.column_major ? column_stride : 1, args.first_row, to.rows, args.from.order);
}

bool can_run(const DequantizeArgs &, const Device &) { return true; }

}  // namespace

const Kernel<DequantizeArgs> kDequantizeGeneric = {"generic", can_run, nullptr, run};

}  // namespace qk::cuda
