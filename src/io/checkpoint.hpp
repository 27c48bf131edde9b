// What an open checkpoint is made of.
#pragma once
#include "config.hpp"
#include "json_util.hpp"
#include "memory.hpp"

namespace qk_io {

constexpr int64_t kMaxHeaderBytes = 100000000;  // the format's own
constexpr int64_t kMaxNameBytes = 1024;
constexpr int32_t kMaxRank = 32;
constexpr int64_t kMaxShards = 4096;
constexpr int64_t kMaxJsonFileBytes = int64_t{64} << 20;
constexpr int64_t kMaxJsonValues = int64_t{1} << 18;  // of one parsed tree: about 30 MB

struct Limits {
    int32_t json_depth;
    int64_t header_bytes, tensors;
};

struct File {
    const char *name;  // base name
    const uint8_t *bytes;
    size_t size;
    enum Kind { kBorrowed, kMapped, kOwned } kind;
};

struct Tensor {
    const char *name, *dtype_name;
    const int64_t *shape;
    const uint8_t *data;
    int64_t begin, bytes;  // begin: offset in the file's data area
    qk_dtype dtype;
    int32_t rank, file;
};

struct Pair {
    const char *key, *value;
};

struct Layer;

// A plane that is not stored as qk has it: what makes it, of which tensor. remake.hpp has them.
struct Recipe {
    void (*make)(const Layer &layer, const Recipe &recipe, uint8_t *plane);  // NULL: no recipe
    const Tensor *from;
    int64_t rows;                    // that share a scale
    const Tensor *scales = nullptr;  // that minima are products of
};

struct Layer {
    const char *name, *reason;
    const char *method;  // in words: a dialect's name or a foreign method's
    const Tensor *bias;
    const void *planes[QK_PLANE_COUNT];  // those without a recipe
    Recipe recipes[QK_PLANE_COUNT];
    size_t plane_bytes[QK_PLANE_COUNT];  // of both
    qk_tensor_desc desc;
    int64_t bytes;
    qk_dialect dialect;
    qk_status status;
    qk_format dense_format;
};

// One projection of all experts of a mixture; experts.hpp has more.
struct ExpertLayer {
    Layer layer;                 // of [E,n,k], without planes
    const Layer *const *expert;  // of each, or the one that has all
    int64_t count;               // E
    bool is_one;                 // layer of the file, or dense tensor
    bool is_transposed;          // its experts are [k,n] in the file
};

struct DtypeRow {
    const char *name;
    qk_dtype dtype;
    int32_t bits;
    qk_format format;  // 0 where qk has no dense format for it
};
const DtypeRow *dtype_by_name(const char *name);  // NULL: unknown
const DtypeRow *dtype_by_code(qk_dtype dtype);    // NULL: unknown

}  // namespace qk_io

struct qk_checkpoint {
    qk_io::Memory memory;
    qk_io::Limits limits;
    bool read_whole;
    qk_io::Arena arena;
    qk_io::Array<qk_io::File> files;
    qk_io::Array<qk_io::Tensor> tensors;
    qk_io::Array<qk_io::Pair> metadata;
    qk_io::Array<qk_io::Layer *> layers;
    qk_io::Array<qk_io::ExpertLayer *> experts;
    qk_io::Config config;
    qk_format model_format;   // that the configuration names: F32, F16, BF16; 0: none
    qk_io::Text config_json;  // config.json as it was, for writing one like it; empty: none
};

namespace qk_io {

// safetensors.cpp: the header of files[file] into tensors and metadata.
qk_status read_safetensors(qk_checkpoint *checkpoint, int32_t file, qk_io_message *message);
// Sorts tensors by name; the same name twice is corrupt.
qk_status sort_tensors(qk_checkpoint *checkpoint, qk_io_message *message);
const Tensor *find_tensor(const qk_checkpoint *checkpoint, const char *name);

// shards.cpp: the files that an index names, from the index's directory.
qk_status read_shards(qk_checkpoint *checkpoint, const char *index_path, qk_io_message *message);

// dialect.cpp: layers from tensors and config.
qk_status find_layers(qk_checkpoint *checkpoint, qk_io_message *message);
// experts.cpp: and those that are one expert of several.
qk_status find_experts(qk_checkpoint *checkpoint, qk_io_message *message);

qk_status out_of_memory(qk_io_message *message);
// Decodes a JSON string as written, into the arena.
qk_status decode_string(qk_checkpoint *checkpoint, Text quoted, const char *what, const char **out,
                        qk_io_message *message);

}  // namespace qk_io
