// A panel of 8 rows and up to 512 columns, from codes to weights in f32, out of any layout.
#pragma once
#include "cpu/access.hpp"
#include "cpu/shared/panel.hpp"
#include "cpu/shared/scale_block.hpp"

namespace qk::cpu {

using Weights8 = float[8][16];  // 8 rows of a step

// Codes of any format in any layout.
template <class Isa>
class Decoder {
  public:
    QK_NOINLINE explicit Decoder(const Weight &w)
        : w_(w), bytes_(w), codes_(w), data_(static_cast<const uint8_t *>(w.data)),
          group_of_code_(w.geometry), is_signed_(w.format->kind == FormatKind::kS8),
          lowered_(has_minimum(w)), minima_(w, lowered_ ? w.minimum : w.scale, {}) {}

    // Columns column .. end, from a multiple of 512 on, as [step][row]; `scales`: f32 [group][row].
    // Minima are left on.
    QK_NOINLINE void decode(int64_t row, int64_t column, int64_t end, const char *scales,
                            Weights8 *to) {
        scales_ = scales;
        number_groups(row, column, end);
        if (w_.layout->bits == 8) return decode_bytes(row, column, end, to);
        load_zeros(row, column, end);
        switch (w_.layout->id) {
            case kLayoutRows8: return decode_packed(row, column, end, to);
            case QK_LAYOUT_AWQ_GEMM: return decode_words_of_rows(row, column, end, to);
            case QK_LAYOUT_GPTQ:
            case QK_LAYOUT_GPTQ_V1: return decode_words_of_columns(row, column, end, to);
            case QK_LAYOUT_ROW_HIGH: return decode_runs<true>(row, w_.geometry.k, column, end, to);
            case QK_LAYOUT_ROW:
                return decode_runs<false>(row, round_up(w_.geometry.k, 2), column, end, to);
            default: return decode_runs<false>(row, round_up(w_.geometry.k, 8), column, end, to);
        }
    }

    // Takes minima off what decode() gave last.
    QK_NOINLINE void lower(int64_t row, int64_t column, int64_t end, Weights8 *to) {
        if (!lowered_) return;
        const char *const minima = minima_.load_columns(row, column, end);
        if (w_.geometry.flat) return lower_flat(minima, end - column, to);
        for (int64_t at = column, step = 0; at < end; at += 16, ++step) {
            for (int64_t i = 0; i < 8; ++i) {
                const float minimum = load_as<float>(minima, group_at(step, i) * 8 + i);
                const Lanes<Isa> weights = Isa::load_f32(to[step][i]);
                Isa::store_f32(to[step][i], Isa::add(weights, Isa::splat(-minimum)));
            }
        }
    }

    // Rows of bytes can be multiplied as they are looked up, without weights in memory.
    bool walks_bytes() const { return w_.layout->bits == 8; }
    // Adds the products of columns column .. end and rows of x to 8 rows' sums.
    template <int kCount>
    QK_NOINLINE void add_bytes(int64_t row, int64_t column, int64_t end, const char *scales,
                               const char *const *x, Lanes<Isa> (*sums)[8]) {
        const auto add = [&]<bool lowered, bool flat>(const auto &look_up) QK_INLINE {
            const char *const minima = lowered ? minima_.load_columns(row, column, end) : nullptr;
            const int64_t k = w_.geometry.k, next = 2 * end - column;  // two panels on
            const int64_t ahead = next < k ? 2 * (end - column) : 7 * k + 2 * (end - column);
            const auto add_some = [&]<int kRows>(int64_t i) QK_INLINE {
                const uint8_t *const codes = data_ + (row + i) * k + column;
                Lanes<Isa> sum[kRows][kCount];
                for (int r = 0; r < kRows; ++r) {
                    prefetch_lines(codes + r * k, end - column, ahead);
                    for (int j = 0; j < kCount; ++j) sum[r][j] = sums[j][i + r];
                }
                add_rows<lowered, flat, kRows, kCount>(codes, left_of_group(row + i, column),
                                                       end - column, scales + 4 * i, minima + 4 * i,
                                                       x, sum, look_up);
                for (int r = 0; r < kRows; ++r) {
                    for (int j = 0; j < kCount; ++j) sums[j][i + r] = sum[r][j];
                }
            };
            const int64_t rows = min64(8, w_.geometry.n - row);
            int64_t i = 0;
            constexpr int kVectors = lowered ? 2 * kCount : kCount;
            constexpr int kRows = flat ? 1 : kBytesTogether<kVectors>;
            if constexpr (kRows > 1) {
                for (; i + kRows <= rows; i += kRows) add_some.template operator()<kRows>(i);
            }
            for (; i < rows; ++i) add_some.template operator()<1>(i);
        };
        const auto add_codes = [&](const auto &look_up) {
            if (w_.geometry.flat) {
                lowered_ ? add.template operator()<true, true>(look_up)
                         : add.template operator()<false, true>(look_up);
            } else {
                lowered_ ? add.template operator()<true, false>(look_up)
                         : add.template operator()<false, false>(look_up);
            }
        };
        if (is_signed_) return add_codes([](const uint8_t *at) { return Isa::load_s8(at); });
        const typename Isa::WideTable table(bytes_.value);
        add_codes([=](const uint8_t *at) { return table.look_up(at); });
    }

  private:
    // Rows of bytes that are multiplied side by side, whose chains of sums are independent, where
    // each has so many vectors beside its scale.
    template <int kVectors>
    static constexpr int kBytesTogether = [] {
        if constexpr (requires { Isa::kBytesTogether; }) {
            return kVectors < Isa::kBytesTogether ? Isa::kBytesTogether / kVectors : 1;
        }
        return 1;
    }();

    // Of rows whose first group ends after `next` columns; scales and minima: an f32 a row, groups
    // 8 apart.
    template <bool lowered, bool flat, int kRows, int kCount, class LookUp>
    QK_INLINE void add_rows(const uint8_t *codes, int64_t next, int64_t count, const char *scales,
                            const char *minima, const char *const *x,
                            Lanes<Isa> (&sum)[kRows][kCount], const LookUp &look_up) const {
        const int64_t size = w_.geometry.group_size, k = w_.geometry.k;
        for (int64_t at = 0; at < count; next += size, scales += 32, minima += 32) {
            Lanes<Isa> scale[kRows], minus[kRows];
            QK_UNROLL
            for (int r = 0; r < kRows; ++r) {
                scale[r] = Isa::splat(load_as<float>(scales, r));
                minus[r] = Isa::splat(lowered ? -load_as<float>(minima, r) : 0);
            }
            const auto weight = [&](const uint8_t *from, int r) QK_INLINE {
                const Lanes<Isa> product = Isa::mul(look_up(from), scale[r]);
                return lowered ? Isa::add(product, minus[r]) : product;
            };
            const auto add_step = [&]() QK_INLINE {
                QK_UNROLL
                for (int r = 0; r < kRows; ++r) {
                    const Lanes<Isa> product = weight(codes + r * k + at, r);
                    for (int j = 0; j < kCount; ++j) {
                        sum[r][j] = Isa::fma(Isa::load_f32(x[j] + at * 4), product, sum[r][j]);
                    }
                }
            };
            const int64_t end = min64(next, count);
            for (; at + 16 <= end; at += 16) add_step();
            if (at >= end) continue;
            if (flat && next < count) {  // a step whose other columns are the next group's
                const Mask<Isa> before = Isa::first_lanes(next - at);
                scale[0] = Isa::where(before, scale[0], Isa::splat(load_as<float>(scales, 8)));
                if (lowered) {
                    minus[0] = Isa::where(before, minus[0], Isa::splat(-load_as<float>(minima, 8)));
                }
                if (at + 16 <= count) {
                    add_step();
                    at += 16;
                    continue;
                }
            }
            const Mask<Isa> mask = Isa::first_lanes(count - at);
            for (int r = 0; r < kRows; ++r) {
                uint8_t last[16] = {};  // the row's last columns
                memcpy(last, codes + r * k + at, size_t(count - at));
                for (int j = 0; j < kCount; ++j) {
                    const Lanes<Isa> of_x = Isa::load_f32(x[j] + at * 4, mask);
                    sum[r][j] = Isa::fma_where(mask, of_x, weight(last, r), sum[r][j]);
                }
            }
            return;
        }
    }

    void lower_flat(const char *minima, int64_t columns, Weights8 *to) const {
        for (int64_t i = 0; i < 8; ++i) {
            const int64_t size = w_.geometry.group_size, before = size - cut_[i];
            for (int64_t c = 0; c < columns; ++c) {
                to[c / 16][i][c % 16] -= load_as<float>(minima, (c + before) / size * 8 + i);
            }
        }
    }

    // 8-bit codes, rows of bytes, whose groups are along k.
    void decode_bytes(int64_t row, int64_t column, int64_t end, Weights8 *to) const {
        for (int64_t i = 0; i < min64(8, w_.geometry.n - row); ++i) {
            const uint8_t *const codes = data_ + (row + i) * w_.geometry.k;
            for (int64_t at = end; at < 2 * end - column; at += 64) prefetch(codes + at);
            for (int64_t at = column, step = 0; at < end; at += 16, ++step) {
                float *const weights = to[step][i];
                const int64_t count = min64(16, end - at);
                if (is_signed_ && count == 16) {
                    Isa::store_f32(weights,
                                   Isa::mul(Isa::load_s8(codes + at), Isa::splat(scale(step, i))));
                    continue;
                }
                for (int64_t j = 0; j < count; ++j) weights[j] = bytes_.value[codes[at + j]];
                for (int64_t j = count; j < 16; ++j) weights[j] = 0;
                Isa::store_f32(weights,
                               Isa::mul(Isa::load_f32(weights), Isa::splat(scale(step, i))));
            }
        }
    }

    // A nibble a row, 4 bytes a group, from the panel's first group of each row on.
    void load_zeros(int64_t row, int64_t column, int64_t end) {
        if (w_.zero == nullptr) return;
        const Geometry &s = w_.geometry;
        memset(zeros_, 0, sizeof(zeros_));
        for (int64_t i = 0; i < min64(8, s.n - row); ++i) {
            const GroupIndex first = group_of(s, row + i, column);
            const GroupIndex last = group_of(s, row + i, end - 1);
            for (int64_t g = 0; g <= last.group - first.group; ++g) {
                const int zero = zero_of(w_, {first.row, first.group + g});
                zeros_[g * 4 + (i >> 1)] |= uint8_t(zero << (i & 1) * 4);
            }
        }
    }

    // Columns of the group that a row has at a column, from there on.
    int64_t left_of_group(int64_t row, int64_t column) const {
        const Geometry &s = w_.geometry;
        const int64_t at = (s.flat ? row * s.k : 0) + column;
        return (group_of_code_(at) + 1) * s.group_size - at;
    }
    // Groups of the panel's steps, from 0: of where a step starts, and the same for all rows but
    // where groups straddle them.
    void number_groups(int64_t row, int64_t column, int64_t end) {
        const Geometry &s = w_.geometry;
        for (int64_t i = 0; i < (s.flat ? 8 : 1); ++i) {
            cut_[i] = left_of_group(row + i, column);
            int64_t group = 0, next = column + cut_[i];
            for (int64_t from = column, step = 0; from < end; from += 16, ++step) {
                if (from >= next) {
                    ++group;
                    next += s.group_size;
                }
                group_[i * kPanelSteps + step] = uint8_t(group);
            }
        }
    }
    int64_t group_at(int64_t step, int64_t row) const {
        return group_[(w_.geometry.flat ? row * kPanelSteps : 0) + step];
    }
    // body(step, columns): the steps of a row that the next group takes over after some columns.
    // There is no more than one such place in a step.
    template <class Body>
    QK_INLINE void for_each_cut(int64_t row, int64_t column, int64_t end, const Body &body) const {
        if (!w_.geometry.flat) return;
        for (int64_t at = cut_[row]; at < end - column; at += w_.geometry.group_size) {
            if (at % 16 != 0) body(at / 16, at % 16);
        }
    }

    float scale(int64_t step, int64_t row) const {
        return load_as<float>(scales_, group_at(step, row) * 8 + row);
    }
    // The weights of a row's codes in a group.
    Table<Isa> table_of(int64_t group, int64_t row) const {
        const float scale = load_as<float>(scales_, group * 8 + row);
        return Isa::scale_table(codes_.table(zeros_, group, int(row)), scale);
    }
    Table<Isa> table(int64_t step, int64_t row) const { return table_of(group_at(step, row), row); }

    // 16 columns or fewer, one at a time.
    void decode_slowly(int64_t row, int64_t column, int64_t count, const Table<Isa> &table,
                       float *to) const {
        uint8_t codes[16];
        w_.layout->load(w_.geometry, data_, row, column, count, codes);
        uint8_t bytes[8] = {};
        for (int64_t i = 0; i < count; ++i) {
            bytes[i >> 1] = uint8_t(bytes[i >> 1] | codes[i] << (i & 1) * 4);
        }
        Isa::template emit_floats<false, false>(bytes, table, reinterpret_cast<char *>(to));
    }

    // Up to 16 columns of a row whose nibbles are in order from nibble `run` on.
    template <bool high_first>
    void decode_step(int64_t run, int64_t row, int64_t column, int64_t count,
                     const Table<Isa> &table, float *to) const {
        if (count < 16) return decode_slowly(row, column, count, table, to);
        const uint8_t *const from = data_ + ((run + column) >> 1);
        char *const weights = reinterpret_cast<char *>(to);
        if (!high_first || (run & 1) == 0) {
            return Isa::template emit_floats<high_first, false>(from, table, weights);
        }
        uint8_t bytes[8];  // of a row that starts in the middle of a byte
        for (int i = 0; i < 8; ++i) bytes[i] = uint8_t(from[i] << 4 | from[i + 1] >> 4);
        Isa::template emit_floats<true, false>(bytes, table, weights);
    }

    // Rows of nibbles in order, `stride` nibbles apart.
    template <bool high_first>
    void decode_runs(int64_t row, int64_t stride, int64_t column, int64_t end, Weights8 *to) {
        for (int64_t i = 0; i < min64(8, w_.geometry.n - row); ++i) {
            const int64_t run = (row + i) * stride;
            int64_t group = group_at(0, i);
            Table<Isa> table = table_of(group, i);
            for (int64_t at = column, step = 0; at < end; at += 16, ++step) {
                if (group_at(step, i) != group) table = table_of(group = group_at(step, i), i);
                decode_step<high_first>(run, row + i, at, min64(16, end - at), table, to[step][i]);
            }
            for_each_cut(i, column, end, [&](int64_t step, int64_t done) {
                const int64_t at = column + step * 16;
                float next[16];
                decode_step<high_first>(run, row + i, at, min64(16, end - at),
                                        table_of(group_at(step, i) + 1, i), next);
                memcpy(to[step][i] + done, next + done, size_t(16 - done) * 4);
            });
        }
    }

    // GPTQ: a word holds 8 columns of a row; the words of a row are n words apart.
    void decode_words_of_columns(int64_t row, int64_t column, int64_t end, Weights8 *to) {
        const int64_t n = w_.geometry.n;
        for (int64_t at = column, step = 0; at < end; at += 16, ++step) {
            for (int64_t i = 0; i < min64(8, n - row); ++i) {
                uint8_t bytes[8] = {};
                const uint8_t *const word = data_ + (at / 8 * n + row + i) * 4;
                memcpy(bytes, word, 4);
                if (end - at > 8) memcpy(bytes + 4, word + n * 4, 4);
                Isa::template emit_floats<false, false>(bytes, table(step, i),
                                                        reinterpret_cast<char *>(to[step][i]));
            }
        }
    }

    // AWQ: a word holds 8 rows of a column, rows 0, 2, 4, 6, 1, 3, 5, 7 in its nibbles.
    void decode_words_of_rows(int64_t row, int64_t column, int64_t end, Weights8 *to) {
        const int64_t words_per_column = ceil_div(w_.geometry.n, 8);
        const uint8_t *const data = data_ + row / 8 * 4;
        for (int64_t at = column, step = 0; at < end; at += 16, ++step) {
            uint8_t bytes[64] = {};
            for (int64_t i = 0; i < min64(16, end - at); ++i) {
                memcpy(bytes + 4 * i, data + (at + i) * words_per_column * 4, 4);
            }
            const Words<Isa> words = Isa::load_words(bytes);
            float(*const weights)[16] = to[step];
            Isa::store_f32(weights[0], Isa::template look_up<0>(table(step, 0), words));
            Isa::store_f32(weights[2], Isa::template look_up<1>(table(step, 2), words));
            Isa::store_f32(weights[4], Isa::template look_up<2>(table(step, 4), words));
            Isa::store_f32(weights[6], Isa::template look_up<3>(table(step, 6), words));
            Isa::store_f32(weights[1], Isa::template look_up<4>(table(step, 1), words));
            Isa::store_f32(weights[3], Isa::template look_up<5>(table(step, 3), words));
            Isa::store_f32(weights[5], Isa::template look_up<6>(table(step, 5), words));
            Isa::store_f32(weights[7], Isa::template look_up<7>(table(step, 7), words));
        }
    }

    void decode_packed(int64_t row, int64_t column, int64_t end, Weights8 *to) {
        const int64_t chunks = ceil_div(w_.geometry.k, 128), steps = ceil_div(end - column, 16);
        const uint8_t *const codes = data_ + (row / 8 * chunks + column / 128) * 512;
        for (int64_t first = 0; first < steps; first += 8, to += 8) {
            const uint8_t *const chunk = codes + first * 64;
            for (int row = 0; row < 8; ++row) {
                decode_steps<0>(Isa::load_words(chunk + row * 64), first, steps - 1, row, to);
            }
        }
    }
    // Where k ends inside a chunk, the rest is decoded too and not looked at.
    template <int step>
    QK_INLINE void decode_steps(const Words<Isa> &words, int64_t first, int64_t last, int row,
                                Weights8 *to) const {
        if constexpr (step < 8) {
            const int64_t at = min64(first + step, last), group = group_at(at, row);
            Isa::store_f32(to[step][row], Isa::template look_up<step>(table_of(group, row), words));
            const int64_t done = cut_[row] + group * w_.geometry.group_size - 16 * at;
            if (w_.geometry.flat && done < 16) {  // the next group's from there on
                float next[16];
                Isa::store_f32(next, Isa::template look_up<step>(table_of(group + 1, row), words));
                memcpy(to[step][row] + done, next + done, size_t(16 - done) * 4);
            }
            decode_steps<step + 1>(words, first, last, row, to);
        }
    }

    const Weight &w_;
    Entries bytes_;           // 8-bit codes
    AffineCodes<Isa> codes_;  // 4-bit codes
    const uint8_t *data_;
    const GroupOfCode group_of_code_;
    const bool is_signed_, lowered_;
    ScaleBlock<Isa> minima_;  // the scales where there are none
    uint8_t group_[8 * kPanelSteps];
    int64_t cut_[8] = {};  // columns until the first group of a row's panel ends
    uint8_t zeros_[(kPanelSteps + 1) * 4] = {};  // all 0 where the format has none
    const char *scales_ = nullptr;
};

}  // namespace qk::cpu
