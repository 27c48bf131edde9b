// Layers in the tensors of a dialect, on their way out.
#pragma once
#include "writer.hpp"

namespace qk_io {

struct DialectWriter {
    qk_dialect dialect;
    qk_status (*check)(const OutgoingLayer &layer, qk_io_message *message);
    qk_status (*declare)(qk_writer *w, const OutgoingLayer &layer, qk_io_message *message);
    // Some rows: the piece's description has as many.
    qk_status (*write)(qk_writer *w, qk_context *context, const OutgoingLayer &piece,
                       const qk_tensor *tensor, qk_io_message *message);
    // What belongs to the layer as a whole, after its last piece.
    qk_status (*finish)(qk_writer *w, qk_context *context, const OutgoingLayer &layer,
                        const qk_tensor *tensor, qk_io_message *message);
};

extern const DialectWriter kBnbWriter, kCtWriter, kModelOptWriter, kDeepSeekWriter, kGptOssWriter,
    kGgufWriter;

// What dialects have in common.

struct Plane {
    const char *suffix;
    qk_plane plane;
};

qk_dtype dtype_of(qk_format format);  // of F32, F16 and BF16
bool is_float(qk_format format);      // those three
int64_t plane_bytes(const OutgoingLayer &layer, qk_plane plane);
qk_status declare(qk_writer *w, const OutgoingLayer &layer, const char *suffix, qk_dtype dtype,
                  int32_t rank, int64_t first, int64_t second, qk_io_message *message);
qk_status write_bytes(qk_writer *w, const OutgoingLayer &layer, const char *suffix,
                      const void *data, size_t bytes, qk_io_message *message);
// A plane's bytes as they are; nothing where the tensor has no such plane.
qk_status write_plane(qk_writer *w, qk_context *context, const OutgoingLayer &layer,
                      const qk_tensor *tensor, const Plane &plane, qk_io_message *message);
// The same into memory of the writer's, to be released.
qk_status download_plane(qk_writer *w, qk_context *context, const OutgoingLayer &layer,
                         const qk_tensor *tensor, qk_plane plane, void **host,
                         qk_io_message *message);
// writer_order.cpp. DATA with its columns in the model's order, as download_plane gives planes.
qk_status download_codes(qk_writer *w, qk_context *context, const OutgoingLayer &layer,
                         const qk_tensor *tensor, void **codes, qk_io_message *message);
// The group of each column of the model, I32 [k].
qk_status write_groups(qk_writer *w, qk_context *context, const OutgoingLayer &layer,
                       const qk_tensor *tensor, const char *suffix, qk_io_message *message);

// writer_int8.cpp. S8 in words of four codes. Zeros are there with minima, and always by columns.
struct Int8Packing {
    const char *codes, *scales, *zeros;
    bool by_columns;
};
qk_status check_int8(const OutgoingLayer &layer, qk_io_message *message);
qk_status declare_int8(qk_writer *w, const OutgoingLayer &layer, const Int8Packing &packing,
                       qk_io_message *message);
qk_status write_int8(qk_writer *w, qk_context *context, const OutgoingLayer &piece,
                     const qk_tensor *tensor, const Int8Packing &packing, qk_io_message *message);

const DialectWriter *writer_of(qk_dialect dialect);  // NULL: qk does not write it

}  // namespace qk_io
