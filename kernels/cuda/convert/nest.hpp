// Nested scales of a quantized weight, before the codes of its groups are stored.
#pragma once
#include "backend/backend.hpp"

namespace qk::cuda {

// Where the f32 scales of all groups can be: in the workspace, or where the codes will be; null if
// there is no room.
float *room_for_scales(const QuantizeArgs &args, const Launch &launch);
// The f32 scales of all groups.
Status find_scales(const QuantizeArgs &args, float *scales, const Launch &launch);
// SCALE, SCALE2 and SCALE_BIAS. Without `scales` they are computed wherever one is needed.
Status nest_scales(const QuantizeArgs &args, const float *scales, const Launch &launch);

}  // namespace qk::cuda
