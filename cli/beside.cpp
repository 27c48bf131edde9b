#include "beside.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>

#include "layers.hpp"
#include "os.hpp"

namespace {

std::vector<std::string> names_in(const std::string &directory) {
    std::vector<std::string> names;
    if (!os::list(directory, &names)) {
        throw Failure(kFile, "cannot list the directory " + directory);
    }
    const auto is_hidden = [](const std::string &name) { return name[0] == '.'; };
    names.erase(std::remove_if(names.begin(), names.end(), is_hidden), names.end());
    std::sort(names.begin(), names.end());
    return names;
}

// Of the model itself: replaced by the new one's.
bool is_replaced(const std::string &name, const std::set<std::string> &weights) {
    return weights.count(name) != 0 || name == "config.json" ||
           name == "model.safetensors.index.json";
}

// "" for what is copied.
std::string why_left(const std::string &directory, const std::string &name) {
    static const char *const kWeights[] = {
        ".safetensors", ".bin",       ".pt",      ".pth", ".ckpt", ".h5",    ".gguf",
        ".onnx",        ".onnx_data", ".msgpack", ".ot",  ".npz",  ".tflite"};
    const std::string path = path_in(directory, name);
    if (os::kind_of(path) == os::Kind::kDirectory) return "a directory";
    if (os::kind_of(path) != os::Kind::kFile) return "no regular file";
    if (name == "quantize_config.json" || name == "quant_config.json" ||
        name == "hf_quant_config.json") {
        return "it describes the weights as they were";
    }
    if (ends_with(name, ".index.json")) return "an index of files that are not copied";
    for (const char *end : kWeights) {
        if (ends_with(name, end)) return "weights that are no part of the model read";
    }
    return "";
}

// The directory of a model that was opened by this path; "" without a config.json, as it then need
// not be a model's own.
std::string model_directory(const std::string &path) {
    const size_t name = os::name_start(path);
    std::string directory = name == 0 ? "." : path.substr(0, name);
    if (os::kind_of(path) == os::Kind::kDirectory) directory = path;
    return os::kind_of(path_in(directory, "config.json")) == os::Kind::kFile ? directory : "";
}

// Told as the library does, by the first bytes: no config.json is read for a GGUF file.
bool is_gguf(const std::string &path) {
    char magic[4] = {};
    const std::unique_ptr<FILE, int (*)(FILE *)> file(os::open_file(path), std::fclose);
    return file != nullptr && std::fread(magic, 1, sizeof(magic), file.get()) == sizeof(magic) &&
           std::memcmp(magic, "GGUF", sizeof(magic)) == 0;
}

}  // namespace

std::string model_type(const Checkpoint &checkpoint) {
    char type[256];
    const qk_status status =
        qk_checkpoint_config_text(checkpoint.get(), "model_type", type, sizeof(type), nullptr);
    return status == QK_OK ? type : "";
}

Beside copy_beside(const std::string &input, const Checkpoint &checkpoint, Output *output,
                   Progress *progress, bool copies) {
    Beside beside;
    if (!output->has_config()) return beside;
    const std::string directory = model_directory(input);
    beside.config = directory.empty() ? Beside::Config::kNone : Beside::Config::kOfModel;
    if (directory.empty()) return beside;
    const std::vector<qk_file_tensor> tensors = all_tensors(checkpoint);
    if (!tensors.empty() && is_gguf(path_in(directory, tensors[0].file))) {
        beside.config = Beside::Config::kUnread;
    }
    if (output->is_in(directory)) {
        if (beside.config != Beside::Config::kUnread) return beside;
        throw Failure(kFailed, path_in(directory, "config.json") +
                                   " would be replaced, and none is read beside a GGUF file; take "
                                   "another directory");
    }
    if (!copies) return beside;
    std::set<std::string> weights;
    for (const qk_file_tensor &tensor : tensors) weights.insert(tensor.file);
    for (const std::string &name : names_in(directory)) {
        if (is_replaced(name, weights)) continue;
        const std::string reason = why_left(directory, name);
        if (!reason.empty()) {
            beside.left.push_back({name, reason});
            continue;
        }
        output->copy_file(path_in(directory, name), name, progress);
        beside.copied.push_back(name);
    }
    return beside;
}

void note_beside(const CommonOptions &common, const Beside &beside) {
    if (common.quiet || common.json) return;
    for (const Beside::Left &left : beside.left) {
        std::fprintf(stderr, "qk: not copied: %s: %s\n", printable(left.name).c_str(),
                     left.reason.c_str());
    }
    if (beside.config == Beside::Config::kNone || beside.config == Beside::Config::kUnread) {
        const bool none = beside.config == Beside::Config::kNone;
        std::fprintf(stderr,
                     "qk: config.json has no model_type and no sizes, as %s; readers want the "
                     "original model's\n",
                     none ? "the input has no config.json to take them from"
                          : "no config.json is read beside a GGUF file");
    }
    if (beside.copied.empty()) return;
    std::string names;
    for (const std::string &name : beside.copied) {
        names += (names.empty() ? "" : ", ") + printable(name);
    }
    std::printf("copied: %s\n", names.c_str());
}

void set_beside(const Json &root, const Beside &beside) {
    Json copied = json_new_array(), left = json_new_array();
    for (const std::string &name : beside.copied) {
        json_append(copied, Json(json_string(printable(name).c_str())));
    }
    for (const Beside::Left &file : beside.left) {
        Json object = json_new_object();
        json_set(object, "name", file.name);
        json_set(object, "reason", file.reason);
        json_append(left, std::move(object));
    }
    json_set(root, "copied_files", std::move(copied));
    json_set(root, "files_not_copied", std::move(left));
    if (beside.config != Beside::Config::kUnwritten) {
        json_set(root, "config_of_model", beside.config == Beside::Config::kOfModel);
    }
}
