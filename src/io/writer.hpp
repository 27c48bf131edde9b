// A safetensors file on its way out.
#pragma once
#include "checkpoint.hpp"
#include "files.hpp"

namespace qk_io {

struct Outgoing {  // one declared tensor
    const char *name;
    const DtypeRow *dtype;
    const int64_t *shape;
    int64_t bytes, offset, written;  // offset: in the data area, once it is laid out
    int32_t rank;
};

struct OutgoingLayer {
    const char *name;
    qk_dialect dialect;
    qk_tensor_desc desc;
    qk_format dense_format;
};

// Open addressing over names; capacity is a power of two and at least twice the count.
struct NameTable {
    int32_t *slots;  // index + 1 of a tensor; 0: free
    int64_t capacity;
};

}  // namespace qk_io

struct qk_writer {
    qk_io::Memory memory;
    qk_io::Arena arena;
    qk_io::Array<qk_io::Outgoing> tensors;
    qk_io::Array<qk_io::OutgoingLayer> layers;
    qk_io::Array<qk_io::Pair> metadata;
    qk_io::NameTable names;
    qk_io::Replacement file;
    int64_t data_begin;
    enum State { kDeclaring, kWriting, kFinished } state;
};

namespace qk_io {

// The declared tensor of this name, or NULL.
Outgoing *find_outgoing(qk_writer *writer, const char *name);
// Takes back all declarations but the first `count`.
void forget_outgoing(qk_writer *writer, int64_t count);
// The one writer of dialect names: "X" + ".weight.absmax" into name[kMaxNameBytes + 1].
qk_status join_name(char *name, const char *layer, const char *suffix, qk_io_message *message);

}  // namespace qk_io
