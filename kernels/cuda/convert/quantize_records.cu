// Quantize into the records of a GGUF file, by docs/formats.md's rules: the bytes are the CPU's. A
// thread makes a record.
#include "backend/quantize_rule.hpp"
#include "cuda/kernels.hpp"
#include "cuda/records.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

constexpr int kThreads = 128;

struct Problem {
    QuantizeRule rule;
    qk_format from_format;
    const void *from;
    uint8_t *to;
    int64_t records;
};

template <class R>
__global__ void __launch_bounds__(kThreads) fill_records(const __grid_constant__ Problem p) {
    const int64_t step = int64_t(gridDim.x) * kThreads;
    for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < p.records; i += step) {
        float x[R::kCodes];
        GroupRange range;
        for (int c = 0; c < R::kCodes; ++c) {
            x[c] = load_float(p.from_format, p.from, i * R::kCodes + c);
            range.add(x[c]);
        }
        for (int c = R::kCodes - 1; c >= 0; --c) {
            if (magnitude_of(x[c]) == range.absmax) range.most = x[c] + 0.0f;
        }
        const GroupScale group = scale_of_range(p.rule, range, R::kCodes, 1.0f);
        uint8_t record[R::kBytes] = {};
        R::set_scale(record, 0, f16_from_f32(group.scale));
        for (int c = 0; c < R::kCodes; ++c) {
            R::set_code(record, c, code_of_value(p.rule, x[c], group, nullptr));
        }
        for (int byte = 0; byte < R::kBytes; ++byte) p.to[i * R::kBytes + byte] = record[byte];
    }
}

Status run(const QuantizeArgs &args, const Launch &launch) {
    const Weight &w = args.to;
    const Problem problem = {rule_of(args), args.from.format->id, args.from.data,
                             static_cast<uint8_t *>(w.data), w.geometry.group_count};
    const Shape3 shape = {dim3(blocks_for(problem.records, kThreads)), kThreads};
    return w.layout->id == QK_LAYOUT_GGUF_Q8_0
               ? launch_kernel(launch, "quantize", fill_records<RecordQ8_0>, shape, problem)
               : launch_kernel(launch, "quantize", fill_records<RecordQ4_0>, shape, problem);
}

// Those that have a rule.
bool can_run(const QuantizeArgs &args, const Device &) {
    const qk_layout layout = args.to.layout->id;
    return layout == QK_LAYOUT_GGUF_Q4_0 || layout == QK_LAYOUT_GGUF_Q8_0;
}

}  // namespace

const Kernel<QuantizeArgs> kQuantizeRecords = {"records", can_run, nullptr, run};

}  // namespace qk::cuda
