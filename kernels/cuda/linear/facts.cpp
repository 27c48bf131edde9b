#include "cuda/linear/facts.hpp"

#include "cuda/linear/slabs.hpp"
#include "cuda/linear/sm90/gemv/rows_plan.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

// The machine code for wgmma needs sm_90a; a build without it has empty kernels.
#if defined(QK_CUDA_SM90A)
constexpr bool kBuiltForSm90a = true;
#else
constexpr bool kBuiltForSm90a = false;
#endif

uint32_t kind_of_lowered(const Weight &w) {
    if (w.layout->id == kLayoutTiles) return kPackedLowered;
    const bool by_group = is_gptq(w) || w.layout->id == QK_LAYOUT_AWQ_GEMM;
    return by_group || w.layout->id == kLayoutTilesPairs ? kOtherLowered : kRowLowered;
}

uint32_t kind_of(const LinearArgs &args) {
    const Weight &w = args.w;
    if (is_dense(*w.format)) return w.format == args.x.format ? kDense : kDenseOther;
    if (is_records(w)) return kRecords;
    if (has_minimum(w)) return kind_of_lowered(w);
    if (w.format->kind == FormatKind::kS8) return kRowS8;
    if (w.format->kind == FormatKind::kLut8) return kRowLut8;
    const bool u4 = w.format->kind == FormatKind::kU4;
    if (is_gptq(w)) return u4 ? kGptqU4 : kGptqLut4;
    switch (w.layout->id) {
        case kLayoutTiles:
        case kLayoutTilesPairs: return u4 ? kPackedU4 : kPackedLut4;
        case QK_LAYOUT_AWQ_GEMM: return u4 ? kAwqU4 : kAwqLut4;
        default: return u4 ? kRowU4 : kRowLut4;
    }
}

uint32_t packed_kind_of(const Weight &w) {
    if (is_dense(*w.format)) return 0;
    if (w.format->kind == FormatKind::kLut8) return kRowLut8;
    const bool lowered = has_minimum(w);
    if (w.format->bits == 8) return lowered ? kRowLowered : kRowS8;
    return lowered ? kPackedLowered : w.format->kind == FormatKind::kU4 ? kPackedU4 : kPackedLut4;
}

class Met {
  public:
    void add(Condition condition, bool holds) { bits_ |= Conditions{holds} << int(condition); }
    Conditions bits() const { return bits_; }

  private:
    Conditions bits_ = 0;
};

void add_groups(const Geometry &s, int64_t second, Met *met) {
    const bool one = s.groups_per_row == 1, two = power_of_two(s.group_size);
    const auto whole = [&](int64_t columns) { return one || s.group_size % columns == 0; };
    met->add(Condition::kGroupsAlongK, !s.flat);
    met->add(Condition::kFlatBy8, !s.flat || (s.group_size % 8 == 0 && s.k % 8 == 0));
    met->add(Condition::kGroupsPowerOfTwo, one || two);
    met->add(Condition::kGroups16To128, two && s.groups_per_row * s.group_size == s.k &&
                                            s.group_size >= 16 && s.group_size <= 128);
    met->add(Condition::kGroupsOf64, whole(64));
    met->add(Condition::kNestedGroupsOf64, whole(64) || second == 0 || second == kOneSecond);
    met->add(Condition::kGroupsOf32, whole(32));
    met->add(Condition::kGroupsOf16, whole(16));
    met->add(Condition::kGroupsOf8, whole(8));
    const int bits = second == kOneSecond ? 31 : 32;  // log2_of
    met->add(Condition::kFewGroups32, s.group_count < int64_t{1} << bits);
}

void add_addresses(const LinearArgs &args, bool through_sums, Met *met) {
    const Weight &w = args.w;
    const ScalePlane &scale = w.scale;
    const bool dense = is_dense(*w.format), gptq = !dense && is_gptq(w);
    met->add(Condition::kXAligned16, aligned(args.x.data));
    met->add(Condition::kYAligned, aligned(args.y.data, args.y.format->bits / 8));
    met->add(Condition::kYAligned16, through_sums || aligned(args.y.data));
    met->add(Condition::kCodesAligned16, aligned(w.data));
    met->add(Condition::kCodesAligned4, aligned(w.data, 4));
    met->add(Condition::kCodesAlignedToRepack, aligned(w.data, gptq ? 4 : 8));
    met->add(Condition::kCodesAlignedToWords, aligned(w.data, gptq ? 16 : 4));
    met->add(Condition::kDenseAligned16, !dense || aligned(w.data));
    met->add(Condition::kScalesAligned16, aligned(scale.data));
    met->add(Condition::kScalesAligned4, aligned(scale.data, 4));
    met->add(Condition::kScalesAligned, dense || aligned(scale.data, scale.format->bits / 8));
    const void *const zero = has_minimum(w) ? w.minimum.data : w.zero;
    met->add(Condition::kZerosAligned16, aligned(zero));
    met->add(Condition::kZerosAligned4, aligned(zero, 4));
    met->add(Condition::kNestedAligned16,
             aligned(scale.second) && aligned(scale.code) && aligned(scale.bias));
    met->add(Condition::kSecondAligned4, aligned(scale.second, 4) && aligned(w.minimum.second, 4));
    met->add(Condition::kScaleCodeAligned4, aligned(scale.code, 4));
    met->add(Condition::kScaleBiasAligned4, aligned(scale.bias, 4));
    met->add(Condition::kTableAligned4, aligned(w.table, 4));
}

uint32_t extras_of(const LinearArgs &args) {
    const auto when = [](bool holds, Extra extra) { return holds ? uint32_t(extra) : 0; };
    return when(!is_compact(args.x), kStridedX) | when(!is_compact(args.y), kStridedY) |
           when(args.y.format != args.x.format, kWideY) | when(args.accumulate, kAccumulates) |
           when(args.transposed, kTransposed) | when(args.experts != nullptr, kExpertsOfW);
}

void add_sizes(const LinearArgs &args, uint32_t weight, bool through_sums, Met *met) {
    const int64_t y_stride = args.y.stride != 0 ? args.y.stride : args.w.geometry.n;
    const Weight &w = args.w;
    const Geometry &s = w.geometry;
    const int64_t bytes = args.x.format->bits / 8;
    met->add(Condition::kK256, s.k % 256 == 0);
    met->add(Condition::kK32, s.k % 32 == 0);
    met->add(Condition::kK16, s.k % 16 == 0);
    met->add(Condition::kK8, s.k % 8 == 0);
    met->add(Condition::kXRows4Bytes, aligned(args.x.data, 4) && args.x.columns * bytes % 4 == 0 &&
                                          row_stride(args.x) * bytes % 4 == 0);
    met->add(Condition::kXRows16Bytes, row_stride(args.x) * bytes % 16 == 0);
    // Rows of what the library writes: y, or f32 sums; transposed, of w too.
    const int64_t y_row = args.transposed ? s.k * bytes : through_sums ? s.n * 4 : y_stride * bytes;
    met->add(Condition::kYRows16Bytes, y_row % 16 == 0);
    met->add(Condition::kN4InGptq, (weight & (kGptqU4 | kGptqLut4)) == 0 || s.n % 4 == 0);
    met->add(Condition::kN16InAwq, (weight & (kAwqU4 | kAwqLut4)) == 0 || s.n % 16 == 0);
    met->add(Condition::kN8, s.n % 8 == 0);
    met->add(Condition::kN32, s.n % 32 == 0);
    met->add(Condition::kScalesPlain, is_dense(*w.format) || !has_coded_scales(w.scale));
    met->add(Condition::kScalesMultiply, !w.scale.divides);
    met->add(Condition::kSecondOfRows,
             power_of_two(w.scale.second_group) || w.scale.second_group == s.groups_per_row);
    met->add(Condition::kTableKnown, w.format->id != QK_FORMAT_LUT4);
    met->add(Condition::kSecondPowerOfTwo, power_of_two(w.scale.second_group));
    met->add(Condition::kFewGroups31,
             (weight & kStored4) == 0 || (w.layout->scale_count(s) < int64_t{1} << 31 &&
                                          w.layout->zero_bytes(s) < int64_t{1} << 30));
}

void add_experts(const LinearArgs &args, Facts *f, Met *met) {
    if (args.experts == nullptr) return;
    const Experts &e = *args.experts;
    const bool halves = e.activation != QK_ACTIVATION_NONE && !e.interleaved;
    const int64_t rows = args.w.geometry.n / e.count;
    const ExpertsCut cut = cut_experts(rows, e.slots, e.summed, halves);
    met->add(Condition::kExpertTiles, rows % (16 * cut.tiles) == 0);
    f->tokens = e.tokens, f->slots = e.slots, f->experts = e.count;
    f->y_columns = args.y.columns;
    f->summed = e.summed;
    const int64_t limit = int64_t{1} << 31;
    met->add(Condition::kFewExperts, e.count <= kListed && e.tokens < limit / e.slots);
    met->add(Condition::kFewSlots, int64_t(cut.tiles) * cut.slots <= kBlockRows);
}

// What 4-bit weights take of the workspace, packed there.
void add_slabs(const LinearArgs &args, Facts *f, Met *met) {
    const Weight &w = args.w;
    const Geometry &s = w.geometry;
    const Layout &packed = *find_layout(f->lut4() ? kLayoutTilesPairs : kLayoutTiles, 4);
    const int32_t bits = w.scale.format->bits;
    f->one_slab = packed_slab_rows(packed, s, f->all_n, bits, !f->lut4()) == f->all_n;
    f->slab_rows = packed_slab_rows(packed, s, s.n, bits, w.zero != nullptr);
    f->slab_bytes = packed_planes(packed, s, f->slab_rows, bits, w.zero != nullptr).end;
    const bool cut = f->slab_rows < s.n;
    met->add(Condition::kSecondFitsSlabs,
             !cut || !f->nested() || f->second_group == kOneSecond ||
                 f->slab_rows * s.groups_per_row % f->second_group == 0);
    const int64_t limit = int64_t{1} << 28;
    met->add(Condition::kFewTiles28, ceil_div(f->slab_rows, 16) * ceil_div(s.k, 64) < limit &&
                                         f->slab_rows * s.groups_per_row < limit &&
                                         f->slab_rows <= 65535 * 64);
}

}  // namespace

Facts facts_of(const LinearArgs &args, const Device &device) {
    const Weight &w = args.w;
    const Geometry &s = w.geometry;
    Facts f = {};
    f.m = args.x.rows;
    f.n = s.n;
    f.k = s.k;
    f.all_n = args.transposed || args.experts != nullptr ? s.n : args.y.columns;
    f.extras = extras_of(args);
    f.group_size = s.group_size;
    f.groups_per_row = s.groups_per_row;
    f.second_group = w.scale.second_group;
    f.weight = kind_of(args);
    f.packed = packed_kind_of(w);
    f.f32 = args.x.format->id == QK_FORMAT_F32;
    f.e2m1 = w.format->id == QK_FORMAT_FP4_E2M1;
    f.e4m3 = w.format->id == QK_FORMAT_E4M3;
    Met met;
    add_addresses(args, f.through_sums(), &met);
    add_sizes(args, f.weight, f.through_sums(), &met);
    add_experts(args, &f, &met);
    met.add(Condition::kXIs16Bits, !f.f32);
    met.add(Condition::kXIs16BitsForLut4, !f.f32 || !f.lut4());
    met.add(Condition::kXIs32Bits, f.f32);
    met.add(Condition::kWhole, f.n == f.all_n);
    met.add(Condition::kLibrary, !device.lacks_library);
    met.add(Condition::kSm90a, kBuiltForSm90a);
    if (!is_dense(*w.format)) {
        f.scale_bits = w.scale.format->bits;
        f.coded = coded_scales(w.scale, *device.tables) != QK_FORMAT_LUT8;
        add_groups(s, f.second_group, &met);
        const bool of_32 = s.groups_per_row == 1 || s.group_size % 32 == 0;
        met.add(Condition::kFloatGroupsOf32, !f.lut4() || f.scale_bits < 32 || of_32);
        if (w.format->bits == 4) add_slabs(args, &f, &met);
    }
    f.met = met.bits();
    return f;
}

}  // namespace qk::cuda
