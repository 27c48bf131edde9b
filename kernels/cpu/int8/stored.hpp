// int8 mode over 4-bit codes in rows: packed blocks of them (gemv.hpp), or rows of nibbles as they
// are stored, where byte i has columns 2 i and 2 i + 1. x takes their order, and codes are
// multiplied where they are.
#pragma once
#include "cpu/int8/gemv.hpp"

namespace qk::cpu {
namespace {

// x of an instruction set's Stored for rows whose high nibble comes first.
template <class Stored>
struct HighFirst : Stored {
    static void quantize_chunk(const float *x, int64_t blocks, float unit,
                               typename Stored::XChunk *to) {
        Stored::quantize_chunk(x, blocks, unit, to);
        int8_t low[64];  // not std::swap, which is a symbol that others could be lent
        memcpy(low, to->low, 64);
        memcpy(to->low, to->high, 64);
        memcpy(to->high, low, 64);
    }
};

// Rows that start at whole bytes by Stored, all others in packed blocks, gathered if need be.
template <class Packed, class Stored>
Status run_int8_rows_or_blocks(const LinearArgs &args, const Launch &launch) {
    if (!has_rows_of_bytes(args.w)) return run_int8_gemv<Packed>(args, launch);
    const bool high_first = args.w.layout->id == QK_LAYOUT_ROW_HIGH;
    return run_int8_gemv_on<Stored>(
        high_first ? quantize_x<HighFirst<Stored>>(args, launch) : quantize_x<Stored>(args, launch),
        args, launch);
}

}  // namespace
}  // namespace qk::cpu
