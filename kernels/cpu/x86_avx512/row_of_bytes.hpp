// Rows of x as three signed bytes a number, placed for byte products, and what drives the kernels
// that multiply them by blocks of 8 packed rows, one row of x after the other.
#pragma once
#include "cpu/linear/select.hpp"
#include "cpu/x86_avx512/byte_dots.hpp"
#include "cpu/x86_avx512/isa.hpp"

#include "cpu/linear/gemv.hpp"

namespace qk::cpu {
namespace {

// XBytes::sum is in two halves of 16 bits here: 2048 * upper half + lower half.
// What an XBytes::sum is multiplied by, half by half: minus the zero.
inline uint32_t minus_zero_halves(int32_t zero) {
    return uint32_t(-2048 * zero) << 16 | (uint32_t(-zero) & 0xffff);
}

// Byte i of four vectors' dwords, side by side in a dword: to[i].
inline void transpose_three_bytes(const __m512i (&v)[4], uint32_t (&to)[3][16]) {
    constexpr __mmask64 odd = 0xaaaaaaaaaaaaaaaa;
    constexpr __mmask32 upper = 0xaaaaaaaa;
    const auto even_bytes = [](__m512i a, __m512i b) {
        return _mm512_mask_blend_epi8(odd, a, _mm512_slli_epi32(b, 8));
    };
    const auto odd_bytes = [](__m512i a, __m512i b) {
        return _mm512_mask_blend_epi8(odd, _mm512_srli_epi32(a, 8), b);
    };
    const __m512i low = even_bytes(v[0], v[1]), high = even_bytes(v[2], v[3]);
    const __m512i low_1 = odd_bytes(v[0], v[1]), high_1 = odd_bytes(v[2], v[3]);
    const auto join = [](__m512i a, __m512i b) { return _mm512_mask_blend_epi16(upper, a, b); };
    _mm512_store_si512(to[0], join(low, _mm512_slli_epi32(high, 16)));
    _mm512_store_si512(to[1], join(low_1, _mm512_slli_epi32(high_1, 16)));
    _mm512_store_si512(to[2], join(_mm512_srli_epi32(low, 16), high));
}

// Where the lanes of small groups start (eight_of_lane).
inline __m512i starts_of_eights() {
    return _mm512_setr_epi32(0, 16, 32, 48, 64, 80, 96, 112, 8, 24, 40, 56, 72, 88, 104, 120);
}

// Which columns a dword of XBytes has, those of its bytes in `low` before those in `high`:
//
//     kChunk     j + 32 b, j + 32 b + 16                     as the nibbles of packed codes
//     kHalves    j + 16 b, 64 + j + 16 b
//     kEights    first four and last four of a lane's eight columns, in the order of lanes
//     kWords     even ones and odd ones of 8 j .. 8 j + 7;   kSwappedWords: odd ones before
enum class XOrder { kChunk, kHalves, kEights, kWords, kSwappedWords };

// 16 of a block's columns, the b-th bytes of `low` or of `high`.
template <XOrder order>
QK_INLINE inline __m512 columns_of_bytes(const float *from, int b, int high) {
    const __m512i words = _mm512_slli_epi32(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 3);
    switch (order) {
        case XOrder::kChunk: return _mm512_loadu_ps(from + 32 * b + 16 * high);
        case XOrder::kHalves: return _mm512_loadu_ps(from + 64 * high + 16 * b);
        case XOrder::kEights:
            return _mm512_i32gather_ps(starts_of_eights(), from + b + 4 * high, 4);
        case XOrder::kWords: return _mm512_i32gather_ps(words, from + 2 * b + high, 4);
        default: return _mm512_i32gather_ps(words, from + 2 * b + 1 - high, 4);
    }
}

// What integers_of gives, in bytes, and their sums of lanes. False where the block is none of the
// order's.
template <XOrder order>
QK_NOINLINE bool place_bytes(const float *from, XBytes *to, __m512i *sums) {
    __m512 x[8];
    __m512i most = _mm512_setzero_si512();
    for (int i = 0; i < 8; ++i) {
        x[i] = columns_of_bytes<order>(from, i / 2, i % 2);
        const __m512i bits = _mm512_castps_si512(x[i]);
        most = _mm512_max_epu32(most, _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
    }
    const uint32_t largest = _mm512_reduce_max_epu32(most);
    if (!fits_integers(largest)) return false;
    const Grid grid = grid_of(largest);
    to->unit = grid.unit;
    // Added to an integer, 128 for every byte leaves bytes without a sign.
    const __m512i offset = _mm512_set1_epi32(0x808080);
    __m512i even[4], odd[4], sum = _mm512_setzero_si512();
    for (int i = 0; i < 8; ++i) {
        const __m512 value = _mm512_mul_ps(x[i], _mm512_set1_ps(grid.inverse));
        const __m512i q =
            _mm512_cvt_roundps_epi32(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        sum = _mm512_add_epi32(sum, q);
        const __m512i bytes = _mm512_xor_si512(_mm512_add_epi32(q, offset), offset);
        (i % 2 == 0 ? even : odd)[i / 2] = bytes;
    }
    transpose_three_bytes(even, to->low);
    transpose_three_bytes(odd, to->high);
    *sums = sum;
    const __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(sum, _mm512_set1_epi32(1024)), 11);
    const __m512i lower = _mm512_sub_epi32(sum, _mm512_slli_epi32(upper, 11));
    _mm512_store_si512(to->sum,
                       _mm512_mask_blend_epi16(0xaaaaaaaa, lower, _mm512_slli_epi32(upper, 16)));
    return true;
}

// Indices that permutes take, computed by the compiler.
template <class T, int kCount>
struct Index {
    alignas(64) T at[kCount];

    template <class Of>
    explicit constexpr Index(const Of &of) : at{} {
        for (int i = 0; i < kCount; ++i) at[i] = T(of(i));
    }
    QK_INLINE __m512i load() const { return _mm512_load_si512(at); }
};

// Entries of 4-bit integers, and what they are above the numbers that they stand for.
inline int32_t entry_offset(const Weight &w) {
    return w.format->kind == FormatKind::kLut4 ? 12 : common_zero(w);
}
// Four times, as a byte permute looks up nibbles whatever the bits above.
inline __m512i byte_entries(const Weight &w) {
    const bool table = w.format->kind == FormatKind::kLut4;
    alignas(64) uint8_t entries[64];
    for (int code = 0; code < 64; ++code) {
        entries[code] = table ? uint8_t(int(w.format->value(code & 15) * 2) + 12) : uint8_t(0);
    }
    return _mm512_load_si512(entries);
}

// Bytes of a block in the order kOrder, whose sums of lanes are multiplied by -entry_offset, too.
template <XOrder order>
struct OffsetBytes : XBytes {
    alignas(64) uint32_t start[16];

    bool place(const float *from, const Weight &w) {
        __m512i sums;
        if (!place_bytes<order>(from, this, &sums)) return false;
        unit = unit / integer_steps(*w.format);
        const __m512i offset = _mm512_set1_epi32(-entry_offset(w));
        _mm512_store_si512(start, _mm512_mullo_epi32(sums, offset));
        return true;
    }
};

// How a kernel has a block of x: place(from, weight) of 128 floats, false as above.
struct WholeBytes : XBytes {
    bool place(const float *from, const Weight &) {
        __m512i sums;
        return place_bytes<XOrder::kChunk>(from, this, &sums);
    }
};

// Columns column .. end of a row; false where a block is none of the order's.
template <class Block>
bool place_row(const LinearArgs &args, int64_t row, int64_t column, int64_t end, Block *to) {
    const Dense &x = args.x;
    const int64_t start = row * row_stride(x);
    for (; column < end; column += kBlock, ++to) {
        const int64_t count = min64(kBlock, end - column);
        alignas(64) float block[kBlock];
        if (x.format->id == QK_FORMAT_F32 && count == kBlock) {
            memcpy(block, static_cast<const char *>(x.data) + (start + column) * 4, sizeof(block));
        } else {
            memset(block, 0, sizeof(block));
            widen_x<Avx512>(x, start + column, count, block);
        }
        if (!to->place(block, args.w)) return false;
    }
    return true;
}

constexpr int64_t kRowOfBytes = kPanelOfX / kBlock;  // blocks of the longest panel

QK_INLINE inline void add_halves(__m512i &sum, __m512i a, const uint32_t &b) {
    asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(a), "m"(b));
}
QK_INLINE inline void add_halves(__m512i &sum, __m512i a, __m512i b) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

template <class Block>
struct RoomForX {
    Block row[kLaneRows][kRowOfBytes];
};

// The rows of x of a task: placed for all tasks, or a panel at a time in a task's own room.
template <class Block>
class RowsOfBlocks {
  public:
    RowsOfBlocks(const LinearArgs &args, const RoomForX<Block> *whole, RoomForX<Block> *room)
        : args_(args), whole_(whole), room_(room) {}

    const Block *of(int64_t row, const Panel &panel) const {
        if (whole_ != nullptr) return whole_->row[row] + panel.first;
        const int64_t end = min64(panel.last * kBlock, args_.x.columns);
        place_row(args_, row, panel.first * kBlock, end, room_->row[row]);
        return room_->row[row];
    }

  private:
    const LinearArgs &args_;
    const RoomForX<Block> *const whole_;
    RoomForX<Block> *const room_;
};

template <class Block>
bool place_rows(const LinearArgs &args, RoomForX<Block> *to) {
    bool placed = true;
    for (int64_t row = 0; row < args.x.rows && placed; ++row) {
        placed = place_row(args, row, 0, args.x.columns, to->row[row]);
    }
    return placed;
}

// Rows of w and x for them in one block of working memory: whole rows of x where they were placed
// before, or a panel at a time.
template <class RowBlocks, class Block>
class RowsAndRoom {
    static constexpr bool kTakesTwo = requires(RowBlocks & rows) { rows.takes_two(); };

  public:
    RowsAndRoom(const LinearArgs &args, const Device &device, bool whole)
        : rows_(args, device, {args, whole ? &room_ : nullptr, &room_}) {}
    bool place(const LinearArgs &args) { return place_rows(args, &room_); }
    void run(int64_t row_block) { rows_.run(row_block); }
    bool takes_two() const requires kTakesTwo { return rows_.takes_two(); }
    void run_two(int64_t row_block) requires kTakesTwo { rows_.run_two(row_block); }

  private:
    RoomForX<Block> room_;
    RowBlocks rows_;
};

// Rows of x at once, for all tasks; one task has them in its own block. False where one is none of
// the order's.
template <class RowBlocks, class Block = typename RowBlocks::X>
QK_NOINLINE bool run_whole(const LinearArgs &args, const Launch &launch) {
    if (launch.parallel.concurrency <= 1) {
        const InScratch<RowsAndRoom<RowBlocks, Block>> rows(launch.scratch, args, launch.device,
                                                            true);
        if (!rows->place(args)) return false;
        run_each(*rows, 0, ceil_div(args.w.geometry.n, 8));
        return true;
    }
    const InScratch<RoomForX<Block>> room(launch.scratch);
    if (!place_rows(args, &*room)) return false;
    run_blocks<RowBlocks>(args, launch, launch.device, RowsOfBlocks<Block>{args, &*room, nullptr});
    return true;
}

template <class RowBlocks, class Block = typename RowBlocks::X>
QK_NOINLINE bool run_panels(const LinearArgs &args, const Launch &launch) {
    if (!sums_integers<Avx512>(args)) return false;
    run_blocks<RowsAndRoom<RowBlocks, Block>>(args, launch, launch.device, false);
    return true;
}

// y by blocks of 8 rows; a row of x that is none of the order's is multiplied alone, in floats.
template <class RowBlocks, const Kernel<LinearArgs> &otherwise = kLinearGemvAvx512>
Status run_row_blocks(const LinearArgs &args, const Launch &launch) {
    const bool whole = args.x.columns <= kPanelOfX;
    const bool done =
        whole ? run_whole<RowBlocks>(args, launch) : run_panels<RowBlocks>(args, launch);
    if (done) return QK_OK;
    return args.x.rows == 1 ? otherwise.run(args, launch)
                            : row_by_row<run_row_blocks<RowBlocks, otherwise>>(args, launch);
}

}  // namespace
}  // namespace qk::cpu
