// Where the planes of packed rows are in the workspace of linear/repacked.cpp, and so how many
// rows it holds at a time. gemm/ asks too: packed weights give the bits that repacked ones give.
#pragma once
#include "cuda/choose/linear.hpp"
#include "format/layouts.hpp"

namespace qk::cuda {

struct PackedPlanes {
    int64_t scale, zero, end;
};

inline Geometry rows_of(const Geometry &s, int64_t rows) {
    Geometry slab = s;
    slab.n = rows;
    slab.group_count = rows * s.groups_per_row;
    return slab;
}

inline PackedPlanes packed_planes(const Layout &packed, const Geometry &of, int64_t rows,
                                  int64_t scale_bits, bool zeros) {
    const Geometry s = rows_of(of, rows);
    const int64_t scale = round_up(packed.data_bytes(s), 256);
    const int64_t zero = scale + round_up(packed.scale_count(s) * scale_bits / 8, 256);
    return {scale, zero, zero + (zeros ? round_up(packed.zero_bytes(s), 256) : 0)};
}

// Rows of a slab, of `n` in all.
inline int64_t packed_slab_rows(const Layout &packed, const Geometry &of, int64_t n,
                                int64_t scale_bits, bool zeros) {
    return plan_repack(n, packed_planes(packed, of, kRepackStep, scale_bits, zeros).end);
}

}  // namespace qk::cuda
