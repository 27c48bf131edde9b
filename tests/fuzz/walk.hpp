// Everything a program could do with a file it was given, in small.
#pragma once
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "qk_io.h"

namespace fuzz {

inline void require(bool condition) {
    if (!condition) abort();
}

// Copied to memory of exactly its size: what reads past it is seen by the sanitizer.
struct Exact {
    std::unique_ptr<char[]> data;
    size_t size;
    explicit Exact(const std::string &from) : data(new char[from.size()]), size(from.size()) {
        if (size > 0) memcpy(data.get(), from.data(), size);
    }
};

inline std::string with_length(const std::string &header, const std::string &data) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
    return bytes + header + data;
}

// Dequantizing reads every plane to its end.
inline void load(const qk_checkpoint *checkpoint, qk_context *context, const qk_layer &layer) {
    qk_tensor *weight = nullptr, *bias = nullptr, *dense = nullptr;
    qk_io_message message;
    require(qk_checkpoint_load(checkpoint, context, layer.name, QK_LOAD_IN_PLACE, &weight, &bias,
                               &message) == QK_OK);
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.rank = layer.desc.rank;
    for (int32_t i = 0; i < desc.rank; ++i) desc.shape[i] = layer.desc.shape[i];
    if (qk_tensor_create(context, &desc, &dense) == QK_OK) qk_dequantize(context, weight, dense);
    qk_tensor_destroy(dense);
    qk_tensor_destroy(bias);
    qk_tensor_destroy(weight);
}

inline void walk(const qk_checkpoint *checkpoint, qk_context *context) {
    volatile unsigned sum = 0;
    qk_io_message message;
    for (int64_t i = 0; i < qk_checkpoint_tensor_count(checkpoint); ++i) {
        qk_file_tensor t, again;
        require(qk_checkpoint_tensor(checkpoint, i, &t) == QK_OK);
        require(qk_checkpoint_find_tensor(checkpoint, t.name, &again) == QK_OK);
        require(t.data == again.data);
        const unsigned char *bytes = static_cast<const unsigned char *>(t.data);
        for (int64_t b = 0; b < t.bytes; ++b) sum = sum + bytes[b];
        for (int32_t r = 0; r < t.rank; ++r) require(t.shape[r] >= 0);
    }
    for (int64_t i = 0; i < qk_checkpoint_metadata_count(checkpoint); ++i) {
        const char *key, *value;
        require(qk_checkpoint_metadata(checkpoint, i, &key, &value) == QK_OK);
        sum = sum + static_cast<unsigned>(strlen(key) + strlen(value));
    }
    const char *method;
    const qk_status known = qk_checkpoint_method(checkpoint, &method, &message);
    require((known == QK_OK) == (message.text[0] == 0));
    for (int64_t i = 0; i < qk_checkpoint_layer_count(checkpoint); ++i) {
        qk_layer layer, found;
        require(qk_checkpoint_layer(checkpoint, i, &layer, sizeof layer) == QK_OK);
        require((layer.status == QK_OK) == (layer.reason[0] == 0));
        require(qk_checkpoint_layer_method(checkpoint, layer.name) != nullptr);
        qk_checkpoint_verify_layer(checkpoint, layer.name, &message);
        // Of several layers of one name the first is the one that loads.
        require(qk_checkpoint_find_layer(checkpoint, layer.name, &found, sizeof found) == QK_OK);
        if (found.status == QK_OK) load(checkpoint, context, found);
    }
}

// The experts, one projection at a time and every two as gate and up.
inline void walk_experts(const qk_checkpoint *checkpoint, qk_context *context) {
    const int64_t count = qk_checkpoint_expert_layer_count(checkpoint);
    for (int64_t i = 0; i < count; ++i) {
        qk_layer layer, next, found;
        require(qk_checkpoint_expert_layer(checkpoint, i, &layer, sizeof layer) == QK_OK);
        require(qk_checkpoint_find_expert_layer(checkpoint, layer.name, &found, sizeof found) ==
                QK_OK);
        require((layer.status == QK_OK) == (layer.reason[0] == 0 && layer.desc.rank == 3));
        require(qk_checkpoint_expert_layer(checkpoint, (i + 1) % count, &next, sizeof next) ==
                QK_OK);
        for (const char *up : {static_cast<const char *>(nullptr), next.name}) {
            qk_tensor *weight = nullptr, *bias = nullptr;
            qk_io_message message;
            const qk_status status = qk_checkpoint_load_experts(
                checkpoint, context, layer.name, up, QK_LOAD_IN_PLACE, &weight, &bias, &message);
            require((status == QK_OK) == (weight != nullptr));
            require(up != nullptr || status == found.status);
            require(status == QK_OK || message.text[0] != 0);
            qk_tensor_destroy(bias);
            qk_tensor_destroy(weight);
        }
    }
}

// Opens, walks, closes; or a status with a sentence.
inline void open_and_walk(const std::string &file, const std::string *config) {
    const Exact bytes(file), text(config == nullptr ? std::string() : *config);
    qk_checkpoint *checkpoint = nullptr;
    qk_io_message message;
    const qk_status status = qk_checkpoint_open_memory(
        bytes.data.get(), bytes.size, config == nullptr ? nullptr : text.data.get(), text.size,
        nullptr, &checkpoint, &message);
    require((status == QK_OK) == (checkpoint != nullptr));
    require((status == QK_OK) == (message.text[0] == 0));
    // Files of other kinds are intact, or never were a model.
    require(status == QK_OK || status == QK_ERROR_CORRUPT || status == QK_ERROR_UNSUPPORTED ||
            status == QK_ERROR_FILE);
    if (checkpoint == nullptr) return;
    qk_context *context = nullptr;
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.thread_count = 1;
    require(qk_context_create(&options, &context) == QK_OK);
    walk(checkpoint, context);
    walk_experts(checkpoint, context);
    qk_context_destroy(context);
    qk_checkpoint_destroy(checkpoint);
}

}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
