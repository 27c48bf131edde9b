// The inner loops of dequantize: codes in, values out, past the caches (stream) or not. A group has
// 16 different values at most: they are computed once, rounded once to the output type, and then
// only looked up in the group's slot. 32 halves, or 16 floats, are a load, two or three
// instructions and a store.
#pragma once
#include "cpu/access.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kSlot = 64;  // bytes for the values of a group, at most

template <class Set>
struct FloatValues {
    using Isa = Set;
    static constexpr int kBytes = 4, kCodes = 16, kSlot = 64;

    using Table = typename Isa::FloatTable;

    static Table load(const char *slot) {
        return Isa::load_floats_table(reinterpret_cast<const float *>(slot));
    }
    template <bool high_first, bool stream>
    static void emit(const uint8_t *codes, const Table &table, char *to) {
        Isa::template emit_floats<high_first, stream>(codes, table, to);
    }
    // A packed chunk; its quarters, two steps each, have tables of their own.
    template <bool stream>
    static void emit_packed(const Words<Isa> &words, const Table (&tables)[4], char *to) {
        for_each_step([&]<int step>() QK_INLINE {
            Isa::template emit_step<step, stream>(words, tables[step / 2], to + 64 * step);
        });
    }
};

template <class Set>
struct HalfValues {
    using Isa = Set;
    static constexpr int kBytes = 2, kCodes = 32, kSlot = 32;

    using Table = typename Isa::HalfTable;

    static Table load(const char *slot) {
        return Isa::load_halves_table(reinterpret_cast<const uint16_t *>(slot));
    }
    template <bool high_first, bool stream>
    static void emit(const uint8_t *codes, const Table &table, char *to) {
        Isa::template emit_halves<high_first, stream>(codes, table, to);
    }
    template <bool stream>
    static void emit_packed(const Words<Isa> &words, const Table (&tables)[4], char *to) {
        Isa::template emit_chunk_halves<stream>(words, tables, to);
    }
};

// The zeros of one row, in any layout: from group to group the place grows by a constant, but for
// the last bit in row_high.
class RowZeros {
  public:
    explicit RowZeros(const Weight &w) : w_(w), flip_(w.layout->id == QK_LAYOUT_ROW_HIGH) {}

    void start(int64_t row) {
        if (w_.zero == nullptr) return;
        const Geometry &s = w_.geometry;
        const int64_t at = s.flat ? 0 : row;
        base_ = place(at, 0);
        stride_ = s.flat || s.groups_per_row > 1 ? place(at, 1) - base_ : 0;
    }
    // `to` stays as it is where the weight has no zeros.
    void read(int64_t first, int64_t count, uint8_t *to) const {
        const uint8_t *const data = static_cast<const uint8_t *>(w_.zero);
        if (data == nullptr) return;
        for (int64_t i = 0; i < count; ++i) {
            const int64_t at = (base_ + (first + i) * stride_) ^ flip_;
            to[i] = uint8_t(((data[at >> 1] >> (at & 1) * 4 & 15) + w_.layout->zero_offset) & 15);
        }
    }

  private:
    int64_t place(int64_t row, int64_t group) const {
        return w_.layout->zero_at(w_.geometry, {row, group}) ^ flip_;
    }

    const Weight &w_;
    int64_t flip_, base_ = 0, stride_ = 0;
};

// From the scales and zeros of groups to their values.
template <class Isa>
class GroupValues {
  public:
    GroupValues(const Weight &w, qk_format to) : to_(to) {
        Entries entries(w);
        for (int zero = 0; zero < 16; ++zero) {
            if (w.format->kind == FormatKind::kU4) entries.set_zero(zero);
            memcpy(entries_[zero], entries.value, sizeof(entries_[zero]));
        }
    }
    // Of `count` groups, whose scales (f32) and zeros are `stride` elements apart: 16 values each.
    QK_NOINLINE void make(const char *scales, const uint8_t *zeros, int64_t stride, int64_t count,
                          char *to) const {
        const auto values = [&](int64_t i) QK_INLINE {
            const float scale = load_as<float>(scales, i * stride);
            return Isa::mul(Isa::load_f32(entries_[zeros[i * stride]]), Isa::splat(scale));
        };
        uint16_t *const half = reinterpret_cast<uint16_t *>(to);
        int64_t i = 0;
        switch (to_) {
            case QK_FORMAT_F16:
                for (; i + 2 <= count; i += 2) {
                    Isa::narrow_two_f16(values(i), values(i + 1), half + 16 * i);
                }
                if (i < count) Isa::narrow_f16(values(i), half + 16 * i);
                break;
            case QK_FORMAT_BF16:
                for (; i + 2 <= count; i += 2) {
                    Isa::narrow_two_bf16(values(i), values(i + 1), half + 16 * i);
                }
                if (i < count) Isa::narrow_bf16(values(i), half + 16 * i);
                break;
            default:
                for (; i < count; ++i)
                    Isa::store_f32(reinterpret_cast<float *>(to) + 16 * i, values(i));
        }
    }

  private:
    qk_format to_;
    alignas(64) float entries_[16][16];  // by zero; where there are none, all the same
};

// Cache lines, prefetched one at a time: `across` side by side, then `stride` bytes further.
class LineFetch {
  public:
    LineFetch(const char *from, int64_t stride, int64_t across, int64_t runs)
        : at_(from), step_(stride - across * 64), across_(across), side_(across), left_(runs) {}

    void fetch() {
        if (left_ <= 0) return;
        __builtin_prefetch(at_, 0, 3);
        at_ += 64;
        if (--side_ > 0) return;
        side_ = across_;
        at_ += step_;
        --left_;
    }
    void fetch_all() {
        while (left_ > 0) fetch();
    }

  private:
    const char *at_;
    int64_t step_, across_, side_, left_;
};

// A run of nibbles through a row's groups.
struct CodeRun {
    const uint8_t *data;
    int64_t at, count;    // nibbles
    int64_t first, size;  // codes until the next group, codes of a group
    const char *slots;    // from the first code's group on
    char *to;
};

template <class Values, bool high_first>
QK_NOINLINE void emit_one_by_one(const uint8_t *data, int64_t at, int64_t end, const char *slot,
                                 char *to) {
    for (; at < end; ++at, to += Values::kBytes) {
        const int code = data[at >> 1] >> ((at & 1) != int64_t{high_first} ? 4 : 0) & 15;
        memcpy(to, slot + code * Values::kBytes, Values::kBytes);
    }
}

template <class Values, bool high_first, bool stream>
QK_NOINLINE void emit_run(const CodeRun &run) {
    constexpr int kCodes = Values::kCodes, kBytes = Values::kBytes;
    const uint8_t *const data = run.data;
    char *to = run.to;
    int64_t at = run.at, next = at + run.first;
    const int64_t last = at + run.count;
    for (const char *slot = run.slots; at < last; slot += Values::kSlot, next += run.size) {
        const int64_t end = min64(next, last);
        if ((at & 1) != 0) {
            emit_one_by_one<Values, high_first>(data, at, at + 1, slot, to);
            ++at;
            to += kBytes;
        }
        const auto table = Values::load(slot);
        for (; end - at >= kCodes; at += kCodes, to += kCodes * kBytes) {
            prefetch(data + (at >> 1) + 4096);
            Values::template emit<high_first, stream>(data + (at >> 1), table, to);
        }
        if (at < end) {
            emit_one_by_one<Values, high_first>(data, at, end, slot, to);
            to += (end - at) * kBytes;
            at = end;
        }
    }
}

// A row of packed chunks, 512 bytes apart. `group`: of each quarter. `ahead`: what to prefetch
// meanwhile, 64 bytes a chunk.
struct ChunkRun {
    const uint8_t *chunk, *ahead;
    int64_t columns;
    const char *slots;
    const uint8_t *group;
    char *to;

    template <class Values>
    const char *slot(int64_t i) const {
        return slots + group[i] * Values::kSlot;
    }
};

template <class Values>
QK_NOINLINE void emit_some(const ChunkRun &run, int64_t count) {
    char *to = run.to;
    for (int64_t i = 0; i < count; ++i, to += Values::kBytes) {
        const int64_t nibble = (i & 15) * 8 + (i >> 4);
        const int code = run.chunk[nibble >> 1] >> (nibble & 1) * 4 & 15;
        memcpy(to, run.template slot<Values>(i / 32) + code * Values::kBytes, Values::kBytes);
    }
}

template <class Values, bool stream>
QK_NOINLINE void emit_chunks(ChunkRun run) {
    for (; run.columns >= 128; run.columns -= 128, run.chunk += 512, run.group += 4) {
        prefetch(run.ahead);
        run.ahead += 64;
        const auto words = Values::Isa::load_words(run.chunk);
        const typename Values::Table tables[4] = {
            Values::load(run.template slot<Values>(0)), Values::load(run.template slot<Values>(1)),
            Values::load(run.template slot<Values>(2)), Values::load(run.template slot<Values>(3))};
        Values::template emit_packed<stream>(words, tables, run.to);
        run.to += 128 * Values::kBytes;
    }
    if (run.columns > 0) emit_some<Values>(run, run.columns);
}

// Rows of nibbles in order, a multiple of 32 columns. `group`: of each 32 columns. Slots by group
// and row, kBlockRows rows a group. Cache lines that are needed later are prefetched meanwhile.
constexpr int64_t kBlockRows = 16;
struct BlockRun {
    const uint8_t *codes;
    int64_t code_pitch, rows, quarters;
    const char *slots;
    const uint8_t *group;
    char *to;
    int64_t pitch;
    LineFetch *ahead;
};

template <class Values, bool stream>
QK_NOINLINE void emit_block(const BlockRun &run) {
    constexpr int kCodes = Values::kCodes, kBytes = Values::kBytes;
    LineFetch ahead = *run.ahead;
    for (int64_t r = 0; r < run.rows; ++r) {
        const uint8_t *codes = run.codes + r * run.code_pitch;
        char *to = run.to + r * run.pitch;
        const char *const slots = run.slots + r * Values::kSlot;
        for (int64_t i = 0; i < run.quarters; ++i) {
            if ((i & 3) == 0) ahead.fetch();
            const auto table = Values::load(slots + run.group[i] * (kBlockRows * Values::kSlot));
            for (int c = 0; c < 32; c += kCodes, codes += kCodes / 2, to += kCodes * kBytes) {
                Values::template emit<false, stream>(codes, table, to);
            }
        }
    }
    *run.ahead = ahead;
}

// What a call writes with.
struct Emitters {
    void (*run)(const CodeRun &);
    void (*chunks)(ChunkRun);
    void (*block)(const BlockRun &);
};

template <class Values, bool stream>
Emitters emitters_of(bool high_first) {
    return {high_first ? emit_run<Values, true, stream> : emit_run<Values, false, stream>,
            emit_chunks<Values, stream>, emit_block<Values, stream>};
}

template <class Isa>
Emitters find_emitters(int64_t bytes, bool high_first, bool stream) {
    if (bytes == 4) {
        return stream ? emitters_of<FloatValues<Isa>, true>(high_first)
                      : emitters_of<FloatValues<Isa>, false>(high_first);
    }
    return stream ? emitters_of<HalfValues<Isa>, true>(high_first)
                  : emitters_of<HalfValues<Isa>, false>(high_first);
}

struct Writing {
    const DequantizeArgs &args;
    const Device &device;
    Emitters emit;
    int64_t bytes;  // of a value

    char *to(int64_t row, int64_t column) const {
        const int64_t at = row * args.from.geometry.k + column;
        return static_cast<char *>(args.to.data) + at * bytes;
    }
};

}  // namespace
}  // namespace qk::cpu
