// y = x . transpose(w) + bias for 8-bit codes stored row after row, for 1 to 16 rows of x (more
// in passes), on tensor cores, on sm_90 and later.
//
// A block has a run of tiles of 16 rows of w, a warp some slices of k (128 columns each) of them:
//
//     tile of 16 rows     | slice 0 | slice 1 | ... | slice 15 | slice 16 | ...
//     4 tiles, a panel       warp 0    warp 1          warp 15    warp 0
//
// A unit (16 rows x 128 columns, 2 KiB) comes through the warp's own ring in shared memory, a box
// of the copy engine's: no warp waits for another before the sums of a panel meet. A slice of x
// stays in registers while the tiles of a panel pass by; the next one is under way.
//
//     ldmatrix hands lane 4 g + t the codes of columns 4 t .. 4 t + 3 of 16, rows g and g + 8; x
//     follows (8 bytes a lane), since the order of columns inside a product is free
//
// So four codes are one operand register pair: 5 instructions for f16, 8 for bf16 (E4M3: 3 and 9),
// nothing is rounded, and scales multiply sums in f32. Bytes per row of w: k of codes plus scales,
// read once.
#include "cuda/kernels.hpp"
#include "cuda/linear/stored/bytes_warp.cuh"
#include "cuda/prim/tensor_map.hpp"
#include "cuda/runtime.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {

namespace {

template <class T, class Decode, int kBatches, bool kFine>
__global__ void __launch_bounds__(kBytesThreads, 1)
    multiply_bytes(const __grid_constant__ BytesProblem p) {
#if __CUDA_ARCH__ >= 900
    using Warp = BytesWarp<T, Decode, kBatches, kFine>;
    using Map = typename Warp::Map;
    if (threadIdx.x == 0) {
        prefetch_map(p.x);
        prefetch_map(p.codes);
    }
    const Run block = p.plan.tiles.part(int32_t(blockIdx.x));
    const int64_t x_first = int64_t(blockIdx.y) * (8 * kBatches);
    Warp work(p, block);
    BytesPlace at = work.ahead;
    typename Warp::Scale own[Warp::kGang][Warp::kOwn];
    LaneEntries entries = {};
    float entry = 0;  // that this thread puts into the table
    if constexpr (Warp::kTable) {
        entries = load_entries(p.o.w.table);
        entry = __ldg(reinterpret_cast<const float *>(p.o.w.table) + threadIdx.x / 2);
    }
    work.init_barriers();
    work.issue_x(at.slice, int32_t(x_first), 0);
    if constexpr (!kFine) work.load_gang(own);
#pragma unroll 1
    for (uint32_t i = 0; i < Map::kDepth; ++i) {
        work.issue(0);
        work.slot = i + 1 < Map::kDepth ? i + 1 : 0;
    }
    if (p.o.w.scale_format == QK_FORMAT_LUT8) {
        if (threadIdx.x < 256) {
            const auto *const codes = reinterpret_cast<const uint32_t *>(p.o.w.code);
            shared_store_4(Map::kScaleCodes + threadIdx.x * 4, __ldg(codes + threadIdx.x));
        }
        work.scale_bias = __ldg(reinterpret_cast<const float *>(p.o.w.bias));
        if (!Warp::kTable) __syncthreads();
    }
    if constexpr (Warp::kTable) {
        if (std::is_same_v<T, F16>) work.unit = table_unit<14>(entries);
        work.finite = finite_code(entries) * 0x01010101u;
        if (!fill_table<T>(entries, entry, work.unit, nullptr)) {
            work.drain();
            const LinearView &o = p.o;
            return multiply_slowly<T>(
                o.w, o.x, o.bias_type, o.bias, o.y, o.w.geometry.n,
                {int64_t(block.first) * 16, int64_t(block.last) * 16, x_first,
                 min64(x_first + 8 * kBatches, o.m), int32_t(threadIdx.x) / 32, kBytesWarps});
        }
    }
#pragma unroll 1
    for (at.panel = 0; at.panel < p.plan.panels; ++at.panel) {
        at.slice = work.part;
        at.enter(p.plan, block, work.row_part);
        work.add_panel(at, x_first, own);
#pragma unroll
        for (int batch = 0; batch < kBatches; ++batch) {
            const int32_t number = at.panel % work.meeting(), end = at.panel + 1;
            // The last sums have been read.
            if (number == 0 && at.panel + batch > 0) __syncthreads();
            work.keep_sums(batch, at.tiles, number);
            if (number + 1 < work.meeting() && end < p.plan.panels) continue;
            __syncthreads();
            store_panels<T, Map>(p, block, {at.panel - number, end}, x_first + batch * 8);
        }
    }
#endif
}

template <class T, template <class> class Decode, int kBatches, bool kFine>
Status launch_bytes(const BytesProblem &p, const Launch &launch) {
    Shape3 shape = {dim3(uint32_t(p.plan.blocks), uint32_t(ceil_div(p.o.m, 8 * kBatches))),
                    kBytesThreads};
    shape.shared_bytes = BytesMap<kBatches, kFine, Decode<T>::kTerms == 2>::kBytes;
    return launch_kernel(launch, "linear", multiply_bytes<T, Decode<T>, kBatches, kFine>, shape, p);
}

template <class T, template <class> class Decode>
Status run_batches(const BytesProblem &p, bool fine, const Launch &launch) {
    if (p.o.m <= 8) {
        return fine ? launch_bytes<T, Decode, 1, true>(p, launch)
                    : launch_bytes<T, Decode, 1, false>(p, launch);
    }
    return fine ? launch_bytes<T, Decode, 2, true>(p, launch)
                : launch_bytes<T, Decode, 2, false>(p, launch);
}

template <class T>
Status run_type(const BytesProblem &p, bool fine, const Launch &launch) {
    if (p.o.w.format == QK_FORMAT_E4M3) return run_batches<T, E4m3Bytes>(p, fine, launch);
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
    while (p.column_shift < 3 && p.o.m > int64_t{1} << p.column_shift) ++p.column_shift;
    const auto steps = uint32_t(s.group_size / (fine ? 16 : kBytesColumns));  // of a group
    p.scale_groups = row ? 0 : steps == 1 ? 1 : 0xffffffffu / steps + 1;
    p.second_shift = second_shift_of(args.w.scale);
    const TensorPlane codes = {args.w.data, s.k, s.n, 1, s.k};
    const TensorPlane x = {args.x.data, s.k, p.o.m, 2, s.k * 2};
    QK_TRY(describe_tensor(codes, kBytesColumns, 16, launch.error, &p.codes));
    QK_TRY(describe_tensor(x, 64, int32_t(p.x_rows), launch.error, &p.x));
    return (p.o.type == QK_FORMAT_F16 ? run_type<F16> : run_type<BF16>)(p, fine, launch);
}

static_assert(kBytesShared ==
              max64(max64(BytesMap<1, true, false>::kBytes, BytesMap<2, true, false>::kBytes),
                    max64(BytesMap<1, true, true>::kBytes, BytesMap<2, true, true>::kBytes)));

}  // namespace

const Kernel<LinearArgs> kLinearBytes = linear_kernel<LinearKernel::kBytes>(run);

}  // namespace qk::cuda
