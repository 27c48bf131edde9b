// What quantize and dequantize write: all of it or nothing.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "common.hpp"
#include "progress.hpp"

class Output {
  public:
    // path: a file named *.safetensors, or a directory. Refuses existing files without force.
    Output(const std::string &path, bool force);
    // Removes what was made unless commit() came to its end.
    ~Output();
    Output(const Output &) = delete;
    Output &operator=(const Output &) = delete;

    qk_writer *writer() const { return writer_.get(); }
    bool has_config() const { return !config_.empty(); }
    // Where to write the configuration; commit() gives it its name.
    const std::string &config_draft() const { return config_draft_; }
    const std::string &model() const { return model_; }
    void commit();

  private:
    void roll_back();
    std::string model_, config_, config_draft_, made_directory_;
    bool model_existed_ = false, model_written_ = false, committed_ = false;
    Writer writer_;
};

// The __metadata__ of the input, and the entry that Python's loaders ask for.
void declare_metadata(const Checkpoint &from, const Output &to);
void declare_copy(const Output &to, const qk_file_tensor &tensor);
void write_copy(const Output &to, const qk_file_tensor &tensor, Progress *progress);
