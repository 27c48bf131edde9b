// What every system does alike when files are written and replaced: replace.cpp and commit.cpp have
// what needs POSIX.
#include <gtest/gtest.h>

#include "harness/system.hpp"
#include "several.hpp"

namespace {

using namespace io_test;

class Files : public testing::Test {
  protected:
    void TearDown() override {
        qk_checkpoint_destroy(checkpoint);
        qk_writer_destroy(writer);
    }
    qk_status create(const std::string &at) {
        qk_writer_destroy(writer);
        writer = nullptr;
        return qk_writer_create(at.c_str(), nullptr, &writer, &message);
    }
    qk_status finish(const std::string &text) {
        const qk_status status = qk_writer_append(writer, text.data(), text.size(), &message);
        return status == QK_OK ? qk_writer_finish(writer, &message) : status;
    }
    void put(const std::string &at, const std::string &text) {
        ASSERT_EQ(QK_OK, create(at)) << message.text;
        ASSERT_EQ(QK_OK, finish(text)) << message.text;
    }
    std::vector<std::string> names() const { return folder.names(); }

    Folder folder;
    const std::string path = folder.path("f");
    qk_writer *writer = nullptr;
    qk_checkpoint *checkpoint = nullptr;
    qk_io_message message = {};
};

TEST_F(Files, TheOldStaysUntilTheNewIsWhole) {
    folder.write("f", "old");
    ASSERT_EQ(QK_OK, create(path));
    ASSERT_EQ(QK_OK, qk_writer_append(writer, "new", 3, &message));
    EXPECT_EQ("old", read_file(path));
    ASSERT_EQ(QK_OK, qk_writer_finish(writer, &message)) << message.text;
    EXPECT_EQ("new", read_file(path));
    ASSERT_EQ(QK_OK, create(path));
    ASSERT_EQ(QK_OK, qk_writer_append(writer, "never", 5, &message));
    qk_writer_destroy(writer);
    writer = nullptr;
    EXPECT_EQ("new", read_file(path));
    EXPECT_EQ(std::vector<std::string>{"f"}, names());
}

TEST_F(Files, AMappedCheckpointKeepsItsBytesWhenItIsReplaced) {
    if (!harness::can_replace_open_files()) GTEST_SKIP() << "the system keeps what is open";
    const std::string old = Maker().add("x", "U8", {2}, "12").build();
    folder.write("f", old);
    for (const uint32_t flags : {0u, QK_CHECKPOINT_READ}) {
        folder.write("f", old);
        qk_checkpoint_options options = QK_CHECKPOINT_OPTIONS_INIT;
        options.flags = flags;
        ASSERT_EQ(QK_OK, qk_checkpoint_open(path.c_str(), &options, &checkpoint, &message));
        put(path, Maker().add("x", "U8", {2}, "34").build());
        qk_file_tensor tensor;
        ASSERT_EQ(QK_OK, qk_checkpoint_find_tensor(checkpoint, "x", &tensor));
        EXPECT_EQ(0, memcmp(tensor.data, "12", 2));
        qk_checkpoint_destroy(checkpoint);
        ASSERT_EQ(QK_OK, qk_checkpoint_open(path.c_str(), &options, &checkpoint, &message));
        ASSERT_EQ(QK_OK, qk_checkpoint_find_tensor(checkpoint, "x", &tensor));
        EXPECT_EQ(0, memcmp(tensor.data, "34", 2));
        qk_checkpoint_destroy(checkpoint);
        checkpoint = nullptr;
    }
}

TEST_F(Files, LeftoversGoAndWhatIsInUseStays) {
    folder.write(".qk-notes.tmp", "mine");
    folder.write(".qk-12-ab-0.old", "of a commit that was killed");
    qk_writer *other = nullptr;
    ASSERT_EQ(QK_OK, qk_writer_create(folder.path("g").c_str(), nullptr, &other, &message));
    EXPECT_EQ(2u, names().size()) << "notes, and the other writer's";
    put(path, "new");
    EXPECT_EQ(3u, names().size());
    ASSERT_EQ(QK_OK, qk_writer_append(other, "other", 5, &message));
    ASSERT_EQ(QK_OK, qk_writer_finish(other, &message)) << message.text;
    qk_writer_destroy(other);
    EXPECT_EQ((std::vector<std::string>{".qk-notes.tmp", "f", "g"}), names());
    EXPECT_EQ("other", read_file(folder.path("g")));
}

TEST_F(Files, OfTwoWritersTheLastToFinishWins) {
    qk_writer *other = nullptr;
    ASSERT_EQ(QK_OK, create(path));
    ASSERT_EQ(QK_OK, qk_writer_create(path.c_str(), nullptr, &other, &message));
    EXPECT_EQ(2u, names().size());
    ASSERT_EQ(QK_OK, qk_writer_append(other, "other", 5, &message));
    ASSERT_EQ(QK_OK, qk_writer_finish(other, &message)) << message.text;
    EXPECT_EQ("other", read_file(path));
    ASSERT_EQ(QK_OK, finish("this"));
    EXPECT_EQ("this", read_file(path));
    qk_writer_destroy(other);
    EXPECT_EQ(std::vector<std::string>{"f"}, names());
}

TEST_F(Files, AppendingAndDeclaringExcludeEachOther) {
    const int64_t two[] = {2};
    ASSERT_EQ(QK_OK, create(path));
    EXPECT_EQ(0, qk_writer_bytes(writer));
    ASSERT_EQ(QK_OK, qk_writer_append(writer, nullptr, 0, &message));
    ASSERT_EQ(QK_OK, qk_writer_append(writer, "ab", 2, &message));
    EXPECT_EQ(QK_ERROR_STATE, qk_writer_declare(writer, "t", QK_DTYPE_U8, 1, two, &message));
    EXPECT_EQ(QK_ERROR_STATE, qk_writer_metadata(writer, "k", "v", &message));
    EXPECT_EQ(2, qk_writer_bytes(writer));
    ASSERT_EQ(QK_OK, qk_writer_finish(writer, &message));
    EXPECT_EQ("ab", read_file(path));
    EXPECT_EQ(QK_ERROR_STATE, qk_writer_append(writer, "c", 1, &message));
    ASSERT_EQ(QK_OK, create(path));
    ASSERT_EQ(QK_OK, qk_writer_declare(writer, "t", QK_DTYPE_F32, 1, two, &message));
    EXPECT_EQ(8, qk_writer_bytes(writer));
    EXPECT_EQ(QK_ERROR_STATE, qk_writer_append(writer, "c", 1, &message));
    EXPECT_EQ(0, qk_writer_bytes(nullptr));
    EXPECT_EQ(QK_ERROR_NULL, qk_writer_append(nullptr, "c", 1, &message));
    EXPECT_EQ(QK_ERROR_NULL, qk_writer_append(writer, nullptr, 1, &message));
}

TEST(Commit, AllTakeTheirPlaces) {
    const Folder folder;
    fill(folder, kOld);
    const Outcome outcome = replace_all(folder);
    EXPECT_EQ(QK_OK, outcome.status) << outcome.sentence;
    EXPECT_EQ(kNew, contents(folder));
}

TEST(Commit, Mistakes) {
    const Folder folder;
    qk_writer *a = nullptr, *b = nullptr;
    qk_io_message message = {};
    ASSERT_EQ(QK_OK, qk_writer_create(folder.path("a").c_str(), nullptr, &a, &message));
    ASSERT_EQ(QK_OK, qk_writer_create(folder.path("a").c_str(), nullptr, &b, &message));
    const std::string path = folder.path("a");
    const char *gone[] = {path.c_str()}, *none[] = {nullptr};
    qk_writer *both[] = {a, b}, *hole[] = {a, nullptr};
    const auto finish =
        [&](qk_writer **writers, int64_t count, const char *const *removed, int64_t removed_count) {
        const qk_status status =
            qk_writer_finish_all(writers, count, removed, removed_count, &message);
        EXPECT_NE('\0', message.text[0]);
        return status;
    };
    EXPECT_EQ(QK_ERROR_NULL, finish(nullptr, 1, nullptr, 0));
    EXPECT_EQ(QK_ERROR_NULL, finish(hole, 2, nullptr, 0));
    EXPECT_EQ(QK_ERROR_NULL, finish(&a, 1, nullptr, 1));
    EXPECT_EQ(QK_ERROR_NULL, finish(&a, 1, none, 1));
    EXPECT_EQ(QK_ERROR_ARGUMENT, finish(&a, 0, nullptr, 0));
    EXPECT_EQ(QK_ERROR_ARGUMENT, finish(&a, -1, nullptr, 0));
    EXPECT_EQ(QK_ERROR_ARGUMENT, finish(&a, INT64_MAX, nullptr, 0));
    EXPECT_EQ(QK_ERROR_ARGUMENT, finish(&a, 1, nullptr, -1));
    EXPECT_EQ(QK_ERROR_ARGUMENT, finish(both, 2, nullptr, 0));
    EXPECT_EQ(QK_ERROR_ARGUMENT, finish(&a, 1, gone, 1));
    const int64_t one[] = {1};
    ASSERT_EQ(QK_OK, qk_writer_declare(b, "t", QK_DTYPE_U8, 1, one, &message));
    EXPECT_EQ(QK_ERROR_STATE, finish(&b, 1, nullptr, 0));
    ASSERT_EQ(QK_OK, qk_writer_write(b, "t", "x", 1, &message));
    ASSERT_EQ(QK_OK, qk_writer_finish(b, &message)) << message.text;
    ASSERT_EQ(QK_OK, qk_writer_finish(a, &message)) << message.text;
    EXPECT_EQ(QK_ERROR_STATE, finish(&a, 1, nullptr, 0));
    qk_writer_destroy(a);
    qk_writer_destroy(b);
}

}  // namespace
