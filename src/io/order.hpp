// Act-order: a file stores the columns of a layer as the model has them and says for each of which
// group it is (g_idx). qk stores them group after group, and in which order in a plane of its own.
#pragma once
#include "dialect.hpp"

namespace qk_io {

// Checks g_idx I32 [k], called `name`, and gives the layer its order of columns; none where groups
// run in order anyway.
qk_status take_order(qk_checkpoint *checkpoint, const Tensor *g_idx, const char *name, int64_t k,
                     int64_t group, Layer *layer, qk_io_message *message);

// The layer's order, NULL where it has none.
const int32_t *order_of(const Layer &layer);

}  // namespace qk_io
