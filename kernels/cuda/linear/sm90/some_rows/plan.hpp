// How the kernel for small batches (linear/sm90/some_rows/some_rows.cu) cuts a weight: a pure
// function of the problem and the device.
#pragma once
#include <stdint.h>

#include "cuda/tile/problem.hpp"

namespace qk::cuda {

constexpr int32_t kSomeRowsWarps = 16;
constexpr int32_t kSomeRowsColumns = 128;  // of a chunk: a warp's part of a stage along k
constexpr int32_t kSomeRowsBatch = 8;      // rows of x of a matrix product
constexpr int32_t kSomeRowsMost = 16;      // rows of x that a launch multiplies at once
constexpr int32_t kSomeRowsMany = 24;      // the same from 17 rows on (decode/slices_many_*.cu)

// A cluster of blocks takes a run of rows of tiles (16 rows of the weight each) and its blocks
// divide k. In a block a warp takes a pair of rows of tiles, and `slices` warps share a pair:
// warp s of them has chunks s, s + slices, ... of the block's. Where that leaves warps without
// work, two of them may share a warp's: each has one of the two tiles of every chunk.
struct SomeRowsPlan {
    int32_t cluster;   // blocks
    int32_t clusters;  // in all
    int32_t chunks;    // of a row of tiles
    int32_t share;     // chunks of a block, the last ones of a cluster may have fewer
    int32_t pairs;     // of rows of tiles of a block
    int32_t slices;    // chunks of a stage
    int32_t halved;    // of the pairs * slices warps: the last ones, whose work two warps share
    Deal rows;         // rows of tiles to clusters

    QK_HD constexpr int32_t warps() const { return pairs * slices + halved; }
    // The first warp of job number `job`, of pairs * slices.
    QK_HD constexpr int32_t warp_of(int32_t job) const {
        const int32_t first = pairs * slices - halved;
        return job <= first ? job : 2 * job - first;
    }

    QK_HD constexpr Run part(int32_t rank) const {
        const int32_t first = rank * share < chunks ? rank * share : chunks;
        return {first, chunks - first < share ? chunks : first + share};
    }
};

// What decides how many bytes a stage takes.
struct SomeRowsSizes {
    int32_t room;         // for slots
    int32_t group_shift;  // log2 of the columns of a group; 30: one group a row
    int32_t scale_bytes;  // of 16 rows of a group
    int32_t zero_bytes;
    int32_t x_bytes;  // of a value of x
    int32_t x_rows;   // of x that a launch multiplies at once, at most
};

// A slot of the ring: codes, scales, zeros, x.
struct SomeRowsStage {
    int32_t groups;  // of a row of tiles, at most
    int32_t scales, zeros, x, x_stride, bytes;
    int32_t slots;
};

constexpr int32_t kSomeRowsMostSlots = 8;

static constexpr SomeRowsStage some_rows_stage(int32_t pairs, int32_t slices, int32_t x_rows,
                                               const SomeRowsSizes &s) {
    const int32_t rows = 2 * pairs, columns = slices * kSomeRowsColumns;
    SomeRowsStage stage = {};
    // A run of columns may start inside a group wider than a chunk.
    stage.groups =
        s.group_shift <= 7 ? columns >> s.group_shift : ((columns - 1) >> s.group_shift) + 2;
    stage.scales = rows * columns * 8;
    stage.zeros = stage.scales + rows * stage.groups * s.scale_bytes;
    stage.x = int32_t(round_up(stage.zeros + rows * stage.groups * s.zero_bytes, 16));
    stage.x_stride = columns * s.x_bytes + 16;  // neighbouring rows share no bank
    stage.bytes = int32_t(round_up(stage.x + x_rows * stage.x_stride, 128));
    const int32_t fit = s.room / stage.bytes;
    stage.slots = fit < kSomeRowsMostSlots ? fit : kSomeRowsMostSlots;
    return stage;
}

// Blocks a cluster: x crosses the L2 once for every block, n / 8448 times as much of it as of the
// weight with 132 multiprocessors.
static constexpr int32_t some_rows_cluster(int64_t row_tiles, int64_t chunks,
                                           int32_t multiprocessors) {
    return row_tiles <= 4 * int64_t{multiprocessors} && chunks >= 32 ? 2 : 1;
}

// Whether a weight is for linear/sm90/some_rows/some_rows.cu though
// linear/sm90/few_rows/few_rows.cu could take it: large ones, as they outweigh a longer start and
// end; long rows, of which `rows` reads x as often as the weight; from fewer codes on where
// decoding takes longer (docs/measurements/cuda-designs.md).
static constexpr bool prefers_some_rows(int64_t n, int64_t k, bool slow, int32_t multiprocessors) {
    const int64_t row_tiles = ceil_div(n, 16);
    return n * k > (slow ? int64_t{3} << 24 : int64_t{3} << 25) ||
           row_tiles > 12 * int64_t{multiprocessors} ||
           (k >= 20480 && row_tiles <= 4 * int64_t{multiprocessors});
}

// Warp w of a block belongs to scheduler w mod 4 of its multiprocessor: how many jobs to halve, so
// that every warp has one, if the busiest scheduler then has less to do.
static constexpr int32_t some_rows_halved(int32_t jobs) {
    const int32_t halved = kSomeRowsWarps - jobs;
    if (halved > jobs) return 0;
    int32_t busiest = 0;  // in halves of a job
    for (int32_t scheduler = 0; scheduler < 4; ++scheduler) {
        int32_t load = 0;
        for (int32_t warp = scheduler; warp < kSomeRowsWarps; warp += 4) {
            load += warp < jobs - halved ? 2 : 1;
        }
        busiest = load > busiest ? load : busiest;
    }
    return busiest < 2 * int32_t(ceil_div(jobs, 4)) ? halved : 0;
}

static constexpr SomeRowsPlan plan_some_rows(int64_t n, int64_t k, int32_t multiprocessors,
                                             int32_t cluster, const SomeRowsSizes &sizes) {
    const int64_t row_tiles = ceil_div(n, 16), chunks = ceil_div(k, kSomeRowsColumns);
    const int64_t at_once = multiprocessors > cluster ? multiprocessors / cluster : 1;
    const int64_t waves = ceil_div(row_tiles, at_once * 2 * kSomeRowsWarps);
    const int32_t clusters = int32_t(min64(row_tiles, at_once * waves));
    const Deal rows = deal(row_tiles, clusters);
    const int32_t pairs = (rows.each + (rows.rest > 0) + 1) / 2;
    const int32_t share = int32_t(ceil_div(chunks, cluster));
    int32_t slices = int32_t(min64(kSomeRowsWarps / pairs, share));
    // A third slot is worth more than busy warps. Sized for the most rows of x: the order of sums
    // must not depend on the batch.
    while (slices > 1 && some_rows_stage(pairs, slices, sizes.x_rows, sizes).slots < 3) --slices;
    slices = int32_t(ceil_div(share, ceil_div(share, slices)));  // stages of one size
    const int32_t halved = some_rows_halved(pairs * slices);
    return {cluster, clusters, int32_t(chunks), share, pairs, slices, halved, rows};
}

// What the cut depends on.
struct SomeRowsCase {
    int64_t n, k, group_size, groups_per_row, second_group;
    int32_t scale_bits;
    bool lut4, f32;

    constexpr int32_t group_shift() const {
        return groups_per_row == 1 ? 30 : int32_t(__builtin_ctzll(uint64_t(group_size)));
    }
    // Rows of x of a launch, at most.
    constexpr int32_t most() const { return f32 ? kSomeRowsBatch : kSomeRowsMost; }
};

struct SomeRowsCut {
    SomeRowsPlan plan;
    SomeRowsSizes sizes;
    uint32_t second_bytes, received_bytes;  // behind the slots
    int32_t fixed_bytes;                    // of a block's memory, beside the slots
};

constexpr int32_t kSomeRowsTable = 32 * 1024;  // of looked-up codes

// `x_rows`: of x of a launch, at most. `shared_bytes`: of a block.
static constexpr SomeRowsCut cut_some_rows(const SomeRowsCase &c, int32_t multiprocessors,
                                           int32_t shared_bytes, int32_t x_rows) {
    const int32_t cluster =
        some_rows_cluster(ceil_div(c.n, 16), ceil_div(c.k, kSomeRowsColumns), multiprocessors);
    SomeRowsCut cut = {};
    cut.sizes.group_shift = c.group_shift();
    cut.sizes.scale_bytes = 2 * c.scale_bits;
    cut.sizes.zero_bytes = c.lut4 ? 0 : 8;
    cut.sizes.x_bytes = c.f32 ? 4 : 2;
    cut.sizes.x_rows = x_rows;
    const SomeRowsPlan sketch = plan_some_rows(c.n, c.k, multiprocessors, cluster, cut.sizes);
    cut.second_bytes =
        uint32_t(round_up(second_bytes(sketch.rows, c.groups_per_row, c.second_group), 16));
    // What the other blocks of a cluster send (linear/sm90/some_rows/output.cuh).
    const int32_t owned = int32_t(ceil_div(2 * sketch.pairs, cluster));
    cut.received_bytes = uint32_t((cluster - 1) * owned * x_rows * 64);
    const int32_t tables = c.lut4 ? (c.f32 ? 3 : 1) * kSomeRowsTable : 0;
    const int32_t others = 1024 + kSomeRowsMostSlots * 16 + 128;
    cut.fixed_bytes = tables + others + int32_t(cut.second_bytes) + int32_t(cut.received_bytes);
    cut.sizes.room = shared_bytes - cut.fixed_bytes;
    cut.plan = plan_some_rows(c.n, c.k, multiprocessors, cluster, cut.sizes);
    return cut;
}

// Bytes of a block with two slots, the least that it runs with.
static constexpr int64_t some_rows_shared(const SomeRowsCase &c, int32_t multiprocessors,
                                          int32_t shared_bytes, int32_t x_rows) {
    const SomeRowsCut cut = cut_some_rows(c, multiprocessors, shared_bytes, x_rows);
    const SomeRowsStage stage = some_rows_stage(cut.plan.pairs, cut.plan.slices, x_rows, cut.sizes);
    return int64_t{cut.fixed_bytes} + 2 * int64_t{stage.bytes};
}

template <Codes codes, qk_format x>
struct SomeRows {
    static Status run(const LinearArgs &args, const Launch &launch);
};

// 17 to 24 rows of x.
template <Codes codes, qk_format x>
struct Rows24 {
    static Status run(const LinearArgs &args, const Launch &launch);
};

}  // namespace qk::cuda
