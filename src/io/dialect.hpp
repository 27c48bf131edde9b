// A dialect is one file and one line of the table in dialect.cpp.
#pragma once
#include "checkpoint.hpp"

namespace qk_io {

struct Foreign;

// A module that ends in a dialect's anchor tensor: "X" of "X.qweight".
struct Module {
    const qk_checkpoint *checkpoint;
    const char *name;
    const Tensor *anchor;
    const Foreign *foreign;  // its method, where qk names it and does not load it
};

struct Dialect {
    const char *anchor;                    // suffix of the tensor that announces a layer
    bool (*claims)(const Module &module);  // NULL: methods.cpp says which are its
    // Fills dialect, planes, description and bytes of a layer, or says why it cannot be loaded.
    qk_status (*describe)(qk_checkpoint *checkpoint, const Module &module, Layer *layer,
                          qk_io_message *message);
};

extern const Dialect kGguf, kAwq, kGptq, kUnknownWords, kCompressedFp4, kCompressedTensors,
    kBitsandbytes, kLlmInt8, kModelOpt, kDeepSeek, kGptOss, kScaled, kTorchAo, kDense,
    kForeignLayer;

// dialect_gguf.cpp: that scales and minima between the codes of a GGUF's layer are finite.
qk_status check_records(const Layer &layer, qk_io_message *message);

const Layer *find_layer(const qk_checkpoint *checkpoint, const char *name);

// module.name + suffix, NULL when there is no such tensor. `use` also counts its bytes.
const Tensor *sibling(const Module &module, const char *suffix);
const Tensor *use(const Module &module, const char *suffix, Layer *layer);
void set_plane(Layer *layer, qk_plane plane, const Tensor *tensor);
// A plane of so many bytes that loading makes of what recipe.from has.
void set_recipe(Layer *layer, qk_plane plane, const Recipe &recipe, int64_t bytes);

// Codes of 8 bits with zeros, in a layer that is described: as F32, where a code or a zero times a
// scale of 16 bits and their difference are exact.
qk_status set_minima(Layer *layer, const Recipe &scales, const Recipe &minima,
                     qk_io_message *message);

bool is(const Tensor *tensor, qk_dtype dtype, int32_t rank);
// Its dense format when it is F32, F16 or BF16; otherwise 0.
qk_format float_format(const Tensor *tensor);
int64_t ceil_div(int64_t a, int64_t b);

struct ShapeText {
    char text[80];
};
ShapeText shape_text(const Tensor *tensor);  // "I32 [128,16]", "absent"

// The description of a quantized layer [n,k].
void describe_weight(Layer *layer, qk_format format, qk_layout layout, int64_t group_size,
                     qk_format scale_format, int64_t n, int64_t k);
// A configuration's group_size as qk takes it: 16..4096 or QK_GROUP_ROW.
qk_status normal_group(int64_t given, int64_t k, int64_t *group, qk_io_message *message);
// The configuration's, or the tensors' where it has settings for single layers.
int64_t group_of_layer(const Config &config, int64_t k, int64_t groups);
// A layer of words whose zeros [groups,words] have one of `bits` for each of n columns: 0 where
// they fit no number of bits.
int64_t bits_of_zeros(const Tensor *zeros, int64_t n);
// X.bias, when there is one: F32, F16 or BF16 [n].
qk_status take_bias(const Module &module, int64_t n, Layer *layer, qk_io_message *message);
// module.name + suffix, one number for every row of every expert: [experts,n].
qk_status take_biases(const Module &module, const char *suffix, int64_t experts, int64_t n,
                      Layer *layer, qk_io_message *message);

}  // namespace qk_io
