// qk_gru_describe for callers older and newer than this library, and qk_gru_save to the byte.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>

#include "network.hpp"

namespace {

using gru_test::Network;
using gru_test::Session;

class GruDescribe : public testing::Test {
  protected:
    void SetUp() override {
        Network net;
        net.c = net.h = 1;
        net.w = {1, 2, 3}, net.r = {0.5f, 0.25f, 0.125f}, net.bw = {0, 1, 0}, net.br = {1, 0, 0};
        net.calib = {0.5f, -0.5f, 0.25f};
        gru_ = session_.frozen(net, {});
        full_.struct_size = sizeof(full_);
        ASSERT_EQ(qk_gru_describe(gru_, &full_), QK_OK);
    }

    Session session_;
    qk_gru *gru_ = nullptr;
    qk_gru_model full_ = {};
};

TEST_F(GruDescribe, FillsWhatASmallerStructHolds) {
    for (std::uint32_t size :
         {std::uint32_t(4), std::uint32_t(8), std::uint32_t(19),
          std::uint32_t(offsetof(qk_gru_model, shift)), std::uint32_t(sizeof(qk_gru_model) - 8)}) {
        std::vector<unsigned char> bytes(size + 16, 0xa5);
        std::memcpy(bytes.data(), &size, 4);
        ASSERT_EQ(qk_gru_describe(gru_, reinterpret_cast<qk_gru_model *>(bytes.data())), QK_OK);
        std::uint32_t filled = 0;
        std::memcpy(&filled, bytes.data(), 4);
        EXPECT_EQ(filled, size);
        EXPECT_EQ(
            std::memcmp(bytes.data() + 4, reinterpret_cast<const char *>(&full_) + 4, size - 4), 0);
        for (std::size_t i = size; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], 0xa5);
    }
}

TEST_F(GruDescribe, ZeroesWhatALargerStructHasMore) {
    const std::uint32_t size = sizeof(qk_gru_model) + 40;
    std::vector<std::uint64_t> words(size / 8 + 2, 0xa5a5a5a5a5a5a5a5);
    unsigned char *const bytes = reinterpret_cast<unsigned char *>(words.data());
    std::memcpy(bytes, &size, 4);
    qk_gru_model *const model = reinterpret_cast<qk_gru_model *>(bytes);
    ASSERT_EQ(qk_gru_describe(gru_, model), QK_OK);
    EXPECT_EQ(std::memcmp(bytes, &full_, sizeof(full_)), 0);  // struct_size: what was filled
    for (std::uint32_t i = sizeof(full_); i < size; ++i) ASSERT_EQ(bytes[i], 0);
    for (std::uint32_t i = size; i < size + 8; ++i) ASSERT_EQ(bytes[i], 0xa5);
    qk_gru *copy = nullptr;
    EXPECT_EQ(qk_gru_create_from_model(session_.context, model, &copy), QK_OK);
    qk_gru_destroy(copy);
}

TEST_F(GruDescribe, RefusesSizesThatAreNone) {
    for (const std::uint32_t size : {0u, 3u, 4097u, 0xa5a5a5a5u}) {
        qk_gru_model model;
        std::memset(&model, 0xa5, sizeof(model));
        model.struct_size = size;
        EXPECT_EQ(qk_gru_describe(gru_, &model), QK_ERROR_ABI);
        EXPECT_EQ(model.struct_size, size);
        EXPECT_EQ(model.flags, 0xa5a5a5a5u);
    }
}

TEST_F(GruDescribe, SaveTakesItsBytesAndNotOneLess) {
    const std::vector<char> file = session_.save(gru_);
    std::vector<char> room(file.size() + 1, 0x5a);
    std::size_t bytes = 0;
    EXPECT_EQ(qk_gru_save(gru_, room.data(), file.size() - 1, &bytes), QK_ERROR_BUFFER_SIZE);
    EXPECT_EQ(bytes, file.size());  // what it would take
    EXPECT_EQ(room, std::vector<char>(file.size() + 1, 0x5a));
    ASSERT_EQ(qk_gru_save(gru_, room.data(), file.size(), &bytes), QK_OK);
    EXPECT_EQ(std::memcmp(room.data(), file.data(), file.size()), 0);
    EXPECT_EQ(room.back(), 0x5a);
}

}  // namespace
