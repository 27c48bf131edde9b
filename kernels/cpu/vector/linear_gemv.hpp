// y = x . transpose(w) + bias for one row of x over the packed layout (rows8), any 4-bit format.
// Included after an instruction set's IntegerRows.
#pragma once
#include "cpu/vector/gemv_floats.hpp"

namespace qk::cpu {
namespace {

Status run_gemv(const LinearArgs &args, const Launch &launch) {
    if (sums_integers(args)) {
        run_rows<IntegerRows>(args, launch);
    } else if (args.w.zero != nullptr) {
        run_rows<RowBlocks<AffineCodes>>(args, launch);
    } else {
        run_rows<RowBlocks<TableCodes>>(args, launch);
    }
    return QK_OK;
}

bool can_run_gemv(const LinearArgs &args, const Device &device) {
    const Geometry &s = args.w.geometry;
    if (!has(device, kLanesFeature) || args.x.rows != 1) return false;
    if (args.w.layout == nullptr || args.w.layout->id != kLayoutRows8 || s.flat) return false;
    const int64_t size = s.group_size;
    return size >= s.k || size == 16 || size == 32 || size == 64 || size % 128 == 0;
}

}  // namespace
}  // namespace qk::cpu
