#include "fused.hpp"

#include <map>

namespace {

constexpr const char *kGateUp = ".gate_up_proj", *kDown = ".down_proj";

qk_format format_of(qk_dtype dtype) {
    if (dtype == QK_DTYPE_F32) return QK_FORMAT_F32;
    return dtype == QK_DTYPE_F16 ? QK_FORMAT_F16 : QK_FORMAT_BF16;
}

bool belong_together(const qk_file_tensor &gate_up, const qk_file_tensor &down) {
    return gate_up.dtype == down.dtype && gate_up.shape[0] == down.shape[0] &&
           gate_up.shape[1] == 2 * down.shape[2] && gate_up.shape[2] == down.shape[1] &&
           gate_up.bytes > 0;
}

// Rows from `row` on of all the tensor's.
DenseLayer some_rows(const qk_file_tensor &tensor, int64_t row, int64_t rows,
                     const std::string &name) {
    const int64_t columns = tensor.shape[2];
    const int64_t row_bytes = tensor.bytes / (tensor.shape[0] * tensor.shape[1]);
    DenseLayer some = {};
    some.layer.name = name.c_str();
    some.layer.dialect = QK_DIALECT_DENSE;
    some.layer.reason = "";
    some.layer.dense_format = format_of(tensor.dtype);
    some.layer.bytes = rows * row_bytes;
    some.layer.desc = QK_TENSOR_DESC_INIT;
    some.layer.desc.format = some.layer.dense_format;
    some.layer.desc.rank = 2;
    some.layer.desc.shape[0] = rows;
    some.layer.desc.shape[1] = columns;
    some.data = static_cast<const char *>(tensor.data) + row * row_bytes;
    return some;
}

void add_expert(FusedExperts *mixture, const std::string &module, int64_t expert,
                std::list<std::string> *names) {
    const std::string name = module + "." + std::to_string(expert);
    const int64_t n = mixture->down.shape[2], k = mixture->down.shape[1];
    const auto add =
        [&](const qk_file_tensor &tensor, int64_t row, int64_t rows, const char *part) {
        names->push_back(name + part);
        mixture->layers.push_back(some_rows(tensor, row, rows, names->back()));
    };
    add(mixture->gate_up, expert * 2 * n, n, ".gate_proj");
    add(mixture->gate_up, expert * 2 * n + n, n, ".up_proj");
    add(mixture->down, expert * k, k, kDown);
}

}  // namespace

std::vector<FusedExperts> find_fused(const std::vector<qk_file_tensor> &tensors,
                                     std::list<std::string> *names) {
    const std::vector<qk_file_tensor> fused = fused_experts(tensors);
    std::map<std::string, qk_file_tensor> by_name;
    for (const qk_file_tensor &tensor : fused) by_name.emplace(tensor.name, tensor);
    std::vector<FusedExperts> mixtures;
    for (const qk_file_tensor &gate_up : fused) {
        const std::string name = gate_up.name;
        if (!ends_with(name, std::string(".experts") + kGateUp)) continue;
        const std::string module = name.substr(0, name.size() - std::string(kGateUp).size());
        const auto down = by_name.find(module + kDown);
        if (down == by_name.end() || !belong_together(gate_up, down->second)) continue;
        mixtures.push_back({gate_up, down->second, {}});
        for (int64_t e = 0; e < gate_up.shape[0]; ++e) {
            add_expert(&mixtures.back(), module, e, names);
        }
    }
    return mixtures;
}
