// Dequantize and multiply, with a library that stands in for cuBLASLt: through qk.h, with and
// without the library, the workspace, and an algorithm. Small integers: every sum is exact, so any
// order gives the same bits.
#include <gtest/gtest.h>

#include <vector>

#include "base/half.hpp"
#include "cuda/mock/mock.hpp"
#include "cuda/simulated/fake_library.hpp"
#include "qk.h"

namespace {

constexpr int64_t kM = 64, kN = 40, kK = 64;

class CudaPrefill : public ::testing::Test {
  protected:
    CudaPrefill() {
        mock::Machine without_wgmma;
        without_wgmma.capability = 80;
        mock::reset(without_wgmma);
        fake_library::state = {};
    }
    ~CudaPrefill() override {
        for (qk_tensor *tensor : tensors_) qk_tensor_destroy(tensor);
        qk_context_destroy(context_);
        EXPECT_EQ(fake_library::state.open, 0);
        EXPECT_EQ(fake_library::state.objects, 0);
        EXPECT_EQ(mock::live_allocations(), 0);
        mock::reset();
    }

    void open(size_t workspace) {
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        options.device = QK_DEVICE_CUDA;
        options.workspace_bytes = workspace;
        ASSERT_EQ(qk_context_create(&options, &context_), QK_OK);
    }

    qk_tensor *make(qk_format format, int64_t rows, int64_t columns) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.format = format;
        desc.rank = 2;
        desc.shape[0] = rows;
        desc.shape[1] = columns;
        if (format == QK_FORMAT_U4_AFFINE) {
            desc.scale_format = QK_FORMAT_F16;
            desc.group_size = 64;
            desc.flags = QK_TENSOR_SYMMETRIC;
        }
        qk_tensor *tensor = nullptr;
        EXPECT_EQ(qk_tensor_create(context_, &desc, &tensor), QK_OK) << qk_context_error(context_);
        tensors_.push_back(tensor);
        return tensor;
    }

    template <class T>
    void upload(qk_tensor *tensor, qk_plane plane, const std::vector<T> &values) {
        const size_t bytes = values.size() * sizeof(T);
        ASSERT_EQ(qk_tensor_upload(context_, tensor, plane, values.data(), bytes), QK_OK);
    }

    // w[r, c] = (code - 8) * 2, x[i, c] = i % 3 - 1, bias[r] = r: y is a sum of small integers.
    qk_status multiply(std::vector<uint16_t> *y, int64_t n = kN) {
        qk_tensor *const x = make(QK_FORMAT_F16, kM, kK);
        qk_tensor *const w = make(QK_FORMAT_U4_AFFINE, n, kK);
        qk_tensor *const bias = make(QK_FORMAT_F32, 1, n);
        qk_tensor *const out = make(QK_FORMAT_F16, kM, n);
        std::vector<uint16_t> values(kM * kK), scales(n * kK / 64, qk::f16_from_f32(2.0f));
        std::vector<uint8_t> codes(n * kK / 2);
        std::vector<float> biases(n);
        for (int64_t i = 0; i < kM * kK; ++i) values[i] = qk::f16_from_f32(float(i / kK % 3 - 1));
        for (int64_t i = 0; i < n * kK / 2; ++i) codes[i] = uint8_t(i * 37 + i / kK * 11);
        for (int64_t i = 0; i < n; ++i) biases[i] = float(i);
        upload(x, QK_PLANE_DATA, values);
        upload(w, QK_PLANE_DATA, codes);
        upload(w, QK_PLANE_SCALE, scales);
        upload(bias, QK_PLANE_DATA, biases);
        const qk_status status = qk_linear(context_, x, w, bias, out);
        if (status != QK_OK) return status;
        y->assign(kM * n, 0);
        EXPECT_EQ(qk_tensor_download(context_, out, QK_PLANE_DATA, y->data(), kM * n * 2), QK_OK);
        for (int64_t i = 0; i < kM; ++i) {
            for (int64_t r = 0; r < n; ++r) {
                int sum = int(r);
                for (int64_t c = 0; c < kK; ++c) {
                    const int64_t at = r * kK + c;
                    sum += ((codes[at / 2] >> at % 2 * 4 & 15) - 8) * 2 * int(i % 3 - 1);
                }
                EXPECT_EQ(qk::f32_from_f16((*y)[i * n + r]), float(sum)) << i << " " << r;
                if (HasFailure()) return QK_OK;
            }
        }
        return QK_OK;
    }

    qk_context *context_ = nullptr;
    std::vector<qk_tensor *> tensors_;
};

// 48 rows of 64 codes, their f16 scales in groups of 64; both planes a multiple of 256 bytes.
constexpr size_t kPackedBytes = 48 * 64 / 2 + 256;
constexpr size_t kEnough = (size_t{32} << 20) + (size_t{1} << 16);

TEST_F(CudaPrefill, LargeBatchesGoThroughTheLibrary) {
    open(kEnough);
    std::vector<uint16_t> y;
    EXPECT_EQ(multiply(&y), QK_OK);
    EXPECT_EQ(fake_library::state.products, 1);
}

// Slabs are 256 rows here: each has its own rows of w, of the bias, and columns of y.
TEST_F(CudaPrefill, SlabsMeetTheirRows) {
    open(kEnough);
    std::vector<uint16_t> y;
    EXPECT_EQ(multiply(&y, 600), QK_OK);
    EXPECT_EQ(fake_library::state.products, 3);
}

// Rows of y that are no multiple of 16 bytes: the library is not asked.
TEST_F(CudaPrefill, OddStridesAreForOtherKernels) {
    open(kEnough);
    for (const int64_t n : {36, 42, 52}) {
        std::vector<uint16_t> y;
        EXPECT_EQ(multiply(&y, n), QK_OK) << n;
        EXPECT_EQ(fake_library::state.products, 0) << n;
        EXPECT_EQ(fake_library::state.asked, 0) << n;
    }
}

TEST_F(CudaPrefill, TheWorkspaceQueryIsWhatItTakes) {
    open(kEnough);
    size_t bytes = 0;
    EXPECT_EQ(qk_linear_workspace(context_, make(QK_FORMAT_U4_AFFINE, kN, kK), kM, &bytes), QK_OK);
    // f32 x: the slab is the whole weight here, then a bias, then the library's part.
    EXPECT_EQ(bytes, size_t(kN * kK * 4 + 256) + (size_t{32} << 20));
    EXPECT_EQ(qk_linear_workspace(context_, tensors_[0], 1, &bytes), QK_OK);
    EXPECT_EQ(bytes, 0u);
}

TEST_F(CudaPrefill, WithoutTheLibraryTheGenericKernelRuns) {
    fake_library::state.present = false;
    open(kEnough);
    std::vector<uint16_t> y;
    EXPECT_EQ(multiply(&y), QK_OK);
    EXPECT_EQ(fake_library::state.products, 0);
}

TEST_F(CudaPrefill, WithoutAWorkspaceTheGenericKernelRuns) {
    open(0);
    std::vector<uint16_t> y;
    EXPECT_EQ(multiply(&y), QK_OK);
    EXPECT_EQ(fake_library::state.products, 0);
}

TEST_F(CudaPrefill, WithoutAnAlgorithmTheGenericKernelRuns) {
    fake_library::state.refuses = true;
    open(kEnough);
    std::vector<uint16_t> y;
    EXPECT_EQ(multiply(&y), QK_OK);
    EXPECT_EQ(fake_library::state.products, 0);
}

TEST_F(CudaPrefill, WithAKernelForPackedWeightsALittleRoomIsEnough) {
    mock::reset();
    fake_library::state.present = false;
    open(kPackedBytes);
    std::vector<uint16_t> y;
    EXPECT_EQ(multiply(&y), QK_OK);
    EXPECT_EQ(fake_library::state.tile_products, 1);
    EXPECT_EQ(fake_library::state.early_products, 0);
}

TEST_F(CudaPrefill, WithLessThanThatTheGenericKernelRuns) {
    mock::reset();
    open(kPackedBytes - 1);
    std::vector<uint16_t> y;
    EXPECT_EQ(multiply(&y), QK_OK);
    EXPECT_EQ(fake_library::state.tile_products, 0);
}

TEST_F(CudaPrefill, AFailedProductIsReported) {
    fake_library::state.fails = true;
    open(kEnough);
    std::vector<uint16_t> y;
    EXPECT_EQ(multiply(&y), QK_ERROR_DEVICE_FAULT);
}

}  // namespace
