// Every kernel's name, for tools/test kernel: backend, operation, name, and whether it runs here.
#include <set>

#include "harness/only.hpp"
#include "kernel/instruction_sets.hpp"
#ifdef QK_CUDA_SIMULATED
#include "cuda/simulated/absent.hpp"
#endif

namespace {

// "" where the kernel runs here, else what it needs.
template <class Kernel>
std::string missing(const qk::Backend &backend, const Kernel &kernel) {
    if (backend.device_count() == 0) return "needs a GPU";
#ifdef QK_CUDA_SIMULATED
    if (backend.device == QK_DEVICE_CUDA) {
        return qk::cuda::is_absent(kernel) ? "needs a GPU: not on simulated threads" : "";
    }
#endif
    if (backend.device != QK_DEVICE_CPU) return "";
    const bool here = qk::has(qk::device_at(backend, 0), sweep::sets_of(kernel.name));
    return here ? "" : "needs instructions that this processor has not";
}

TEST(KernelNames, AreOneEachInAList) {
    std::set<std::string> seen;
    harness::for_each_name(
        [&](const qk::Backend &backend, const char *operation, const auto &kernel) {
        ASSERT_NE(kernel.name, nullptr);
        const std::string id = std::string(backend.name) + "\t" + operation + "\t" + kernel.name;
        EXPECT_TRUE(seen.insert(id).second) << id << " is there twice";
        std::printf("kernel\t%s\t%s\n", id.c_str(), missing(backend, kernel).c_str());
    });
    EXPECT_GE(seen.size(), 6u);
}

}  // namespace
