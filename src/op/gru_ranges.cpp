// What calibration has seen, out of a GRU and into another.
#include <math.h>
#include <string.h>

#include "gru/place.hpp"
#include "op/gru.hpp"

namespace qk {
namespace {

using ll = long long;

bool is_calibrated(int32_t which) { return which < QK_GRU_W || which > QK_GRU_BR; }

Status check_struct(qk_context *context, const qk_gru_ranges &ranges) {
    QK_CHECK(ranges.struct_size == sizeof(qk_gru_ranges), &context->error, ABI,
             "ranges: struct_size is %u, this library has %zu", ranges.struct_size,
             sizeof(qk_gru_ranges));
    return QK_OK;
}

Status check_sums(qk_context *context, const double *sums, int64_t count, const char *name,
                  bool are_needed) {
    if (sums == nullptr) {
        QK_CHECK(!are_needed, &context->error, NULL, "ranges: %s is NULL, bias correction needs it",
                 name);
        return QK_OK;
    }
    for (int64_t i = 0; i < count; ++i)
        QK_CHECK(isfinite(sums[i]), &context->error, ARGUMENT, "ranges: %s[%lld] is %g", name,
                 ll(i), sums[i]);
    return QK_OK;
}

Status check_ranges(qk_context *context, const qk_gru &gru, const qk_gru_ranges &ranges) {
    ErrorText *const error = &context->error;
    QK_TRY(check_struct(context, ranges));
    QK_CHECK(ranges.reserved == 0, error, ARGUMENT, "ranges: reserved is %u, must be 0",
             ranges.reserved);
    constexpr int64_t most = int64_t{1} << 62;  // two such sums are an int64
    QK_CHECK(ranges.samples >= 1 && ranges.samples <= most - gru.training.ranges.samples, error,
             ARGUMENT, "ranges: samples is %lld, accepted are 1 to %lld", ll(ranges.samples),
             ll(most - gru.training.ranges.samples));
    for (int32_t which = 0; which < QK_GRU_TENSOR_COUNT; ++which) {
        const double min = ranges.min[which], max = ranges.max[which];
        QK_CHECK(!is_calibrated(which) || (isfinite(min) && isfinite(max) && min <= max), error,
                 ARGUMENT, "ranges: of %s are %g to %g, must be finite and in order",
                 gru::tensor_name(which), min, max);
    }
    const bool corrects = (gru.training.options.flags & QK_GRU_BIAS_CORRECTION) != 0;
    QK_TRY(check_sums(context, ranges.x_sum, gru.input_size, "x_sum", corrects));
    return check_sums(context, ranges.h_sum, gru.hidden_size, "h_sum", corrects);
}

void give_sums(double *to, const double *from, int64_t count, bool merge) {
    for (int64_t i = 0; i < count; ++i)
        to[i] = (merge ? to[i] : 0.0) + (from == nullptr ? 0.0 : from[i]);
}

}  // namespace

Status gru_get_ranges(qk_context *context, const qk_gru *gru, qk_gru_ranges *ranges) {
    QK_TRY(check_float_gru(context, gru));
    QK_TRY(check_struct(context, *ranges));
    const gru::Ranges &seen = gru->training.ranges;
    ranges->reserved = 0;
    ranges->samples = seen.samples;
    for (int32_t which = 0; which < QK_GRU_TENSOR_COUNT; ++which) {
        ranges->min[which] = seen.range[which].min;
        ranges->max[which] = seen.range[which].max;
    }
    if (ranges->x_sum != nullptr)
        memcpy(ranges->x_sum, seen.x_sum, size_t(gru->input_size) * sizeof(double));
    if (ranges->h_sum != nullptr)
        memcpy(ranges->h_sum, seen.h_sum, size_t(gru->hidden_size) * sizeof(double));
    return QK_OK;
}

Status gru_give_ranges(qk_context *context, qk_gru *gru, const qk_gru_ranges &ranges, bool merge) {
    QK_TRY(check_float_gru(context, gru));
    QK_TRY(check_ranges(context, *gru, ranges));
    gru::Ranges &own = gru->training.ranges;
    QK_CHECK(own.histogram == nullptr, &context->error, UNSUPPORTED,
             "gru: calibrates by least squared error, which needs the data and not its ranges");
    for (int32_t which = 0; which < QK_GRU_TENSOR_COUNT; ++which) {
        if (!is_calibrated(which)) continue;
        gru::Range &range = own.range[which];
        const bool widens = merge && range.is_set;
        range = {widens ? fmin(range.min, ranges.min[which]) : ranges.min[which],
                 widens ? fmax(range.max, ranges.max[which]) : ranges.max[which], true};
    }
    give_sums(own.x_sum, ranges.x_sum, gru->input_size, merge);
    give_sums(own.h_sum, ranges.h_sum, gru->hidden_size, merge);
    own.samples = (merge ? own.samples : 0) + ranges.samples;
    return QK_OK;
}

}  // namespace qk
