#include "rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "layers.hpp"
#include "scan.hpp"

namespace {

bool is_dense(const qk_tensor_desc &desc) { return desc.group_size == 0; }

int64_t bytes_of(const qk_tensor_desc &desc, qk_plane plane, int64_t rows, int64_t columns) {
    if (rows == 0 || columns == 0) return 0;
    qk_tensor_desc part = desc;
    part.shape[0] = rows;
    part.shape[1] = columns;
    size_t bytes = 0;
    check(qk_tensor_plane_bytes(&part, plane, &bytes), "rows", nullptr);
    return static_cast<int64_t>(bytes);
}

// What eight rows take of one line.
int64_t eight_rows(const qk_tensor_desc &desc, qk_plane plane) {
    if (plane == QK_PLANE_SCALE) {
        return 8 * (desc.scale_format == QK_FORMAT_LUT8 ? 1 : element_bytes(desc.scale_format));
    }
    return plane == QK_PLANE_DATA && desc.layout != QK_LAYOUT_AWQ_GEMM ? 32 : 4;
}

// Where one run of codes may be cut: between bytes, groups and second groups.
int64_t codes_between_cuts(const qk_tensor_desc &desc) {
    const int64_t group = desc.group_size > 0 ? desc.group_size : desc.shape[1];
    const int64_t per = desc.scale_group_size == 0 ? 256 : desc.scale_group_size;
    return std::lcm(desc.scale_format == QK_FORMAT_LUT8 ? group * per : group, int64_t{2});
}

}  // namespace

bool is_records(const qk_tensor_desc &desc) {
    return desc.layout >= QK_LAYOUT_GGUF_Q4_0 && desc.layout < QK_LAYOUT_PACKED;
}

bool is_by_columns(const qk_tensor_desc &desc) {
    return desc.layout == QK_LAYOUT_AWQ_GEMM || desc.layout == QK_LAYOUT_GPTQ ||
           desc.layout == QK_LAYOUT_GPTQ_V1;
}

int64_t rows_between_cuts(const qk_tensor_desc &desc) {
    if (is_dense(desc) || is_records(desc)) return 1;
    if (desc.layout != QK_LAYOUT_ROW_HIGH) return 8;
    const int64_t codes = codes_between_cuts(desc);
    return codes / std::gcd(codes, desc.shape[1]);
}

namespace {

// Tables, offsets and an order of columns are the whole layer's. GLOBAL is, or has a number a row.
bool is_shared(const qk_tensor_desc &desc, qk_plane plane) {
    if (plane == QK_PLANE_GLOBAL) return (desc.flags & QK_TENSOR_GLOBAL_ROWS) == 0;
    return plane == QK_PLANE_SCALE_CODE || plane == QK_PLANE_SCALE_BIAS ||
           plane == QK_PLANE_TABLE || plane == QK_PLANE_ORDER;
}

// Layouts that no dialect loads as yet are one block.
bool can_be_cut(const qk_tensor_desc &desc) {
    const bool nested = desc.scale_format == QK_FORMAT_LUT8 || desc.scale_format == QK_FORMAT_I8;
    const bool rows = desc.layout == QK_LAYOUT_ROW && desc.grouping == QK_GROUPING_ALONG_K;
    return is_dense(desc) || is_records(desc) || desc.layout == QK_LAYOUT_ROW_HIGH ||
           (!nested && (rows || is_by_columns(desc) || desc.layout == QK_LAYOUT_AWQ_GEMV ||
                        desc.layout == QK_LAYOUT_WORD));
}

// A block ends between cuts where that is near enough: rows of a tensor of their own decode faster
// than a run of codes.
int64_t rows_of_block(const qk_tensor_desc &desc, int64_t weights) {
    if (!can_be_cut(desc)) return desc.shape[0];
    const int64_t cut = rows_between_cuts(desc);
    const int64_t fit = std::max<int64_t>(1, weights / std::max<int64_t>(1, desc.shape[1]));
    if (cut <= fit) return fit / cut * cut;
    return desc.layout == QK_LAYOUT_ROW_HIGH && desc.group_size > 0 ? fit : cut;
}

int64_t weights_of(const RowBlock &block) { return block.desc.shape[0] * block.desc.shape[1]; }

}  // namespace

LayerRows::LayerRows(const Context &context, const std::string &name, Tensor weight,
                     int64_t block_weights)
    : context_(context), name_(name), block_weights_(block_weights), weight_(std::move(weight)) {
    check(qk_tensor_describe(weight_.get(), &desc_), name_, nullptr);
    join_rows(&desc_);
    for (qk_plane plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        if (bytes_of(desc_, plane, rows(), columns()) == 0) continue;
        DLManagedTensorVersioned *view = nullptr;
        check(qk_tensor_to_dlpack(weight_.get(), plane, &view), name_,
              qk_context_error(context.get()));
        views_[plane].reset(view);
    }
}

LayerRows::LayerRows(const Checkpoint &checkpoint, const Context &context, const qk_layer &layer,
                     int64_t block_weights)
    : LayerRows(context, layer.name,
                load_layer(checkpoint, context, layer.name, QK_LOAD_IN_PLACE).weight,
                block_weights) {}

RowBlock LayerRows::block(int64_t begin) {
    const int64_t count = std::min(rows_of_block(desc_, block_weights_), rows() - begin);
    RowBlock block = {begin, count, 0, desc_, {}};
    block.desc.shape[0] = block.count;
    if (desc_.layout == QK_LAYOUT_ROW_HIGH) {
        block.skip = begin * columns() % codes_between_cuts(desc_);
    }
    if (block.skip > 0) {
        block.desc.shape[0] = 1;
        block.desc.shape[1] = block.skip + block.count * columns();
        block.desc.grouping = QK_GROUPING_FLAT;
    }
    for (qk_plane plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        if (views_[plane] != nullptr) cut_plane(plane, &block);
    }
    return block;
}

void LayerRows::cut_plane(qk_plane plane, RowBlock *block) {
    const DLTensor &whole = views_[plane]->dl_tensor;
    const char *data = static_cast<const char *>(whole.data) + whole.byte_offset;
    const bool shared = is_shared(desc_, plane);
    const bool by_columns = is_by_columns(desc_) && plane != QK_PLANE_GLOBAL;
    if (!shared && !by_columns) {
        data += block->skip > 0 ? bytes_of(desc_, plane, 1, block->begin * columns() - block->skip)
                                : bytes_of(desc_, plane, block->begin, columns());
    }
    if (!shared && by_columns && block->count < rows()) {
        const int64_t eight = eight_rows(desc_, plane);
        const int64_t lines = bytes_of(desc_, plane, 8, columns()) / eight;
        const int64_t line = bytes_of(desc_, plane, rows(), columns()) / lines;
        const int64_t piece = bytes_of(desc_, plane, block->count, columns()) / lines;
        std::vector<char> &strip = strips_[plane];
        strip.resize(static_cast<size_t>(lines * piece));
        for (int64_t i = 0; i < lines; ++i) {
            std::memcpy(&strip[static_cast<size_t>(i * piece)],
                        data + i * line + block->begin / 8 * eight, static_cast<size_t>(piece));
        }
        data = strip.data();
    }
    block->planes[plane] = data;
}

Tensor LayerRows::tensor(const RowBlock &block) const {
    void *planes[QK_PLANE_COUNT];
    // READ_ONLY is what makes casting const away true.
    for (int i = 0; i < QK_PLANE_COUNT; ++i) planes[i] = const_cast<void *>(block.planes[i]);
    qk_tensor_desc desc = block.desc;
    desc.flags |= QK_TENSOR_READ_ONLY;
    qk_tensor *made = nullptr;
    check(qk_tensor_wrap(context_.get(), &desc, planes, QK_PLANE_COUNT, &made), name_,
          qk_context_error(context_.get()));
    return Tensor(made);
}

const char *LayerRows::decode(const RowBlock &block, qk_format format) {
    const int64_t size = element_bytes(format);
    values_.resize(static_cast<size_t>(weights_of(block) * size));
    const Tensor from = tensor(block);
    const Tensor to =
        wrap_dense(context_, format, block.desc.shape[0], block.desc.shape[1], values_.data());
    check(qk_dequantize(context_.get(), from.get(), to.get()), name_,
          qk_context_error(context_.get()));
    return values_.data() + block.skip * size;
}

Values LayerRows::values(const RowBlock &block) {
    if (is_dense(desc_)) return {desc_.format, block.planes[QK_PLANE_DATA]};
    return {QK_FORMAT_F32, decode(block, QK_FORMAT_F32)};
}

const float *LayerRows::decode_f32(const RowBlock &block) {
    if (!is_dense(desc_)) return reinterpret_cast<const float *>(decode(block, QK_FORMAT_F32));
    const char *weights = static_cast<const char *>(block.planes[QK_PLANE_DATA]);
    const int64_t size = element_bytes(desc_.format);
    dense_.resize(static_cast<size_t>(weights_of(block)));
    for (size_t i = 0; i < dense_.size(); ++i) {
        const char *at = weights + static_cast<int64_t>(i) * size;
        dense_[i] = static_cast<float>(float_value(desc_.format, at));
    }
    return dense_.data();
}

// What the block would decode to if every byte of its codes were this one.
std::vector<float> LayerRows::decode_filled(const RowBlock &block, int byte) {
    const int64_t bytes =
        bytes_of(block.desc, QK_PLANE_DATA, block.desc.shape[0], block.desc.shape[1]);
    const std::vector<char> codes(static_cast<size_t>(bytes), static_cast<char>(byte));
    RowBlock filled = block;
    filled.planes[QK_PLANE_DATA] = codes.data();
    const float *values = decode_f32(filled);
    return std::vector<float>(values, values + block.count * columns());
}

// From codes that stand for 1; of affine ones from 0 and 15, whose values are 15 scales apart,
// wherever the zero is.
std::vector<float> LayerRows::decode_scales(const RowBlock &block) {
    int one = 0xff;  // two codes of NF4
    if (desc_.format == QK_FORMAT_FP4_BNB) one = 0x33;
    if (desc_.format == QK_FORMAT_FP4_E2M1) one = 0x22;
    if (desc_.format == QK_FORMAT_S8) one = 0x01;
    if (desc_.format == QK_FORMAT_E4M3) one = 0x38;
    std::vector<float> scales = decode_filled(block, one);
    if (desc_.format == QK_FORMAT_U4_AFFINE) {
        const std::vector<float> low = decode_filled(block, 0);
        for (size_t i = 0; i < scales.size(); ++i) scales[i] = (scales[i] - low[i]) / 15;
    }
    for (float &scale : scales) scale = std::fabs(scale);
    return scales;
}

// AWQ_GEMV's rows are padded with zeros, which are no groups. Of a run of codes, only the groups
// that begin in the block count: others were counted before it.
int64_t LayerRows::count_zero_scales(const RowBlock &block) const {
    if (is_dense(desc_) || is_records(desc_) || desc_.scale_format == QK_FORMAT_LUT8) return 0;
    const qk_dtype dtype = dtype_of(desc_.scale_format);
    const char *scales = static_cast<const char *>(block.planes[QK_PLANE_SCALE]);
    const int64_t size = element_bytes(desc_.scale_format), group = desc_.group_size;
    const int64_t bytes =
        bytes_of(block.desc, QK_PLANE_SCALE, block.desc.shape[0], block.desc.shape[1]);
    if (desc_.layout != QK_LAYOUT_AWQ_GEMV) {
        const int64_t before = block.skip > 0 ? (block.skip + group - 1) / group * size : 0;
        return count_values(dtype, scales + before, bytes - before).zero;
    }
    const int64_t used = group > 0 ? (columns() + group - 1) / group : 1;
    int64_t zeros = 0;
    for (int64_t row = 0; row < block.count; ++row) {
        zeros += count_values(dtype, scales + row * (bytes / block.count), used * size).zero;
    }
    return zeros;
}
