#include "superseded.hpp"

#include <set>

#include <sys/stat.h>

#include "json.hpp"

namespace {

bool exists(const std::string &path) {
    struct stat status;
    return lstat(path.c_str(), &status) == 0;
}

// An index is not trusted: it names files of its own directory, and no others go.
bool is_shard_name(const std::string &name) {
    const std::string end = ".safetensors";
    return name.size() > end.size() && name[0] != '.' && name.find('/') == std::string::npos &&
           name.compare(name.size() - end.size(), end.size(), end) == 0 &&
           name != "model.safetensors";
}

}  // namespace

std::vector<std::string> superseded_files(const std::string &directory) {
    std::vector<std::string> found;
    const std::string index = directory + "/model.safetensors.index.json";
    std::set<std::string> others = {"quantize_config.json", "quant_config.json",
                                    "hf_quant_config.json"};
    if (exists(index)) {
        found.push_back(index);
        const Json root(json_load_file(index.c_str(), 0, nullptr));  // NULL: it names nothing
        const char *name = nullptr;
        json_t *file = nullptr;
        json_object_foreach(json_object_get(root.get(), "weight_map"), name, file) {
            const char *text = json_string_value(file);
            if (text != nullptr && is_shard_name(text)) others.insert(text);
        }
    }
    for (const std::string &other : others) {
        if (exists(directory + "/" + other)) found.push_back(directory + "/" + other);
    }
    return found;
}
