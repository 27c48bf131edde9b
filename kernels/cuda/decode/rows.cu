// The host side of the kernel for small batches (decode/rows_kernel.cuh): which cases it takes.
#include "cuda/choose/slices.hpp"
#include "cuda/decode/rows.cuh"
#include "cuda/decode/rows_run.hpp"
#include "cuda/lists.hpp"

namespace qk::cuda {
namespace {

Status run(const LinearArgs &args, const Launch &launch) {
    const bool numbers = args.w.layout->id == kLayoutTiles;
    if (args.x.format->id == QK_FORMAT_F16) {
        return numbers ? run_rows_numbers_f16(args, launch) : run_rows_pairs_f16(args, launch);
    }
    return numbers ? run_rows_numbers_bf16(args, launch) : run_rows_pairs_bf16(args, launch);
}

bool can_run(const LinearArgs &args, const Device &device) {
    if (args.x.rows < 2 || args.x.rows > 65535 * 8 || !fits_ring(args, device)) return false;
    if (reinterpret_cast<uintptr_t>(args.y.data) % 2 != 0) return false;
    const Geometry &s = args.w.geometry;
    if (prefers_slices(s.n, s.k, is_nested(args.w), device.multiprocessors) &&
        kLinearSlices.can_run(args, device)) {
        return false;
    }
    // Room for the sums of one stage beside the largest of all maps.
    using Largest = RowsMap<RingTable<F16>, ScaleKind::kF32, 1, 2>;
    const RowsPlan plan = plan_rows(s.n, s.k / kRowsColumns, kRowsStep, device.multiprocessors, 1);
    return Largest::kSums + 1024 + Largest::kStageSums + second_bytes_of(args.w, plan) <=
           uint32_t(device.shared_bytes);
}

}  // namespace

const Kernel<LinearArgs> kLinearRows = {"rows", can_run, nullptr, run};

}  // namespace qk::cuda
