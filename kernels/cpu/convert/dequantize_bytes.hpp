// Dequantize 8-bit codes (layout row): some columns as f32 first, then rounded and stored.
#pragma once
#include "cpu/access.hpp"
#include "cpu/kernels.hpp"
#include "cpu/shared/nested.hpp"

namespace qk::cpu {
namespace {

template <class Isa>
class ByteWriter {
  public:
    ByteWriter(const DequantizeArgs &args, const Device &device)
        : args_(args), scales_(args.from), look_up_(pick_byte_lookup<Isa>(device)),
          look_up_halves_(Isa::halves_lookup(device)),
          is_s8_(args.from.format->kind == FormatKind::kS8) {
        const Geometry &s = args.from.geometry;
        if (!is_s8_) load_nested_code(args.from.table, &entries_);
        whole_ = args.to.format->bits == 16 && s.k % 64 == 0 && s.group_size % 64 == 0 &&
                 (is_s8_ || look_up_halves_ != nullptr);
    }

    QK_NOINLINE void write(int64_t row, bool stream) {
        const int64_t k = args_.from.geometry.k, size = args_.to.format->bits / 8;
        scales_.start(row);
        if (whole_) return is_s8_ ? write_s8(row, stream) : write_looked_up(row, stream);
        for (int64_t column = 0; column < k; column += kColumns) {
            const int64_t count = min64(kColumns, k - column);
            if (args_.from.geometry.group_size < kLongGroup) {
                read_short(row, column, count);
            } else {
                read(row, column, count);
            }
            char *const to = static_cast<char *>(args_.to.data) + (row * k + column) * size;
            size == 4 ? put(value_, count, to, stream) : narrow(count, to, stream);
        }
    }

  private:
    static constexpr int64_t kColumns = 256;
    static constexpr int64_t kLongGroup = 128;  // that is worth a look-up of its own

    // To 16 bits, in registers from codes to output.
    void write_looked_up(int64_t row, bool stream) {
        const Geometry &s = args_.from.geometry;
        const bool is_f16 = args_.to.format->id == QK_FORMAT_F16;
        const uint8_t *const data = static_cast<const uint8_t *>(args_.from.data) + row * s.k;
        char *const to = static_cast<char *>(args_.to.data) + row * s.k * 2;
        int64_t group = group_of(s, row, 0).group, end = group_end(s, row, 0);
        for (int64_t column = 0; column < s.k;) {
            const int64_t groups = min64(kColumns, 1 + ceil_div(s.k - end, s.group_size));
            const int64_t last = min64(end + (groups - 1) * s.group_size, s.k);
            scales_.read(group, groups, scale_);
            look_up_halves_(entries_,
                            {data + column, last - column, end - column, s.group_size, scale_},
                            is_f16, stream, to + column * 2);
            column = last, end = min64(last + s.group_size, s.k), group += groups;
        }
    }

    void write_s8(int64_t row, bool stream) {
        const Geometry &s = args_.from.geometry;
        const bool is_f16 = args_.to.format->id == QK_FORMAT_F16;
        const uint8_t *const data = static_cast<const uint8_t *>(args_.from.data) + row * s.k;
        char *const to = static_cast<char *>(args_.to.data) + row * s.k * 2;
        int64_t group = group_of(s, row, 0).group, end = group_end(s, row, 0);
        for (int64_t column = 0; column < s.k; end = min64(end + s.group_size, s.k)) {
            const float scale = scales_.at(group++);
            if constexpr (requires { Isa::shifts_s8(scale); }) {
                if (!is_f16 && Isa::shifts_s8(scale)) {
                    char *const at = to + column * 2;
                    stream
                        ? Isa::template put_s8_bf16<true>(data + column, end - column, scale, at)
                        : Isa::template put_s8_bf16<false>(data + column, end - column, scale, at);
                    column = end;
                }
            }
            for (; column < end; column += 32) {
                prefetch(data + column + 4096);
                const Lanes<Isa> low = Isa::mul(Isa::load_s8(data + column), Isa::splat(scale));
                const Lanes<Isa> high =
                    Isa::mul(Isa::load_s8(data + column + 16), Isa::splat(scale));
                is_f16 ? Isa::put_f16(low, high, to + column * 2, stream)
                       : Isa::put_bf16(low, high, to + column * 2, stream);
            }
        }
    }

    void read(int64_t row, int64_t column, int64_t count) {
        const Geometry &s = args_.from.geometry;
        const uint8_t *const data =
            static_cast<const uint8_t *>(args_.from.data) + row * s.k + column;
        for (int64_t i = 0; i < kColumns; i += 64) prefetch(data + i + 4096);
        int64_t group = group_of(s, row, column).group;
        int64_t next = group_end(s, row, column) - column;
        for (int64_t i = 0; i < count; next += s.group_size) {
            const int64_t end = min64(next, count);
            const float scale = scales_.at(group++);
            if (!is_s8_) {
                look_up_(entries_, data + i, end - i, scale, value_ + i);
                i = end;
            }
            for (; i + 16 <= end; i += 16) {
                Isa::store_f32(value_ + i, Isa::mul(Isa::load_s8(data + i), Isa::splat(scale)));
            }
            for (; i < end; ++i) value_[i] = float(int8_t(data[i])) * scale;
        }
    }

    // Of groups that are short, which may be a column each: what codes stand for is multiplied by
    // scales that were spread over their columns.
    void read_short(int64_t row, int64_t column, int64_t count) {
        const int64_t at = row * args_.from.geometry.k + column;
        const uint8_t *const data = static_cast<const uint8_t *>(args_.from.data) + at;
        for (int64_t i = 0; i < kColumns; i += 64) prefetch(data + i + 4096);
        spread_scales(row, column, count);
        if (!is_s8_) {
            look_up_(entries_, data, count, 1.0f, value_);
        } else {
            int64_t i = 0;
            for (; i + 16 <= count; i += 16) Isa::store_f32(value_ + i, Isa::load_s8(data + i));
            for (; i < count; ++i) value_[i] = float(int8_t(data[i]));
        }
        for (int64_t i = 0; i < count; i += 16) {
            Isa::store_f32(value_ + i,
                           Isa::mul(Isa::load_f32(value_ + i), Isa::load_f32(spread_ + i)));
        }
    }

    // Whole vectors, of which the next group's first covers what is too much.
    void spread_scales(int64_t row, int64_t column, int64_t count) {
        const Geometry &s = args_.from.geometry;
        const int64_t group = group_of(s, row, column).group;
        if (s.group_size == 1) return scales_.read(group, count, spread_);
        int64_t next = group_end(s, row, column) - column;
        scales_.read(group, 1 + ceil_div(max64(count - next, 0), s.group_size), scale_);
        const float *scale = scale_;
        for (int64_t i = 0; i < count; next += s.group_size) {
            const Lanes<Isa> lanes = Isa::splat(*scale++);
            const int64_t end = min64(next, count);
            for (; i < end; i += 16) Isa::store_f32(spread_ + i, lanes);
            i = end;
        }
    }

    void narrow(int64_t count, char *to, bool stream) const {
        const bool is_f16 = args_.to.format->id == QK_FORMAT_F16;
        int64_t i = 0;
        for (; i + 32 <= count; i += 32, to += 64) {
            const Lanes<Isa> low = Isa::load_f32(value_ + i), high = Isa::load_f32(value_ + i + 16);
            is_f16 ? Isa::put_f16(low, high, to, stream) : Isa::put_bf16(low, high, to, stream);
        }
        if (i < count) {
            store_floats(args_.to.format->id, to, 0, count - i, value_ + i);
        }
    }

    static void put(const float *from, int64_t count, char *to, bool stream) {
        if (!stream) {
            memcpy(to, from, size_t(count) * 4);
            return;
        }
        const char *const at = reinterpret_cast<const char *>(from);
        for (int64_t i = 0; i < count * 4; i += 64) Isa::stream_64(at + i, to + i);
    }

    const DequantizeArgs &args_;
    RowScales<Isa> scales_;
    NestedCode entries_;  // of the table, where there is one
    const LookUpBytes look_up_;
    const LookUpHalves look_up_halves_;
    const bool is_s8_;
    bool whole_ = false;  // vectors, none cut by a group
    alignas(64) float value_[kColumns] = {};
    float scale_[kColumns + 16] = {};  // of groups, and of columns
    alignas(64) float spread_[kColumns + 16] = {};
};

template <class Isa>
Status dequantize_bytes(const DequantizeArgs &args, const Launch &launch) {
    const Geometry &s = args.from.geometry;
    const int64_t row_bytes = s.k * args.to.format->bits / 8;
    const bool stream =
        uintptr_t(args.to.data) % 64 == 0 && row_bytes % 64 == 0 && s.n * row_bytes >= kStreamBytes;
    parallel_ranges(launch.parallel, s.n, 1, s.k * 2, [&](int64_t first, int64_t last) {
        ByteWriter<Isa> writer(args, launch.device);
        for (int64_t row = first; row < last; ++row) writer.write(row, stream);
        if (stream) Isa::end_stream();
    });
    return QK_OK;
}

}  // namespace
}  // namespace qk::cpu
