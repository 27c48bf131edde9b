#include "cpu/x86_avx512/codes.hpp"
#include "cpu/x86_avx512/chunk_bytes.hpp"
#include "cpu/x86_avx512/nested_widener.hpp"
#include "cpu/x86_avx512/turn.hpp"

#include "cpu/vector/look_up_bytes.hpp"

namespace qk::cpu {
namespace {

inline LookUpBytes byte_looker(const Device &device) {
    return has(device, kAvx512Vbmi) ? kLookUpBytesVbmi : look_up_wide;
}

inline LookUpHalves halves_looker(const Device &device) {
    return has(device, kAvx512Vbmi) ? kLookUpHalvesVbmi : nullptr;
}

}  // namespace
}  // namespace qk::cpu

#include "cpu/vector/dequantize.hpp"
#include "cpu/vector/repack.hpp"

namespace qk::cpu {

const Kernel<DequantizeArgs> kDequantizeAvx512 = {"avx512", can_run_dequantize, nullptr,
                                                  run_dequantize};
const Kernel<RepackArgs> kRepackAvx512 = {"avx512", can_run_repack, nullptr, run_repack};

}  // namespace qk::cpu
