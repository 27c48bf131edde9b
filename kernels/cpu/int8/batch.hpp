// y = x . transpose(w) + bias in int8 mode for several rows of x. Lanes are rows of w, so that
// nothing is added across lanes, and codes (Isa::Strip) are decoded once for all rows of x.
//
//     a task: 32 (512) rows of w; for batches of 64 (512) rows of x, whose sums it keeps (8, 1024
//             KB, the latter in the workspace):
//         for every 4 chunks of 128 columns, every 32 rows of w
//             for every chunk (the 4): its codes as integers, [columns][32 rows]   4 or 8 KB
//                 for every 8 (64) rows of x: products, sums of a group in registers
//
// x is stored as a task reads it: chunk by chunk, each with the batch's tiles.
#pragma once
#include "cpu/int8/strip.hpp"

namespace qk::cpu {

typedef float Int8Sums[kTaskRows];  // of a row of x

// Instruction sets that read scales of groups that straddle rows for 32 rows of w at once; they
// have a loop for one row of x, too.
template <class Isa>
constexpr bool kInt8FlatScales = requires {
    typename Isa::FlatScales;
};
struct NoFlatScales {
    explicit NoFlatScales(const Weight &) {}
};
template <class Isa, bool reads = kInt8FlatScales<Isa>>
struct FlatScalesOf {
    using Type = NoFlatScales;
};
template <class Isa>
struct FlatScalesOf<Isa, true> {
    using Type = typename Isa::FlatScales;
};

template <class Isa>
class Int8Batch {
  public:
    // `sums`: room for those of a task, where they are in the workspace.
    Int8Batch(const LinearArgs &args, const Device &device, const typename Isa::XTile *x,
              Int8Sums *sums)
        : args_(args), s_(geometry_of_blocks(args.w.geometry)), x_(x), chunks_(chunk_count(s_)),
          groups_(groups_of_chunk(s_)), codes_(args.w), kernel_(args.w), scales_{{args.w, device},
                                                                                 {args.w, device},
                                                                                 {args.w, device},
                                                                                 {args.w, device}},
          flat_scales_(args.w), lowered_(has_minimum(args.w)),
          minima_(args.w, lowered_ ? args.w.minimum : args.w.scale, device),
          sums_(kSumsInWorkspace ? sums : own_) {
        memset(factors_, 0, sizeof(factors_));
        if (!lowered_) return;
        for (TileFactors &of : factors_) {
            for (int32_t &zero : of.zero) zero = Isa::Strip::kZeroOfMinima;
        }
    }

    // Strips of kTaskRows rows of w side by side, at most: where there are minima, half as many
    // take up as much of the second cache.
    int64_t most_strips() const { return lowered_ ? max64(1, kStrips / 2) : kStrips; }
    // With rows of x from `first` up to `end`, a batch after the other.
    void run(int64_t first_strip, int64_t strips, int64_t first, int64_t end) {
        strips_ = strips;
        for (; first < end; first += kBatch) {
            const int64_t rows = min64(kBatch, end - first);
            kept_ = round_up(rows, kRows);
            const typename Isa::XTile *x = x_ + first / kRows * chunks_;
            const int64_t sums = strips * kept_ * (lowered_ ? 2 : 1);
            memset(sums_, 0, sizeof(Int8Sums) * size_t(sums));
            for (int64_t chunk = 0; chunk < chunks_; chunk += kScaleChunks) {
                const int64_t last = min64(chunk + kScaleChunks, chunks_);
                for (int64_t strip = 0; strip < strips; ++strip) {
                    start(first_strip + strip);
                    run_panel(chunk, last, x, rows, strip);
                }
                x += (last - chunk) * ceil_div(rows, kRows);
            }
            store(first_strip, first, rows);
        }
    }

  private:
    // Rows of x side by side, and those whose sums a task keeps.
    static constexpr int64_t kRows = Isa::XTile::kRows, kBatch = Isa::XTile::kBatch;
    // Chunks decoded side by side, and the rows of x that all of them meet in turn.
    static constexpr int64_t kChunks = Isa::XTile::kChunks, kAtOnce = Isa::XTile::kAtOnce;
    static constexpr bool kSumsInWorkspace = Isa::XTile::kSumsInWorkspace;
    static constexpr int64_t kStrips = Isa::XTile::kStrips;
    static constexpr int64_t kTaskBlocks = kTaskRows / 8;

    void start(int64_t strip) {
        first_block_ = strip * kTaskBlocks;
        blocks_ = min64(kTaskBlocks, ceil_div(args_.w.geometry.n, 8) - first_block_);
    }
    // A strip's sums, and what minima take off them.
    Int8Sums *sums(int64_t strip) const { return sums_ + strip * kept_; }
    Int8Sums *low(int64_t strip) const { return sums(strips_ + strip); }

    void run_panel(int64_t first, int64_t last, const typename Isa::XTile *x, int64_t rows,
                   int64_t strip) {
        const int64_t first_group = load_scales(first, last), tiles = ceil_div(rows, kRows);
        if constexpr (kInt8FlatScales<Isa>) {
            if (rows == 1 && groups_ == 8) return run_one(first, last, x, first_group, strip);
        }
        for (int64_t chunk = first; chunk < last; chunk += kChunks) {
            const int64_t chunks = min64(kChunks, last - chunk);
            Groups groups[kChunks] = {};
            typename Isa::Strip::Chunk codes[kChunks] = {};
            for (int64_t i = 0; i < chunks; ++i) {
                codes_.load(first_block_, blocks_, chunk + i, codes[i]);
                const int64_t group = (chunk + i) * 128 / s_.group_size;
                groups[i] = {factors_ + group - first_group,
                             min64(groups_, s_.groups_per_row - group)};
                kernel_.decode(codes[i], groups[i].factors, i);
            }
            for (int64_t row = 0; row < rows; row += kAtOnce) {
                for (int64_t i = 0; i < chunks; ++i) {
                    if constexpr (kStrips > 1) fetch_codes(codes[i], row, rows);
                    add(x + i * tiles + row / kRows, min64(kAtOnce, rows - row), groups[i], i,
                        strip, row);
                }
            }
            x += chunks * tiles;
        }
        kernel_.finish();
    }

    // The same of one row of x, groups of 16 columns.
    void run_one(int64_t first, int64_t last, const typename Isa::XTile *x, int64_t first_group,
                 int64_t strip) {
        for (int64_t chunk = first; chunk < last; ++chunk, ++x) {
            typename Isa::Strip::Chunk codes;
            codes_.load(first_block_, blocks_, chunk, codes);
            const TileFactors *const factors = factors_ + chunk * 8 - first_group;
            const int64_t count = min64(8, s_.groups_per_row - chunk * 8);
            kernel_.add_one(codes, *x, factors, count, sums(strip)[0]);
            if (lowered_) lower(*x, 1, factors, count, low(strip));
        }
    }

    struct Groups {  // of a chunk
        const TileFactors *factors;
        int64_t count;
    };

    // Products of rows of x from `row` on with the chunk that the kernel has in `place`.
    QK_INLINE void add(const typename Isa::XTile *x, int64_t rows, const Groups &groups,
                       int64_t place, int64_t strip, int64_t row) {
        const auto [factors, count] = groups;
        kernel_.add(x, rows, factors, count, groups_, sums(strip) + row, place);
        for (int64_t j = 0; j < rows; j += kRows, ++x) {
            if constexpr (kStrips > 1) fetch(x + kScaleChunks * kept_ / kRows, strip);
            if (lowered_) lower(*x, min64(kRows, rows - j), factors, count, low(strip) + row + j);
        }
    }

    // What rows of x from `row` on fetch of the next panel's codes, to the second cache. All of
    // them at once, while codes are decoded, would hold these up.
    static void fetch_codes(const typename Isa::Strip::Chunk &codes, int64_t row, int64_t rows) {
        constexpr int64_t kLines = Isa::Strip::kLines;
        const int64_t lines = ceil_div(kLines, ceil_div(rows, kAtOnce));
        const int64_t first = row / kAtOnce * lines;
        for (int64_t i = first; i < min64(first + lines, kLines); ++i) {
            prefetch_stream(Isa::Strip::line_ahead(codes, i));
        }
    }

    // A strip's part of a tile of the next panel, to the second cache: x may be larger than that.
    void fetch(const typename Isa::XTile *x, int64_t strip) const {
        constexpr int64_t kBytes = sizeof(typename Isa::XTile);
        const int64_t bytes = ceil_div(kBytes / 64, strips_) * 64, end = (strip + 1) * bytes;
        const uint8_t *const from = reinterpret_cast<const uint8_t *>(x);
        for (int64_t i = end - bytes; i < min64(end, kBytes); i += 64) prefetch_stream(from + i);
    }

    // Minima times what a tile's integers come to.
    QK_NOINLINE static void lower(const typename Isa::XTile &x, int64_t rows,
                                  const TileFactors *factors, int64_t count, Int8Sums *low) {
        for (int64_t j = 0; j < rows; ++j) {
            auto first = Isa::load_f32(low[j]), second = Isa::load_f32(low[j] + 16);
            for (int64_t b = 0; b < count; ++b) {
                const auto by = Isa::splat(x.of_minima(b, j));
                first = Isa::fma(Isa::load_f32(factors[b].minimum), by, first);
                second = Isa::fma(Isa::load_f32(factors[b].minimum + 16), by, second);
            }
            Isa::store_f32(low[j], first);
            Isa::store_f32(low[j] + 16, second);
        }
    }

    // Of the chunks' groups; returns the first's number.
    int64_t load_scales(int64_t first, int64_t last) {
        const int64_t group = first * 128 / s_.group_size;
        const int64_t count = ceil_div(min64(last * 128, s_.k), s_.group_size) - group;
        if constexpr (kInt8FlatScales<Isa>) {
            if (args_.w.geometry.flat) {
                flat_scales_.load(scales_[0], first_block_ * 8, group, count, factors_);
                for (int64_t block = 0; block < blocks_; ++block)
                    load_zeros_and_minima(block, group, count);
                return group;
            }
        }
        for (int64_t block = 0; block < blocks_; ++block) {
            const char *const from = scales_[block].load(first_block_ + block, group, count);
            for (int64_t g = 0; g < count; ++g) {
                memcpy(factors_[g].scale + 8 * block, from + 32 * g, 32);
                prefetch(reinterpret_cast<const uint8_t *>(from + 32 * (g + count)));
            }
            load_zeros_and_minima(block, group, count);
        }
        return group;
    }

    // Of a block of 8 rows.
    void load_zeros_and_minima(int64_t block, int64_t group, int64_t count) {
        const uint8_t *const zeros = codes_.zeros(first_block_ + block, group, count);
        for (int64_t g = 0; g < count && zeros != nullptr; ++g) {
            const typename Isa::Sums8 eight = Isa::load_zeros8(zeros + 4 * g);
            memcpy(factors_[g].zero + 8 * block, &eight, sizeof(eight));
        }
        if (!lowered_) return;
        const char *const minima = minima_.load(first_block_ + block, group, count);
        for (int64_t g = 0; g < count; ++g) {
            memcpy(factors_[g].minimum + 8 * block, minima + 32 * g, 32);
            prefetch(reinterpret_cast<const uint8_t *>(minima + 32 * (g + count)));
        }
    }

    // Of all strips: a row of y at a time, as long runs take a fraction of the time of short ones.
    void store(int64_t first_strip, int64_t x_first, int64_t x_rows) {
        const int64_t first = first_strip * kTaskRows;
        const int64_t rows = min64(strips_ * kTaskRows, args_.w.geometry.n - first);
        float y[kStrips * kTaskRows];
        for (int64_t j = 0; j < x_rows; ++j) {
            fetch_y(x_first + min64(j + 2, x_rows - 1), first, rows);
            for (int64_t strip = 0; strip < strips_; ++strip) {
                float *const to = y + strip * kTaskRows;
                memcpy(to, sums(strip)[j], sizeof(Int8Sums));
                if (!lowered_) continue;
                for (int64_t row = 0; row < kTaskRows; ++row) to[row] -= low(strip)[j][row];
            }
            store_run(args_, x_first + j, first, rows, y);
        }
    }

    // Where a row of y will be stored: stores wait for lines that are not in a cache.
    void fetch_y(int64_t x_row, int64_t first, int64_t rows) const {
        const int64_t size = args_.y.format->bits / 8;
        const int64_t at = (x_row * row_stride(args_.y) + first) * size;
        prefetch_lines(args_.y.data, rows * size, at);
    }

    const LinearArgs &args_;
    const Geometry s_;
    const typename Isa::XTile *const x_;
    const int64_t chunks_, groups_;
    typename Isa::Strip codes_;
    typename Isa::TileKernel kernel_;
    ScalePanel<Isa> scales_[kTaskBlocks];
    [[no_unique_address]] typename FlatScalesOf<Isa>::Type flat_scales_;
    const bool lowered_;
    ScalePanel<Isa> minima_;  // the scales where there are none
    int64_t first_block_ = 0, blocks_ = 0;
    int64_t strips_ = 0, kept_ = 0;  // side by side; rows of sums that each has
    TileFactors factors_[kScaleChunks * 8];
    // Of each strip; then, where there are minima, what they take off each.
    Int8Sums *const sums_;
    alignas(64) Int8Sums own_[kSumsInWorkspace ? 1 : 2 * kBatch];
};

// Sums of a strip of w, that a task keeps for a batch.
template <class Isa>
int64_t int8_sums(const LinearArgs &args) {
    const int64_t rows = round_up(min64(args.x.rows, Isa::XTile::kBatch), Isa::XTile::kRows);
    return rows * (has_minimum(args.w) ? 2 : 1);
}

template <class Isa>
size_t int8_tiles_bytes(const LinearArgs &args, const Device &) {
    const Checked x = Checked(ceil_div(args.x.rows, Isa::XTile::kRows)) *
                      chunk_count(args.w.geometry) * int64_t(sizeof(typename Isa::XTile));
    const Checked sums = Checked(ceil_div(args.w.geometry.n, kTaskRows)) * int8_sums<Isa>(args) *
                         int64_t(sizeof(Int8Sums));
    const Checked total = (Isa::XTile::kSumsInWorkspace ? x + sums : x) + 64;
    return total.ok && uint64_t(total.value) <= SIZE_MAX ? size_t(total.value) : SIZE_MAX;
}

// Tile by tile, as their lines are far apart along a row of x. Rows that the last products read
// past the last row are that one again, and never stored; rows of a tile behind them stay unmade.
template <class Isa>
void quantize_tiles(const LinearArgs &args, const Launch &launch, typename Isa::XTile *to) {
    constexpr int64_t kRows = Isa::XTile::kRows, kTiles = Isa::XTile::kBatch / kRows;
    const int64_t chunks = chunk_count(args.w.geometry), tiles = ceil_div(args.x.rows, kRows);
    const int64_t blocks = groups_of_chunk(args.w.geometry);
    const float unit = 1.0f / int8_steps(*args.w.format);
    const typename Isa::TileRows rows(args.w);
    parallel_ranges(launch.parallel, tiles * chunks, 1, kRows * 128 * kQuantizing,
                    [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            const int64_t tile = i / chunks, chunk = i % chunks, of_batch = tile % kTiles;
            const int64_t batch = tile - of_batch, side_by_side = min64(kTiles, tiles - batch);
            typename Isa::XTile *const at = to + batch * chunks + chunk * side_by_side + of_batch;
            const int64_t left = Isa::XTile::rows_read(args.x.rows - tile * kRows);
            for (int64_t j = 0; j < min64(kRows, left); ++j) {
                float values[128];
                load_chunk<Isa>(args.x, min64(tile * kRows + j, args.x.rows - 1), chunk, values);
                rows.put(values, blocks, unit, j, at);
            }
        }
    });
}

template <class Isa>
Status run_int8_batch(const LinearArgs &args, const Launch &launch) {
    typename Isa::XTile *const x =
        reinterpret_cast<typename Isa::XTile *>(aligned_workspace(launch));
    const int64_t tiles = ceil_div(args.x.rows, Isa::XTile::kRows) * chunk_count(args.w.geometry);
    Int8Sums *const sums = reinterpret_cast<Int8Sums *>(x + tiles);
    quantize_tiles<Isa>(args, launch, x);
    const int64_t strips = ceil_div(args.w.geometry.n, kTaskRows);
    parallel_ranges(launch.parallel, strips, 1, kTaskRows * work_of_row(args),
                    [&](int64_t first, int64_t last) {
        [[maybe_unused]] const typename Isa::Session session;
        Int8Sums *const own = sums + first * int8_sums<Isa>(args);
        InScratch<Int8Batch<Isa>> batch(launch.scratch, args, launch.device, x, own);
        for (int64_t row = 0, end; row < args.x.rows; row = end) {
            end = row + min64(Isa::XTile::kKept, args.x.rows - row);
            const int64_t most = batch->most_strips();
            for (int64_t strip = first; strip < last; strip += most) {
                batch->run(strip, min64(most, last - strip), row, end);
            }
        }
    });
    return QK_OK;
}

}  // namespace qk::cpu
