// What kernels of transposed products know of a product, and their instances.
#pragma once
#include "cuda/tile/decode.cuh"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

struct TransposedView : LinearView {
    int32_t row_tiles, tiles;  // tiles: of a row
    int32_t group_shift;       // log2 of group_size
    int32_t second_shift;      // coded scales: log2 of second_group
};

inline TransposedView transposed_view(const LinearArgs &args) {
    const Geometry &s = args.w.geometry;
    return {view_of(args), int32_t(ceil_div(s.n, 16)), int32_t(ceil_div(s.k, 64)),
            s.groups_per_row == 1 ? 31 : log2_of(s.group_size), log2_of(args.w.scale.second_group)};
}

// f(type of x, decoder of the codes, scale kind), each a value of the type or constant.
template <class T, class F>
Status with_codes_and_scales(const LinearView &p, bool lut4, const F &f) {
    return with_scale_kind(p.w.scale_format, [&](auto kind) {
        return lut4 ? f(T{}, Lut4<T>{}, kind) : f(T{}, U4<T>{}, kind);
    });
}

template <class F>
Status with_transposed_kinds(const LinearView &p, bool lut4, const F &f) {
    return p.type == QK_FORMAT_F16 ? with_codes_and_scales<F16>(p, lut4, f)
                                   : with_codes_and_scales<BF16>(p, lut4, f);
}

}  // namespace
}  // namespace qk::cuda
