#include "superseded.hpp"

#include <cstdio>
#include <memory>
#include <set>

#include "common.hpp"
#include "json.hpp"
#include "os.hpp"

namespace {

// An index is not trusted: it names files of its own directory, and no others go.
bool is_shard_name(const std::string &name) {
    const std::string end = ".safetensors";
    return name.size() > end.size() && name[0] != '.' && os::is_name(name) &&
           name.compare(name.size() - end.size(), end.size(), end) == 0 &&
           name != "model.safetensors";
}

}  // namespace

std::vector<std::string> superseded_files(const std::string &directory) {
    std::vector<std::string> found;
    const std::string index = path_in(directory, "model.safetensors.index.json");
    std::set<std::string> others = {"quantize_config.json", "quant_config.json",
                                    "hf_quant_config.json"};
    if (os::is_something(index)) {
        found.push_back(index);
        const std::unique_ptr<std::FILE, int (*)(std::FILE *)> file(os::open_file(index),
                                                                    std::fclose);
        const Json root(file == nullptr ? nullptr : json_loadf(file.get(), 0, nullptr));
        const char *name = nullptr;
        json_t *shard = nullptr;
        json_object_foreach(json_object_get(root.get(), "weight_map"), name, shard) {
            const char *text = json_string_value(shard);
            if (text != nullptr && is_shard_name(text)) others.insert(text);
        }
    }
    for (const std::string &other : others) {
        const std::string path = path_in(directory, other);
        if (os::is_something(path)) found.push_back(path);
    }
    return found;
}
