#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

#include "commands.hpp"
#include "json.hpp"
#include "layers.hpp"
#include "mapped.hpp"
#include "progress.hpp"
#include "rows.hpp"
#include "scan.hpp"

namespace {

enum class Finding { kFault, kRefused, kNote };

struct Line {
    Finding finding;
    std::string name, sentence;
};
struct Result {
    std::vector<Line> lines;
    int64_t tensors = 0, quantized_layers = 0, decoded_layers = 0, zero_scales = 0;
    int64_t fused_experts = 0;   // tensors
    bool model_refused = false;  // by its configuration, where no layer was
    ValueCounts dense, decoded;
    void add(Finding finding, const std::string &name, const std::string &sentence) {
        lines.push_back({finding, name, sentence});
    }
    int64_t count(Finding finding) const {
        int64_t total = 0;
        for (const Line &line : lines) total += line.finding == finding;
        return total;
    }
};

std::string times(int64_t count, const char *what) {
    return std::to_string(count) + (count == 1 ? " value is " : " values are ") + what;
}

// A layer is found by its codes: without them nothing else would miss it.
void verify_has_codes(const Checkpoint &checkpoint, const std::string &name, Result *result) {
    static const char *const kPairs[][2] = {{".qzeros", ".qweight"},
                                            {".weight_shape", ".weight_packed"},
                                            {".weight_scale_inv", ".weight"},
                                            {".weight_scale_2", ".weight"},
                                            {".SCB", ".weight"},
                                            {".weight.quant_map", ".weight"}};
    for (const auto &[part, codes] : kPairs) {
        const size_t size = std::strlen(part);
        if (name.size() < size || name.compare(name.size() - size, size, part) != 0) continue;
        const std::string wanted = name.substr(0, name.size() - size) + codes;
        qk_file_tensor found;
        if (qk_checkpoint_find_tensor(checkpoint.get(), wanted.c_str(), &found) == QK_OK) continue;
        result->add(Finding::kFault, name, "belongs to " + wanted + ", which is missing");
    }
}

// Scales are checked with their layer: there they have a meaning.
void verify_tensor(const qk_file_tensor &tensor, bool of_quantized_layer, Progress *progress,
                   Result *result) {
    constexpr int64_t kPiece = 16 << 20;
    const char *data = static_cast<const char *>(tensor.data);
    ValueCounts counts;
    for (int64_t at = 0; at < tensor.bytes; at += kPiece) {
        const int64_t bytes = std::min(kPiece, tensor.bytes - at);
        progress->advance(bytes, tensor.name);
        counts.add(count_values(tensor.dtype, data + at, bytes));
    }
    ++result->tensors;
    if (of_quantized_layer) return;
    result->dense.add(counts);
    if (counts.nan > 0) result->add(Finding::kFault, tensor.name, times(counts.nan, "NaN"));
    // Attention masks are stored with infinities on purpose.
    if (counts.infinite > 0) {
        result->add(Finding::kNote, tensor.name, times(counts.infinite, "infinite"));
    }
}

void decode_layer(const Checkpoint &checkpoint, const Context &context, const qk_layer &layer,
                  Progress *progress, Result *result) {
    LayerRows rows(checkpoint, context, layer);
    ValueCounts counts;
    for (int64_t at = 0; at < rows.rows();) {
        const RowBlock block = rows.block(at);
        const int64_t weights = block.count * rows.columns();
        counts.add(count_values(QK_DTYPE_F32, rows.decode_f32(block), weights * 4));
        result->zero_scales += rows.count_zero_scales(block);
        at += block.count;
        progress->advance(layer.bytes * block.count / rows.rows(), layer.name);
    }
    result->decoded.add(counts);
    ++result->decoded_layers;
    const int64_t bad = counts.nan + counts.infinite;
    if (bad > 0) {
        result->add(Finding::kFault, layer.name, times(bad, "NaN or infinite when decoded"));
    }
}

// A method that qk does not know and that no layer shows: its tensors look dense.
void verify_method(const Checkpoint &checkpoint, Result *result) {
    const Method method = method_of(checkpoint);
    if (method.reason.empty() || result->count(Finding::kRefused) > 0) return;
    result->model_refused = true;
    result->add(Finding::kRefused, "configuration", method.reason);
}

void verify_layer(const Checkpoint &checkpoint, const Context &context, const qk_layer &layer,
                  Progress *progress, Result *result) {
    if (is_plain_data(checkpoint, layer)) return;  // its values were read as a tensor
    result->quantized_layers += is_quantized(layer);
    if (layer.status == QK_ERROR_UNSUPPORTED) {
        result->add(Finding::kRefused, layer.name, layer.reason);
        return;
    }
    if (layer.status != QK_OK) {
        result->add(Finding::kFault, layer.name, layer.reason);
        return;
    }
    if (!is_quantized(layer)) return;  // its values, too, were read as a tensor
    qk_io_message message = {};
    const qk_status status = qk_checkpoint_verify_layer(checkpoint.get(), layer.name, &message);
    if (status == QK_ERROR_CORRUPT) {
        result->add(Finding::kFault, layer.name, message.text);
        return;
    }
    check(status, layer.name, message.text);
    if (message.text[0] != 0) result->add(Finding::kNote, layer.name, message.text);
    decode_layer(checkpoint, context, layer, progress, result);
}

const char *finding_name(Finding finding) {
    if (finding == Finding::kFault) return "fault";
    return finding == Finding::kRefused ? "refused" : "note";
}

Json counts_json(const ValueCounts &counts) {
    Json object = json_new_object();
    json_set(object, "values", counts.values);
    json_set(object, "zero", counts.zero);
    json_set(object, "nan", counts.nan);
    json_set(object, "infinite", counts.infinite);
    return object;
}

// What qk cannot decode it cannot call sound.
bool is_sound(const Result &result) {
    return result.count(Finding::kFault) == 0 && result.count(Finding::kRefused) == 0;
}

void print_json(const VerifyOptions &options, const Result &result) {
    const Json root = json_new_object();
    json_set(root, "file", options.file);
    json_set(root, "sound", is_sound(result));
    json_set(root, "tensors", result.tensors);
    json_set(root, "quantized_layers", result.quantized_layers);
    json_set(root, "decoded_layers", result.decoded_layers);
    json_set(root, "refused_layers", result.model_refused ? 0 : result.count(Finding::kRefused));
    json_set(root, "fused_experts", result.fused_experts);
    json_set(root, "zero_scales", result.zero_scales);
    json_set(root, "dense", counts_json(result.dense));
    json_set(root, "decoded", counts_json(result.decoded));
    Json findings = json_new_array();
    for (const Line &line : result.lines) {
        Json object = json_new_object();
        json_set(object, "kind", finding_name(line.finding));
        json_set(object, "name", line.name);
        json_set(object, "text", line.sentence);
        json_append(findings, std::move(object));
    }
    json_set(root, "findings", std::move(findings));
    json_print(root);
}

// One line for all layers that are refused for the same reason: a model has hundreds of them.
void print_lines(const CommonOptions &common, const Result &result) {
    std::map<std::string, int64_t> refused;
    for (const Line &line : result.lines) {
        if (line.finding == Finding::kRefused) ++refused[line.sentence];
    }
    for (const Line &line : result.lines) {
        if (common.quiet && line.finding == Finding::kNote) continue;
        std::string more;
        if (line.finding == Finding::kRefused) {
            int64_t &count = refused[line.sentence];
            if (count == 0) continue;  // said with the first
            if (count > 1) more = " and " + std::to_string(count - 1) + " more";
            count = 0;
        }
        std::printf("%s: %s%s: %s\n", finding_name(line.finding), printable(line.name).c_str(),
                    more.c_str(), printable(line.sentence).c_str());
    }
}

void print_text(const CommonOptions &common, const Result &result) {
    print_lines(common, result);
    const double decoded = double(result.decoded.values);
    std::printf("%s read, %lld of %s decoded: %s, %.2f%% zero, %s\n",
                plural(result.tensors, "tensor").c_str(),
                static_cast<long long>(result.decoded_layers),
                plural(result.quantized_layers, "quantized layer").c_str(),
                plural(result.decoded.values, "weight").c_str(),
                decoded > 0 ? 100 * double(result.decoded.zero) / decoded : 0.0,
                plural(result.zero_scales, "zero scale").c_str());
    if (result.fused_experts > 0) {
        std::printf("%s of fused experts read as dense\n",
                    plural(result.fused_experts, "tensor").c_str());
    }
    const int64_t faults = result.count(Finding::kFault);
    const int64_t refused = result.count(Finding::kRefused);
    if (faults > 0) {
        std::printf("%s\n", plural(faults, "fault").c_str());
    } else if (refused > 0 && result.model_refused) {
        std::printf("no faults, but a model that qk cannot load\n");
    } else if (refused > 0) {
        std::printf("no faults, but %s that qk cannot load\n", plural(refused, "layer").c_str());
    } else {
        std::printf("sound\n");
    }
}

}  // namespace

ExitCode run_verify(const CommonOptions &common, const VerifyOptions &options) {
    const Checkpoint checkpoint = open_checkpoint(options.file);
    const Context context = create_context(common);
    const std::vector<qk_layer> layers = all_layers(checkpoint);
    const std::vector<qk_file_tensor> tensors = all_tensors(checkpoint);
    std::set<std::string> of_quantized_layers;
    int64_t total = 0;
    for (const qk_file_tensor &tensor : tensors) total += tensor.bytes;
    for (const qk_layer &layer : layers) {
        if (!is_quantized(layer)) continue;
        if (is_loadable(layer)) total += layer.bytes;
        add_weight_tensors(checkpoint, layer, &of_quantized_layers);
    }
    Result result;
    {
        Progress progress(common, total);
        for (const qk_file_tensor &tensor : tensors) {
            verify_tensor(tensor, of_quantized_layers.count(tensor.name) != 0, &progress, &result);
            verify_has_codes(checkpoint, tensor.name, &result);
        }
        for (const qk_layer &layer : layers) {
            progress.advance(0, layer.name);
            verify_layer(checkpoint, context, layer, &progress, &result);
        }
        verify_method(checkpoint, &result);
        result.fused_experts = static_cast<int64_t>(fused_experts(tensors).size());
    }
    check_files_whole();
    if (common.json) {
        print_json(options, result);
    } else {
        print_text(common, result);
    }
    if (result.count(Finding::kFault) > 0) return kFailed;
    return result.count(Finding::kRefused) > 0 ? kUnsupported : kOk;
}
