// y = x . transpose(w) + bias for weights as checkpoints store them, from more rows of x than the
// kernels of direct/ like: a slab of rows is repacked into the workspace, 4 bits in, 4 bits out,
// and what multiplies packed weights does so with it; next slab. The workspace holds what one
// slab has as codes, scales and zeros; tables and second scales stay where they are.
//
// A row of y has the bits that the packed weight would give: the cut follows from all of n, and
// slabs are whole numbers of every block of it. The product may not start early, as it may behind
// kernels that write no weights (docs/decisions.md, 17): its launch waits for the repacking.
#include "backend/registry.hpp"
#include "cuda/kernels.hpp"
#include "cuda/linear/slabs.hpp"
#include "cuda/runtime.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

struct Slab {
    int64_t first, rows;
};

const Layout *packed_layout(const Weight &w) {
    return find_layout(kCudaBackend.packed_layout(*w.format), w.format->bits);
}

PackedPlanes planes_of(const Weight &w, int64_t rows) {
    return packed_planes(*packed_layout(w), w.geometry, rows, w.scale.format->bits,
                         w.zero != nullptr);
}

int64_t slab_rows(const Weight &w) {
    return packed_slab_rows(*packed_layout(w), w.geometry, w.geometry.n, w.scale.format->bits,
                            w.zero != nullptr);
}

// Rows of w as they will be stored in the workspace. `room` may be null: only asked about.
Weight packed_slab(const Weight &w, Slab slab, void *room) {
    const PackedPlanes planes = planes_of(w, slab.rows);
    const auto plane = [&](int64_t at) {
        return reinterpret_cast<void *>(reinterpret_cast<uintptr_t>(room) + uintptr_t(at));
    };
    Weight to = w;
    to.layout = packed_layout(w);
    to.geometry = rows_of(w.geometry, slab.rows);
    to.data = plane(0);
    to.scale.data = plane(planes.scale);
    to.zero = w.zero == nullptr ? nullptr : plane(planes.zero);
    if (has_coded_scales(w.scale)) {
        const int64_t seconds = slab.first * w.geometry.groups_per_row / w.scale.second_group;
        to.scale.second = static_cast<float *>(w.scale.second) + seconds;
    }
    return to;
}

// The product with packed rows; y's rows stay as far apart as they are.
LinearArgs slab_product(const LinearArgs &args, Slab slab, void *room, Dense *bias) {
    LinearArgs product = args;
    product.w = packed_slab(args.w, slab, room);
    product.y.data = static_cast<uint16_t *>(args.y.data) + slab.first;
    if (args.bias != nullptr) {
        *bias = *args.bias;
        bias->data = static_cast<uint8_t *>(bias->data) + slab.first * (bias->format->bits / 8);
        product.bias = bias;
    }
    return product;
}

Status run(const LinearArgs &args, const Launch &launch) {
    const int64_t n = args.w.geometry.n, step = slab_rows(args.w);
    Launch behind = launch;
    behind.in_order = true;
    for (int64_t first = 0; first < n; first += step) {
        Dense bias = {};
        const Slab slab = {first, min64(step, n - first)};
        const LinearArgs product = slab_product(args, slab, launch.workspace, &bias);
        QK_TRY(kRepackTiles.run({args.w, product.w, first, true}, launch));
        QK_TRY(plan_linear(product, launch.device, {}, nullptr).kernel->run(product, behind));
    }
    return QK_OK;
}

}  // namespace

const Kernel<LinearArgs> kLinearRepacked = linear_kernel<LinearKernel::kRepacked>(run);

}  // namespace qk::cuda
