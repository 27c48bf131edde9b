#include <algorithm>
#include <cctype>
#include <cstdio>
#include <map>
#include <set>

#include "commands.hpp"
#include "fused.hpp"
#include "json.hpp"
#include "mixtures.hpp"

namespace {

std::string scales_name(const qk_tensor_desc &desc) {
    if (desc.scale_format == 0) return "-";
    return desc.scale_format == QK_FORMAT_LUT8 ? "nested" : format_name(desc.scale_format);
}

bool is_ordered(const qk_tensor_desc &desc) { return (desc.flags & QK_TENSOR_ORDERED) != 0; }

using Row = std::vector<std::string>;

Row layer_row(const Checkpoint &checkpoint, const qk_layer &layer) {
    const bool known = is_loadable(layer);
    const qk_tensor_desc &desc = layer.desc;
    return {printable(layer.name),
            method_name(checkpoint, layer),
            known ? format_name(desc.format) : "-",
            known ? shape_name(desc.shape, desc.rank) : "-",
            known ? group_name(desc) + (is_ordered(desc) ? ", act-order" : "") : "-",
            known ? scales_name(desc) : "-",
            human_bytes(double(layer.bytes)),
            known ? "yes" : "no: " + printable(layer.reason)};
}

// What the parts of a mixture have, each once.
template <class Cell>
std::string each_once(const Mixture &mixture, const Cell &cell) {
    std::vector<std::string> cells;
    std::string all;
    for (const qk_layer &layer : mixture.parts) {
        const std::string text = is_loadable(layer) ? cell(layer) : "-";
        if (std::find(cells.begin(), cells.end(), text) != cells.end()) continue;
        cells.push_back(text);
        all += (all.empty() ? "" : ", ") + text;
    }
    return all;
}

// "128 x (gate_proj 768 x 2048, up_proj 768 x 2048, down_proj 2048 x 768)"
std::string shapes_name(const Mixture &mixture) {
    std::string shapes;
    for (const qk_layer &layer : mixture.parts) {
        const bool known = is_loadable(layer);
        shapes += (shapes.empty() ? "" : ", ") + part_name(layer) + " " +
                  (known ? shape_name(layer.desc.shape + 1, 2) : "-");
    }
    return std::to_string(mixture.experts()) + " x (" + shapes + ")";
}

// Pairs of dense tensors: "yes, transposed; not quantized: down_proj, gate_up_proj".
std::string mixture_loads(const Mixture &mixture, const std::vector<FusedExperts> &pairs) {
    if (!mixture.reason().empty()) return "no: " + mixture.reason();
    std::string loads = "yes", separator = "; not quantized: ";
    for (const FusedExperts &pair : pairs) {
        if (pair.name == mixture.name && pair.transposed) loads += ", transposed";
    }
    for (const std::string &part : mixture.not_quantized()) {
        loads += separator + part;
        separator = ", ";
    }
    return loads;
}

Row mixture_row(const Checkpoint &checkpoint, const Mixture &mixture,
                const std::vector<FusedExperts> &pairs) {
    const auto group = [](const qk_layer &layer) {
        return group_name(layer.desc) + (is_ordered(layer.desc) ? ", act-order" : "");
    };
    return {printable(mixture.name),
            each_once(mixture, [&](const qk_layer &l) { return method_name(checkpoint, l); }),
            each_once(mixture, [](const qk_layer &l) { return format_name(l.desc.format); }),
            printable(shapes_name(mixture)),
            each_once(mixture, group),
            each_once(mixture, [](const qk_layer &l) { return scales_name(l.desc); }),
            human_bytes(double(mixture.bytes())),
            printable(mixture_loads(mixture, pairs))};
}

// As formats are named: "bf16".
std::string dtype_name(const qk_file_tensor &tensor) {
    std::string name = tensor.dtype_name;
    for (char &c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return name;
}

// "blk.0.ffn_up_exps" of "blk.0.ffn_up_exps.weight", as the library names experts.
std::string experts_name(const qk_file_tensor &tensor) {
    const std::string name = tensor.name, end = ".weight";
    return ends_with(name, end) ? name.substr(0, name.size() - end.size()) : name;
}

Row experts_row(const qk_file_tensor &tensor) {
    return {printable(tensor.name),
            "dense",
            dtype_name(tensor),
            shape_name(tensor.shape, tensor.rank),
            "-",
            "-",
            human_bytes(double(tensor.bytes)),
            "no: " + plural(tensor.shape[0], "expert") + " in one tensor, no layer"};
}

// Where a name is very long, its row sticks out: the others stay readable.
void print_table(const std::vector<Row> &rows) {
    constexpr size_t kWidest = 100;  // shapes of three projections have 80
    std::vector<size_t> widths(rows[0].size(), 0);
    for (const Row &row : rows) {
        for (size_t i = 0; i < row.size(); ++i) {
            const size_t columns = columns_of(row[i]);
            if (columns <= kWidest) widths[i] = std::max(widths[i], columns);
        }
    }
    for (const Row &row : rows) {
        std::string line;
        size_t end = 0;  // of this cell's column
        for (size_t i = 0; i < row.size(); ++i) {
            line += row[i];
            end += widths[i];
            if (i + 1 == row.size()) break;
            const size_t at = columns_of(line);
            line.append(at < end ? end - at + 2 : 2, ' ');
            end += 2;
        }
        std::printf("%s\n", line.c_str());
    }
}

struct Contents {
    std::vector<qk_layer> layers;
    std::vector<Mixture> mixtures;
    std::vector<qk_file_tensor> tensors, experts;
    std::vector<FusedExperts> fused;  // pairs of experts
    Method method;
};

// By the names of tensors, the pair that each is one of.
std::map<std::string, const FusedExperts *> pairs_of(const std::vector<FusedExperts> &all) {
    std::map<std::string, const FusedExperts *> pairs;
    for (const FusedExperts &fused : all) {
        for (const char *name : {fused.gate_up.name, fused.down.name}) pairs[name] = &fused;
    }
    return pairs;
}

struct Totals {
    int64_t quantized = 0, refused = 0, layer_bytes = 0, expert_bytes = 0, tensor_bytes = 0;
};

Totals count(const Contents &contents) {
    Totals totals;
    for (const qk_layer &layer : contents.layers) {
        totals.quantized += is_quantized(layer);
        totals.refused += !is_loadable(layer);
        totals.layer_bytes += layer.bytes;
    }
    for (const qk_file_tensor &tensor : contents.experts) totals.expert_bytes += tensor.bytes;
    for (const qk_file_tensor &tensor : contents.tensors) totals.tensor_bytes += tensor.bytes;
    return totals;
}

Json layer_json(const Checkpoint &checkpoint, const qk_layer &layer) {
    Json object = json_new_object();
    json_set(object, "name", layer.name);
    json_set(object, "dialect", qk_dialect_name(layer.dialect));
    json_set(object, "method", method_name(checkpoint, layer));
    json_set(object, "loadable", is_loadable(layer));
    json_set(object, "status", layer.status);
    json_set(object, "reason", layer.reason);
    json_set(object, "bytes", layer.bytes);
    json_set(object, "has_bias", layer.has_bias != 0);
    if (!is_loadable(layer)) return object;
    const qk_tensor_desc &desc = layer.desc;
    json_set(object, "format", format_name(desc.format));
    json_set(object, "dense_format", format_name(layer.dense_format));
    json_set(object, "layout", layout_name(desc.layout));
    json_set(object, "shape", json_shape(desc.shape, desc.rank));
    if (!is_quantized(layer)) return object;
    json_set(object, "group_size", desc.group_size);
    json_set(object, "scales", scales_name(desc));
    json_set(object, "symmetric", (desc.flags & QK_TENSOR_SYMMETRIC) != 0);
    json_set(object, "act_order", is_ordered(desc));
    return object;
}

Json mixture_json(const Checkpoint &checkpoint, const Mixture &mixture) {
    Json object = json_new_object(), parts = json_new_array(), dense = json_new_array();
    json_set(object, "name", mixture.name);
    json_set(object, "experts", mixture.experts());
    json_set(object, "loadable", mixture.reason().empty());
    json_set(object, "reason", mixture.reason());
    json_set(object, "bytes", mixture.bytes());
    for (const std::string &part : mixture.not_quantized()) {
        json_append(dense, Json(json_string(printable(part).c_str())));
    }
    json_set(object, "not_quantized", std::move(dense));
    for (const qk_layer &layer : mixture.parts) {
        json_append(parts, layer_json(checkpoint, layer));
    }
    json_set(object, "projections", std::move(parts));
    return object;
}

Json tensor_json(const qk_file_tensor &tensor) {
    Json object = json_new_object();
    json_set(object, "name", tensor.name);
    json_set(object, "dtype", tensor.dtype_name);
    json_set(object, "shape", json_shape(tensor.shape, tensor.rank));
    json_set(object, "bytes", tensor.bytes);
    json_set(object, "file", tensor.file);
    return object;
}

void print_json(const Checkpoint &checkpoint, const InspectOptions &options,
                const Contents &contents) {
    const Totals totals = count(contents);
    const Json root = json_new_object();
    json_set(root, "file", options.file);
    json_set(root, "quant_method", contents.method.name);
    json_set(root, "quant_method_known", contents.method.reason.empty());
    json_set(root, "tensor_count", static_cast<int64_t>(contents.tensors.size()));
    json_set(root, "tensor_bytes", totals.tensor_bytes);
    json_set(root, "layer_count", static_cast<int64_t>(contents.layers.size()));
    json_set(root, "quantized_layers", totals.quantized);
    json_set(root, "refused_layers", totals.refused);
    json_set(root, "layer_bytes", totals.layer_bytes);
    Json list = json_new_array();
    for (const qk_layer &layer : contents.layers) {
        json_append(list, layer_json(checkpoint, layer));
    }
    json_set(root, "layers", std::move(list));
    Json mixtures = json_new_array();
    for (const Mixture &mixture : contents.mixtures) {
        json_append(mixtures, mixture_json(checkpoint, mixture));
    }
    json_set(root, "experts", std::move(mixtures));
    Json experts = json_new_array();
    const auto pairs = pairs_of(contents.fused);
    for (const qk_file_tensor &tensor : contents.experts) {
        Json object = tensor_json(tensor);
        const auto pair = pairs.find(tensor.name);
        json_set(object, "mixture", pair == pairs.end() ? "" : pair->second->name);
        json_set(object, "transposed", pair != pairs.end() && pair->second->transposed);
        json_append(experts, std::move(object));
    }
    json_set(root, "fused_experts", std::move(experts));
    json_set(root, "fused_expert_bytes", totals.expert_bytes);
    if (options.tensors) {
        Json all = json_new_array();
        for (const qk_file_tensor &tensor : contents.tensors) json_append(all, tensor_json(tensor));
        json_set(root, "tensors", std::move(all));
    }
    json_print(root);
}

void print_tensors(const std::vector<qk_file_tensor> &tensors) {
    std::vector<Row> rows = {{"tensor", "dtype", "shape", "bytes", "file"}};
    for (const qk_file_tensor &tensor : tensors) {
        rows.push_back({printable(tensor.name), printable(tensor.dtype_name),
                        shape_name(tensor.shape, tensor.rank), std::to_string(tensor.bytes),
                        printable(tensor.file)});
    }
    print_table(rows);
    std::printf("\n");
}

void print_layers(const Checkpoint &checkpoint, const Contents &contents) {
    if (contents.layers.empty() && contents.experts.empty() && contents.mixtures.empty()) return;
    std::vector<Row> rows = {
        {"layer", "dialect", "format", "shape", "group", "scales", "bytes", "loads"}};
    for (const qk_layer &layer : other_layers(contents.layers, contents.mixtures)) {
        rows.push_back(layer_row(checkpoint, layer));
    }
    std::set<std::string> listed;
    for (const Mixture &mixture : contents.mixtures) {
        rows.push_back(mixture_row(checkpoint, mixture, contents.fused));
        for (const qk_layer &layer : mixture.parts) listed.insert(layer.name);
    }
    for (const qk_file_tensor &tensor : contents.experts) {
        if (listed.count(experts_name(tensor)) == 0) rows.push_back(experts_row(tensor));
    }
    print_table(rows);
    std::printf("\n");
}

void print_totals(const Contents &contents) {
    const Totals totals = count(contents);
    std::string fused;
    if (!contents.experts.empty()) {
        fused = plural(static_cast<int64_t>(contents.experts.size()), "tensor") +
                " of fused experts, " + human_bytes(double(totals.expert_bytes)) + "; ";
    }
    std::printf("%s (%lld quantized, %lld refused), %s; %s%s, %s\n",
                plural(static_cast<int64_t>(contents.layers.size()), "layer").c_str(),
                static_cast<long long>(totals.quantized), static_cast<long long>(totals.refused),
                human_bytes(double(totals.layer_bytes)).c_str(), fused.c_str(),
                plural(static_cast<int64_t>(contents.tensors.size()), "tensor").c_str(),
                human_bytes(double(totals.tensor_bytes)).c_str());
    if (!contents.method.reason.empty()) {
        std::printf("%s\n", printable(contents.method.reason).c_str());
    }
}

}  // namespace

ExitCode run_inspect(const CommonOptions &common, const InspectOptions &options) {
    const Checkpoint checkpoint = open_checkpoint(options.file);
    Contents contents = {
        all_layers(checkpoint), all_mixtures(checkpoint), all_tensors(checkpoint), {}, {},
        method_of(checkpoint)};
    contents.experts = fused_experts(contents.tensors);
    contents.fused = find_fused(contents.tensors);
    if (common.json) {
        print_json(checkpoint, options, contents);
        return kOk;
    }
    if (options.tensors) print_tensors(contents.tensors);
    print_layers(checkpoint, contents);
    print_totals(contents);
    return kOk;
}
