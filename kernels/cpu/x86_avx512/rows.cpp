// y = x . transpose(w) + bias for one or two rows of x over weights stored row by row, as
// checkpoints have them: S8 and LUT8, which have no other layout, and nibbles in sequence (row,
// row_high, word, awq_gemv). The sums have the generic kernel's order, so the bits are the same;
// what is widened or looked up is multiplied by both rows of x.
//
// 8 rows are walked side by side, 16 to 128 columns at a time, each row with a sum of its own:
//
//     S8        16 bytes widened, converted, scaled, added              4 instructions
//     nibbles   8 bytes in every 64 bits of a vector, each lane shifts its own nibble down and
//               looks it up in the row's scaled entries (rows_nibbles.hpp)   3 and the addition
//     LUT8      64 bytes of one row by byte permutes (rows_lut8.hpp)
//
// So 64 bits have columns 0..7 in lane 2 j and 8..15 in lane 2 j + 1: x is permuted to match the
// lanes, and the sums are permuted back. Bytes per output: the row's codes and scales. The codes of
// 8 rows are contiguous and are prefetched in sequence, a block of rows ahead: as 8 streams they
// would arrive at two thirds of the speed.
#include "cpu/linear/decode.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/x86_avx512/rows8.hpp"
#include "cpu/x86_avx512/rows_flat.hpp"
#include "cpu/x86_avx512/rows_lut8.hpp"
#include "cpu/x86_avx512/rows_nibbles.hpp"

namespace qk::cpu {
namespace {

class ByteRows8 : Rows8 {
  public:
    explicit ByteRows8(const LinearArgs &args)
        : Rows8(args), minima_(args.w, args.w.minimum), x_(args.x) {
        // i8 scales and minima would take longer so, in memory once more.
        if (lowered_ || args.w.scale.format->id == QK_FORMAT_I8) in_rows_ = false;
    }

    void run(int64_t block) {
        sum_runs(block, [&](const Run &run, Sums<Avx512> *sums) QK_INLINE {
            if (lowered_) minima_.load(run.row, run.first, run.last);
            args_.x.rows == 1 ? add<1>(run, x_.of(run), sums) : add<2>(run, x_.of(run), sums);
        });
    }

  private:
    template <int kCount>
    void add(const Run &run, const XOfRun &x, Sums<Avx512> *sums) const {
        lowered_ ? add_as<kCount, true>(run, x, sums) : add_as<kCount, false>(run, x, sums);
    }

    template <int kCount, bool lowered>
    void add_as(const Run &run, const XOfRun &x, Sums<Avx512> *total) const {
        const int64_t size = args_.w.geometry.group_size;
        const int64_t lines = (run.last - run.first) / 64;
        int64_t done = lines * 64;
        if (size == 16) {
            add_lines_as<kCount, lowered, 4>(run, x, lines, total);
        } else if (size == 32) {
            add_lines_as<kCount, lowered, 2>(run, x, lines, total);
        } else if (size % 64 == 0) {
            add_lines_as<kCount, lowered, 1>(run, x, lines, total);
        } else {
            done = 0;
        }
        if (run.first + done < run.last) {
            add_steps<kCount, lowered>(run, run.first + done, x.from(done), total);
        }
    }

    template <int kCount, bool lowered, int kGroups>
    void add_lines_as(const Run &run, const XOfRun &x, int64_t lines, Sums<Avx512> *total) const {
        if constexpr (!lowered && kGroups <= 2) {
            const auto in_rows = &ByteRows8::add_lines<kCount, false, kGroups, false, true>;
            if (in_rows_) return (this->*in_rows)(run, x, lines, total);
        }
        paged_ ? add_lines<kCount, lowered, kGroups, true, false>(run, x, lines, total)
               : add_lines<kCount, lowered, kGroups, false, false>(run, x, lines, total);
    }

    template <int kGroups>
    QK_INLINE void load_chunk(int64_t row, int64_t group, float (&to)[4][8]) const {
        __m512 scales[kPairs<kGroups>];
        scales_in_rows_.load<kGroups>(row, group, scales);
        for (int i = 0; i < kPairs<kGroups>; ++i) _mm512_store_ps(to[2 * i], scales[i]);
    }

    // 64 columns of a row, a line of memory, before those of the next: every line is met once, and
    // what leads to it is done once for four steps. kGroups: that 64 columns have, at most.
    template <int kCount, bool lowered, int kGroups, bool paged, bool in_rows>
    QK_NOINLINE void add_lines(const Run &run, XOfRun x, int64_t lines, Sums<Avx512> *total) const {
        const int64_t size = args_.w.geometry.group_size;
        Codes8 codes(codes_at(run.row, run.first), stride_);
        const uint8_t *ahead = codes_ahead(run);
        SumsOf<Avx512, kCount> sums;  // a copy that nothing points to stays in registers
        for (int j = 0; j < kCount; ++j) sums[j] = total[j];
        int64_t group = 0, left = (run.group + 1) * size - run.first;
        const bool by_line = kGroups > 1 || size == 64;  // groups, not chunks, end with lines
        alignas(64) float of_chunk[4][8];  // scales of two lines, [group][row]: in_rows
        for (; lines > 0; --lines, ahead += paged || in_rows ? 512 : 384) {
            const int64_t place = lines % 2 != 0 && by_line ? kGroups : 0;
            if constexpr (in_rows) {
                if (lines % 2 == 0) {
                    const int64_t at = run.group + group;
                    by_line ? load_chunk<2 * kGroups>(run.row, at, of_chunk)
                            : load_chunk<1>(run.row, at, of_chunk);
                    asm volatile("" : "+m"(of_chunk));  // broadcast where they are used
                }
            }
            Lanes<Avx512> of_x[4][kCount];
            QK_UNROLL
            for (int step = 0; step < 4; ++step) {
                for (int j = 0; j < kCount; ++j) {
                    of_x[step][j] = Avx512::load_f32(x.row[j] + 64 * step);
                }
            }
            QK_UNROLL
            for (int i = 0; i < 8; ++i) {
                if (paged) {
                    prefetch_stream(ahead + 64 * i);
                    prefetch(codes.row(i) + 256);
                } else if (in_rows || i < 6) {
                    fetch_later(ahead + 64 * i, few_fills_);  // three quarters, or all
                }
                const float *const scales =
                    in_rows ? of_chunk[place] + i : groups_.scale[i] + group;
                const float *const minima = minima_.scale[i] + group;
                constexpr int kApart = in_rows ? 8 : 1;  // groups
                Lanes<Avx512> scale, minimum;
                QK_UNROLL
                for (int step = 0; step < 4; ++step) {
                    if (step % (4 / kGroups) == 0) {
                        scale = Avx512::splat(scales[step * kGroups / 4 * kApart]);
                        if (lowered) minimum = Avx512::splat(minima[step * kGroups / 4]);
                    }
                    const Lanes<Avx512> code = Avx512::load_s8(codes.row(i) + 16 * step);
                    Lanes<Avx512> weight = Avx512::mul(code, scale);
                    if (lowered) weight = {_mm512_sub_ps(weight.v, minimum.v)};
                    add_products(weight, of_x[step], i, sums);
                }
            }
            fetch_page<paged>(ahead);
            codes.advance(64);
            x.advance(256);
            left -= 64;
            if (kGroups == 1 && left > 0) continue;
            left = size;
            group += kGroups;
        }
        for (int j = 0; j < kCount; ++j) total[j] = sums[j];
    }

    // What lines leave, and groups that end elsewhere than they: from a column on.
    template <int kCount, bool lowered>
    QK_NOINLINE void add_steps(const Run &run, int64_t first, XOfRun x, Sums<Avx512> *total) const {
        Codes8 codes(codes_at(run.row, first), stride_);
        const uint8_t *ahead = codes_at(run.row + 8, first * 8);
        SumsOf<Avx512, kCount> sums;
        for (int j = 0; j < kCount; ++j) sums[j] = total[j];
        for_each_group(run, first, [&](int64_t group, int64_t column, int64_t end) QK_INLINE {
            Lanes<Avx512> scale[8], minus[8];
            QK_UNROLL
            for (int i = 0; i < 8; ++i) {
                scale[i] = Avx512::splat(groups_.scale[i][group]);
                minus[i] = lowered ? Avx512::splat(-minima_.scale[i][group]) : scale[i];
            }
            for (; column < end; column += 16, ahead += 128) {
                prefetch_stream(ahead);
                prefetch_stream(ahead + 64);
                Lanes<Avx512> of_x[kCount];
                for (int j = 0; j < kCount; ++j) of_x[j] = Avx512::load_f32(x.row[j]);
                QK_UNROLL
                for (int i = 0; i < 8; ++i) {
                    Lanes<Avx512> weight = Avx512::mul(Avx512::load_s8(codes.row(i)), scale[i]);
                    if (lowered) weight = Avx512::add(weight, minus[i]);
                    add_products(weight, of_x, i, sums);
                }
                codes.advance(16);
                x.advance(64);
            }
        });
        for (int j = 0; j < kCount; ++j) total[j] = sums[j];
        if (run.last % 16 == 0) return;
        const int64_t count = run.last % 16, group = last_group(run);
        const Mask<Avx512> mask = Avx512::first_lanes(count);
        for (int i = 0; i < 8; ++i) {
            uint8_t bytes[16] = {};
            memcpy(bytes, codes.row(i), size_t(count));
            Lanes<Avx512> weight =
                Avx512::mul(Avx512::load_s8(bytes), Avx512::splat(groups_.scale[i][group]));
            if (lowered) {
                weight = Avx512::add(weight, Avx512::splat(-minima_.scale[i][group]));
            }
            for (int j = 0; j < kCount; ++j) {
                Lanes<Avx512> &sum = total[j].row[i];
                sum = Avx512::fma_where(mask, weight, Avx512::load_f32(x.row[j], mask), sum);
            }
        }
    }

    Groups8 minima_;
    RunsOfX x_;
};

Status run(const LinearArgs &args, const Launch &launch) {
    const FormatKind kind = args.w.format->kind;
    if (args.x.rows > 1 && may_sum_integers(args)) return row_by_row<run>(args, launch);
    if (kind == FormatKind::kLut8) {
        run_blocks<Lut8Rows8>(args, launch);
    } else if (args.w.geometry.flat) {
        if (kind != FormatKind::kS8) {
            run_blocks<FlatRows8<FlatNibbles>>(args, launch);
        } else if (has_minimum(args.w)) {
            run_blocks<FlatRows8<FlatBytes<true>>>(args, launch);
        } else {
            run_blocks<FlatRows8<FlatBytes<false>>>(args, launch);
        }
    } else if (sums_integers<Avx512>(args)) {
        return kLinearGemvAvx512.run(args, launch);
    } else if (kind == FormatKind::kS8) {
        run_blocks<ByteRows8>(args, launch);
    } else {
        run_blocks<NibbleRows8>(args, launch);
    }
    return QK_OK;
}

}  // namespace

const Kernel<LinearArgs> kLinearRowsAvx512 = linear_kernel<row_of("avx512 rows")>(run);

}  // namespace qk::cpu
