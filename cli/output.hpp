// What quantize and dequantize write: all of it or nothing.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "common.hpp"
#include "json.hpp"
#include "progress.hpp"

// What is there is replaced with --force when it is a file; the library refuses everything else.
void refuse_existing(const std::string &path, bool force);

class Output {
  public:
    // path: a file named *.safetensors or *.gguf, or a directory. Refuses existing files without
    // force.
    Output(const std::string &path, bool force);
    // Removes what was made unless commit() came to its end.
    ~Output();
    Output(const Output &) = delete;
    Output &operator=(const Output &) = delete;

    qk_writer *writer() const { return writer_.get(); }
    bool is_gguf() const;
    // Throws where a file of this name holds no layers of the dialect.
    void refuse_dialect(qk_dialect dialect) const;
    bool has_config() const { return config_ != nullptr; }
    qk_writer *config() const { return config_.get(); }
    // Whether the directory that is written is this one.
    bool is_in(const std::string &directory) const;
    // Another file for the directory, which takes its place with the commit.
    void copy_file(const std::string &from, const std::string &name, Progress *progress);
    // Files of the old model that go with the commit: its index, if any, the shards it names, and
    // what else says how its weights were quantized.
    const std::vector<std::string> &removed() const { return removed_; }
    // All files take their places and the removed files go, or nothing does.
    void commit();

  private:
    void roll_back();
    std::string model_, directory_, made_directory_;
    bool force_;
    std::vector<std::string> removed_;
    bool committed_ = false;
    Writer writer_, config_;
    std::vector<Writer> copies_;
};

void note_removed(const CommonOptions &common, const Output &output);
Json removed_json(const Output &output);

// The __metadata__ of the input, and the entry that Python's loaders ask for.
void declare_metadata(const Checkpoint &from, const Output &to);
void declare_copy(const Output &to, const qk_file_tensor &tensor);
void write_copy(const Output &to, const qk_file_tensor &tensor, Progress *progress);
