// GGUF files: their header, and the types of their tensors.
#pragma once
#include "files.hpp"

namespace qk_io {

struct GgufType {
    uint32_t number;          // ggml's
    const char *name;         // "Q4_K"
    int32_t elements, bytes;  // of a block: one element where the type is plain
    qk_dtype dtype;           // a plain type's; 0: blocks
};
const GgufType *find_gguf_type(uint32_t number);  // NULL: not known here

// Which part of a model a file is; a count of 0 or 1: all of it.
struct GgufSplit {
    int64_t number, count, tensors;  // tensors: of all parts
};

bool is_gguf(const File &file);
// gguf.cpp: the header of files[file] into tensors and metadata.
qk_status read_gguf_file(qk_checkpoint *checkpoint, int32_t file, GgufSplit *split,
                         qk_io_message *message);
// gguf_split.cpp: files[0], and the other parts of a model that was split, which are beside `path`.
// NULL: from memory. The configuration is the file's own: no config.json speaks of a GGUF's
// weights.
qk_status read_gguf(qk_checkpoint *checkpoint, const char *path, qk_io_message *message);
// name-00002-of-00003.gguf: not the one that stands for the model in a directory.
bool is_later_part(const char *name);

}  // namespace qk_io
