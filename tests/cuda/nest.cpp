// The mean of nested scales on the GPU against the CPU, byte for byte, on simulated threads too.
#include "cuda/convert/nest.hpp"
#include "cuda/harness.hpp"

namespace cuda_test {
namespace {

// As many groups as the mean's sum needs to climb to its last level, with a rest on every level.
TEST(CudaNest, AMeanOfManyScalesIsTheCpus) {
    QK_NEEDS_DEVICE();
    constexpr int64_t groups = (256 + 2 * 16 + 3) * 512 + 69, k = groups * 16;
    Rng rng(41);
    qk_tensor_desc desc =
        weight_desc(QK_FORMAT_NF4, QK_FORMAT_LUT8, QK_LAYOUT_ROW, 16, 1, k, false, false);
    desc.scale_group_size = 4096;
    std::vector<uint8_t> dense(size_t(k * 4)), scales(size_t(groups * 4));
    for (int64_t group = 0; group < groups; ++group) {  // one number a group decides
        const float largest = float(rng() % 1000003 + 1) * 1e-4f;
        memcpy(&dense[size_t(group) * 64], &largest, 4);
        memcpy(&scales[size_t(group) * 4], &largest, 4);
    }
    HostWeight expected = random_weight(desc, rng);
    const HostWeight empty = expected;
    scales.resize(scales.size() + size_t(groups / 8192 + 2) * 128, 0xff);  // sums
    const DeviceBuffer device_scales(scales);
    const qk::Format *const f32 = qk::find_format(QK_FORMAT_F32);
    ASSERT_EQ(
        qk::cpu::kQuantizeGeneric.run({{f32, 1, k, dense.data()}, expected.view()}, host_launch()),
        QK_OK);
    auto *const on_device = static_cast<float *>(device_scales.data());
    for (float *const sums : {on_device + groups, static_cast<float *>(nullptr)}) {
        SCOPED_TRACE(sums != nullptr ? "sums beside the scales" : "sums in their codes' place");
        const DeviceWeight to(empty, 0, 0);
        qk::ErrorText error = {};
        ASSERT_EQ(qk::cuda::nest_scales({{f32, 1, k, nullptr}, to.view()}, {on_device, sums},
                                        device_launch(&error)),
                  QK_OK)
            << error.text;
        for (const qk_plane plane : {QK_PLANE_SCALE, QK_PLANE_SCALE2, QK_PLANE_SCALE_BIAS}) {
            EXPECT_EQ(to.planes[plane].read(), expected.planes[plane]) << "plane " << plane;
        }
    }
}

}  // namespace
}  // namespace cuda_test
