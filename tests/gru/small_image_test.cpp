// The loader of 8-bit microcontroller builds accepts what image_read() accepts and is_small()
// takes, fills the same cell, and nothing else: random models, and each damaged in one place with
// its checksum put right.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <map>

#include "gru/image.hpp"
#include "gru/small_image.hpp"
#include "owned_model.hpp"

namespace {

using qk::gru::Cell;
using qk::gru::Fault;

using Image = std::vector<std::uint64_t>;

std::uint8_t *bytes_of(Image &image) { return reinterpret_cast<std::uint8_t *>(image.data()); }

void put_checksum(Image &image) {
    std::uint32_t crc = ~0u;
    for (std::size_t i = 32; i < image.size() * 8; ++i) {
        crc ^= bytes_of(image)[i];
        for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
    }
    crc = ~crc;
    std::memcpy(bytes_of(image) + 24, &crc, 4);
}

// Cells as bytes: all but padding, and lines_is_32, which only larger machines ask for.
void expect_same(const Cell &full, const Cell &small) {
    const auto word = [](const Cell &cell, std::size_t at) {
        std::int32_t value;
        std::memcpy(&value, reinterpret_cast<const char *>(&cell) + at, 4);
        return value;
    };
    for (std::size_t at = 0; at < offsetof(Cell, update); at += 4) {
        if (at == offsetof(Cell, lines_is_32)) continue;
        ASSERT_EQ(word(full, at), word(small, at)) << "cell's word " << at / 4;
    }
    const qk::gru::Table *const tables[][2] = {{&full.update, &small.update},
                                               {&full.reset, &small.reset},
                                               {&full.candidate, &small.candidate}};
    for (const auto &pair : tables) {
        ASSERT_EQ(pair[0]->threshold, pair[1]->threshold);
        ASSERT_EQ(pair[0]->slope, pair[1]->slope);
        ASSERT_EQ(pair[0]->intercept, pair[1]->intercept);
        for (std::size_t at = offsetof(qk::gru::Table, kind); at <= offsetof(qk::gru::Table, half);
             at += 4)
            ASSERT_EQ(std::memcmp(reinterpret_cast<const char *>(pair[0]) + at,
                                  reinterpret_cast<const char *>(pair[1]) + at, 4),
                      0)
                << "table's byte " << at;
    }
}

struct Counts {
    int accepted = 0;
    std::map<Fault, int> refused;  // kNone: sound, but not small
};

void compare(Image &image, std::size_t bytes, Counts &counts) {
    qk_gru_model model;
    Cell full, small;
    std::memset(static_cast<void *>(&full), 0, sizeof(full));
    std::memset(static_cast<void *>(&small), 0, sizeof(small));
    const Fault fault = qk::gru::image_read(image.data(), bytes, &model, &full);
    const bool is_small = fault == Fault::kNone && qk::gru::is_small(full);
    ASSERT_EQ(qk::gru::small_image_read(image.data(), bytes, &small), is_small)
        << qk::gru::fault_text(fault);
    if (!is_small) {
        ++counts.refused[fault];
        return;
    }
    ++counts.accepted;
    expect_same(full, small);
}

// One place of the header, of a shift, an offset or any byte, to something else.
void damage(Image &image, std::mt19937_64 &random) {
    const std::size_t words = (464 - 32) / 4;
    const auto below = [&](std::size_t limit) -> std::size_t { return random() % limit; };
    if (random() % 4 == 0) {
        bytes_of(image)[32 + below(image.size() * 8 - 32)] = static_cast<std::uint8_t>(random());
        return;
    }
    std::uint8_t *const at = bytes_of(image) + 32 + 4 * below(words);
    std::int32_t value;
    std::memcpy(&value, at, 4);
    const std::int32_t near[] = {value + 1, value - 1, value ^ 1, -value, value * 2, value + 16};
    value =
        random() % 4 == 0 ? static_cast<std::int32_t>(random() >> (random() % 56)) : near[below(6)];
    std::memcpy(at, &value, 4);
}

TEST(GruSmallImage, AcceptsWhatTheLargerLoaderProvesAndNothingElse) {
#if defined(QK_SANITIZED) || defined(QK_EMULATED)
    constexpr int kModels = 200;
#else
    constexpr int kModels = 800;
#endif
    std::mt19937_64 random(21);
    Counts counts;
    for (int i = 0; i < kModels && !testing::Test::HasFatalFailure(); ++i) {
        gru_test::RandomOptions options;
        options.c = 1 + static_cast<int>(random() % 9);
        options.h = 1 + static_cast<int>(random() % 9);
        options.extreme = i % 2 == 0;
        options.weight_bits = i % 8 == 0 ? 16 : 8;
        options.most_bits = i % 4 == 0 ? 16 : 8;
        gru_test::OwnedModel owned(options.c, options.h);
        gru_test::randomize(owned, random, options);
        const qk_gru_model &model = owned.view();
        Image image(static_cast<std::size_t>(qk::gru::image_bytes(model)) / 8);
        if (qk::gru::image_write(model, image.data()) != Fault::kNone) continue;
        compare(image, image.size() * 8, counts);
        compare(image, 8 * (random() % image.size()), counts);
        for (int repeat = 0; repeat < 12; ++repeat) {
            Image damaged(image);
            damage(damaged, random);
            if (random() % 16 != 0) put_checksum(damaged);
            compare(damaged, damaged.size() * 8, counts);
        }
    }
    std::printf("%d accepted; refused:", counts.accepted);
    for (const auto &[fault, count] : counts.refused)
        std::printf(" %d (%s)", count, qk::gru::fault_text(fault));
    std::printf("\n");
    EXPECT_GT(counts.accepted, kModels);
    EXPECT_GE(counts.refused.size(), 10u);  // of every kind that bytes can have
    Image none(64);
    Cell cell;
    EXPECT_FALSE(qk::gru::small_image_read(nullptr, 512, &cell));
    EXPECT_FALSE(qk::gru::small_image_read(bytes_of(none) + 4, 508, &cell));
}

}  // namespace
