// 8 rows of nibbles as files store them against one or two rows of x, looked up as floats. Groups
// of 16, 32, 64 and of whole 128s go a line of codes of a row at a time: what leads to a line is
// done once for eight steps, and one table is scaled, not eight kept. f32 scales of rows of whole
// lines are read where they are stored. Other groups, zeros and minima go step by step through all
// rows.
#pragma once
#include "cpu/x86_avx512/rows8.hpp"

namespace qk::cpu {
namespace {

class NibbleRows8 : Rows8 {
  public:
    explicit NibbleRows8(const LinearArgs &args)
        : Rows8(args), minima_(args.w, args.w.minimum), x_(args.x) {
        const Geometry &s = args.w.geometry;
        const bool whole = s.group_size % 128 == 0 || s.groups_per_row == 1;
        by_line_ = args.w.zero == nullptr && !lowered_ && (whole || in_small_groups(s));
        in_rows_ = by_line_ && s.k % 128 == 0 && args.w.scale.format->id == QK_FORMAT_F32;
    }

    void run(int64_t block) {
        sum_runs(block, [&](const Run &run, Sums<Avx512> *sums) QK_INLINE {
            if (lowered_) minima_.load(run.row, run.first, run.last);
            args_.x.rows == 1 ? add<1>(run, x_.of(run), sums) : add<2>(run, x_.of(run), sums);
        });
    }

  private:
    static constexpr int kTogether = 4;  // rows: one's eight additions would wait for one another

    template <int kCount>
    void add(const Run &run, const XOfRun &x, Sums<Avx512> *sums) const {
        if (!by_line_) return add_steps<kCount>(run, run.first, x, sums);
        switch (args_.w.geometry.group_size) {
            case 16: add_lines<kCount, 1>(run, x, sums); break;
            case 32: add_lines<kCount, 2>(run, x, sums); break;
            case 64: add_lines<kCount, 4>(run, x, sums); break;
            default: add_lines<kCount, 8>(run, x, sums);
        }
        const int64_t done = (run.last - run.first) & ~int64_t{127};
        if (run.first + done == run.last) return;
        add_steps<kCount>(run, run.first + done, x.from(done), sums);
    }

    // The scales of a run: in place, or widened.
    Codes8 scales_of(const Run &run) const {
        const Layout &layout = *args_.w.layout;
        const uint8_t *from = reinterpret_cast<const uint8_t *>(groups_.scale[0]);
        if (!in_rows_) return {from, sizeof(groups_.scale[0])};
        const Geometry &s = args_.w.geometry;
        from = static_cast<const uint8_t *>(args_.w.scale.data);
        return {from + 4 * layout.scale_at(s, {run.row, run.group}),
                4 * layout.scale_at(s, {1, 0})};
    }

    // kSteps: of a group, or of a line. Two rows of x take half lines, as registers are few.
    template <int kCount, int kSteps>
    QK_NOINLINE void add_lines(const Run &run, XOfRun x, Sums<Avx512> *total) const {
        constexpr int kLine = 8 / kCount, kGroups = kSteps < kLine ? kLine / kSteps : 1;
        const int64_t size = args_.w.geometry.group_size;
        const int64_t columns = (run.last - run.first) & ~int64_t{127};
        Codes8 codes(codes_at(run.row, run.first / 2), stride_), scales = scales_of(run);
        const uint8_t *ahead = codes_ahead(run);
        // Those of the next 8 rows, one stream for all runs of these.
        const uint8_t *scales_ahead = scales.third[0] + 8 * scales.stride + 28 * run.group;
        const NibbleOrder order = order_;
        const Table<Avx512> entries = codes_.of_zero(0);
        SumsOf<Avx512, kCount> sums;  // a copy that nothing points to stays in registers
        for (int j = 0; j < kCount; ++j) sums[j] = total[j];
        int64_t left = (run.group + 1) * size - run.first;
        for (int64_t at = 0; at < columns; at += 16 * kLine) {
            Lanes<Avx512> of_x[kLine][kCount];
            QK_UNROLL
            for (int step = 0; step < kLine; ++step) {
                for (int j = 0; j < kCount; ++j) {
                    of_x[step][j] = NibbleOrder::permute(Avx512::load_f32(x.row[j] + 64 * step));
                }
            }
            QK_UNROLL
            for (int row = 0; row < 8; row += kTogether) {
                Table<Avx512> table[kTogether];
                QK_UNROLL
                for (int i = row; i < row + kTogether; ++i) {
                    if (i < kLine) fetch_later(ahead + 64 * i, few_fills_);
                }
                QK_UNROLL
                for (int step = 0; step < kLine; ++step) {
                    QK_UNROLL
                    for (int i = row; i < row + kTogether; ++i) {
                        if (step % kSteps == 0) {
                            const float scale = load_as<float>(scales.row(i), step / kSteps);
                            table[i - row] = Avx512::scale_table(entries, scale);
                        }
                        const Lanes<Avx512> weight =
                            order.look_up(table[i - row], codes.row(i) + 8 * step);
                        add_products(weight, of_x[step], i, sums);
                    }
                }
            }
            ahead += 64 * kLine;
            codes.advance(8 * kLine);
            x.advance(64 * kLine);
            left -= 16 * kLine;
            if (kGroups == 1 && left > 0) continue;
            left = size;
            scales.advance(4 * kGroups);
            if (!in_rows_) continue;
            for (int i = 0; i < kGroups; i += 2) prefetch_stream(scales_ahead + 32 * i);
            scales_ahead += 32 * kGroups;
        }
        for (int j = 0; j < kCount; ++j) total[j] = sums[j];
    }

    // From a column on.
    template <int kCount>
    QK_NOINLINE void add_steps(const Run &run, int64_t first, XOfRun x, Sums<Avx512> *total) const {
        Codes8 codes(codes_at(run.row, first / 2), stride_);
        const uint8_t *ahead = codes_ahead(run) + (first - run.first) * 4;
        const NibbleOrder order = order_;
        SumsOf<Avx512, kCount> sums;
        for (int j = 0; j < kCount; ++j) sums[j] = total[j];
        for_each_group(run, first, [&](int64_t group, int64_t column, int64_t end) QK_INLINE {
            Table<Avx512> table[8];
            QK_UNROLL
            for (int i = 0; i < 8; ++i) table[i] = weights_of(i, group);
            for (; column < end; column += 16, ahead += 64) {
                fetch_later(ahead, few_fills_);
                Lanes<Avx512> of_x[kCount];
                for (int j = 0; j < kCount; ++j) {
                    of_x[j] = NibbleOrder::permute(Avx512::load_f32(x.row[j]));
                }
                QK_UNROLL
                for (int i = 0; i < 8; ++i) {
                    add_products(order.look_up(table[i], codes.row(i)), of_x, i, sums);
                }
                codes.advance(8);
                x.advance(64);
            }
        });
        for (int j = 0; j < kCount; ++j) total[j] = sums[j];
        if (run.last % 16 == 0) return;
        const int64_t count = run.last % 16, group = last_group(run);
        const Mask<Avx512> mask = NibbleOrder::mask(count);
        Lanes<Avx512> of_x[kCount];
        for (int j = 0; j < kCount; ++j) {
            of_x[j] = NibbleOrder::permute(Avx512::load_f32(x.row[j], Avx512::first_lanes(count)));
        }
        for (int i = 0; i < 8; ++i) {
            uint8_t bytes[8] = {};
            memcpy(bytes, codes.row(i), size_t(ceil_div(count, 2)));
            const Lanes<Avx512> weight = order.look_up(weights_of(i, group), bytes);
            for (int j = 0; j < kCount; ++j) {
                Lanes<Avx512> &sum = total[j].row[i];
                sum = Avx512::fma_where(mask, weight, of_x[j], sum);
            }
        }
    }

    QK_INLINE Table<Avx512> weights_of(int row, int64_t group) const {
        const Table<Avx512> table = Avx512::scale_table(codes_.of_zero(groups_.zero[row][group]),
                                                        groups_.scale[row][group]);
        return lowered_ ? Avx512::lower_table(table, minima_.scale[row][group]) : table;
    }

    Groups8 minima_;
    RunsOfX x_;
    bool by_line_;
};

}  // namespace
}  // namespace qk::cpu
