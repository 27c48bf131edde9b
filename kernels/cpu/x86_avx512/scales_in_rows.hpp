// Scales or minima of 8 rows as files store them, row by row: those of 128 columns as f32, two
// groups of 8 rows a vector, where they are used. Widened for thousands of columns before, they
// cost 1.1 to 1.5 cycles for 64 bytes of codes, in which next to nothing came from memory.
#pragma once
#include "cpu/x86_avx512/row_of_bytes.hpp"
#include "cpu/x86_avx512/scale_codes.hpp"

namespace qk::cpu {
namespace {

template <int kGroups>  // of 128 columns: 1, 2, 4 or 8
constexpr int kPairs = kGroups == 1 ? 1 : kGroups / 2;

// Codes of two groups of 8 rows.
QK_INLINE inline __m128i sixteen(__m512i codes, int pair) {
    switch (pair) {
        case 0: return _mm512_castsi512_si128(codes);
        case 1: return _mm512_extracti32x4_epi32(codes, 1);
        case 2: return _mm512_extracti32x4_epi32(codes, 2);
        default: return _mm512_extracti32x4_epi32(codes, 3);
    }
}

class ScalesInRows {
  public:
    // `plane`: the weight's scales or its minima, perhaps none. `most`: bytes that a row has of
    // them for 128 columns.
    ScalesInRows(const Weight &w, const ScalePlane &plane, int64_t most = 8)
        : s_(w.geometry), plane_(plane) {
        if (plane.format == nullptr || s_.flat || s_.k % 128 != 0) return;
        const int64_t size = plane.second_group;
        format_ = plane.format->id;
        bytes_ = plane.format->bits / 8;
        const int64_t groups = groups_of_chunk(s_);
        if (groups > 1 ? s_.group_size * groups != 128 : s_.group_size % 128 != 0) return;
        if (w.layout->scale_at(s_, {1, 0}) != s_.groups_per_row) return;
        if (format_ == QK_FORMAT_I8) {
            const bool power = (size & (size - 1)) == 0;
            shift_ = __builtin_ctzll(uint64_t(size));
            reads_ = groups >= 4 && power && size >= groups && s_.groups_per_row % size == 0;
        } else {
            reads_ = !has_coded_scales(plane) && groups * bytes_ <= most;
        }
        reads_codes_ = has_coded_scales(plane) && groups >= 4;
    }
    // Whether this weight's are so stored that load() reads them.
    bool reads() const { return reads_; }
    // Whether codes() does.
    bool reads_codes() const { return reads_codes_; }

    // The bytes of codes of scales where load() has the scales: [group][row], repeated if few.
    template <int kGroups>
    QK_INLINE __m512i codes(int64_t row, int64_t group) const {
        static_assert(kGroups >= 4);
        const int64_t first = row * s_.groups_per_row, next = first + 8 * s_.groups_per_row;
        prefetch_stream(static_cast<const uint8_t *>(plane_.data) + next + 8 * group);
        return rows_of<kGroups, 1>(static_cast<const char *>(plane_.data) + first + group,
                                   s_.groups_per_row);
    }

    // Of rows row .. row + 7, from a group on; kGroups are those of 128 columns. What comes in its
    // place 8 rows further on is fetched, as a stream.
    template <int kGroups>
    QK_INLINE void load(int64_t row, int64_t group, __m512 (&to)[kPairs<kGroups>]) const {
        if constexpr (kGroups >= 4) {
            if (format_ == QK_FORMAT_I8) return load_integers<kGroups>(row, group, to);
        }
        load_numbers<kGroups>(row, group, to);
    }
    // Those that are no codes.
    template <int kGroups>
    QK_INLINE void load_numbers(int64_t row, int64_t group, __m512 (&to)[kPairs<kGroups>]) const {
        const int64_t first = row * s_.groups_per_row, next = first + 8 * s_.groups_per_row;
        const char *const at = static_cast<const char *>(plane_.data) + (first + group) * bytes_;
        const auto ahead = static_cast<const uint8_t *>(plane_.data) + (next + 8 * group) * bytes_;
        const int64_t pitch = s_.groups_per_row * bytes_;
        switch (format_) {
            case QK_FORMAT_F16:
                fetch_lines<16 * kGroups>(ahead);
                return widen_halves<kGroups>(
                    at, pitch, [](__m256i v) QK_INLINE { return _mm512_cvtph_ps(v); }, to);
            case QK_FORMAT_BF16:
                fetch_lines<16 * kGroups>(ahead);
                return widen_halves<kGroups>(
                    at, pitch,
                    [](__m256i v) QK_INLINE {
                    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
                    },
                    to);
            default: fetch_lines<32 * kGroups>(ahead); load_floats<kGroups>(at, pitch, to);
        }
    }

  private:
    template <int kBytes>
    QK_INLINE static void fetch_lines(const uint8_t *ahead) {
        QK_UNROLL
        for (int i = 0; i < kBytes; i += 64) prefetch_stream(ahead + i);
    }
    // kSize bytes of each group, [group][row].
    template <int kGroups, int kSize>
    QK_INLINE static __m512i rows_of(const char *at, int64_t pitch) {
        static constexpr Index<uint8_t, 64> kOrder = Index<uint8_t, 64>([](int to) {
            const int number = to / kSize;
            return (number % 8 * kGroups + number / 8 % kGroups) * kSize + to % kSize;
        });
        const char *const r4 = at + 4 * pitch;
        const auto row = [=]<class T>(T, int i) QK_INLINE {
            return load_as<T>(i < 4 ? at + i * pitch : r4 + (i - 4) * pitch, 0);
        };
        __m512i rows;
        if constexpr (kSize * kGroups == 2) {
            constexpr int16_t t = 0;
            return _mm512_castsi128_si512(_mm_setr_epi16(row(t, 0), row(t, 1), row(t, 2), row(t, 3),
                                                         row(t, 4), row(t, 5), row(t, 6),
                                                         row(t, 7)));
        } else if constexpr (kSize * kGroups == 4) {
            constexpr int32_t t = 0;
            rows = _mm512_castsi256_si512(_mm256_setr_epi32(row(t, 0), row(t, 1), row(t, 2),
                                                            row(t, 3), row(t, 4), row(t, 5),
                                                            row(t, 6), row(t, 7)));
            if (kGroups == 1) return rows;
        } else {
            constexpr int64_t t = 0;
            rows = _mm512_setr_epi64(row(t, 0), row(t, 1), row(t, 2), row(t, 3), row(t, 4),
                                     row(t, 5), row(t, 6), row(t, 7));
        }
        return _mm512_permutexvar_epi8(kOrder.load(), rows);
    }

    template <int kGroups, class Widen>
    QK_INLINE static void widen_halves(const char *at, int64_t pitch, const Widen &widen,
                                       __m512 (&to)[kPairs<kGroups>]) {
        if constexpr (kGroups <= 4) {
            const __m512i rows = rows_of<kGroups, 2>(at, pitch);
            to[0] = widen(_mm512_castsi512_si256(rows));
            if constexpr (kGroups == 4) to[1] = widen(_mm512_extracti64x4_epi64(rows, 1));
        } else {
            static constexpr Index<uint16_t, 32> kFirst = Index<uint16_t, 32>(
                [](int to) { return to % 8 * 8 + to / 8; });  // 4 groups of 8 rows
            const __m512i low = quarters(at, pitch), high = quarters(at + 4 * pitch, pitch);
            const __m512i first = kFirst.load();
            const __m512i last = _mm512_add_epi16(first, _mm512_set1_epi16(4));
            const __m512i fours[2] = {_mm512_permutex2var_epi16(low, first, high),
                                      _mm512_permutex2var_epi16(low, last, high)};
            QK_UNROLL
            for (int i = 0; i < 4; ++i) {
                to[i] = widen(i % 2 == 0 ? _mm512_castsi512_si256(fours[i / 2])
                                         : _mm512_extracti64x4_epi64(fours[i / 2], 1));
            }
        }
    }

    // 16 bytes of each of 4 rows.
    QK_INLINE static __m512i quarters(const char *at, int64_t pitch) {
        const auto row = [=](int i) QK_INLINE {
            return _mm_loadu_si128(reinterpret_cast<const __m128i *>(at + i * pitch));
        };
        __m512i rows = _mm512_castsi128_si512(row(0));
        rows = _mm512_inserti32x4(rows, row(1), 1);
        rows = _mm512_inserti32x4(rows, row(2), 2);
        return _mm512_inserti32x4(rows, row(3), 3);
    }
    template <int kGroups>
    QK_INLINE static void load_floats(const char *at, int64_t pitch,
                                      __m512 (&to)[kPairs<kGroups>]) {
        if constexpr (kGroups <= 2) {
            to[0] = _mm512_castsi512_ps(rows_of<kGroups, 4>(at, pitch));
        } else {
            static constexpr Index<uint32_t, 16> kFirst =
                Index<uint32_t, 16>([](int to) { return to % 8 * 4 + to / 8; });
            const __m512i first = kFirst.load();
            const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(2));
            QK_UNROLL
            for (int i = 0; i < kPairs<kGroups>; i += 2, at += 16) {
                const __m512i low = quarters(at, pitch), high = quarters(at + 4 * pitch, pitch);
                to[i] = _mm512_castsi512_ps(_mm512_permutex2var_epi32(low, first, high));
                to[i + 1] = _mm512_castsi512_ps(_mm512_permutex2var_epi32(low, last, high));
            }
        }
    }

    // Codes times second scales, which the groups of 128 columns share.
    template <int kGroups>
    QK_INLINE void load_integers(int64_t row, int64_t group, __m512 (&to)[kPairs<kGroups>]) const {
        const int64_t of_row = s_.groups_per_row >> shift_;
        const char *const second =
            static_cast<const char *>(plane_.second) + (row * of_row + (group >> shift_)) * 4;
        prefetch_stream(reinterpret_cast<const uint8_t *>(second) + of_row * 32);
        const auto f = [=](int i) QK_INLINE { return load_as<float>(second + i * of_row * 4, 0); };
        const __m512 by =
            _mm512_broadcast_f32x8(_mm256_setr_ps(f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)));
        const __m512i all = codes<kGroups>(row, group);
        const auto pair = [=](int i) QK_INLINE { return sixteen(all, i); };
        widen_integers(pair, by, to);
    }

    const Geometry &s_;
    const ScalePlane &plane_;
    bool reads_ = false, reads_codes_ = false;
    qk_format format_ = QK_FORMAT_F32;
    int64_t bytes_ = 4;  // of a scale
    int32_t shift_ = 0;  // of i8 codes: log2 of the groups that share a second scale
};

}  // namespace
}  // namespace qk::cpu
