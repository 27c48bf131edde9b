// Several files as one: whatever call of the system fails, all are old or all are new.
#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>

#include "maker.hpp"
#include "qk_io.h"
#include "system.hpp"

namespace {

using io_test::Folder;
using io_test::read_file;
using io_test::the_system;
using Contents = std::map<std::string, std::string>;

Contents contents(const Folder &folder) {
    Contents result;
    DIR *dir = opendir(folder.path().c_str());
    while (const dirent *entry = readdir(dir)) {
        const std::string name = entry->d_name;
        if (name == "." || name == "..") continue;
        result[name] = read_file(folder.path(name));
    }
    closedir(dir);
    return result;
}

const Contents kOld = {{"config", "old"}, {"index", "old"}, {"model", "old"}, {"shard", "old"}};
const Contents kNew = {{"added", "new"}, {"config", "new"}, {"model", "new"}};

// Replaces model and config, adds one file and removes two, one of which is not there.
struct Outcome {
    qk_status status;
    std::string sentence;
};
Outcome replace_all(const Folder &folder) {
    qk_writer *writers[3] = {};
    const char *const names[] = {"model", "config", "added"};
    const std::string removed[] = {folder.path("index"), folder.path("shard"),
                                   folder.path("absent")};
    const char *const gone[] = {removed[0].c_str(), removed[1].c_str(), removed[2].c_str()};
    qk_io_message message = {};
    qk_status status = QK_OK;
    for (int i = 0; status == QK_OK && i < 3; ++i) {
        status = qk_writer_create(folder.path(names[i]).c_str(), nullptr, &writers[i], &message);
        if (status == QK_OK) status = qk_writer_append(writers[i], "new", 3, &message);
    }
    if (status == QK_OK) status = qk_writer_finish_all(writers, 3, gone, 3, &message);
    for (qk_writer *writer : writers) qk_writer_destroy(writer);
    return {status, message.text};
}

void fill(const Folder &folder, const Contents &wanted) {
    for (const auto &[name, text] : contents(folder)) unlink(folder.path(name).c_str());
    for (const auto &[name, text] : wanted) folder.write(name, text);
}

bool ends(const std::string &text, const std::string &end) {
    return text.size() >= end.size() &&
           text.compare(text.size() - end.size(), end.size(), end) == 0;
}

TEST(Commit, AllTakeTheirPlaces) {
    const Folder folder;
    fill(folder, kOld);
    const Outcome outcome = replace_all(folder);
    EXPECT_EQ(QK_OK, outcome.status) << outcome.sentence;
    EXPECT_EQ(kNew, contents(folder));
}

TEST(Commit, EveryCallFailsInTurn) {
    const Folder folder;
    for (const char *call :
         {"create", "pwrite", "flock", "fchmod", "fsync", "link", "rename", "unlink", "open"}) {
        int64_t n = 0;
        for (;; ++n) {
            fill(folder, kOld);
            ASSERT_EQ(0, chmod(folder.path("model").c_str(), 0604));
            the_system() = {};
            the_system().failing = call;
            the_system().fail_at = n;
            const Outcome outcome = replace_all(folder);
            const bool reached = the_system().made > n;
            the_system() = {};
            if (!reached) {
                EXPECT_EQ(QK_OK, outcome.status);
                break;
            }
            Contents now = contents(folder);
            if (std::string(call) == "unlink" && outcome.status == QK_OK) {
                // A name of an old file that could not be deleted; the next writer deletes it.
                qk_writer *writer = nullptr;
                ASSERT_EQ(QK_OK,
                          qk_writer_create(folder.path("next").c_str(), nullptr, &writer, nullptr));
                qk_writer_destroy(writer);
                now = contents(folder);
            }
            const bool in_place =
                ends(outcome.sentence, "which is complete and in its place: Input/output error");
            EXPECT_EQ(outcome.status == QK_OK || in_place ? kNew : kOld, now)
                << call << " " << n << ": " << outcome.sentence;
            EXPECT_EQ(outcome.status != QK_OK, !outcome.sentence.empty());
            if (std::string(call) == "rename") {
                EXPECT_TRUE(ends(outcome.sentence, "; all files are as they were"))
                    << outcome.sentence;
            }
            ASSERT_LT(n, 100);
        }
        EXPECT_GT(n, 0) << call;
    }
}

TEST(Commit, SaysWhatStandsWhenTheStepsCannotBeTakenBack) {
    const Folder folder;
    for (int64_t n = 0; n < 5; ++n) {
        fill(folder, kOld);
        the_system() = {};
        the_system().failing = "rename";
        the_system().fail_at = n;
        the_system().from_then_on = true;
        const Outcome outcome = replace_all(folder);
        the_system() = {};
        ASSERT_EQ(QK_ERROR_FILE, outcome.status) << n;
        Contents now = contents(folder);
        int64_t changed = 0;
        for (const char *name : {"model", "config"}) {
            const std::string says = std::string(name) + " is new and was .qk-";
            const bool said = outcome.sentence.find(says) != std::string::npos;
            EXPECT_EQ(said, now[name] == "new") << n << " " << outcome.sentence;
            changed += said;
        }
        EXPECT_EQ(0u, now.count("added")) << "what was not there can always be taken back";
        const bool gone = outcome.sentence.find("index is removed and was") != std::string::npos;
        EXPECT_EQ(gone, now.count("index") == 0) << outcome.sentence;
        changed += gone;
        EXPECT_EQ(n == 0, ends(outcome.sentence, "; all files are as they were"));
        int64_t kept = 0;  // the old contents of what changed
        for (const auto &[name, text] : now) kept += name.compare(0, 4, ".qk-") == 0;
        EXPECT_EQ(changed, kept);
    }
}

TEST(Commit, WithoutHardLinks) {
    const Folder folder;
    fill(folder, kOld);
    the_system() = {};
    the_system().failing = "link";
    the_system().fail_at = 0;
    the_system().from_then_on = true;
    the_system().error = EPERM;
    EXPECT_EQ(QK_OK, replace_all(folder).status);
    EXPECT_EQ(kNew, contents(folder));
    the_system() = {};
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
