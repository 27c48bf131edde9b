// What quantize leaves dense: which layers, by their names, and an account of every tensor.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "json.hpp"
#include "layers.hpp"

// Patterns for --help; reason_by_name knows what each stands for.
std::vector<std::string> default_excludes();
// "X.experts" of "X.experts.7.up_proj" and of "X.experts.down_proj"; "" for no expert.
std::string experts_of(const std::string &layer);
bool is_expert(const std::string &layer);  // of a mixture
// What transformers passes over where it makes experts dense, without a word: "transformers reads
// no zero points of experts"; "" for nothing. `stored`: as compressed-tensors has them.
std::string not_read_of_experts(const qk_tensor_desc &stored);
// Whether Python's loaders read a model's experts one by one, X.experts.N.gate_proj.
bool reads_single_experts(const std::string &model_type);
// Whether they make linear layers of its transposed experts, in these dialects: gate and up are
// halves, and dense ones in one tensor are then not loaded.
bool makes_linear_experts(const std::string &model_type, qk_dialect dialect);
// What a module of this name is when Python's loaders expect it dense; "" for any other.
std::string reason_by_name(const std::string &layer);
// Why a tensor that holds no layer's weight is no 4-bit weight.
std::string reason_by_shape(const qk_file_tensor &tensor);

// GPTQ's configuration does not list dense modules: its readers know the usual ones.
void refuse_unlisted(qk_dialect dialect, const std::vector<std::string> &dense);

struct DenseTensor {
    qk_file_tensor tensor;
    std::string reason;
};
// A line a reason: the bytes, the number of tensors, the first of them.
void print_dense(const std::vector<DenseTensor> &tensors);
Json dense_json(const std::vector<DenseTensor> &tensors);

// Names for the configuration's list of dense modules. An output head that shares the embedding's
// weights has no tensor, but is a module like others: it is named. Experts are named together where
// none of theirs is quantized; patterns: by a regular expression, which compressed-tensors needs.
std::vector<std::string> dense_modules(const std::vector<std::string> &dense,
                                       const std::set<std::string> &quantized,
                                       const std::string &model_type, bool patterns);
