// Nested scales of a quantized weight, before the codes of its groups are stored.
#pragma once
#include "backend/backend.hpp"

namespace qk::cuda {

// Where the f32 scales of all groups can be, and sums for their mean: in the workspace, or where
// the codes will be; null if there is no room.
struct NestRoom {
    float *scales, *sums;
};

NestRoom room_for_scales(const QuantizeArgs &args, const Launch &launch);
// The f32 scales of all groups.
Status find_scales(const QuantizeArgs &args, float *scales, const Launch &launch);
// SCALE, SCALE2 and SCALE_BIAS. Without scales they are computed wherever one is needed; without
// room for sums these are where the codes of scales will be.
Status nest_scales(const QuantizeArgs &args, const NestRoom &room, const Launch &launch);

}  // namespace qk::cuda
