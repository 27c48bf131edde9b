// The caller's mistakes, and an allocator that fails at its n-th call.
#include <gtest/gtest.h>

#include "layers.hpp"

namespace {

using namespace io_test;

// Fails once or from the n-th call on; counts what is not given back.
struct FailingMemory {
    int64_t calls = 0, fail_at = -1, live = 0;
    bool once = false;

    qk_allocator allocator() { return {allocate, release, this}; }
    static void *allocate(void *user, size_t bytes, size_t align) {
        FailingMemory *self = static_cast<FailingMemory *>(user);
        const int64_t call = self->calls++;
        const bool fails =
            self->fail_at >= 0 && (self->once ? call == self->fail_at : call >= self->fail_at);
        if (fails) return nullptr;
        EXPECT_LE(align, alignof(max_align_t));
        ++self->live;
        return malloc(bytes);
    }
    static void release(void *user, void *pointer) {
        --static_cast<FailingMemory *>(user)->live;
        free(pointer);
    }
};

// Runs the scenario with every allocation failing in turn, until it needs no more of them.
template <typename Scenario>
void sweep(const Scenario &scenario) {
    for (const bool once : {true, false}) {
        int64_t n = 0;
        for (;; ++n) {
            FailingMemory memory;
            memory.fail_at = n;
            memory.once = once;
            const qk_status status = scenario(memory.allocator());
            EXPECT_EQ(0, memory.live) << "call " << n;
            if (status == QK_OK) break;
            ASSERT_EQ(QK_ERROR_MEMORY, status) << "call " << n;
            ASSERT_LT(n, 10000);
        }
        EXPECT_GT(n, 2);
    }
}

std::string many_layers() {
    Parts p;
    for (int i = 0; i < 40; ++i) {
        Parts one = bnb_nested(5, 33, 32);
        for (Parts::Part &part : one.parts) {
            part.name = "layer" + std::to_string(i) + part.name.substr(1);
            p.parts.push_back(part);
        }
    }
    Parts whole = compressed(9, 70, 1);
    whole.set("x.weight_scale", "F16", {1}, bytes_of<uint16_t>({0x3800}));
    for (const Parts::Part &part : whole.parts) p.parts.push_back(part);
    return p.build();
}

TEST(Memory, OpeningFailsCleanlyAtEveryAllocation) {
    const std::string bytes = many_layers();
    const std::string config =
        ct_config("\"symmetric\":true,\"strategy\":\"tensor\",\"group_size\":null");
    sweep([&](qk_allocator allocator) {
        qk_checkpoint_options options = QK_CHECKPOINT_OPTIONS_INIT;
        options.allocator = &allocator;
        qk_checkpoint *checkpoint = nullptr;
        qk_io_message message;
        const qk_status status =
            qk_checkpoint_open_memory(bytes.data(), bytes.size(), config.data(), config.size(),
                                      &options, &checkpoint, &message);
        EXPECT_EQ(status == QK_OK, checkpoint != nullptr);
        EXPECT_EQ(status == QK_OK, message.text[0] == 0);
        EXPECT_EQ(status == QK_OK ? 41 : 0, qk_checkpoint_layer_count(checkpoint));
        qk_checkpoint_destroy(checkpoint);
        return status;
    });
}

TEST(Memory, OpeningShardsFromDiskBothWays) {
    const Folder folder;
    folder.write("a.safetensors", Maker().add("x", "U8", {2}, "12").build());
    folder.write("b.safetensors", Maker().add("y", "U8", {1}, "3").build());
    folder.write("model.safetensors.index.json",
                 "{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}}");
    folder.write("config.json", kAwq128);
    for (uint32_t flags : {0u, QK_CHECKPOINT_READ}) {
        sweep([&](qk_allocator allocator) {
            qk_checkpoint_options options = QK_CHECKPOINT_OPTIONS_INIT;
            options.allocator = &allocator;
            options.flags = flags;
            qk_checkpoint *checkpoint = nullptr;
            const qk_status status =
                qk_checkpoint_open(folder.path().c_str(), &options, &checkpoint, nullptr);
            qk_checkpoint_destroy(checkpoint);
            return status;
        });
    }
}

TEST(Memory, WritingFailsCleanlyAtEveryAllocation) {
    const Folder folder;
    const std::string path = folder.path("out.safetensors");
    const int64_t shape[] = {1};
    sweep([&](qk_allocator allocator) {
        folder.remove("out.safetensors");
        qk_writer *writer = nullptr;
        qk_status status = qk_writer_create(path.c_str(), &allocator, &writer, nullptr);
        if (status == QK_OK) status = qk_writer_metadata(writer, "format", "pt", nullptr);
        for (int i = 0; status == QK_OK && i < 100; ++i) {
            status = qk_writer_declare(writer, std::to_string(i).c_str(), QK_DTYPE_U8, 1, shape,
                                       nullptr);
        }
        for (int i = 0; status == QK_OK && i < 100; ++i) {
            status = qk_writer_write(writer, std::to_string(i).c_str(), "1", 1, nullptr);
        }
        if (status == QK_OK) status = qk_writer_finish(writer, nullptr);
        qk_writer_destroy(writer);
        EXPECT_EQ(status == QK_OK, !read_file(path).empty());
        return status;
    });
}

class Mistakes : public testing::Test {
  protected:
    void SetUp() override {
        bytes = awq_gemm(64, 256, 128).build();
        ASSERT_EQ(QK_OK, qk_checkpoint_open_memory(bytes.data(), bytes.size(), kAwq128.data(),
                                                   kAwq128.size(), nullptr, &checkpoint, &message));
        ASSERT_EQ(QK_OK, qk_context_create(nullptr, &context));
    }
    void TearDown() override {
        qk_checkpoint_destroy(checkpoint);
        qk_context_destroy(context);
    }

    std::string bytes;
    qk_checkpoint *checkpoint = nullptr;
    qk_context *context = nullptr;
    qk_io_message message = {};
};

TEST_F(Mistakes, Opening) {
    qk_checkpoint *out = nullptr;
    qk_checkpoint_options options = QK_CHECKPOINT_OPTIONS_INIT;
    const auto open = [&] {
        const qk_status status = qk_checkpoint_open_memory(bytes.data(), bytes.size(), nullptr, 0,
                                                           &options, &out, &message);
        EXPECT_NE('\0', message.text[0]);
        EXPECT_EQ(nullptr, out);
        return status;
    };
    EXPECT_EQ(QK_ERROR_NULL, qk_checkpoint_open(nullptr, nullptr, &out, &message));
    EXPECT_EQ(QK_ERROR_NULL, qk_checkpoint_open("x", nullptr, nullptr, nullptr));
    EXPECT_EQ(QK_ERROR_NULL,
              qk_checkpoint_open_memory(nullptr, 0, nullptr, 0, nullptr, &out, nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_checkpoint_open_memory(bytes.data(), bytes.size(), nullptr, 1,
                                                       nullptr, &out, nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_checkpoint_open_memory(bytes.data(), bytes.size(), nullptr, 0,
                                                       nullptr, nullptr, nullptr));
    options.struct_size -= 1;
    EXPECT_EQ(QK_ERROR_ABI, open());
    options = QK_CHECKPOINT_OPTIONS_INIT;
    options.abi_version += 1;
    EXPECT_EQ(QK_ERROR_ABI, open());
    options = QK_CHECKPOINT_OPTIONS_INIT;
    options.flags = 2;
    EXPECT_EQ(QK_ERROR_ARGUMENT, open());
    for (const int64_t value : {int64_t{-1}, INT64_MIN, INT64_MAX}) {
        options = QK_CHECKPOINT_OPTIONS_INIT;
        options.max_header_bytes = value;
        EXPECT_EQ(QK_ERROR_ARGUMENT, open());
        options = QK_CHECKPOINT_OPTIONS_INIT;
        options.max_tensors = value;
        EXPECT_EQ(QK_ERROR_ARGUMENT, open());
    }
    for (const int32_t value : {-1, 257, INT32_MAX}) {
        options = QK_CHECKPOINT_OPTIONS_INIT;
        options.max_json_depth = value;
        EXPECT_EQ(QK_ERROR_ARGUMENT, open());
    }
    const qk_allocator half = {FailingMemory::allocate, nullptr, nullptr};
    options = QK_CHECKPOINT_OPTIONS_INIT;
    options.allocator = &half;
    EXPECT_EQ(QK_ERROR_NULL, open());
}

TEST_F(Mistakes, Listing) {
    qk_file_tensor tensor;
    qk_layer layer;
    const char *key, *value;
    EXPECT_EQ(0, qk_checkpoint_tensor_count(nullptr));
    EXPECT_EQ(0, qk_checkpoint_layer_count(nullptr));
    EXPECT_EQ(0, qk_checkpoint_metadata_count(nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_checkpoint_tensor(nullptr, 0, &tensor));
    EXPECT_EQ(QK_ERROR_NULL, qk_checkpoint_tensor(checkpoint, 0, nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_checkpoint_find_tensor(checkpoint, nullptr, &tensor));
    EXPECT_EQ(QK_ERROR_NULL, qk_checkpoint_layer(checkpoint, 0, nullptr, sizeof layer));
    EXPECT_EQ(QK_ERROR_NULL, qk_checkpoint_find_layer(checkpoint, nullptr, &layer, sizeof layer));
    EXPECT_EQ(QK_ERROR_NULL, qk_checkpoint_metadata(checkpoint, 0, &key, nullptr));
    EXPECT_EQ(QK_ERROR_ABI, qk_checkpoint_layer(checkpoint, 0, &layer, 40 + 72 - 1));
    EXPECT_EQ(QK_ERROR_ABI, qk_checkpoint_find_layer(checkpoint, "x", &layer, 0));
    for (const int64_t index : {int64_t{-1}, int64_t{3}, INT64_MIN, INT64_MAX}) {
        EXPECT_EQ(QK_ERROR_ARGUMENT, qk_checkpoint_tensor(checkpoint, index, &tensor));
        EXPECT_EQ(QK_ERROR_ARGUMENT, qk_checkpoint_layer(checkpoint, index, &layer, sizeof layer));
        EXPECT_EQ(QK_ERROR_ARGUMENT, qk_checkpoint_metadata(checkpoint, index, &key, &value));
    }
    EXPECT_EQ(QK_ERROR_ARGUMENT, qk_checkpoint_find_tensor(checkpoint, "", &tensor));
    EXPECT_EQ(QK_ERROR_ARGUMENT,
              qk_checkpoint_find_layer(checkpoint, "x.qweight", &layer, sizeof layer));
    EXPECT_STREQ("unknown", qk_dtype_name(-1));
    EXPECT_STREQ("BF16", qk_dtype_name(QK_DTYPE_BF16));
    EXPECT_STREQ("unknown", qk_dialect_name(99));
    EXPECT_STREQ("unknown", qk_dialect_name(-1));
    EXPECT_STREQ("AutoAWQ gemm", qk_dialect_name(QK_DIALECT_AWQ_GEMM));
}

TEST_F(Mistakes, Loading) {
    qk_tensor *weight = nullptr, *bias = nullptr;
    EXPECT_EQ(QK_ERROR_NULL, qk_checkpoint_load(nullptr, context, "x", 0, &weight, &bias, nullptr));
    EXPECT_EQ(QK_ERROR_NULL,
              qk_checkpoint_load(checkpoint, nullptr, "x", 0, &weight, &bias, nullptr));
    EXPECT_EQ(QK_ERROR_NULL,
              qk_checkpoint_load(checkpoint, context, nullptr, 0, &weight, &bias, nullptr));
    EXPECT_EQ(QK_ERROR_NULL,
              qk_checkpoint_load(checkpoint, context, "x", 0, nullptr, &bias, nullptr));
    EXPECT_EQ(QK_ERROR_ARGUMENT,
              qk_checkpoint_load(checkpoint, context, "x", 2, &weight, &bias, nullptr));
    EXPECT_EQ(QK_ERROR_ARGUMENT,
              qk_checkpoint_load(checkpoint, context, "y", 0, &weight, &bias, &message));
    EXPECT_STREQ("layer: there is no \"y\" in the checkpoint", message.text);
    EXPECT_EQ(nullptr, weight);
    EXPECT_EQ(nullptr, bias);
    EXPECT_EQ(QK_ERROR_NULL, qk_checkpoint_verify_layer(nullptr, "x", nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_checkpoint_verify_layer(checkpoint, nullptr, nullptr));
    EXPECT_EQ(QK_ERROR_ARGUMENT, qk_checkpoint_verify_layer(checkpoint, "y", nullptr));
    ASSERT_EQ(QK_OK, qk_checkpoint_load(checkpoint, context, "x", 0, &weight, &bias, &message));
    EXPECT_EQ(nullptr, bias);
    qk_tensor_destroy(weight);
}

TEST_F(Mistakes, InPlaceTensorsAreReadOnly) {
    qk_tensor *weight = nullptr;
    ASSERT_EQ(QK_OK, qk_checkpoint_load(checkpoint, context, "x", QK_LOAD_IN_PLACE, &weight,
                                        nullptr, &message));
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    ASSERT_EQ(QK_OK, qk_tensor_describe(weight, &desc));
    EXPECT_NE(0u, desc.flags & QK_TENSOR_READ_ONLY);
    const std::string before = bytes;
    std::string data(64 * 256 / 2, '\x11');
    EXPECT_EQ(QK_ERROR_STATE,
              qk_tensor_upload(context, weight, QK_PLANE_DATA, data.data(), data.size()));
    EXPECT_TRUE(before == bytes);
    qk_tensor_destroy(weight);
}

TEST_F(Mistakes, Writing) {
    const Folder folder;
    const std::string path = folder.path("out.safetensors");
    const qk_allocator half = {nullptr, FailingMemory::release, nullptr};
    const int64_t shape[] = {1};
    qk_writer *writer = nullptr;
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.rank = 2;
    desc.shape[0] = desc.shape[1] = 2;
    EXPECT_EQ(QK_ERROR_NULL, qk_writer_create(nullptr, nullptr, &writer, nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_writer_create(path.c_str(), nullptr, nullptr, nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_writer_create(path.c_str(), &half, &writer, nullptr));
    ASSERT_EQ(nullptr, writer);
    ASSERT_EQ(QK_OK, qk_writer_create(path.c_str(), nullptr, &writer, nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_writer_declare(nullptr, "t", QK_DTYPE_U8, 1, shape, nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_writer_declare(writer, nullptr, QK_DTYPE_U8, 1, shape, nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_writer_declare(writer, "t", QK_DTYPE_U8, 1, nullptr, nullptr));
    EXPECT_EQ(QK_ERROR_SHAPE, qk_writer_declare(writer, "t", QK_DTYPE_U8, -1, nullptr, nullptr));
    EXPECT_EQ(QK_OK, qk_writer_declare(writer, "s", QK_DTYPE_U8, 0, nullptr, nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_writer_metadata(nullptr, "k", "v", nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_writer_metadata(writer, nullptr, "v", nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_writer_metadata(writer, "k", nullptr, nullptr));
    EXPECT_EQ(QK_ERROR_ARGUMENT, qk_writer_metadata(writer, "k", "\xff", nullptr));
    EXPECT_EQ(QK_OK, qk_writer_metadata(writer, "k", "v", nullptr));
    EXPECT_EQ(QK_ERROR_ARGUMENT, qk_writer_metadata(writer, "k", "v", nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_writer_write(nullptr, "s", "1", 1, nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_writer_write(writer, nullptr, "1", 1, nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_writer_write(writer, "s", nullptr, 1, nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_writer_finish(nullptr, nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_writer_declare_layer(nullptr, QK_DIALECT_DENSE, "x", &desc,
                                                     QK_FORMAT_F32, nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_writer_declare_layer(writer, QK_DIALECT_DENSE, nullptr, &desc,
                                                     QK_FORMAT_F32, nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_writer_declare_layer(writer, QK_DIALECT_DENSE, "x", nullptr,
                                                     QK_FORMAT_F32, nullptr));
    desc.struct_size = 0;
    EXPECT_EQ(QK_ERROR_ABI, qk_writer_declare_layer(writer, QK_DIALECT_DENSE, "x", &desc,
                                                    QK_FORMAT_F32, nullptr));
    desc.struct_size = sizeof desc;
    const int64_t rows = desc.shape[0];
    desc.shape[0] = 0;  // a tensor, and no layer's weight
    EXPECT_EQ(QK_ERROR_SHAPE, qk_writer_declare_layer(writer, QK_DIALECT_DENSE, "x", &desc,
                                                      QK_FORMAT_F32, nullptr));
    desc.shape[0] = rows;
    EXPECT_EQ(QK_ERROR_ARGUMENT,
              qk_writer_declare_layer(writer, QK_DIALECT_DENSE, std::string(1020, 'x').c_str(),
                                      &desc, QK_FORMAT_F32, nullptr));
    qk_tensor *tensor = nullptr;
    desc.shape[1] = 3;
    ASSERT_EQ(QK_OK, qk_tensor_create(context, &desc, &tensor));
    EXPECT_EQ(QK_ERROR_ARGUMENT, qk_writer_write_layer(writer, context, "x", tensor, nullptr));
    desc.shape[1] = 2;
    ASSERT_EQ(QK_OK, qk_writer_declare_layer(writer, QK_DIALECT_DENSE, "x", &desc, QK_FORMAT_F32,
                                             &message))
        << message.text;
    EXPECT_EQ(QK_ERROR_FORMAT, qk_writer_write_layer(writer, context, "x", tensor, nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_writer_write_layer(nullptr, context, "x", tensor, nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_writer_write_layer(writer, nullptr, "x", tensor, nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_writer_write_layer(writer, context, nullptr, tensor, nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_writer_write_layer(writer, context, "x", nullptr, nullptr));
    qk_tensor_destroy(tensor);
    qk_writer_destroy(writer);
    qk_writer_destroy(nullptr);
    EXPECT_TRUE(read_file(path).empty());
}

TEST_F(Mistakes, Configuring) {
    const Folder folder;
    const std::string path = folder.path("config.json");
    qk_layer layer;
    ASSERT_EQ(QK_OK, qk_checkpoint_find_layer(checkpoint, "x", &layer, sizeof layer));
    const char *kept[] = {"a", nullptr, "\xff"};
    const auto write = [&](const char *to, qk_dialect dialect, const qk_tensor_desc *desc,
                           const char *const *names, int64_t count) {
        const qk_status status = qk_checkpoint_write_config(nullptr, to, dialect, desc,
                                                            QK_FORMAT_F16, names, count, &message);
        EXPECT_NE('\0', message.text[0]);
        EXPECT_TRUE(read_file(path).empty());
        return status;
    };
    const qk_dialect ct = QK_DIALECT_COMPRESSED_TENSORS;
    EXPECT_EQ(QK_ERROR_NULL, write(nullptr, ct, &layer.desc, nullptr, 0));
    EXPECT_EQ(QK_ERROR_NULL, write(path.c_str(), ct, nullptr, nullptr, 0));
    EXPECT_EQ(QK_ERROR_NULL, write(path.c_str(), ct, &layer.desc, nullptr, 1));
    EXPECT_EQ(QK_ERROR_NULL, write(path.c_str(), ct, &layer.desc, kept, 2));
    EXPECT_EQ(QK_ERROR_ARGUMENT, write(path.c_str(), ct, &layer.desc, kept + 2, 1));
    EXPECT_EQ(QK_ERROR_ARGUMENT, write(path.c_str(), ct, &layer.desc, kept, -1));
    EXPECT_EQ(QK_ERROR_UNSUPPORTED,
              write(path.c_str(), QK_DIALECT_UNKNOWN, &layer.desc, nullptr, 0));
    EXPECT_EQ(QK_ERROR_FILE,
              write(folder.path("absent/c.json").c_str(), ct, &layer.desc, nullptr, 0));
    ASSERT_EQ(QK_OK, qk_checkpoint_write_config(nullptr, path.c_str(), ct, &layer.desc,
                                                QK_FORMAT_F16, kept, 1, &message));
    EXPECT_NE(std::string::npos, read_file(path).find("\"pack-quantized\""));
}

}  // namespace
