// Dequantize the records of GGUF files: value = entry * scale as one fp32 product, less a minimum
// where there is one, rounded once.
//
//   a block takes   8192 codes, with all that is between them   -> shared memory
//                   8 codes a thread (f32 out: 4)               -> a store of 16 bytes, side by
//                   side
//
// Rows are whole records and follow each other, so that code number i is output number i. Bytes per
// output: its share of a record and the output, each moved once; each thread decodes its scale.
#include "cuda/convert/parts.cuh"
#include "cuda/kernels.hpp"
#include "cuda/records.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

constexpr int32_t kThreads = 256;
constexpr int kBlockCodes = 8192;

struct Problem {
    WeightView w;
    void *out;
    int64_t first, count;  // codes
    int64_t bytes;         // of the plane
};

template <class Reader, class Out>
__global__ void __launch_bounds__(kThreads) expand_records(const __grid_constant__ Problem p) {
    using R = typename Reader::Record;
    constexpr int kCodes = Store<Out>::kCodes;
    constexpr int kPieces = kBlockCodes / R::kCodes * R::kBytes / 16 + 1;
    constexpr int kLoads = (kPieces + kThreads - 1) / kThreads;
    __shared__ uint4 staged[kPieces];
    __shared__ float entries[16];
    const int64_t first = int64_t(blockIdx.x) * kBlockCodes;
    const int codes = int(min64(p.count - first, kBlockCodes));
    const int64_t begin = (p.first + first) / R::kCodes * R::kBytes;
    const RecordBytes bytes = {p.w.data, p.bytes, begin, begin + codes / R::kCodes * R::kBytes};
    uint4 pieces[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) pieces[i] = bytes.load(int(threadIdx.x) + i * kThreads);
    if (Reader::kKind == RecordCodes::kTable && threadIdx.x < 16) {
        entries[threadIdx.x] = p.w.entries[threadIdx.x];
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
        const int at = int(threadIdx.x) + i * kThreads;
        if (at < kPieces) staged[at] = pieces[i];
    }
    __syncthreads();
    const uint8_t *const records = reinterpret_cast<const uint8_t *>(staged) + bytes.ahead();
    uint4 *const out = static_cast<uint4 *>(p.out) + first / kCodes;
#pragma unroll 4
    for (uint32_t unit = threadIdx.x; unit < uint32_t(codes / kCodes); unit += kThreads) {
        const uint32_t code = unit * kCodes;
        float values[kCodes];
        record_values<Reader>(records + code / R::kCodes * R::kBytes, code % R::kCodes, entries,
                              values);
        __stcs(out + unit, Store<Out>::pack(values));
    }
}

template <class Out>
Status run_type(const Problem &p, const Launch &launch) {
    const Shape3 shape = {dim3(uint32_t(ceil_div(p.count, kBlockCodes))), kThreads};
    return with_reader(p.w.layout, [&](auto reader) {
        return launch_kernel(launch, "dequantize", expand_records<decltype(reader), Out>, shape, p);
    });
}

Status run(const DequantizeArgs &args, const Launch &launch) {
    const Geometry &s = args.from.geometry;
    const Problem problem = {view_of(args.from), args.to.data, args.first_row * s.k,
                             args.to.rows * s.k, args.from.layout->data_bytes(s)};
    switch (args.to.format->id) {
        case QK_FORMAT_F16: return run_type<__half>(problem, launch);
        case QK_FORMAT_BF16: return run_type<__nv_bfloat16>(problem, launch);
        default: return run_type<float>(problem, launch);
    }
}

bool can_run(const DequantizeArgs &args, const Device &) {
    const Weight &w = args.from;
    return is_compact(args.to) && is_records(w) && aligned(w.data) && aligned(args.to.data) &&
           ceil_div(args.to.rows * w.geometry.k, kBlockCodes) < (int64_t{1} << 31);
}

}  // namespace

const Kernel<DequantizeArgs> kDequantizeRecords = {"records", can_run, nullptr, run};

}  // namespace qk::cuda
