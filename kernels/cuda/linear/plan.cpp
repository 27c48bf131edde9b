// From a product to its kernel.
#include "cuda/kernels.hpp"
#include "cuda/linear/select.hpp"

namespace qk::cuda {
namespace {

const Kernel<LinearArgs> *kernel_of(int32_t row) {
    return row < 0 ? nullptr : kLinearKernels[int(kLinearTable[row].kernel)];
}

// What qk.h counts rows of x with.
int32_t narrow(int64_t m) { return int32_t(min64(m, INT32_MAX)); }

}  // namespace

bool takes(LinearKernel kernel, const LinearArgs &args, const Device &device) {
    const Facts facts = facts_of(args, device);
    for (const Row &row : kLinearTable) {
        if (row.kernel == kernel && are_met(row.needs, facts, device)) return true;
    }
    return false;
}

size_t workspace_bytes(LinearKernel kernel, const LinearArgs &args, const Device &device) {
    for (const Row &row : kLinearTable) {
        if (row.kernel == kernel) return size_t(workspace_of(row, facts_of(args, device), device));
    }
    return 0;
}

LinearPlan plan_linear(const LinearArgs &args, const Device &device, const Allowance &allowed,
                       Explanation *explanation) {
    const Facts facts = facts_of(args, device);
    const int64_t workspace = int64_t(allowed.workspace_bytes & (SIZE_MAX >> 1));
    const Selected selected = select(facts, device, workspace);
    if (explanation != nullptr) {
        const BatchClass batch = batch_class(facts, device, workspace);
        explanation->batch_first = narrow(batch.first);
        explanation->batch_last = narrow(batch.last);
        explain(facts, device, workspace, explanation->reason, sizeof(explanation->reason));
    }
    return {kernel_of(selected.row), size_t(selected.workspace), kernel_of(selected.fastest),
            size_t(selected.fastest_workspace)};
}

}  // namespace qk::cuda
