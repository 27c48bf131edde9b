// A tensor quantized by every kernel that takes it, against the CPU, byte for byte.
#pragma once
#include "cuda/harness.hpp"
#include "cuda/kernels.hpp"

namespace cuda_test {
namespace {

#if defined(QK_CUDA_SIMULATED)
constexpr int kEvery = 5;  // of the cases: simulated threads are slow
#else
constexpr int kEvery = 1;
#endif

void expect_planes(const qk_tensor_desc &desc, const HostWeight &expected, const DeviceWeight &to) {
    for (const qk_plane plane :
         {QK_PLANE_DATA, QK_PLANE_ZERO, QK_PLANE_SCALE_CODE, QK_PLANE_GLOBAL}) {
        EXPECT_EQ(to.planes[plane].read(), expected.planes[plane]) << "plane " << plane;
    }
    if (qk::is_float(*qk::find_format(desc.scale_format))) {
        EXPECT_TRUE(same_values(desc.scale_format, expected.planes[QK_PLANE_SCALE],
                                to.planes[QK_PLANE_SCALE].read()));
        return;
    }
    EXPECT_EQ(to.planes[QK_PLANE_SCALE].read(), expected.planes[QK_PLANE_SCALE]);
    for (const qk_plane plane : {QK_PLANE_SCALE2, QK_PLANE_SCALE_BIAS}) {
        EXPECT_TRUE(same_values(QK_FORMAT_F32, expected.planes[plane], to.planes[plane].read()))
            << "plane " << plane;
    }
}

// Returns how many kernels took the case. `table`: LUT8's, if it is not the dynamic one.
int check_quantize(const qk_tensor_desc &desc, qk_format from, std::vector<uint8_t> dense, Rng &rng,
                   const float *table = nullptr) {
    HostWeight expected = random_weight(desc, rng);
    if (table != nullptr) memcpy(expected.planes[QK_PLANE_TABLE].data(), table, 1024);
    const int64_t n = desc.shape[0], k = desc.shape[1];
    const HostWeight empty = expected;
    const DeviceBuffer device_dense(dense);
    const qk::Format *const type = qk::find_format(from);
    EXPECT_EQ(
        qk::cpu::kQuantizeGeneric.run({{type, n, k, dense.data()}, expected.view()}, host_launch()),
        QK_OK);
    const auto &list = qk::kCudaBackend.quantize;
    int ran = 0;
    for (int32_t i = 0; i < list.count; ++i) {
        const DeviceWeight to(empty, 0, 0);  // a table, and bytes that must all be replaced
        const qk::QuantizeArgs args = {{type, n, k, device_dense.data()}, to.view()};
        if (!list.kernels[i]->can_run(args, device_0())) continue;
        SCOPED_TRACE(list.kernels[i]->name);
        ++ran;
        qk::ErrorText error = {};
        qk::Launch launch = device_launch(&error);
        EXPECT_EQ(list.kernels[i]->run(args, launch), QK_OK) << error.text;
        expect_planes(desc, expected, to);
        if (list.kernels[i] == &qk::cuda::kQuantizeLut8) {
            SCOPED_TRACE("with little shared memory");
            const DeviceWeight third(empty, 0, 0);
            qk::Launch small = launch;
            small.device.shared_bytes = 99 * 1024;
            EXPECT_EQ(list.kernels[i]->run({args.from, third.view()}, small), QK_OK) << error.text;
            expect_planes(desc, expected, third);
        }
        if (desc.scale_format != QK_FORMAT_LUT8) continue;
        SCOPED_TRACE("with room for the scales");
        const DeviceBuffer room = give_workspace(
            expected.planes[QK_PLANE_SCALE].size() * sizeof(float) * 2 + 256, &launch);
        const DeviceWeight again(empty, 0, 0);
        EXPECT_EQ(list.kernels[i]->run({args.from, again.view()}, launch), QK_OK) << error.text;
        expect_planes(desc, expected, again);
    }
    EXPECT_GT(ran, 0);
    return ran;
}

}  // namespace
}  // namespace cuda_test
