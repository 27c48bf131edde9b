// Repack: the same codes, scales and zeros at another layout's places; nothing is decoded.
//
// Two nibbles share a byte and any layout may give them to different threads, so codes move in two
// launches: first every code whose place is a low nibble stores its byte whole, then every other
// code adds its high nibble. Within a launch each byte has one owner. Zeros go the same way.
#include "cuda/any_weight.cuh"
#include "cuda/convert/parts.cuh"
#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

constexpr int32_t kThreads = 256;

__global__ void move_codes(const __grid_constant__ WeightView from,
                           const __grid_constant__ WeightView to, int half) {
    const Geometry &s = from.geometry;
    const int64_t count = s.n * s.k, stride = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        const int64_t row = i / s.k, column = i % s.k;
        const int64_t at = code_at(to, row, column);
        if (to.bits == 8) {
            to.data[at] = uint8_t(any_code(from, row, column));
        } else if ((at & 1) == half) {
            store_nibble(to.data, at, any_code(from, row, column), half);
        }
    }
}

// The bits of a group's scale and minimum.
struct GroupBits {
    uint32_t scale, minimum;
};

__device__ uint32_t load_bits(const WeightView &w, const uint8_t *plane, int64_t at) {
    switch (w.scale_format) {
        case QK_FORMAT_LUT8: return plane[at];
        case QK_FORMAT_F32: return load_as<uint32_t>(plane, at);
        default: return load_as<uint16_t>(plane, at);
    }
}

__device__ void store_bits(const WeightView &w, uint8_t *plane, int64_t at, uint32_t bits) {
    switch (w.scale_format) {
        case QK_FORMAT_LUT8: plane[at] = uint8_t(bits); break;
        case QK_FORMAT_F32: store_as(plane, at, bits); break;
        default: store_as(plane, at, uint16_t(bits));
    }
}

__device__ GroupBits load_group(const WeightView &w, GroupIndex i) {
    if (w.records) {
        return with_reader(w.layout, [&](auto reader) -> GroupBits {
            using R = typename decltype(reader)::Record;
            const uint8_t *const at = record_at<R>(w, i.row, i.group * R::kGroup);
            const int group = int(i.group % (R::kCodes / R::kGroup));
            return {R::scale(at, group), R::minimum(at, group)};
        });
    }
    const int64_t at = scale_at(w, i);
    return {load_bits(w, w.scale, at), w.lowered ? load_bits(w, w.minimum, at) : 0};
}

// The record's two f16, by the thread of its first group. Records that are written have none.
__device__ void move_second(const WeightView &from, const WeightView &to, GroupIndex i) {
    with_reader(from.layout, [&](auto reader) {
        using R = typename decltype(reader)::Record;
        if (!R::kNested || i.group % (R::kCodes / R::kGroup) != 0) return;
        const uint8_t *const at = record_at<R>(from, i.row, i.group * R::kGroup);
        const int64_t number = group_number(from.geometry, i) / from.second_group;
        store_as(to.second, number, f32_from_f16(R::second(at)));
        if (!R::kHasMinimum) return;
        store_as(to.minimum_second, number, f32_from_f16(R::minimum_second(at)));
    });
}

__global__ void move_groups(const __grid_constant__ WeightView from,
                            const __grid_constant__ WeightView to, int half) {
    const int64_t count = from.geometry.group_count, stride = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        const GroupIndex group = group_from_number(from.geometry, i);
        if (half == 0) {
            const GroupBits bits = load_group(from, group);
            const int64_t at = scale_at(to, group);
            store_bits(to, to.scale, at, bits.scale);
            if (to.lowered) store_bits(to, to.minimum, at, bits.minimum);
            if (from.records) move_second(from, to, group);
        }
        if (to.zero == nullptr) continue;
        const int zero = from.records ? 8 : zero_of(from, group);
        store_nibble(to.zero, zero_at(to, group), (zero - to.zero_offset) & 15, half);
    }
}

// A thread a record, which is zeroed before: one group, and no code of another record.
template <class R>
__global__ void fill_records(const __grid_constant__ WeightView from,
                             const __grid_constant__ WeightView to) {
    const Geometry &s = from.geometry;
    const int64_t count = s.group_count, stride = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        const GroupIndex group = group_from_number(s, i);
        const int64_t column = group.group * R::kCodes;
        uint8_t *const record = to.data + i * R::kBytes;
        const GroupBits bits = load_group(from, group);
        R::set_scale(record, 0, uint16_t(bits.scale));
        R::set_minimum(record, 0, uint16_t(bits.minimum));
        for (int code = 0; code < R::kCodes; ++code) {
            R::set_code(record, code, uint8_t(any_code(from, group.row, column + code)));
        }
    }
}

Status prepare_planes(const RepackArgs &args, const Launch &launch) {
    const DeviceGuard device(launch.device.index);
    QK_TRY(check(device.error(), launch.error, "repack"));
    const Weight &to = args.to;
    const Geometry &s = to.geometry;
    QK_TRY(fill_zero(launch, "repack", to.data, to.layout->data_bytes(s)));
    const int64_t scale_bytes = to.layout->scale_count(s) * (to.scale.format->bits / 8);
    for (void *const plane : {to.scale.data, to.minimum.data}) {
        if (plane != nullptr) QK_TRY(fill_zero(launch, "repack", plane, scale_bytes));
    }
    if (to.zero != nullptr) QK_TRY(fill_zero(launch, "repack", to.zero, to.layout->zero_bytes(s)));
    return copy_shared_planes(args, launch);
}

Status to_records(const RepackArgs &args, const Launch &launch) {
    const WeightView from = view_of(args.from), to = view_of(args.to);
    const Shape3 shape = {dim3(blocks_for(from.geometry.group_count, kThreads)), kThreads};
    const auto fill = [&](auto kernel) {
        return launch_kernel(launch, "repack", kernel, shape, from, to);
    };
    switch (args.to.layout->id) {
        case QK_LAYOUT_GGUF_Q4_1: return fill(fill_records<RecordQ4_1>);
        case QK_LAYOUT_GGUF_Q8_0: return fill(fill_records<RecordQ8_0>);
        case QK_LAYOUT_GGUF_MXFP4: return fill(fill_records<RecordMxfp4>);
        default: return fill(fill_records<RecordQ4_0>);  // IQ4_NL's are the same
    }
}

Status run(const RepackArgs &args, const Launch &launch) {
    QK_TRY(prepare_planes(args, launch));
    if (is_records(args.to)) return to_records(args, launch);
    const WeightView from = view_of(args.from), to = view_of(args.to);
    const Geometry &s = from.geometry;
    const Shape3 codes = {dim3(blocks_for(s.n * s.k, kThreads)), kThreads};
    const Shape3 groups = {dim3(blocks_for(s.group_count, kThreads)), kThreads};
    for (int half = 0; half < 2; ++half) {
        if (half == 0 || to.bits == 4) {
            QK_TRY(launch_kernel(launch, "repack", move_codes, codes, from, to, half));
        }
        if (half == 0 || to.zero != nullptr) {
            QK_TRY(launch_kernel(launch, "repack", move_groups, groups, from, to, half));
        }
    }
    return QK_OK;
}

bool can_run(const RepackArgs &, const Device &) { return true; }

}  // namespace

const Kernel<RepackArgs> kRepackGeneric = {"generic", can_run, nullptr, run};

}  // namespace qk::cuda
