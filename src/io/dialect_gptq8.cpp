// GPTQ with 8 bits: X.qweight I32 [k/4,n], X.qzeros I32 [groups,n/4], four codes a word.
// A symmetric file's zeros are all 128: its codes are signed ones with an offset. Other zeros
// become minima.
#include "dialect_gptq.hpp"
#include "methods.hpp"
#include "remake.hpp"

namespace qk_io {
namespace {

bool is_symmetric(const Tensor *qzeros, bool minus_one) {
    const uint8_t wanted = minus_one ? 127 : 128;
    for (int64_t i = 0; i < qzeros->bytes; ++i) {
        if (qzeros->data[i] != wanted) return false;
    }
    return true;
}

}  // namespace

qk_status describe_gptq8(qk_checkpoint *checkpoint, const Module &module, const GptqParts &p,
                         Layer *layer, qk_io_message *message) {
    int64_t k = 0, group = 0;
    const int64_t n = p.qweight->shape[1];
    if (__builtin_mul_overflow(p.qweight->shape[0], 4, &k) || n % 4 != 0) {
        return fail(message, QK_ERROR_CORRUPT, "qweight is %s; columns of 8 bits come in fours",
                    shape_text(p.qweight).text);
    }
    QK_IO_TRY(normal_group(group_of_layer(checkpoint->config, k, p.scales->shape[0]), k, &group,
                           message));
    const int64_t groups = group == QK_GROUP_ROW ? 1 : ceil_div(k, group);
    const bool fits = p.scales->shape[0] == groups && p.scales->shape[1] == n &&
                      p.qzeros->shape[0] == groups && p.qzeros->shape[1] == n / 4;
    if (!fits) {
        return fail(message, QK_ERROR_CORRUPT,
                    "GPTQ, 8 bits, groups a row %lld: qweight %s, scales %s, qzeros %s do not fit "
                    "together",
                    static_cast<long long>(groups), shape_text(p.qweight).text,
                    shape_text(p.scales).text, shape_text(p.qzeros).text);
    }
    QK_IO_TRY(take_gptq_order(checkpoint, p.g_idx, k, group, layer, message));
    set_recipe(layer, QK_PLANE_DATA, {make_offset_words, p.qweight, 0}, p.qweight->bytes);
    set_recipe(layer, QK_PLANE_SCALE, {make_transposed, p.scales, 0}, p.scales->bytes);
    layer->dense_format = float_format(p.scales);
    describe_weight(layer, QK_FORMAT_S8, QK_LAYOUT_ROW, group, float_format(p.scales), n, k);
    if (!is_symmetric(p.qzeros, layer->dialect == QK_DIALECT_GPTQ_V1)) {
        QK_IO_TRY(set_minima(layer, {make_wide_transposed, p.scales, 0},
                             {make_minima_of_words, p.qzeros, 0, p.scales}, message));
    }
    return take_bias(module, n, layer, message);
}

}  // namespace qk_io
