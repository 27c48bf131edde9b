#include <algorithm>
#include <cstdio>
#include <optional>

#include "beside.hpp"
#include "commands.hpp"
#include "json.hpp"
#include "layer_error.hpp"
#include "layers.hpp"
#include "originals.hpp"
#include "output.hpp"
#include "rows.hpp"
#include "transpose.hpp"

namespace {

struct Plan {
    std::vector<qk_layer> decode;
    std::vector<qk_file_tensor> copy;
};

void refuse(const qk_layer &layer) {
    throw Failure(exit_code(layer.status),
                  std::string(layer.name) + ": " + layer.reason + " (--layer picks others)");
}

bool is_gpt_oss(const qk_layer &layer) { return layer.dialect == QK_DIALECT_GPT_OSS; }

Plan make_plan(const Checkpoint &checkpoint, const std::vector<std::string> &patterns) {
    Plan plan;
    std::set<std::string> replaced, wanted;
    for (const qk_layer &layer : select_layers(all_layers(checkpoint), patterns)) {
        if (is_plain_data(checkpoint, layer)) {
            wanted.insert(std::string(layer.name) + ".weight");
            continue;
        }
        if (!is_loadable(layer)) refuse(layer);
        wanted.insert(std::string(layer.name) + (is_gpt_oss(layer) ? "_bias" : ".bias"));
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

// The experts of gpt-oss are a parameter without a module, in transformers' models as in its files.
std::string weight_name(const qk_layer &layer) {
    return is_gpt_oss(layer) ? layer.name : std::string(layer.name) + ".weight";
}

struct Sizes {
    int32_t rank;
    int64_t shape[QK_MAX_RANK];
};

// Experts in one weight stay experts; those of gpt-oss are dense as [experts,k,n].
Sizes sizes_of(const Checkpoint &checkpoint, const qk_layer &layer) {
    const int64_t rows = layer.desc.shape[0], columns = layer.desc.shape[1];
    const bool blocks = is_gpt_oss(layer);
    const std::string name = layer.name + std::string(blocks ? "_blocks" : ".weight");
    qk_file_tensor tensor;
    if ((!blocks && layer.dialect != QK_DIALECT_GGUF) ||
        qk_checkpoint_find_tensor(checkpoint.get(), name.c_str(), &tensor) != QK_OK) {
        return {2, {rows, columns}};
    }
    if (blocks) return {3, {tensor.shape[0], columns, tensor.shape[1]}};
    Sizes sizes = {tensor.rank, {}};
    std::copy_n(tensor.shape, tensor.rank, sizes.shape);
    return sizes;
}

// Returns the bytes that will be written.
int64_t declare(const Checkpoint &checkpoint, const DequantizeOptions &options, const Plan &plan,
                const Output &output) {
    qk_io_message message = {};
    int64_t bytes = 0;
    for (const qk_file_tensor &tensor : plan.copy) {
        declare_copy(output, tensor);
        bytes += tensor.bytes;
    }
    for (const qk_layer &layer : plan.decode) {
        const qk_format format = target_format(options, layer);
        const Sizes sizes = sizes_of(checkpoint, layer);
        check(qk_writer_declare(output.writer(), weight_name(layer).c_str(), dtype_of(format),
                                sizes.rank, sizes.shape, &message),
              "", message.text);
        bytes += layer.desc.shape[0] * layer.desc.shape[1] * element_bytes(format);
    }
    return bytes;
}

// Of every layer that is decoded; empty without --report.
std::vector<Original> find_originals(const Checkpoint &originals, const Plan &plan,
                                     const std::string &path) {
    std::vector<Original> all;
    if (originals == nullptr) return all;
    const Originals from(originals);
    bool any = false;
    for (const qk_layer &layer : plan.decode) {
        all.push_back(from.find(layer));
        any = any || all.back().reason.empty();
    }
    if (any) return all;
    throw Failure(kFailed, "--report " + path + ": has none of the layers to compare; " +
                               plan.decode[0].name + ": " + all[0].reason);
}

// The rows of a block of the decoded layer, which the original may have in several blocks.
void compare_block(const Values &decoded, const RowBlock &block, int threads,
                   OriginalRows *original, LayerError *error) {
    const int64_t columns = original->columns(), size = element_bytes(decoded.format);
    for (int64_t row = 0; row < block.count;) {
        Values some = {};
        const int64_t count = original->read(block.begin + row, block.count - row, &some);
        const char *at = static_cast<const char *>(decoded.data) + row * columns * size;
        compare(some, {decoded.format, at}, count, columns, threads, error);
        row += count;
    }
}

void write_values(const Output &output, const qk_layer &layer, const void *values, int64_t bytes) {
    qk_io_message message = {};
    check(qk_writer_write(output.writer(), weight_name(layer).c_str(), values,
                          static_cast<size_t>(bytes), &message),
          "", message.text);
}

// Experts [n,k] whose rows come one after the other, written as [k,n].
class Turned {
  public:
    Turned(int64_t rows, int64_t columns, int64_t element)
        : rows_(rows), columns_(columns), element_(element) {}

    void write(const Output &output, const qk_layer &layer, const char *values, int64_t count) {
        const int64_t row_bytes = columns_ * element_;
        expert_.resize(static_cast<size_t>(rows_ * row_bytes));
        for (int64_t row = 0, some = 0; row < count; row += some) {
            some = std::min(count - row, rows_ - filled_);
            transpose({some, columns_, element_}, values + row * row_bytes, row_bytes,
                      expert_.data() + filled_ * element_, rows_ * element_);
            filled_ += some;
            if (filled_ < rows_) continue;
            write_values(output, layer, expert_.data(), rows_ * row_bytes);
            filled_ = 0;
        }
    }

  private:
    int64_t rows_, columns_, element_, filled_ = 0;
    std::vector<char> expert_;
};

// original: NULL where the layer is not compared.
LayerError decode_layer(const Checkpoint &checkpoint, const Context &context, const qk_layer &layer,
                        qk_format format, OriginalRows *original, const Output &output,
                        Progress *progress) {
    LayerRows rows(checkpoint, context, layer);
    const Sizes sizes = sizes_of(checkpoint, layer);
    Turned turned(sizes.shape[2], rows.columns(), element_bytes(format));
    LayerError error;
    for (int64_t at = 0; at < rows.rows();) {
        const RowBlock block = rows.block(at);
        const int64_t bytes = block.count * rows.columns() * element_bytes(format);
        progress->advance(bytes, layer.name);
        const char *values = rows.decode(block, format);
        if (is_gpt_oss(layer)) {
            turned.write(output, layer, values, block.count);
        } else {
            write_values(output, layer, values, bytes);
        }
        if (original != nullptr) {
            compare_block({format, values}, block, thread_count(context), original, &error);
        }
        at += block.count;
    }
    return error;
}

struct Decoding {
    const DequantizeOptions &options;
    const Checkpoint &checkpoint, &originals;
    const Context &context;
};

// Writes all layers; returns what is to be reported of them.
std::vector<ComparedLayer> decode_layers(const Decoding &from, const Plan &plan,
                                         const std::vector<Original> &originals,
                                         const Output &output, Progress *progress) {
    std::vector<ComparedLayer> compared;
    for (size_t i = 0; i < plan.decode.size(); ++i) {
        const qk_layer &layer = plan.decode[i];
        std::optional<OriginalRows> original;
        if (!originals.empty() && originals[i].reason.empty()) {
            original.emplace(from.originals, from.context, originals[i]);
        }
        const LayerError error =
            decode_layer(from.checkpoint, from.context, layer, target_format(from.options, layer),
                         original ? &*original : nullptr, output, progress);
        if (!originals.empty()) compared.push_back({layer.name, originals[i].reason, error});
    }
    return compared;
}

void write_config(const Checkpoint &checkpoint, const Plan &plan, const Output &output) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    qk_io_message message = {};
    check(qk_writer_append_config(output.config(), checkpoint.get(), QK_DIALECT_DENSE, &desc,
                                  plan.decode[0].dense_format, nullptr, 0, &message),
          "", message.text);
}

void report(const CommonOptions &common, const DequantizeOptions &options, const Plan &plan,
            int64_t bytes, const std::vector<ComparedLayer> &errors, const Beside &beside,
            const Output &output) {
    if (common.json) {
        const Json root = json_new_object();
        json_set(root, "input", options.input);
        json_set(root, "output", options.output);
        json_set(root, "decoded_layers", static_cast<int64_t>(plan.decode.size()));
        json_set(root, "copied_tensors", static_cast<int64_t>(plan.copy.size()));
        json_set(root, "tensor_bytes", bytes);
        if (!errors.empty()) set_errors(root, errors);
        set_beside(root, beside);
        json_set(root, "removed", removed_json(output));
        json_print(root);
    } else if (!common.quiet) {
        std::printf("%s: %s decoded, %s copied, %s\n", printable(options.output).c_str(),
                    plural(static_cast<int64_t>(plan.decode.size()), "layer").c_str(),
                    plural(static_cast<int64_t>(plan.copy.size()), "tensor").c_str(),
                    human_bytes(double(bytes)).c_str());
        if (!errors.empty()) print_errors(errors);
        note_beside(common, beside);
    }
}

}  // namespace

ExitCode run_dequantize(const CommonOptions &common, const DequantizeOptions &options) {
    const Checkpoint checkpoint = open_checkpoint(options.input);
    const Plan plan = make_plan(checkpoint, options.layers);
    const Checkpoint originals =
        options.original.empty() ? nullptr : open_checkpoint(options.original);
    const std::vector<Original> found = find_originals(originals, plan, options.original);
    const Context context = create_context(common);
    Output output(options.output, options.force);
    declare_metadata(checkpoint, output);
    const int64_t bytes = declare(checkpoint, options, plan, output);
    Beside beside;
    std::vector<ComparedLayer> errors;
    {
        Progress progress(common, bytes);
        // Some layers are no model: they get no tokenizer.
        beside = copy_beside(options.input, checkpoint, &output, &progress, options.layers.empty());
        for (const qk_file_tensor &tensor : plan.copy) write_copy(output, tensor, &progress);
        errors = decode_layers({options, checkpoint, originals, context}, plan, found, output,
                               &progress);
        if (output.has_config()) write_config(checkpoint, plan, output);
        output.commit();
    }
    note_removed(common, output);
    report(common, options, plan, bytes, errors, beside, output);
    return kOk;
}
