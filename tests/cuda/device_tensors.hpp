// For tests through qk.h: a context on the GPU and tensors that live as long as it does.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cuda/harness.hpp"
#include "qk.h"

namespace cuda_test {

class DeviceTensors : public ::testing::Test {
  protected:
    ~DeviceTensors() override { close(); }
    void open(size_t workspace, void *stream = nullptr) {
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        options.device = QK_DEVICE_CUDA;
        options.workspace_bytes = workspace;
        options.stream = stream;
        ASSERT_EQ(qk_context_create(&options, &context_), QK_OK);
        if (workspace > 0) poison_workspace(*context_);
    }
    void close() {
        for (qk_tensor *const tensor : tensors_) qk_tensor_destroy(tensor);
        tensors_.clear();
        qk_context_destroy(context_);
        context_ = nullptr;
    }
    qk_tensor *make(const qk_tensor_desc &desc) {
        qk_tensor *tensor = nullptr;
        EXPECT_EQ(qk_tensor_create(context_, &desc, &tensor), QK_OK) << qk_context_error(context_);
        tensors_.push_back(tensor);
        return tensor;
    }
    // F16.
    qk_tensor *dense(int64_t rows, int64_t columns) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.format = QK_FORMAT_F16;
        desc.rank = 2;
        desc.shape[0] = rows, desc.shape[1] = columns;
        return make(desc);
    }
    void upload(qk_tensor *tensor, qk_plane plane, const std::vector<uint8_t> &bytes) {
        EXPECT_EQ(qk_tensor_upload(context_, tensor, plane, bytes.data(), bytes.size()), QK_OK)
            << qk_context_error(context_);
    }
    std::vector<uint8_t> read(qk_tensor *tensor, int64_t elements) {
        std::vector<uint8_t> bytes(size_t(elements * 2));
        EXPECT_EQ(qk_tensor_download(context_, tensor, QK_PLANE_DATA, bytes.data(), bytes.size()),
                  QK_OK);
        return bytes;
    }

    qk_context *context_ = nullptr;
    std::vector<qk_tensor *> tensors_;
};

}  // namespace cuda_test
