// What the kernels over the packed layout share: the scales of 8 rows as f32, a run of groups at a
// time.
#pragma once
#include <type_traits>

#include "base/checked.hpp"
#include "cpu/access.hpp"
#include "cpu/kernels.hpp"
#include "cpu/shared/code_tables.hpp"
#include "cpu/shared/integer_scales.hpp"
#include "cpu/shared/nested.hpp"
#include "cpu/shared/scale_block.hpp"
#include "cpu/shared/widen_rows.hpp"

namespace qk::cpu {
namespace {

inline int64_t chunk_count(const Geometry &s) { return ceil_div(s.k, 128); }

// Workspace for `bytes` a chunk of `rows` rows of x, aligned to 64. Rows may be as many as
// qk_linear_workspace is asked about; where no memory could hold them, no context has enough.
inline size_t chunk_workspace(const Geometry &s, int64_t rows, size_t bytes) {
    const Checked total = Checked(rows) * chunk_count(s) * int64_t(bytes) + 64;
    return total.ok && uint64_t(total.value) <= SIZE_MAX ? size_t(total.value) : SIZE_MAX;
}

// Groups that a chunk has: 8, 4, 2, or 1 of whole chunks; where they straddle rows, 8 of 16.
inline int64_t groups_of_chunk(const Geometry &s) {
    if (s.flat) return 8;
    return s.group_size >= s.k || s.group_size >= 128 ? 1 : 128 / s.group_size;
}

// The groups of chunks first .. last. Divisions are slow, so the usual cases have none.
struct GroupRun {
    int64_t first, count;
};
template <int kGroups>
inline GroupRun groups_of_run(const Geometry &s, int64_t first, int64_t last) {
    if (kGroups > 1) {
        const int64_t group = first * kGroups;
        return {group, min64(last * kGroups, s.groups_per_row) - group};
    }
    const int64_t group = first == 0 ? 0 : first * 128 / s.group_size;
    const int64_t end = last * 128 >= s.k ? s.groups_per_row : ceil_div(last * 128, s.group_size);
    return {group, end - group};
}

// Of packed rows: a chunk, 8 rows of 64 bytes; and the zeros of a block of 8 rows from a group on,
// 4 bytes a group, a nibble a row, null where there are none.
inline const uint8_t *packed_chunk(const Weight &w, int64_t index) {
    return static_cast<const uint8_t *>(w.data) + index * 512;
}
inline const uint8_t *packed_zeros(const Weight &w, int64_t block, int64_t group) {
    if (w.zero == nullptr) return nullptr;
    return static_cast<const uint8_t *>(w.zero) + (block * w.geometry.groups_per_row + group) * 4;
}

// Tasks of blocks of 8 rows of w: each makes a Rows of the arguments and `more`.
template <class Rows, class... More>
inline void run_blocks(const LinearArgs &args, const Launch &launch, const More &...more) {
    parallel_ranges(launch.parallel, ceil_div(args.w.geometry.n, 8), 1, 8 * work_of_row(args),
                    [&](int64_t first, int64_t last) {
        InScratch<Rows> rows(launch.scratch, args, more...);
        run_each(*rows, first, last);
    });
}

// Adds `count` numbers of a dense row, from `first` on.
inline void add_floats(const Dense &from, int64_t first, int64_t count, float *to) {
    constexpr int64_t kRun = 64;
    for (int64_t i = 0; i < count; i += kRun) {
        float values[kRun];
        const int64_t some = min64(kRun, count - i);
        load_floats(from.format->id, from.data, first + i, some, values);
        for (int64_t r = 0; r < some; ++r) to[i + r] += values[r];
    }
}

// Sums of columns first .. first + count of y, as store_y stores each; y itself is changed.
QK_NOINLINE inline void store_run(const LinearArgs &args, int64_t x_row, int64_t first,
                                  int64_t count, float *y) {
    const int64_t at = x_row * row_stride(args.y) + first;
    if (args.bias != nullptr) add_floats(*args.bias, first, count, y);
    if (args.accumulate) add_floats(args.y, at, count, y);
    store_floats(args.y.format->id, args.y.data, at, count, y);
}

// The same of a block of 8 rows of w.
QK_NOINLINE inline void store_8(const LinearArgs &args, int64_t x_row, int64_t row_block,
                                float *y) {
    const int64_t first = row_block * 8, rows = min64(8, args.w.geometry.n - first);
    const int64_t at = x_row * row_stride(args.y) + first;
    const bool plain = args.bias == nullptr && !args.accumulate;
    if (rows == 8 && plain && args.y.format->id == QK_FORMAT_F32) {
        memcpy(static_cast<char *>(args.y.data) + at * 4, y, 8 * sizeof(y[0]));
        return;
    }
    store_run(args, x_row, first, rows, y);
}
constexpr int64_t kPanelChunks = 16;                // chunks of 128 columns
constexpr int64_t kPanelGroups = kPanelChunks * 8;  // of 16 columns, the smallest group

// The scales of one block of 8 rows, groups first .. first + count, as f32 [group][row]. Plain f32
// scales of packed weights are read in place.
template <class Isa>
class ScalePanel {
  public:
    ScalePanel(const Weight &w, const Device &device) : ScalePanel(w, w.scale, device) {}
    // `plane`: the weight's scales, or its minima.
    QK_NOINLINE ScalePanel(const Weight &w, const ScalePlane &plane, const Device &device)
        : w_(w), plane_(plane), stored_(w, plane), packed_(w.layout->id == kLayoutRows8),
          widen_(pick_nested_widener<Isa>(device)), look_up_(pick_byte_lookup<Isa>(device)) {
        in_sequence_ = !packed_ && rows_in_sequence(w);
        if (!has_coded_scales(plane)) return;
        load_nested_code(w, plane, &nested_);
        // Powers of two need no table.
        looked_up_ =
            in_sequence_ && plane.format->id != QK_FORMAT_I8 && plane.format->id != QK_FORMAT_E8M0;
        const int64_t size = plane.second_group;
        const bool power = (size & (size - 1)) == 0;
        second_ = {plane.second,
                   (w.geometry.group_count - 1) / size,
                   size,
                   power ? int32_t(__builtin_ctzll(uint64_t(size))) : -1,
                   0,
                   w.geometry.groups_per_row};
        bias_ = load_as<float>(plane.bias, 0);
        integers_ = plane.format->id == QK_FORMAT_I8 && power && size % 2 == 0 &&
                    w.geometry.groups_per_row % size == 0;
    }

    QK_NOINLINE const char *load(int64_t row_block, int64_t first, int64_t count) {
        if (w_.geometry.flat) return load_flat(row_block, first, count);
        if (!packed_) return load_stored(row_block, first, count);
        const int64_t at = (row_block * w_.geometry.groups_per_row + first) * 8;
        const char *const data = static_cast<const char *>(plane_.data);
        if (first == 0) most_ = count;  // a row's last panel may be shorter than the next one
        switch (plane_.format->id) {
            case QK_FORMAT_F32: return data + at * 4;
            case QK_FORMAT_F16:
                for (int64_t i = 0; i < count; ++i) {
                    Isa::widen_f16(data + (at + i * 8) * 2, scales_[i]);
                }
                fetch(data + (at + count * 8) * 2, most_ * 16);
                break;
            case QK_FORMAT_BF16:
                for (int64_t i = 0; i < count; ++i) {
                    Isa::widen_bf16(data + (at + i * 8) * 2, scales_[i]);
                }
                fetch(data + (at + count * 8) * 2, most_ * 16);
                break;
            default:
                widen_codes(data + at, row_block, first, count);
                fetch(data + at + count * 8, most_ * 8);
        }
        return reinterpret_cast<const char *>(scales_);
    }

    // Where groups straddle rows: of steps first .. first + count of 16 columns, the scale of where
    // each starts, a row after the other. Up to 7 more are written.
    void load_steps(int64_t row_block, int64_t first, int64_t count, int64_t pitch, float *to) {
        stored_.load_steps(row_block * 8, first, count, group_reader(), pitch, to);
    }
    const char *load_straddling(int64_t row_block, int64_t column, int64_t count, int32_t *ends) {
        stored_.load_straddling(row_block * 8, column, count, group_reader(), scales_, ends);
        return reinterpret_cast<const char *>(scales_);
    }

    // Where groups straddle rows: `count` groups of a row from `first` on, with room for one
    // before; in place or in `to`, into whole runs of 16. As many from `next` on are fetched.
    const char *load_groups(int64_t first, bool before, int64_t count, int64_t next, float *to) {
        stored_.fetch(next, count);
        if (plane_.format->id == QK_FORMAT_F32 && first >= before) {
            return static_cast<const char *>(plane_.data) + (first - before) * 4;
        }
        group_reader()(first, count, to + before);
        return reinterpret_cast<const char *>(to);
    }

    // Of i8 codes whose rows change second scales together: log2 of the groups that share one, 8 or
    // more; else -1.
    int32_t second_shift() const { return integers_ ? second_.shift : -1; }
    // Second scales first .. last of 8 rows, each vector twice, in whole runs of 4. The same of the
    // next 8 rows are fetched, in pieces too short for a processor's own prefetching.
    static constexpr int64_t kMostSecond = kPanelGroups / 8 + 4;
    QK_NOINLINE void load_second(int64_t row_block, int64_t first, int64_t last,
                                 float (*to)[16]) const {
        const int64_t of_row = second_.per_row >> second_.shift, count = last - first + 1;
        const int64_t at = row_block * 8 * of_row + first;
        const char *const from = static_cast<const char *>(second_.plane) + at * 4;
        for (int64_t row = 0; row < 8; ++row) fetch(from + (8 + row) * of_row * 4, count * 4);
        if (at + 7 * of_row + round_up(count, 4) - 1 <= second_.last) {
            for (int64_t i = 0; i < count; i += 4) {
                for (int64_t row = 0; row < 16; row += 4) {
                    transpose_4x4(from + (row % 8 * of_row + i) * 4, of_row * 4, to[i] + row,
                                  sizeof(to[0]));
                }
            }
            return;
        }
        for (int64_t i = 0; i < count; ++i) {
            for (int64_t row = 0; row < 16; ++row) {
                const int64_t index = min64(at + row % 8 * of_row + i, second_.last);
                to[i][row] = load_as<float>(second_.plane, index);
            }
        }
    }

    // Where every scale is its code's number times one number: the numbers, and that one.
    const NestedCode *code_of_all(float *factor) const {
        if (!has_coded_scales(plane_) || second_.size != kOneSecond) return nullptr;
        if (f32_bits(bias_) != 0x80000000) return nullptr;
        *factor = load_as<float>(second_.plane, 0);
        return &nested_;
    }

  private:
    // Steps of 16 columns in the place of groups (geometry_of_blocks).
    const char *load_flat(int64_t row_block, int64_t first, int64_t count) {
        stored_.load_steps(row_block * 8, first, count, group_reader(), scales_);
        return reinterpret_cast<const char *>(scales_);
    }
    auto group_reader() {
        return [this](int64_t group, int64_t groups, float *to) {
            const bool looked_up = has_coded_scales(plane_) && plane_.format->id != QK_FORMAT_I8;
            looked_up ? look_up(group, groups, to) : stored_.read(group, groups, to);
        };
    }
    static bool rows_in_sequence(const Weight &w) {
        const Geometry &s = w.geometry;
        return run_pad(w) != 0 && w.layout->scale_at(s, {1, 0}) == s.groups_per_row;
    }
    // Into whole runs of 16.
    void look_up(int64_t first, int64_t count, float *to) const {
        const uint8_t *const codes = static_cast<const uint8_t *>(plane_.data) + first;
        int64_t second = first / plane_.second_group;
        for (int64_t i = 0; i < count; ++second) {
            const int64_t end = min64(count, (second + 1) * plane_.second_group - first);
            const float by = load_as<float>(plane_.second, second);
            look_up_(nested_, codes + i, end - i, by, to + i);
            i = end;
        }
        if (f32_bits(bias_) == 0x80000000) return;  // -0 changes nothing
        for (int64_t i = 0; i < count; i += 16) {
            Isa::store_f32(to + i, Isa::add(Isa::load_f32(to + i), Isa::splat(bias_)));
        }
    }

    const char *load_stored(int64_t row_block, int64_t first, int64_t count) {
        if (load_rows(row_block, first, count)) return reinterpret_cast<const char *>(scales_);
        const int64_t row = row_block * 8;
        const auto read = [this](int64_t r, int64_t group, int64_t groups, float *to) {
            look_up(r * w_.geometry.groups_per_row + group, groups, to);
        };
        for (int64_t i = 0; i < count; i += ScalesOfRows<Isa>::kMost) {
            const int64_t some = min64(ScalesOfRows<Isa>::kMost, count - i);
            const auto first_of = [=](int64_t) { return first + i; };
            looked_up_ ? stored_.load(row, some, first_of, read, scales_ + i)
                       : stored_.load(row, some, first_of, scales_ + i);
        }
        return reinterpret_cast<const char *>(scales_);
    }

    // Of 8 whole rows, 8 groups at a time, in the order of packed ones. Whether they could be;
    // those of the next 8 rows are fetched.
    QK_NOINLINE bool load_rows(int64_t row_block, int64_t first, int64_t count) {
        const Geometry &s = w_.geometry;
        const int64_t of_row = s.groups_per_row, at = row_block * 8 * of_row + first;
        const bool inside = at + 7 * of_row + round_up(count, 8) <= s.group_count;
        if (!in_sequence_ || row_block * 8 + 8 > s.n || !inside) return false;
        const int64_t size = plane_.format->bits / 8, pitch = of_row * size;
        const char *const from = static_cast<const char *>(plane_.data) + at * size;
        for (int64_t row = 8; row < 16; ++row) fetch(from + row * pitch, count * size);
        if (!has_coded_scales(plane_)) {
            widen_rows<Isa>(plane_.format->id, from, pitch, count, scales_);
            return true;
        }
        alignas(16) uint8_t packed[kPanelGroups + 8][8];
        const uint8_t *const codes = reinterpret_cast<const uint8_t *>(from);
        for (int64_t i = 0; i < count; i += 8) transpose_8x8_bytes(codes + i, pitch, packed[i]);
        widen_codes(reinterpret_cast<const char *>(packed), row_block, first, count);
        return true;
    }
    void widen_codes(const char *from, int64_t row_block, int64_t first, int64_t count) {
        if (integers_ && first % 2 == 0) return scale_integers(from, row_block, first, count);
        load_nested(from, row_block, first, count);
    }

    // What the next panel will want all at once.
    static void fetch(const char *from, int64_t bytes) {
        for (int64_t i = 0; i < bytes; i += 64) {
            prefetch(reinterpret_cast<const uint8_t *>(from) + i);
        }
    }

    // Two groups of 8 rows at once.
    QK_NOINLINE void scale_integers(const char *from, int64_t row_block, int64_t first,
                                    int64_t count) {
        const int64_t start = first >> second_.shift;
        const int64_t last = (first + count - 1) >> second_.shift;
        alignas(64) float second[kMostSecond][16];
        load_second(row_block, start, last, second);
        const uint8_t *codes = reinterpret_cast<const uint8_t *>(from);
        int64_t i = 0;
        Lanes<Isa> by = Isa::zero_lanes();
        for (int64_t s = start; s <= last; ++s) {
            by = Isa::load_f32(second[s - start]);
            const int64_t end = min64(((s + 1) << second_.shift) - first, count);
            for (; i + 2 <= end; i += 2, codes += 16) {
                Isa::store_f32(scales_[i], Isa::mul(Isa::load_s8(codes), by));
            }
        }
        if (i == count) return;
        uint8_t only[16] = {};
        memcpy(only, codes, 8);
        Isa::store_f32(scales_[i], Isa::mul(Isa::load_s8(only), by));
    }

    void load_nested(const char *from, int64_t row_block, int64_t first, int64_t count) {
        SecondRun run = second_;
        run.number = row_block * 8 * run.per_row + first;
        for (int64_t i = 0; i < count;) {
            const int64_t taken = widen_(nested_, from + i * 8, count - i, run, bias_, scales_ + i);
            run.number += taken;
            i += taken;
        }
    }

    const Weight &w_;
    const ScalePlane &plane_;
    ScalesOfRows<Isa> stored_;  // of every other layout
    const bool packed_;
    SecondRun second_;
    bool integers_ = false;     // i8, as scale_integers takes it
    bool in_sequence_ = false;  // groups of a row, and rows
    bool looked_up_ = false;    // a row at a time
    float bias_ = 0;
    int64_t most_ = 0;  // groups of a row's first panel
    NestedCode nested_;
    const WidenNested widen_;
    const LookUpBytes look_up_;
    // The last ones: some writers store 8 groups at a time.
    alignas(64) float scales_[kPanelGroups + 8][8];
};

// f32 scales in place are a second stream, which the processor's own prefetching does not keep up
// with: those of as many groups, 32 chunks on.
inline void fetch_scales(const char *scales, int64_t groups = 2) {
    prefetch_lines(scales, groups * 32, groups * 1024);
}

}  // namespace
}  // namespace qk::cpu
