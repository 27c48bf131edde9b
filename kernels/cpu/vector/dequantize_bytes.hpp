// Dequantize 8-bit codes (layout row): a run of columns as f32 first, then rounded and written.
// Included after an instruction set's codes.hpp.
#pragma once
#include "cpu/access.hpp"
#include "cpu/split.hpp"
#include "cpu/vector/row_scales.hpp"

namespace qk::cpu {
namespace {

// Outputs above this are not read back from the caches: write past them.
constexpr int64_t kStreamBytes = int64_t{4} << 20;

class ByteWriter {
  public:
    explicit ByteWriter(const DequantizeArgs &args)
        : args_(args), scales_(args.from), entries_(args.from),
          is_signed_(args.from.format->kind == FormatKind::kSigned) {}

    void write(int64_t row, bool stream) {
        const int64_t k = args_.from.geometry.k, size = args_.to.format->bits / 8;
        scales_.start(row);
        for (int64_t column = 0; column < k; column += kRun) {
            const int64_t count = min64(kRun, k - column);
            read(row, column, count);
            char *const to = static_cast<char *>(args_.to.data) + (row * k + column) * size;
            const char *const from = narrow(count);
            if (!stream) {
                memcpy(to, from, size_t(count * size));
                continue;
            }
            for (int64_t i = 0; i < count * size; i += 64) stream_64(from + i, to + i);
        }
    }

  private:
    static constexpr int64_t kRun = 256;

    void read(int64_t row, int64_t column, int64_t count) {
        const Geometry &s = args_.from.geometry;
        const uint8_t *const data =
            static_cast<const uint8_t *>(args_.from.data) + row * s.k + column;
        int64_t group = group_of(s, row, column).group;
        int64_t next = group_end(s, row, column) - column;
        for (int64_t i = 0; i < count; next += s.group_size) {
            const int64_t end = min64(next, count);
            const float scale = scales_.at(group++);
            if (!is_signed_) {
                const WideTable table(entries_.value);
                for (; i + 16 <= end; i += 16) {
                    store_f32(value_ + i, mul(table.look_up(data + i), splat(scale)));
                }
                for (; i < end; ++i) value_[i] = entries_.value[data[i]] * scale;
                continue;
            }
            for (; i < end; ++i) value_[i] = float(int8_t(data[i])) * scale;
        }
    }

    const char *narrow(int64_t count) {
        switch (args_.to.format->id) {
            case QK_FORMAT_F16:
                for (int64_t i = 0; i < count; i += 16) narrow_f16(load_f32(value_ + i), half_ + i);
                break;
            case QK_FORMAT_BF16:
                for (int64_t i = 0; i < count; i += 16) {
                    narrow_bf16(load_f32(value_ + i), half_ + i);
                }
                break;
            default: return reinterpret_cast<const char *>(value_);
        }
        return reinterpret_cast<const char *>(half_);
    }

    const DequantizeArgs &args_;
    RowScales scales_;
    Entries entries_;
    const bool is_signed_;
    alignas(64) float value_[kRun] = {};
    alignas(64) uint16_t half_[kRun];
};

Status dequantize_bytes(const DequantizeArgs &args, const Launch &launch) {
    const Geometry &s = args.from.geometry;
    const int64_t row_bytes = s.k * args.to.format->bits / 8;
    const bool stream = uintptr_t(args.to.data) % 64 == 0 && row_bytes % 64 == 0 &&
                        s.n * row_bytes >= kStreamBytes;
    parallel_ranges(launch.parallel, s.n, 1, [&](int64_t first, int64_t last) {
        ByteWriter writer(args);
        for (int64_t row = first; row < last; ++row) writer.write(row, stream);
        if (stream) end_stream();
    });
    return QK_OK;
}

}  // namespace
}  // namespace qk::cpu
