// Which rule of docs/formats.md ("Quantizing") an output is quantized by: its description alone
// says.
#pragma once
#include "backend/backend.hpp"
#include "format/group_scale.hpp"

namespace qk {

// Whether the GLOBAL plane divides; packed weights keep the quotients of its one number.
static inline bool has_dividing_global(const Weight &w) {
    return w.scale.divides || (w.globals == 1 && w.scale.second != w.global);
}

static inline Rule rule_of_e2m1(const Weight &w) {
    switch (w.scale.format->id) {
        case QK_FORMAT_E8M0: return w.globals == 0 ? Rule::kMx : Rule::kNone;
        case QK_FORMAT_E4M3:
            return w.globals == 0 || has_dividing_global(w) ? Rule::kNvfp4Divides
                                                            : Rule::kNvfp4Multiplies;
        default: return Rule::kE2m1;
    }
}

static inline Rule rule_of_e4m3(const Weight &w) {
    switch (w.scale.format->id) {
        case QK_FORMAT_E8M0: return w.globals == 0 ? Rule::kMx : Rule::kNone;
        case QK_FORMAT_E4M3: return Rule::kNone;
        default: return Rule::kE4m3;
    }
}

// kNone: qk has no quantizer for it.
static inline Rule rule_of(const Weight &w) {
    const qk_format scale = w.scale.format->id;
    const bool small = scale == QK_FORMAT_E8M0 || scale == QK_FORMAT_E4M3;
    if (w.layout->id == QK_LAYOUT_GGUF_Q4_0) return Rule::kQ4_0;
    if (w.layout->id == QK_LAYOUT_GGUF_Q8_0) return Rule::kQ8_0;
    if (has_minimum(w) || is_records(w) || scale == QK_FORMAT_I8) return Rule::kNone;
    switch (w.format->id) {
        case QK_FORMAT_FP4_E2M1: return rule_of_e2m1(w);
        case QK_FORMAT_E4M3: return rule_of_e4m3(w);
        case QK_FORMAT_U4_AFFINE:
            return small ? Rule::kNone : w.zero != nullptr ? Rule::kAffine : Rule::kSymmetric;
        case QK_FORMAT_NF4:
        case QK_FORMAT_FP4_BNB: return small ? Rule::kNone : Rule::kAbsmax;
        case QK_FORMAT_LUT8: return small ? Rule::kNone : Rule::kLut8;
        case QK_FORMAT_S8: return small ? Rule::kNone : w.whole_range ? Rule::kInt8 : Rule::kS8;
        default: return Rule::kNone;
    }
}

static inline QuantizeRule rule_of(const QuantizeArgs &args) {
    const Weight &w = args.to;
    return {rule_of(w), w.format->id, w.scale.format->id, args.from.format->id,
            w.geometry.group_size};
}

}  // namespace qk
