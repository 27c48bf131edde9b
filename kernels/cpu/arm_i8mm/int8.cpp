// int8 mode on Arm with I8MM, two rows of x and more: SMMLA multiplies two rows of w by two of x, 8
// columns at a time, so that codes are decoded once for 8 rows of x and a product costs half an
// instruction of SDOT's. Groups of 64 and wider; dotprod takes the rest, and single rows.
#include "cpu/arm_neon/int8_dots.hpp"
#include "cpu/kernels.hpp"
#include "cpu/linear/select.hpp"

#include "cpu/int8/x.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kPairs = 4;  // of rows of x, in a tile

// 128 columns of a tile's rows of x. The 16 bytes of a pair are 8 columns of either row: for the
// first and the second half (8 bytes) of a quarter of the codes' low and high nibbles.
struct XTile {
    int8_t x[4][2][2][kPairs][16];  // [quarter][low, high][half][pair]
    float scale[2][2 * kPairs];     // [block][row]
    int32_t sum[2][2 * kPairs];
};

void put_row(const NeonInt8::XChunk &from, int64_t row, XTile *to) {
    for (int quarter = 0; quarter < 4; ++quarter) {
        for (int half = 0; half < 2; ++half) {
            const int at = 16 * quarter + 8 * half;
            memcpy(to->x[quarter][0][half][row / 2] + row % 2 * 8, from.low + at, 8);
            memcpy(to->x[quarter][1][half][row / 2] + row % 2 * 8, from.high + at, 8);
        }
    }
    for (int b = 0; b < 2; ++b) {
        to->scale[b][row] = from.scale[b];
        to->sum[b][row] = from.sum[b];
    }
}

size_t workspace_bytes(const LinearArgs &args, const Device &) {
    return chunk_workspace(args.w.geometry, ceil_div(args.x.rows, 2 * kPairs), sizeof(XTile));
}

// Rows that fill the last tile are read as the last row, and never stored.
const XTile *quantize_tiles(const LinearArgs &args, const Launch &launch) {
    constexpr int64_t kRows = 2 * kPairs;
    XTile *const tiles = reinterpret_cast<XTile *>(aligned_workspace(launch));
    const int64_t chunks = chunk_count(args.w.geometry);
    const int64_t blocks = groups_of_chunk(args.w.geometry);
    const float unit = 1.0f / int8_steps(*args.w.format);
    parallel_ranges(launch.parallel, round_up(args.x.rows, kRows), 1, args.x.columns * kQuantizing,
                    [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            XTile *const to = tiles + row / kRows * chunks;
            for_each_chunk<NeonInt8>(args.x, min64(row, args.x.rows - 1),
                                     [&](int64_t at, const float *x) {
                NeonInt8::XChunk chunk = {};
                NeonInt8::quantize_chunk(x, blocks, unit, &chunk);
                put_row(chunk, row % kRows, to + at);
            });
        }
    });
    return tiles;
}

template <int kBlocks, bool table>
class TileDots {
  public:
    explicit TileDots(const Int8Entries &entries) : table_(vld1q_s8(entries.value)) {}

    // to[block][row of x]
    void run(const uint8_t *codes, const XTile &x,
             NeonInt8::Sums8 (&to)[kBlocks][2 * kPairs]) const {
        int32x4_t sum[4][kBlocks][kPairs];  // [pair of rows of w]: [r x0, r x1, (r + 1) x0, ...]
        for (int q = 0; q < 4; ++q) {
            for (int b = 0; b < kBlocks; ++b) {
                for (int64_t p = 0; p < kPairs; ++p) sum[q][b][p] = vdupq_n_s32(0);
            }
            __builtin_prefetch(codes + 128 * q + 8192, 0, 3);
            __builtin_prefetch(codes + 128 * q + 8256, 0, 3);
            for (int quarter = 0; quarter < 4; ++quarter) {
                uint8x16_t a = vld1q_u8(codes + 128 * q + 16 * quarter);
                uint8x16_t b = vld1q_u8(codes + 128 * q + 64 + 16 * quarter);
                if (kBlocks > 1) a = NeonInt8::transpose_bytes(a), b = NeonInt8::transpose_bytes(b);
                const uint8x16_t mask = vdupq_n_u8(15);
                add(NeonInt8::entry<table>(table_, vandq_u8(a, mask)),
                    NeonInt8::entry<table>(table_, vandq_u8(b, mask)), x.x[quarter][0], sum[q]);
                add(NeonInt8::entry<table>(table_, vshrq_n_u8(a, 4)),
                    NeonInt8::entry<table>(table_, vshrq_n_u8(b, 4)), x.x[quarter][1], sum[q]);
            }
        }
        for (int b = 0; b < kBlocks; ++b) {
            for (int64_t p = 0; p < kPairs; ++p) {
                const int32x4_t s0 = sum[0][b][p], s1 = sum[1][b][p];
                const int32x4_t s2 = sum[2][b][p], s3 = sum[3][b][p];
                to[b][2 * p] = {{vuzp1q_s32(s0, s1), vuzp1q_s32(s2, s3)}};
                to[b][2 * p + 1] = {{vuzp2q_s32(s0, s1), vuzp2q_s32(s2, s3)}};
            }
        }
    }

  private:
    // 16 bytes of two rows, which halves make 8 columns of both; halves are blocks where a chunk
    // has two.
    QK_INLINE static void add(int8x16_t a, int8x16_t b, const int8_t (&x)[2][kPairs][16],
                              int32x4_t (&sum)[kBlocks][kPairs]) {
        const int64x2_t wide_a = vreinterpretq_s64_s8(a), wide_b = vreinterpretq_s64_s8(b);
        const int8x16_t first = vreinterpretq_s8_s64(vtrn1q_s64(wide_a, wide_b));
        const int8x16_t second = vreinterpretq_s8_s64(vtrn2q_s64(wide_a, wide_b));
        for (int64_t p = 0; p < kPairs; ++p) {
            sum[0][p] = vmmlaq_s32(sum[0][p], first, vld1q_s8(x[0][p]));
            int32x4_t &other = sum[kBlocks - 1][p];
            other = vmmlaq_s32(other, second, vld1q_s8(x[1][p]));
        }
    }

    int8x16_t table_;
};

template <int kBlocks, bool table>
class Tiles {
  public:
    Tiles(const LinearArgs &args, const Device &device, const XTile *x)
        : args_(args), chunks_(chunk_count(args.w.geometry)), x_(x), scales_(args.w, device),
          dots_(Int8Entries(args.w)) {}

    void run(int64_t row_block) {
        for (int64_t first = 0; first < args_.x.rows; first += 2 * kPairs) {
            const XTile *const x = x_ + first / (2 * kPairs) * chunks_;
            for (NeonInt8::Floats8 &acc : acc_) acc = NeonInt8::zero_floats8();
            for (int64_t chunk = 0; chunk < chunks_; chunk += kPanelChunks) {
                run_panel(row_block, x, chunk, min64(chunk + kPanelChunks, chunks_));
            }
            store(row_block, first);
        }
    }

  private:
    void run_panel(int64_t row_block, const XTile *x, int64_t first, int64_t last) {
        const Geometry &s = args_.w.geometry;
        const auto [group, groups] = groups_of_run<kBlocks>(s, first, last);
        const char *const scales = scales_.load(row_block, group, groups);
        const uint8_t *const zeros = packed_zeros(args_.w, row_block, group);
        const uint8_t *codes = packed_chunk(args_.w, row_block * chunks_ + first);
        int64_t at = 0, next = (group + 1) * s.group_size;
        for (int64_t i = first; i < last; ++i, codes += 512) {
            if (kBlocks == 1 && i * 128 >= next) ++at, next += s.group_size;
            NeonInt8::Sums8 dots[kBlocks][2 * kPairs];
            dots_.run(codes, x[i], dots);
            for (int b = 0; b < kBlocks && at + b < groups; ++b) {
                const NeonInt8::Sums8 zero = zeros == nullptr
                                                 ? NeonInt8::splat_sums8(8)
                                                 : NeonInt8::load_zeros8(zeros + (at + b) * 4);
                const NeonInt8::Floats8 scale = NeonInt8::load_floats8(scales + (at + b) * 32);
                for (int64_t j = 0; j < 2 * kPairs; ++j) {
                    const NeonInt8::Sums8 sums =
                        table ? dots[b][j] : NeonInt8::take_zeros(dots[b][j], zero, x[i].sum[b][j]);
                    acc_[j] = NeonInt8::fold8(sums, x[i].scale[b][j], scale, acc_[j]);
                }
            }
            if (kBlocks > 1) at += kBlocks;
        }
    }

    void store(int64_t row_block, int64_t x_first) const {
        for (int64_t j = 0; j < min64(2 * kPairs, args_.x.rows - x_first); ++j) {
            float y[8];
            NeonInt8::store_floats8(y, acc_[j]);
            store_8(args_, x_first + j, row_block, y);
        }
    }

    const LinearArgs &args_;
    const int64_t chunks_;
    const XTile *x_;
    ScalePanel<NeonInt8> scales_;
    TileDots<kBlocks, table> dots_;
    NeonInt8::Floats8 acc_[2 * kPairs];
};

template <int kBlocks, bool table>
QK_NOINLINE void run_tiles(const LinearArgs &args, const Launch &launch) {
    const XTile *const x = quantize_tiles(args, launch);
    const int64_t blocks = ceil_div(args.w.geometry.n, 8);
    parallel_ranges(launch.parallel, blocks, 1, 8 * work_of_row(args),
                    [&](int64_t first, int64_t last) {
        Tiles<kBlocks, table> tiles(args, launch.device, x);
        for (int64_t block = first; block < last; ++block) tiles.run(block);
    });
}

Status run(const LinearArgs &args, const Launch &launch) {
    const bool table = args.w.format->kind == FormatKind::kLut4;
    if (groups_of_chunk(args.w.geometry) == 2) {
        table ? run_tiles<2, true>(args, launch) : run_tiles<2, false>(args, launch);
    } else {
        table ? run_tiles<1, true>(args, launch) : run_tiles<1, false>(args, launch);
    }
    return QK_OK;
}

}  // namespace

const Kernel<LinearArgs> kLinearInt8I8mm = linear_kernel<row_of("i8mm int8")>(run, workspace_bytes);

}  // namespace qk::cpu
