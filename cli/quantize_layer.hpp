// One layer quantized and written, some rows at a time: memory does not grow with the layer, but
// for dialects whose words run along its columns.
#pragma once
#include "progress.hpp"
#include "rows.hpp"
#include "scheme.hpp"

// Codes and their copy on the way out, 64 MiB each.
constexpr int64_t kPieceWeights = 1 << 27;

// After so many rows of what is stored so a layer may be cut: all where only the whole will do.
int64_t rows_between_pieces(const qk_tensor_desc &stored);

// The layer's dense weight, as the layer that the writer has declared as stored. The bytes do not
// depend on the pieces. Throws where scales overflow their type. Adds to `error` how far what was
// written, decoded to f32, is from the layer.
void quantize_layer(const Context &context, const qk_layer &layer, Tensor weight, const Stored &as,
                    qk_writer *writer, Progress *progress, LayerError *error,
                    int64_t piece_weights = kPieceWeights);
