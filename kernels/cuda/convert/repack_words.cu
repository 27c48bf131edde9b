// Repack 4-bit codes from any layout to any other, by words (convert/words.cuh): a block's codes go
// through shared memory once, or from registers to the same places where layouts differ in no more
// than the order inside a byte. Blocks among these move scales, minima and zeros
// (convert/move_groups.cuh). Nothing is decoded.
#include "cuda/convert/move_groups.cuh"
#include "cuda/convert/words.cuh"
#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"

namespace qk::cuda {
namespace {

struct Problem {
    WordPlane from, to;
    Groups groups;
    uint32_t runs;  // blocks along k
    bool swaps;     // codes are at the same places, but nibbles change theirs
};

constexpr uint32_t kCopied = 4;  // times four words a thread

template <bool whole>
__device__ void copy_words(const Problem &p, uint32_t block) {
    const int64_t all = int64_t(p.from.rows) * p.from.words;
    const int64_t first = (int64_t(block) * kCopied * kRepackThreads + threadIdx.x) * 4;
    uint4 fours[kCopied];
#pragma unroll
    for (uint32_t i = 0; i < kCopied; ++i) {
        const int64_t at = first + i * kRepackThreads * 4;
        fours[i] =
            load_vector<uint4, whole>(reinterpret_cast<uint32_t *>(p.from.data) + at, all - at);
    }
#pragma unroll
    for (uint32_t i = 0; i < kCopied; ++i) {
        const int64_t at = first + i * kRepackThreads * 4;
        store_vector<whole>(reinterpret_cast<uint32_t *>(p.to.data) + at, all - at,
                            swap_four(p.swaps, fours[i]));
    }
}

template <bool whole>
__global__ void __launch_bounds__(kRepackThreads, kRepackBlocks)
    repack_copy(const __grid_constant__ Problem p) {
    for_codes<kRepackThreads>(p.groups, [&](uint32_t block) { copy_words<whole>(p, block); });
}

// 16 KiB of codes. AWQ_GEMM is read in lines of 128 bytes and written in lines of 64: where a block
// has few words of a row, rows are read in pieces too short for the memory.
template <WordOrder from, WordOrder to>
using ShapeOf = std::conditional_t<
    from == WordOrder::kEights, WordShape<256, 16>,
    std::conditional_t<to == WordOrder::kEights, WordShape<128, 32>, WordShape<64, 64>>>;

template <WordOrder from, WordOrder to, bool whole>
__global__ void __launch_bounds__(kRepackThreads, kRepackBlocks)
    repack_words(const __grid_constant__ Problem p) {
    using B = ShapeOf<from, to>;
    __shared__ uint4 words[B::kAll / 4];
    for_codes<kRepackThreads>(p.groups, [&](uint32_t number) {
        const uint32_t line = number / p.runs;
        const WordBlock block = {line * B::kRows, (number - line * p.runs) * B::kWords};
        load_words<B, from, whole>(p.from, block, &words[0].x);
        __syncthreads();
        store_words<B, to, whole>(p.to, block, &words[0].x);
    });
}

Status launch_blocks(Problem &p, int64_t blocks, void (*kernel)(Problem), const Launch &launch) {
    const uint32_t all = blocks_beside(&p.groups, blocks);
    return launch_kernel(launch, "repack", kernel, {dim3(all), kRepackThreads}, p);
}

template <WordOrder from, WordOrder to>
Status run_words(Problem &p, bool whole, const Launch &launch) {
    if constexpr (from == to && from != WordOrder::kTiles) {  // the same places
        const int64_t words = int64_t(p.to.rows) * p.to.words;
        whole = words % 4 == 0 && aligned(p.from.data) && aligned(p.to.data);
        return launch_blocks(p, ceil_div(words, 4 * kCopied * kRepackThreads),
                             whole ? repack_copy<true> : repack_copy<false>, launch);
    } else {
        using B = ShapeOf<from, to>;
        p.runs = uint32_t(ceil_div(p.to.words, B::kWords));
        return launch_blocks(p, ceil_div(p.to.rows, B::kRows) * p.runs,
                             whole ? repack_words<from, to, true> : repack_words<from, to, false>,
                             launch);
    }
}

template <WordOrder from>
Status run_from(Problem &p, WordOrder to, bool whole, const Launch &launch) {
    switch (to) {
        case WordOrder::kRows: return run_words<from, WordOrder::kRows>(p, whole, launch);
        case WordOrder::kColumns: return run_words<from, WordOrder::kColumns>(p, whole, launch);
        case WordOrder::kEights: return run_words<from, WordOrder::kEights>(p, whole, launch);
        default: return run_words<from, WordOrder::kTiles>(p, whole, launch);
    }
}

Status run(const RepackArgs &args, const Launch &launch) {
    QK_TRY(copy_shared_planes(args, launch));
    const Weight &from = args.from, &to = args.to;
    Problem p = {};
    p.from = word_plane(from);
    p.to = word_plane(to);
    p.groups = groups_of(from, to, kRepackThreads);
    p.swaps = (from.layout->id == QK_LAYOUT_ROW_HIGH) != (to.layout->id == QK_LAYOUT_ROW_HIGH);
    const bool whole = has_vectors(from) && has_vectors(to);
    const WordOrder words = words_of(to);
    switch (words_of(from)) {
        case WordOrder::kRows: return run_from<WordOrder::kRows>(p, words, whole, launch);
        case WordOrder::kColumns: return run_from<WordOrder::kColumns>(p, words, whole, launch);
        case WordOrder::kEights: return run_from<WordOrder::kEights>(p, words, whole, launch);
        default: return run_from<WordOrder::kTiles>(p, words, whole, launch);
    }
}

bool can_run(const RepackArgs &args, const Device &) {
    const Weight &from = args.from, &to = args.to;
    const Geometry &s = to.geometry;
    return args.first_row == 0 && !args.in_workspace && has_words(from) && has_words(to) &&
           has_group_planes(from) && has_group_planes(to) &&
           ceil_div(s.n, 128) * ceil_div(s.k, 128) < (int64_t{1} << 30);
}

}  // namespace

const Kernel<RepackArgs> kRepackWords = {"words", can_run, nullptr, run};

}  // namespace qk::cuda
