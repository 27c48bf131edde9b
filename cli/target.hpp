// What qk convert writes: which weights a dialect can hold, and as what.
#pragma once
#include <string>
#include <vector>

#include "layers.hpp"

// How codes and scales go together, whatever the dialect.
enum class Kind { kInt4, kInt8, kFp8, kMxfp4, kNvfp4, kTable, kOther };
Kind kind_of(const qk_tensor_desc &desc);

struct Target {
    const char *word;  // as --to spells it
    qk_dialect dialect;
    qk_layout layout;  // of 4-bit integers
    bool nested;       // bitsandbytes: scales of scales
    std::vector<Kind> kinds;
    std::vector<qk_format> scales;  // of integers
    const char *holds;              // in words
};
const Target &target_of(const std::string &word);
inline bool is_gguf(const Target &target) { return target.dialect == QK_DIALECT_GGUF; }
inline bool is_gptq(const Target &target) {
    return target.dialect == QK_DIALECT_GPTQ_V1 || target.dialect == QK_DIALECT_GPTQ_V2;
}

inline bool has_minima(const qk_tensor_desc &desc) {
    return (desc.flags & QK_TENSOR_FLOAT_MIN) != 0;
}
// Whether it says of each column which group it is.
inline bool holds_order(const Target &target) {
    return is_gptq(target) || target.dialect == QK_DIALECT_COMPRESSED_TENSORS;
}

[[noreturn]] void cannot_hold(const qk_layer &layer, const std::string &why);
// The layer as it is stored in the dialect; throws where that has no place for it, whatever the
// values are.
qk_tensor_desc stored_as(const Target &target, const qk_layer &layer);
// Whether the layer is stored so already.
bool is_already(const Target &target, const qk_layer &layer);
