// Repack: the same codes, scales and zeros at another layout's places. Lossless by construction:
// nothing is decoded.
#include "cpu/access.hpp"
#include "cpu/lists.hpp"
#include "cpu/split.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kBlock = 256;

void move_codes(const RepackArgs &args, int64_t row) {
    const Geometry &s = args.from.geometry;
    uint8_t codes[kBlock];
    for (int64_t column = 0; column < s.k; column += kBlock) {
        const int64_t count = min64(kBlock, s.k - column);
        args.from.layout->load(s, static_cast<const uint8_t *>(args.from.data), row, column, count,
                               codes);
        args.to.layout->store(s, static_cast<uint8_t *>(args.to.data), row, column, count, codes);
    }
}

void move_group(const RepackArgs &args, GroupIndex group) {
    const int64_t from = args.from.layout->scale_at(args.from.geometry, group);
    const int64_t to = args.to.layout->scale_at(args.to.geometry, group);
    void *const out = args.to.scale.data;
    const void *const in = args.from.scale.data;
    switch (args.from.scale.format->bits) {
        case 8: store_as(out, to, load_as<uint8_t>(in, from)); break;
        case 16: store_as(out, to, load_as<uint16_t>(in, from)); break;
        default: store_as(out, to, load_as<uint32_t>(in, from));
    }
    if (args.to.zero != nullptr) store_zero(args.to, group, zero_of(args.from, group));
}

void copy_shared_planes(const RepackArgs &args) {
    const ScalePlane &from = args.from.scale, &to = args.to.scale;
    if (is_nested(args.from)) {
        memcpy(to.second, from.second, size_t(second_count(args.from)) * sizeof(float));
        memcpy(to.code, from.code, 256 * sizeof(float));
        memcpy(to.bias, from.bias, sizeof(float));
    }
    if (args.from.table != nullptr) memcpy(args.to.table, args.from.table, 256 * sizeof(float));
}

Status run(const RepackArgs &args, const Launch &launch) {
    const Geometry &s = args.from.geometry;
    clear_planes(args.to);
    copy_shared_planes(args);
    parallel_ranges(launch.parallel, s.n, kRowBlock, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            move_codes(args, row);
            if (s.flat) continue;
            for (int64_t group = 0; group < s.groups_per_row; ++group) {
                move_group(args, {row, group});
            }
        }
    });
    if (s.flat) {
        for (int64_t group = 0; group < s.group_count; ++group) move_group(args, {0, group});
    }
    return QK_OK;
}

bool can_run(const RepackArgs &, int32_t) { return true; }

}  // namespace

const Kernel<RepackArgs> kRepackGeneric = {"generic", can_run, nullptr, run};

}  // namespace qk::cpu
