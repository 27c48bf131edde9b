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
    // What a config.json that is written begins with: the input's; or nothing, where the input has
    // none or has it beside a GGUF file.
    enum class Config { kUnwritten, kOfModel, kNone, kUnread };
    Config config = Config::kUnwritten;
};
// Copies tokenizer, generation_config.json, chat template and whatever else is no weights, to take
// its place with the output's commit. Nothing where the output is one file, or in the input's
// directory, which is refused where its config.json would be lost. Hidden files are no part of a
// model. copies: false for a part of a model.
Beside copy_beside(const std::string &input, const Checkpoint &checkpoint, Output *output,
                   Progress *progress, bool copies = true);

void note_beside(const CommonOptions &common, const Beside &beside);
void set_beside(const Json &root, const Beside &beside);  // "copied_files" ... "config_of_model"
