#include "output.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <sys/stat.h>
#include <unistd.h>

namespace {

bool exists(const std::string &path) {
    struct stat status;
    return lstat(path.c_str(), &status) == 0;
}

// "bin" of "dir/out.bin": letters and digits that begin with a letter, as no version number does.
std::string extension(const std::string &path) {
    const std::string name = path.substr(path.rfind('/') + 1);
    const size_t dot = name.rfind('.');
    if (dot == std::string::npos || dot == 0) return "";
    const std::string end = name.substr(dot + 1);
    const auto is_letter_or_digit = [](unsigned char c) { return std::isalnum(c) != 0; };
    const bool is_word = std::all_of(end.begin(), end.end(), is_letter_or_digit);
    return is_word && !end.empty() && std::isalpha(static_cast<unsigned char>(end[0])) ? end : "";
}

bool is_directory(const std::string &path) {
    struct stat status;
    return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

// A name that looks like another kind of file must not quietly become a directory.
bool is_file_name(const std::string &path) {
    const std::string end = extension(path);
    if (end == "safetensors") return true;
    if (end.empty() || is_directory(path)) return false;
    throw Failure(kUsage, path + ": the output is a file named *.safetensors or a directory; " +
                              path + "/ is a directory whatever its name");
}

void refuse_existing(const std::string &path, bool force) {
    if (!path.empty() && !force && exists(path)) {
        throw Failure(kFailed, path + " exists; --force replaces it");
    }
}

// True when it was not there before.
bool make_directory(const std::string &path) {
    if (mkdir(path.c_str(), 0777) == 0) return true;
    if (errno == EEXIST && is_directory(path)) return false;
    throw Failure(kFile, "cannot make the directory " + path + ": " + std::strerror(errno));
}

}  // namespace

Output::Output(const std::string &path, bool force) : model_(path) {
    if (!is_file_name(path)) {
        model_ = path + "/model.safetensors";
        config_ = path + "/config.json";
        config_draft_ = path + "/.config.json." + std::to_string(getpid());
    }
    refuse_existing(model_, force);
    refuse_existing(config_, force);
    model_existed_ = exists(model_);
    if (has_config() && make_directory(path)) made_directory_ = path;
    qk_writer *writer = nullptr;
    qk_io_message message = {};
    const qk_status status = qk_writer_create(model_.c_str(), nullptr, &writer, &message);
    if (status != QK_OK) roll_back();
    check(status, "", message.text);
    writer_.reset(writer);
}

Output::~Output() {
    if (!committed_) roll_back();
}

void Output::roll_back() {
    writer_.reset();
    if (has_config()) unlink(config_draft_.c_str());
    if (model_written_ && !model_existed_) unlink(model_.c_str());
    if (!made_directory_.empty()) rmdir(made_directory_.c_str());
}

void Output::commit() {
    qk_io_message message = {};
    check(qk_writer_finish(writer_.get(), &message), "", message.text);
    model_written_ = true;
    if (has_config() && std::rename(config_draft_.c_str(), config_.c_str()) != 0) {
        throw Failure(kFile, "cannot write " + config_ + ": " + std::strerror(errno));
    }
    committed_ = true;
}

void declare_metadata(const Checkpoint &from, const Output &to) {
    qk_io_message message = {};
    std::set<std::string> seen;
    const int64_t count = qk_checkpoint_metadata_count(from.get());
    for (int64_t i = 0; i < count; ++i) {
        const char *key = nullptr, *value = nullptr;
        check(qk_checkpoint_metadata(from.get(), i, &key, &value), "metadata", nullptr);
        if (!seen.insert(key).second) continue;  // every shard has its own "format"
        check(qk_writer_metadata(to.writer(), key, value, &message), "", message.text);
    }
    if (seen.count("format") == 0) {
        check(qk_writer_metadata(to.writer(), "format", "pt", &message), "", message.text);
    }
}

void declare_copy(const Output &to, const qk_file_tensor &tensor) {
    qk_io_message message = {};
    check(qk_writer_declare(to.writer(), tensor.name, tensor.dtype, tensor.rank, tensor.shape,
                            &message),
          "", message.text);
}

void write_copy(const Output &to, const qk_file_tensor &tensor, Progress *progress) {
    constexpr int64_t kPiece = 16 << 20;
    const char *data = static_cast<const char *>(tensor.data);
    qk_io_message message = {};
    for (int64_t at = 0; at < tensor.bytes; at += kPiece) {
        const int64_t bytes = std::min(kPiece, tensor.bytes - at);
        progress->advance(bytes, tensor.name);
        check(qk_writer_write(to.writer(), tensor.name, data + at, static_cast<size_t>(bytes),
                              &message),
              "", message.text);
    }
}
