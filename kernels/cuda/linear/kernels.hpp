// The kernels for products by identity, and how a folder defines its own: what a kernel needs, and
// when it is wanted, is its row of select.hpp.
#pragma once
#include "backend/backend.hpp"

namespace qk::cuda {

enum class LinearKernel : uint8_t {
    kSm90Gemv,
    kSm90FewRows,
    kSm90SomeRows,
    kSm90Rows24,
    kSm90Gemm,
    kSm90Gemm8Bit,
    kSm80Gemv,
    kSm80Gemm,
    kRepacked,
    kBytes,
    kWords,
    kColumns,
    kLanes,
    kDense,
    kGeneric,
    kCount
};

constexpr const char *kLinearNames[] = {
    "sm90 gemv",       "sm90 few rows",  "sm90 some rows", "sm90 24 rows", "sm90 gemm",
    "sm90 gemm 8-bit", "sm80 gemv",      "sm80 gemm",      "repacked",     "stored bytes",
    "stored words",    "stored columns", "stored lanes",   "dense",        "generic"};
static_assert(sizeof(kLinearNames) / sizeof(kLinearNames[0]) == size_t(LinearKernel::kCount));

// Of one kernel by itself, wanted or not: whether it takes the case, and its bytes of workspace.
bool takes(LinearKernel kernel, const LinearArgs &args, const Device &device);
size_t workspace_bytes(LinearKernel kernel, const LinearArgs &args, const Device &device);

template <LinearKernel kernel>
constexpr Kernel<LinearArgs> linear_kernel(Status (*run)(const LinearArgs &, const Launch &)) {
    return {
        kLinearNames[int(kernel)],
        [](const LinearArgs &args, const Device &device) { return takes(kernel, args, device); },
        [](const LinearArgs &args, const Device &device) {
        return workspace_bytes(kernel, args, device);
        },
        run};
}

// Backend::plan_linear.
LinearPlan plan_linear(const LinearArgs &args, const Device &device, const Allowance &allowed,
                       Explanation *explanation);

}  // namespace qk::cuda
