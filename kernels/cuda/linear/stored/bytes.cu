// The host side of linear/stored/bytes.cuh.
#include "cuda/linear/stored/bytes.cuh"

#include "cuda/conditions.hpp"
#include "cuda/linear/kernels.hpp"
#include "cuda/lists.hpp"
#include "cuda/prim/tensor_map.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

template <class T, template <class> class Decode, int kBatches, bool kFine>
Status launch_bytes(const BytesProblem &p, const Launch &launch) {
    Shape3 shape = {dim3(uint32_t(p.plan.blocks), uint32_t(ceil_div(p.o.m, 8 * kBatches))),
                    kBytesThreads};
    shape.shared_bytes = BytesMap<kBatches, kFine, Decode<T>::kTerms == 2>::kBytes;
    return launch_kernel(launch, "linear", multiply_bytes<T, Decode<T>, kBatches, kFine>, shape, p);
}

template <class T, template <class> class Decode, int kBatches>
Status run_groups(const BytesProblem &p, bool fine, const Launch &launch) {
    return fine ? launch_bytes<T, Decode, kBatches, true>(p, launch)
                : launch_bytes<T, Decode, kBatches, false>(p, launch);
}

template <class T, template <class> class Decode>
Status run_batches(const BytesProblem &p, bool fine, const Launch &launch) {
    return p.o.m <= 8 ? run_groups<T, Decode, 1>(p, fine, launch)
                      : run_groups<T, Decode, 2>(p, fine, launch);
}

template <class T>
Status run_type(const BytesProblem &p, bool fine, const Launch &launch) {
    return p.o.w.kind == FormatKind::kS8 ? run_batches<T, SignedBytes>(p, fine, launch)
                                         : run_batches<T, TableBytes>(p, fine, launch);
}

Status run(const LinearArgs &args, const Launch &launch) {
    const DeviceGuard device(launch.device.index);  // the driver describes tensors in a context
    QK_TRY(check(device.error(), launch.error, "linear"));
    const Geometry &s = args.w.geometry;
    const bool row = s.groups_per_row == 1, fine = !row && s.group_size % kBytesColumns != 0;
    BytesProblem p = {};
    p.o = view_of(args);
    p.plan = plan_bytes(s.n, s.k, launch.device.multiprocessors);
    p.x_rows = uint32_t(min64(p.o.m, p.o.m <= 8 ? 8 : 16));
    const auto steps = uint32_t(s.group_size / (fine ? 16 : kBytesColumns));  // of a group
    p.scale_groups = row ? 0 : steps == 1 ? 1 : 0xffffffffu / steps + 1;
    p.second_shift = log2_of(args.w.scale.second_group);
    const TensorPlane codes = {args.w.data, s.k, s.n, 1}, x = {args.x.data, s.k, p.o.m, 2};
    QK_TRY(describe_tensor(codes, kBytesColumns, 16, launch.error, &p.codes));
    QK_TRY(describe_tensor(x, 64, int32_t(p.x_rows), launch.error, &p.x));
    return p.o.type == QK_FORMAT_F16 ? run_type<F16>(p, fine, launch)
                                     : run_type<BF16>(p, fine, launch);
}

static_assert(kBytesShared ==
              max64(max64(BytesMap<1, true, false>::kBytes, BytesMap<2, true, false>::kBytes),
                    max64(BytesMap<1, true, true>::kBytes, BytesMap<2, true, true>::kBytes)));

}  // namespace

const Kernel<LinearArgs> kLinearBytes = linear_kernel<LinearKernel::kBytes>(run);

}  // namespace qk::cuda
