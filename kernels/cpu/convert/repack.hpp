// Repack of 4-bit codes with groups along k, any layout to any other. A tile of rows passes through
// the first cache as nibbles in order, low nibble first: layouts whose rows are stored so are
// copied, packed chunks are permuted 64 bytes at a time in registers, layouts that store columns
// are transposed 128 rows at a time. Without those, a tile has 8 rows, as packed codes have.
#pragma once
#include "backend/backend.hpp"
#include "cpu/access.hpp"
#include "cpu/kernels.hpp"
#include "cpu/shared/row_tile.hpp"

namespace qk::cpu {

// Scales, zeros and tables, moved by code that every kernel shares.
// What is stored once, and zeroes in scales and zeros, where padding and nibbles want them.
void start_repacking_planes(const RepackArgs &args, const Parallel &parallel);
// Scales and zeros of rows first .. last, groups along k; `first` a multiple of kRowBlock.
void repack_scales_and_zeros(const RepackArgs &args, int64_t first, int64_t last);

namespace {

inline void swap_nibbles(const uint8_t *from, int64_t bytes, uint8_t *to) {
    for (int64_t i = 0; i < bytes; ++i) to[i] = uint8_t(from[i] >> 4 | from[i] << 4);
}

template <class Isa>
class Repacker {
  public:
    Repacker(const RepackArgs &args, bool stream)
        : from_(args.from), to_(args.to), stream_(stream), tile_(true) {}

    QK_NOINLINE void move(int64_t row, int64_t row_end) {
        const int64_t k = from_.geometry.k;
        for (int64_t column = 0; column < k; column += RowTile<Isa>::kColumns) {
            const int64_t end = min64(column + RowTile<Isa>::kColumns, k);
            read(row, row_end, column, end);
            clear_rest(row_end - row, end - column);
            write(row, row_end, column, end);
        }
    }

  private:
    void read(int64_t row, int64_t row_end, int64_t column, int64_t end) {
        const int64_t k = from_.geometry.k;
        const uint8_t *const data = static_cast<const uint8_t *>(from_.data);
        if (stores_columns(from_)) return tile_.load(from_, row, row_end, column, end);
        if (from_.layout->id == kLayoutRows8) {
            const int64_t chunks = ceil_div(k, 128);
            for (int64_t r = row; r < row_end; ++r) {
                const uint8_t *at = data + (r / 8 * chunks + column / 128) * 512 + r % 8 * 64;
                for (int64_t c = 0; c < end - column; c += 128, at += 512) {
                    prefetch(at + 4096);
                    Isa::unpack_chunk(at, tile_.row(r - row) + c / 2);
                }
            }
            return;
        }
        const int64_t pitch = round_up(k, run_pad(from_)), bytes = ceil_div(end - column, 2);
        for (int64_t r = row; r < row_end; ++r) {
            const uint8_t *const at = data + (r * pitch + column) / 2;
            for (int64_t i = 0; i < bytes; i += 64) prefetch(at + i + 1024);
            if (from_.layout->id == QK_LAYOUT_ROW_HIGH) {
                swap_nibbles(at, bytes, tile_.row(r - row));
            } else {
                memcpy(tile_.row(r - row), at, size_t(bytes));
            }
        }
    }

    // What the layouts pad with, up to whole chunks of 8 rows.
    void clear_rest(int64_t rows, int64_t columns) {
        const int64_t padded = round_up(columns, 128);
        for (int64_t r = 0; r < rows && columns < padded; ++r) {
            uint8_t *const to = tile_.row(r);
            if (columns % 2 != 0) to[columns / 2] &= 15;
            memset(to + ceil_div(columns, 2), 0, size_t(padded / 2 - ceil_div(columns, 2)));
        }
        for (int64_t r = rows; r % 8 != 0; ++r) memset(tile_.row(r), 0, size_t(padded / 2));
    }

    void write(int64_t row, int64_t row_end, int64_t column, int64_t end) {
        const int64_t k = to_.geometry.k;
        uint8_t *const data = static_cast<uint8_t *>(to_.data);
        if (stores_columns(to_)) return tile_.store(to_, row, row_end, column, end);
        if (to_.layout->id == kLayoutRows8) {
            const int64_t chunks = ceil_div(k, 128);
            for (int64_t r = row; r < row_end; r += 8) {
                uint8_t *to = data + (r / 8 * chunks + column / 128) * 512;
                for (int64_t c = 0; c < end - column; c += 128) {
                    for (int64_t i = 0; i < 8; ++i, to += 64) {
                        put_chunk(tile_.row(r - row + i) + c / 2, to);
                    }
                }
            }
            return;
        }
        const int64_t pad = run_pad(to_), pitch = round_up(k, pad);
        const int64_t bytes = round_up(end - column, pad) / 2;
        for (int64_t r = row; r < row_end; ++r) {
            uint8_t *const to = data + (r * pitch + column) / 2, *const from = tile_.row(r - row);
            if (to_.layout->id == QK_LAYOUT_ROW_HIGH) swap_nibbles(from, bytes, from);
            put_bytes(from, bytes, to);
        }
    }

    void put_chunk(const uint8_t *from, uint8_t *to) const {
        if (!stream_) return Isa::pack_chunk(from, to);
        alignas(64) uint8_t chunk[64];
        Isa::pack_chunk(from, chunk);
        Isa::stream_64(reinterpret_cast<const char *>(chunk), reinterpret_cast<char *>(to));
    }
    void put_bytes(const uint8_t *from, int64_t bytes, uint8_t *to) const {
        int64_t i = 0;
        for (; stream_ && i + 64 <= bytes; i += 64) {
            Isa::stream_64(reinterpret_cast<const char *>(from + i),
                           reinterpret_cast<char *>(to + i));
        }
        memcpy(to + i, from + i, size_t(bytes - i));
    }

    const Weight &from_, &to_;
    const bool stream_;
    RowTile<Isa> tile_;
};

template <InstructionSet Isa>
Status run_repack(const RepackArgs &args, const Launch &launch) {
    const Geometry &s = args.from.geometry;
    const bool columns = stores_columns(args.from) || stores_columns(args.to);
    const bool stream = uintptr_t(args.to.data) % 64 == 0 && s.k % 128 == 0 &&
                        args.to.layout->data_bytes(s) >= kStreamBytes;
    const int64_t rows = columns ? RowTile<Isa>::kRows : kRowBlock;
    start_repacking_planes(args, launch.parallel);
    parallel_ranges(launch.parallel, s.n, rows, s.k, [&](int64_t first, int64_t last) {
        InScratch<Repacker<Isa>> repacker(launch.scratch, args, stream);
        for (int64_t row = first; row < last; row += rows) {
            repacker->move(row, min64(row + rows, last));
        }
        if (stream) Isa::end_stream();
        repack_scales_and_zeros(args, first, last);
    });
    return QK_OK;
}

inline bool has_tiles(const Weight &w) {
    switch (w.layout->id) {
        case QK_LAYOUT_ROW_HIGH: return w.geometry.k % 2 == 0;  // rows are whole bytes
        case QK_LAYOUT_ROW:
        case QK_LAYOUT_AWQ_GEMM:
        case QK_LAYOUT_AWQ_GEMV:
        case QK_LAYOUT_GPTQ:
        case QK_LAYOUT_GPTQ_V1:
        case QK_LAYOUT_WORD:
        case kLayoutRows8: return true;
        default: return false;
    }
}

template <class Isa>
bool can_run_repack(const RepackArgs &args, const Device &device) {
    return has(device, Isa::kFeature) && args.from.layout->bits == 4 && !args.from.geometry.flat &&
           has_tiles(args.from) && has_tiles(args.to);
}

}  // namespace
}  // namespace qk::cpu
