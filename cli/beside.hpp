// A model's directory: what lies beside its weights, and what of that a new directory gets.
#pragma once
#include <string>
#include <vector>

#include "json.hpp"
#include "output.hpp"

// The directory of a model that was opened by this path; "" without a config.json, as it then need
// not be a model's own.
std::string model_directory(const std::string &path);
// config.json's "model_type"; "" where nothing says it.
std::string model_type(const std::string &directory);

struct Beside {
    struct Left {
        std::string name, reason;
    };
    std::vector<std::string> copied;
    std::vector<Left> left;
};
// Copies tokenizer, generation_config.json, chat template and whatever else is no weights, to take
// its place with the output's commit. Nothing where the output is one file, or in the input's
// directory. Hidden files are no part of a model.
Beside copy_beside(const std::string &input, const Checkpoint &checkpoint, Output *output,
                   Progress *progress);

void note_beside(const CommonOptions &common, const Beside &beside);
void set_beside(const Json &root, const Beside &beside);  // "copied_files", "files_not_copied"
