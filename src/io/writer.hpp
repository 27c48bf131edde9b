// A safetensors file on its way out.
#pragma once
#include "checkpoint.hpp"
#include "names.hpp"
#include "replace.hpp"

namespace qk_io {

struct Outgoing {  // one declared tensor
    const char *name;
    const DtypeRow *dtype;  // of safetensors, or
    const struct GgufType *gguf;
    const int64_t *shape;
    int64_t bytes, offset, written;  // offset: in the data area, once it is laid out
    int32_t rank;
};

struct OutgoingLayer {
    const char *name;
    qk_dialect dialect;
    qk_tensor_desc desc;
    qk_format dense_format;
    int64_t rows;            // written so far
    uint64_t shared;         // digest of what all pieces of nested scales have in common
    int64_t rows_of_expert;  // where desc has the rows of all experts; else 0
};

}  // namespace qk_io

struct qk_writer {
    qk_io::Memory memory;
    qk_io::Arena arena;
    qk_io::Array<qk_io::Outgoing> tensors;
    qk_io::Array<qk_io::OutgoingLayer> layers;
    qk_io::Array<qk_io::Pair> metadata;
    qk_io::Names tensor_names, layer_names, keys;
    qk_io::Replacement file;
    int64_t data_begin;
    int64_t bytes;  // of the tensors, or appended
    bool is_gguf;
    enum State { kDeclaring, kWriting, kAppending, kFinished } state;
};

namespace qk_io {

// Of the process that created the writer, and not finished.
qk_status check_usable(const qk_writer *writer, qk_io_message *message);
// writer_gguf.cpp: the type and bytes of a tensor, and the file's header, once all are declared.
qk_status declare_gguf(const char *name, qk_dtype dtype, int32_t rank, const int64_t *shape,
                       Outgoing *tensor, qk_io_message *message);
qk_status write_gguf_header(qk_writer *writer, qk_io_message *message);
// Takes back all declarations but the first `count`.
void forget_outgoing(qk_writer *writer, int64_t count);
// The one writer of dialect names: "X" + ".weight.absmax" into name[kMaxNameBytes + 1].
qk_status join_name(char *name, const char *layer, const char *suffix, qk_io_message *message);

}  // namespace qk_io
