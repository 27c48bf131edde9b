#include "dense.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

namespace {

constexpr const char *kEmbedding = "embedding", *kHead = "output head", *kRouter = "router";

struct Rule {
    const char *pattern, *reason;
};
// As transformers names its modules. Where two match, the first gives the reason.
constexpr Rule kRules[] = {
    {"*embed_out", kHead},   {"*embed*", kEmbedding},
    {"*wte", kEmbedding},    {"*wpe", kEmbedding},
    {"*shared", kEmbedding}, {"*relative_attention_bias", kEmbedding},
    {"*lm_head*", kHead},    {"score", kHead},
    {"classifier", kHead},   {"*.gate", kRouter},
    {"*.gate.wg", kRouter},  {"*router", kRouter},
    {"*.router.*", kRouter}, {"*shared_expert_gate", kRouter},
};

// Output heads of tied models that are not called lm_head.
struct Head {
    const char *model_type, *name;
};
constexpr Head kHeads[] = {{"bert", "cls.predictions.decoder"}, {"distilbert", "vocab_projector"},
                           {"electra", "generator_lm_head"},    {"gpt_neox", "embed_out"},
                           {"roberta", "lm_head.decoder"},      {"whisper", "proj_out"},
                           {"xlm-roberta", "lm_head.decoder"}};

// model_type of those whose files have X.experts.N.gate_proj, up_proj and down_proj, which
// transformers 5.24 joins.
constexpr const char *kSingleExperts[] = {
    "afmoe",         "cohere2_moe", "deepseek_v2",    "deepseek_v3",   "deepseek_v32",
    "dots1",         "exaone_moe",  "ernie4_5_moe",   "flex_olmo",     "glm4_moe",
    "glm4_moe_lite", "glm_moe_dsa", "hunyuan_v1_moe", "longcat_flash", "mellum",
    "olmoe",         "qwen2_moe",   "qwen3_moe",      "qwen3_next",    "solar_open"};

std::string tied_head(const std::string &model_type) {
    for (const Head &head : kHeads) {
        if (model_type == head.model_type) return head.name;
    }
    return "lm_head";
}

std::string pattern_of(const std::string &module) {
    std::string pattern = "re:";
    for (const char c : module) {
        if (c == '.') pattern += '\\';
        pattern += c;
    }
    return pattern + "\\..*";
}

}  // namespace

std::vector<std::string> default_excludes() {
    std::vector<std::string> patterns;
    for (const Rule &rule : kRules) patterns.emplace_back(rule.pattern);
    return patterns;
}

std::string experts_of(const std::string &layer) {
    constexpr const char *kPart = ".experts.";
    const size_t at = layer.rfind(kPart);
    return at == std::string::npos ? "" : layer.substr(0, at + std::strlen(kPart) - 1);
}

bool is_expert(const std::string &layer) { return !experts_of(layer).empty(); }

std::string not_read_of_experts(const qk_tensor_desc &stored) {
    const bool global = (stored.flags & (QK_TENSOR_GLOBAL | QK_TENSOR_GLOBAL_ROWS)) != 0;
    const bool zeros =
        (stored.format == QK_FORMAT_U4_AFFINE && (stored.flags & QK_TENSOR_SYMMETRIC) == 0) ||
        (stored.flags & QK_TENSOR_FLOAT_MIN) != 0;
    if (!global && !zeros) return "";
    return std::string("transformers reads no ") + (global ? "global scales" : "zero points") +
           " of experts";
}

bool reads_single_experts(const std::string &model_type) {
    const auto same = [&](const char *type) { return model_type == type; };
    return std::any_of(std::begin(kSingleExperts), std::end(kSingleExperts), same);
}

bool makes_linear_experts(const std::string &model_type, qk_dialect dialect) {
    return (model_type == "llama4" || model_type == "llama4_text") &&
           (dialect == QK_DIALECT_COMPRESSED_TENSORS || dialect == QK_DIALECT_BITSANDBYTES);
}

std::string reason_by_name(const std::string &layer) {
    for (const Rule &rule : kRules) {
        if (matches({rule.pattern}, layer)) return rule.reason;
    }
    return "";
}

std::string reason_by_shape(const qk_file_tensor &tensor) {
    const std::string name = tensor.name;
    if (is_plain(tensor.dtype)) return std::string(tensor.dtype_name) + ", no weights";
    if (tensor.rank > 1 && matches({"*.experts.*", "*_exps.*"}, name)) {
        return matches({"*_bias", "*.bias"}, name) ? "bias of experts" : "fused experts";
    }
    if (tensor.rank < 2) return "vector: norm, bias or scale";
    if (tensor.rank > 2) return std::to_string(tensor.rank) + " dimensions";
    return "no layer's weight";
}

void refuse_unlisted(qk_dialect dialect, const std::vector<std::string> &dense) {
    if (dialect != QK_DIALECT_GPTQ_V1 && dialect != QK_DIALECT_GPTQ_V2) return;
    for (const std::string &name : dense) {
        if (!reason_by_name(name).empty()) continue;
        throw Failure(kUnsupported,
                      name + ": it is dense, which GPTQ's configuration has no word for");
    }
}

void print_dense(const std::vector<DenseTensor> &tensors) {
    struct Group {
        int64_t bytes = 0, count = 0;
        std::string first, reason;
    };
    std::map<std::string, Group> by_reason;
    for (const DenseTensor &dense : tensors) {
        Group &group = by_reason[dense.reason];
        if (group.count == 0) group.first = dense.tensor.name;
        group.reason = dense.reason;
        group.bytes += dense.tensor.bytes;
        ++group.count;
    }
    std::vector<Group> groups;
    groups.reserve(by_reason.size());
    for (const auto &entry : by_reason) groups.push_back(entry.second);
    std::stable_sort(groups.begin(), groups.end(),
                     [](const Group &a, const Group &b) { return a.bytes > b.bytes; });
    if (!groups.empty()) std::printf("     dense  tensors  why\n");
    for (const Group &group : groups) {
        std::printf("%10s  %7lld  %s (%s%s)\n", human_bytes(double(group.bytes)).c_str(),
                    static_cast<long long>(group.count), group.reason.c_str(),
                    printable(group.first).c_str(), group.count > 1 ? ", ..." : "");
    }
}

Json dense_json(const std::vector<DenseTensor> &tensors) {
    Json list = json_new_array();
    for (const DenseTensor &dense : tensors) {
        Json object = json_new_object();
        json_set(object, "name", dense.tensor.name);
        json_set(object, "dtype", dense.tensor.dtype_name);
        json_set(object, "shape", json_shape(dense.tensor.shape, dense.tensor.rank));
        json_set(object, "bytes", dense.tensor.bytes);
        json_set(object, "reason", dense.reason);
        json_append(list, std::move(object));
    }
    return list;
}

std::vector<std::string> dense_modules(const std::vector<std::string> &dense,
                                       const std::set<std::string> &quantized,
                                       const std::string &model_type, bool patterns) {
    std::set<std::string> divided;  // experts of which some are quantized
    for (const std::string &name : quantized) divided.insert(experts_of(name));
    std::vector<std::string> names;
    std::set<std::string> seen;
    for (const std::string &name : dense) {
        const std::string experts = experts_of(name);
        const bool together = !experts.empty() && divided.count(experts) == 0;
        const std::string listed = !together ? name : patterns ? pattern_of(experts) : experts;
        if (seen.insert(listed).second) names.push_back(listed);
    }
    const std::string head = tied_head(model_type);
    if (quantized.count(head) == 0 && seen.insert(head).second) names.push_back(head);
    return names;
}
