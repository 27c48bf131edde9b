#include <cstdio>

#include "beside.hpp"
#include "commands.hpp"
#include "json.hpp"
#include "layers.hpp"
#include "output.hpp"
#include "rows.hpp"

namespace {

struct Plan {
    std::vector<qk_layer> decode;
    std::vector<qk_file_tensor> copy;
};

void refuse(const qk_layer &layer) {
    throw Failure(exit_code(layer.status),
                  std::string(layer.name) + ": " + layer.reason + " (--layer picks others)");
}

Plan make_plan(const Checkpoint &checkpoint, const std::vector<std::string> &patterns) {
    Plan plan;
    std::set<std::string> replaced, wanted;
    for (const qk_layer &layer : select_layers(all_layers(checkpoint), patterns)) {
        if (is_plain_data(checkpoint, layer)) {
            wanted.insert(std::string(layer.name) + ".weight");
            continue;
        }
        if (!is_loadable(layer)) refuse(layer);
        wanted.insert(std::string(layer.name) + ".bias");
        if (is_quantized(layer)) {
            plan.decode.push_back(layer);
            add_weight_tensors(checkpoint, layer, &replaced);
        } else {
            add_weight_tensors(checkpoint, layer, &wanted);
        }
    }
    refuse_unknown_method(checkpoint);
    if (plan.decode.empty()) throw Failure(kFailed, "nothing to do: no quantized layer");
    for (const qk_file_tensor &tensor : all_tensors(checkpoint)) {
        if (replaced.count(tensor.name) != 0) continue;
        if (patterns.empty() || wanted.count(tensor.name) != 0) plan.copy.push_back(tensor);
    }
    return plan;
}

qk_format target_format(const DequantizeOptions &options, const qk_layer &layer) {
    return options.dtype.empty() ? layer.dense_format : float_format_of(options.dtype);
}

std::string weight_name(const qk_layer &layer) { return std::string(layer.name) + ".weight"; }

// Returns the bytes that will be written.
int64_t declare(const DequantizeOptions &options, const Plan &plan, const Output &output) {
    qk_io_message message = {};
    int64_t bytes = 0;
    for (const qk_file_tensor &tensor : plan.copy) {
        declare_copy(output, tensor);
        bytes += tensor.bytes;
    }
    for (const qk_layer &layer : plan.decode) {
        const qk_format format = target_format(options, layer);
        check(qk_writer_declare(output.writer(), weight_name(layer).c_str(), dtype_of(format), 2,
                                layer.desc.shape, &message),
              "", message.text);
        bytes += layer.desc.shape[0] * layer.desc.shape[1] * element_bytes(format);
    }
    return bytes;
}

void decode_layer(const Checkpoint &checkpoint, const Context &context, const qk_layer &layer,
                  qk_format format, const Output &output, Progress *progress) {
    LayerRows rows(checkpoint, context, layer);
    qk_io_message message = {};
    for (int64_t at = 0; at < rows.rows();) {
        const RowBlock block = rows.block(at);
        const int64_t bytes = block.count * rows.columns() * element_bytes(format);
        progress->advance(bytes, layer.name);
        check(qk_writer_write(output.writer(), weight_name(layer).c_str(),
                              rows.decode(block, format), static_cast<size_t>(bytes), &message),
              "", message.text);
        at += block.count;
    }
}

void write_config(const Checkpoint &checkpoint, const Plan &plan, const Output &output) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    qk_io_message message = {};
    check(qk_writer_append_config(output.config(), checkpoint.get(), QK_DIALECT_DENSE, &desc,
                                  plan.decode[0].dense_format, nullptr, 0, &message),
          "", message.text);
}

void report(const CommonOptions &common, const DequantizeOptions &options, const Plan &plan,
            int64_t bytes, const Beside &beside, const Output &output) {
    if (common.json) {
        const Json root = json_new_object();
        json_set(root, "input", options.input);
        json_set(root, "output", options.output);
        json_set(root, "decoded_layers", static_cast<int64_t>(plan.decode.size()));
        json_set(root, "copied_tensors", static_cast<int64_t>(plan.copy.size()));
        json_set(root, "tensor_bytes", bytes);
        set_beside(root, beside);
        json_set(root, "removed", removed_json(output));
        json_print(root);
    } else if (!common.quiet) {
        std::printf("%s: %s decoded, %s copied, %s\n", printable(options.output).c_str(),
                    plural(static_cast<int64_t>(plan.decode.size()), "layer").c_str(),
                    plural(static_cast<int64_t>(plan.copy.size()), "tensor").c_str(),
                    human_bytes(double(bytes)).c_str());
        note_beside(common, beside);
    }
}

}  // namespace

ExitCode run_dequantize(const CommonOptions &common, const DequantizeOptions &options) {
    const Checkpoint checkpoint = open_checkpoint(options.input);
    const Plan plan = make_plan(checkpoint, options.layers);
    const Context context = create_context(common);
    Output output(options.output, options.force);
    declare_metadata(checkpoint, output);
    const int64_t bytes = declare(options, plan, output);
    Beside beside;
    {
        Progress progress(common, bytes);
        // Some layers are no model: they get no tokenizer.
        if (options.layers.empty()) {
            beside = copy_beside(options.input, checkpoint, &output, &progress);
        }
        for (const qk_file_tensor &tensor : plan.copy) write_copy(output, tensor, &progress);
        for (const qk_layer &layer : plan.decode) {
            decode_layer(checkpoint, context, layer, target_format(options, layer), output,
                         &progress);
        }
        if (output.has_config()) write_config(checkpoint, plan, output);
        output.commit();
    }
    note_removed(common, output);
    report(common, options, plan, bytes, beside, output);
    return kOk;
}
