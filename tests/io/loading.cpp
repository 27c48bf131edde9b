// qk_checkpoint_load and verify_layer: nothing leaks, nothing stale stays, nothing is made up.
#include <gtest/gtest.h>

#include "harness/aligned.hpp"
#include "layers.hpp"

namespace {

using namespace io_test;

// A context's allocator whose n-th call fails.
struct Counted {
    int64_t calls = 0, fail_at = -1, live = 0;

    static void *allocate(void *user, size_t bytes, size_t align) {
        Counted *self = static_cast<Counted *>(user);
        if (self->calls++ == self->fail_at) return nullptr;
        void *const memory = harness::take_aligned(bytes, align);
        if (memory != nullptr) ++self->live;
        return memory;
    }
    static void release(void *user, void *pointer) {
        --static_cast<Counted *>(user)->live;
        harness::give_aligned(pointer);
    }
};

class Loading : public Dialects {};

TEST_F(Loading, FailsCleanlyAtEveryAllocation) {
    Parts parts = bnb(6, 64, 64);
    parts.set("x.bias", "F32", {6}, zeros(24));
    open(parts);
    ASSERT_EQ(1, layer.has_bias);
    for (const uint32_t flags : {0u, QK_LOAD_IN_PLACE}) {
        Counted memory;
        const qk_allocator allocator = {Counted::allocate, Counted::release, &memory};
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        options.allocator = &allocator;
        options.thread_count = 1;
        qk_context *context = nullptr;
        ASSERT_EQ(QK_OK, qk_context_create(&options, &context));
        const int64_t before = memory.live;
        int64_t failures = 0;
        for (;; ++failures) {
            qk_tensor *weight = nullptr, *bias = nullptr;
            memory.calls = 0;
            memory.fail_at = failures;
            const qk_status status =
                qk_checkpoint_load(checkpoint, context, "x", flags, &weight, &bias, &message);
            if (status == QK_OK) {
                EXPECT_EQ('\0', message.text[0]);
                EXPECT_NE(nullptr, bias);
                qk_tensor_destroy(weight);
                qk_tensor_destroy(bias);
                break;
            }
            EXPECT_EQ(QK_ERROR_MEMORY, status);
            EXPECT_EQ(nullptr, weight);
            EXPECT_EQ(nullptr, bias);
            EXPECT_EQ(before, memory.live) << "flags " << flags << ", call " << failures;
            ASSERT_LT(failures, 100);
        }
        EXPECT_GE(failures, 2) << "a weight and a bias";
        EXPECT_EQ(before, memory.live);
        memory.fail_at = -1;
        qk_context_destroy(context);
    }
}

// Planes that loading makes come from the checkpoint's allocator and go back to it, either way.
TEST_F(Loading, MadePlanesFailCleanly) {
    Counted memory;
    const qk_allocator allocator = {Counted::allocate, Counted::release, &memory};
    qk_checkpoint_options options = QK_CHECKPOINT_OPTIONS_INIT;
    options.allocator = &allocator;
    Parts parts;
    parts.set("x.weight", "I8", {3, 5}, zeros(15));
    parts.set("x.SCB", "F32", {3}, zeros(12));
    const std::string file = parts.build();
    qk_checkpoint *made = nullptr;
    qk_context *context = nullptr;
    ASSERT_EQ(QK_OK, qk_context_create(nullptr, &context));
    ASSERT_EQ(QK_OK, qk_checkpoint_open_memory(file.data(), file.size(), nullptr, 0, &options,
                                               &made, &message));
    const int64_t before = memory.live;
    for (const uint32_t flags : {0u, QK_LOAD_IN_PLACE}) {
        qk_tensor *weight = nullptr;
        memory.calls = memory.fail_at = 0;
        EXPECT_EQ(QK_ERROR_MEMORY,
                  qk_checkpoint_load(made, context, "x", flags, &weight, nullptr, &message));
        EXPECT_EQ(nullptr, weight);
        EXPECT_EQ(before, memory.live);
        memory.fail_at = -1;
        EXPECT_EQ(QK_OK, qk_checkpoint_load(made, context, "x", flags, &weight, nullptr, &message));
        EXPECT_EQ(before, memory.live);
        qk_tensor_destroy(weight);
    }
    qk_checkpoint_destroy(made);
    EXPECT_EQ(0, memory.live);
    qk_context_destroy(context);
}

TEST_F(Loading, ANoteDoesNotOutliveItsLayer) {
    Parts parts = gptq(64, 256, 128);
    Parts clean = gptq(64, 256, 128);
    parts["x.qzeros"].bytes[0] = '\xff';
    for (Parts::Part &part : clean.parts) {
        part.name[0] = 'y';
        parts.parts.push_back(part);
    }
    open(parts, kGptq128);
    ASSERT_EQ(QK_OK, qk_checkpoint_verify_layer(checkpoint, "x", &message)) << message.text;
    EXPECT_NE(nullptr, strstr(message.text, "2 zeros are stored as 0xF")) << message.text;
    ASSERT_EQ(QK_OK, qk_checkpoint_verify_layer(checkpoint, "y", &message));
    EXPECT_STREQ("", message.text);
    qk_layer other;
    ASSERT_EQ(QK_OK, qk_checkpoint_verify_layer(checkpoint, "x", &message));
    ASSERT_EQ(QK_OK, qk_checkpoint_find_layer(checkpoint, "y", &other, sizeof other));
    qk_context *context = nullptr;
    qk_tensor *weight = nullptr;
    ASSERT_EQ(QK_OK, qk_context_create(nullptr, &context));
    ASSERT_EQ(QK_OK, qk_checkpoint_load(checkpoint, context, "y", 0, &weight, nullptr, &message));
    EXPECT_STREQ("", message.text);
    qk_tensor_destroy(weight);
    qk_context_destroy(context);
}

TEST_F(Loading, SymmetricIsTheDefaultOfConfigGroups) {
    const std::string silent = ct_config("\"strategy\":\"group\",\"group_size\":32");
    takes(compressed(9, 64, 2), silent, QK_DIALECT_COMPRESSED_TENSORS, 9, 64, 32);
    EXPECT_NE(0u, layer.desc.flags & QK_TENSOR_SYMMETRIC);
    Parts zeros_too = compressed(16, 64, 2);
    zeros_too.set("x.weight_zero_point", "I32", {2, 2}, zeros(16));
    refuses(zeros_too, silent, QK_ERROR_UNSUPPORTED, "no config group is asymmetric");
}

std::string groups(int64_t count, bool different) {
    std::string text =
        "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\","
        "\"config_groups\":{";
    for (int64_t i = 0; i < count; ++i) {
        text += (i == 0 ? "\"" : ",\"") + std::to_string(i) +
                "\":{\"weights\":{\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\","
                "\"group_size\":" +
                std::to_string(different ? 32 + i : 32) + "}}";
    }
    return text + "}}";
}

TEST_F(Loading, ManyConfigGroups) {
    const Parts parts = compressed(9, 64, 2);
    takes(parts, groups(5000, false), QK_DIALECT_COMPRESSED_TENSORS, 9, 64, 32);
    open(parts, groups(256, true));
    const std::string file = parts.build(), config = groups(257, true);
    qk_checkpoint *none = nullptr;
    EXPECT_EQ(QK_ERROR_CORRUPT, qk_checkpoint_open_memory(file.data(), file.size(), config.data(),
                                                          config.size(), nullptr, &none, &message));
    EXPECT_NE(nullptr, strstr(message.text, "more than 256 different config_groups"))
        << message.text;
}

}  // namespace
