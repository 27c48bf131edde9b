#include <algorithm>
#include <cstdio>
#include <cstring>
#include <list>
#include <map>

#include "beside.hpp"
#include "commands.hpp"
#include "dense.hpp"
#include "json.hpp"
#include "layers.hpp"
#include "output.hpp"
#include "quantize_fused.hpp"
#include "quantize_layer.hpp"
#include "scan.hpp"
#include "scheme.hpp"
#include "transpose.hpp"

namespace {

// What the file says the weights were. compressed-tensors' integers, AutoAWQ and GPTQ know only
// the type of the scales.
qk_format written_type(const qk_layer &layer, const qk_tensor_desc &desc) {
    const bool integers = desc.format == QK_FORMAT_U4_AFFINE || desc.format == QK_FORMAT_S8;
    return integers ? desc.scale_format : layer.dense_format;
}

struct Job {
    DenseLayer from;
    Stored as;
};
struct Plan {
    std::list<std::string> names;  // of layers that are parts of a tensor
    std::vector<Job> jobs;
    std::vector<std::string> kept;
    std::vector<DenseTensor> copy;
    int64_t bytes_in = 0;
};

// transformers joins the experts of a mixture in one tensor: from dense ones in bitsandbytes'
// models, and from ones of codes and scales alone in compressed-tensors'.
std::string why_expert_kept(const QuantizeOptions &options, const Scheme &scheme,
                            const qk_layer &layer) {
    if (scheme.dialect == QK_DIALECT_BITSANDBYTES) return "expert: transformers joins dense ones";
    if (scheme.dialect != QK_DIALECT_COMPRESSED_TENSORS) return unfit(scheme, layer);
    const std::string not_read =
        not_read_of_experts(describe_stored(options, scheme, layer).stored);
    const std::string why = not_read.empty() ? unfit(scheme, layer) : not_read;
    if (why.empty()) return "";
    throw Failure(kUnsupported, std::string(layer.name) + ": " + why +
                                    (not_read.empty() ? ", and no expert may stay dense" : "") +
                                    "; give --exclude to write it anyway");
}

// Why the layer stays dense; "" for one to be quantized.
std::string why_kept(const QuantizeOptions &options, const Scheme &scheme, const qk_layer &layer) {
    if (!options.include.empty() && !matches(options.include, layer.name)) return "no --include";
    if (matches(options.exclude, layer.name)) return "--exclude";
    if (scheme.dialect == QK_DIALECT_GPT_OSS) return "in gpt-oss only fused experts have 4 bits";
    if (!options.exclude.empty()) return unfit(scheme, layer);
    if (is_expert(layer.name)) return why_expert_kept(options, scheme, layer);
    const std::string why = reason_by_name(layer.name);
    return why.empty() ? unfit(scheme, layer) : why;
}

void add_job(const QuantizeOptions &options, const Scheme &scheme, const DenseLayer &from,
             const Output &output, Plan *plan) {
    const Stored as = describe_stored(options, scheme, from.layer);
    qk_tensor_desc desc = as.stored;
    if (from.experts > 0) split_rows(&desc, from.experts);
    qk_io_message message = {};
    check(qk_writer_declare_layer(output.writer(), scheme.dialect, from.layer.name, &desc,
                                  written_type(from.layer, as.stored), &message),
          "", message.text);
    plan->jobs.push_back({from, as});
}

const void *data_of(const Checkpoint &checkpoint, const qk_layer &layer) {
    const std::string name = std::string(layer.name) + ".weight";
    qk_file_tensor tensor;
    check(qk_checkpoint_find_tensor(checkpoint.get(), name.c_str(), &tensor), name, nullptr);
    return tensor.data;
}

// A pattern that matches nothing is a mistake.
void refuse_idle_patterns(std::vector<qk_layer> layers, const std::vector<Fused> &fused,
                          const std::vector<std::string> &patterns) {
    for (const Fused &mixture : fused) {
        qk_layer whole = {};
        whole.name = mixture.experts.name.c_str();
        layers.push_back(whole);
        for (const DenseLayer &part : mixture.parts) layers.push_back(part.layer);
    }
    select_layers(layers, patterns);
}

// "X" of X_bias, the bias of fused experts X, which is X.bias beside a layer X; "" of others.
std::string owner_of_bias(const qk_file_tensor &tensor) {
    constexpr const char *kBias = "_bias";
    const std::string name = tensor.name;
    return ends_with(name, kBias) ? name.substr(0, name.size() - std::strlen(kBias)) : "";
}

// Declares every layer that is to be quantized.
void plan_layers(const QuantizeOptions &options, const Scheme &scheme, const Checkpoint &checkpoint,
                 const Output &output, Plan *plan) {
    std::set<std::string> replaced, joined;  // tensors; those of them with the experts of a layer
    std::map<std::string, std::string> reasons;  // of a layer's tensors
    const std::vector<qk_layer> layers = all_layers(checkpoint);
    const std::vector<Fused> fused = plan_fused(options, scheme, checkpoint, &plan->names);
    refuse_idle_patterns(layers, fused, options.include);
    for (const qk_layer &layer : layers) {
        if (is_plain_data(checkpoint, layer)) continue;
        const std::string why = why_kept(options, scheme, layer);
        if (!why.empty()) {
            reasons[std::string(layer.name) + ".weight"] = why;
            plan->kept.push_back(layer.name);
            continue;
        }
        add_job(options, scheme, {layer, data_of(checkpoint, layer)}, output, plan);
        add_weight_tensors(checkpoint, layer, &replaced);
    }
    std::string why_none;
    for (const Fused &mixture : fused) {
        const std::string &why = mixture.why_kept;
        for (const char *name : {mixture.experts.gate_up.name, mixture.experts.down.name}) {
            if (why.empty()) replaced.insert(name), joined.insert(name);
            reasons[name] = why;
        }
        if (!why.empty()) {
            if (why_none.empty()) why_none = " (" + mixture.experts.name + ": " + why + ")";
            if (scheme.dialect == QK_DIALECT_GPT_OSS) plan->kept.push_back(mixture.experts.name);
            continue;
        }
        for (const DenseLayer &part : mixture.parts) add_job(options, scheme, part, output, plan);
    }
    std::stable_sort(plan->jobs.begin(), plan->jobs.end(), [](const Job &a, const Job &b) {
        return natural_less(a.from.layer.name, b.from.layer.name);
    });
    if (plan->jobs.empty()) {
        throw Failure(kFailed, "nothing to do: no layer can be quantized" + why_none);
    }
    refuse_unlisted(scheme.dialect, plan->kept);
    for (qk_file_tensor tensor : all_tensors(checkpoint)) {
        plan->bytes_in += tensor.bytes;
        if (replaced.count(tensor.name) != 0) continue;
        const auto found = reasons.find(tensor.name);
        const std::string why = found != reasons.end() ? found->second : reason_by_shape(tensor);
        const std::string owner = owner_of_bias(tensor);
        if (scheme.dialect == QK_DIALECT_GGUF && joined.count(owner) != 0) {
            plan->names.push_back(owner + ".bias");
            tensor.name = plan->names.back().c_str();
        }
        plan->copy.push_back({tensor, why});
    }
}

void refuse_quantized(const Checkpoint &checkpoint) {
    for (const qk_layer &layer : all_layers(checkpoint)) {
        if (is_plain_data(checkpoint, layer)) continue;
        if (!is_loadable(layer)) check(layer.status, layer.name, layer.reason);
        if (is_quantized(layer)) {
            throw Failure(kUnsupported, std::string(layer.name) +
                                            " is quantized already; qk dequantize undoes that");
        }
    }
    refuse_unknown_method(checkpoint);
}

// GPT-2's Conv1D stores its weights as [k,n]: Python's loaders would multiply by the transpose.
void refuse_transposed(const std::string &model_type) {
    for (const char *type : {"gpt2", "openai-gpt", "imagegpt", "decision_transformer"}) {
        if (model_type != type) continue;
        throw Failure(kUnsupported, "config.json: model_type " + model_type +
                                        " stores its weights as [k,n]; qk quantizes [n,k]");
    }
}

void refuse_model(const Scheme &scheme, const std::string &model_type) {
    if (scheme.dialect != QK_DIALECT_GPT_OSS || model_type.empty() || model_type == "gpt_oss") {
        return;
    }
    throw Failure(kUnsupported, "config.json: model_type " + model_type +
                                    "; only gpt_oss models are read in the dialect gpt-oss");
}

void refuse_not_finite(const DenseLayer &from) {
    const qk_tensor_desc &desc = from.layer.desc;
    const bool parts = from.line_bytes > 0 && from.experts == 0;  // of lines
    const int64_t lines = parts ? desc.shape[1] : 1;
    ValueCounts counts;
    for (int64_t line = 0; line < lines; ++line) {
        const char *data = static_cast<const char *>(from.data) + line * from.line_bytes;
        counts.add(count_values(dtype_of(desc.format), data, from.layer.bytes / lines));
    }
    const int64_t bad = counts.nan + counts.infinite;
    if (bad == 0) return;
    throw Failure(kFailed, std::string(from.layer.name) + (from.experts > 0 ? "" : ".weight") +
                               ": " + plural(bad, "value") + (bad == 1 ? " is" : " are") +
                               " NaN or infinite, which no scale can hold");
}

// Some rows at a time are transposed, and quantized as a layer of so many rows.
void quantize_transposed(const Context &context, const Job &job, const Output &output,
                         Progress *progress, LayerError *error) {
    const qk_tensor_desc &desc = job.from.layer.desc;
    const int64_t experts = std::max<int64_t>(1, job.from.experts), line = job.from.line_bytes;
    const int64_t n = desc.shape[0] / experts, k = desc.shape[1];
    const int64_t size = element_bytes(desc.format), cut = rows_between_pieces(job.as.stored);
    const bool nested = job.as.stored.scale_format == QK_FORMAT_LUT8;
    const int64_t most = nested ? n : std::max(cut, LayerRows::kBlockWeights / k / cut * cut);
    std::vector<char> rows;
    for (int64_t row = 0, count = 0; row < desc.shape[0]; row += count) {
        const int64_t first = row % n;
        count = std::min(most, n - first);
        rows.resize(static_cast<size_t>(count * k * size));
        const char *expert = static_cast<const char *>(job.from.data) + row / n * k * line;
        transpose({k, count, size}, expert + first * size, line, rows.data(), k * size);
        qk_layer layer = job.from.layer;
        Stored as = job.as;
        layer.bytes = count * k * size;
        for (qk_tensor_desc *some : {&layer.desc, &as.quantized, &as.stored}) {
            some->shape[0] = count;
        }
        quantize_layer(context, layer, wrap_dense(context, desc.format, count, k, rows.data()), as,
                       output.writer(), progress, error);
    }
}

LayerError quantize_job(const Context &context, const Job &job, const Output &output,
                        Progress *progress) {
    progress->advance(0, job.from.layer.name);
    refuse_not_finite(job.from);
    LayerError error;
    if (job.from.line_bytes > 0) {
        quantize_transposed(context, job, output, progress, &error);
        return error;
    }
    const qk_tensor_desc &desc = job.from.layer.desc;
    Tensor weight = wrap_dense(context, desc.format, desc.shape[0], desc.shape[1],
                               const_cast<void *>(job.from.data));  // read alone
    quantize_layer(context, job.from.layer, std::move(weight), job.as, output.writer(), progress,
                   &error);
    return error;
}

void write_config(const Scheme &scheme, const Checkpoint &checkpoint, const Plan &plan,
                  const Output &output) {
    std::set<std::string> quantized;
    for (const Job &job : plan.jobs) quantized.insert(job.from.layer.name);
    const std::vector<std::string> modules =
        dense_modules(plan.kept, quantized, model_type(checkpoint),
                      scheme.dialect == QK_DIALECT_COMPRESSED_TENSORS);
    std::vector<const char *> kept;
    kept.reserve(modules.size());
    for (const std::string &name : modules) kept.push_back(name.c_str());
    qk_io_message message = {};
    check(qk_writer_append_config(output.config(), checkpoint.get(), scheme.dialect,
                                  &plan.jobs[0].as.quantized,
                                  written_type(plan.jobs[0].from.layer, plan.jobs[0].as.stored),
                                  kept.data(), static_cast<int64_t>(kept.size()), &message),
          "", message.text);
}

void report(const CommonOptions &common, const QuantizeOptions &options, const Scheme &scheme,
            const Plan &plan, const std::vector<ComparedLayer> &errors, const Beside &beside,
            const Output &output) {
    const int64_t bytes_out = qk_writer_bytes(output.writer());
    int64_t dense_bytes = 0;
    for (const DenseTensor &dense : plan.copy) dense_bytes += dense.tensor.bytes;
    if (common.json) {
        const Json root = json_new_object();
        json_set(root, "input", options.input);
        json_set(root, "output", options.output);
        json_set(root, "dialect", scheme.dialect_name);
        json_set(root, "format", options.format);
        json_set(root, "group_size", scheme.group);
        json_set(root, "quantized_layers", static_cast<int64_t>(plan.jobs.size()));
        json_set(root, "copied_tensors", static_cast<int64_t>(plan.copy.size()));
        json_set(root, "input_bytes", plan.bytes_in);
        json_set(root, "output_bytes", bytes_out);
        Json kept = json_new_array();
        for (const std::string &name : plan.kept) {
            json_append(kept, Json(json_string(name.c_str())));
        }
        json_set(root, "dense_layers", std::move(kept));
        json_set(root, "dense_bytes", dense_bytes);
        json_set(root, "dense", dense_json(plan.copy));
        set_errors(root, errors);
        set_beside(root, beside);
        json_set(root, "removed", removed_json(output));
        json_print(root);
    } else if (!common.quiet) {
        std::printf(
            "%s: %s as %s for %s, %s before, %s now, %s of it dense\n",
            printable(options.output).c_str(),
            plural(static_cast<int64_t>(plan.jobs.size()), "layer").c_str(), options.format.c_str(),
            scheme.dialect_name, human_bytes(double(plan.bytes_in)).c_str(),
            human_bytes(double(bytes_out)).c_str(), human_bytes(double(dense_bytes)).c_str());
        print_dense(plan.copy);
        print_errors(errors);
        note_beside(common, beside);
    }
}

}  // namespace

ExitCode run_quantize(const CommonOptions &common, const QuantizeOptions &options) {
    const Scheme scheme = choose_scheme(options);
    const Checkpoint checkpoint = open_checkpoint(options.input);
    refuse_quantized(checkpoint);
    refuse_transposed(model_type(checkpoint));
    refuse_model(scheme, model_type(checkpoint));
    const Context context = create_context(common);
    Output output(options.output, options.force);
    output.refuse_dialect(scheme.dialect);
    Plan plan;
    std::vector<ComparedLayer> errors;
    Beside beside;
    declare_metadata(checkpoint, output);
    plan_layers(options, scheme, checkpoint, output, &plan);
    for (const DenseTensor &dense : plan.copy) declare_copy(output, dense.tensor);
    {
        Progress progress(common, plan.bytes_in);
        beside = copy_beside(options.input, checkpoint, &output, &progress);
        for (const DenseTensor &dense : plan.copy) write_copy(output, dense.tensor, &progress);
        for (const Job &job : plan.jobs) {
            errors.push_back(
                {job.from.layer.name, "", quantize_job(context, job, output, &progress)});
        }
        if (output.has_config()) write_config(scheme, checkpoint, plan, output);
        output.commit();
    }
    note_removed(common, output);
    report(common, options, scheme, plan, errors, beside, output);
    return kOk;
}
