// The host side of linear/stored/words.cuh.
#include "cuda/linear/kernels.hpp"
#include "cuda/linear/stored/cases.hpp"
#include "cuda/linear/stored/words.cuh"
#include "cuda/lists.hpp"

namespace qk::cuda {
namespace {

bool is_gptq(const Weight &w) {
    return w.layout->id == QK_LAYOUT_GPTQ || w.layout->id == QK_LAYOUT_GPTQ_V1;
}

// Whether a lane's two words of a step may be neighbours: groups are whole steps.
bool is_wide(const Weight &w) {
    const Geometry &s = w.geometry;
    return s.k % 16 == 0 && (s.groups_per_row == 1 || s.group_size % kRowsStep == 0) &&
           aligned(w.data, 8);
}

template <class T, class Decode, Words words, int kWarps>
Status run_warps(const Problem &p, const Launch &launch) {
    // Small groups are rare: they do without a kernel for one pass of 8 rows.
    const int batches = p.m <= XOperand<T>::kRows && words != Words::kNarrow ? 1 : 2;
    const Shape3 shape = shape_of<T>(p, kBlockRows, kWarps, batches);
    if constexpr (words != Words::kNarrow) {
        if (batches == 1) {
            return launch_kernel(launch, "linear", multiply_words<T, Decode, 1, words, kWarps>,
                                 shape, p);
        }
    }
    return launch_kernel(launch, "linear", multiply_words<T, Decode, 2, words, kWarps>, shape, p);
}

template <class T, class Decode, Words words>
Status run_words(const Problem &p, const Launch &launch) {
    if constexpr (words != Words::kNarrow && !std::is_same_v<T, F32>) {
        if (fills_twice(p, kBlockRows, launch.device)) {
            return run_warps<T, Decode, words, kFewWarps>(p, launch);
        }
    }
    return run_warps<T, Decode, words, kManyWarps>(p, launch);
}

template <class T, Words words>
Status run_type(const Problem &p, const Launch &launch) {
    if constexpr (words != Words::kGptq) {
        if (p.w.kind == FormatKind::kLut4) return run_words<T, Lut4<T>, words>(p, launch);
    }
    return run_words<T, U4<T>, words>(p, launch);
}

template <Words words>
Status run_layout(const Problem &p, const Launch &launch) {
    if (p.type == QK_FORMAT_F16) return run_type<F16, words>(p, launch);
    if (p.type == QK_FORMAT_BF16) return run_type<BF16, words>(p, launch);
    return run_words<F32, U4<BF16>, words>(p, launch);
}

Status run(const LinearArgs &args, const Launch &launch) {
    const Problem p = problem_of(args, kRowsStep);
    if (is_gptq(args.w)) return run_layout<Words::kGptq>(p, launch);
    return is_wide(args.w) ? run_layout<Words::kWide>(p, launch)
                           : run_layout<Words::kNarrow>(p, launch);
}

}  // namespace

const Kernel<LinearArgs> kLinearWords = linear_kernel<LinearKernel::kWords>(run);

}  // namespace qk::cuda
