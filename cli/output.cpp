#include "output.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "mapped.hpp"
#include "os.hpp"
#include "scan.hpp"
#include "superseded.hpp"

namespace {

// "bin" of "dir/out.bin": letters and digits that begin with a letter, as no version number does.
std::string extension(const std::string &path) {
    const std::string name = path.substr(os::name_start(path));
    const size_t dot = name.rfind('.');
    if (dot == std::string::npos || dot == 0) return "";
    const std::string end = name.substr(dot + 1);
    const auto is_letter_or_digit = [](unsigned char c) { return std::isalnum(c) != 0; };
    const bool is_word = std::all_of(end.begin(), end.end(), is_letter_or_digit);
    return is_word && !end.empty() && std::isalpha(static_cast<unsigned char>(end[0])) ? end : "";
}

bool is_directory(const std::string &path) { return os::kind_of(path) == os::Kind::kDirectory; }

// A name that looks like another kind of file must not quietly become a directory.
bool is_file_name(const std::string &path) {
    const std::string end = extension(path);
    if (end == "safetensors" || end == "gguf") return true;
    if (end.empty() || is_directory(path)) return false;
    throw Failure(kUsage,
                  path + ": the output is a file named *.safetensors or *.gguf, or a directory; " +
                      path + "/ is a directory whatever its name");
}

// True when it was not there before.
bool make_directory(const std::string &path) {
    if (os::make_directory(path)) return true;
    if (errno == EEXIST && is_directory(path)) return false;
    throw Failure(kFile, "cannot make the directory " + path + ": " + std::strerror(errno));
}

Writer create_writer(const std::string &path) {
    qk_writer *writer = nullptr;
    qk_io_message message = {};
    check(qk_writer_create(path.c_str(), nullptr, &writer, &message), "", message.text);
    return Writer(writer);
}

}  // namespace

void refuse_existing(const std::string &path, bool force) {
    const os::Kind kind = os::kind_of(path);
    const bool is_special = kind == os::Kind::kDirectory || kind == os::Kind::kOther;
    if (!path.empty() && !force && !is_special && os::is_something(path)) {
        throw Failure(kFailed, path + " exists; --force replaces it");
    }
}

Output::Output(const std::string &path, bool force) : model_(path), force_(force) {
    if (is_file_name(path)) {
        refuse_existing(model_, force);
        writer_ = create_writer(model_);
        return;
    }
    directory_ = path;
    model_ = path_in(path, "model.safetensors");
    const std::string config = path_in(path, "config.json");
    refuse_existing(model_, force);
    refuse_existing(config, force);
    removed_ = superseded_files(path);
    if (!removed_.empty()) refuse_existing(removed_[0], force);
    if (make_directory(path)) made_directory_ = path;
    try {
        writer_ = create_writer(model_);
        config_ = create_writer(config);
    } catch (...) {
        roll_back();
        throw;
    }
}

Output::~Output() {
    if (!committed_) roll_back();
}

void Output::roll_back() {
    writer_.reset();
    config_.reset();
    copies_.clear();
    if (!made_directory_.empty()) os::remove_directory(made_directory_);
}

bool Output::is_gguf() const { return extension(model_) == "gguf" && !has_config(); }

void Output::refuse_dialect(qk_dialect dialect) const {
    if (is_gguf() == (dialect == QK_DIALECT_GGUF)) return;
    const std::string name = qk_dialect_name(dialect);
    throw Failure(kUnsupported,
                  is_gguf() ? model_ + ": files named *.gguf hold GGUF's types alone, not " + name
                            : name + "'s types are written to a file named *.gguf");
}

bool Output::is_in(const std::string &directory) const {
    os::Identity here, there;
    return !directory_.empty() && os::identify(directory_, &here) &&
           os::identify(directory, &there) && here.is_same(there);
}

void Output::copy_file(const std::string &from, const std::string &name, Progress *progress) {
    const std::string to = path_in(directory_, name);
    refuse_existing(to, force_);
    copies_.push_back(create_writer(to));
    const std::unique_ptr<FILE, int (*)(FILE *)> file(os::open_file(from), std::fclose);
    std::vector<char> piece(1 << 20);
    qk_io_message message = {};
    size_t bytes = 1;
    while (file != nullptr && bytes > 0) {
        bytes = std::fread(piece.data(), 1, piece.size(), file.get());
        progress->advance(0, name);
        check(qk_writer_append(copies_.back().get(), piece.data(), bytes, &message), "",
              message.text);
    }
    if (file == nullptr || std::ferror(file.get()) != 0) {
        throw Failure(kFile, "cannot read " + from + ": " + std::strerror(errno));
    }
}

void Output::commit() {
    check_files_whole();
    std::vector<qk_writer *> writers = {writer_.get()};
    if (has_config()) writers.push_back(config_.get());
    for (const Writer &copy : copies_) writers.push_back(copy.get());
    std::vector<const char *> removed;
    for (const std::string &path : removed_) removed.push_back(path.c_str());
    qk_io_message message = {};
    check(qk_writer_finish_all(writers.data(), static_cast<int64_t>(writers.size()), removed.data(),
                               static_cast<int64_t>(removed.size()), &message),
          "", message.text);
    committed_ = true;
}

void note_removed(const CommonOptions &common, const Output &output) {
    if (common.quiet || common.json || output.removed().empty()) return;
    std::fprintf(stderr,
                 "qk: removed %s of the model that was there: index, shards, quantization\n",
                 plural(static_cast<int64_t>(output.removed().size()), "file").c_str());
}

Json removed_json(const Output &output) {
    Json names = json_new_array();
    for (const std::string &path : output.removed()) {
        json_append(names, Json(json_string(printable(path).c_str())));
    }
    return names;
}

// In a GGUF file metadata have types and meanings of their own.
void declare_metadata(const Checkpoint &from, const Output &to) {
    if (to.is_gguf()) return;
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
        const qk_status status = qk_writer_write(to.writer(), tensor.name, data + at,
                                                 static_cast<size_t>(bytes), &message);
        // The system cannot write from a page that it cannot read; reading it tells the reason.
        if (status != QK_OK) touch(data + at, bytes);
        check(status, "", message.text);
    }
}
