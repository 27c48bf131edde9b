// The instances of kernels of transposed products.
#pragma once
#include "cuda/tile/decode.cuh"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

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
