#include "layers.hpp"

#include <fnmatch.h>

std::vector<qk_layer> all_layers(const Checkpoint &checkpoint) {
    std::vector<qk_layer> layers(
        static_cast<size_t>(qk_checkpoint_layer_count(checkpoint.get())));
    for (size_t i = 0; i < layers.size(); ++i) {
        check(qk_checkpoint_layer(checkpoint.get(), static_cast<int64_t>(i), &layers[i],
                                  sizeof layers[i]),
              "layer", nullptr);
    }
    return layers;
}

std::vector<qk_file_tensor> all_tensors(const Checkpoint &checkpoint) {
    std::vector<qk_file_tensor> tensors(
        static_cast<size_t>(qk_checkpoint_tensor_count(checkpoint.get())));
    for (size_t i = 0; i < tensors.size(); ++i) {
        check(qk_checkpoint_tensor(checkpoint.get(), static_cast<int64_t>(i), &tensors[i]),
              "tensor", nullptr);
    }
    return tensors;
}

bool is_plain_data(const Checkpoint &checkpoint, const qk_layer &layer) {
    qk_file_tensor tensor;
    const std::string name = std::string(layer.name) + ".weight";
    if (layer.dialect != QK_DIALECT_UNKNOWN ||
        qk_checkpoint_find_tensor(checkpoint.get(), name.c_str(), &tensor) != QK_OK) {
        return false;
    }
    return tensor.dtype == QK_DTYPE_BOOL || tensor.dtype == QK_DTYPE_I64 ||
           tensor.dtype == QK_DTYPE_U64 || tensor.dtype == QK_DTYPE_F64 ||
           tensor.dtype == QK_DTYPE_C64;
}

void add_weight_tensors(const Checkpoint &checkpoint, const qk_layer &layer,
                        std::set<std::string> *names) {
    static const char *const kWords[] = {".qweight", ".qzeros", ".scales", ".g_idx", nullptr};
    static const char *const kCompressed[] = {".weight_packed", ".weight_scale",
                                              ".weight_zero_point", ".weight_shape",
                                              ".weight_g_idx", nullptr};
    static const char *const kBitsandbytes[] = {
        ".weight", ".weight.absmax", ".weight.quant_map", ".weight.nested_absmax",
        ".weight.nested_quant_map", ".weight.quant_state.bitsandbytes__nf4",
        ".weight.quant_state.bitsandbytes__fp4", nullptr};
    static const char *const kDense[] = {".weight", nullptr};
    const char *const *suffixes = kWords;
    if (layer.dialect == QK_DIALECT_DENSE) suffixes = kDense;
    if (layer.dialect == QK_DIALECT_BITSANDBYTES) suffixes = kBitsandbytes;
    if (layer.dialect == QK_DIALECT_COMPRESSED_TENSORS) suffixes = kCompressed;
    for (; *suffixes != nullptr; ++suffixes) {
        const std::string name = std::string(layer.name) + *suffixes;
        qk_file_tensor tensor;
        if (qk_checkpoint_find_tensor(checkpoint.get(), name.c_str(), &tensor) == QK_OK) {
            names->insert(name);
        }
    }
}

bool matches(const std::vector<std::string> &patterns, const std::string &name) {
    for (const std::string &pattern : patterns) {
        if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return true;
    }
    return false;
}

std::vector<qk_layer> select_layers(const std::vector<qk_layer> &layers,
                                    const std::vector<std::string> &patterns) {
    for (const std::string &pattern : patterns) {
        bool found = false;
        for (const qk_layer &layer : layers) found = found || matches({pattern}, layer.name);
        if (!found) throw Failure(kUsage, "no layer matches '" + printable(pattern) + "'");
    }
    std::vector<qk_layer> selected;
    for (const qk_layer &layer : layers) {
        if (patterns.empty() || matches(patterns, layer.name)) selected.push_back(layer);
    }
    return selected;
}
