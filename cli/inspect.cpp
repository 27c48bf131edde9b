#include <algorithm>
#include <cstdio>

#include "commands.hpp"
#include "json.hpp"
#include "layers.hpp"

namespace {

std::string scales_name(const qk_tensor_desc &desc) {
    if (desc.scale_format == 0) return "-";
    return desc.scale_format == QK_FORMAT_LUT8 ? "nested" : format_name(desc.scale_format);
}

using Row = std::vector<std::string>;

Row layer_row(const qk_layer &layer) {
    const bool known = is_loadable(layer);
    const qk_tensor_desc &desc = layer.desc;
    return {printable(layer.name),
            qk_dialect_name(layer.dialect),
            known ? format_name(desc.format) : "-",
            known ? shape_name(desc.shape, desc.rank) : "-",
            known ? group_name(desc) : "-",
            known ? scales_name(desc) : "-",
            human_bytes(double(layer.bytes)),
            known ? "yes" : "no: " + printable(layer.reason)};
}

// Where a name is very long, its row sticks out: the others stay readable.
void print_table(const std::vector<Row> &rows) {
    constexpr size_t kWidest = 60;
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

struct Totals {
    int64_t quantized = 0, refused = 0, layer_bytes = 0, tensor_bytes = 0;
};

Totals count(const std::vector<qk_layer> &layers, const std::vector<qk_file_tensor> &tensors) {
    Totals totals;
    for (const qk_layer &layer : layers) {
        totals.quantized += is_quantized(layer);
        totals.refused += !is_loadable(layer);
        totals.layer_bytes += layer.bytes;
    }
    for (const qk_file_tensor &tensor : tensors) totals.tensor_bytes += tensor.bytes;
    return totals;
}

Json layer_json(const qk_layer &layer) {
    Json object = json_new_object();
    json_set(object, "name", layer.name);
    json_set(object, "dialect", qk_dialect_name(layer.dialect));
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

void print_json(const std::string &file, const std::vector<qk_layer> &layers,
                const std::vector<qk_file_tensor> &tensors, bool with_tensors) {
    const Totals totals = count(layers, tensors);
    const Json root = json_new_object();
    json_set(root, "file", file);
    json_set(root, "tensor_count", static_cast<int64_t>(tensors.size()));
    json_set(root, "tensor_bytes", totals.tensor_bytes);
    json_set(root, "layer_count", static_cast<int64_t>(layers.size()));
    json_set(root, "quantized_layers", totals.quantized);
    json_set(root, "refused_layers", totals.refused);
    json_set(root, "layer_bytes", totals.layer_bytes);
    Json list = json_new_array();
    for (const qk_layer &layer : layers) json_append(list, layer_json(layer));
    json_set(root, "layers", std::move(list));
    if (with_tensors) {
        Json all = json_new_array();
        for (const qk_file_tensor &tensor : tensors) json_append(all, tensor_json(tensor));
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

}  // namespace

ExitCode run_inspect(const CommonOptions &common, const InspectOptions &options) {
    const Checkpoint checkpoint = open_checkpoint(options.file);
    const std::vector<qk_layer> layers = all_layers(checkpoint);
    const std::vector<qk_file_tensor> tensors = all_tensors(checkpoint);
    if (common.json) {
        print_json(options.file, layers, tensors, options.tensors);
        return kOk;
    }
    if (options.tensors) print_tensors(tensors);
    if (!layers.empty()) {
        std::vector<Row> rows = {
            {"layer", "dialect", "format", "shape", "group", "scales", "bytes", "loads"}};
        for (const qk_layer &layer : layers) rows.push_back(layer_row(layer));
        print_table(rows);
        std::printf("\n");
    }
    const Totals totals = count(layers, tensors);
    std::printf("%s (%lld quantized, %lld refused), %s; %s, %s\n",
                plural(static_cast<int64_t>(layers.size()), "layer").c_str(),
                static_cast<long long>(totals.quantized), static_cast<long long>(totals.refused),
                human_bytes(double(totals.layer_bytes)).c_str(),
                plural(static_cast<int64_t>(tensors.size()), "tensor").c_str(),
                human_bytes(double(totals.tensor_bytes)).c_str());
    return kOk;
}
