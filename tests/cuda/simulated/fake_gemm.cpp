// Stands in for the matrix kernel on wgmma: takes packed tiles where a test says so, and adds in
// f32 along k.
#include "cuda/lists.hpp"
#include "cuda/runtime.hpp"
#include "cuda/simulated/fake_library.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

void multiply(LinearView p, int64_t pitch) {
    const Geometry &s = p.w.geometry;
    float entries[16];
    for (int code = 0; code < 16; ++code) {
        entries[code] = p.w.kind == FormatKind::kTable ? p.w.entries[code] : float(code);
    }
    const int64_t at = int64_t(blockIdx.x) * 32 + threadIdx.x;
    if (at >= p.m * s.n) return;
    const int64_t row = at % s.n, x_row = at / s.n;
    float sum = 0;
    for (int64_t c = 0; c < s.k; ++c) {
        const GroupIndex group = {row, c / s.group_size};
        const float zero = p.w.kind == FormatKind::kTable ? 0 : float(zero_of(p.w, group));
        const float value = (entries[code_of(p.w, row, c)] - zero) * scale_of(p.w, group);
        sum += value * load_float(p.type, p.x, x_row * s.k + c);
    }
    if (p.bias != nullptr) sum += load_float(p.bias_type, p.bias, row);
    store_float(p.type, p.y, x_row * pitch + row, sum);
}

Status run(const LinearArgs &args, const Launch &launch) {
    ++fake_library::state.tile_products;
    if (!launch.in_order) ++fake_library::state.early_products;
    const int64_t blocks = ceil_div(args.x.rows * args.w.geometry.n, 32);
    constexpr size_t kShared = 200 * 1024;  // as the real one
    return launch_kernel(launch, "linear", multiply, {dim3(uint32_t(blocks)), 32, kShared, true},
                         view_of(args), args.y.columns);
}

bool can_run(const LinearArgs &args, const Device &) {
    if (!fake_library::state.tiles || is_dense(*args.w.format)) return false;
    const qk_layout layout = args.w.layout->id;
    return (layout == kLayoutTiles || layout == kLayoutTilesPairs) && args.x.rows > 16 &&
           args.x.format->id != QK_FORMAT_F32;
}

}  // namespace

const Kernel<LinearArgs> kLinearGemm = {"gemm", can_run, nullptr, run};

}  // namespace qk::cuda
