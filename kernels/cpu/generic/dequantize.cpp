// Dequantize, any format x layout x scale kind: value = entry * scale as one fp32 product, rounded
// once to the output type. Group by group, 256 codes at a time.
#include "cpu/access.hpp"
#include "cpu/kernels.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kBlock = 256;

void dequantize_row(const DequantizeArgs &args, Entries &entries, int64_t row) {
    const Weight &w = args.from;
    const Geometry &s = w.geometry;
    const bool affine = w.format->kind == FormatKind::kU4;
    uint8_t codes[kBlock];
    for (int64_t column = 0; column < s.k;) {
        const GroupIndex group = group_of(s, row, column);
        const int64_t end = group_end(s, row, column);
        const float scale = scale_of(w, group);
        if (affine) entries.set_zero(zero_of(w, group));
        for (; column < end;) {
            const int64_t count = min64(kBlock, end - column);
            w.layout->load(s, static_cast<const uint8_t *>(w.data), row, column, count, codes);
            for (int64_t i = 0; i < count; ++i) {
                store_float(args.to.format->id, args.to.data, row * s.k + column + i,
                            entries.value[codes[i]] * scale);
            }
            column += count;
        }
    }
}

Status run(const DequantizeArgs &args, const Launch &launch) {
    parallel_ranges(launch.parallel, args.from.geometry.n, 1, [&](int64_t first, int64_t last) {
        Entries entries(args.from);
        for (int64_t row = first; row < last; ++row) dequantize_row(args, entries, row);
    });
    return QK_OK;
}

bool can_run(const DequantizeArgs &, const Device &) { return true; }

}  // namespace

const Kernel<DequantizeArgs> kDequantizeGeneric = {"generic", can_run, nullptr, run};

}  // namespace qk::cpu
