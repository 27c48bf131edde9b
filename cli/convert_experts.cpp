#include "convert_experts.hpp"

#include "fused.hpp"

namespace {

// "X.experts" of "X.experts.down_proj"; "" of other layers.
std::string pair_of(const std::string &layer) {
    for (const std::string name : {kGateUp, kDown}) {
        if (!ends_with(layer, kModule + name)) continue;
        return layer.substr(0, layer.size() - name.size());
    }
    return "";
}

// Whether both are there: the rows of one are the columns of the other, half of gate_up's.
bool has_pair(const Checkpoint &checkpoint, const std::string &module) {
    qk_layer gate_up, down;
    for (qk_layer *layer : {&gate_up, &down}) {
        const std::string name = module + (layer == &down ? kDown : kGateUp);
        const bool found = qk_checkpoint_find_expert_layer(checkpoint.get(), name.c_str(), layer,
                                                           sizeof *layer) == QK_OK;
        if (!found || !is_loadable(*layer) || !is_quantized(*layer)) return false;
    }
    const int64_t *up = gate_up.desc.shape, *from = down.desc.shape;
    return up[0] == from[0] && up[1] == 2 * from[2] && up[2] == from[1];
}

void refuse_experts(const Target &target, const Checkpoint &checkpoint, const qk_layer &layer) {
    const std::string module = pair_of(layer.name), dialect = qk_dialect_name(target.dialect);
    if (layer.dialect == QK_DIALECT_GPT_OSS) {
        cannot_hold(layer,
                    "gpt-oss's experts are read in its own dialect alone; --to gguf keeps "
                    "them together");
    }
    const std::string start = "its experts are one tensor, and " + dialect + " has a layer of each";
    if (module.empty() || !has_pair(checkpoint, module)) {
        cannot_hold(layer, start +
                               "; qk makes those of X.experts.gate_up_proj [E,2n,k] and "
                               "X.experts.down_proj [E,k,n]");
    }
    if (layer.has_bias != 0) cannot_hold(layer, start + "; it has a bias of all of them");
}

using Parts = std::vector<std::string>;

// What an expert has of its own beside the tensors of all: a layer of the same name, or a bias that
// would become part of one.
void refuse_own(const Checkpoint &checkpoint, const qk_layer &layer, const Parts &parts) {
    const std::string start = pair_of(layer.name) + ".";
    for (const qk_file_tensor &tensor : all_tensors(checkpoint)) {
        const std::string name = tensor.name;
        if (name.compare(0, start.size(), start) != 0) continue;
        const size_t end = name.find_first_not_of("0123456789", start.size());
        for (const std::string &part : parts) {
            if (end == std::string::npos || end == start.size()) continue;
            if (name.compare(end, part.size() + 1, part + ".") != 0) continue;
            cannot_hold(layer, "the file has " + printable(name) + " too");
        }
    }
}

}  // namespace

std::vector<Job> experts_one_by_one(const Target &target, const Checkpoint &checkpoint,
                                    const qk_layer &layer, std::list<std::string> *names) {
    refuse_experts(target, checkpoint, layer);
    const int64_t experts = experts_in(checkpoint, layer);
    const bool down = ends_with(layer.name, kDown);
    const Parts parts = down ? Parts{kDown} : Parts{".gate_proj", ".up_proj"};
    refuse_own(checkpoint, layer, parts);
    const int64_t count = experts * static_cast<int64_t>(parts.size());
    std::vector<Job> jobs;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t each = static_cast<int64_t>(parts.size());
        names->push_back(pair_of(layer.name) + "." + std::to_string(i / each) +
                         parts[static_cast<size_t>(i % each)]);
        Job job = {layer, layer.desc, layer.name, i * (layer.desc.shape[0] / count)};
        job.layer.name = names->back().c_str();
        job.layer.desc.shape[0] = layer.desc.shape[0] / count;
        job.layer.bytes = layer.bytes / count;
        jobs.push_back(job);
    }
    return jobs;
}
