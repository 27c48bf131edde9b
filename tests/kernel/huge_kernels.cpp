// Indexes past 2^31 and 2^32 in every kernel of a list, not only in the one that is picked: rows at
// the far end of aliased gigabytes against the same rows alone, by the generic kernel.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "api/huge.hpp"
#include "backend/backend.hpp"
#include "backend/registry.hpp"
#include "format/describe.hpp"
#include "harness/scratch.hpp"
#include "kernel/instruction_sets.hpp"

namespace {

using Bytes = std::vector<uint8_t>;
using api::Alias;

constexpr int64_t kK = 1031, kN = (int64_t{1} << 32) / kK / 8 * 8 + 32;  // kN * kK > 2^32

struct Case {
    const char *name;
    qk_format format;
    qk_layout layout;
};
void PrintTo(const Case &c, std::ostream *out) { *out << c.name; }

qk::Shape shape_of(const Case &c, qk_layout layout, int64_t n) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = c.format;
    desc.layout = layout == qk::kLayoutRows8 ? qk_layout{QK_LAYOUT_PACKED} : layout;
    desc.rank = 2, desc.shape[0] = n, desc.shape[1] = kK;
    if (c.format != QK_FORMAT_F32) desc.group_size = 128, desc.scale_format = QK_FORMAT_F32;
    desc.grouping = c.format == QK_FORMAT_F32 ? QK_GROUPING_DEFAULT : QK_GROUPING_ALONG_K;
    qk::Shape shape;
    qk::ErrorText error = {};
    EXPECT_EQ(qk::resolve(desc, qk::kLayoutRows8, &shape, &error), QK_OK) << error.text;
    return shape;
}

qk::Weight view_of(const qk::Shape &s, void *data, void *scale, void *zero) {
    if (qk::is_dense(*s.format)) {
        qk::Weight w = {};
        w.format = s.format, w.data = data;
        w.geometry.n = s.rows, w.geometry.k = s.columns;
        return w;
    }
    const qk::ScalePlane scales = {s.scale_format, scale, nullptr, nullptr, nullptr, 0};
    return {s.format, s.layout, s.geometry, data, scales, s.has_zero ? zero : nullptr, nullptr};
}

// kN rows over aliased memory.
struct Far {
    qk::Shape shape;
    Alias data, scale, zero;

    explicit Far(const Case &c)
        : shape(shape_of(c, c.layout, kN)), data(bytes(QK_PLANE_DATA), 1),
          scale(bytes(QK_PLANE_SCALE), 2), zero(bytes(QK_PLANE_ZERO), 3) {
        scale.make_floats();
        if (c.format == QK_FORMAT_F32) data.make_floats();
    }
    size_t bytes(qk_plane plane) const { return size_t(shape.plane_bytes[plane]) + 64; }
    qk::Weight view() { return view_of(shape, data.data(), scale.data(), zero.data()); }
};

// Row r of a Far, alone, in layout ROW.
struct Near {
    qk::Shape shape;
    Bytes data, scale, zero;

    Near(const Case &c, const qk::Weight &far, int64_t r)
        : shape(shape_of(c, QK_LAYOUT_ROW, 1)), data(bytes(QK_PLANE_DATA)),
          scale(bytes(QK_PLANE_SCALE)), zero(bytes(QK_PLANE_ZERO)) {
        const auto *const from = static_cast<const uint8_t *>(far.data);
        if (c.format == QK_FORMAT_F32) {
            std::memcpy(data.data(), from + r * kK * 4, size_t(kK) * 4);
            return;
        }
        const api::Place place = {c.layout, kN, kK, shape.geometry.groups_per_row};
        const bool packed = c.layout == qk::kLayoutRows8;  // the device's own form
        for (int64_t k = 0; k < kK; ++k) {
            uint8_t packed_code = 0;
            if (packed) far.layout->load(far.geometry, from, r, k, 1, &packed_code);
            const unsigned code = packed ? packed_code : api::nibble(from, place.code(r, k));
            data[size_t(k / 2)] |= uint8_t(code << k % 2 * 4);
        }
        for (int64_t g = 0; g < place.groups; ++g) {
            const int64_t at =
                packed ? far.layout->scale_at(far.geometry, {r, g}) : place.scale(r, g);
            const char *const scales = static_cast<const char *>(far.scale.data);
            std::memcpy(&scale[size_t(g) * 4], scales + at * 4, 4);
            if (far.zero == nullptr) continue;
            const int64_t zero_at =
                packed ? far.layout->zero_at(far.geometry, {r, g}) : place.zero(r, g);
            zero[size_t(g / 2)] |= uint8_t(api::nibble(far.zero, zero_at) << g % 2 * 4);
        }
    }
    size_t bytes(qk_plane plane) const { return size_t(shape.plane_bytes[plane]) + 64; }
    qk::Weight view() { return view_of(shape, data.data(), scale.data(), zero.data()); }
};

constexpr Case kCases[] = {{"dense", QK_FORMAT_F32, QK_LAYOUT_ROW},
                           {"u4_row", QK_FORMAT_U4_AFFINE, QK_LAYOUT_ROW},
                           {"u4_awq_gemm", QK_FORMAT_U4_AFFINE, QK_LAYOUT_AWQ_GEMM},
                           {"nf4_gptq", QK_FORMAT_NF4, QK_LAYOUT_GPTQ},
                           {"u4_packed", QK_FORMAT_U4_AFFINE, qk::kLayoutRows8},
                           {"nf4_packed", QK_FORMAT_NF4, qk::kLayoutRows8}};

class HugeKernels : public ::testing::TestWithParam<Case> {
  protected:
    HugeKernels() {
        for (const int64_t elements : {int64_t{1} << 31, int64_t{1} << 32}) {
            const int64_t row = elements / kK;
            for (const int64_t r : {row - 9, row, row + 9}) sampler_.wanted.push_back(r);
        }
        sampler_.wanted.push_back(0);
        sampler_.wanted.push_back(kN - 1);
    }
    qk::Launch launch(bool far) {
        qk::Launch launch = {};
        launch.device = here_;
        launch.scratch = harness::dirty_scratch();
        launch.parallel = {far ? api::Sampler::run : in_order, &sampler_, far ? INT32_MAX : 1};
        return launch;
    }
    static void in_order(void *, int32_t count, void (*task)(void *, int32_t), void *argument) {
        for (int32_t i = 0; i < count; ++i) task(argument, i);
    }

    api::Sampler sampler_{kN, {}};
    const qk::Device here_ = qk::device_at(qk::kCpuBackend, 0);
};

TEST_P(HugeKernels, Linear) {
    const auto &list = qk::kCpuBackend.linear;
    const qk::Format *const f32 = qk::find_format(QK_FORMAT_F32);
    Far far(GetParam());
    const qk::Weight w = far.view();
    int ran = 0;
    for (const int64_t m : {1, 3}) {
        std::vector<float> x(static_cast<size_t>(m * kK)), expected(static_cast<size_t>(m));
        for (size_t i = 0; i < x.size(); ++i) x[i] = float(int(i * 37 % 129) - 64) / 64;
        Alias y(size_t(kN * m) * 4, 5);
        const qk::LinearArgs args = {{f32, m, kK, x.data()}, w, nullptr, {f32, m, kN, y.data()}};
        for (int32_t i = 0; i < list.count; ++i) {
            const qk::Kernel<qk::LinearArgs> &kernel = *list.kernels[i];
            if (!sweep::takes(kernel, args, here_)) continue;
            ++ran;
            ASSERT_EQ(kernel.run(args, launch(true)), QK_OK);
            for (const int64_t r : sampler_.wanted) {
                Near near(GetParam(), w, r);
                const qk::LinearArgs alone = {
                    args.x, near.view(), nullptr, {f32, m, 1, expected.data()}};
                ASSERT_EQ(list.kernels[list.count - 1]->run(alone, launch(false)), QK_OK);
                for (int64_t j = 0; j < m; ++j) {
                    EXPECT_EQ(std::memcmp(y.data() + (j * kN + r) * 4, &expected[size_t(j)], 4), 0)
                        << kernel.name << " row " << r << " of w, " << j << " of x";
                }
            }
        }
    }
    EXPECT_GE(ran, 2);  // the generic kernel for one row of x and for several
}

class HugeDequantize : public HugeKernels {};

TEST_P(HugeDequantize, Dequantize) {
    const auto &list = qk::kCpuBackend.dequantize;
    const qk::Format *const f16 = qk::find_format(QK_FORMAT_F16);
    Far far(GetParam());
    const qk::Weight w = far.view();
    Alias out(size_t(kN * kK) * 2, 5);
    const qk::DequantizeArgs args = {w, {f16, kN, kK, out.data()}};
    for (int32_t i = 0; i < list.count; ++i) {
        const qk::Kernel<qk::DequantizeArgs> &kernel = *list.kernels[i];
        if (!sweep::takes(kernel, args, here_)) continue;
        for (const int64_t r : sampler_.wanted) std::memset(out.data() + r * kK * 2, 0xa5, 64);
        ASSERT_EQ(kernel.run(args, launch(true)), QK_OK);
        for (const int64_t r : sampler_.wanted) {
            Near near(GetParam(), w, r);
            Bytes expected(2 * static_cast<size_t>(kK));
            const qk::DequantizeArgs alone = {near.view(), {f16, 1, kK, expected.data()}};
            ASSERT_EQ(list.kernels[list.count - 1]->run(alone, launch(false)), QK_OK);
            EXPECT_EQ(std::memcmp(out.data() + r * kK * 2, expected.data(), expected.size()), 0)
                << kernel.name << " row " << r;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Kernels, HugeKernels, ::testing::ValuesIn(kCases),
                         ::testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Kernels, HugeDequantize,
                         ::testing::ValuesIn(kCases + 1, kCases + std::size(kCases)),
                         ::testing::PrintToStringParamName());

}  // namespace
