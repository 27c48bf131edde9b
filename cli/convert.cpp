#include <algorithm>
#include <cstdio>
#include <list>

#include "beside.hpp"
#include "commands.hpp"
#include "convert_experts.hpp"
#include "dense.hpp"
#include "json.hpp"
#include "layers.hpp"
#include "output.hpp"
#include "recast.hpp"
#include "target.hpp"

namespace {

struct Plan {
    std::vector<Job> jobs;
    std::vector<std::string> dense;
    std::vector<qk_file_tensor> copy;
    qk_tensor_desc scheme;  // what the configuration says of all layers
    int64_t bytes_in = 0;
    std::list<std::string> names;  // of tensors that get another one
};

// compressed-tensors' integers, AutoAWQ and GPTQ know only the type of the scales.
qk_format written_type(const Target &target, const Job &job) {
    const Kind kind = kind_of(job.desc);
    const bool integers = kind == Kind::kInt4 || kind == Kind::kInt8;
    const bool own = !integers || target.dialect == QK_DIALECT_BITSANDBYTES;
    // The writer makes scales of 16 bits of those that came with zeros, where they are such
    // numbers.
    const bool wide = has_minima(job.desc) && job.layer.dense_format == QK_FORMAT_F32;
    if (wide && is_gptq(target)) return QK_FORMAT_F16;
    return own || has_minima(job.desc) ? job.layer.dense_format : job.desc.scale_format;
}

// The configuration has one size of groups for all layers. A row shorter than a group is one.
void join_groups(const Target &target, const Plan &plan, qk_tensor_desc *scheme) {
    for (const Job &job : plan.jobs) {
        const int32_t group = job.desc.group_size;
        if (scheme->group_size == QK_GROUP_ROW) scheme->group_size = group;
    }
    for (const Job &job : plan.jobs) {
        const int64_t k = job.desc.shape[1], all = scheme->group_size;
        const bool same_scales =
            (job.desc.scale_format == QK_FORMAT_E8M0) == (scheme->scale_format == QK_FORMAT_E8M0);
        if ((job.desc.format != scheme->format || !same_scales) && !is_gguf(target)) {
            cannot_hold(job.layer, std::string("its codes are ") + format_name(job.desc.format) +
                                       ", those of others " + format_name(scheme->format) +
                                       "; the configuration has one format for all");
        }
        // bitsandbytes' layers have their own beside them.
        if (all == QK_GROUP_ROW || target.dialect == QK_DIALECT_BITSANDBYTES) continue;
        const bool same = job.desc.group_size == all;
        const bool short_row = job.desc.group_size == QK_GROUP_ROW && k <= all;
        if (!same && !short_row) {
            cannot_hold(job.layer, "its group is " + group_name(job.desc) + ", that of others " +
                                       std::to_string(all) + "; the configuration for " +
                                       qk_dialect_name(target.dialect) + " has one for all");
        }
        if (k % all != 0 && !is_gptq(target)) {
            cannot_hold(job.layer, "its rows of " + std::to_string(k) +
                                       " are no multiple of the group of " + std::to_string(all));
        }
    }
}

// The configuration says of all layers whether they have zeros, and a group for each column. Where
// one has, the others get zeros that are none, beside scales of its type, and the order in which
// they are.
void join_flags(std::vector<Job> *jobs) {
    uint32_t any = 0;
    qk_format scales = QK_FORMAT_F16;
    for (const Job &job : *jobs) {
        any |= job.desc.flags & (QK_TENSOR_ORDERED | QK_TENSOR_FLOAT_MIN);
        if (has_minima(job.desc)) scales = job.layer.dense_format;
    }
    for (Job &job : *jobs) {
        if ((any & QK_TENSOR_FLOAT_MIN) != 0 && !has_minima(job.desc)) {
            job.desc.scale_format = QK_FORMAT_F32;
            job.layer.dense_format = scales;
        }
        job.desc.flags |= any;
    }
}

// Experts in one layer have a bias of all, [experts,n]: X.bias in GGUF.
void rename_bias(const qk_layer &layer, Plan *plan) {
    const std::string own = std::string(layer.name) + "_bias";
    for (qk_file_tensor &tensor : plan->copy) {
        if (tensor.name != own) continue;
        plan->names.push_back(std::string(layer.name) + ".bias");
        tensor.name = plan->names.back().c_str();
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
        changes = changes || !is_already(target, layer);
        if (is_gguf(target) || experts_in(checkpoint, layer) == 0) {
            plan.jobs.push_back({layer, layer.desc});
        } else {
            for (const Job &job : experts_one_by_one(target, checkpoint, layer, &plan.names)) {
                plan.jobs.push_back(job);
            }
        }
        add_weight_tensors(checkpoint, layer, &replaced);
    }
    refuse_unknown_method(checkpoint);
    if (!changes) {
        throw Failure(kFailed, plan.jobs.empty()
                                   ? "nothing to do: no quantized layer; qk quantize makes them"
                                   : std::string("nothing to do: the layers are ") +
                                         qk_dialect_name(target.dialect) + " already");
    }
    for (Job &job : plan.jobs) job.desc = stored_as(target, job.layer);
    refuse_unlisted(target.dialect, plan.dense);
    join_flags(&plan.jobs);
    plan.scheme = plan.jobs[0].desc;
    join_groups(target, plan, &plan.scheme);
    for (const qk_file_tensor &tensor : all_tensors(checkpoint)) {
        plan.bytes_in += tensor.bytes;
        if (replaced.count(tensor.name) == 0) plan.copy.push_back(tensor);
    }
    for (const Job &job : plan.jobs) {
        const bool gpt_oss = job.layer.dialect == QK_DIALECT_GPT_OSS;
        if (gpt_oss && job.layer.has_bias != 0) rename_bias(job.layer, &plan);
    }
    return plan;
}

// Reads all zeros: whether they need a place of their own, and whether GPTQ's v1 holds them.
void survey_zeros(const Target &target, Sources *sources, Plan *plan, Progress *progress) {
    if (target.layout == QK_LAYOUT_AWQ_GEMM || target.layout == QK_LAYOUT_AWQ_GEMV) return;
    bool symmetric = true;
    for (Job &job : plan->jobs) {
        progress->advance(0, job.layer.name);
        if (kind_of(job.desc) != Kind::kInt4) continue;
        const Zeros zeros = zeros_of(sources, job);
        symmetric = symmetric && zeros.all_eight;
        if (is_gguf(target) && !zeros.all_eight) {
            cannot_hold(job.layer, "its zeros are not all 8, and GGUF's Q4_0 has no others");
        }
        if (zeros.any_zero && target.layout == QK_LAYOUT_GPTQ_V1) {
            cannot_hold(job.layer,
                        "GPTQ v1 stores zeros minus one, and its readers disagree on a zero of 0; "
                        "--to gptq-v2 holds it");
        }
    }
    if (!symmetric) return;
    plan->scheme.flags |= QK_TENSOR_SYMMETRIC;
    // The others store zeros that are all 8.
    if (target.layout != QK_LAYOUT_WORD && !is_gguf(target)) return;
    for (Job &job : plan->jobs) {
        if (kind_of(job.desc) == Kind::kInt4) job.desc.flags |= QK_TENSOR_SYMMETRIC;
    }
}

void declare(const Target &target, const Checkpoint &checkpoint, const Plan &plan,
             const Output &output) {
    qk_io_message message = {};
    for (const qk_file_tensor &tensor : plan.copy) declare_copy(output, tensor);
    for (const Job &job : plan.jobs) {
        qk_tensor_desc desc = job.desc;
        const int64_t experts = is_gguf(target) ? experts_in(checkpoint, job.layer) : 0;
        if (experts > 0) split_rows(&desc, experts);
        check(qk_writer_declare_layer(output.writer(), target.dialect, job.layer.name, &desc,
                                      written_type(target, job), &message),
              "", message.text);
    }
}

void write_layer(const Context &context, const Job &job, const qk_tensor *tensor,
                 const Output &output) {
    qk_io_message message = {};
    check(qk_writer_write_layer(output.writer(), context.get(), job.layer.name, tensor, &message),
          "", message.text);
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
                                  written_type(target, plan.jobs[0]), kept.data(),
                                  static_cast<int64_t>(kept.size()), &message),
          "", message.text);
}

// What vLLM reads and transformers passes over is written, and said.
struct Unread {
    std::string name, reason;
};

std::vector<Unread> unread_experts(const Target &target, const Plan &plan) {
    std::vector<Unread> unread;
    if (target.dialect != QK_DIALECT_COMPRESSED_TENSORS) return unread;
    for (const Job &job : plan.jobs) {
        const std::string reason = not_read_of_experts(job.desc);
        if (reason.empty() || !is_expert(job.layer.name)) continue;
        unread.push_back({job.layer.name, reason});
    }
    return unread;
}

Json unread_json(const std::vector<Unread> &unread) {
    Json list = json_new_array();
    for (const Unread &expert : unread) {
        Json object = json_new_object();
        json_set(object, "name", expert.name);
        json_set(object, "reason", expert.reason);
        json_append(list, std::move(object));
    }
    return list;
}

void report(const CommonOptions &common, const ConvertOptions &options, const Target &target,
            const Plan &plan, const std::vector<Unread> &unread, const Beside &beside,
            const Output &output) {
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
        json_set(root, "unread_experts", unread_json(unread));
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

void note_unread(const CommonOptions &common, const std::vector<Unread> &unread) {
    if (unread.empty() || common.quiet || common.json) return;
    const std::string more = std::to_string(unread.size() - 1);
    std::fprintf(stderr, "qk: %s%s: %s, and computes with other weights; vLLM reads them\n",
                 printable(unread[0].name).c_str(),
                 unread.size() == 1 ? "" : (" and " + more + " more").c_str(),
                 unread[0].reason.c_str());
}

}  // namespace

ExitCode run_convert(const CommonOptions &common, const ConvertOptions &options) {
    const Target &target = target_of(options.to);
    const Checkpoint checkpoint = open_checkpoint(options.input);
    Plan plan = make_plan(target, checkpoint);
    const Context context = create_context(common);
    Sources sources(checkpoint, context);
    Output output(options.output, options.force);
    output.refuse_dialect(target.dialect);
    Beside beside;
    declare_metadata(checkpoint, output);
    {
        Progress progress(common, plan.bytes_in);
        survey_zeros(target, &sources, &plan, &progress);
        declare(target, checkpoint, plan, output);
        beside = copy_beside(options.input, checkpoint, &output, &progress);
        for (const qk_file_tensor &tensor : plan.copy) write_copy(output, tensor, &progress);
        for (const Job &job : plan.jobs) {
            write_layer(context, job, recast(&sources, job).get(), output);
            progress.advance(job.layer.bytes, job.layer.name);
        }
        if (output.has_config()) write_config(target, checkpoint, plan, output);
        output.commit();
    }
    note_removed(common, output);
    const std::vector<Unread> unread = unread_experts(target, plan);
    note_unread(common, unread);
    report(common, options, target, plan, unread, beside, output);
    return kOk;
}
