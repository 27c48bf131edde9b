// Handles that close themselves, for tests over the golden checkpoints.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "qk_io.h"

namespace golden {

inline std::string path(const std::string &name) { return std::string(QK_GOLDEN_DATA "/") + name; }

using Context = std::unique_ptr<qk_context, decltype(&qk_context_destroy)>;
using Tensor = std::unique_ptr<qk_tensor, decltype(&qk_tensor_destroy)>;
using Checkpoint = std::unique_ptr<qk_checkpoint, decltype(&qk_checkpoint_destroy)>;

inline Context make_context(uint32_t instruction_sets = 0) {
    qk_context *context = nullptr;
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.instruction_sets = instruction_sets;
    EXPECT_EQ(qk_context_create(&options, &context), QK_OK);
    return {context, qk_context_destroy};
}

inline Checkpoint open(const std::string &name) {
    qk_checkpoint *checkpoint = nullptr;
    qk_io_message message = {};
    EXPECT_EQ(qk_checkpoint_open(path(name).c_str(), nullptr, &checkpoint, &message), QK_OK)
        << message.text;
    return {checkpoint, qk_checkpoint_destroy};
}

inline Tensor create(const Context &context, const qk_tensor_desc &desc) {
    qk_tensor *tensor = nullptr;
    EXPECT_EQ(qk_tensor_create(context.get(), &desc, &tensor), QK_OK)
        << qk_context_error(context.get());
    return {tensor, qk_tensor_destroy};
}

inline std::vector<uint8_t> download(const Context &context, const Tensor &tensor, qk_plane plane,
                                     size_t bytes) {
    std::vector<uint8_t> host(bytes, 0xa5);
    EXPECT_EQ(qk_tensor_download(context.get(), tensor.get(), plane, host.data(), bytes), QK_OK)
        << qk_context_error(context.get());
    return host;
}

inline void upload(const Context &context, const Tensor &tensor, qk_plane plane, const void *data,
                   size_t bytes) {
    EXPECT_EQ(qk_tensor_upload(context.get(), tensor.get(), plane, data, bytes), QK_OK)
        << qk_context_error(context.get());
}

inline qk_format dense_format(qk_dtype dtype) {
    return dtype == QK_DTYPE_F32   ? QK_FORMAT_F32
           : dtype == QK_DTYPE_F16 ? QK_FORMAT_F16
                                   : QK_FORMAT_BF16;
}

inline qk_tensor_desc dense_desc(qk_format format, int64_t rows, int64_t columns) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = format;
    desc.rank = 2;
    desc.shape[0] = rows;
    desc.shape[1] = columns;
    return desc;
}

}  // namespace golden
