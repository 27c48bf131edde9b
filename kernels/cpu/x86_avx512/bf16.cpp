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

    void run_panel(int64_t row_block, const XChunk *x, int64_t first, int64_t last, Sums *total) {
        const Geometry &s = args_.w.geometry;
        const int64_t size = s.group_size;
        const auto [group, groups] = groups_of_run<kBlocks>(s, first, last);
        const char *const scales = scales_.load(row_block, group, groups);
        const uint8_t *codes = packed_chunk(args_.w, row_block * chunks_ + first);
        const bool affine = args_.w.format->kind == FormatKind::kU4;
        Sums sums = *total;  // a copy that nothing points to stays in registers
        int64_t at = 0, next = (group + 1) * size;
        if (kBlocks > 1) pair_scales(scales, last - first, groups);
        for (int64_t i = first; i < last; ++i, codes += 512) {
            if (kBlocks == 1 && i * 128 >= next) ++at, next += size;
            const char *const scale = scales + at * 32;
            fetch_scales(scale);
            const int64_t blocks = min64(kBlocks, groups - at);
            if (affine) take_zeros(row_block, group + at, blocks, scale, x[i], &sums.zeros);
            add(codes, x[i], scale, pairs_[i - first], sums.row);
            if (kBlocks > 1) at += kBlocks;
        }
        *total = sums;
    }

    void take_zeros(int64_t row_block, int64_t group, int64_t blocks, const char *scale,
                    const XChunk &x, __m256 *total) const {
        const __m256i shift = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
        const int64_t at = row_block * args_.w.geometry.groups_per_row + group;
        for (int64_t b = 0; b < blocks; ++b) {
            const bool symmetric = args_.w.zero == nullptr;
            const int32_t nibbles =
                symmetric ? int32_t(0x88888888) : load_as<int32_t>(args_.w.zero, at + b);
            const __m256i all = _mm256_srlv_epi32(_mm256_set1_epi32(nibbles), shift);
            const __m256 zero = _mm256_cvtepi32_ps(_mm256_and_si256(all, _mm256_set1_epi32(15)));
            const __m256 share = _mm256_mul_ps(zero, scale8(scale, b));
            *total = _mm256_fmadd_ps(share, _mm256_set1_ps(x.sum[b]), *total);
        }
    }

    static __m256 scale8(const char *scales, int64_t block) {
        return _mm256_loadu_ps(reinterpret_cast<const float *>(scales + 32 * block));
    }

    // A panel's scales as [row][lane mod 2]; there are none past the last group.
    void pair_scales(const char *scales, int64_t chunks, int64_t groups) {
        const __m512i order =
            _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        const auto load = [&](int64_t group) {
            const __m256 eight = group < groups ? scale8(scales, group) : _mm256_setzero_ps();
            return _mm512_castps256_ps512(eight);
        };
        for (int64_t i = 0; i < chunks; ++i) {
            for (int64_t p = 0; p < kParts; ++p) {
                const __m512 low = load(i * kBlocks + p), high = load(i * kBlocks + p + kParts);
                _mm512_store_ps(pairs_[i][p], _mm512_permutex2var_ps(low, order, high));
            }
        }
    }

    QK_INLINE void add(const uint8_t *codes, const XChunk &x, const char *scale,
                       const float (&pairs)[kParts][16], __m512 (&acc)[8]) const {
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
                const __m512 factor = kBlocks == 1 ? _mm512_set1_ps(load_as<float>(scale, row))
                                                   : pair(pairs[0] + 2 * row);
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
    ScalePanel<Avx512> scales_;
    __m512i table_;
    alignas(64) float pairs_[kPanelChunks][kParts][16];
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
