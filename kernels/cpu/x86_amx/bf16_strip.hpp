// y = x . transpose(w) + bias for batches in bf16 mode by AMX: x and weights rounded to bf16, 16
// rows of w times 16 rows of x an instruction.
//
//     workspace: x as bf16, once for all tasks                        [256 columns][32 rows of x]
//                sums of a batch of up to 512 rows of x              [32 rows of x][32 rows of w]
//     a task: up to 256 rows of w at a time, for batches of rows of x:
//         for panels of 256 columns, for 32 rows of w: their weights                        16 KB
//             for every 32 rows of x: 8 steps of 32 columns, 2 x 2 tiles of sums,
//                                     added to the batch's
//
// The first cache keeps the weights. The second one keeps a panel of x (256 KB) and the sums (512
// KB), so that x of a batch, which may be larger, comes from the third once for 256 rows of w.
//
// A tile of x has two columns of a row side by side.
//
// A group's scale goes into a table of its entries, so that 32 codes of a row become weights by one
// permute. Word 2 j + h of a chunk holds the nibbles of columns 16 (s + 4 h) + j, s = 0..3: step s
// has these columns, in this sequence, which is that of a tile's row. The pair j of a step is
// columns 16 s + j and 64 + 16 s + j.
//
// A number of y is, for every step, a chain of products of the first columns of pairs and one of
// the second ones, which are added, and then to the panel's sum; then a sum of panels.
#pragma once
#include "cpu/int8/x.hpp"
#include "cpu/kernels.hpp"
#include "cpu/shared/row_blocks.hpp"
#include "cpu/x86_amx/tiles.hpp"
#include "cpu/x86_avx512/bf16_factors.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kBf16Panel = 256, kBf16Step = 32, kBf16Rows = 32;

// Tiles are loaded and stored as contiguous blocks: loads of rows 128 bytes apart take longer.
typedef uint32_t Bf16Pairs[kBf16Step / 2][16];  // [pair of columns][row of x]

// A panel of 32 rows of x. What is past the last column or row is 0.
struct Bf16XTile {
    alignas(64) Bf16Pairs x[kBf16Panel / kBf16Step][2];  // [step][tile]
};

// Sums of 32 rows of x and of w.
struct Bf16Sums {
    alignas(64) float of[2][2][16][16];  // [tile of x][of w][row of w][of x]
};

// Weights of 32 rows of w, a panel at a time.
class Bf16Weights {
  public:
    Bf16Weights(const Weight &w, const Device &device)
        : s_(geometry_of_blocks(w.geometry)), groups_(groups_of_chunk(s_)), codes_(w),
          scales_(w, device) {
        for (int zero = 0; zero < 16; ++zero) {
            entries_of(w, w.zero != nullptr ? zero : common_zero(w), entries_[zero]);
        }
        memset(weights_, 0, sizeof(weights_));
    }

    // Rows from `row` on, columns from `column` up to `end`.
    void decode(int64_t row, int64_t column, int64_t end) {
        const int64_t blocks = min64(kBf16Rows, s_.n - row + 7) / 8;
        for (int64_t b = 0; b < blocks; ++b) {
            switch (groups_) {
                case 8: decode_block<8>(row / 8 + b, column, end, b); break;
                case 4: decode_block<4>(row / 8 + b, column, end, b); break;
                case 2: decode_block<2>(row / 8 + b, column, end, b); break;
                default: decode_block<1>(row / 8 + b, column, end, b);
            }
        }
    }
    const uint16_t *of_step(int64_t step) const { return weights_[step][0]; }

  private:
    // What a block's groups have, from a chunk's first on; past the last one there is nothing.
    struct Groups {
        const float *scale;   // [group][row]
        const uint8_t *zero;  // 4 bytes a group; null: none
        int64_t count;
    };

    template <int kGroups>
    QK_NOINLINE void decode_block(int64_t block, int64_t column, int64_t end, int64_t place) {
        const int64_t first = column / s_.group_size;
        const int64_t count = ceil_div(end, s_.group_size) - first, chunk = column / 128;
        const uint8_t *codes = codes_.load(block, chunk, ceil_div(end, 128));
        const char *const scales = scales_.load(block, first, count);
        const uint8_t *const zeros = codes_.zeros(block, first, count);
        for (int64_t i = 0; i < kBf16Panel / 128 && column < end; ++i, column += 128) {
            const int64_t at = column / s_.group_size - first;
            const Groups groups = {reinterpret_cast<const float *>(scales) + 8 * at,
                                   zeros == nullptr ? zeros : zeros + 4 * at, count - at};
            decode_chunk<kGroups>(codes + 512 * i, groups, min64(128, end - column),
                                  weights_[4 * i][8 * place]);
        }
    }

    // `to`: a row of the chunk's first step.
    template <int kGroups>
    QK_INLINE void decode_chunk(const uint8_t *codes, const Groups &groups, int64_t columns,
                                uint16_t *to) const {
        constexpr int kParts = kGroups == 1 ? 1 : kGroups / 2;  // steps with the same groups
        __mmask32 there[4];
        for (int s = 0; s < 4; ++s) there[s] = columns_of_step(s, columns);
        // An index has 5 bits: where halves of a chunk have two groups, the upper one is a half's.
        const __m512i nibble = _mm512_set1_epi16(15), second = _mm512_set1_epi32(0x100000);
        for (int row = 0; row < 8; ++row, to += kBf16Step) {
            prefetch(codes + 64 * row + kBf16Panel * 4);
            const __m512i words = _mm512_loadu_si512(codes + 64 * row);
            __m512i table[kParts];
            QK_UNROLL
            for (int p = 0; p < kParts; ++p) {
                const __m512 low = scaled(groups, p, row);
                const __m512 high = kGroups == 1 ? low : scaled(groups, p + kParts, row);
                table[p] = __m512i(_mm512_cvtne2ps_pbh(high, low));
            }
            QK_UNROLL
            for (int s = 0; s < 4; ++s) {
                __m512i index = s == 0 ? words : _mm512_srli_epi16(words, uint32_t(4 * s));
                if (kGroups > 1) index = _mm512_ternarylogic_epi32(index, nibble, second, 0xea);
                _mm512_store_si512(
                    to + s * kBf16Rows * kBf16Step,
                    _mm512_maskz_permutexvar_epi16(there[s], index, table[s * kParts / 4]));
            }
        }
    }
    // Lanes 2 j + h of step s that are columns.
    static __mmask32 columns_of_step(int64_t s, int64_t columns) {
        uint32_t mask = 0;
        for (int64_t h = 0; h < 2; ++h) {
            const int64_t some = min64(16, columns - 16 * (s + 4 * h));
            if (some > 0) mask |= (0x55555555u << h) & uint32_t((uint64_t{1} << 2 * some) - 1);
        }
        return mask;
    }
    QK_INLINE __m512 scaled(const Groups &groups, int64_t group, int64_t row) const {
        if (group >= groups.count) return _mm512_setzero_ps();
        const int zero =
            groups.zero == nullptr ? 0 : groups.zero[4 * group + row / 2] >> row % 2 * 4 & 15;
        return _mm512_mul_ps(_mm512_load_ps(entries_[zero]),
                             _mm512_set1_ps(groups.scale[8 * group + row]));
    }

    const Geometry s_;
    const int64_t groups_;  // of a chunk
    CodesOfBlocks<Avx512> codes_;
    ScalePanel<Avx512> scales_;
    alignas(64) float entries_[16][16];  // by zero
    alignas(64) uint16_t weights_[kBf16Panel / kBf16Step][kBf16Rows][kBf16Step];
};

// Rows of x whose sums a strip keeps: as many in each batch, whole tiles.
constexpr int64_t kBf16Batch = 512;
inline int64_t bf16_batch(int64_t rows) {
    return round_up(ceil_div(rows, ceil_div(rows, kBf16Batch)), kBf16Rows);
}
// Sums of a row of w.
inline int64_t bf16_sums(const LinearArgs &args) {
    return round_up(min64(args.x.rows, kBf16Batch), kBf16Rows);
}

// `Tiles`: AmxTiles, or a stand-in of a test.
template <class Tiles>
class Bf16Strip {
  public:
    using Session = typename Tiles::Session;
    static constexpr int64_t kStrip = 256, kRows = kBf16Rows;  // rows of w; the tiles'

    // `totals`: room for kStrip rows of w and a batch of x.
    Bf16Strip(const LinearArgs &args, const Device &device, const Bf16XTile *x, Bf16Sums *totals)
        : args_(args), x_(x), x_tiles_(ceil_div(args.x.rows, kRows)), totals_(totals),
          weights_(args.w, device) {}

    // At most kStrip rows of w and a batch of x.
    void run(int64_t first, int64_t rows, int64_t x_first, int64_t x_rows) {
        const int64_t k = args_.w.geometry.k;
        parts_ = ceil_div(rows, kRows);
        memset(totals_, 0, sizeof(Bf16Sums) * size_t(parts_ * ceil_div(x_rows, kRows)));
        for (int64_t column = 0; column < k; column += kBf16Panel) {
            const int64_t end = min64(column + kBf16Panel, k);
            const Bf16XTile *const x = x_ + column / kBf16Panel * x_tiles_ + x_first / kRows;
            const int64_t steps = min64(ceil_div(end - column, 128) * 4, kBf16Panel / kBf16Step);
            for (int64_t part = 0; part < parts_; ++part) {
                const int64_t row = part * kRows;
                weights_.decode(first + row, column, end);
                for (int64_t j = 0; j < x_rows; j += kRows) {
                    const Bf16XTile &tile = x[j / kRows];
                    add(tile, x_rows - j, steps, ahead(&tile, part, end), totals(row, j));
                }
            }
        }
        finish();
        for (int64_t j = 0; j < x_rows; j += 16) {
            for (int64_t row = 0; row < rows; row += kStored) {
                store(first, row, min64(kStored, rows - row), x_first, j, min64(16, x_rows - j));
            }
        }
    }

  private:
    static constexpr int64_t kStored = 128;  // rows of w whose sums become rows of y at once

    Bf16Sums *totals(int64_t row, int64_t x_row) const {
        return totals_ + x_row / kRows * parts_ + row / kRows;
    }

    // x of the next panel, of which each of a panel's parts fetches some to the second cache.
    struct Ahead {
        const uint8_t *from;
        int64_t lines;  // a step
    };

    Ahead ahead(const Bf16XTile *x, int64_t part, int64_t end) const {
        constexpr int64_t kSteps = kBf16Panel / kBf16Step, kLines = sizeof(Bf16XTile) / 64;
        const uint8_t *const next = reinterpret_cast<const uint8_t *>(x + x_tiles_);
        const int64_t lines = ceil_div(kLines / kSteps, parts_), first = part * lines * kSteps;
        return {next + first * 64, end < args_.w.geometry.k && first < kLines ? lines : 0};
    }

    // While these products run, the sums of the tiles before leave and are added up.
    void add(const Bf16XTile &x, int64_t rows, int64_t steps, Ahead ahead, Bf16Sums *totals) {
        const bool two = rows > kTileRows16;
        two ? multiply<2>(x, steps, ahead) : multiply<1>(x, steps, ahead);
        waiting_ = {reinterpret_cast<float *>(totals), two ? 2 * kRows : kRows};
    }

    template <int kTiles>
    QK_INLINE void multiply(const Bf16XTile &x, int64_t steps, Ahead ahead) {
        // A store that is issued before its sums are there holds up what comes after it.
        const auto start = [&]<int sum, int w, int x_tile>() QK_INLINE {
            store_sums<sum>();
            tiles_.template zero<sum>();
            tiles_.template add_bf16_products<sum, w, x_tile>();
        };
        const auto add = [&]<int sum, int w, int x_tile>()
                             QK_INLINE { tiles_.template add_bf16_products<sum, w, x_tile>(); };
        const Waiting waiting = waiting_;  // a member would be read again for each step
        if (kTiles == 1) store_sums<1>(), store_sums<3>();
        multiply_step<kTiles, 0>(x, 0, &ahead, start);
        add_some(waiting, 0);
        multiply_step<kTiles, 1>(x, 1, &ahead, add);
        add_some(waiting, 1);
        for (int64_t step = 2; step < steps; step += 2) {
            multiply_step<kTiles, 0>(x, step, &ahead, add);
            add_some(waiting, step);
            multiply_step<kTiles, 1>(x, step + 1, &ahead, add);
            add_some(waiting, step + 1);
        }
        for (int64_t step = steps; step < kBf16Panel / kBf16Step; ++step) add_some(waiting, step);
    }
    template <int kTiles, int odd, class Add>
    QK_INLINE void multiply_step(const Bf16XTile &x, int64_t step, Ahead *ahead, const Add &add) {
        for (int64_t i = 0; i < ahead->lines; ++i) prefetch_stream(ahead->from + 64 * i);
        ahead->from += 64 * ahead->lines;
        multiply_pairs<kTiles, odd>(tiles_, {weights_.of_step(step), 64, kTileRows16 * 64},
                                    {x.x[step], 64, kTileRows16 * 64}, add);
    }
    // Sum 2 i + j: of tile i of w and j of x.
    template <int sum>
    QK_INLINE void store_sums() {
        tiles_.template store<sum>(sums_.of[sum % 2][sum / 2], 64);
    }

    void finish() {
        store_sums<0>(), store_sums<1>(), store_sums<2>(), store_sums<3>();
        for (int64_t step = 0; step < kBf16Panel / kBf16Step; ++step) add_some(waiting_, step);
        waiting_.rows = 0;
    }
    // What the sums stored last are added to, and how many rows they are.
    struct Waiting {
        float *to;
        int64_t rows;
    };
    QK_INLINE void add_some(const Waiting &waiting, int64_t step) const {
        constexpr int64_t kSome = 4 * kTileRows16 / (kBf16Panel / kBf16Step);
        if (step * kSome >= waiting.rows) return;
        const float *const from = reinterpret_cast<const float *>(&sums_) + step * kSome * 16;
        float *const to = waiting.to + step * kSome * 16;
        QK_UNROLL
        for (int64_t i = 0; i < kSome * 16; i += 16) {
            _mm512_store_ps(to + i,
                            _mm512_add_ps(_mm512_load_ps(to + i), _mm512_load_ps(from + i)));
        }
    }

    // Up to 16 rows of y from row `j` of the batch on, kStored of w from `row` of the strip on.
    QK_NOINLINE void store(int64_t first, int64_t row, int64_t rows, int64_t x_first, int64_t j,
                           int64_t x_rows) const {
        alignas(64) float y[16][kStored];
        for (int64_t i = 0; i < rows; i += 16) {
            Avx512::transpose_block(totals(row + i, j)->of[j / 16 % 2][(row + i) / 16 % 2], 64,
                                    &y[0][i], kStored * 4);
        }
        for (int64_t i = 0; i < x_rows; ++i) {
            store_run(args_, x_first + j + i, first + row, rows, y[i]);
        }
    }

    const LinearArgs &args_;
    const Bf16XTile *const x_;
    const int64_t x_tiles_;  // of a panel
    Bf16Sums *const totals_;
    int64_t parts_ = 0;  // of a strip
    Tiles tiles_;
    Bf16Weights weights_;
    Waiting waiting_ = {};
    Bf16Sums sums_ = {};
};

inline int64_t bf16_x_tiles(const LinearArgs &args) {
    return ceil_div(args.x.rows, kBf16Rows) * ceil_div(args.w.geometry.k, kBf16Panel);
}

inline size_t bf16_tiles_bytes(const LinearArgs &args, const Device &) {
    const Checked x = Checked(ceil_div(args.x.rows, kBf16Rows)) *
                      ceil_div(args.w.geometry.k, kBf16Panel) * int64_t(sizeof(Bf16XTile));
    const Checked sums = Checked(ceil_div(args.w.geometry.n, kBf16Rows)) * kBf16Rows *
                         bf16_sums(args) * int64_t(sizeof(float));
    const Checked total = x + sums + 64;
    return total.ok && uint64_t(total.value) <= SIZE_MAX ? size_t(total.value) : SIZE_MAX;
}

// 128 columns of 16 rows of x, pairs of columns as steps have them: to every other tile.
QK_NOINLINE inline void round_x(const Dense &x, int64_t row, int64_t column, Bf16Pairs *to) {
    alignas(64) uint16_t alternate[32], halves[128];
    alignas(64) uint32_t pairs[4][16][16] = {};
    for (int i = 0; i < 32; ++i) alternate[i] = uint16_t(i / 2 + i % 2 * 16);
    const __m512i order = _mm512_load_si512(alternate);
    const int64_t columns = min64(128, x.columns - column), rows = min64(16, x.rows - row);
    memset(halves, 0, sizeof(halves));
    for (int64_t i = 0; i < rows && columns > 0; ++i) {
        Bf16Factors::load_x(x, (row + i) * row_stride(x) + column, columns,
                            reinterpret_cast<uint32_t *>(halves));
        for (int s = 0; s < 4; ++s) {
            const __m256i *const low = reinterpret_cast<const __m256i *>(halves + 16 * s);
            const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_load_si256(low)),
                                                    _mm256_load_si256(low + 4), 1);
            _mm512_store_si512(pairs[s][i], _mm512_permutexvar_epi16(order, both));
        }
    }
    for (int s = 0; s < 4; ++s) Avx512::transpose_block(pairs[s], 64, to[2 * s], 64);
}

// Every row of x as bf16.
inline void round_tiles(const LinearArgs &args, const Launch &launch, Bf16XTile *to) {
    const int64_t columns = round_up(args.w.geometry.k, kBf16Panel);
    const int64_t tiles = ceil_div(args.x.rows, kBf16Rows);
    parallel_ranges(launch.parallel, tiles * 2, 1, 16 * columns * kQuantizing,
                    [&](int64_t first, int64_t last) {
        for (int64_t half = first; half < last; ++half) {
            for (int64_t column = 0; column < columns; column += 128) {
                Bf16XTile &tile = to[column / kBf16Panel * tiles + half / 2];
                const int64_t step = column % kBf16Panel / kBf16Step;
                round_x(args.x, half * 16, column, tile.x[step] + half % 2);
            }
        }
    });
}

template <class Tiles>
Status run_bf16_strips(const LinearArgs &args, const Launch &launch) {
    using Strip = Bf16Strip<Tiles>;
    Bf16XTile *const x = reinterpret_cast<Bf16XTile *>(aligned_workspace(launch));
    Bf16Sums *const totals = reinterpret_cast<Bf16Sums *>(x + bf16_x_tiles(args));
    round_tiles(args, launch, x);
    const int64_t n = args.w.geometry.n, batch = bf16_batch(args.x.rows);
    parallel_ranges(launch.parallel, n, Strip::kRows, work_of_row(args),
                    [&](int64_t first, int64_t last) {
        [[maybe_unused]] const typename Strip::Session session;
        InScratch<Strip> strip(launch.scratch, args, launch.device, x,
                               totals + first / kBf16Rows * (bf16_sums(args) / kBf16Rows));
        for (int64_t m = 0; m < args.x.rows; m += batch) {
            for (int64_t row = first; row < min64(last, n); row += Strip::kStrip) {
                const int64_t rows = min64(Strip::kStrip, min64(last, n) - row);
                strip->run(row, rows, m, min64(batch, args.x.rows - m));
            }
        }
    });
    return QK_OK;
}

}  // namespace
}  // namespace qk::cpu
