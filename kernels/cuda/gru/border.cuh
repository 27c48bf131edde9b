// Where a GRU kernel meets the caller's tensors: x, y and gates in f32 or codes, at any address.
#pragma once
#include "cuda/view.cuh"
#include "gru/border.hpp"
#include "gru/step.hpp"

namespace qk::cuda {

// GruArgs as device code sees them.
struct GruView {
    gru::Cell cell;
    int64_t steps, batch;
    bool x_is_float, y_is_float;
    float x_factor, h_factor;  // real to code, code to real
    const void *x;
    void *y, *gates;
    uint32_t *turns;
    void *h;
    int64_t state_bytes;
    void *scratch;
    int64_t scratch_bytes;  // of a sequence
    int64_t *clipped;       // GruArgs::clipped
};

inline GruView view_of(const GruArgs &args) {
    const gru::Cell &cell = *args.cell;
    return {cell,
            args.steps,
            args.batch,
            args.x_format->id == QK_FORMAT_F32,
            args.y_format->id == QK_FORMAT_F32,
            gru::power_of_two(cell.x_scale),
            gru::power_of_two(-cell.h_scale),
            args.x,
            args.y,
            args.gates,
            args.turns,
            args.h,
            gru_state_bytes(cell, args.batch),
            args.scratch,
            gru_scratch_bytes(cell),
            args.clipped};
}

#if defined(__CUDACC__)
namespace {

// The sum over a warp, in every lane.
__device__ inline int32_t warp_sum(int32_t x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(~0u, x);
#else
    for (int half = 16; half > 0; half /= 2) x += __shfl_xor_sync(~0u, x, half);
    return x;
#endif
}

// Code `index` of a plane of 1- or 2-byte codes at any address.
__device__ inline int32_t load_code_anywhere(const void *codes, int32_t bytes, int64_t index) {
    return bytes == 1 ? load_as<int8_t>(codes, index) : load_as<int16_t>(codes, index);
}

// The state that the next step starts from.
__device__ inline void *current_state(const GruView &v) {
    return static_cast<char *>(v.h) + *v.turns / kTurn % 2 * v.state_bytes;
}

__device__ inline int32_t read_x(const GruView &v, int64_t index) {
    const gru::Cell &cell = v.cell;
    if (!v.x_is_float) {
        const int32_t code = load_code_anywhere(v.x, cell.x_bytes, index);
        return gru::clamp(code, cell.x_min, cell.x_max);
    }
    return gru::real_to_code(load_as<float>(v.x, index), v.x_factor, cell.x_zero, cell.x_min,
                             cell.x_max);
}

__device__ inline void write_y(const GruView &v, int64_t index, int32_t code) {
    if (v.y_is_float) {
        store_as(v.y, index, gru::code_to_real(code, v.h_factor, v.cell.h_zero));
    } else if (v.cell.h_bytes == 1) {
        store_as(v.y, index, int8_t(code));
    } else {
        store_as(v.y, index, int16_t(code));
    }
}

// The same where y is naturally aligned.
__device__ inline void write_aligned_y(const GruView &v, int64_t index, int32_t code) {
    if (v.y_is_float) {
        static_cast<float *>(v.y)[index] = gru::code_to_real(code, v.h_factor, v.cell.h_zero);
    } else {
        gru::store_code(v.y, v.cell.h_bytes, index, code);
    }
}

}  // namespace
#endif

}  // namespace qk::cuda
