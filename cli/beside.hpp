// The files beside a model's weights: which of them a new directory gets, and why others are left.
#pragma once
#include <string>
#include <vector>

#include "json.hpp"
#include "output.hpp"

// config.json's "model_type"; "" where nothing says it.
std::string model_type(const Checkpoint &checkpoint);

struct Beside {
    struct Left {
        std::string name, reason;
    };
    std::vector<std::string> copied;
    std::vector<Left> left;
    bool lacks_config = false;  // a config.json is written, and the input has none to begin with
};
// Copies tokenizer, generation_config.json, chat template and whatever else is no weights, to take
// its place with the output's commit. Nothing where the output is one file, or in the input's
// directory. Hidden files are no part of a model.
Beside copy_beside(const std::string &input, const Checkpoint &checkpoint, Output *output,
                   Progress *progress);

void note_beside(const CommonOptions &common, const Beside &beside);
void set_beside(const Json &root, const Beside &beside);  // "copied_files" ... "config_of_model"
