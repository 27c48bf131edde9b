// x of int8 mode, cut into blocks, rounded to integers and laid out as a chunk of packed codes is
// (rows8: 128 columns of a row in 64 bytes). Bytes 4 j .. 4 j + 3 of a chunk of codes hold columns
// 32 b + j in the low and 32 b + 16 + j in the high nibble of byte b:
//
//     kStored    dword j: columns j, 32 + j, 64 + j, 96 + j       as codes are stored
//     kTurned    dword 4 t + b: columns 32 b + 4 t + 0..3         after the bytes of four dwords
//                changed places, so that dwords belong to one group of 32
//     kColumns   low and high together are the 128 columns in their order
#pragma once
#include "cpu/int8.hpp"
#include "cpu/split.hpp"
#include "cpu/vector/chunks.hpp"
#include "cpu/vector/panel.hpp"

namespace qk::cpu {
namespace {

struct XChunk {
    int8_t low[64], high[64];  // for the low and the high nibbles
    float scale[8];            // a block; the unit of entries is in it
    int32_t sum[8];            // of a block's integers
};

inline size_t int8_x_bytes(const LinearArgs &args, int32_t) {
    return chunk_workspace(args, sizeof(XChunk));
}

inline XChunk *int8_x_of(const Launch &launch) {
    const uintptr_t at = (uintptr_t(launch.workspace) + 63) / 64 * 64;
    return reinterpret_cast<XChunk *>(at);
}

enum class XOrder { kStored, kTurned, kColumns };

class XQuantizer {
  public:
    XQuantizer(const LinearArgs &args, XOrder order)
        : args_(args), order_(order), blocks_(groups_of_chunk(args.w.geometry)),
          unit_(1.0f / int8_steps(*args.w.format)) {}

    void run(int64_t row, XChunk *to) const {
        const int64_t k = args_.x.columns;
        for (int64_t column = 0; column < k; column += 128, ++to) {
            float x[128];
            const int64_t count = min64(128, k - column);
            load(row * k + column, count, x);
            alignas(64) int8_t q[128];
            const int64_t size = 128 / blocks_;
            for (int64_t b = 0; b < blocks_; ++b) {
                const Int8Scale s = int8_block(x + b * size, size, unit_, q + b * size);
                to->scale[b] = s.scale;
                to->sum[b] = s.sum;
            }
            switch (order_) {
                case XOrder::kStored: place_as_stored(q, to); break;
                case XOrder::kTurned: place_turned(q, to); break;
                case XOrder::kColumns: memcpy(to->low, q, 64), memcpy(to->high, q + 64, 64);
            }
        }
    }

  private:
    // 128 numbers, zeros past `count`.
    void load(int64_t first, int64_t count, float *x) const {
        if (args_.x.format->id != QK_FORMAT_F32) {
            widen_x(args_.x, first, count, x);
            for (int64_t i = round_up(count, 16); i < 128; ++i) x[i] = 0;
            return;
        }
        memcpy(x, static_cast<const char *>(args_.x.data) + first * 4, size_t(count) * 4);
        for (int64_t i = count; i < 128; ++i) x[i] = 0;
    }
    static void place_turned(const int8_t *q, XChunk *to) {
        for (int t = 0; t < 4; ++t) {
            for (int b = 0; b < 4; ++b) {
                memcpy(to->low + 16 * t + 4 * b, q + 32 * b + 4 * t, 4);
                memcpy(to->high + 16 * t + 4 * b, q + 32 * b + 16 + 4 * t, 4);
            }
        }
    }
    // The order of four times four bytes turned round is its own inverse.
    static void place_as_stored(const int8_t *q, XChunk *to) {
        place_turned(q, to);
        for (int i = 0; i < 64; i += 16) {
            turn_bytes(to->low + i);
            turn_bytes(to->high + i);
        }
    }
    static void turn_bytes(int8_t *at) {
        typedef int8_t Bytes __attribute__((vector_size(16)));
        Bytes b;
        memcpy(&b, at, 16);
        b = __builtin_shufflevector(b, b, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        memcpy(at, &b, 16);
    }

    const LinearArgs &args_;
    XOrder order_;
    int64_t blocks_;
    float unit_;
};

// Every row of x, on every thread where there are several.
inline const XChunk *quantize_x(const LinearArgs &args, const Launch &launch, XOrder order) {
    XChunk *const to = int8_x_of(launch);
    const int64_t chunks = chunk_count(args.w.geometry);
    parallel_ranges(launch.parallel, args.x.rows, 1, [&](int64_t first, int64_t last) {
        const XQuantizer quantizer(args, order);
        for (int64_t row = first; row < last; ++row) quantizer.run(row, to + row * chunks);
    });
    return to;
}

}  // namespace
}  // namespace qk::cpu
