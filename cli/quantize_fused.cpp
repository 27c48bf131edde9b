#include "quantize_fused.hpp"

#include <algorithm>

#include "beside.hpp"
#include "dense.hpp"

namespace {

// Whether the file has, in another tensor, what the layer is to be.
bool is_there(const Checkpoint &checkpoint, const DenseLayer &part) {
    const char *name = part.layer.name;
    qk_layer layer;
    if (qk_checkpoint_find_layer(checkpoint.get(), name, &layer, sizeof layer) == QK_OK)
        return true;
    for (const char *suffix : {".weight", ".bias", "_blocks", "_scales"}) {
        const std::string full = std::string(name) + suffix;
        qk_file_tensor tensor;
        if (qk_checkpoint_find_tensor(checkpoint.get(), full.c_str(), &tensor) == QK_OK)
            return true;
    }
    return false;
}

// Compressed-tensors has layers an expert, as bitsandbytes has of some models; gpt-oss and GGUF
// have one tensor of all.
std::vector<DenseLayer> parts_of(const Scheme &scheme, const std::string &type,
                                 const FusedExperts &experts, std::list<std::string> *names) {
    constexpr int64_t kMost = 1 << 16;  // no model has as many; a damaged file may say so
    const bool single = experts.transposed ? makes_linear_experts(type, scheme.dialect)
                                           : scheme.dialect == QK_DIALECT_COMPRESSED_TENSORS;
    if (single && experts.gate_up.shape[0] <= kMost) return one_by_one(experts, names);
    const bool gpt_oss = scheme.dialect == QK_DIALECT_GPT_OSS && experts.transposed;
    if (gpt_oss || scheme.dialect == QK_DIALECT_GGUF) return all_together(experts);
    return {};
}

// Layers of all experts have a bias [E,n], X_bias; layers an expert none that is cut out of it.
std::string why_bias_unfit(const Checkpoint &checkpoint, const DenseLayer &part,
                           const std::string &tensor) {
    const std::string name = tensor + "_bias";
    qk_file_tensor bias;
    if (qk_checkpoint_find_tensor(checkpoint.get(), name.c_str(), &bias) != QK_OK) return "";
    if (part.experts == 0) return name + " has the biases of all experts";
    const int64_t sizes[] = {part.experts, part.layer.desc.shape[0] / part.experts};
    const bool fits =
        bias.rank == 2 && std::equal(sizes, sizes + 2, bias.shape) &&
        (bias.dtype == QK_DTYPE_F32 || bias.dtype == QK_DTYPE_F16 || bias.dtype == QK_DTYPE_BF16);
    if (fits) return "";
    return name + " is " + bias.dtype_name + " " + shape_name(bias.shape, bias.rank) +
           ", expected are floats " + shape_name(sizes, 2);
}

// Whether transformers joins a model's layers an expert. With --exclude the reader is the caller's
// choice.
bool joins_experts(const QuantizeOptions &options, const std::string &type) {
    return reads_single_experts(type) || (!options.exclude.empty() && type.empty());
}

// Why experts stay the two tensors that they are; "" for those that become the dialect's layers.
std::string why_kept(const QuantizeOptions &options, const Scheme &scheme, const std::string &type,
                     const Checkpoint &checkpoint, const Fused &mixture) {
    const bool transposed = mixture.experts.transposed;
    std::string fused = transposed ? "fused experts, transposed" : "fused experts";
    const bool asked = !options.exclude.empty();
    const bool joined = scheme.dialect == QK_DIALECT_COMPRESSED_TENSORS &&
                        !makes_linear_experts(type, scheme.dialect);
    if (mixture.parts.empty()) {
        if (scheme.dialect == QK_DIALECT_GPT_OSS) return fused + ": gpt-oss's are transposed";
        const bool other = transposed && type == "gpt_oss";
        return fused + (other ? ": --format mxfp4 --dialect gpt-oss takes them" : "");
    }
    if (joined && !joins_experts(options, type)) return fused;
    for (const DenseLayer &part : mixture.parts) {
        const qk_layer &layer = part.layer;
        if (!options.include.empty() && !matches(options.include, layer.name)) {
            return fused + ": no --include";
        }
        if (matches(options.exclude, layer.name)) return fused + ": --exclude";
        if (is_there(checkpoint, part)) return fused + ": " + layer.name + " is there too";
        const bool is_down = ends_with(layer.name, ".down_proj");
        const qk_file_tensor &from = is_down ? mixture.experts.down : mixture.experts.gate_up;
        std::string why = why_bias_unfit(checkpoint, part, from.name);
        if (why.empty()) why = unfit(scheme, layer);
        if (joined && !asked && why.empty()) {
            why = not_read_of_experts(describe_stored(options, scheme, layer).stored);
        }
        if (!why.empty()) return fused + ": " + why;
    }
    return "";
}

}  // namespace

std::vector<Fused> plan_fused(const QuantizeOptions &options, const Scheme &scheme,
                              const Checkpoint &checkpoint, std::list<std::string> *names) {
    const std::string type = model_type(checkpoint);
    std::vector<Fused> all;
    for (const FusedExperts &experts : find_fused(all_tensors(checkpoint))) {
        Fused fused = {experts, parts_of(scheme, type, experts, names), ""};
        fused.why_kept = why_kept(options, scheme, type, checkpoint, fused);
        const bool linear = experts.transposed && makes_linear_experts(type, scheme.dialect);
        if (linear && !fused.why_kept.empty() && options.exclude.empty()) {
            throw Failure(kUnsupported, experts.name + ": " + fused.why_kept +
                                            ", and transformers does not load dense ones of " +
                                            type + "; give --exclude to write it anyway");
        }
        all.push_back(std::move(fused));
    }
    return all;
}
