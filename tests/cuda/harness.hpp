// What the CUDA tests share: weights of random bytes on the host, the same weights on the device,
// and the generic CPU kernels as the reference. Kernels are called through their lists, every entry
// that accepts a case, not only the first.
#pragma once
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "backend/registry.hpp"
#include "base/half.hpp"
#include "cpu/kernels.hpp"
#include "format/describe.hpp"
#include "harness/only.hpp"

namespace cuda_test {

// Whether kernels run on simulated threads, which are slow.
#if defined(QK_CUDA_SIMULATED)
constexpr bool kSimulated = true;
#else
constexpr bool kSimulated = false;
#endif

using Rng = std::mt19937_64;

// Device memory with canaries on both sides; `offset` bytes past a 256-byte boundary. 0xff: NaN as
// floats of any width, so that reading past the end shows even where it is times zero; what only
// sets bits shows on 0.
class DeviceBuffer {
  public:
    DeviceBuffer() = default;
    explicit DeviceBuffer(const std::vector<uint8_t> &bytes, size_t offset = 0,
                          uint8_t canary = 0xff);
    DeviceBuffer(DeviceBuffer &&other) noexcept { *this = std::move(other); }
    DeviceBuffer &operator=(DeviceBuffer &&other) noexcept {
        std::swap(base_, other.base_);
        std::swap(bytes_, other.bytes_);
        std::swap(offset_, other.offset_);
        std::swap(canary_, other.canary_);
        return *this;
    }
    ~DeviceBuffer() { cudaFree(base_); }
    void *data() const { return base_ == nullptr ? nullptr : base_ + kCanary + offset_; }
    std::vector<uint8_t> read() const;  // fails the test where a canary has changed

  private:
    static constexpr size_t kCanary = 256;
    uint8_t *base_ = nullptr;
    size_t bytes_ = 0, offset_ = 0;
    uint8_t canary_ = 0xff;
};

struct HostWeight {
    qk::Shape shape;
    std::vector<uint8_t> planes[QK_PLANE_COUNT];

    qk::Weight view();
};

struct DeviceWeight {
    qk::Shape shape;
    DeviceBuffer planes[QK_PLANE_COUNT];

    DeviceWeight(const HostWeight &from, size_t offset = 0, uint8_t canary = 0xff);
    qk::Weight view() const;
};

// `packed`: the internal layout that QK_LAYOUT_PACKED stands for.
HostWeight empty_weight(const qk_tensor_desc &desc, qk_layout packed, uint8_t fill);
// Random codes, zeros and finite scales (some 0, some negative); tables ascend.
HostWeight random_weight(const qk_tensor_desc &desc, Rng &rng);

std::vector<uint8_t> random_floats(qk_format format, int64_t count, Rng &rng);
void put_float(qk_format format, std::vector<uint8_t> &data, int64_t index, float value);
float float_at(qk_format format, const std::vector<uint8_t> &data, int64_t index);

qk_tensor_desc weight_desc(qk_format format, qk_format scale, qk_layout layout, int32_t group,
                           int64_t n, int64_t k, bool symmetric = false, bool flat = false);

// The weight in the device's packed layout.
HostWeight packed_on_host(HostWeight &w);
// Its values in f32, by the CPU's generic kernel.
std::vector<float> values_of(HostWeight &w);
// Half a last place of a number next to 1.
double rounding_of(qk_format type);

// x . w + bias, exact but for double's own rounding; the magnitudes of its terms and the bias.
struct ExactSum {
    double value, magnitude;
};
ExactSum exact_sum(qk_format type, const std::vector<uint8_t> &x, int64_t x_row, const float *w,
                   int64_t k, double bias);

qk::Launch host_launch();
qk::Device device_0();                           // as a context on it would have it
qk::Launch device_launch(qk::ErrorText *error);  // fills shared memory with poison
// Full of NaNs and of large numbers, by turns.
DeviceBuffer give_workspace(size_t bytes, qk::Launch *launch);
void poison_workspace(const qk_context &context);

// Whether a GPU is there; prints the reason for skipping once where it is not.
bool no_device();

// Bytes equal, but any NaN equals any NaN.
::testing::AssertionResult same_values(qk_format format, const std::vector<uint8_t> &expected,
                                       const std::vector<uint8_t> &actual);

struct Format4 {
    qk_format format;
    bool symmetric;
};

}  // namespace cuda_test

#define QK_NEEDS_DEVICE() \
    if (cuda_test::no_device()) GTEST_SKIP() << "no CUDA device on this machine"
