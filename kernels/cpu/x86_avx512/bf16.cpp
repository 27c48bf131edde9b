// bf16 products of packed weights (rows8): entries of a table format, or the codes of an affine
// one, times x rounded to bf16, two products a lane and instruction, sums in f32.
//
// Word 2 j + h of a chunk holds the nibbles 4 h .. 4 h + 3 of dword j; step s looks up nibble
// s + 4 h of every word, columns 16 (s + 4 h) + j. Lanes add the two words of a dword, which are 64
// columns apart; where groups are narrower, words are exchanged so that a lane adds neighbours:
//
//     part p = steps of one group: lane 2 e + h adds columns of group p + h * (groups / 2)
#include "cpu/int8/x.hpp"
#include "cpu/kernels.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/shared/panel.hpp"
#include "cpu/x86_avx512/exponents.hpp"
#include "cpu/x86_avx512/isa.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kAhead = 8192;  // bytes of weights fetched ahead of use

struct XChunk {
    alignas(64) uint16_t x[4][32];  // of step s, in the order of the words
    float sum[8];                   // of a group's numbers, as rounded
};

// Of 128 numbers. Sums are what zeros are multiplied by.
void prepare_chunk(const float *x, int64_t blocks, bool sums, XChunk *to) {
    alignas(64) uint16_t order[32];  // of 16 low and 16 high numbers
    for (int i = 0; i < 32; ++i) {
        const int one = i / 2 + i % 2 * 16, neighbours = i / 4 * 2 + i % 2 + i / 2 % 2 * 16;
        order[i] = uint16_t(blocks == 1 ? one : neighbours);
    }
    Lanes<Avx512> rounded[8];
    for (int s = 0; s < 4; ++s) {
        const __m512 low = _mm512_loadu_ps(x + 16 * s), high = _mm512_loadu_ps(x + 16 * (s + 4));
        const __m512i half = __m512i(_mm512_cvtne2ps_pbh(high, low));
        _mm512_store_si512(to->x[s], _mm512_permutexvar_epi16(_mm512_load_si512(order), half));
        const auto widen = [](__m256i v) {
            return Lanes<Avx512>{
                _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16))};
        };
        rounded[s] = widen(_mm512_castsi512_si256(half));
        rounded[s + 4] = widen(_mm512_extracti64x4_epi64(half, 1));
    }
    if (!sums) return;
    float of_16[8];
    Avx512::fold_rows(rounded, of_16);
    for (int64_t b = 0; b < blocks; ++b) {
        to->sum[b] = 0;
        for (int64_t i = 0; i < 8 / blocks; ++i) to->sum[b] += of_16[b * (8 / blocks) + i];
    }
}

// Every row of x, in the workspace.
const XChunk *prepare(const LinearArgs &args, const Launch &launch) {
    XChunk *const to = reinterpret_cast<XChunk *>(aligned_workspace(launch));
    const int64_t chunks = chunk_count(args.w.geometry);
    const int64_t blocks = groups_of_chunk(args.w.geometry);
    const bool affine = args.w.format->kind == FormatKind::kU4;
    parallel_ranges(launch.parallel, args.x.rows, 1, args.x.columns * kQuantizing,
                    [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            for_each_chunk<Avx512>(args.x, row, [&](int64_t chunk, const float *x) {
                prepare_chunk(x, blocks, affine, to + row * chunks + chunk);
            });
        }
    });
    return to;
}

size_t workspace_bytes(const LinearArgs &args, const Device &) {
    return chunk_workspace(args.w.geometry, args.x.rows, sizeof(XChunk));
}

struct Sums {
    __m512 row[8];
    __m256 zeros;  // what the zeros take off, a row each
};

// Scales of 8 rows, two groups a vector: floats, exponents and E4M3's are widened where they are
// used, others in a panel of f32.
template <int kGroups>  // of a chunk
class ScalesOfPairs {
  public:
    ScalesOfPairs(const Weight &w, const Device &device) : w_(w), panel_(w, device) {
        const NestedCode *const code = panel_.code_of_all(&factor_);
        const bool small = !(__builtin_fabsf(factor_) > 0x1p100f);
        const qk_format format = w.scale.format->id;
        if (code != nullptr && code->e4m3 && small) stored_ = Kind::kE4m3;
        if (code != nullptr && code->exponents) stored_ = Kind::kExponents;
        if (!has_coded_scales(w.scale)) {
            stored_ = format == QK_FORMAT_F16    ? Kind::kF16
                      : format == QK_FORMAT_BF16 ? Kind::kBf16
                                                 : Kind::kF32;
        }
    }

    const char *load(int64_t row_block, int64_t group, int64_t groups) {
        const int64_t at = row_block * w_.geometry.groups_per_row + group;
        const int64_t bytes = w_.scale.format->bits;  // of 8 rows
        const char *const from = static_cast<const char *>(w_.scale.data) + at * bytes;
        kind_ = stored_;
        if (kind_ == Kind::kE4m3 && !are_halves(from, groups * 8)) kind_ = Kind::kF32;
        group_bytes_ = kind_ == Kind::kF32 ? 32 : bytes;
        return kind_ == Kind::kF32 ? panel_.load(row_block, group, groups) : from;
    }
    int64_t group_bytes() const { return group_bytes_; }

    // Of a chunk of which `there` groups are; past them anything.
    QK_INLINE void widen(const char *from, int64_t there, __m512 (&to)[kGroups / 2]) const {
        there >= kGroups ? widen_all(from, to) : widen_some(from, there, to);
    }

  private:
    enum class Kind { kF32, kF16, kBf16, kExponents, kE4m3 };

    // Whether E4M3's have neither a sign nor a NaN: shifted up by 7 they are halves then, 256 times
    // smaller.
    static bool are_halves(const char *codes, int64_t count) {
        uint64_t above = 0;
        for (int64_t i = 0; i < count; i += 64) {
            const int64_t some = min64(64, count - i);
            const __m512i v = _mm512_maskz_loadu_epi8(~uint64_t(0) >> (64 - some), codes + i);
            above |= _mm512_cmpge_epu8_mask(v, _mm512_set1_epi8(0x7f));
        }
        return above == 0;
    }
    QK_NOINLINE void widen_some(const char *from, int64_t there, __m512 (&to)[kGroups / 2]) const {
        alignas(64) char some[kGroups * 32] = {};
        memcpy(some, from, size_t(there * group_bytes_));
        widen_all(some, to);
    }
    QK_INLINE void widen_all(const char *from, __m512 (&to)[kGroups / 2]) const {
        QK_UNROLL
        for (int i = 0; i < kGroups / 2; ++i) to[i] = widen_two(from + 2 * i * group_bytes_);
    }
    QK_INLINE __m512 widen_two(const char *from) const {
        const auto halves = [=]() QK_INLINE {
            return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
        };
        const auto bytes = [=]() QK_INLINE {
            return _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
        };
        switch (kind_) {
            case Kind::kF32: return _mm512_loadu_ps(from);
            case Kind::kF16: return _mm512_cvtph_ps(halves());
            case Kind::kBf16:
                return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves()), 16));
            case Kind::kExponents: {
                const __m512 scale = _mm512_castsi512_ps(exponents_to_bits(bytes()));
                return factor_ == 1 ? scale : _mm512_mul_ps(scale, _mm512_set1_ps(factor_));
            }
            default: {
                const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes()), 7);
                return _mm512_mul_ps(_mm512_cvtph_ps(shifted), _mm512_set1_ps(factor_ * 256));
            }
        }
    }

    const Weight &w_;
    ScalePanel<Avx512> panel_;
    Kind stored_ = Kind::kF32, kind_ = Kind::kF32;  // a panel's: kF32
    int64_t group_bytes_ = 32;
    float factor_ = 1;  // of coded ones
};

// Of groups that are chunks or more.
struct ScalesOfOne : ScalePanel<Avx512> {
    using ScalePanel<Avx512>::ScalePanel;
    static int64_t group_bytes() { return 32; }
};

template <int kBlocks>
class Rows {
  public:
    Rows(const LinearArgs &args, const Device &device, const XChunk *x)
        : args_(args), chunks_(chunk_count(args.w.geometry)), x_(x), scales_(args.w, device) {
        float entries[16];
        uint16_t twice[32];
        entries_of(args.w, 0, entries);
        for (int i = 0; i < 32; ++i) twice[i] = bf16_from_f32(entries[i & 15]);
        table_ = _mm512_loadu_si512(twice);
    }

    void run(int64_t row_block) {
        const int64_t chunks = chunks_;
        for (int64_t i = 0; i < args_.x.rows; ++i) {
            Sums sums;
            for (__m512 &row : sums.row) row = _mm512_setzero_ps();
            sums.zeros = _mm256_setzero_ps();
            for (int64_t chunk = 0; chunk < chunks; chunk += kPanelChunks) {
                run_panel(row_block, x_ + i * chunks, chunk, min64(chunk + kPanelChunks, chunks),
                          &sums);
            }
            store(row_block, i, sums);
        }
    }

  private:
    static constexpr int kParts = kBlocks == 1 ? 1 : kBlocks / 2;

    struct Scales {
        __m512 group[kParts];  // two groups of 8 rows
        alignas(64) float pairs[kParts][16];
    };
    static __m256 of_group(const Scales &scales, int b) {
        return b % 2 == 0 ? _mm512_castps512_ps256(scales.group[b / 2])
                          : _mm512_extractf32x8_ps(scales.group[b / 2], 1);
    }

    void run_panel(int64_t row_block, const XChunk *x, int64_t first, int64_t last, Sums *total) {
        const Geometry &s = args_.w.geometry;
        const int64_t size = s.group_size;
        const auto [group, groups] = groups_of_run<kBlocks>(s, first, last);
        const char *const scales = scales_.load(row_block, group, groups);
        const uint8_t *codes = packed_chunk(args_.w, row_block * chunks_ + first);
        const bool affine = args_.w.format->kind == FormatKind::kU4;
        Sums sums = *total;  // a copy that nothing points to stays in registers
        int64_t at = 0, next = (group + 1) * size;
        for (int64_t i = first; i < last; ++i, codes += 512) {
            if (kBlocks == 1 && i * 128 >= next) ++at, next += size;
            Scales of_chunk;
            load_scales(scales + at * scales_.group_bytes(), groups - at, &of_chunk);
            asm volatile("" : "+m"(of_chunk.pairs));  // broadcast where it is used, not by shuffles
            if (affine) {
                take_zeros(row_block, group + at, groups - at, of_chunk, x[i], &sums.zeros);
            }
            add(codes, x[i], of_chunk.pairs, sums.row);
            if (kBlocks > 1) at += kBlocks;
        }
        *total = sums;
    }

    void take_zeros(int64_t row_block, int64_t group, int64_t there, const Scales &scales,
                    const XChunk &x, __m256 *total) const {
        const __m256i shift = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
        const int64_t at = row_block * args_.w.geometry.groups_per_row + group;
        QK_UNROLL
        for (int b = 0; b < kBlocks; ++b) {
            if (b >= there) return;
            const bool symmetric = args_.w.zero == nullptr;
            const int32_t nibbles =
                symmetric ? int32_t(0x88888888) : load_as<int32_t>(args_.w.zero, at + b);
            const __m256i all = _mm256_srlv_epi32(_mm256_set1_epi32(nibbles), shift);
            const __m256 zero = _mm256_cvtepi32_ps(_mm256_and_si256(all, _mm256_set1_epi32(15)));
            const __m256 share = _mm256_mul_ps(zero, of_group(scales, b));
            *total = _mm256_fmadd_ps(share, _mm256_set1_ps(x.sum[b]), *total);
        }
    }

    // A chunk's scales, and [row][lane mod 2] of each part; of one group [row] alone. There are
    // none past the last group, where x is 0.
    QK_INLINE void load_scales(const char *from, int64_t there, Scales *to) const {
        if constexpr (kBlocks == 1) {
            fetch_scales(from);
            const __m256 scale = _mm256_loadu_ps(reinterpret_cast<const float *>(from));
            to->group[0] = _mm512_castps256_ps512(scale);
            _mm256_store_ps(to->pairs[0], scale);
        } else {
            const int64_t bytes = kBlocks * scales_.group_bytes();
            prefetch_lines(from, bytes, 16 * bytes);
            scales_.widen(from, there, to->group);
            QK_UNROLL
            for (int p = 0; p < kParts; ++p) {
                const __m512 low = to->group[p / 2], high = to->group[p / 2 + kParts / 2];
                _mm512_store_ps(to->pairs[p], _mm512_permutex2var_ps(low, pairs_of(p), high));
            }
        }
    }
    // Groups p and p + kParts of 8 rows, in halves of two vectors or of one.
    static __m512i pairs_of(int p) {
        const __m512i low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
        const int half = kParts == 1 ? 0 : 8 * (p % 2), apart = kParts == 1 ? 8 : 16;
        return _mm512_mask_add_epi32(_mm512_add_epi32(low, _mm512_set1_epi32(half)), 0xaaaa, low,
                                     _mm512_set1_epi32(half + apart));
    }

    QK_INLINE void add(const uint8_t *codes, const XChunk &x, const float (&pairs)[kParts][16],
                       __m512 (&acc)[8]) const {
        __m512i x0 = _mm512_load_si512(x.x[0]), x1 = _mm512_load_si512(x.x[1]);
        __m512i x2 = _mm512_load_si512(x.x[2]), x3 = _mm512_load_si512(x.x[3]);
        asm volatile("" : "+v"(x0), "+v"(x1), "+v"(x2), "+v"(x3));
        QK_UNROLL
        for (int row = 0; row < 8; ++row) {
            prefetch_stream(codes + 64 * row + kAhead);
            __m512i words = Avx512::load_words(codes + 64 * row).v;
            if (kBlocks > 1) words = neighbours(words);
            const __m512 zero = _mm512_setzero_ps();
            __m512 part[4];
            part[0] = multiply<0>(words, x0, zero);
            part[1] = multiply<1>(words, x1, kParts == 4 ? zero : part[0]);
            part[2] = multiply<2>(words, x2, zero);
            part[3] = multiply<3>(words, x3, kParts == 4 ? zero : part[2]);
            if (kParts == 1) {
                const __m512 sum = _mm512_add_ps(part[1], part[3]);
                const __m512 factor =
                    kBlocks == 1 ? _mm512_set1_ps(pairs[0][row]) : pair(pairs[0] + 2 * row);
                acc[row] = _mm512_fmadd_ps(sum, factor, acc[row]);
                continue;
            }
            QK_UNROLL
            for (int p = 0; p < kParts; ++p) {
                const __m512 sum = kParts == 2 ? part[2 * p + 1] : part[p];
                acc[row] = _mm512_fmadd_ps(sum, pair(pairs[p] + 2 * row), acc[row]);
            }
        }
    }

    // Words of two dwords: the low ones, then the high ones.
    static __m512i neighbours(__m512i words) {
        const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
        return _mm512_shuffle_epi8(words, _mm512_broadcast_i32x4(order));
    }
    static __m512 pair(const float *from) {
        return _mm512_castpd_ps(
            _mm512_broadcastsd_pd(_mm_load_sd(reinterpret_cast<const double *>(from))));
    }
    // The permute ignores the index's bits above 5, and the table repeats after 16.
    template <int step>
    QK_INLINE __m512 multiply(__m512i words, __m512i x, __m512 sum) const {
        const __m512i index = step == 0 ? words : _mm512_srli_epi16(words, 4 * step);
        const __m512i entry = _mm512_permutexvar_epi16(index, table_);
        return _mm512_dpbf16_ps(sum, __m512bh(entry), __m512bh(x));
    }

    void store(int64_t row_block, int64_t x_row, const Sums &sums) const {
        Lanes<Avx512> lanes[8];
        QK_UNROLL
        for (int row = 0; row < 8; ++row) lanes[row].v = sums.row[row];
        float y[8];
        Avx512::fold_rows(lanes, y);
        _mm256_storeu_ps(y, _mm256_sub_ps(_mm256_loadu_ps(y), sums.zeros));
        store_8(args_, x_row, row_block, y);
    }

    const LinearArgs &args_;
    const int64_t chunks_;
    const XChunk *x_;
    std::conditional_t<(kBlocks > 1), ScalesOfPairs<kBlocks>, ScalesOfOne> scales_;
    __m512i table_;
};

template <int kBlocks>
QK_NOINLINE void run_rows(const LinearArgs &args, const Launch &launch) {
    const XChunk *const x = prepare(args, launch);
    const int64_t blocks = ceil_div(args.w.geometry.n, 8);
    parallel_ranges(launch.parallel, blocks, 1, 8 * work_of_row(args),
                    [&](int64_t first, int64_t last) {
        Rows<kBlocks> rows(args, launch.device, x);
        for (int64_t block = first; block < last; ++block) rows.run(block);
    });
}

Status run(const LinearArgs &args, const Launch &launch) {
    switch (groups_of_chunk(args.w.geometry)) {
        case 8: run_rows<8>(args, launch); break;
        case 4: run_rows<4>(args, launch); break;
        case 2: run_rows<2>(args, launch); break;
        default: run_rows<1>(args, launch);
    }
    return QK_OK;
}

}  // namespace

const Kernel<LinearArgs> kLinearBf16 = linear_kernel<row_of("avx512 bf16")>(run, workspace_bytes);

}  // namespace qk::cpu
