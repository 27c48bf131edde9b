// linear/cublaslt.cpp on a library that stands in for cuBLASLt: what it asks for, in which order,
// and what becomes of it where a step fails.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/half.hpp"
#include "cuda/linear/cublaslt.hpp"
#include "cuda/mock/mock.hpp"
#include "cuda/simulated/fake_library.hpp"

namespace {

using fake_library::state;
using qk::cuda::kLtWorkspaceBytes;
using qk::cuda::LtProduct;

class CudaLibrary : public ::testing::Test {
  protected:
    CudaLibrary() {
        mock::reset();
        state = {};
        EXPECT_EQ(cudaMalloc(&workspace_, 256), cudaSuccess);
    }
    ~CudaLibrary() override {
        close();
        EXPECT_EQ(state.objects, 0);
        EXPECT_EQ(state.open, 0);
        state = {};
        mock::reset();
    }

    bool open() {
        qk::Device device;
        library_ = qk::cuda::lt_open(&device, kLtWorkspaceBytes);
        EXPECT_EQ(device.lacks_library, library_ == nullptr);
        return library_ != nullptr;
    }
    void close() {
        if (library_ != nullptr) qk::cuda::lt_close(0, library_);
        library_ = nullptr;
    }

    // A product of x [m, k] and w [n, k], or of w [k, n], and what it leaves in d: f32 sums that
    // the second of two adds to those of the first.
    void multiply_transposed(qk_format type, int64_t m, int64_t n, int64_t k, int64_t x_stride) {
        for (int64_t i = 0; i < m * x_stride; ++i) put(type, x_, i, float(i % 5 - 2));
        for (int64_t i = 0; i < n * k; ++i) put(type, w_, i, float(i % 7 - 3));
        memset(d_, 0xff, sizeof(d_));
        for (const bool adds : {false, true}) {
            const LtProduct product = {type, QK_FORMAT_F32, true, adds, m,  n,
                                       k,    x_stride,      n,    x_,   w_, nullptr,
                                       d_,   workspace_};
            qk::Launch launch = {};
            launch.stream = this;
            launch.error = &error_;
            ASSERT_EQ(qk::cuda::lt_multiply(library_, product, launch), QK_OK) << error_.text;
        }
        ASSERT_EQ(cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(this)), cudaSuccess);
        for (int64_t i = 0; i < m * n; ++i) {
            float sum = 0;
            for (int64_t c = 0; c < k; ++c) {
                sum += 2 * float((i / n * x_stride + c) % 5 - 2) * float((c * n + i % n) % 7 - 3);
            }
            EXPECT_EQ(get(QK_FORMAT_F32, d_, i), sum) << i;
        }
    }

    // Small integers: every sum is exact in every type.
    qk::Status multiply(qk_format type, int64_t m, int64_t n, int64_t k, int64_t stride,
                        bool bias) {
        const int64_t bytes = type == QK_FORMAT_F32 ? 4 : 2;
        for (int64_t i = 0; i < m * k; ++i) put(type, x_, i, float(i % 5 - 2));
        for (int64_t i = 0; i < n * k; ++i) put(type, w_, i, float(i % 7 - 3));
        for (int64_t i = 0; i < n; ++i) put(type, bias_, i, float(i % 3));
        memset(d_, 0xff, sizeof(d_));
        const LtProduct product = {type, type,      false,  false, m,  n,
                                   k,    k,         stride, x_,    w_, bias ? bias_ : nullptr,
                                   d_,   workspace_};
        qk::Launch launch = {};
        launch.stream = this;
        error_ = {};
        launch.error = &error_;
        const qk::Status status = qk::cuda::lt_multiply(library_, product, launch);
        EXPECT_EQ(cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(this)), cudaSuccess);
        for (int64_t i = 0; i < m && status == QK_OK; ++i) {
            for (int64_t r = 0; r < stride; ++r) {
                float sum = bias ? float(r % 3) : 0;
                for (int64_t c = 0; c < k; ++c) {
                    sum += float((i * k + c) % 5 - 2) * float((r * k + c) % 7 - 3);
                }
                if (r < n) {
                    EXPECT_EQ(get(type, d_, i * stride + r), sum) << i << " " << r;
                } else if (i + 1 < m) {
                    EXPECT_EQ(d_[(i * stride + r) * bytes], 0xff) << "between rows";
                }
            }
        }
        return status;
    }

    static void put(qk_format type, uint8_t *to, int64_t i, float value) {
        const uint16_t half =
            type == QK_FORMAT_F16 ? qk::f16_from_f32(value) : qk::bf16_from_f32(value);
        if (type == QK_FORMAT_F32) {
            memcpy(to + i * 4, &value, 4);
        } else {
            memcpy(to + i * 2, &half, 2);
        }
    }
    static float get(qk_format type, const uint8_t *from, int64_t i) {
        float value;
        uint16_t half;
        memcpy(&value, from + i * 4, type == QK_FORMAT_F32 ? 4 : 0);
        memcpy(&half, from + i * 2, 2);
        return type == QK_FORMAT_F32   ? value
               : type == QK_FORMAT_F16 ? qk::f32_from_f16(half)
                                       : qk::f32_from_bf16(half);
    }

    void *library_ = nullptr, *workspace_ = nullptr;
    qk::ErrorText error_ = {};
    alignas(16) uint8_t x_[1 << 12], w_[1 << 12], bias_[256], d_[1 << 12];
};

TEST_F(CudaLibrary, TheNewestVersionIsLookedForFirst) {
    EXPECT_TRUE(open());
    EXPECT_EQ(state.names, std::vector<std::string>{"libcublasLt.so.13"});
    close();
    state.names.clear();
    state.name = "libcublasLt.so.12";
    EXPECT_TRUE(open());
    EXPECT_EQ(state.names, (std::vector<std::string>{"libcublasLt.so.13", "libcublasLt.so.12"}));
    close();
    state.present = false;
    EXPECT_FALSE(open());
}

TEST_F(CudaLibrary, ASmallWorkspaceSparesTheLibrary) {
    qk::Device device;
    EXPECT_EQ(qk::cuda::lt_open(&device, kLtWorkspaceBytes - 1), nullptr);
    EXPECT_FALSE(device.lacks_library);  // nobody looked
    EXPECT_TRUE(state.names.empty());
}

TEST_F(CudaLibrary, AnIncompleteLibraryIsNone) {
    for (const char *function :
         {"cublasLtCreate", "cublasLtMatmul", "cublasLtMatmulPreferenceSetAttribute"}) {
        state.lacks = function;
        EXPECT_FALSE(open()) << function;
        EXPECT_EQ(state.objects, 0) << function;
    }
}

// The destructor sees that nothing is left.
TEST_F(CudaLibrary, EachStepOfOpeningFailsInTurn) {
    int steps = 0;
    for (int step = 1; step < 100; ++step) {
        state.fail_at = step;
        if (open()) break;
        EXPECT_EQ(state.objects, 0) << step;
        ++steps;
    }
    EXPECT_EQ(steps, 11);  // 6 objects, 5 preferences
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(CudaLibrary, ProductsOfEveryTypeWithAndWithoutABias) {
    ASSERT_TRUE(open());
    for (const qk_format type : {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16}) {
        for (const bool bias : {false, true}) {
            EXPECT_EQ(multiply(type, 3, 16, 24, 16, bias), QK_OK) << error_.text;
            EXPECT_EQ(multiply(type, 5, 8, 8, 24, bias), QK_OK) << error_.text;
        }
    }
    EXPECT_EQ(state.products, 12);
    multiply_transposed(QK_FORMAT_F32, 3, 16, 24, 24);
    multiply_transposed(QK_FORMAT_F16, 2, 8, 16, 32);
    multiply_transposed(QK_FORMAT_BF16, 5, 24, 8, 8);
    EXPECT_EQ(state.products, 18);
    EXPECT_EQ(mock::streams_used(), std::set<cudaStream_t>{reinterpret_cast<cudaStream_t>(this)});
}

// The library is asked once a case. The fake one runs an algorithm for its own case alone.
TEST_F(CudaLibrary, ChoicesAreRemembered) {
    ASSERT_TRUE(open());
    struct Case {
        qk_format type;
        int64_t m, n, k, stride;
        bool bias;
    };
    const Case cases[] = {
        {QK_FORMAT_F16, 3, 16, 24, 16, false}, {QK_FORMAT_F16, 3, 16, 24, 16, true},
        {QK_FORMAT_F16, 3, 16, 24, 24, false}, {QK_FORMAT_BF16, 3, 16, 24, 16, false},
        {QK_FORMAT_F16, 4, 16, 24, 16, false}, {QK_FORMAT_F16, 3, 8, 24, 16, false},
        {QK_FORMAT_F16, 3, 16, 8, 16, false}};
    for (const Case &c : cases) {
        const int before = state.asked;
        for (int i = 0; i < 3; ++i) {
            EXPECT_EQ(multiply(c.type, c.m, c.n, c.k, c.stride, c.bias), QK_OK) << error_.text;
        }
        EXPECT_EQ(state.asked, before + 1);
    }
    for (int64_t m = 1; m <= 40; ++m) {  // more than there are places: some are asked for again
        EXPECT_EQ(multiply(QK_FORMAT_F16, m, 8, 8, 8, false), QK_OK) << error_.text;
        EXPECT_EQ(multiply(QK_FORMAT_F16, m, 8, 8, 16, false), QK_OK) << error_.text;
    }
}

TEST_F(CudaLibrary, WhatItCannotDoIsSaid) {
    ASSERT_TRUE(open());
    EXPECT_EQ(multiply(QK_FORMAT_F16, 3, 16, 24, 18, false), QK_ERROR_UNSUPPORTED);
    EXPECT_EQ(multiply(QK_FORMAT_F16, 3, 16, 20, 16, false), QK_ERROR_UNSUPPORTED);
    state.refuses = true;
    EXPECT_EQ(multiply(QK_FORMAT_F16, 3, 16, 24, 16, false), QK_ERROR_UNSUPPORTED);
    EXPECT_EQ(state.products, 0);
    state.refuses = false;
    state.fails = true;
    EXPECT_EQ(multiply(QK_FORMAT_F16, 3, 16, 24, 16, false), QK_ERROR_DEVICE_FAULT);
    EXPECT_STREQ(error_.text, "cuBLASLt: product failed (status 13)");
    state.fails = false;
    for (int step = 1; step <= 16; ++step) {  // 3 attributes of the product, 4 of each matrix
        if (step == 3) continue;              // without a bias its pointer is null all the same
        state.fail_at = step;
        EXPECT_EQ(multiply(QK_FORMAT_F16, 3, 16, 24, 16, false),
                  step <= 15 ? QK_ERROR_INTERNAL : QK_OK)
            << step;
        state.fail_at = 0;
    }
}

}  // namespace
