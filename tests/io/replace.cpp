// What a writer replaces, with which permissions, what it leaves and what it cleans.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "maker.hpp"
#include "qk_io.h"
#include "system.hpp"

namespace {

using io_test::Folder;
using io_test::read_file;
using io_test::the_system;

class Replace : public testing::Test {
  protected:
    void SetUp() override { the_system() = {}; }
    void TearDown() override {
        the_system() = {};
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
    // A file of this text at path, through the writer.
    void put(const std::string &at, const std::string &text) {
        ASSERT_EQ(QK_OK, create(at)) << message.text;
        ASSERT_EQ(QK_OK, finish(text)) << message.text;
    }
    std::vector<std::string> names() const { return folder.names(); }
    // The one unfinished file.
    std::string unfinished() const {
        std::string found;
        for (const std::string &name : names()) {
            if (name.compare(0, 4, ".qk-") == 0) found = name;
        }
        return folder.path(found);
    }
    static mode_t mode_of(const std::string &path) {
        struct stat status;
        return lstat(path.c_str(), &status) == 0 ? status.st_mode & 07777 : 0;
    }
    void said(const std::string &piece) {
        EXPECT_NE(std::string::npos, std::string(message.text).find(piece)) << message.text;
    }

    Folder folder;
    const std::string path = folder.path("f");
    qk_writer *writer = nullptr;
    qk_io_message message = {};
};

TEST_F(Replace, OnTheDiskBeforeItHasTheNameAndTheDirectoryAfter) {
    put(path, "new");
    std::vector<std::string> order;
    for (const std::string &call : the_system().calls) {
        if (call.compare(0, 5, "fsync") == 0 || call.compare(0, 6, "rename") == 0) {
            order.push_back(call);
        }
    }
    ASSERT_EQ(3u, order.size());
    EXPECT_EQ(0u, order[0].find("fsync .qk-")) << order[0];
    EXPECT_EQ("rename " + order[0].substr(6) + " f", order[1]);
    EXPECT_EQ("fsync directory", order[2]);
}

TEST_F(Replace, ModesAreKept) {
    const mode_t before = umask(022);
    for (const mode_t mode : {0600u, 0640u, 0444u, 0755u, 0666u, 0u}) {
        folder.write("f", "old");
        ASSERT_EQ(0, chmod(path.c_str(), mode));
        ASSERT_EQ(QK_OK, create(path));
        EXPECT_EQ(0600u, mode_of(unfinished()));
        ASSERT_EQ(QK_OK, finish("new")) << message.text;
        EXPECT_EQ(mode, mode_of(path));
        ASSERT_EQ(0, unlink(path.c_str()));
    }
    for (const mode_t mask : {022u, 077u, 0u}) {
        umask(mask);
        ASSERT_EQ(QK_OK, create(path));
        EXPECT_EQ(0666u & ~mask, mode_of(unfinished()));
        ASSERT_EQ(QK_OK, finish("new"));
        EXPECT_EQ(0666u & ~mask, mode_of(path));
        ASSERT_EQ(0, unlink(path.c_str()));
    }
    umask(before);
}

TEST_F(Replace, AGroupThatCannotBeHadGetsNothing) {
    if (geteuid() != 0) GTEST_SKIP() << "only root can make a file of another group";
    folder.write("f", "old");
    ASSERT_EQ(0, chown(path.c_str(), 12345, 12346));
    ASSERT_EQ(0, chmod(path.c_str(), 0664));
    put(path, "new");
    struct stat status;
    ASSERT_EQ(0, stat(path.c_str(), &status));
    EXPECT_EQ(12345u, status.st_uid);
    EXPECT_EQ(12346u, status.st_gid);
    EXPECT_EQ(0664u, mode_of(path));
    the_system().failing = "fchown";
    the_system().fail_at = 0;
    the_system().from_then_on = true;
    put(path, "newer");
    EXPECT_EQ(0604u, mode_of(path));
}

TEST_F(Replace, OnlyRegularFiles) {
    const auto refused = [&](const std::string &at, const char *kind) {
        ASSERT_EQ(QK_ERROR_FILE, create(at));
        EXPECT_EQ(nullptr, writer);
        said(at + ": cannot replace: it is " + kind);
    };
    ASSERT_EQ(0, mkdir(folder.path("directory").c_str(), 0700));
    ASSERT_EQ(0, mkfifo(folder.path("pipe").c_str(), 0600));
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    strcpy(address.sun_path, folder.path("socket").c_str());
    ASSERT_EQ(0, bind(fd, reinterpret_cast<sockaddr *>(&address), sizeof address));
    close(fd);
    refused(folder.path("directory"), "a directory");
    refused(folder.path("pipe"), "a pipe");
    refused(folder.path("socket"), "a socket");
    refused("/dev/null", "a device");
    refused(folder.path("directory/.."), "a directory");
    ASSERT_EQ(0, symlink("/dev/null", folder.path("link").c_str()));
    ASSERT_EQ(QK_ERROR_FILE, create(folder.path("link")));
    said("/dev/null: cannot replace: it is a device");
    EXPECT_EQ(QK_ERROR_FILE, create(""));
    EXPECT_EQ((std::vector<std::string>{"directory", "link", "pipe", "socket"}), names());
    // What comes while the file is written is not replaced either.
    ASSERT_EQ(QK_OK, create(path));
    ASSERT_EQ(0, mkfifo(path.c_str(), 0600));
    EXPECT_EQ(QK_ERROR_FILE, finish("new"));
    said("f: cannot replace: it is not a regular file");
    EXPECT_EQ((std::vector<std::string>{"directory", "f", "link", "pipe", "socket"}), names());
}

TEST_F(Replace, AReaderDoesNotWaitForAPipe) {
    ASSERT_EQ(0, mkfifo(path.c_str(), 0600));
    qk_checkpoint *checkpoint = nullptr;
    EXPECT_EQ(QK_ERROR_FILE, qk_checkpoint_open(path.c_str(), nullptr, &checkpoint, &message));
    said("not a regular file");
}

TEST_F(Replace, LinksAreFollowed) {
    ASSERT_EQ(0, mkdir(folder.path("blobs").c_str(), 0700));
    folder.write("blobs/old", "old");
    ASSERT_EQ(0, chmod(folder.path("blobs/old").c_str(), 0600));
    ASSERT_EQ(0, symlink("blobs/old", folder.path("relative").c_str()));
    ASSERT_EQ(0, symlink(folder.path("relative").c_str(), folder.path("absolute").c_str()));
    for (const char *name : {"relative", "absolute"}) {
        put(folder.path(name), name);
        struct stat status;
        ASSERT_EQ(0, lstat(folder.path(name).c_str(), &status));
        EXPECT_TRUE(S_ISLNK(status.st_mode)) << name;
        EXPECT_EQ(name, read_file(folder.path("blobs/old")));
        EXPECT_EQ(0600u, mode_of(folder.path("blobs/old")));
    }
    ASSERT_EQ(0, symlink("blobs/none", folder.path("dangling").c_str()));
    put(folder.path("dangling"), "made");
    EXPECT_EQ("made", read_file(folder.path("blobs/none")));
    ASSERT_EQ(0, symlink("no/such", folder.path("nowhere").c_str()));
    EXPECT_EQ(QK_ERROR_FILE, create(folder.path("nowhere")));
    ASSERT_EQ(0, symlink("b", folder.path("a").c_str()));
    ASSERT_EQ(0, symlink("a", folder.path("b").c_str()));
    EXPECT_EQ(QK_ERROR_FILE, create(folder.path("a")));
    EXPECT_EQ(7u, names().size());
}

TEST_F(Replace, LeftoversOfAKilledProcessGo) {
    int ready[2];
    ASSERT_EQ(0, pipe(ready));
    const pid_t child = fork();
    if (child == 0) {  // holds its file until it is killed; not for ever when an assertion fails
        alarm(20);
        const bool good = create(path) == QK_OK;
        if (write(ready[1], good ? "+" : "-", 1) != 1) _exit(1);
        for (;;) pause();
    }
    char answer = 0;
    ASSERT_EQ(1, read(ready[0], &answer, 1));
    ASSERT_EQ('+', answer);
    folder.write(".qk-notes.tmp", "mine");
    folder.write(".qk-12-ab-0.old", "of a commit that was killed");
    ASSERT_EQ(0, symlink("f", folder.path(".qk-1-1-1.tmp").c_str()));
    EXPECT_EQ(4u, names().size());
    put(path, "first");  // while the other one lives
    EXPECT_EQ(4u, names().size());
    EXPECT_NE(0, access(folder.path(".qk-12-ab-0.old").c_str(), F_OK));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    EXPECT_EQ(4u, names().size()) << "the file of the killed process stays until the next writer";
    put(path, "second");
    EXPECT_EQ((std::vector<std::string>{".qk-1-1-1.tmp", ".qk-notes.tmp", "f"}), names());
    EXPECT_EQ("second", read_file(path));
    close(ready[0]);
    close(ready[1]);
}

TEST_F(Replace, WithoutLocksNothingIsTakenForALeftover) {
    folder.write(".qk-12-ab-0.tmp", "?");
    the_system().failing = "flock";
    the_system().fail_at = 0;
    the_system().from_then_on = true;
    the_system().error = ENOSYS;
    put(path, "new");
    EXPECT_EQ((std::vector<std::string>{".qk-12-ab-0.tmp", "f"}), names());
}

TEST_F(Replace, AForkedChildLeavesItsParentsFileAlone) {
    const int64_t one[] = {1};
    ASSERT_EQ(QK_OK, create(path));
    ASSERT_EQ(QK_OK, qk_writer_declare(writer, "t", QK_DTYPE_U8, 1, one, &message));
    const pid_t child = fork();
    if (child == 0) {
        const bool refused =
            qk_writer_metadata(writer, "k", "v", &message) == QK_ERROR_STATE &&
            qk_writer_declare(writer, "u", QK_DTYPE_U8, 1, one, &message) == QK_ERROR_STATE &&
            qk_writer_append(writer, "x", 1, &message) == QK_ERROR_STATE &&
            qk_writer_write(writer, "t", "x", 1, &message) == QK_ERROR_STATE &&
            qk_writer_finish(writer, &message) == QK_ERROR_STATE &&
            strstr(message.text, "in a forked child only destroy is left") != nullptr;
        qk_writer_destroy(writer);
        _exit(refused ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(child, waitpid(child, &status, 0));
    EXPECT_EQ(0, status);
    // The parent's file is there, and its lock holds.
    put(folder.path("g"), "other");
    ASSERT_EQ(QK_OK, create(path));
    const pid_t second = fork();
    if (second == 0) {
        qk_writer_destroy(writer);
        _exit(0);
    }
    ASSERT_EQ(second, waitpid(second, &status, 0));
    qk_writer *cleaner = nullptr;
    ASSERT_EQ(QK_OK, qk_writer_create(folder.path("h").c_str(), nullptr, &cleaner, &message));
    qk_writer_destroy(cleaner);
    ASSERT_EQ(QK_OK, finish("parent")) << message.text;
    EXPECT_EQ("parent", read_file(path));
    EXPECT_EQ((std::vector<std::string>{"f", "g"}), names());
}

TEST_F(Replace, ShortAndInterruptedWrites) {
    std::string text;
    for (int i = 0; i < 1000; ++i) text += std::to_string(i);
    ASSERT_EQ(QK_OK, create(path));
    the_system().short_write = 7;
    the_system().failing = "pwrite";
    the_system().fail_at = 5;
    the_system().error = EINTR;
    ASSERT_EQ(QK_OK, finish(text)) << message.text;
    EXPECT_EQ(text, read_file(path));
    ASSERT_EQ(QK_OK, create(path));
    the_system().made = 0;
    the_system().error = ENOSPC;
    EXPECT_EQ(QK_ERROR_FILE, finish("short" + text));
    said("f: cannot write: No space left on device");
    qk_writer_destroy(writer);
    writer = nullptr;
    EXPECT_EQ(text, read_file(path));
    EXPECT_EQ(std::vector<std::string>{"f"}, names());
}

}  // namespace
