// Values of config.json: found by their path, refused by their type, absent in one way only.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "maker.hpp"
#include "qk_io.h"

namespace {

using namespace io_test;

constexpr const char *kConfig = R"({
    "model_type": "llama", "hidden_size": 2048, "rms_norm_eps": 1e-05, "big": 12345678901234,
    "tie": true, "untied": false, "head_dim": null, "": {"": 7}, "empty": "",
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "deep": {"er": [1, {"x": -3}]}},
    "eos_token_id": [2, 128001, "text"], "list": [], "dot.ted": 1})";

class ConfigValues : public testing::Test {
  protected:
    void SetUp() override { open(kConfig); }
    void TearDown() override { qk_checkpoint_destroy(checkpoint); }
    void open(const char *config) {
        qk_checkpoint_destroy(checkpoint);
        checkpoint = nullptr;
        bytes = Maker().build();
        ASSERT_EQ(QK_OK, qk_checkpoint_open_memory(bytes.data(), bytes.size(), config,
                                                   config == nullptr ? 0 : strlen(config), nullptr,
                                                   &checkpoint, &message))
            << message.text;
    }
    void number(const char *key, double expected) {
        double value = NAN;
        EXPECT_EQ(QK_OK, qk_checkpoint_config_number(checkpoint, key, &value, &message)) << key;
        EXPECT_EQ(expected, value) << key;
        EXPECT_STREQ("", message.text);
    }
    // Both calls say so, and leave what they were given alone.
    void absent(const char *key) {
        double value = 42;
        char text[8] = "before";
        EXPECT_EQ(QK_ERROR_ARGUMENT, qk_checkpoint_config_number(checkpoint, key, &value, &message))
            << key;
        EXPECT_NE(nullptr, strstr(message.text, "config.json")) << message.text;
        EXPECT_EQ(QK_ERROR_ARGUMENT,
                  qk_checkpoint_config_text(checkpoint, key, text, sizeof text, nullptr))
            << key;
        EXPECT_EQ(42, value);
        EXPECT_STREQ("before", text);
    }

    std::string bytes;
    qk_checkpoint *checkpoint = nullptr;
    qk_io_message message = {"stale"};
};

TEST_F(ConfigValues, NumbersAndTruth) {
    number("hidden_size", 2048);
    number("rms_norm_eps", 1e-05);
    number("big", 12345678901234);
    number("tie", 1);
    number("untied", 0);
    number("rope_scaling.factor", 8);
    number("rope_scaling.deep.er.0", 1);
    number("rope_scaling.deep.er.1.x", -3);
    number("eos_token_id.1", 128001);
    number("eos_token_id.01", 128001);
    number(".", 7);
}

TEST_F(ConfigValues, Texts) {
    char text[8];
    EXPECT_EQ(QK_OK, qk_checkpoint_config_text(checkpoint, "rope_scaling.rope_type", text,
                                               sizeof text, &message));
    EXPECT_STREQ("llama3", text);
    EXPECT_STREQ("", message.text);
    EXPECT_EQ(QK_OK, qk_checkpoint_config_text(checkpoint, "eos_token_id.2", text, 5, nullptr));
    EXPECT_STREQ("text", text);
    EXPECT_EQ(QK_OK, qk_checkpoint_config_text(checkpoint, "empty", text, 1, nullptr));
    EXPECT_STREQ("", text);
    strcpy(text, "before");
    EXPECT_EQ(QK_ERROR_BUFFER_SIZE,
              qk_checkpoint_config_text(checkpoint, "model_type", text, 5, &message));
    EXPECT_STREQ("capacity: 5; \"model_type\" of config.json needs 6", message.text);
    EXPECT_STREQ("before", text);
    EXPECT_EQ(QK_OK, qk_checkpoint_config_text(checkpoint, "model_type", text, 6, &message));
    EXPECT_STREQ("llama", text);
}

TEST_F(ConfigValues, WhatIsNotThere) {
    for (const char *key :
         {"hidden", "hidden_size_", "head_dim", "rope_scaling.", "rope_scaling.none", "list.0",
          "rope_scaling.deep.er.2", "eos_token_id.3", "eos_token_id.-1", "eos_token_id.1x",
          "eos_token_id.", "eos_token_id.18446744073709551617", "hidden_size.0", "model_type.0",
          "dot.ted", "..", "tie.x"}) {
        absent(key);
    }
    absent(std::string(256, 'x').c_str());
    std::string dots(100000, '.');
    dots.push_back('x');
    absent(dots.c_str());
    open("{}");
    absent("hidden_size");
    open(nullptr);
    absent("hidden_size");
    double value;
    qk_checkpoint_config_number(checkpoint, "hidden_size", &value, &message);
    EXPECT_STREQ("key: \"hidden_size\", but there is no config.json", message.text);
}

TEST_F(ConfigValues, WrongTypesAreNamed) {
    const struct {
        const char *key, *is;
    } kCases[] = {{"model_type", "a text"},
                  {"rope_scaling", "an object"},
                  {"list", "a list"},
                  {"eos_token_id", "a list"}};
    for (const auto &c : kCases) {
        double value = 42;
        EXPECT_EQ(QK_ERROR_FORMAT,
                  qk_checkpoint_config_number(checkpoint, c.key, &value, &message));
        const std::string said = std::string("config.json: \"") + c.key + "\" is " + c.is;
        EXPECT_EQ(said + ", not a number", message.text);
        EXPECT_EQ(42, value);
    }
    char text[8];
    for (const char *key : {"hidden_size", "rms_norm_eps"}) {
        EXPECT_EQ(QK_ERROR_FORMAT, qk_checkpoint_config_text(checkpoint, key, text, 8, &message));
        EXPECT_NE(nullptr, strstr(message.text, "is a number, not a text")) << message.text;
    }
    EXPECT_EQ(QK_ERROR_FORMAT, qk_checkpoint_config_text(checkpoint, "tie", text, 8, &message));
    EXPECT_NE(nullptr, strstr(message.text, "is true or false, not a text")) << message.text;
}

TEST_F(ConfigValues, ArgumentsThatAreMissing) {
    double value;
    char text[8];
    EXPECT_EQ(QK_ERROR_NULL, qk_checkpoint_config_number(nullptr, "a", &value, &message));
    EXPECT_STREQ("checkpoint: NULL", message.text);
    EXPECT_EQ(QK_ERROR_NULL, qk_checkpoint_config_number(checkpoint, nullptr, &value, &message));
    EXPECT_STREQ("key: NULL", message.text);
    EXPECT_EQ(QK_ERROR_NULL, qk_checkpoint_config_number(checkpoint, "a", nullptr, &message));
    EXPECT_STREQ("value: NULL", message.text);
    EXPECT_EQ(QK_ERROR_NULL, qk_checkpoint_config_text(nullptr, "a", text, 8, &message));
    EXPECT_EQ(QK_ERROR_NULL, qk_checkpoint_config_text(checkpoint, nullptr, text, 8, &message));
    EXPECT_EQ(QK_ERROR_NULL, qk_checkpoint_config_text(checkpoint, "a", nullptr, 8, &message));
    EXPECT_STREQ("text: NULL", message.text);
}

TEST(ConfigOfFiles, IsTheOneBesideTheModel) {
    const Folder folder;
    folder.write("model.safetensors", Maker().build());
    folder.write("config.json", R"({"vocab_size": 256})");
    folder.write("quantize_config.json", R"({"bits": 4})");
    qk_checkpoint *checkpoint = nullptr;
    ASSERT_EQ(QK_OK, qk_checkpoint_open(folder.path().c_str(), nullptr, &checkpoint, nullptr));
    double value = 0;
    EXPECT_EQ(QK_OK, qk_checkpoint_config_number(checkpoint, "vocab_size", &value, nullptr));
    EXPECT_EQ(256, value);
    EXPECT_EQ(QK_ERROR_ARGUMENT, qk_checkpoint_config_number(checkpoint, "bits", &value, nullptr));
    qk_checkpoint_destroy(checkpoint);
}

}  // namespace
