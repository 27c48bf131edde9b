// Quantize, any dtype -> any format x layout x scale kind; the rules are docs/formats.md's
// ("Quantizing"). Three passes: nested scales first need the mean of all scales, then each block's
// largest deviation, and only then are codes stored. Plain scales are stored with their codes.
// Nothing is allocated: until the codes come, scales are stored in their place.
#pragma once
#include "base/torch_sum.hpp"
#include "cpu/convert/quantize_scan.hpp"

namespace qk::cpu {
namespace {

inline float global_at(const Weight &w, GroupIndex group) {
    return w.globals == 0 ? 1.0f : load_as<float>(w.global, w.globals > 1 ? group.row : 0);
}

template <class Isa>
QK_NOINLINE GroupScale group_scale(const QuantizeArgs &args, GroupIndex group) {
    const QuantizeRule rule = rule_of(args);
    int64_t size = 0;
    GroupRange range = scan_group<Isa>(args, group, &size);
    if (rule.by == Rule::kQ4_0) range.most = first_largest<Isa>(args, group, range.absmax);
    return scale_of_range(rule, range, size, global_at(args.to, group));
}

inline Coder coder_of(const QuantizeArgs &args) {
    const Weight &w = args.to;
    Coder coder = {rule_of(args), {}, nullptr};
    if (coder.rule.by == Rule::kLut8) memcpy(coder.table, w.table, sizeof(coder.table));
    return coder;
}

// Runs body(coder) with the points of its table, if so many numbers are worth them.
template <class Body>
void with_points(const Coder &coder, int64_t numbers, const Launch &launch, const Body &body) {
    if (numbers < Lut8Points::kWorth) return body(coder);
    Coder pointed = coder;
    const InScratch<Lut8Points> points(launch.scratch, pointed.table);
    pointed.points = &*points;
    body(pointed);
}

QK_NOINLINE inline void store_plain_scale(const Weight &w, GroupIndex index,
                                          const GroupScale &group) {
    const int64_t at = w.layout->scale_at(w.geometry, index);
    if (is_records(w)) {
        const auto [record, bytes, i] = find_in_record(w, index);
        record.set_scale(bytes, i, f16_from_f32(group.scale));
    } else if (!has_coded_scales(w.scale)) {
        store_float(w.scale.format->id, w.scale.data, at, group.scale);
    } else if (!is_nested(w)) {
        store_as(w.scale.data, at, group.code);
    }
    if (w.zero != nullptr) store_zero(w, index, group.zero);
}

template <class Isa>
QK_NOINLINE void store_codes(const QuantizeArgs &args, const Coder &coder, GroupIndex index,
                             const GroupScale &group) {
    const Weight &w = args.to;
    for_each_run(w.geometry, index, [&](int64_t row, int64_t column, int64_t count) {
        float room[kQuantizeBlock];
        uint8_t codes[kQuantizeBlock];
        const float *const x =
            load_values<Isa>(args.from, row * w.geometry.k + column, count, room);
        code_values<Isa>(coder, group, x, count, codes);
        const int64_t done = store_run(w, row, column, count, codes);
        if (done == count) return;
        w.layout->store(w.geometry, static_cast<uint8_t *>(w.data), row, column + done,
                        count - done, codes + done);
    });
}

// Scales of many groups before their codes: a scale waits for two divisions and roundings, but not
// for other scales.
template <class Isa>
QK_NOINLINE void store_groups(const QuantizeArgs &args, const Coder &coder, GroupIndex first,
                              int64_t last) {
    constexpr int64_t kTogether = 8;
    for (; first.group < last; first.group += kTogether) {
        GroupScale scales[kTogether];
        const int64_t count = min64(kTogether, last - first.group);
        for (int64_t i = 0; i < count; ++i) {
            scales[i] = group_scale<Isa>(args, {first.row, first.group + i});
        }
        for (int64_t i = 0; i < count; ++i) {
            store_plain_scale(args.to, {first.row, first.group + i}, scales[i]);
            store_codes<Isa>(args, coder, {first.row, first.group + i}, scales[i]);
        }
    }
}

// Layouts that store columns: a line of the plane has a word of every row (gptq, 8 columns) or of
// every 8 rows (awq_gemm, a column). 16 words of a line, which are 64 bytes, are made at a time.
inline bool has_word_lines(const Weight &w) {
    const qk_layout id = w.layout->id;
    if (id == QK_LAYOUT_AWQ_GEMM) return true;
    const bool whole = w.geometry.group_size % 8 == 0 || w.geometry.groups_per_row == 1;
    return (id == QK_LAYOUT_GPTQ || id == QK_LAYOUT_GPTQ_V1) && whole;
}
inline int64_t rows_of_word(const Weight &w) { return w.layout->id == QK_LAYOUT_AWQ_GEMM ? 8 : 1; }

class WordLines {
  public:
    explicit WordLines(const Weight &w) : w_(w), awq_(w.layout->id == QK_LAYOUT_AWQ_GEMM) {}

    void clear() { memset(word_, 0, sizeof(word_)); }
    // A run of a row, counted from the first one's; `codes` may be written past `count`.
    void add(int64_t row, int64_t count, uint8_t *codes) {
        if (!awq_) {
            memset(codes + count, 0, 8);
            for (int64_t i = 0; i < count; i += 8) word_[row][i / 8] = join_eight(codes + i);
            return;
        }
        const int64_t shift = ((row & 1) << 2 | (row & 7) >> 1) * 4;  // rows 0 2 4 6 1 3 5 7
        uint32_t *const to = word_[row / 8];
        for (int64_t i = 0; i < count; ++i) to[i] |= uint32_t(codes[i]) << shift;
    }
    void store(int64_t row, int64_t rows, int64_t column, int64_t count) const {
        const int64_t per_word = awq_ ? 8 : 1, columns = awq_ ? 1 : 8;
        const int64_t pitch = ceil_div(w_.geometry.n, per_word), words = ceil_div(rows, per_word);
        char *to = static_cast<char *>(w_.data) + (column / columns * pitch + row / per_word) * 4;
        for (int64_t i = 0; i < ceil_div(count, columns); ++i, to += pitch * 4) {
            uint32_t line[16];
            for (int64_t j = 0; j < 16; ++j) line[j] = word_[j][i];
            memcpy(to, line, size_t(words) * 4);
        }
    }

  private:
    const Weight &w_;
    const bool awq_;
    uint32_t word_[16][kQuantizeBlock];
};

template <class Isa>
QK_NOINLINE void store_word_lines(const QuantizeArgs &args, const Coder &coder, WordLines &lines,
                                  int64_t row, int64_t rows) {
    const Geometry &s = args.to.geometry;
    for (int64_t g = 0; g < s.groups_per_row; ++g) {
        GroupScale scales[128];
        for (int64_t r = 0; r < rows; ++r) scales[r] = group_scale<Isa>(args, {row + r, g});
        for (int64_t r = 0; r < rows; ++r) store_plain_scale(args.to, {row + r, g}, scales[r]);
        const int64_t end = min64((g + 1) * s.group_size, s.k);
        for (int64_t column = g * s.group_size; column < end; column += kQuantizeBlock) {
            const int64_t count = min64(kQuantizeBlock, end - column);
            lines.clear();
            for (int64_t r = 0; r < rows; ++r) {
                float room[kQuantizeBlock];
                uint8_t codes[kQuantizeBlock + 8];
                const float *const x =
                    load_values<Isa>(args.from, (row + r) * s.k + column, count, room);
                code_values<Isa>(coder, scales[r], x, count, codes);
                lines.add(r, count, codes);
            }
            lines.store(row, rows, column, count);
        }
    }
}

// Nibbles of a row of layouts that keep 8 rows' codes together; else 0.
inline int64_t row_pitch(const Weight &w) {
    if (w.geometry.flat || w.layout->bits == 8) return 0;
    if (w.layout->id == kLayoutRows8) return round_up(w.geometry.k, 128);
    return run_pad(w) > 0 ? round_up(w.geometry.k, run_pad(w)) : 0;
}

// Rows first .. last, groups along k; `first` a multiple of kRowBlock.
template <class Isa>
QK_NOINLINE void store_rows(const QuantizeArgs &args, const Coder &coder, int64_t first,
                            int64_t last) {
    const Weight &w = args.to;
    const Geometry &s = w.geometry;
    const int64_t pitch = row_pitch(w);
    for (int64_t row = first; row < last; row += kRowBlock) {
        const int64_t end = min64(row + kRowBlock, s.n), from = row * pitch / 2;
        const int64_t to = end == s.n ? w.layout->data_bytes(s) : end * pitch / 2;
        if (pitch > 0) memset(static_cast<char *>(w.data) + from, 0, size_t(to - from));
        for (int64_t r = row; r < end; ++r) {
            store_groups<Isa>(args, coder, {r, 0}, s.groups_per_row);
        }
    }
}

// bitsandbytes fills the spare nibble of an odd run with the code of 0.
inline void store_pad(const QuantizeArgs &args) {
    const Weight &w = args.to;
    const Geometry &s = w.geometry;
    if (w.layout->id != QK_LAYOUT_ROW_HIGH || s.n * s.k % 2 == 0) return;
    if (w.format->kind != FormatKind::kLut4) return;
    const uint8_t code = table_code(w.format->id, 0.0f);
    w.layout->store(s, static_cast<uint8_t *>(w.data), s.n - 1, s.k, 1, &code);
}

// Whether all scales fit the place of the codes, as f32.
inline bool has_room_for_scales(const Weight &w) {
    return w.geometry.group_count * 4 <= w.layout->data_bytes(w.geometry);
}

template <class Isa>
float nested_scale(const QuantizeArgs &args, int64_t number, bool stored) {
    if (stored) return load_as<float>(args.to.data, number);
    return group_scale<Isa>(args, group_from_number(args.to.geometry, number)).scale;
}

// The mean of all scales, in bitsandbytes' (PyTorch's) order of summation.
template <class Isa>
float mean_scale(const QuantizeArgs &args, bool stored) {
    const int64_t count = args.to.geometry.group_count;
    TorchSum sum(count);
    for (int64_t i = 0; i < count; ++i) sum.add(nested_scale<Isa>(args, i, stored));
    return sum.total() / float(count);
}

struct NestRoom {
    static constexpr int64_t kMost = 4096;  // scales: the largest second group

    float deviations[kMost];
    uint8_t codes[kMost];
};

// One second scale and its codes: the 8-bit blockwise rule over (scale - mean).
template <class Isa>
void nest_block(const QuantizeArgs &args, const Coder &coder, float mean, int64_t block,
                bool stored, NestRoom *room) {
    const Weight &w = args.to;
    const int64_t first = block * w.scale.second_group;
    const int64_t last = min64(first + w.scale.second_group, w.geometry.group_count);
    float absmax = 0;
    for (int64_t number = first; number < last; ++number) {
        const float deviation = nested_scale<Isa>(args, number, stored) - mean;
        if (__builtin_fabsf(deviation) > absmax) absmax = __builtin_fabsf(deviation);
        room->deviations[number - first] = deviation;
    }
    store_as(w.scale.second, block, absmax);
    if (absmax != 0) {
        code_lut8(coder.points, coder.table, 1.0f / absmax, room->deviations, last - first,
                  room->codes);
    } else {
        memset(room->codes, 0, size_t(last - first));
    }
    for (int64_t number = first; number < last; ++number) {
        const GroupIndex group = group_from_number(w.geometry, number);
        store_as(w.scale.data, w.layout->scale_at(w.geometry, group), room->codes[number - first]);
    }
}

template <class Isa>
void nest_scales(const QuantizeArgs &args, const Launch &launch) {
    const Weight &w = args.to;
    const bool stored = has_room_for_scales(w);
    parallel_ranges(launch.parallel, stored ? w.geometry.group_count : 0, 16, w.geometry.group_size,
                    [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i)
            store_as(w.data, i, nested_scale<Isa>(args, i, false));
    });
    const float mean = mean_scale<Isa>(args, stored);
    store_as(w.scale.bias, 0, mean);
    const int64_t seconds = second_count(w);
    const int64_t work = ceil_div(w.geometry.group_count, max64(seconds, 1)) * kQuantizing;
    Coder coder = {{}, {}, nullptr};  // of scales
    memcpy(coder.table, w.scale.code, sizeof(coder.table));
    with_points(coder, w.geometry.group_count, launch, [&](const Coder &of_scales) {
        parallel_ranges(launch.parallel, seconds, 1, work, [&](int64_t first, int64_t last) {
            const InScratch<NestRoom> room(launch.scratch);
            for (int64_t block = first; block < last; ++block) {
                nest_block<Isa>(args, of_scales, mean, block, stored, &*room);
            }
        });
    });
}

// What is stored row by row, group by group or line by line.
template <class Isa>
void store_all(const QuantizeArgs &args, const Coder &coder, const Launch &launch) {
    const Weight &w = args.to;
    const Geometry &s = w.geometry;
    if (has_word_lines(w)) {
        const int64_t rows = 16 * rows_of_word(w);
        parallel_ranges(launch.parallel, s.n, rows, s.k * kQuantizing,
                        [&](int64_t first, int64_t last) {
            const InScratch<WordLines> room(launch.scratch, w);
            for (int64_t row = first; row < last; row += rows) {
                store_word_lines<Isa>(args, coder, *room, row, min64(rows, last - row));
            }
        });
    } else if (!s.flat) {
        parallel_ranges(
            launch.parallel, s.n, kRowBlock, s.k * kQuantizing,
            [&](int64_t first, int64_t last) { store_rows<Isa>(args, coder, first, last); });
    } else {
        // Flat groups of nibbles share bytes with neighbours in every layout but the one made for
        // them.
        const bool bytes = w.layout->bits == 8, pairs = w.layout->id == QK_LAYOUT_ROW_HIGH;
        const int64_t block = bytes ? 1 : pairs ? 2 : s.group_count;
        const int64_t work = min64(s.group_size, s.n * s.k) * kQuantizing;
        parallel_ranges(launch.parallel, s.group_count, block, work,
                        [&](int64_t first, int64_t last) {
            store_groups<Isa>(args, coder, {0, first}, last);
        });
    }
}

template <QuantizerIsa Isa>
Status run_quantize(const QuantizeArgs &args, const Launch &launch) {
    const Weight &w = args.to;
    const Geometry &s = w.geometry;
    const Coder coder = coder_of(args);
    clear_scales_and_zeros(w, launch.parallel);
    if (w.globals > 0) store_globals<Isa>(args, launch);
    if (is_nested(w)) nest_scales<Isa>(args, launch);
    if (row_pitch(w) == 0 && !has_word_lines(w)) {
        clear(launch.parallel, w.data, w.layout->data_bytes(s));
    }
    with_points(coder, coder.rule.by == Rule::kLut8 ? s.n * s.k : 0, launch,
                [&](const Coder &each) { store_all<Isa>(args, each, launch); });
    store_pad(args);
    return QK_OK;
}

template <class Isa>
bool can_run_quantize(const QuantizeArgs &, const Device &device) {
    return has(device, Isa::kFeature);
}

}  // namespace
}  // namespace qk::cpu
