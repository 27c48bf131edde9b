#include "gru_ranges.hpp"

#include <cstdlib>

#include "arrays.hpp"
#include "json.hpp"

namespace {

struct HeldRanges {
    std::vector<double> x_sum, h_sum;
    qk_gru_ranges ranges = QK_GRU_RANGES_INIT;

    HeldRanges(int64_t input_size, int64_t hidden_size)
        : x_sum(static_cast<size_t>(input_size)), h_sum(static_cast<size_t>(hidden_size)) {
        ranges.x_sum = x_sum.data();
        ranges.h_sum = h_sum.data();
    }
    HeldRanges(const HeldRanges &) = delete;
};

bool is_calibrated(int32_t which) { return which < QK_GRU_W || which > QK_GRU_BR; }

Json numbers(const double *values, size_t count) {
    Json array = json_new_array();
    for (size_t i = 0; i < count; ++i) json_append(array, Json(json_real(values[i])));
    return array;
}

[[noreturn]] void refuse(const std::string &path, const std::string &what) {
    throw Failure(kFile, path + ": " + what + " is missing, or not what --ranges-out writes");
}

void read_numbers(const json_t *array, const std::string &path, const std::string &name, double *to,
                  size_t count) {
    if (!json_is_array(array) || json_array_size(array) != count) refuse(path, name);
    for (size_t i = 0; i < count; ++i) {
        const json_t *const value = json_array_get(array, i);
        if (!json_is_number(value)) refuse(path, name);
        to[i] = json_number_value(value);
    }
}

}  // namespace

std::string ranges_text(const Context &context, const Gru &gru, int64_t input_size,
                        int64_t hidden_size) {
    HeldRanges held(input_size, hidden_size);
    check(qk_gru_get_ranges(context.get(), gru.get(), &held.ranges), "ranges",
          qk_context_error(context.get()));
    const Json root = json_new_object();
    json_set(root, "samples", held.ranges.samples);
    Json tensors = json_new_object();
    for (int32_t i = 0; i < QK_GRU_TENSOR_COUNT; ++i) {
        const double ends[] = {held.ranges.min[i], held.ranges.max[i]};
        if (is_calibrated(i)) json_set(tensors, kGruTensors[i], numbers(ends, 2));
    }
    json_set(root, "tensors", std::move(tensors));
    json_set(root, "x_sum", numbers(held.x_sum.data(), held.x_sum.size()));
    json_set(root, "h_sum", numbers(held.h_sum.data(), held.h_sum.size()));
    char *const text = json_dumps(root.get(), JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    if (text == nullptr) throw Failure(kFailed, "ranges: no memory");
    std::string result = std::string(text) + "\n";
    std::free(text);
    return result;
}

void merge_ranges(const Context &context, const Gru &gru, const std::string &path,
                  int64_t input_size, int64_t hidden_size) {
    const std::vector<char> bytes = read_file(path);
    const Json root(json_loadb(bytes.data(), bytes.size(), JSON_REJECT_DUPLICATES, nullptr));
    if (root == nullptr) throw Failure(kFile, path + ": is not JSON");
    HeldRanges held(input_size, hidden_size);
    const json_t *const samples = json_object_get(root.get(), "samples");
    const json_t *const tensors = json_object_get(root.get(), "tensors");
    if (!json_is_integer(samples)) refuse(path, "samples");
    held.ranges.samples = json_integer_value(samples);
    for (int32_t i = 0; i < QK_GRU_TENSOR_COUNT; ++i) {
        if (!is_calibrated(i)) continue;
        double ends[2];
        read_numbers(json_object_get(tensors, kGruTensors[i]), path, kGruTensors[i], ends, 2);
        held.ranges.min[i] = ends[0];
        held.ranges.max[i] = ends[1];
    }
    read_numbers(json_object_get(root.get(), "x_sum"), path, "x_sum", held.x_sum.data(),
                 held.x_sum.size());
    read_numbers(json_object_get(root.get(), "h_sum"), path, "h_sum", held.h_sum.data(),
                 held.h_sum.size());
    check(qk_gru_merge_ranges(context.get(), gru.get(), &held.ranges), path,
          qk_context_error(context.get()));
}
