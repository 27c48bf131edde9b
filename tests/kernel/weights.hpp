// Weights with random planes for tests of the kernels' contract, every plane between guard pages.
#pragma once
#include <string.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "backend/registry.hpp"
#include "backend/weight.hpp"
#include "base/half.hpp"
#include "harness/scratch.hpp"
#include "harness/specs.hpp"
#include "kernel/guarded.hpp"
#include "kernel/instruction_sets.hpp"

struct WeightCase {
    qk_format format, scale_format;
    qk_layout layout;
    int64_t n, k;
    int32_t group_size;
    bool symmetric = false;
    qk_grouping grouping = QK_GROUPING_DEFAULT;
    int32_t scale_group_size = 0;
    bool minimum = false;
    bool divided = false;  // scales by one GLOBAL number, folded into their table
};

inline std::string describe(const WeightCase &c) {
    return std::string(qk::find_format(c.format)->name) + " scales " +
           qk::find_format(c.scale_format)->name + " layout " + std::to_string(c.layout) + " " +
           std::to_string(c.n) + "x" + std::to_string(c.k) + " group " +
           std::to_string(c.group_size) + (c.symmetric ? " symmetric" : "") +
           (c.grouping == QK_GROUPING_FLAT ? " flat" : "") + (c.minimum ? " minima" : "") +
           (c.divided ? " divided" : "") + " nest " + std::to_string(c.scale_group_size);
}

class TestWeight {
  public:
    TestWeight(const WeightCase &c, uint32_t seed) {
        std::mt19937 random(seed);
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.format = c.format;
        desc.scale_format = c.scale_format;
        desc.layout = c.layout == qk::kLayoutRows8 ? QK_LAYOUT_PACKED : c.layout;
        desc.group_size = c.group_size;
        desc.grouping = c.grouping;
        desc.scale_group_size = c.scale_group_size;
        desc.rank = 2;
        desc.shape[0] = c.n;
        desc.shape[1] = c.k;
        desc.flags = c.symmetric ? QK_TENSOR_SYMMETRIC
                     : c.minimum ? QK_TENSOR_FLOAT_MIN
                     : c.divided ? QK_TENSOR_GLOBAL | QK_TENSOR_GLOBAL_DIVIDES
                                 : 0;
        qk::ErrorText error;
        valid_ = qk::resolve(desc, qk::kLayoutRows8, &shape_, &error) == QK_OK;
        if (!valid_) return;
        for (int plane = 0; plane < QK_PLANE_COUNT; ++plane) {
            const size_t bytes = size_t(shape_.plane_bytes[plane]);
            planes_[plane] = Guarded(bytes);
            for (size_t i = 0; i < bytes; ++i) planes_[plane].data()[i] = uint8_t(random());
        }
        fill_floats(random);
    }

    bool valid() const { return valid_; }

    qk::Weight view() const {
        const auto plane = [&](qk_plane p) -> void * {
            return shape_.plane_bytes[p] == 0 ? nullptr : planes_[p].data();
        };
        void *planes[QK_PLANE_COUNT];
        for (qk_plane p = 0; p < QK_PLANE_COUNT; ++p) planes[p] = plane(p);
        qk::Weight w = qk::weight_of(shape_, planes, qk::kScaleTables);
        qk::fold_global(&w, folded_);
        return w;
    }

    // Every byte of every plane.
    std::vector<uint8_t> contents() const {
        std::vector<uint8_t> all;
        for (int plane = 0; plane < QK_PLANE_COUNT; ++plane) {
            const uint8_t *const data = planes_[plane].data();
            all.insert(all.end(), data, data + shape_.plane_bytes[plane]);
        }
        return all;
    }

  private:
    void fill_floats(std::mt19937 &random) {
        std::uniform_real_distribution<float> scale(-0.02f, 0.03f), table(-1.0f, 1.0f);
        const auto fill = [&](qk_plane plane, qk_format format, auto &&draw) {
            const int64_t size = format == QK_FORMAT_F32 ? 4 : 2;
            for (int64_t i = 0; i < shape_.plane_bytes[plane] / size; ++i) {
                const float value = draw();
                const uint16_t half =
                    format == QK_FORMAT_F16 ? qk::f16_from_f32(value) : qk::bf16_from_f32(value);
                uint8_t *const to = planes_[plane].data() + i * size;
                size == 4 ? memcpy(to, &value, 4) : memcpy(to, &half, 2);
            }
        };
        const qk_format id = shape_.scale_format->id;
        if (qk::is_float(*shape_.scale_format)) {
            fill(QK_PLANE_SCALE, id, [&] { return scale(random); });
            if (shape_.has_minimum) fill(QK_PLANE_ZERO, id, [&] { return scale(random); });
        }
        fill(QK_PLANE_SCALE2, QK_FORMAT_F32, [&] { return scale(random); });
        fill(QK_PLANE_MIN2, QK_FORMAT_F32, [&] { return scale(random); });
        fill(QK_PLANE_SCALE_CODE, QK_FORMAT_F32, [&] { return table(random); });
        fill(QK_PLANE_SCALE_BIAS, QK_FORMAT_F32, [&] { return scale(random); });
        fill(QK_PLANE_TABLE, QK_FORMAT_F32, [&] { return table(random); });
        fill(QK_PLANE_GLOBAL, QK_FORMAT_F32, [&] { return 1000 * (2 + table(random)); });
        if (shape_.format->id == QK_FORMAT_LUT8 && random() % 2 != 0) mirror_table();
    }

    // As bitsandbytes' dynamic table is: code 254 - c stands for minus what c does, 127 for 0.
    void mirror_table() {
        float value[256];
        memcpy(value, planes_[QK_PLANE_TABLE].data(), sizeof(value));
        value[127] = 0;
        for (int code = 0; code < 127; ++code) {
            value[254 - code] = std::fabs(value[254 - code]);
            value[code] = -value[254 - code];
        }
        memcpy(planes_[QK_PLANE_TABLE].data(), value, sizeof(value));
    }

    qk::Shape shape_ = {};
    Guarded planes_[QK_PLANE_COUNT];
    mutable float folded_[256];
    bool valid_ = false;
};

// A dense matrix whose last element ends at a guard page. Values: random, the odd zero among them.
class TestDense {
  public:
    TestDense(qk_format format, int64_t rows, int64_t columns, uint32_t seed)
        : format_(qk::find_format(format)), rows_(rows), columns_(columns),
          memory_(size_t(rows * columns * format_->bits / 8)) {
        std::mt19937 random(seed);
        std::normal_distribution<float> normal;
        for (int64_t i = 0; i < rows * columns; ++i) {
            const float value = random() % 16 == 0 ? 0.0f : normal(random);
            const uint16_t half =
                format == QK_FORMAT_F16 ? qk::f16_from_f32(value) : qk::bf16_from_f32(value);
            uint8_t *const to = memory_.data() + i * format_->bits / 8;
            format == QK_FORMAT_F32 ? memcpy(to, &value, 4) : memcpy(to, &half, 2);
        }
    }

    qk::Dense view() const { return {format_, rows_, columns_, memory_.data()}; }
    size_t bytes() const { return size_t(rows_ * columns_ * format_->bits / 8); }
    uint8_t *data() const { return memory_.data(); }

  private:
    const qk::Format *format_;
    int64_t rows_, columns_;
    Guarded memory_;
};

// This processor, and it without the byte permutes that nested scales and LUT8 are looked up by:
// what AVX-512 does instead.
inline std::vector<qk::Device> test_devices(const WeightCase &c) {
    std::vector<qk::Device> devices = {qk::device_at(qk::kCpuBackend, 0)};
    const bool looked_up = c.scale_format == QK_FORMAT_LUT8 || c.format == QK_FORMAT_LUT8;
    if (looked_up && qk::has(devices[0], qk::cpu::kAvx512Vbmi)) {
        devices.push_back(qk::device_at(qk::kCpuBackend, 0, ~qk::cpu::kAvx512Vbmi));
    }
    return devices;
}

// Kernels of vectors beside the generic one; counts how many runs were compared.
class Specialised : public ::testing::Test {
  protected:
    explicit Specialised(int32_t kernels = qk::kCpuBackend.dequantize.count) : kernels_(kernels) {}
    void SetUp() override {
        if (const char *why = sweep::why_no_vectors(kernels_)) GTEST_SKIP() << why;
    }
    void TearDown() override { EXPECT_TRUE(IsSkipped() || taken_ > 0) << "no kernel took a case"; }
    // Of tables of many small cases, slow builds run a quarter.
    bool left_out() { return harness::thinned(++turn_, 4); }
    int64_t taken_ = 0;

  private:
    const int32_t kernels_;
    uint64_t turn_ = 0;
};

// Tasks one after the other, last first: a result that depends on the order shows.
inline void run_backwards(void *, int32_t count, void (*task)(void *, int32_t), void *argument) {
    for (int32_t i = count; i-- > 0;) task(argument, i);
}

inline qk::Launch test_launch(int32_t threads, const qk::Device &device) {
    qk::Launch launch = {};
    launch.device = device;
    launch.parallel = {run_backwards, nullptr, threads};
    launch.scratch = harness::dirty_scratch();
    return launch;
}
