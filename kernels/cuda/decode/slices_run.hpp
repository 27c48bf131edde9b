// The kernel for small batches that adds k up in registers (decode/slices_kernel.cuh), by what
// decodes the weight and the type of x: each is compiled on its own.
#pragma once
#include "backend/backend.hpp"

namespace qk::cuda {

Status run_slices_numbers_f16(const LinearArgs &args, const Launch &launch);
Status run_slices_numbers_bf16(const LinearArgs &args, const Launch &launch);
Status run_slices_pairs_f16(const LinearArgs &args, const Launch &launch);
Status run_slices_pairs_bf16(const LinearArgs &args, const Launch &launch);
// 17 to 24 rows of x.
Status run_many_numbers_f16(const LinearArgs &args, const Launch &launch);
Status run_many_numbers_bf16(const LinearArgs &args, const Launch &launch);
Status run_many_pairs_f16(const LinearArgs &args, const Launch &launch);
Status run_many_pairs_bf16(const LinearArgs &args, const Launch &launch);
Status run_slices_f32(const LinearArgs &args, const Launch &launch);

}  // namespace qk::cuda
