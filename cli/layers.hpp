// The contents of a checkpoint as lists, and which tensors hold which layer.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "common.hpp"

// Experts in one weight [experts,n,k] as rows, one after the other.
void join_rows(qk_tensor_desc *desc);
void split_rows(qk_tensor_desc *desc, int64_t experts);  // the other way
bool natural_less(const char *a, const char *b);  // numbers as numbers: layers.2 before layers.10
// In order of names, by natural_less.
std::vector<qk_layer> all_layers(const Checkpoint &checkpoint);
std::vector<qk_layer> all_expert_layers(const Checkpoint &checkpoint);  // as the library has them
// How many experts the layer holds, whose rows are one after another; 0: it is none of experts.
int64_t experts_in(const Checkpoint &checkpoint, const qk_layer &layer);
std::vector<qk_file_tensor> all_tensors(const Checkpoint &checkpoint);
inline bool is_quantized(const qk_layer &layer) { return layer.dialect != QK_DIALECT_DENSE; }
inline bool is_loadable(const qk_layer &layer) { return layer.status == QK_OK; }
// A type that never holds weights, quantized or not.
bool is_plain(qk_dtype dtype);
// A rank-2 X.weight of a type that never holds quantized weights: an index table, say. The library
// lists it as a layer it cannot load; here it is a tensor like any other.
bool is_plain_data(const Checkpoint &checkpoint, const qk_layer &layer);

// Experts in one tensor [experts,n,k] of floats: no layers of qk's, which copies them as they are.
std::vector<qk_file_tensor> fused_experts(const std::vector<qk_file_tensor> &tensors);

// How a layer is stored, in words, also where qk does not load it: "NVFP4".
std::string method_name(const Checkpoint &checkpoint, const qk_layer &layer);
struct Method {
    std::string name;    // the configuration's; "" without one
    std::string reason;  // why qk reads no model of that method; "" when it does
};
Method method_of(const Checkpoint &checkpoint);
// Throws where the configuration names a method that qk does not know.
void refuse_unknown_method(const Checkpoint &checkpoint);

// Adds the names of the tensors that hold the layer's weight: all but its bias.
void add_weight_tensors(const Checkpoint &checkpoint, const qk_layer &layer,
                        std::set<std::string> *names);

// what: "no layer ..."; names the layer whose name is nearest.
[[noreturn]] void fail_unknown_layer(const std::string &what, const std::string &name,
                                     const std::vector<qk_layer> &layers);
// Shell patterns (* ? [...]); '*' also crosses dots.
bool matches(const std::vector<std::string> &patterns, const std::string &name);
// The layers that match; throws when a pattern matches none.
std::vector<qk_layer> select_layers(const std::vector<qk_layer> &layers,
                                    const std::vector<std::string> &patterns);
