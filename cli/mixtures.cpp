#include "mixtures.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>

namespace {

constexpr const char *kExperts = "experts.";

// "a.experts.*.up_proj" of "a.experts.7.up_proj", "" of what is no expert.
std::string of_all_experts(const std::string &name) {
    for (size_t at = name.rfind(kExperts); at != std::string::npos;
         at = at == 0 ? std::string::npos : name.rfind(kExperts, at - 1)) {
        const size_t number = at + std::strlen(kExperts);
        size_t end = number;
        while (std::isdigit(static_cast<unsigned char>(name[end])) != 0) ++end;
        const bool starts = at == 0 || name[at - 1] == '.';
        const bool plain = end > number && (end == number + 1 || name[number] != '0');
        if (starts && plain && name[end] == '.') {
            return name.substr(0, number) + "*" + name.substr(end);
        }
    }
    return "";
}

bool is_layer(const Checkpoint &checkpoint, const qk_layer &experts) {
    qk_layer layer = {};
    return qk_checkpoint_find_layer(checkpoint.get(), experts.name, &layer, sizeof layer) == QK_OK;
}

bool is_single(const qk_layer &layer) {
    return std::string(layer.name).find(std::string(kExperts) + "*.") != std::string::npos;
}

// blk.0.ffn_up_exps has its experts beside other tensors of blk.0.
std::string mixture_name(const qk_layer &layer) {
    std::string name = layer.name;
    const std::string part = part_name(layer);
    const size_t before = is_single(layer) ? 3 : 1;  // ".*." or "."
    if (name.size() < part.size() + before) return name;
    const std::string module = name.substr(0, name.size() - part.size() - before);
    return matches({"ffn_*_exps"}, part) ? module + ".ffn_*_exps" : module;
}

}  // namespace

std::string part_name(const qk_layer &layer) {
    const std::string name = layer.name;
    const size_t star = name.rfind(std::string(kExperts) + "*.");
    if (star != std::string::npos) return name.substr(star + std::strlen(kExperts) + 2);
    return name.substr(name.rfind('.') + 1);
}

std::string Mixture::reason() const {
    for (const qk_layer &layer : parts) {
        if (!is_loadable(layer)) return part_name(layer) + ": " + layer.reason;
    }
    const auto fewer = [](const qk_layer &a, const qk_layer &b) {
        return a.desc.shape[0] < b.desc.shape[0];
    };
    const auto least = std::min_element(parts.begin(), parts.end(), fewer);
    const auto most = std::max_element(parts.begin(), parts.end(), fewer);
    if (!fewer(*least, *most)) return "";
    return part_name(*least) + ": " + plural(least->desc.shape[0], "expert") + ", " +
           part_name(*most) + " has " + std::to_string(most->desc.shape[0]);
}

int64_t Mixture::experts() const {
    int64_t most = 0;
    for (const qk_layer &layer : parts) most = std::max(most, layer.desc.shape[0]);
    return most;
}

std::vector<std::string> Mixture::not_quantized() const {
    std::vector<std::string> names;
    for (const qk_layer &layer : parts) {
        if (!is_quantized(layer)) names.push_back(part_name(layer));
    }
    return names;
}

int64_t Mixture::bytes() const {
    int64_t sum = 0;
    for (const qk_layer &layer : parts) sum += layer.bytes;
    return sum;
}

std::vector<Mixture> all_mixtures(const Checkpoint &checkpoint) {
    std::vector<Mixture> mixtures;
    std::map<std::string, size_t> places;
    for (const qk_layer &layer : all_expert_layers(checkpoint)) {
        // A refused layer of the file has a line of its own; a dense tensor has this one.
        if (!is_single(layer) && !is_loadable(layer) && is_layer(checkpoint, layer)) continue;
        const auto [place, is_new] = places.emplace(mixture_name(layer), mixtures.size());
        if (is_new) mixtures.push_back({place->first, {}});
        mixtures[place->second].parts.push_back(layer);
    }
    return mixtures;
}

std::vector<qk_layer> other_layers(const std::vector<qk_layer> &layers,
                                   const std::vector<Mixture> &mixtures) {
    std::set<std::string> names;
    for (const Mixture &mixture : mixtures) {
        for (const qk_layer &layer : mixture.parts) names.insert(layer.name);
    }
    std::vector<qk_layer> others;
    for (const qk_layer &layer : layers) {
        if (names.count(layer.name) == 0 && names.count(of_all_experts(layer.name)) == 0) {
            others.push_back(layer);
        }
    }
    return others;
}
