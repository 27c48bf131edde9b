// A layer's weight, some rows at a time: memory does not grow with the layer.
#pragma once
#include <vector>

#include "dlpack.hpp"
#include "layer_error.hpp"
#include "layers.hpp"

// Some rows as a tensor of their own. Flat groups straddle rows: the tensor is then one row of
// codes that starts `skip` codes ahead of the first row asked for.
struct RowBlock {
    int64_t begin, count;  // rows of the layer
    int64_t skip;
    qk_tensor_desc desc;
    const void *planes[QK_PLANE_COUNT];
};

// A GGUF file's: rows of records that hold all of theirs.
bool is_records(const qk_tensor_desc &desc);
// Planes are lines along the rows: some rows are a strip of every line.
bool is_by_columns(const qk_tensor_desc &desc);
// Rows between two places where the planes of a tensor can be cut.
int64_t rows_between_cuts(const qk_tensor_desc &desc);

class LayerRows {
  public:
    static constexpr int64_t kBlockWeights = 1 << 22;  // 16 MiB in f32

    // The context is a CPU's.
    LayerRows(const Context &context, const std::string &name, Tensor weight,
              int64_t block_weights = kBlockWeights);
    // The weight stays in the checkpoint, which must outlive this.
    LayerRows(const Checkpoint &checkpoint, const Context &context, const qk_layer &layer,
              int64_t block_weights = kBlockWeights);

    int64_t rows() const { return desc_.shape[0]; }
    int64_t columns() const { return desc_.shape[1]; }
    // The rows from `begin` on, as many as make a block; valid until the next call.
    RowBlock block(int64_t begin);
    // The block's weights, row after row; valid until the next call.
    const float *decode_f32(const RowBlock &block);
    const char *decode(const RowBlock &block, qk_format format);  // of a quantized layer
    Values values(const RowBlock &block);        // of a dense layer its own, else decoded to f32
    Tensor tensor(const RowBlock &block) const;  // borrows what the block borrows
    // |scale| of every weight of the block.
    std::vector<float> decode_scales(const RowBlock &block);
    // Groups of the block whose scale is 0; 0 where scales are nested.
    int64_t count_zero_scales(const RowBlock &block) const;

  private:
    std::vector<float> decode_filled(const RowBlock &block, int byte);
    void cut_plane(qk_plane plane, RowBlock *block);
    const Context &context_;
    std::string name_;
    int64_t block_weights_;
    Tensor weight_;
    qk_tensor_desc desc_ = QK_TENSOR_DESC_INIT;
    PlaneView views_[QK_PLANE_COUNT];
    std::vector<char> strips_[QK_PLANE_COUNT];  // of planes whose lines are cut
    std::vector<char> values_;
    std::vector<float> dense_;
};
