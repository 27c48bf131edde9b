// Rows of x as integers over packed codes that are integers, in groups of 16, 32 or 64
// (docs/formats.md, "Order of sums"): a lane has eight columns of one group. How a block's integers
// are multiplied is an instruction set's:
//
//     Products(weight), Products::Sums, of 8 rows; Products::X, a block of x;
//     add(codes, x, scales, zeros, sums)    of 8 rows; scales f32 [group][row], zeros [group][4]
//     to_rows(sums, rows)                   rows[8][16]: the lanes of each
//
// What they share is that nothing transposes nibbles. Words 4 q to 4 q + 3 of a row are its piece
// q, 16 bytes; byte b of its words side by side is one byte shuffle, and then
//
//     dword b, low nibbles     columns 32 b + 4 q      to 32 b + 4 q + 3
//     dword b, high nibbles    columns 32 b + 16 + 4 q ...
//
// so that pieces 0 and 1 have the columns of lanes 0 to 7, even lanes in the low nibbles and odd
// ones in the high, and pieces 2 and 3 those of lanes 8 to 15.
//
// Rows of nibbles as they are stored, the low one first, need no shuffle either: a dword has the
// eight columns of a lane, even ones in the low nibbles. Products that multiply them so say
// kAsStored, and have add_stored(codes, pitch, x, scales, zeros, sums) for rows `pitch` bytes
// apart.
#pragma once
#include "cpu/linear/gemv_flat.hpp"
#include "cpu/linear/gemv_flat_tables.hpp"

namespace qk::cpu {
namespace {

enum class CodeKind { kZeros, kSymmetric, kTable };  // symmetric: one zero of all groups

inline CodeKind code_kind(const Weight &w) {
    if (w.format->kind == FormatKind::kLut4) return CodeKind::kTable;
    return w.zero != nullptr ? CodeKind::kZeros : CodeKind::kSymmetric;
}

// A block of x as three signed bytes a number, where byte shuffles leave the codes, or where they
// are `stored`. Lanes come as even ones of the first eight, odd ones, even ones of the last eight,
// odd ones, four of each; or in the order of their columns.
template <bool stored>
struct PiecesOfX {
    alignas(64) int8_t low[3][4][16], high[3][4][16];  // [byte][piece], for low and high nibbles
    alignas(16) int32_t sum[4][4];                     // of a lane: [part][place]
    float unit;

    void place(const int32_t *__restrict q) {
        alignas(64) int8_t bytes[3][kBlock];
        for (int64_t column = 0; column < kBlock; ++column) {
            int32_t rest = q[column];
            for (int i = 0; i < 3; ++i) {  // signed bytes, from the lowest
                bytes[i][column] = int8_t(rest);
                rest = (rest - bytes[i][column]) >> 8;
            }
        }
        for (int i = 0; i < 3; ++i) {
            for (int piece = 0; piece < 4; ++piece) {
                for (int j = 0; stored && j < 16; ++j) {
                    low[i][piece][j] = bytes[i][32 * piece + 2 * j];
                    high[i][piece][j] = bytes[i][32 * piece + 2 * j + 1];
                }
                for (int b = 0; !stored && b < 4; ++b) {
                    const int8_t *const from = bytes[i] + 32 * b + 4 * piece;
                    memcpy(low[i][piece] + 4 * b, from, 4);
                    memcpy(high[i][piece] + 4 * b, from + 16, 4);
                }
            }
        }
        for (int64_t lane = 0; lane < 16; ++lane) {
            int32_t all = 0;
            for (int64_t i = 0; i < 8; ++i) all += q[eight_of_lane(lane) + i];
            sum[part_of_lane(lane)][place_of_lane(lane)] = all;
        }
    }
    static constexpr int64_t part_of_lane(int64_t lane) {
        return stored ? eight_of_lane(lane) / 32 : lane / 8 * 2 + lane % 2;
    }
    static constexpr int64_t place_of_lane(int64_t lane) {
        return stored ? eight_of_lane(lane) / 8 % 4 : lane % 8 / 2;
    }
};
using XPieces = PiecesOfX<false>;

// The groups of lanes 0 to 7, which are those of lanes 8 to 15 too.
struct GroupsOfLanes {
    int64_t count;     // that a block has
    int64_t group[8];  // of a lane

    explicit GroupsOfLanes(const Geometry &s) : count(kBlock / s.group_size) {
        for (int64_t lane = 0; lane < 8; ++lane) group[lane] = lane * count / 8;
    }
    bool odd_differ() const { return count == 8; }  // from the even ones before them
};

template <class Isa, class Products>
class RowsOfGroups {
  public:
    static constexpr int64_t kTogether = kRowsTogether<typename Products::X>;  // rows of x

    RowsOfGroups(const LinearArgs &args, const Device &device)
        : args_(args), x_(args.x), scales_(args.w, device), minima_(args, device),
          products_(args.w), blocks_(args.w), chunks_(chunk_count(args.w.geometry)),
          groups_(kBlock / args.w.geometry.group_size) {}

    void run(int64_t row_block) {
        typename Products::Sums sums[kTogether] = {};
        const int64_t most = kStored ? kPanelGroups / groups_ : kPanelChunks;
        for (int64_t chunk = 0; chunk < chunks_; chunk += most) {
            add_panel(row_block, chunk, min64(chunk + most, chunks_), sums);
        }
        for (int64_t j = 0; j < args_.x.rows; ++j) {
            alignas(64) float rows[8][16];
            Products::to_rows(sums[j], rows);
            Sums<Isa> lanes;
            for (int row = 0; row < 8; ++row) lanes.row[row] = Isa::load_f32(rows[row]);
            store_rows<Isa>(args_, j, row_block, lanes, &minima_);
        }
    }

  private:
    static constexpr bool kStored = requires { Products::kAsStored; };

    void add_panel(int64_t row_block, int64_t first, int64_t last, typename Products::Sums *sums) {
        const int64_t group = first * groups_;
        const int64_t there = min64(last * groups_, args_.w.geometry.groups_per_row) - group;
        const char *const scales = scales_.load(row_block, group, there);
        const uint8_t *const zeros = blocks_.zeros(row_block, group, there);
        const uint8_t *codes = nullptr;
        if constexpr (!kStored) codes = blocks_.load(row_block, first, last);
        for (int64_t j = 0; j < args_.x.rows; ++j) {
            add_chunks(row_block, first, last, codes, scales, zeros, there,
                       x_[j].panel(first * kBlock), sums[j]);
        }
    }

    QK_NOINLINE void add_chunks(int64_t row_block, int64_t first, int64_t last,
                                const uint8_t *codes, const char *scales, const uint8_t *zeros,
                                int64_t there, const typename Products::X *x,
                                typename Products::Sums &sums) {
        int64_t pitch = 64;
        for (int64_t i = first; i < last; ++i, codes += 512, ++x, there -= groups_) {
            if constexpr (kStored) pitch = blocks_.load_stored(row_block, i, &codes);
            if (there < groups_) return add_last(codes, pitch, *x, scales, zeros, there, sums);
            add(codes, pitch, *x, scales, zeros, sums);
            scales += groups_ * 32;
            prefetch_lines(scales, groups_ * 32, groups_ * 1024);
            if (zeros != nullptr) zeros += groups_ * 4;
        }
    }

    // A row's last chunk. Sums of groups that are not there are left as they are by -0 times 0.
    QK_NOINLINE void add_last(const uint8_t *codes, int64_t pitch, const typename Products::X &x,
                              const char *scales, const uint8_t *zeros, int64_t there,
                              typename Products::Sums &sums) const {
        float scale[8][8];
        uint8_t zero[32] = {};
        for (float(&group)[8] : scale) {
            for (float &of_row : group) of_row = -0.0f;
        }
        memcpy(scale, scales, size_t(there * 32));
        if (zeros != nullptr) memcpy(zero, zeros, size_t(there * 4));
        add(codes, pitch, x, reinterpret_cast<const char *>(scale), zero, sums);
    }
    QK_INLINE void add(const uint8_t *codes, int64_t pitch, const typename Products::X &x,
                       const char *scales, const uint8_t *zeros,
                       typename Products::Sums &sums) const {
        if constexpr (kStored) {
            products_.add_stored(codes, pitch, x, scales, zeros, sums);
        } else {
            products_.add(codes, x, scales, zeros, sums);
        }
    }

    using X = typename Products::X;

    const LinearArgs &args_;
    EachRow<BlocksOfX<Isa, X>, kTogether> x_;
    ScalePanel<Isa> scales_;
    MinimaOfGroups<Isa> minima_;
    Products products_;
    CodesOfBlocks<Isa> blocks_;
    const int64_t chunks_, groups_;
};

template <class Isa, template <CodeKind> class Products>
void run_groups(const LinearArgs &args, const Launch &launch) {
    const Device &device = launch.device;
    switch (code_kind(args.w)) {
        case CodeKind::kZeros:
            return run_blocks<RowsOfGroups<Isa, Products<CodeKind::kZeros>>>(args, launch, device);
        case CodeKind::kSymmetric:
            return run_blocks<RowsOfGroups<Isa, Products<CodeKind::kSymmetric>>>(args, launch,
                                                                                 device);
        default:
            return run_blocks<RowsOfGroups<Isa, Products<CodeKind::kTable>>>(args, launch, device);
    }
}

template <class Isa>
struct CodesOfIsa {
    using Type = TableCodes<Isa>;
};
template <class Isa>
requires requires { typename Isa::Planes; }
struct CodesOfIsa<Isa> {
    using Type = PlaneCodes<Isa>;
};
template <class Isa>
using CodesOf = typename CodesOfIsa<Isa>::Type;

// Groups that straddle rows.
template <class Isa>
void run_flat(const LinearArgs &args, const Launch &launch) {
    using Codes = CodesOf<Isa>;
    if constexpr (takes_pieces<Isa>) {
        const auto run = [&]<int64_t kPiece>() {
            run_blocks<PieceRowBlocks<Isa, Codes, kPiece>>(args, launch, launch.device);
        };
        const int64_t size = args.w.geometry.group_size;
        if constexpr (!loads_bytes<Isa>) {
            if (size == 16) return run.template operator()<16>();
        }
        if (size == 32) return run.template operator()<32>();
        if (size == 128) return run.template operator()<128>();
        if (size % 64 == 0) return run.template operator()<64>();
    }
    run_blocks<FlatRowBlocks<Isa, Codes>>(args, launch, launch.device);
}

// 8 rows of w at a time. Where x is taken as integers: `IntegerRows` where groups are blocks or
// more, `GroupProducts` where they are smaller, `StoredProducts` of rows of nibbles.
template <class Isa, class IntegerRows, template <CodeKind> class GroupProducts,
          template <CodeKind> class StoredProducts = GroupProducts>
Status run_gemv(const LinearArgs &args, const Launch &launch) {
    const bool integers = sums_integers<Isa>(args), small = in_small_groups(args.w.geometry);
    using Groups = RowsOfGroups<Isa, GroupProducts<CodeKind::kTable>>;
    const int64_t together = !integers ? 1 : small ? Groups::kTogether : IntegerRows::kTogether;
    if (args.x.rows > together && may_sum_integers(args)) {
        return row_by_row<run_gemv<Isa, IntegerRows, GroupProducts, StoredProducts>>(args, launch);
    }
    const bool stored = has_rows_of_bytes(args.w) && args.w.layout->id != QK_LAYOUT_ROW_HIGH;
    if (integers && small) {
        stored ? run_groups<Isa, StoredProducts>(args, launch)
               : run_groups<Isa, GroupProducts>(args, launch);
    } else if (integers) {
        run_blocks<IntegerRows>(args, launch, launch.device);
    } else if (scales_steps(args.w)) {
        run_flat<Isa>(args, launch);
    } else if (has_minimum(args.w)) {
        run_blocks<RowBlocks<Isa, LoweredCodes<Isa>>>(args, launch, launch.device);
    } else if (args.w.zero != nullptr) {
        run_blocks<RowBlocks<Isa, AffineCodes<Isa>>>(args, launch, launch.device);
    } else {
        run_blocks<RowBlocks<Isa, CodesOf<Isa>>>(args, launch, launch.device);
    }
    return QK_OK;
}

}  // namespace
}  // namespace qk::cpu
