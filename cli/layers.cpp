#include "layers.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>

#include "nearest.hpp"
#include "os.hpp"

namespace {

size_t end_of_digits(const char *text, size_t at) {
    while (std::isdigit(static_cast<unsigned char>(text[at])) != 0) ++at;
    return at;
}

size_t skip_zeros(const char *text, size_t at) {
    while (text[at] == '0') ++at;
    return at;
}

}  // namespace

bool natural_less(const char *a, const char *b) {
    size_t i = 0, j = 0;
    while (a[i] != 0 && b[j] != 0) {
        const size_t a_end = end_of_digits(a, i), b_end = end_of_digits(b, j);
        if (a_end == i || b_end == j) {
            if (a[i] != b[j]) break;
            ++i, ++j;
            continue;
        }
        i = std::min(skip_zeros(a, i), a_end);
        j = std::min(skip_zeros(b, j), b_end);
        if (a_end - i != b_end - j) return a_end - i < b_end - j;
        const int order = std::strncmp(a + i, b + j, a_end - i);
        if (order != 0) return order < 0;
        i = a_end, j = b_end;
    }
    const auto x = static_cast<unsigned char>(a[i]), y = static_cast<unsigned char>(b[j]);
    return x != y ? x < y : std::strcmp(a, b) < 0;  // 01 and 1 are one number
}

namespace {

template <class Named>
void sort_by_name(std::vector<Named> *items) {
    const auto less = [](const Named &a, const Named &b) { return natural_less(a.name, b.name); };
    std::sort(items->begin(), items->end(), less);
}

}  // namespace

void join_rows(qk_tensor_desc *desc) {
    if (desc->rank != 3) return;
    desc->rank = 2;
    desc->shape[0] *= desc->shape[1];
    desc->shape[1] = desc->shape[2];
    desc->shape[2] = 0;
}

void split_rows(qk_tensor_desc *desc, int64_t experts) {
    desc->rank = 3;
    desc->shape[2] = desc->shape[1];
    desc->shape[1] = desc->shape[0] / experts;
    desc->shape[0] = experts;
}

std::vector<qk_layer> all_layers(const Checkpoint &checkpoint) {
    std::vector<qk_layer> layers(static_cast<size_t>(qk_checkpoint_layer_count(checkpoint.get())));
    for (size_t i = 0; i < layers.size(); ++i) {
        check(qk_checkpoint_layer(checkpoint.get(), static_cast<int64_t>(i), &layers[i],
                                  sizeof layers[i]),
              "layer", nullptr);
        join_rows(&layers[i].desc);
    }
    sort_by_name(&layers);
    return layers;
}

std::vector<qk_layer> all_expert_layers(const Checkpoint &checkpoint) {
    const int64_t count = qk_checkpoint_expert_layer_count(checkpoint.get());
    std::vector<qk_layer> layers(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
        qk_layer &layer = layers[static_cast<size_t>(i)];
        check(qk_checkpoint_expert_layer(checkpoint.get(), i, &layer, sizeof layer), "experts",
              nullptr);
    }
    sort_by_name(&layers);
    return layers;
}

int64_t experts_in(const Checkpoint &checkpoint, const qk_layer &layer) {
    qk_layer experts;
    const bool found = qk_checkpoint_find_expert_layer(checkpoint.get(), layer.name, &experts,
                                                       sizeof experts) == QK_OK;
    return found ? experts.desc.shape[0] : 0;
}

std::vector<qk_file_tensor> all_tensors(const Checkpoint &checkpoint) {
    std::vector<qk_file_tensor> tensors(
        static_cast<size_t>(qk_checkpoint_tensor_count(checkpoint.get())));
    for (size_t i = 0; i < tensors.size(); ++i) {
        check(qk_checkpoint_tensor(checkpoint.get(), static_cast<int64_t>(i), &tensors[i]),
              "tensor", nullptr);
    }
    sort_by_name(&tensors);
    return tensors;
}

bool is_plain(qk_dtype dtype) {
    return dtype == QK_DTYPE_BOOL || dtype == QK_DTYPE_I64 || dtype == QK_DTYPE_U64 ||
           dtype == QK_DTYPE_F64 || dtype == QK_DTYPE_C64;
}

bool is_plain_data(const Checkpoint &checkpoint, const qk_layer &layer) {
    qk_file_tensor tensor;
    const std::string name = std::string(layer.name) + ".weight";
    if (layer.dialect != QK_DIALECT_UNKNOWN ||
        qk_checkpoint_find_tensor(checkpoint.get(), name.c_str(), &tensor) != QK_OK) {
        return false;
    }
    return is_plain(tensor.dtype);
}

std::vector<qk_file_tensor> fused_experts(const std::vector<qk_file_tensor> &tensors) {
    std::vector<qk_file_tensor> experts;
    for (const qk_file_tensor &tensor : tensors) {
        const bool floats = tensor.dtype == QK_DTYPE_F32 || tensor.dtype == QK_DTYPE_F16 ||
                            tensor.dtype == QK_DTYPE_BF16;
        const std::string name = tensor.name;
        const std::string last = name.substr(name.rfind('.') + 1);
        const bool weights = !matches({"*scale*", "*bias*", "*zero*"}, last);
        if (floats && weights && tensor.rank == 3 &&
            matches({"*expert*", "*_moe.*", "*_exps", "*_exps.*"}, name)) {
            experts.push_back(tensor);
        }
    }
    return experts;
}

std::string method_name(const Checkpoint &checkpoint, const qk_layer &layer) {
    const char *name = qk_checkpoint_layer_method(checkpoint.get(), layer.name);
    return name == nullptr ? qk_dialect_name(layer.dialect) : name;
}

Method method_of(const Checkpoint &checkpoint) {
    const char *name = "";
    qk_io_message message = {};
    const qk_status status = qk_checkpoint_method(checkpoint.get(), &name, &message);
    return {name, status == QK_OK ? "" : message.text};
}

void refuse_unknown_method(const Checkpoint &checkpoint) {
    const Method method = method_of(checkpoint);
    if (!method.reason.empty()) throw Failure(kUnsupported, method.reason);
}

void add_weight_tensors(const Checkpoint &checkpoint, const qk_layer &layer,
                        std::set<std::string> *names) {
    // Codes first. Of the rest no two dialects use one name for different things. Scales of
    // activations go with the weights that they were measured for.
    static const char *const kCodes[] = {".qweight", ".weight_packed", ".weight", "_blocks",
                                         "._weight_qdata"};
    static const char *const kBeside[] = {".qzeros",
                                          ".scales",
                                          ".scale",
                                          ".g_idx",
                                          ".weight_scale",
                                          ".weight_scale_inv",
                                          ".weight_global_scale",
                                          ".weight_scale_2",
                                          "_scales",
                                          ".input_global_scale",
                                          ".weight_zero_point",
                                          ".weight_shape",
                                          ".weight_g_idx",
                                          ".input_scale",
                                          ".input_zero_point",
                                          ".output_scale",
                                          ".output_zero_point",
                                          ".activation_scale",
                                          ".SCB",
                                          ".weight_format",
                                          "._weight_scale",
                                          "._weight_zero_point",
                                          ".weight.absmax",
                                          ".weight.quant_map",
                                          ".weight.nested_absmax",
                                          ".weight.nested_quant_map",
                                          ".weight.quant_state.bitsandbytes__nf4",
                                          ".weight.quant_state.bitsandbytes__fp4"};
    const auto add = [&](const char *suffix) {
        const std::string name = std::string(layer.name) + suffix;
        qk_file_tensor tensor;
        if (qk_checkpoint_find_tensor(checkpoint.get(), name.c_str(), &tensor) != QK_OK) {
            return false;
        }
        names->insert(name);
        return true;
    };
    if (layer.dialect == QK_DIALECT_DENSE) {
        add(".weight");
        return;
    }
    for (const char *suffix : kCodes) {
        if (add(suffix)) break;
    }
    for (const char *suffix : kBeside) add(suffix);
}

bool matches(const std::vector<std::string> &patterns, const std::string &name) {
    for (const std::string &pattern : patterns) {
        if (os::matches(pattern.c_str(), name.c_str())) return true;
    }
    return false;
}

void fail_unknown_layer(const std::string &what, const std::string &name,
                        const std::vector<qk_layer> &layers) {
    std::vector<std::string> names;
    names.reserve(layers.size());
    for (const qk_layer &layer : layers) names.push_back(layer.name);
    const std::string near = nearest(name, names);
    throw Failure(kUsage, what + (near.empty() ? "; 'qk inspect' lists the layers"
                                               : "; did you mean '" + near + "'?"));
}

std::vector<qk_layer> select_layers(const std::vector<qk_layer> &layers,
                                    const std::vector<std::string> &patterns) {
    for (const std::string &pattern : patterns) {
        bool found = false;
        for (const qk_layer &layer : layers) found = found || matches({pattern}, layer.name);
        if (!found) fail_unknown_layer("no layer matches '" + pattern + "'", pattern, layers);
    }
    std::vector<qk_layer> selected;
    for (const qk_layer &layer : layers) {
        if (patterns.empty() || matches(patterns, layer.name)) selected.push_back(layer);
    }
    return selected;
}
