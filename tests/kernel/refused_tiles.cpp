// What runs on a processor with AMX whose tiles the system keeps back. A filter of system calls
// says no in a process of its own, so that a system that would say yes is tested too.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "cpu/linear/select.hpp"
#include "kernel/weights.hpp"

namespace {

constexpr int kNoFilter = 77;  // exit status

bool refuse_tiles() {
    constexpr uint32_t kAskForTiles = 0x1023;  // ARCH_REQ_XCOMP_PERM
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kAskForTiles, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter = {sizeof program / sizeof *program, program};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

std::vector<uint8_t> result(const qk::LinearArgs &args, const TestDense &y,
                            const qk::Device &device, uint32_t mode) {
    memset(y.data(), 0xa5, y.bytes());
    const qk::LinearPlan plan = qk::cpu::plan_linear(args, device, {mode, SIZE_MAX}, nullptr);
    EXPECT_EQ(std::string(plan.kernel->name).find("amx"), std::string::npos) << plan.kernel->name;
    qk::Launch launch = test_launch(1, device);
    std::vector<uint8_t> room(plan.fastest_bytes);
    launch.workspace = room.data();
    launch.workspace_bytes = room.size();
    EXPECT_EQ(plan.kernel->run(args, launch), QK_OK);
    return {y.data(), y.data() + y.bytes()};
}

// A product, and one with experts whose rows are gathered: what they are without AMX.
void multiply(bool with_experts, uint32_t mode, bool slow_bf16_vectors) {
    constexpr int64_t kRows = 96, kExperts = 3, kOfExpert = 32, kK = 128;
    const WeightCase c = {
        QK_FORMAT_NF4, QK_FORMAT_F32,      qk::kLayoutRows8, kExperts * kOfExpert, kK, 64,
        false,         QK_GROUPING_ALONG_K};
    const TestWeight w(c, 7);
    std::vector<int32_t> ids(kRows);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = int32_t(i % kExperts);
    qk::Experts experts = {};
    experts.expert = ids.data();
    experts.tokens = kRows, experts.slots = 1, experts.count = kExperts;
    const TestDense x(QK_FORMAT_F32, kRows, kK, 5);
    const TestDense y(QK_FORMAT_F32, kRows, with_experts ? kOfExpert : kExperts * kOfExpert, 6);
    qk::LinearArgs args = {x.view(), w.view(), nullptr, y.view()};
    if (with_experts) args.experts = &experts;
    qk::Device device = qk::device_at(qk::kCpuBackend, 0);
    device.slow_bf16_vectors = slow_bf16_vectors;
    device.instruction_sets &= ~(QK_ISA_AMX_INT8 | QK_ISA_AMX_BF16);
    const std::vector<uint8_t> expected = result(args, y, device, mode);
    EXPECT_NE(expected, std::vector<uint8_t>(y.bytes(), 0xa5));
    device.instruction_sets |= QK_ISA_AMX_INT8 | QK_ISA_AMX_BF16;
    EXPECT_EQ(result(args, y, device, mode), expected)
        << "experts " << with_experts << " mode " << mode << " slow " << slow_bf16_vectors;
}

[[noreturn]] void run_refused() {
    if (!refuse_tiles()) exit(kNoFilter);
    EXPECT_FALSE(qk::cpu::tiles_allowed());
    for (const bool with_experts : {false, true}) {
        for (const bool slow : {false, true}) {
            multiply(with_experts, qk::cpu::kInt8Mode, slow);
            multiply(with_experts, qk::cpu::kBf16Mode, slow);
        }
    }
    exit(testing::Test::HasFailure() ? 1 : 0);
}

TEST(RefusedTiles, LeaveWhatRunsWithoutAmx) {
    constexpr uint32_t kSets =
        qk::cpu::kVnniVbmi | qk::cpu::kAvx512 | qk::cpu::kAvx512Bf16 | qk::cpu::kAvx2;
    if ((qk::cpu::features() & kSets) != kSets)
        GTEST_SKIP() << "no AVX-512 VNNI, VBMI and BF16 here, which AMX comes with";
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process that has not asked yet
    bool filtered = true;
    const auto passed = [&](int status) {
        filtered = !testing::ExitedWithCode(kNoFilter)(status);
        return !filtered || testing::ExitedWithCode(0)(status);
    };
    EXPECT_EXIT(run_refused(), passed, "");
    if (!filtered) GTEST_SKIP() << "this system lets no process filter its own calls";
}

}  // namespace
