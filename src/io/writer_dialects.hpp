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

const DialectWriter *writer_of(qk_dialect dialect);  // NULL: qk does not write it

}  // namespace qk_io
