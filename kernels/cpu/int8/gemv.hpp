// y = x . transpose(w) + bias in int8 mode over packed nibbles (rows8) or rows of them, a row of x
// at a time.
//
// A block of 8 rows walks along k in chunks of 64 bytes a row: integer dot products of a chunk's
// blocks (ChunkDots), folded into 8 floats a block, one a row:
//
//     acc[row] = fma(float(dot[row] - zero[row] * sum of x), x scale * scale[row], acc[row])
//     low[row] = fma(minimum[row], x scale * sum of x, low[row])        y = acc - low: minima alone
#pragma once
#include "cpu/int8/x.hpp"
#include "cpu/kernels.hpp"
#include "cpu/shared/row_blocks.hpp"

namespace qk::cpu {

// Instruction sets that multiply rows of nibbles as they are stored, without packing them first.
template <class Isa>
constexpr bool kInt8AsStored = requires {
    Isa::kAsStored;
};

enum class Int8Codes { kTable, kZeros, kMinima };  // what a code's entry depends on

// Minima as scales are read.
template <class Scales>
class MinimaAsScales : public Scales {
  public:
    MinimaAsScales(const Weight &w, const Device &device) : Scales(w, w.minimum, device) {}
};

template <class Isa, int kBlocks, Int8Codes kind>
class Int8Rows {
  public:
    QK_NOINLINE Int8Rows(const LinearArgs &args, const Device &device,
                         const typename Isa::XChunk *x)
        : args_(args), s_(geometry_of_blocks(args.w.geometry)), chunks_(chunk_count(s_)), x_(x),
          scales_(args.w, device), minima_(args.w, device), blocks_(args.w),
          dots_(Int8Entries(args.w)) {}

    void run(int64_t row_block) {
        const int64_t chunks = chunks_;
        for (int64_t i = 0; i < args_.x.rows; ++i) {
            Sums sums = {Isa::zero_floats8(), Isa::zero_floats8()};
            for (int64_t chunk = 0; chunk < chunks; chunk += kPanel) {
                sums = run_panel(row_block, x_ + i * chunks, chunk, min64(chunk + kPanel, chunks),
                                 sums);
            }
            float y[8];
            Isa::store_floats8(y, kLowered ? Isa::subtract8(sums.acc, sums.low) : sums.acc);
            store_8(args_, i, row_block, y);
        }
    }

  private:
    static constexpr bool kLowered = kind == Int8Codes::kMinima;
    // Chunks whose scales and zeros are found at once: few where codes are gathered with them.
    static constexpr int64_t kPanel = kInt8AsStored<Isa> ? kPanelGroups / kBlocks : kPanelChunks;
    using Scales = typename Isa::template Scales<kBlocks>;

    struct Sums {
        typename Isa::Floats8 acc, low;
    };
    struct NoMinima {
        NoMinima(const Weight &, const Device &) {}
    };

    Sums run_panel(int64_t row_block, const typename Isa::XChunk *x, int64_t first, int64_t last,
                   Sums sums) {
        const int64_t size = s_.group_size;
        const auto [group, groups] = groups_of_run<kBlocks>(s_, first, last);
        const char *const scales = scales_.load(row_block, group, groups);
        const char *minima = nullptr;
        if constexpr (kLowered) minima = minima_.load(row_block, group, groups);
        const uint8_t *const zeros = blocks_.zeros(row_block, group, groups);
        if (zeros != nullptr) prefetch_lines(zeros, groups * 4, groups * 4);  // the next panel's
        const uint8_t *codes = nullptr;
        if constexpr (!kInt8AsStored<Isa>) codes = blocks_.load(row_block, first, last);
        int64_t at = 0, next = (group + 1) * size;  // wide groups: where the next one starts
        for (int64_t i = first; i < last; ++i, codes += 512) {
            if (kBlocks == 1 && i * 128 >= next) ++at, next += size;
            const char *const of_chunk = scales + at * scales_.group_bytes();
            fetch_ahead(of_chunk, kBlocks * scales_.group_bytes());
            if constexpr (kLowered) {
                const char *const lows = minima + at * minima_.group_bytes();
                fetch_ahead(lows, kBlocks * minima_.group_bytes());
                sums.low = lower(x[i], lows, group + at, groups - at, sums.low);
            }
            int64_t pitch = 64;
            if constexpr (kInt8AsStored<Isa>) pitch = blocks_.load_stored(row_block, i, &codes);
            sums.acc = add(codes, pitch, x[i], of_chunk, zeros == nullptr ? zeros : zeros + at * 4,
                           group + at, groups - at, sums.acc);
            if (kBlocks > 1) at += kBlocks;
        }
        return sums;
    }

    // Scales are read once, as codes are: what 16 chunks on will take, to the second cache.
    static void fetch_ahead(const char *of_chunk, int64_t bytes) {
        const uint8_t *const from = reinterpret_cast<const uint8_t *>(of_chunk) + 16 * bytes;
        for (int64_t i = 0; i < bytes; i += 64) prefetch_stream(from + i);
    }

    // `blocks`: those that have a column; past them there are neither scales nor zeros.
    // `pitch`: bytes from row to row, where codes are as stored.
    QK_INLINE typename Isa::Floats8 add(const uint8_t *codes, int64_t pitch,
                                        const typename Isa::XChunk &x, const char *scales,
                                        const uint8_t *zeros, int64_t group, int64_t blocks,
                                        typename Isa::Floats8 acc) const {
        typename Isa::Sums8 dots[kBlocks];
        if constexpr (kInt8AsStored<Isa>) {
            dots_.run_stored(codes, pitch, x, dots);
        } else {
            dots_.run(codes, x, dots);
        }
        typename Isa::Floats8 scale[kBlocks];
        scales_.widen(scales, group, blocks, scale);
        const auto fold = [&](int b) QK_INLINE {
            const typename Isa::Sums8 zero =
                zeros == nullptr ? Isa::splat_sums8(8) : Isa::load_zeros8(zeros + 4 * b);
            const typename Isa::Sums8 sums =
                kind == Int8Codes::kZeros ? Isa::take_zeros(dots[b], zero, x.sum[b]) : dots[b];
            acc = Isa::fold8(sums, x.scale[b], scale[b], acc);
        };
        for_each_block(blocks, fold);
        return acc;
    }

    QK_INLINE typename Isa::Floats8 lower(const typename Isa::XChunk &x, const char *minima,
                                          int64_t group, int64_t blocks,
                                          typename Isa::Floats8 low) const {
        typename Isa::Floats8 minimum[kBlocks];
        minima_.widen(minima, group, blocks, minimum);
        for_each_block(blocks, [&](int b) QK_INLINE {
            low = Isa::fma8(minimum[b], x.scale[b] * float(x.sum[b]), low);
        });
        return low;
    }

    // Straight through where all are there: a sum that every block may leave with stays in memory.
    template <class Fold>
    QK_INLINE static void for_each_block(int64_t blocks, const Fold &fold) {
        if (blocks >= kBlocks) [[likely]] {
            QK_UNROLL
            for (int b = 0; b < kBlocks; ++b) fold(b);
            return;
        }
        QK_UNROLL
        for (int b = 0; b < kBlocks; ++b) {
            if (b < blocks) fold(b);
        }
    }

    const LinearArgs &args_;
    const Geometry s_;
    const int64_t chunks_;
    const typename Isa::XChunk *x_;
    Scales scales_;
    std::conditional_t<kLowered, MinimaAsScales<Scales>, NoMinima> minima_;
    CodesOfBlocks<Isa> blocks_;
    typename Isa::template ChunkDots<kBlocks, kind == Int8Codes::kTable> dots_;
};

template <class Isa, int kBlocks, Int8Codes kind>
QK_NOINLINE void run_int8_rows(const LinearArgs &args, const Launch &launch,
                               const typename Isa::XChunk *x) {
    const int64_t blocks = ceil_div(args.w.geometry.n, 8);
    parallel_ranges(launch.parallel, blocks, 1, 8 * work_of_row(args),
                    [&](int64_t first, int64_t last) {
        const InScratch<Int8Rows<Isa, kBlocks, kind>> rows(launch.scratch, args, launch.device, x);
        for (int64_t block = first; block < last; ++block) rows->run(block);
    });
}

template <class Isa, Int8Codes kind>
void run_int8_blocks(const LinearArgs &args, const Launch &launch, const typename Isa::XChunk *x) {
    switch (groups_of_chunk(args.w.geometry)) {
        case 8: return run_int8_rows<Isa, 8, kind>(args, launch, x);
        case 4: return run_int8_rows<Isa, 4, kind>(args, launch, x);
        case 2: return run_int8_rows<Isa, 2, kind>(args, launch, x);
        default: return run_int8_rows<Isa, 1, kind>(args, launch, x);
    }
}

template <class Isa>
Status run_int8_gemv_on(const typename Isa::XChunk *x, const LinearArgs &args,
                        const Launch &launch) {
    if (args.w.format->kind == FormatKind::kLut4) {
        run_int8_blocks<Isa, Int8Codes::kTable>(args, launch, x);
    } else if (has_minimum(args.w)) {
        run_int8_blocks<Isa, Int8Codes::kMinima>(args, launch, x);
    } else {
        run_int8_blocks<Isa, Int8Codes::kZeros>(args, launch, x);
    }
    return QK_OK;
}

template <class Isa>
Status run_int8_gemv(const LinearArgs &args, const Launch &launch) {
    return run_int8_gemv_on<Isa>(quantize_x<Isa>(args, launch), args, launch);
}

}  // namespace qk::cpu
