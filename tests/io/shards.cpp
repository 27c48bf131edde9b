// Sharded checkpoints, directories, and the files beside a model.
#include <gtest/gtest.h>

#include "maker.hpp"
#include "qk_io.h"

namespace {

using io_test::Folder;
using io_test::Maker;

constexpr const char *kIndex = "model.safetensors.index.json";

class Shards : public testing::Test {
  protected:
    void SetUp() override {
        folder.write("a.safetensors", Maker().add("x", "U8", {2}, "12").build());
        folder.write("b.safetensors",
                     Maker().add("y", "U8", {1}, "3").add("z", "U8", {1}, "4").build());
    }
    void TearDown() override { qk_checkpoint_destroy(checkpoint); }

    qk_status open(const std::string &name = "") {
        qk_checkpoint_destroy(checkpoint);
        checkpoint = nullptr;
        return qk_checkpoint_open(folder.path(name).c_str(), nullptr, &checkpoint, &message);
    }
    void index(const std::string &map) {
        folder.write(kIndex, "{\"metadata\":{\"total_size\":4},\"weight_map\":" + map + "}");
    }
    void refused(qk_status status, const char *sentence) {
        EXPECT_EQ(status, open());
        EXPECT_NE(nullptr, strstr(message.text, sentence)) << message.text;
    }

    Folder folder;
    qk_checkpoint *checkpoint = nullptr;
    qk_io_message message = {};
};

const char *const kGoodMap =
    "{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\",\"z\":\"b.safetensors\"}";

TEST_F(Shards, OpenThroughTheDirectoryAndTheIndex) {
    index(kGoodMap);
    for (const char *name : {"", kIndex}) {
        ASSERT_EQ(QK_OK, open(name)) << message.text;
        ASSERT_EQ(3, qk_checkpoint_tensor_count(checkpoint));
        qk_file_tensor z;
        ASSERT_EQ(QK_OK, qk_checkpoint_find_tensor(checkpoint, "z", &z));
        EXPECT_STREQ("b.safetensors", z.file);
        EXPECT_EQ('4', *static_cast<const char *>(z.data));
    }
}

TEST_F(Shards, OnlyBaseNames) {
    for (const char *name : {"../a.safetensors", "/a.safetensors", "./a.safetensors", "",
                             "d\\\\a.safetensors", ".safetensors", "a.pt", ".."}) {
        index(std::string("{\"x\":\"") + name + "\"}");
        refused(QK_ERROR_CORRUPT, "is not a shard's name");
    }
    index("{\"x\":7}");
    refused(QK_ERROR_CORRUPT, "not a string");
    index("{\"x\":\"pytorch_model-00001-of-00002.bin\"}");
    refused(QK_ERROR_UNSUPPORTED, "names PyTorch's .bin files");
}

TEST_F(Shards, MissingShard) {
    index("{\"x\":\"a.safetensors\",\"w\":\"c.safetensors\"}");
    refused(QK_ERROR_FILE, "c.safetensors: cannot open");
}

TEST_F(Shards, TensorInTwoShards) {
    folder.write("b.safetensors", Maker().add("x", "U8", {1}, "3").build());
    index("{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}");
    refused(QK_ERROR_CORRUPT, "in two shards");
}

TEST_F(Shards, TensorInTheOtherShard) {
    index("{\"x\":\"a.safetensors\",\"y\":\"a.safetensors\",\"z\":\"b.safetensors\"}");
    refused(QK_ERROR_CORRUPT, "\"y\" is not in a.safetensors");
}

TEST_F(Shards, TensorNowhere) {
    index("{\"x\":\"a.safetensors\",\"w\":\"b.safetensors\",\"z\":\"b.safetensors\"}");
    refused(QK_ERROR_CORRUPT, "\"w\" is not in b.safetensors");
}

TEST_F(Shards, TensorTheIndexDoesNotKnow) {
    index("{\"x\":\"a.safetensors\",\"z\":\"b.safetensors\"}");
    refused(QK_ERROR_CORRUPT, "weight_map has 2 tensors, the shards have 3");
}

TEST_F(Shards, TensorTwiceInTheMap) {
    index("{\"x\":\"a.safetensors\",\"x\":\"a.safetensors\"}");
    refused(QK_ERROR_CORRUPT, "\"x\" twice");
}

TEST_F(Shards, DamagedIndexes) {
    folder.write(kIndex, "[]");
    refused(QK_ERROR_CORRUPT, "not a JSON object");
    folder.write(kIndex, "");
    refused(QK_ERROR_CORRUPT, "not a JSON object");
    folder.write(kIndex, "{\"metadata\":{}}");
    refused(QK_ERROR_CORRUPT, "no weight_map");
    folder.write(kIndex, "{\"weight_map\":{},\"weight_map\":{}}");
    refused(QK_ERROR_CORRUPT, "weight_map is there twice");
    folder.write(kIndex, "{\"weight_map\":[]}");
    refused(QK_ERROR_CORRUPT, "weight_map is not a JSON object");
    folder.write(kIndex, "{\"metadata\":{\"a\":1,\"a\":2},\"weight_map\":{}}");
    refused(QK_ERROR_CORRUPT, "duplicate");
}

TEST_F(Shards, DirectoryWithoutAModel) {
    refused(QK_ERROR_FILE, "2 other *.safetensors instead of one");
    folder.remove("b.safetensors");
    ASSERT_EQ(QK_OK, open()) << message.text;  // exactly one: that one
    EXPECT_EQ(1, qk_checkpoint_tensor_count(checkpoint));
    folder.remove("a.safetensors");
    refused(QK_ERROR_FILE, "a directory without *.safetensors or *.gguf");
}

TEST_F(Shards, PathsThatAreNoFiles) {
    EXPECT_EQ(QK_ERROR_FILE, open("absent.safetensors"));
    EXPECT_NE(nullptr, strstr(message.text, "No such file")) << message.text;
    folder.make("folder.safetensors");
    EXPECT_EQ(QK_ERROR_FILE, open("folder.safetensors"));
    EXPECT_EQ(QK_ERROR_FILE, open(std::string(5000, 'x')));
}

TEST_F(Shards, DamagedConfigurationBesideTheModel) {
    folder.write("model.safetensors", Maker().add("x", "U8", {2}, "12").build());
    struct {
        const char *file, *text, *sentence;
    } const cases[] = {
        {"config.json", "{", "config.json is not valid JSON"},
        {"config.json", "{\"a\":1,\"a\":2}", "duplicate"},
        {"config.json", "[]", "its JSON must be an object"},
        {"config.json", "{\"quantization_config\":4}",
         "the quantization configuration must be an object"},
        {"config.json", "{\"quantization_config\":{\"quant_method\":4}}", "must be a string"},
        {"quantize_config.json", "{\"desc_act\":false,\"bits\":\"4\"}", "must be an integer"},
        {"quant_config.json", "{\"w_bit\":4.0}", "must be an integer"},
        {"quantize_config.json", "{\"desc_act\":0}", "must be true or false"},
    };
    for (const auto &c : cases) {
        folder.write(c.file, c.text);
        refused(QK_ERROR_CORRUPT, c.sentence);
        folder.remove(c.file);
    }
    folder.write("config.json", "{\"deep\":" + std::string(100, '[') + std::string(100, ']') + "}");
    refused(QK_ERROR_CORRUPT, "nested deeper than 32");
}

}  // namespace
