#include "fused.hpp"

#include <cstdlib>
#include <map>

namespace {

qk_format format_of(qk_dtype dtype) {
    if (dtype == QK_DTYPE_F32) return QK_FORMAT_F32;
    return dtype == QK_DTYPE_F16 ? QK_FORMAT_F16 : QK_FORMAT_BF16;
}

// One of both at most: 2n is not n.
bool belong_together(const qk_file_tensor &gate_up, const qk_file_tensor &down, bool transposed) {
    const int rows = transposed ? 2 : 1, columns = 3 - rows;
    return gate_up.bytes > 0 && down.bytes > 0 && gate_up.dtype == down.dtype &&
           gate_up.shape[0] == down.shape[0] && gate_up.shape[rows] == 2 * down.shape[columns] &&
           gate_up.shape[columns] == down.shape[rows];
}

// Rows of [n,k], from `row` of an expert on.
struct Part {
    const qk_file_tensor &tensor;
    bool transposed;
    int64_t expert, row, rows;
};

DenseLayer dense_layer(const Part &part, const char *name) {
    const qk_file_tensor &tensor = part.tensor;
    const qk_format format = format_of(tensor.dtype);
    const int64_t size = element_bytes(format);
    const int64_t columns = tensor.shape[part.transposed ? 1 : 2];
    DenseLayer dense = {};
    dense.layer.name = name;
    dense.layer.dialect = QK_DIALECT_DENSE;
    dense.layer.reason = "";
    dense.layer.dense_format = format;
    dense.layer.bytes = part.rows * columns * size;
    dense.layer.desc = QK_TENSOR_DESC_INIT;
    dense.layer.desc.format = format;
    dense.layer.desc.rank = 2;
    dense.layer.desc.shape[0] = part.rows;
    dense.layer.desc.shape[1] = columns;
    if (part.transposed) dense.line_bytes = tensor.shape[2] * size;
    dense.data = static_cast<const char *>(tensor.data) +
                 part.expert * tensor.shape[1] * tensor.shape[2] * size +
                 part.row * (part.transposed ? size : columns * size);
    return dense;
}

// An expert's layers. Gate and up are halves of one tensor's rows.
struct Projection {
    const char *name;
    bool is_down;
    int64_t half;
};
constexpr Projection kProjections[] = {
    {".gate_proj", false, 0}, {".up_proj", false, 1}, {kDown, true, 0}};

DenseLayer layer_of(const FusedExperts &mixture, int64_t expert, const Projection &projection,
                    const char *name) {
    const qk_file_tensor &tensor = projection.is_down ? mixture.down : mixture.gate_up;
    const int64_t all = tensor.shape[mixture.transposed ? 2 : 1];
    const int64_t rows = projection.is_down ? all : all / 2;
    return dense_layer({tensor, mixture.transposed, expert, projection.half * rows, rows}, name);
}

}  // namespace

std::vector<FusedExperts> find_fused(const std::vector<qk_file_tensor> &tensors) {
    const std::vector<qk_file_tensor> fused = fused_experts(tensors);
    std::map<std::string, qk_file_tensor> by_name;
    for (const qk_file_tensor &tensor : fused) by_name.emplace(tensor.name, tensor);
    std::vector<FusedExperts> mixtures;
    for (const qk_file_tensor &gate_up : fused) {
        const std::string name = gate_up.name;
        if (!ends_with("." + name, std::string(kModule) + kGateUp)) continue;
        const std::string module = name.substr(0, name.size() - std::string(kGateUp).size());
        const auto down = by_name.find(module + kDown);
        if (down == by_name.end()) continue;
        for (const bool transposed : {false, true}) {
            if (!belong_together(gate_up, down->second, transposed)) continue;
            mixtures.push_back({module, gate_up, down->second, transposed});
        }
    }
    return mixtures;
}

std::vector<DenseLayer> one_by_one(const FusedExperts &mixture, std::list<std::string> *names) {
    std::vector<DenseLayer> layers;
    for (int64_t e = 0; e < mixture.gate_up.shape[0]; ++e) {
        const std::string expert = mixture.name + "." + std::to_string(e);
        for (const Projection &projection : kProjections) {
            names->push_back(expert + projection.name);
            layers.push_back(layer_of(mixture, e, projection, names->back().c_str()));
        }
    }
    return layers;
}

bool find_single(const FusedExperts &mixture, const char *name, DenseLayer *found) {
    const std::string rest = std::string(name).substr(mixture.name.size());  // ".7.up_proj"
    const size_t dot = rest.rfind('.');
    if (dot == 0 || dot == std::string::npos) return false;
    const std::string number = rest.substr(1, dot - 1);
    const int64_t e = std::strtoll(number.c_str(), nullptr, 10);
    // One way to write a number.
    if (e < 0 || e >= mixture.gate_up.shape[0] || std::to_string(e) != number) return false;
    for (const Projection &projection : kProjections) {
        if (rest.substr(dot) != projection.name) continue;
        *found = layer_of(mixture, e, projection, name);
        return true;
    }
    return false;
}

DenseLayer all_experts(const qk_file_tensor &tensor, bool transposed) {
    const int64_t rows = tensor.shape[0] * tensor.shape[transposed ? 2 : 1];
    DenseLayer layer = dense_layer({tensor, transposed, 0, 0, rows}, tensor.name);
    layer.experts = tensor.shape[0];
    return layer;
}

std::vector<DenseLayer> all_together(const FusedExperts &mixture) {
    return {all_experts(mixture.gate_up, mixture.transposed),
            all_experts(mixture.down, mixture.transposed)};
}
