// Several files as one: whatever call of the system fails, all are old or all are new.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>

#include "several.hpp"
#include "system.hpp"

namespace {

using namespace io_test;

bool ends(const std::string &text, const std::string &end) {
    return text.size() >= end.size() &&
           text.compare(text.size() - end.size(), end.size(), end) == 0;
}

TEST(Commit, EveryCallFailsInTurn) {
    const Folder folder;
    for (const std::string &call : calls_of_a_commit()) {
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
            if (call == "unlink" && outcome.status == QK_OK) {
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
            if (call == "rename") {
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

}  // namespace
