// Batches in bf16 mode: x and weights rounded to bf16, two columns a factor, sums in f32.
#include "cpu/linear/batch.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/x86_avx512/bf16_factors.hpp"

namespace qk::cpu {
namespace {

Status run(const LinearArgs &args, const Launch &launch) {
    run_strips<Avx512, SlabDecoder<Avx512>, Bf16Factors>(args, launch);
    return QK_OK;
}

}  // namespace

const Kernel<LinearArgs> kLinearBf16Batch = linear_kernel<row_of("avx512 bf16 batch")>(run);

}  // namespace qk::cpu
