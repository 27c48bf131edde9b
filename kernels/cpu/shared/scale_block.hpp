// Scales of 8 rows out of any layout, as f32 [group][row].
#pragma once
#include "cpu/access.hpp"
#include "cpu/shared/transpose.hpp"

namespace qk::cpu {

constexpr int64_t kPanelSteps = 32;  // of 16 columns

template <class Isa>
class ScalesOfRows {
  public:
    static constexpr int64_t kMost = kPanelSteps;  // groups at once, and a cut one

    ScalesOfRows(const Weight &w, const ScalePlane &plane)
        : w_(w), plane_(plane), row_scales_(w, plane), group_of_code_(w.geometry) {}

    // Of rows row .. row + 7, 0 for those past the last: `count` groups from first_of(i) on, into
    // whole runs of 4. read(row, group, count, to) reads a run of groups of a row.
    template <class FirstOf>
    void load(int64_t row, int64_t count, const FirstOf &first_of, float (*to)[8]) {
        const auto read = [this](int64_t, int64_t first, int64_t groups, float *of_row)
                              QK_INLINE { row_scales_.read(first, groups, of_row); };
        load(row, count, first_of, read, to);
    }
    template <class FirstOf, class Read>
    QK_NOINLINE void load(int64_t row, int64_t count, const FirstOf &first_of, const Read &read,
                          float (*to)[8]) {
        const Geometry &s = w_.geometry;
        float of_row[8][kMost + 16];  // in whole runs of 16
        for (int64_t i = 0; i < 8; ++i) {
            int64_t there = 0;
            if (row + i < s.n) {
                const int64_t first = first_of(i);
                there = s.flat ? min64(count, s.group_count - first) : count;
                row_scales_.start(row + i);
                read(row + i, first, there, of_row[i]);
                row_scales_.fetch(first + count, count);
            }
            for (; there < round_up(count, 4); ++there) of_row[i][there] = 0;
        }
        transpose(of_row, count, to);
    }

    // Where groups straddle rows: `count` groups of each row, from the one that `column` is in on,
    // which ends ends[i] columns later.
    void load_straddling(int64_t row, int64_t column, int64_t count, float (*to)[8],
                         int32_t *ends) {
        row_scales_.start(0);
        const auto read = [this](int64_t group, int64_t groups, float *of_row)
                              QK_INLINE { row_scales_.read(group, groups, of_row); };
        load_straddling(row, column, count, read, to, ends);
    }
    template <class Read>
    QK_NOINLINE void load_straddling(int64_t row, int64_t column, int64_t count, const Read &read,
                                     float (*to)[8], int32_t *ends) {
        const Geometry &s = w_.geometry;
        float of_row[8][kMost + 16];
        for (int64_t i = 0; i < 8; ++i) {
            const int64_t at = (row + i) * s.k + column, group = group_of_code_(at);
            ends[i] = int32_t(min64((group + 1) * s.group_size - at, INT32_MAX));
            if (row + i < s.n && group + round_up(count, 8) <= s.group_count &&
                widen(group, count, of_row[i])) {
                continue;
            }
            const int64_t there = row + i < s.n ? min64(count, s.group_count - group) : 0;
            if (there > 0) read(group, there, of_row[i]);
            for (int64_t g = there; g < round_up(count, 4); ++g) of_row[i][g] = 0;
        }
        transpose(of_row, count, to);
    }

    // Where groups straddle rows: `count` steps of 16 columns from step `first` on, each with the
    // scale of the group where it starts, kMostSteps at most; up to 7 more are written. Rows are
    // `pitch` apart. read(group, count, to) reads a run of groups.
    static constexpr int64_t kMostSteps = 132;
    template <class Read>
    QK_NOINLINE void load_steps(int64_t row, int64_t first, int64_t count, const Read &read,
                                int64_t pitch, float *to) {
        const Geometry &s = w_.geometry;
        const int64_t steps = s.group_size / 16;  // of a group
        const bool in_place = plane_.format->id == QK_FORMAT_F32;
        for (int64_t i = 0; i < 8; ++i, to += pitch) {
            if (row + i >= s.n) {
                memset(to, 0, size_t(count) * 4);
                continue;
            }
            const int64_t at = (row + i) * s.k + first * 16, group = group_of_code_(at);
            const int64_t last = group_of_code_(at + (count - 1) * 16);
            const int64_t groups = min64(last, s.group_count - 1) - group + 1;
            float scales[kMostSteps + 16];  // in whole runs of 16
            if (!in_place) read(group, groups, scales);
            const void *from = scales;
            if (in_place) from = static_cast<const char *>(plane_.data) + group * 4;
            row_scales_.fetch(group + groups, groups);
            const int64_t end = ceil_div((group + 1) * s.group_size - at, 16);
            switch (steps) {
                case 4: repeat<1>(from, groups, end, 4, to); break;
                case 8: repeat<2>(from, groups, end, 8, to); break;
                default: repeat<0>(from, groups, end, steps, to, count);
            }
        }
    }
    // Each of some scales for the steps of its group, the first up to `end`, in kRuns runs of four;
    // 0: as many as there are steps, `most` in all. What is past a group, the next one's takes.
    template <int kRuns>
    static void repeat(const void *from, int64_t groups, int64_t end, int64_t steps, float *to,
                       int64_t most = 0) {
        typedef float Four __attribute__((vector_size(16)));
        for (int64_t g = 0, step = 0; g < groups; ++g, step = end, end += steps) {
            const float scale = load_as<float>(from, g);
            const Four four = {scale, scale, scale, scale};
            const int64_t last = kRuns > 0 ? step + 4 * kRuns : min64(end, most);
            for (int64_t at = step; at < last; at += 4) memcpy(to + at, &four, 16);
        }
    }
    // The same as [step][row]: groups of 8 rows side by side, of which a step has those that it
    // starts in.
    template <class Read>
    void load_steps(int64_t row, int64_t first, int64_t count, const Read &read, float (*to)[8]) {
        const int64_t steps = w_.geometry.group_size / 16;  // of a group
        for (int64_t at = 0; at < count; at += kMost * steps) {
            load_some_steps(row, first + at, min64(kMost * steps, count - at), read, to + at);
        }
    }
    template <class Read>
    QK_NOINLINE void load_some_steps(int64_t row, int64_t first, int64_t count, const Read &read,
                                     float (*to)[8]) {
        typedef int32_t Eight __attribute__((vector_size(32)));
        const Geometry &s = w_.geometry;
        const int64_t groups = (count - 1) / (s.group_size / 16) + 2;
        alignas(32) float scale[kMost + 4][8];
        alignas(32) int32_t of_first[8];
        load_straddling(row, first * 16, groups, read, scale, of_first);
        for (int64_t i = 0; i < 8; ++i) {
            row_scales_.fetch(group_of_code_((row + i) * s.k + first * 16) + groups, groups);
        }
        Eight ends, now, next;
        memcpy(&ends, of_first, sizeof(ends));
        for (int64_t step = 0, g = 0; step < count; ++g) {
            memcpy(&now, scale[g], sizeof(now));
            memcpy(&next, scale[g + 1], sizeof(next));
            for (int32_t at = 0; at < s.group_size && step < count; at += 16, ++step) {
                const Eight past = ends <= at, bits = (next & past) | (now & ~past);
                memcpy(to[step], &bits, sizeof(bits));
            }
        }
    }
    // Groups that straddle rows.
    void read(int64_t group, int64_t count, float *to) {
        row_scales_.start(0);
        row_scales_.read(group, count, to);
    }
    void fetch(int64_t group, int64_t count) {
        row_scales_.start(0);
        row_scales_.fetch(group, count);
    }

  private:
    // Numbers that are scales, 8 at a time; whether they are.
    QK_INLINE bool widen(int64_t group, int64_t count, float *to) const {
        const char *const data = static_cast<const char *>(plane_.data);
        switch (plane_.format->id) {
            case QK_FORMAT_F32:
                for (int64_t g = 0; g < count; g += 4) memcpy(to + g, data + (group + g) * 4, 16);
                return true;
            case QK_FORMAT_F16:
                for (int64_t g = 0; g < count; g += 8)
                    Isa::widen_f16(data + (group + g) * 2, to + g);
                return true;
            case QK_FORMAT_BF16:
                for (int64_t g = 0; g < count; g += 8)
                    Isa::widen_bf16(data + (group + g) * 2, to + g);
                return true;
            default: return false;
        }
    }
    template <size_t kLength>
    QK_INLINE static void transpose(const float (&of_row)[8][kLength], int64_t count,
                                    float (*to)[8]) {
        for (int64_t g = 0; g < count; g += 4) {
            transpose_4x4(&of_row[0][g], sizeof(of_row[0]), to[g], sizeof(to[0]));
            transpose_4x4(&of_row[4][g], sizeof(of_row[0]), to[g] + 4, sizeof(to[0]));
        }
    }

    const Weight &w_;
    const ScalePlane &plane_;
    RowScales<Isa> row_scales_;
    const GroupOfCode group_of_code_;
};

// The scales of 8 rows in any layout, or their minima.
template <class Isa>
class ScaleBlock {
  public:
    static constexpr int64_t kMost = ScalesOfRows<Isa>::kMost;

    explicit ScaleBlock(const Weight &w) : ScaleBlock(w, w.scale, {}) {}
    ScaleBlock(const Weight &w, const ScalePlane &plane, const Device &) : w_(w), rows_(w, plane) {}

    // Groups first .. first + count as f32 [group][row]; 0 for rows past the last.
    const char *load(int64_t row, int64_t first, int64_t count) {
        rows_.load(
            row, count, [=](int64_t) { return first; }, scales_);
        return reinterpret_cast<const char *>(scales_);
    }
    // The groups of columns column .. end, each row's from its own first one on.
    const char *load_columns(int64_t row, int64_t column, int64_t end) {
        const Geometry &s = w_.geometry;
        const int64_t size = s.group_size, first = column / size;
        if (s.flat) {
            int32_t ends[8];
            return load_straddling(row, column, ceil_div(end - column - 1, size) + 1, ends);
        }
        return load(row, first, ceil_div(end, size) - first);
    }
    const char *load_straddling(int64_t row, int64_t column, int64_t count, int32_t *ends) {
        rows_.load_straddling(row, column, count, scales_, ends);
        return reinterpret_cast<const char *>(scales_);
    }

  private:
    const Weight &w_;
    ScalesOfRows<Isa> rows_;
    float scales_[kMost + 4][8];  // in whole runs of 4
};

}  // namespace qk::cpu
