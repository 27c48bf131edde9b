// Every linear kernel of the CPU against the generic one, bit for bit: the order of the sum is part
// of the contract (kernels/cpu/generic/linear.cpp), so no tolerance is needed. One thread has this
// processor's traits, three have the others, so that both ways to fetch codes are tested anywhere.
#pragma once
#include <gtest/gtest.h>
#include <string.h>

#include <vector>

#include "cpu/traits.hpp"
#include "kernel/weights.hpp"

inline std::vector<uint8_t> run(const qk::Kernel<qk::LinearArgs> &kernel, const TestDense &x,
                                const TestWeight &w, const TestDense *bias, int64_t n,
                                int32_t threads, const qk::Device &device) {
    const qk::Dense bias_view = bias != nullptr ? bias->view() : qk::Dense{};
    const TestDense y(x.view().format->id, x.view().rows, n, 99);
    const qk::LinearArgs args = {x.view(), w.view(), bias != nullptr ? &bias_view : nullptr,
                                 y.view()};
    qk::Launch launch = test_launch(threads, device);
    const bool works = kernel.workspace_bytes != nullptr;
    std::vector<uint8_t> workspace(works ? kernel.workspace_bytes(args, device) : 0);
    launch.workspace = workspace.data();
    launch.workspace_bytes = workspace.size();
    EXPECT_EQ(kernel.run(args, launch), QK_OK);
    return std::vector<uint8_t>(y.data(), y.data() + y.bytes());
}

// Equal bits, or both NaN, whose bits are not promised.
inline bool same(qk_format format, const std::vector<uint8_t> &a, const std::vector<uint8_t> &b) {
    if (format != QK_FORMAT_F32) return a == b;
    for (size_t i = 0; i < a.size(); i += 4) {
        float values[2];
        memcpy(&values[0], &a[i], 4);
        memcpy(&values[1], &b[i], 4);
        const bool numbers = values[0] == values[0] || values[1] == values[1];
        if (numbers && memcmp(&a[i], &b[i], 4) != 0) return false;
    }
    return a.size() == b.size();
}

class CpuLinear : public Specialised {
  protected:
    CpuLinear() : Specialised(qk::kCpuBackend.linear.count) {}
    // `odd`: a number put into the middle of x, which is f32.
    void compare(const WeightCase &c, qk_format x_format, int64_t m, bool with_bias,
                 const float *odd = nullptr) {
        compare_in(list_, c, x_format, m, with_bias, odd);
    }
    void compare_in(const qk::KernelList<qk::LinearArgs> &list, const WeightCase &c,
                    qk_format x_format, int64_t m, bool with_bias, const float *odd = nullptr) {
        const TestWeight w(c, uint32_t(c.k * 31 + c.n));
        if (!w.valid()) return;
        const TestDense x(x_format, m, c.k, 5), bias(QK_FORMAT_F32, 1, c.n, 6);
        const TestDense *const b = with_bias ? &bias : nullptr;
        if (odd != nullptr) memcpy(static_cast<char *>(x.view().data) + c.k / 2 * 4, odd, 4);
        const TestDense y(x_format, m, c.n, 7);
        const qk::LinearArgs args = {x.view(), w.view(), nullptr, y.view()};
        const qk::Kernel<qk::LinearArgs> &generic = *list.kernels[list.count - 1];
        const auto expected = run(generic, x, w, b, c.n, 1, {});
        const uint32_t own = qk::cpu::traits(), other = own ^ qk::cpu::kAllTraits;
        for (const qk::Device &device : test_devices(c)) {
            for (int32_t i = 0; i < list.count - 1; ++i) {
                const qk::Kernel<qk::LinearArgs> &kernel = *list.kernels[i];
                if (!sweep::takes(kernel, args, device)) continue;
                ++taken_;
                for (const int32_t threads : {1, 3}) {
                    qk::cpu::assume_traits(threads == 1 ? own : other);
                    EXPECT_TRUE(
                        same(x_format, run(kernel, x, w, b, c.n, threads, device), expected))
                        << kernel.name << ": " << describe(c) << " m " << m << " x "
                        << x.view().format->name << " threads " << threads << " sets "
                        << device.instruction_sets;
                }
                qk::cpu::assume_traits(own);
            }
        }
    }

    const qk::KernelList<qk::LinearArgs> &list_ = qk::kCpuBackend.linear;
    const qk::KernelList<qk::LinearArgs> &int8_ = qk::kCpuBackend.linear_int8;
};

constexpr qk_format kFormats4[] = {QK_FORMAT_NF4, QK_FORMAT_FP4_BNB, QK_FORMAT_FP4_E2M1,
                                   QK_FORMAT_U4_AFFINE};
constexpr qk_format kScales[] = {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_LUT8};
constexpr qk_format kDense[] = {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16};
