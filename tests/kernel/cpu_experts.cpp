// What products with experts keep in the workspace, and what joins gate and up at their ends.
#include <gtest/gtest.h>

#include <cmath>

#include "base/activation.hpp"
#include "cpu/linear/experts_room.hpp"
#include "kernel/weights.hpp"

namespace {

using namespace qk::cpu;

constexpr WeightCase kCases[] = {
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, qk::kLayoutRows8, 1024, 512, 128},
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_ROW, 80, 320, 32},
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_GPTQ, 80, 320, 32},
    {QK_FORMAT_NF4, QK_FORMAT_F32, qk::kLayoutRows8, 80, 320, 64},
    {QK_FORMAT_NF4, QK_FORMAT_F32, QK_LAYOUT_AWQ_GEMM, 80, 320, 64},
    {QK_FORMAT_NF4, QK_FORMAT_F32, QK_LAYOUT_GPTQ, 80, 320, 16},
    {QK_FORMAT_S8, QK_FORMAT_F32, QK_LAYOUT_ROW, 80, 512, 128},
    {QK_FORMAT_S8, QK_FORMAT_F32, QK_LAYOUT_ROW, 80, 320, 32},
};

// Rows that go to an expert are gathered up to a number of them; no kernel of fewer wants more.
TEST(CpuExperts, GatheredRowsHaveRoomForTheirKernels) {
    const qk::Format *const f32 = qk::find_format(QK_FORMAT_F32);
    const uint32_t all_sets = qk::cpu::allowed_features(~0u);
    qk::Experts experts = {};
    experts.tokens = 64, experts.slots = experts.count = 2;
    int64_t seen = 0;
    for (const WeightCase &c : kCases) {
        const TestWeight weight(c, 1);
        if (!weight.valid()) continue;
        qk::LinearArgs args = {{f32, 1, c.k, nullptr},
                               weight.view(),
                               nullptr,
                               {f32, experts.tokens * 2, c.n / 2, nullptr}};
        args.experts = &experts;
        for (const uint32_t cap :
             {~0u, QK_ISA_GENERIC, QK_ISA_GENERIC | QK_ISA_AVX2,
              QK_ISA_GENERIC | QK_ISA_AVX2 | QK_ISA_AVX_VNNI, QK_ISA_GENERIC | QK_ISA_NEON}) {
            const qk::Device device = qk::device_at(qk::kCpuBackend, 0, cap & all_sets);
            for (const uint32_t modes : {kInt8Mode, kBf16Mode}) {
                const Room room = room_of(args, device, modes, 1);
                qk::LinearArgs some = one_row(args, 0, rows_of_expert(args));
                for (int64_t m = 1; m <= room.together; ++m, ++seen) {
                    some.x.rows = m;
                    ASSERT_LE(kernel_bytes(some, device, modes),
                              room.lane - room.gathered - room.made)
                        << args.w.format->name << " m " << m << " sets " << cap;
                }
            }
        }
    }
    EXPECT_GT(seen, 1000);
}

// As PyTorch has them: -inf times 0, and of large numbers their limit.
TEST(CpuExperts, InfiniteGates) {
    const float inf = INFINITY;
    for (qk_activation a = QK_ACTIVATION_SILU; a <= QK_ACTIVATION_SWIGLU_CLAMPED; ++a) {
        const auto join = [&](float gate) { return qk::join(a, 7, 1.702f, gate, 1); };
        EXPECT_TRUE(std::isnan(join(-inf))) << a;
        EXPECT_TRUE(std::isnan(join(NAN))) << a;
        EXPECT_EQ(join(-3e38f), 0) << a;
        EXPECT_GT(join(inf), a == QK_ACTIVATION_SWIGLU_CLAMPED ? 13 : 3e38f) << a;
    }
}

}  // namespace
