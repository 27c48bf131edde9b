// Launches the shapes of one type of x and one way to decode.
#pragma once
#include "cuda/linear/sm80/gemm/kernel.cuh"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

// As many stages as leave room for two blocks on a multiprocessor, which has 1 KiB more for each
// than a block can ask for; else as many as one block can have. Less than 2: there is no room.
template <class S>
int32_t sm80_gemm_slots(int32_t shared) {
    constexpr int32_t kMostSlots = 4, kReserved = 1024;
    int32_t slots = kMostSlots;
    while (slots > 2 && int32_t(S::shared_bytes(slots)) * 2 + kReserved > shared) --slots;
    if (int32_t(S::shared_bytes(slots)) * 2 + kReserved <= shared) return slots;
    for (slots = kMostSlots; slots >= 2 && int32_t(S::shared_bytes(slots)) > shared;) --slots;
    return slots;
}

template <class S>
Status run_shape(const Launch &launch, Sm80GemmProblem *p) {
    p->slots = sm80_gemm_slots<S>(launch.device.shared_bytes);
    const int64_t row_blocks = ceil_div(p->row_tiles, S::kRowTiles);
    Shape3 shape = {dim3(uint32_t(row_blocks * p->x_blocks), uint32_t(p->split)), S::kThreads};
    shape.shared_bytes = S::shared_bytes(p->slots);
    shape.overlaps = launch.device.capability >= 90;
    return launch_kernel(launch, "linear", multiply_sm80_gemm<S>, shape, *p);
}

}  // namespace

template <Codes codes, qk_format x>
Status Sm80Gemm<codes, x>::run(const Launch &launch, Sm80GemmProblem *p) {
    using T = TypeOf<x>;
    using Decode = std::conditional_t<codes == Codes::kU4, U4<T>, Lut4<T>>;
    return with_scale_kind(p->w.scale_format, [&](auto kind) {
        return p->m <= 32 ? run_shape<Sm80GemmShape<T, Decode, kind.value, 4>>(launch, p)
                          : run_shape<Sm80GemmShape<T, Decode, kind.value, 8>>(launch, p);
    });
}

}  // namespace qk::cuda
