// Products with nested scales on machines that permute bytes.
#include "cpu/x86_avx512/nested_vbmi.hpp"

#include "cpu/vector/linear_gemv.hpp"

namespace qk::cpu {
namespace {

bool can_run_nested(const LinearArgs &args, int32_t device_index) {
    return (features() & kAvx512Vbmi) != 0 && args.w.layout != nullptr && is_nested(args.w) &&
           can_run_gemv(args, device_index);
}

}  // namespace

const Kernel<LinearArgs> kLinearGemvAvx512Vbmi = {"avx512 vbmi gemv", can_run_nested, nullptr,
                                                  run_gemv};

}  // namespace qk::cpu
