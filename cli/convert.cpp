#include <algorithm>
#include <cstdio>

#include "beside.hpp"
#include "commands.hpp"
#include "dense.hpp"
#include "json.hpp"
#include "layers.hpp"
#include "output.hpp"

namespace {

struct Target {
    const char *word;
    qk_dialect dialect;
    qk_layout layout;
};
constexpr Target kTargets[] = {
    {"compressed-tensors", QK_DIALECT_COMPRESSED_TENSORS, QK_LAYOUT_WORD},
    {"awq", QK_DIALECT_AWQ_GEMM, QK_LAYOUT_AWQ_GEMM},
    {"awq-gemv", QK_DIALECT_AWQ_GEMV, QK_LAYOUT_AWQ_GEMV},
    {"gptq", QK_DIALECT_GPTQ_V1, QK_LAYOUT_GPTQ_V1},
    {"gptq-v2", QK_DIALECT_GPTQ_V2, QK_LAYOUT_GPTQ},
    {"gguf", QK_DIALECT_GGUF, QK_LAYOUT_GGUF_Q4_0}};

struct Job {
    qk_layer layer;
    qk_tensor_desc desc;
};
struct Plan {
    std::vector<Job> jobs;
    std::vector<std::string> dense;
    std::vector<qk_file_tensor> copy;
    qk_tensor_desc scheme;  // what the configuration says of all layers
    int64_t bytes_in = 0;
};

const Target &target_of(const std::string &word) {
    return *std::find_if(std::begin(kTargets), std::end(kTargets),
                         [&](const Target &target) { return word == target.word; });
}

[[noreturn]] void cannot(const qk_layer &layer, const std::string &why) {
    throw Failure(kUnsupported, std::string(layer.name) + ": " + why);
}

std::string scales_of(const qk_layer &layer) {
    return std::string("its scales are ") + format_name(layer.desc.scale_format);
}

bool is_int4(const qk_tensor_desc &desc) { return desc.format == QK_FORMAT_U4_AFFINE; }
bool is_int8(const qk_tensor_desc &desc) { return desc.format == QK_FORMAT_S8; }
bool is_gguf(const Target &target) { return target.dialect == QK_DIALECT_GGUF; }

qk_layout layout_for(const Target &target, const qk_layer &layer) {
    if (!is_int8(layer.desc)) return target.layout;
    return is_gguf(target) ? QK_LAYOUT_GGUF_Q8_0 : QK_LAYOUT_ROW;
}

// Q4_0 and Q8_0 have one size of groups and one type of scales.
void refuse_group(const qk_layer &layer) {
    if (layer.desc.scale_format != QK_FORMAT_F16) {
        cannot(layer, scales_of(layer) + ", those of GGUF's Q4_0 and Q8_0 f16");
    }
    if (layer.desc.group_size == 32 && layer.desc.shape[1] % 32 == 0) return;
    cannot(layer, "its group is " + group_name(layer.desc) + " in rows of " +
                      std::to_string(layer.desc.shape[1]) +
                      "; those of GGUF's Q4_0 and Q8_0 are of 32, and whole");
}

// What has no place in the other dialect whatever the values are.
void refuse_form(const Target &target, const qk_layer &layer) {
    const std::string name = qk_dialect_name(target.dialect);
    const qk_format format = layer.desc.format;
    const bool eight_bits = target.dialect == QK_DIALECT_COMPRESSED_TENSORS || is_gguf(target);
    if ((layer.desc.flags & QK_TENSOR_FLOAT_MIN) != 0) {
        cannot(layer, "its groups have minima that are numbers, and " + name + " has none");
    }
    if ((is_int8(layer.desc) && !eight_bits) || format == QK_FORMAT_E4M3 ||
        format == QK_FORMAT_LUT8) {
        cannot(layer, std::string("its codes are ") + format_name(format) + ", those of " + name +
                          (eight_bits ? " are integers" : " have 4 bits"));
    }
    if (is_int8(layer.desc)) {
        if (is_gguf(target)) refuse_group(layer);
        return;
    }
    if (format != QK_FORMAT_U4_AFFINE) {
        cannot(layer, std::string("the 16 values of ") + format_name(layer.desc.format) +
                          " are not evenly spaced, and " + name + " has no others");
    }
    if ((layer.desc.flags & QK_TENSOR_ORDERED) != 0) {
        cannot(layer, "its groups are not runs of columns (act-order), and " + name +
                          ", as qk writes it, has no others");
    }
    if (is_gguf(target)) refuse_group(layer);
    const bool awq = target.layout == QK_LAYOUT_AWQ_GEMM || target.layout == QK_LAYOUT_AWQ_GEMV;
    const bool gptq = target.layout == QK_LAYOUT_GPTQ || target.layout == QK_LAYOUT_GPTQ_V1;
    if (awq && layer.desc.scale_format != QK_FORMAT_F16) {
        cannot(layer, scales_of(layer) + ", those of " + name + " f16");
    }
    if (gptq && layer.desc.scale_format == QK_FORMAT_F32) {
        cannot(layer, scales_of(layer) + ", those of " + name + " f16 or bf16");
    }
}

// The configuration has one size of groups for all layers. A row shorter than a group is one.
void join_groups(const Target &target, const Plan &plan, qk_tensor_desc *scheme) {
    for (const Job &job : plan.jobs) {
        const int32_t group = job.desc.group_size;
        if (scheme->group_size == QK_GROUP_ROW) scheme->group_size = group;
    }
    for (const Job &job : plan.jobs) {
        const int64_t k = job.desc.shape[1], all = scheme->group_size;
        if (job.desc.format != scheme->format && !is_gguf(target)) {
            cannot(job.layer, std::string("its codes are ") + format_name(job.desc.format) +
                                  ", those of others " + format_name(scheme->format) +
                                  "; the configuration has one format for all");
        }
        if (all == QK_GROUP_ROW) continue;
        const bool same = job.desc.group_size == all;
        const bool short_row = job.desc.group_size == QK_GROUP_ROW && k <= all;
        if (!same && !short_row) {
            cannot(job.layer, "its group is " + group_name(job.desc) + ", that of others " +
                                  std::to_string(all) + "; the configuration for " +
                                  qk_dialect_name(target.dialect) + " has one for all");
        }
        if (k % all != 0 && target.layout != QK_LAYOUT_GPTQ && target.layout != QK_LAYOUT_GPTQ_V1) {
            cannot(job.layer, "its rows of " + std::to_string(k) +
                                  " are no multiple of the group of " + std::to_string(all));
        }
    }
}

Plan make_plan(const Target &target, const Checkpoint &checkpoint) {
    Plan plan;
    std::set<std::string> replaced;
    bool changes = false;
    for (const qk_layer &layer : all_layers(checkpoint)) {
        if (is_plain_data(checkpoint, layer)) continue;
        if (!is_loadable(layer)) check(layer.status, layer.name, layer.reason);
        if (!is_quantized(layer)) {
            plan.dense.push_back(layer.name);
            continue;
        }
        refuse_form(target, layer);
        changes = changes || layer.dialect != target.dialect;
        Job job = {layer, layer.desc};
        job.desc.layout = layout_for(target, layer);
        job.desc.flags = 0;
        plan.jobs.push_back(job);
        add_weight_tensors(checkpoint, layer, &replaced);
    }
    refuse_unknown_method(checkpoint);
    if (!changes) {
        throw Failure(kFailed, plan.jobs.empty()
                                   ? "nothing to do: no quantized layer; qk quantize makes them"
                                   : std::string("nothing to do: the layers are ") +
                                         qk_dialect_name(target.dialect) + " already");
    }
    refuse_unlisted(target.dialect, plan.dense);
    plan.scheme = plan.jobs[0].desc;
    join_groups(target, plan, &plan.scheme);
    for (const qk_file_tensor &tensor : all_tensors(checkpoint)) {
        plan.bytes_in += tensor.bytes;
        if (replaced.count(tensor.name) == 0) plan.copy.push_back(tensor);
    }
    return plan;
}

Tensor repack(const Checkpoint &checkpoint, const Context &context, const qk_layer &layer,
              const qk_tensor_desc &desc) {
    const LoadedLayer loaded = load_layer(checkpoint, context, layer.name, QK_LOAD_IN_PLACE);
    qk_tensor *made = nullptr;
    check(qk_tensor_create(context.get(), &desc, &made), layer.name,
          qk_context_error(context.get()));
    Tensor to(made);
    check(qk_repack(context.get(), loaded.weight.get(), made), layer.name,
          qk_context_error(context.get()));
    return to;
}

std::vector<char> download(const Context &context, const qk_tensor *tensor, qk_plane plane) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    size_t bytes = 0;
    check(qk_tensor_describe(tensor, &desc), "tensor", nullptr);
    check(qk_tensor_plane_bytes(&desc, plane, &bytes), "tensor", nullptr);
    std::vector<char> content(bytes);
    check(qk_tensor_download(context.get(), tensor, plane, content.data(), bytes), "tensor",
          qk_context_error(context.get()));
    return content;
}

struct Zeros {
    bool all_eight = true, any_zero = false;
};

// WORD packs the zeros of eight rows in a word: [ceil(n/8), groups].
Zeros zeros_of(const Context &context, const qk_tensor *word, int64_t rows) {
    const std::vector<char> plane = download(context, word, QK_PLANE_ZERO);
    const int64_t lines = (rows + 7) / 8;
    const int64_t line = static_cast<int64_t>(plane.size()) / lines;
    Zeros zeros;
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t at = row / 8 * line + row % 8 / 2; at < (row / 8 + 1) * line; at += 4) {
            const int code = plane[static_cast<size_t>(at)] >> (row % 2 * 4) & 15;
            zeros.all_eight = zeros.all_eight && code == 8;
            zeros.any_zero = zeros.any_zero || code == 0;
        }
    }
    return zeros;
}

// Reads all zeros: whether they need a place of their own, and whether GPTQ's v1 holds them.
void survey_zeros(const Target &target, const Checkpoint &checkpoint, const Context &context,
                  Plan *plan, Progress *progress) {
    if (target.layout == QK_LAYOUT_AWQ_GEMM || target.layout == QK_LAYOUT_AWQ_GEMV) return;
    bool symmetric = true;
    for (Job &job : plan->jobs) {
        progress->advance(0, job.layer.name);
        if (!is_int4(job.desc)) continue;
        qk_tensor_desc desc = job.desc;
        desc.layout = QK_LAYOUT_WORD;
        const Tensor word = repack(checkpoint, context, job.layer, desc);
        const Zeros zeros = zeros_of(context, word.get(), desc.shape[0]);
        symmetric = symmetric && zeros.all_eight;
        if (is_gguf(target) && !zeros.all_eight) {
            cannot(job.layer, "its zeros are not all 8, and GGUF's Q4_0 has no others");
        }
        if (zeros.any_zero && target.layout == QK_LAYOUT_GPTQ_V1) {
            cannot(job.layer,
                   "GPTQ v1 stores zeros minus one, and its readers disagree on a zero of 0; "
                   "--to gptq-v2 holds it");
        }
    }
    if (!symmetric) return;
    plan->scheme.flags = QK_TENSOR_SYMMETRIC;
    // The others store zeros that are all 8.
    if (target.layout != QK_LAYOUT_WORD && !is_gguf(target)) return;
    for (Job &job : plan->jobs) job.desc.flags = is_int4(job.desc) ? QK_TENSOR_SYMMETRIC : 0;
}

void declare(const Target &target, const Plan &plan, const Output &output) {
    qk_io_message message = {};
    for (const qk_file_tensor &tensor : plan.copy) declare_copy(output, tensor);
    for (const Job &job : plan.jobs) {
        check(qk_writer_declare_layer(output.writer(), target.dialect, job.layer.name, &job.desc,
                                      job.desc.scale_format, &message),
              "", message.text);
    }
}

void write_layer(const Context &context, const Job &job, const qk_tensor *tensor,
                 const Output &output) {
    qk_io_message message = {};
    check(qk_writer_write_layer(output.writer(), context.get(), job.layer.name, tensor, &message),
          "", message.text);
}

Tensor repack(const Context &context, const Job &job, const qk_tensor *from) {
    qk_tensor *made = nullptr;
    check(qk_tensor_create(context.get(), &job.desc, &made), job.layer.name,
          qk_context_error(context.get()));
    Tensor to(made);
    check(qk_repack(context.get(), from, made), job.layer.name, qk_context_error(context.get()));
    return to;
}

// Zeros that are all 8 are left out on the way through WORD, whose other planes stay as they are.
void convert(const Checkpoint &checkpoint, const Context &context, const Job &job,
             const Output &output) {
    const bool leave_out = is_int4(job.desc) && (job.desc.flags & QK_TENSOR_SYMMETRIC) != 0;
    qk_tensor_desc between = job.desc;
    between.flags = 0;
    if (leave_out) between.layout = QK_LAYOUT_WORD;
    const Tensor packed = repack(checkpoint, context, job.layer, between);
    if (!leave_out) {
        write_layer(context, job, packed.get(), output);
        return;
    }
    std::vector<char> data = download(context, packed.get(), QK_PLANE_DATA);
    std::vector<char> scales = download(context, packed.get(), QK_PLANE_SCALE);
    void *planes[QK_PLANE_COUNT] = {data.data(), scales.data()};
    qk_tensor *wrapped = nullptr;
    between.flags = QK_TENSOR_SYMMETRIC;
    check(qk_tensor_wrap(context.get(), &between, planes, QK_PLANE_COUNT, &wrapped), job.layer.name,
          qk_context_error(context.get()));
    const Tensor symmetric(wrapped);
    if (job.desc.layout == QK_LAYOUT_WORD) {
        write_layer(context, job, symmetric.get(), output);
    } else {
        write_layer(context, job, repack(context, job, symmetric.get()).get(), output);
    }
}

void write_config(const Target &target, const Checkpoint &checkpoint, const Plan &plan,
                  const Output &output) {
    std::set<std::string> quantized;
    for (const Job &job : plan.jobs) quantized.insert(job.layer.name);
    const std::vector<std::string> modules =
        dense_modules(plan.dense, quantized, model_type(checkpoint),
                      target.dialect == QK_DIALECT_COMPRESSED_TENSORS);
    std::vector<const char *> kept;
    kept.reserve(modules.size());
    for (const std::string &name : modules) kept.push_back(name.c_str());
    qk_io_message message = {};
    check(qk_writer_append_config(output.config(), checkpoint.get(), target.dialect, &plan.scheme,
                                  plan.scheme.scale_format, kept.data(),
                                  static_cast<int64_t>(kept.size()), &message),
          "", message.text);
}

void report(const CommonOptions &common, const ConvertOptions &options, const Target &target,
            const Plan &plan, const Beside &beside, const Output &output) {
    const int64_t bytes_out = qk_writer_bytes(output.writer());
    if (common.json) {
        const Json root = json_new_object();
        json_set(root, "input", options.input);
        json_set(root, "output", options.output);
        json_set(root, "dialect", qk_dialect_name(target.dialect));
        json_set(root, "converted_layers", static_cast<int64_t>(plan.jobs.size()));
        json_set(root, "copied_tensors", static_cast<int64_t>(plan.copy.size()));
        json_set(root, "input_bytes", plan.bytes_in);
        json_set(root, "output_bytes", bytes_out);
        set_beside(root, beside);
        json_set(root, "removed", removed_json(output));
        json_print(root);
    } else if (!common.quiet) {
        std::printf(
            "%s: %s as %s, %s copied, %s before, %s now\n", printable(options.output).c_str(),
            plural(static_cast<int64_t>(plan.jobs.size()), "layer").c_str(),
            qk_dialect_name(target.dialect),
            plural(static_cast<int64_t>(plan.copy.size()), "tensor").c_str(),
            human_bytes(double(plan.bytes_in)).c_str(), human_bytes(double(bytes_out)).c_str());
        note_beside(common, beside);
    }
}

}  // namespace

std::vector<std::string> convert_targets() {
    std::vector<std::string> words;
    for (const Target &target : kTargets) words.emplace_back(target.word);
    return words;
}

ExitCode run_convert(const CommonOptions &common, const ConvertOptions &options) {
    const Target &target = target_of(options.to);
    const Checkpoint checkpoint = open_checkpoint(options.input);
    Plan plan = make_plan(target, checkpoint);
    const Context context = create_context(common);
    Output output(options.output, options.force);
    Beside beside;
    declare_metadata(checkpoint, output);
    {
        Progress progress(common, plan.bytes_in);
        survey_zeros(target, checkpoint, context, &plan, &progress);
        declare(target, plan, output);
        beside = copy_beside(options.input, checkpoint, &output, &progress);
        for (const qk_file_tensor &tensor : plan.copy) write_copy(output, tensor, &progress);
        for (const Job &job : plan.jobs) {
            convert(checkpoint, context, job, output);
            progress.advance(job.layer.bytes, job.layer.name);
        }
        if (output.has_config()) write_config(target, checkpoint, plan, output);
        output.commit();
    }
    note_removed(common, output);
    report(common, options, target, plan, beside, output);
    return kOk;
}
