// E2M1 codes in rows and a scale of one byte for a group, as dialect_fp4.cpp reads them: ModelOpt's
// NVFP4, DeepSeek's MXFP4 and gpt-oss's.
#include "writer_dialects.hpp"

namespace qk_io {
namespace {

bool is_fp4(const qk_tensor_desc &d, int32_t rank, int32_t group, qk_format scales,
            uint32_t flags) {
    constexpr uint32_t kGlobal =
        QK_TENSOR_GLOBAL | QK_TENSOR_GLOBAL_ROWS | QK_TENSOR_GLOBAL_DIVIDES;
    return d.format == QK_FORMAT_FP4_E2M1 && d.layout == QK_LAYOUT_ROW && d.rank == rank &&
           d.grouping != QK_GROUPING_FLAT && d.group_size == group && d.scale_format == scales &&
           (d.flags & kGlobal) == flags && d.shape[rank - 1] % group == 0;
}

qk_status refuse(const OutgoingLayer &layer, int32_t rank, const char *held,
                 qk_io_message *message) {
    return fail(message, QK_ERROR_UNSUPPORTED,
                "layer \"%.200s\": %s has FP4_E2M1 of rank %d in ROW, in whole groups, with %s",
                layer.name, qk_dialect_name(layer.dialect), static_cast<int>(rank), held);
}

qk_status nothing_left(qk_writer *, qk_context *, const OutgoingLayer &, const qk_tensor *,
                       qk_io_message *) {
    return QK_OK;
}

/* ---- ModelOpt ------------------------------------------------------------------------------ */

qk_status check_modelopt(const OutgoingLayer &layer, qk_io_message *message) {
    if (is_fp4(layer.desc, 2, 16, QK_FORMAT_E4M3, QK_TENSOR_GLOBAL)) return QK_OK;
    return refuse(layer, 2, "E4M3 scales of 16 that GLOBAL multiplies", message);
}

qk_status declare_modelopt(qk_writer *w, const OutgoingLayer &layer, qk_io_message *message) {
    const int64_t n = layer.desc.shape[0], k = layer.desc.shape[1];
    QK_IO_TRY(declare(w, layer, ".weight", QK_DTYPE_U8, 2, n, k / 2, message));
    QK_IO_TRY(declare(w, layer, ".weight_scale", QK_DTYPE_F8_E4M3, 2, n, k / 16, message));
    return declare(w, layer, ".weight_scale_2", QK_DTYPE_F32, 0, 0, 0, message);
}

qk_status write_modelopt(qk_writer *w, qk_context *context, const OutgoingLayer &piece,
                         const qk_tensor *tensor, qk_io_message *message) {
    QK_IO_TRY(write_plane(w, context, piece, tensor, {".weight", QK_PLANE_DATA}, message));
    return write_plane(w, context, piece, tensor, {".weight_scale", QK_PLANE_SCALE}, message);
}

qk_status finish_modelopt(qk_writer *w, qk_context *context, const OutgoingLayer &layer,
                          const qk_tensor *tensor, qk_io_message *message) {
    return write_plane(w, context, layer, tensor, {".weight_scale_2", QK_PLANE_GLOBAL}, message);
}

/* ---- DeepSeek ------------------------------------------------------------------------------ */

qk_status check_deepseek(const OutgoingLayer &layer, qk_io_message *message) {
    if (is_fp4(layer.desc, 2, 32, QK_FORMAT_E8M0, 0)) return QK_OK;
    return refuse(layer, 2, "E8M0 scales of 32", message);
}

qk_status declare_deepseek(qk_writer *w, const OutgoingLayer &layer, qk_io_message *message) {
    const int64_t n = layer.desc.shape[0], k = layer.desc.shape[1];
    QK_IO_TRY(declare(w, layer, ".weight", QK_DTYPE_I8, 2, n, k / 2, message));
    return declare(w, layer, ".scale", QK_DTYPE_F8_E8M0, 2, n, k / 32, message);
}

qk_status write_deepseek(qk_writer *w, qk_context *context, const OutgoingLayer &piece,
                         const qk_tensor *tensor, qk_io_message *message) {
    QK_IO_TRY(write_plane(w, context, piece, tensor, {".weight", QK_PLANE_DATA}, message));
    return write_plane(w, context, piece, tensor, {".scale", QK_PLANE_SCALE}, message);
}

/* ---- gpt-oss ------------------------------------------------------------------------------- */

qk_status check_gpt_oss(const OutgoingLayer &layer, qk_io_message *message) {
    if (is_fp4(layer.desc, 3, 32, QK_FORMAT_E8M0, 0)) return QK_OK;
    return refuse(layer, 3, "E8M0 scales of 32", message);
}

qk_status declare_gpt_oss(qk_writer *w, const OutgoingLayer &layer, qk_io_message *message) {
    const int64_t *sizes = layer.desc.shape;
    const int64_t shape[] = {sizes[0], sizes[1], sizes[2] / 32, 16};
    char name[kMaxNameBytes + 1];
    QK_IO_TRY(join_name(name, layer.name, "_blocks", message));
    QK_IO_TRY(qk_writer_declare(w, name, QK_DTYPE_U8, 4, shape, message));
    QK_IO_TRY(join_name(name, layer.name, "_scales", message));
    return qk_writer_declare(w, name, QK_DTYPE_U8, 3, shape, message);
}

qk_status write_gpt_oss(qk_writer *w, qk_context *context, const OutgoingLayer &piece,
                        const qk_tensor *tensor, qk_io_message *message) {
    QK_IO_TRY(write_plane(w, context, piece, tensor, {"_blocks", QK_PLANE_DATA}, message));
    return write_plane(w, context, piece, tensor, {"_scales", QK_PLANE_SCALE}, message);
}

}  // namespace

extern const DialectWriter kModelOptWriter = {QK_DIALECT_MODELOPT, check_modelopt, declare_modelopt,
                                              write_modelopt, finish_modelopt};
extern const DialectWriter kDeepSeekWriter = {QK_DIALECT_DEEPSEEK, check_deepseek, declare_deepseek,
                                              write_deepseek, nothing_left};
extern const DialectWriter kGptOssWriter = {QK_DIALECT_GPT_OSS, check_gpt_oss, declare_gpt_oss,
                                            write_gpt_oss, nothing_left};

}  // namespace qk_io
