// One layer quantized and written, some rows at a time: memory does not grow with the layer.
#pragma once
#include "progress.hpp"
#include "rows.hpp"

// Codes and their copy on the way out, 64 MiB each.
constexpr int64_t kPieceWeights = 1 << 27;

// The dense layer of the checkpoint, as the layer of this description that the writer has declared.
// The bytes do not depend on the pieces. Throws where scales overflow their type. Returns how far
// what was written, decoded to f32, is from the layer.
LayerError quantize_layer(const Checkpoint &checkpoint, const Context &context,
                          const qk_layer &layer, const qk_tensor_desc &desc, qk_writer *writer,
                          Progress *progress, int64_t piece_weights = kPieceWeights);
