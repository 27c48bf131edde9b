// The contents of a checkpoint as lists, and which tensors hold which layer.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "common.hpp"

// Both in order of names, numbers in them as numbers: layers.2 comes before layers.10.
std::vector<qk_layer> all_layers(const Checkpoint &checkpoint);
std::vector<qk_file_tensor> all_tensors(const Checkpoint &checkpoint);
inline bool is_quantized(const qk_layer &layer) { return layer.dialect != QK_DIALECT_DENSE; }
inline bool is_loadable(const qk_layer &layer) { return layer.status == QK_OK; }
// A type that never holds weights, quantized or not.
bool is_plain(qk_dtype dtype);
// A rank-2 X.weight of a type that never holds quantized weights: an index table, say. The library
// lists it as a layer it cannot load; here it is a tensor like any other.
bool is_plain_data(const Checkpoint &checkpoint, const qk_layer &layer);

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
