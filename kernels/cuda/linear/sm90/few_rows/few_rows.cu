// The host side of the kernel for small batches (linear/sm90/few_rows/kernel.cuh): which cases it
// takes.
#include "cuda/linear/sm90/some_rows/plan.hpp"
#include "cuda/linear/sm90/few_rows/ring.cuh"
#include "cuda/linear/sm90/few_rows/instances.hpp"
#include "cuda/lists.hpp"

namespace qk::cuda {
namespace {

Status run(const LinearArgs &args, const Launch &launch) {
    return instance_for<FewRows>(codes_of(args.w), args.x.format->id)(args, launch);
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
    using Largest = RowsMap<RingLut4<F16>, ScaleKind::kF32, 1, 2>;
    const RowsPlan plan = plan_rows(s.n, s.k / kRowsColumns, kRowsStep, device.multiprocessors, 1);
    return Largest::kSums + 1024 + Largest::kStageSums + second_bytes_of(args.w, plan) <=
           uint32_t(device.shared_bytes);
}

}  // namespace

const Kernel<LinearArgs> kLinearRows = {"sm90 few rows", can_run, nullptr, run};

}  // namespace qk::cuda
