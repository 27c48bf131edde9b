// Products of one x by several weights of one kind, by one launch (siblings.cuh): which they are,
// how their rows are cut, the arguments.
#pragma once
#include "cuda/linear/sm90/gemv/plan.hpp"

namespace qk::cuda {

// The bytes of a row.
struct RowBytes {
    const char *first, *last;

    explicit RowBytes(const Dense &a)
        : first(static_cast<const char *>(a.data)), last(first + a.columns * (a.format->bits / 8)) {
    }
    bool meets(const RowBytes &other) const { return first < other.last && other.first < last; }
};

inline bool writes_bias_of(const LinearArgs &a, const LinearArgs &b) {
    return b.bias != nullptr && RowBytes(a.y).meets(RowBytes(*b.bias));
}

// What the instance and its arguments depend on, but for the planes.
inline bool are_of_one_kind(const Weight &v, const Weight &w) {
    return v.format == w.format && v.layout == w.layout && v.scale.format == w.scale.format &&
           v.scale.second_group == w.scale.second_group &&
           (v.zero == nullptr) == (w.zero == nullptr) && v.geometry.k == w.geometry.k &&
           v.geometry.group_size == w.geometry.group_size;
}

// Whether one launch may have both products of a kernel, in whatever order they end.
inline bool are_siblings(const LinearArgs &a, const LinearArgs &b, const Device &device) {
    return a.x.data == b.x.data && a.x.format == b.x.format && a.x.format->bits == 16 &&
           are_of_one_kind(a.w, b.w) &&
           coded_scales(a.w.scale, *device.tables) == coded_scales(b.w.scale, *device.tables) &&
           !RowBytes(a.y).meets(RowBytes(b.y)) && !writes_bias_of(a, b) && !writes_bias_of(b, a);
}

// The blocks of weights of so many rows of tiles, each its own: as many as `multiprocessors` run in
// the turns that one weight would take, or one turn more. None is left without a block, where two
// of the next launch's could crowd, if they are of experts.
struct SiblingsCut {
    int32_t blocks[kSiblings];
};

inline SiblingsCut cut_siblings(const int64_t *tiles, int32_t count, int32_t multiprocessors) {
    SiblingsCut cut = {};
    int64_t total = 0, left = -1;
    for (int32_t i = 0; i < count; ++i) total += tiles[i];
    int64_t turns = ceil_div(total, multiprocessors * kBlockRows);
    for (int64_t rows = ceil_div(total, multiprocessors * turns); left < 0; ++rows) {
        if (rows > kBlockRows) rows = ceil_div(total, multiprocessors * ++turns);
        left = multiprocessors * turns;
        for (int32_t i = 0; i < count; ++i) left -= ceil_div(tiles[i], rows);
        for (int32_t i = 0; i < count; ++i) cut.blocks[i] = int32_t(ceil_div(tiles[i], rows));
    }
    for (int32_t i = 0; i < count; ++i) {
        const int64_t more = min64(left, tiles[i] - cut.blocks[i]);
        cut.blocks[i] += int32_t(more);
        left -= more;
    }
    return cut;
}

// Products of one launch; blocks of the first one are first.
struct GemvProblems {
    GemvProblem each[kSiblings];  // a first_block of 2^31 - 1: there is no such product
    int32_t blocks;
};

inline GemvProblems siblings_problems(const LinearArgs *const *args, int32_t count,
                                      const Device &device) {
    int64_t tiles[kSiblings];
    for (int32_t i = 0; i < count; ++i) tiles[i] = ceil_div(args[i]->w.geometry.n, 16);
    const SiblingsCut cut = cut_siblings(tiles, count, device.multiprocessors);
    GemvProblems all = {};
    for (int32_t i = 0; i < kSiblings; ++i) {
        GemvProblem &p = all.each[i];
        if (i < count) p = gemv_problem(*args[i], device, cut.blocks[i]);
        p.plan.first_block = i < count ? all.blocks : INT32_MAX;
        all.blocks += p.plan.blocks;
    }
    return all;
}

// Codes of all weights of a launch, at most: larger ones take longer together than by launches that
// overlap.
constexpr int64_t kSiblingsCodes = int64_t{1} << 27;

// How many of the products, the first of them, one launch takes.
inline int32_t count_siblings(const LinearArgs *const *args, int32_t count, const Device &device) {
    const Geometry &s = args[0]->w.geometry;
    const GemvPlan most = plan_gemv(kBlockRows * 16, s.k, 1);
    const int64_t seconds = gemv_seconds(most, s.groups_per_row, args[0]->w.scale.second_group);
    if (kGemvShared + most.sums_bytes + seconds * 4 > device.shared_bytes) return 1;
    int64_t n = s.n;
    for (int32_t taken = 1; taken < count && taken < kSiblings; ++taken) {
        n += args[taken]->w.geometry.n;
        if (n > kSiblingsCodes / s.k) return taken;
        for (int32_t i = 0; i < taken; ++i) {
            if (!are_siblings(*args[i], *args[taken], device)) return taken;
        }
    }
    return count < kSiblings ? count : kSiblings;
}

// An instance, compiled on its own.
template <Codes codes, qk_format x>
struct GemvSiblings {
    static Status run(const GemvProblems &all, qk_format scale, const Launch &launch);
};

}  // namespace qk::cuda
