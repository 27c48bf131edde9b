// Layers that are one expert of several, as projections of all of them.
#pragma once
#include "dialect.hpp"

namespace qk_io {

const ExpertLayer *find_expert_layer(const qk_checkpoint *checkpoint, const char *name);

// Whether the rows of both, named so in the sentence, fit one tensor; n may differ.
qk_status check_alike(const Layer &layer, const char *name, const Layer &other,
                      const char *other_name, qk_io_message *message);
// The description of `count` experts, each the rows of `parts` layers like `one`; refused where
// they would share a byte or a group.
qk_status describe_experts(const Layer &one, int64_t count, int64_t parts, qk_tensor_desc *desc,
                           qk_io_message *message);

// A layer that has all of `count` experts. transposed: the layer is [E,n,k], the file [E,k,n].
qk_status add_whole(qk_checkpoint *checkpoint, const Layer *layer, int64_t count, bool transposed,
                    qk_io_message *message);
// experts_fused.cpp: dense tensors of all experts, which are no layers.
qk_status add_fused(qk_checkpoint *checkpoint, qk_io_message *message);

const char *format_name(qk_format format);  // "u4"

// load.cpp: the arguments of a load; a tensor as the file stores a layer; what a context says of a
// failure.
qk_status check_load(const qk_checkpoint *checkpoint, const qk_context *context, const char *layer,
                     uint32_t flags, qk_tensor *const *weight, qk_io_message *message);
qk_status make_tensor(Memory memory, qk_context *context, const Layer &layer, bool in_place,
                      qk_tensor **out, qk_io_message *message);
qk_status from_context(const qk_context *context, qk_status status, const char *layer,
                       qk_io_message *message);

}  // namespace qk_io
