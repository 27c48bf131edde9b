// One or two rows of x as integers over packed codes that are integers, in groups of 16, 32 or 64
// (docs/formats.md, "Order of sums"). A lane has eight columns of one group, lanes 0..7 the first
// eights of 16 columns, lanes 8..15 the second ones. A chunk's bytes are permuted so that 64 bits
// have the nibbles of two lanes, one in the low halves of its bytes, one in the high ones:
//
//     bits 0..63     lane 2 b: columns 0..7, low halves; lane 2 b + 1: columns 0..7, high halves
//     permute, 2 multishifts, 2 masks or look-ups -> dwords of four columns of a lane, twice
//     6 byte products, 2 shifts, an addition, a conversion, a multiply-add     as integers.cpp has
//
// What a lane's sum is multiplied by, unit * scale, is prepared for 8 rows at once: both halves of
// the lanes have the same, so a row's is 8 floats, loaded twice. Entries of tables are unsigned,
// as far from themselves as symmetric codes are from 0..15; sums start at what that takes off.
#include "cpu/linear/gemv_groups.hpp"
#include "cpu/x86_avx512/group_scales.hpp"
#include "cpu/x86_avx512/row_of_bytes.hpp"

namespace qk::cpu {
namespace {

// [group][8 rows] in registers to [row][8 lanes] in memory.
template <int kGroups>
class LanesOfRows {
  public:
    QK_INLINE void store(const __m512 (&from)[kGroups / 2], float (*to)[8]) const {
        if constexpr (kGroups < 8) {
            QK_UNROLL
            for (int pair = 0; pair < 4; ++pair) {
                const __m512 all = kGroups == 2 ? _mm512_permutexvar_ps(pair_index(pair), from[0])
                                                : _mm512_permutex2var_ps(from[0], pair_index(pair),
                                                                         from[kGroups / 2 - 1]);
                _mm512_store_ps(to[2 * pair], all);
            }
        } else {
            QK_UNROLL
            for (int half = 0; half < 2; ++half) {
                const __m512i rows = kFours[half].load();
                const __m512 low = _mm512_permutex2var_ps(from[0], rows, from[1]);
                const __m512 high = _mm512_permutex2var_ps(from[2], rows, from[3]);
                for (int i = 0; i < 2; ++i) {
                    const int pair = 2 * half + i;
                    _mm512_store_ps(to[2 * pair],
                                    _mm512_permutex2var_ps(low, pair_index(pair), high));
                }
            }
        }
    }

    // The same of eight groups' scales that are halves (GroupScales::are_halves), times two
    // factors.
    QK_INLINE void store_halves(const char *from, float first, float second, float (*to)[8]) const {
        const __m512i codes = _mm512_loadu_si512(from);
        QK_UNROLL
        for (int four = 0; four < 2; ++four) {  // rows
            const __m512i bytes =
                _mm512_maskz_permutexvar_epi8(0xaaaaaaaaaaaaaaaa, kRows[four].load(), codes);
            const __m512i halves = _mm512_srli_epi16(bytes, 1);
            const auto put = [&](__m256i of_two, int row) QK_INLINE {
                const __m512 scale = _mm512_mul_ps(_mm512_cvtph_ps(of_two), _mm512_set1_ps(first));
                _mm512_store_ps(to[row], _mm512_mul_ps(scale, _mm512_set1_ps(second)));
            };
            put(_mm512_castsi512_si256(halves), 4 * four);
            put(_mm512_extracti64x4_epi64(halves, 1), 4 * four + 2);
        }
    }

  private:
    // Of rows 2 * pair and 2 * pair + 1; where there are 8 groups, four each out of kFours.
    static constexpr int place(int pair, int lane) {
        const int row = 2 * pair + lane / 8, group = lane % 8 * kGroups / 8;
        return kGroups < 8 ? 8 * group + row : group % 4 + group / 4 * 16 + row % 4 * 4;
    }
    static constexpr Index<int32_t, 16> kPairs[4] = {
        Index<int32_t, 16>([](int lane) { return place(0, lane); }),
        Index<int32_t, 16>([](int lane) { return place(1, lane); }),
        Index<int32_t, 16>([](int lane) { return place(2, lane); }),
        Index<int32_t, 16>([](int lane) { return place(3, lane); })};
    // Rows 0..3 or 4..7 of four groups.
    static constexpr Index<int32_t, 16> kFours[2] = {
        Index<int32_t, 16>([](int lane) { return lane % 4 * 8 + lane / 4; }),
        Index<int32_t, 16>([](int lane) { return lane % 4 * 8 + lane / 4 + 4; })};
    // Bytes [group][8 rows] to the upper ones of words, 8 groups a row.
    static constexpr Index<uint8_t, 64> kRows[2] = {
        Index<uint8_t, 64>([](int at) { return at / 2 % 8 * 8 + at / 16; }),
        Index<uint8_t, 64>([](int at) { return at / 2 % 8 * 8 + at / 16 + 4; })};
    static __m512i pair_index(int pair) { return kPairs[pair].load(); }
};

template <int kGroups, CodeKind kind>
class GroupRowBlocks {
  public:
    using X = OffsetBytes<XOrder::kEights>;

    GroupRowBlocks(const LinearArgs &args, const Device &device, const RowsOfBlocks<X> &x)
        : args_(args), x_(x), scales_(args.w, device), minima_(args, device), blocks_(args.w),
          first_(panel_from(args.w.geometry, 0, blocks_.most())), entries_(byte_entries(args.w)),
          paged_((traits() & kPagedStreams) != 0) {
        for (int32_t zero = 0; zero < 16; ++zero) minus_zero_[zero] = minus_zero_halves(zero);
    }

    void run(int64_t row_block) {
        sum_panels<Avx512>(
            args_, args_.w.geometry, first_, row_block,
            [&](const Panel &panel, Sums<Avx512> *sums)
                QK_INLINE { run_panel(row_block, panel, sums); },
            &minima_);
    }

  private:
    static constexpr int kTogether = 2;  // rows: fewer would wait for one another's chains

    // A chunk's lanes as they are multiplied, the same for both halves.
    struct Factors {
        alignas(64) float scale[8][8];
        alignas(64) float minus_zero[8][8];  // integers: bits
    };

    void run_panel(int64_t row_block, const Panel &panel, Sums<Avx512> *sums) {
        const char *const scales = scales_.load(row_block, panel.group, panel.groups);
        const uint8_t *const codes = blocks_.load(row_block, panel.first, panel.last);
        const uint8_t *const zeros = blocks_.zeros(row_block, panel.group, panel.groups);
        for (int64_t j = 0; j < args_.x.rows; ++j) {
            const X *const x = x_.of(j, panel);
            paged_ ? run_chunks<true>(panel, codes, scales, zeros, x, sums[j])
                   : run_chunks<false>(panel, codes, scales, zeros, x, sums[j]);
        }
    }

    template <bool paged>
    QK_NOINLINE void run_chunks(const Panel &panel, const uint8_t *codes, const char *scales,
                                const uint8_t *zeros, const X *x, Sums<Avx512> &total) const {
        const int64_t scale_bytes = kGroups * scales_.group_bytes();
        const LanesOfRows<kGroups> lanes;
        Sums<Avx512> sums = total;  // a copy that nothing points to stays in registers
        int64_t groups = panel.groups;
        for (int64_t i = panel.first; i < panel.last; ++i, codes += 512, ++x, groups -= kGroups) {
            Factors factors;
            if (groups >= kGroups) {
                prepare(lanes, scales, i * kGroups, zeros, x->unit, &factors);
            } else {
                prepare_last(lanes, scales, i * kGroups, zeros, groups, x->unit, &factors);
            }
            asm volatile("" : "+m"(factors));  // broadcast where it is used, not by shuffles
            add_chunk_of<paged>(codes, *x, factors, sums);
            scales += scale_bytes;
            prefetch_lines(scales, scale_bytes, 32 * scale_bytes);
            if (kind == CodeKind::kZeros) {
                zeros += kGroups * 4;
                prefetch(zeros + kAhead / 128 * kGroups);
            }
        }
        total = sums;
    }

    QK_INLINE void prepare(const LanesOfRows<kGroups> &lanes, const char *scales, int64_t group,
                           const uint8_t *zeros, float unit, Factors *to) const {
        if (kGroups == 8 && kind != CodeKind::kZeros && scales_.are_halves(scales)) {
            return lanes.store_halves(scales, scales_.factor_of_halves(), unit, to->scale);
        }
        __m512 scale[kGroups / 2], zero[kGroups / 2];
        scales_.widen(scales, group, scale);
        QK_UNROLL
        for (int i = 0; i < kGroups / 2; ++i) {
            scale[i] = _mm512_mul_ps(scale[i], _mm512_set1_ps(unit));
            if (kind != CodeKind::kZeros) continue;
            const __m512i nibbles =
                _mm512_mask_set1_epi32(_mm512_set1_epi32(load_as<int32_t>(zeros, 2 * i)), 0xff00,
                                       load_as<int32_t>(zeros, 2 * i + 1));
            const __m512i shifts =
                _mm512_broadcast_i64x4(_mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
            // The permute ignores the bits above.
            zero[i] = _mm512_castsi512_ps(_mm512_permutexvar_epi32(
                _mm512_srlv_epi32(nibbles, shifts), _mm512_load_si512(minus_zero_)));
        }
        lanes.store(scale, to->scale);
        if (kind == CodeKind::kZeros) lanes.store(zero, to->minus_zero);
    }

    // Of a row's last chunk. Sums of groups that are not there are left as they are by -0 times 0.
    QK_NOINLINE void prepare_last(const LanesOfRows<kGroups> &lanes, const char *scales,
                                  int64_t group, const uint8_t *zeros, int64_t groups, float unit,
                                  Factors *to) const {
        alignas(64) char scale[kGroups * 8 * 4] = {};
        uint8_t zero[kGroups * 4] = {};
        memcpy(scale, scales, size_t(groups * scales_.group_bytes()));
        if (kind == CodeKind::kZeros) memcpy(zero, zeros, size_t(groups * 4));
        prepare(lanes, scale, group, zero, unit, to);
        constexpr int64_t lanes_of_group = 8 / kGroups;
        for (int64_t lane = groups * lanes_of_group; lane < 8; ++lane) {
            for (float(&row)[8] : to->scale) row[lane] = -0.0f;
        }
    }

    template <bool paged>
    QK_INLINE void add_chunk_of(const uint8_t *codes, const X &x, const Factors &factors,
                                Sums<Avx512> &sums) const {
        __m512i low[3], high[3];
        for (int i = 0; i < 3; ++i) {
            low[i] = _mm512_load_si512(x.low[i]);
            high[i] = _mm512_load_si512(x.high[i]);
        }
        const __m512i sum = _mm512_load_si512(kind == CodeKind::kZeros ? x.sum : x.start);
        const __m512i bytes = kBytesOfLanes.load();
        const __m512i first = _mm512_set1_epi64(0x1c140c0418100800),
                      second = _mm512_set1_epi64(0x3c342c2438302820);
        const __m512i entries = kind == CodeKind::kTable ? entries_ : _mm512_set1_epi8(15);
        QK_UNROLL
        for (int row = 0; row < 8; row += kTogether) {
            __m512i even[kTogether], odd[kTogether], start[kTogether], dot[kTogether];
            QK_UNROLL
            for (int i = 0; i < kTogether; ++i) {
                fetch_line<paged, kAhead>(codes + 64 * (row + i));
                if (row + i == 7) fetch_page<paged>(codes + kAhead);
                even[i] =
                    _mm512_permutexvar_epi8(bytes, Avx512::load_words(codes + 64 * (row + i)).v);
            }
            QK_UNROLL
            for (int i = 0; i < kTogether; ++i) {
                odd[i] = _mm512_multishift_epi64_epi8(second, even[i]);
                even[i] = _mm512_multishift_epi64_epi8(first, even[i]);
            }
            QK_UNROLL
            for (int i = 0; i < kTogether; ++i) {
                const bool table = kind == CodeKind::kTable;
                even[i] = table ? _mm512_permutexvar_epi8(even[i], entries)
                                : _mm512_and_si512(even[i], entries);
                odd[i] = table ? _mm512_permutexvar_epi8(odd[i], entries)
                               : _mm512_and_si512(odd[i], entries);
                start[i] = kind == CodeKind::kZeros ? _mm512_setzero_si512() : sum;
                if (kind != CodeKind::kZeros) continue;
                add_halves(start[i], sum, _mm512_castps_si512(twice(factors.minus_zero[row + i])));
            }
            dot_three_bytes<kTogether>(even, odd, low, high, start, dot);
            QK_UNROLL
            for (int i = 0; i < kTogether; ++i) {
                sums.row[row + i].v = _mm512_fmadd_ps(
                    _mm512_cvtepi32_ps(dot[i]), twice(factors.scale[row + i]), sums.row[row + i].v);
            }
        }
    }

    static __m512 twice(const float *from) { return _mm512_broadcast_f32x8(_mm256_load_ps(from)); }
    // Byte i of 64 bits 4 u + b is byte b of dword 8 u + i.
    static constexpr Index<uint8_t, 64> kBytesOfLanes =
        Index<uint8_t, 64>([](int i) { return 4 * (i / 32 * 8 + i % 8) + i / 8 % 4; });

    const LinearArgs &args_;
    const RowsOfBlocks<X> x_;
    GroupScales<kGroups> scales_;
    MinimaOfGroups<Avx512> minima_;
    CodesOfBlocks<Avx512> blocks_;
    const Panel first_;
    const __m512i entries_;
    const bool paged_;
    alignas(64) uint32_t minus_zero_[16];
};

template <int kGroups>
Status run_groups(const LinearArgs &args, const Launch &launch) {
    switch (code_kind(args.w)) {
        case CodeKind::kZeros:
            return run_row_blocks<GroupRowBlocks<kGroups, CodeKind::kZeros>>(args, launch);
        case CodeKind::kSymmetric:
            return run_row_blocks<GroupRowBlocks<kGroups, CodeKind::kSymmetric>>(args, launch);
        default: return run_row_blocks<GroupRowBlocks<kGroups, CodeKind::kTable>>(args, launch);
    }
}

Status run(const LinearArgs &args, const Launch &launch) {
    switch (args.w.geometry.group_size) {
        case 16: return run_groups<8>(args, launch);
        case 32: return run_groups<4>(args, launch);
        default: return run_groups<2>(args, launch);
    }
}

}  // namespace

const Kernel<LinearArgs> kLinearGroupsVnni = linear_kernel<row_of("avx512 vnni groups")>(run);

}  // namespace qk::cpu
