// The plan of a product by the order of a backend's lists.
#include <stdio.h>

#include "backend/backend.hpp"

namespace qk {
namespace {

// The kernels of the mode where they take the case, else the exact ones.
const KernelList<LinearArgs> &list_for(const Backend &backend, const LinearArgs &args,
                                       const Device &device, uint32_t modes) {
    const KernelList<LinearArgs> *mode = nullptr;
    if (modes & QK_CONTEXT_BF16_PRODUCTS) mode = &backend.linear_bf16;
    if (modes & QK_CONTEXT_INT8_ACTIVATIONS) mode = &backend.linear_int8;
    const bool taken = mode != nullptr && pick(*mode, args, device) != nullptr;
    return taken ? *mode : backend.linear;
}

void explain(const LinearPlan &plan, const LinearArgs &args, const Allowance &allowed,
             Explanation *explanation) {
    const int64_t m = args.x.rows < INT32_MAX ? args.x.rows : INT32_MAX;
    explanation->batch_first = explanation->batch_last = int32_t(m);
    explanation->reason[0] = 0;
    if (plan.kernel == plan.fastest) return;
    snprintf(explanation->reason, sizeof(explanation->reason),
             "workspace is %zu bytes, \"%s\" needs %zu", allowed.workspace_bytes,
             plan.fastest->name, plan.fastest_bytes);
}

}  // namespace

LinearPlan plan_by_lists(const Backend &backend, const LinearArgs &args, const Device &device,
                         const Allowance &allowed, Explanation *explanation) {
    const KernelList<LinearArgs> &list = list_for(backend, args, device, allowed.modes);
    LinearPlan plan = {};
    for (int32_t i = 0; i < list.count && plan.kernel == nullptr; ++i) {
        const Kernel<LinearArgs> *const kernel = list.kernels[i];
        if (!kernel->can_run(args, device)) continue;
        const size_t bytes = workspace_of(*kernel, args, device);
        if (plan.fastest == nullptr) {
            plan.fastest = kernel;
            plan.fastest_bytes = bytes;
        }
        if (bytes <= allowed.workspace_bytes) {
            plan.kernel = kernel;
            plan.workspace_bytes = bytes;
        } else if (&list != &backend.linear) {
            break;
        }
    }
    if (explanation != nullptr) explain(plan, args, allowed, explanation);
    return plan;
}

}  // namespace qk
