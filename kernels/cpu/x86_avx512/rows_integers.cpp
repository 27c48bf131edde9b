// One or two rows of x as integers over rows of nibbles as files store them (row, row_high, word,
// awq_gemv), whose codes are integers (docs/formats.md, "Order of sums"). 8 rows are walked side by
// side, a block of 128 columns at a time, 64 bytes of each:
//
//     groups of 128 and more    byte c has columns 2 c and 2 c + 1: a byte permute brings those of
//                               two lanes to 64 bits, two multishifts their nibbles to two dwords
//     groups of 16, 32, 64      a word is a lane's eight columns as it is; sums are in the order of
//                               words until a row's last block is added
//
// Then 6 byte products, 2 shifts, an addition, a conversion and a multiply-add, as in integers.cpp.
#include "cpu/linear/gemv_groups.hpp"
#include "cpu/x86_avx512/row_of_bytes.hpp"
#include "cpu/x86_avx512/rows8.hpp"

namespace qk::cpu {
namespace {

// Blocks that have one group. `high_first`: of nibbles whose pairs are swapped, here and below.
template <bool high_first>
struct WholeBlocks {
    static constexpr bool kWords = false;
    static constexpr int kGroups = 1;
    using X = OffsetBytes<XOrder::kHalves>;

    QK_INLINE static void split(__m512i words, __m512i *low, __m512i *high) {
        const __m512i bytes = _mm512_permutexvar_epi8(kBytesOfLanes.load(), words);
        const auto nibbles = [](uint64_t even, uint64_t odd) {
            return _mm512_set1_epi64(int64_t(even | odd << 32));
        };
        constexpr uint64_t low_of_first = 0x18100800, low_of_last = 0x38302820,
                           to_high = 0x04040404;
        constexpr uint64_t even = high_first ? to_high : 0, odd = high_first ? 0 : to_high;
        *low =
            _mm512_multishift_epi64_epi8(nibbles(low_of_first + even, low_of_first + odd), bytes);
        *high = _mm512_multishift_epi64_epi8(nibbles(low_of_last + even, low_of_last + odd), bytes);
    }

  private:
    // Byte i of 64 bits p is byte 8 i + p.
    static constexpr Index<uint8_t, 64> kBytesOfLanes =
        Index<uint8_t, 64>([](int at) { return at % 8 * 8 + at / 8; });
};

// Blocks that have several.
template <int groups, bool high_first>
struct SmallGroups {
    static constexpr bool kWords = true;
    static constexpr int kGroups = groups;
    using X = OffsetBytes<high_first ? XOrder::kSwappedWords : XOrder::kWords>;

    QK_INLINE static void split(__m512i words, __m512i *low, __m512i *high) {
        *low = words;
        *high = _mm512_srli_epi16(words, 4);
    }
    // A group's number to the words that have it. The vector may reach into the next line, but
    // broadcasts of 16 or 32 bytes would take a port that permutes have.
    QK_INLINE static __m512 spread(const float *of_groups) {
        return _mm512_permutexvar_ps(kGroupOfWord.load(), _mm512_loadu_ps(of_groups));
    }
    QK_INLINE static __m512i spread(const uint32_t *of_groups) {
        return _mm512_permutexvar_epi32(kGroupOfWord.load(), _mm512_loadu_si512(of_groups));
    }

  private:
    static constexpr Index<int32_t, 16> kGroupOfWord =
        Index<int32_t, 16>([](int word) { return word * groups / 16; });
};

// Minima of rows, four groups at a time: a lane has every fourth one, as minima.hpp has them.
class MinimaOfRows {
  public:
    explicit MinimaOfRows(const LinearArgs &args)
        : s_(args.w.geometry), lowered_(has_minimum(args.w)), minima_(args.w, args.w.minimum),
          sums_(args) {}

    void take_off(int64_t x_row, int64_t row, float *y) {
        if (!lowered_) return;
        __m128 low[8] = {};
        for (int64_t column = 0; column < s_.k; column += kRun) {
            const int64_t end = min64(column + kRun, s_.k), first = column / s_.group_size;
            const int64_t count = ceil_div(end, s_.group_size) - first;
            minima_.load(row, column, end);
            add(sums_.of(x_row, first, count), count, low);
        }
        for (int i = 0; i < 8; ++i) {
            const __m128 both = _mm_add_ps(low[i], _mm_movehl_ps(low[i], low[i]));
            y[i] -= both[0] + both[1];
        }
    }

  private:
    QK_NOINLINE void add(const float *sums, int64_t count, __m128 (&total)[8]) const {
        __m128 low[8];
        for (int i = 0; i < 8; ++i) low[i] = total[i];
        int64_t g = 0;
        for (; g + 4 <= count; g += 4) {
            const __m128 of_x = _mm_loadu_ps(sums + g);
            QK_UNROLL
            for (int i = 0; i < 8; ++i) {
                low[i] = _mm_fmadd_ps(_mm_load_ps(minima_.scale[i] + g), of_x, low[i]);
            }
        }
        const __mmask8 there = __mmask8((1u << (count - g)) - 1);
        const __m128 of_x = _mm_maskz_loadu_ps(there, sums + g);
        for (int i = 0; i < 8; ++i) {
            const __m128 minima = _mm_load_ps(minima_.scale[i] + g);
            total[i] = _mm_mask3_fmadd_ps(minima, of_x, low[i], there);
        }
    }

    const Geometry &s_;
    const bool lowered_;
    Groups8 minima_;
    SumsOfGroups<Avx512> sums_;
};

template <class Blocks, CodeKind kind>
class IntegerRows8 : Rows8 {
  public:
    using X = typename Blocks::X;

    IntegerRows8(const LinearArgs &args, const Device &, const RowsOfBlocks<X> &x)
        : Rows8(args), x_(x), minima_(args), entries_(byte_entries(args.w)) {
        for (int32_t zero = 0; zero < 16; ++zero) minus_zero_[zero] = minus_zero_halves(zero);
    }

    void run(int64_t block) {
        const auto restore = [](Sums<Avx512> &sums) QK_INLINE {
            if (!Blocks::kWords) return;
            for (Lanes<Avx512> &sum : sums.row) sum = NibbleOrder::restore(sum);
        };
        sum_runs(
            block,
            [&](const Run &run, Sums<Avx512> *sums) QK_INLINE {
            if (kind == CodeKind::kZeros) subtract_zeros(run);
            for (int64_t j = 0; j < args_.x.rows; ++j) {
                if (run.first % kPanelOfX == 0) x_panel_[j] = x_.of(j, panel_at(run.first));
                add(run, x_panel_[j] + run.first % kPanelOfX / kBlock, sums[j]);
            }
            },
            restore,
            [&](int64_t x_row, int64_t row, float *y) { minima_.take_off(x_row, row, y); });
    }

  private:
    Panel panel_at(int64_t column) const {
        const int64_t end = min64(column + kPanelOfX, args_.w.geometry.k);
        return {column / kBlock, ceil_div(end, kBlock), 0, 0, 0, 0};
    }

    // What sums of x are multiplied by, for the zeros of a run.
    QK_NOINLINE void subtract_zeros(const Run &run) {
        const int64_t count = ceil_div(run.last, args_.w.geometry.group_size) - run.group;
        const __m512i of_zero = _mm512_load_si512(minus_zero_);
        for (int i = 0; i < 8; ++i) {
            for (int64_t g = 0; g < count; g += 16) {
                const auto *from = reinterpret_cast<const __m128i *>(groups_.zero[i] + g);
                const __m512i zeros = _mm512_cvtepu8_epi32(_mm_loadu_si128(from));
                _mm512_store_si512(minus_[i] + g, _mm512_permutexvar_epi32(zeros, of_zero));
            }
        }
    }

    QK_NOINLINE void add(const Run &run, const X *x, Sums<Avx512> &total) const {
        const int64_t size = args_.w.geometry.group_size;
        const uint8_t *codes = codes_at(run.row, run.first / 2);
        const uint8_t *ahead = codes_ahead(run);
        Sums<Avx512> sums = total;  // a copy that nothing points to stays in registers
        int64_t group = 0, next = (run.group + 1) * size;
        for (int64_t at = run.first; at < run.last; at += kBlock, codes += 64, ahead += 512, ++x) {
            if (!Blocks::kWords && at >= next) ++group, next += size;
            const int64_t left = run.last - at;
            if (left >= kBlock) {
                add_block(codes, stride_, ahead, *x, group, Blocks::kGroups, sums);
            } else {
                Sums<Avx512> last = sums;
                add_last(codes, ahead, *x, group, left, last);
                sums = last;
            }
            if (Blocks::kWords) group += Blocks::kGroups;
        }
        total = sums;
    }

    // x is 0 after the last column.
    QK_NOINLINE void add_last(const uint8_t *codes, const uint8_t *ahead, const X &x, int64_t group,
                              int64_t columns, Sums<Avx512> &sums) const {
        uint8_t rest[8][64] = {};
        for (int i = 0; i < 8; ++i) {
            memcpy(rest[i], codes + i * stride_, size_t(ceil_div(columns, 2)));
        }
        const int64_t there = Blocks::kWords ? ceil_div(columns, args_.w.geometry.group_size) : 1;
        add_block(rest[0], 64, ahead, x, group, there, sums);
    }

    // `there`: groups; sums of those that are not are left as they are, by -0 times 0.
    QK_INLINE void add_block(const uint8_t *codes, int64_t stride, const uint8_t *ahead, const X &x,
                             int64_t group, int64_t there, Sums<Avx512> &sums) const {
        __m512i low[3], high[3];
        for (int i = 0; i < 3; ++i) {
            low[i] = _mm512_load_si512(x.low[i]);
            high[i] = _mm512_load_si512(x.high[i]);
        }
        const __m512i of_lanes = _mm512_load_si512(kind == CodeKind::kZeros ? x.sum : x.start);
        const __m512i entries = kind == CodeKind::kTable ? entries_ : _mm512_set1_epi8(15);
        const __mmask16 words = __mmask16((1u << there * 16 / Blocks::kGroups) - 1);
        QK_UNROLL
        for (int i = 0; i < 8; ++i, codes += stride) {
            fetch_later(ahead + 64 * i, few_fills_);
            __m512i even, odd;
            Blocks::split(Avx512::load_words(codes).v, &even, &odd);
            even = entry(even, entries);
            odd = entry(odd, entries);
            __m512i least = kind == CodeKind::kZeros ? _mm512_setzero_si512() : of_lanes;
            __m512i dot = _mm512_setzero_si512();
            add_bytes(dot, even, low[2]);
            if (kind == CodeKind::kZeros) add_zero(least, of_lanes, i, group);
            add_bytes(dot, odd, high[2]);
            add_bytes(least, even, low[0]);
            dot = _mm512_slli_epi32(dot, 8);
            add_bytes(least, odd, high[0]);
            add_bytes(dot, even, low[1]);
            add_bytes(dot, odd, high[1]);
            dot = _mm512_add_epi32(least, _mm512_slli_epi32(dot, 8));
            __m512 by = factor(i, group, x.unit);
            if (there < Blocks::kGroups) {
                by = _mm512_mask_mov_ps(_mm512_set1_ps(-0.0f), words, by);
            }
            sums.row[i].v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), by, sums.row[i].v);
        }
    }

    QK_INLINE static __m512i entry(__m512i codes, __m512i entries) {
        return kind == CodeKind::kTable ? _mm512_permutexvar_epi8(codes, entries)
                                        : _mm512_and_si512(codes, entries);
    }
    QK_INLINE __m512 factor(int row, int64_t group, float unit) const {
        const float *const scales = groups_.scale[row] + group;
        if constexpr (!Blocks::kWords) {
            return _mm512_mul_ps(_mm512_set1_ps(*scales), _mm512_set1_ps(unit));
        } else {
            return _mm512_mul_ps(Blocks::spread(scales), _mm512_set1_ps(unit));
        }
    }
    // Adds a sum of x times minus the zero.
    QK_INLINE void add_zero(__m512i &sum, __m512i of_lanes, int row, int64_t group) const {
        if constexpr (!Blocks::kWords) {
            add_halves(sum, of_lanes, minus_[row][group]);
        } else {
            add_halves(sum, of_lanes, Blocks::spread(minus_[row] + group));
        }
    }

    const RowsOfBlocks<X> x_;
    const X *x_panel_[kLaneRows] = {};
    MinimaOfRows minima_;
    const __m512i entries_;
    alignas(64) uint32_t minus_zero_[16];  // of each zero, and of a run's groups:
    alignas(64) uint32_t minus_[kind == CodeKind::kZeros ? 8 : 1][kRunGroups + 15];
};

template <class Blocks>
Status run_rows(const LinearArgs &args, const Launch &launch) {
    switch (code_kind(args.w)) {
        case CodeKind::kZeros:
            return run_row_blocks<IntegerRows8<Blocks, CodeKind::kZeros>, kLinearRowsAvx512>(
                args, launch);
        case CodeKind::kSymmetric:
            return run_row_blocks<IntegerRows8<Blocks, CodeKind::kSymmetric>, kLinearRowsAvx512>(
                args, launch);
        default:
            return run_row_blocks<IntegerRows8<Blocks, CodeKind::kTable>, kLinearRowsAvx512>(
                args, launch);
    }
}

template <bool high_first>
Status run_rows_of(const LinearArgs &args, const Launch &launch) {
    if (!in_small_groups(args.w.geometry)) return run_rows<WholeBlocks<high_first>>(args, launch);
    switch (args.w.geometry.group_size) {
        case 16: return run_rows<SmallGroups<8, high_first>>(args, launch);
        case 32: return run_rows<SmallGroups<4, high_first>>(args, launch);
        default: return run_rows<SmallGroups<2, high_first>>(args, launch);
    }
}

Status run(const LinearArgs &args, const Launch &launch) {
    return args.w.layout->id == QK_LAYOUT_ROW_HIGH ? run_rows_of<true>(args, launch)
                                                   : run_rows_of<false>(args, launch);
}

}  // namespace

const Kernel<LinearArgs> kLinearIntegerRowsVnni = linear_kernel<row_of("avx512 vnni rows")>(run);
const Kernel<LinearArgs> kLinearGroupRowsVnni =
    linear_kernel<row_of("avx512 vnni rows of groups")>(run);

}  // namespace qk::cpu
