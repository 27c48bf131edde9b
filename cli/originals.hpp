// What decoded layers are compared with: the layers of another checkpoint, also those that it has
// in tensors of fused experts.
#pragma once
#include <map>
#include <optional>

#include "fused.hpp"
#include "rows.hpp"

struct Original {
    DenseLayer from;     // its data is NULL where it is a layer of the checkpoint
    std::string reason;  // why there is none; "" where there is
};

class Originals {
  public:
    explicit Originals(const Checkpoint &checkpoint);  // must outlive this

    Original find(const qk_layer &decoded) const;

  private:
    bool find_fused(const qk_layer &decoded, DenseLayer *found) const;

    const Checkpoint &checkpoint_;
    std::string type_;
    std::map<std::string, FusedExperts> pairs_;      // by "X.experts"
    std::map<std::string, qk_file_tensor> tensors_;  // fused experts, without a last ".weight"
};

// An original's weights, some rows at a time.
class OriginalRows {
  public:
    OriginalRows(const Checkpoint &checkpoint, const Context &context, const Original &original);

    int64_t columns() const { return from_.layer.desc.shape[1]; }
    // The rows from `begin` on, at most `most`; returns how many. Valid until the next call.
    int64_t read(int64_t begin, int64_t most, Values *values);

  private:
    int64_t read_transposed(int64_t begin, int64_t most, Values *values);

    DenseLayer from_;
    std::optional<LayerRows> rows_;  // but for transposed weights
    std::vector<char> turned_;
};
