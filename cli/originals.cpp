#include "originals.hpp"

#include <algorithm>

#include "beside.hpp"
#include "dense.hpp"
#include "transpose.hpp"

Originals::Originals(const Checkpoint &checkpoint)
    : checkpoint_(checkpoint), type_(model_type(checkpoint)) {
    const std::vector<qk_file_tensor> tensors = all_tensors(checkpoint);
    for (const FusedExperts &pair : ::find_fused(tensors)) pairs_.emplace(pair.name, pair);
    for (const qk_file_tensor &tensor : fused_experts(tensors)) {
        std::string name = tensor.name;
        const std::string end = ".weight";
        if (ends_with(name, end)) name.resize(name.size() - end.size());
        tensors_.emplace(name, tensor);
    }
}

// All experts of a tensor under its name, or one of a pair's.
bool Originals::find_fused(const qk_layer &decoded, DenseLayer *found) const {
    const auto pair = pairs_.find(experts_of(decoded.name));
    const bool alone = pair == pairs_.end(), gpt_oss = decoded.dialect == QK_DIALECT_GPT_OSS;
    // gpt-oss's are transposed, also where a shard has one of the two.
    const bool transposed = alone ? gpt_oss : pair->second.transposed;
    const auto tensor = tensors_.find(decoded.name);
    if (tensor != tensors_.end()) {
        const qk_file_tensor &all = tensor->second;
        const bool of_pair = ends_with(all.name, kGateUp) || ends_with(all.name, kDown);
        // Of a square one alone nothing says which way it is.
        if (of_pair && alone && !gpt_oss && all.shape[1] == all.shape[2]) return false;
        *found = all_experts(all, of_pair && transposed);
        return true;
    }
    // Gate and up of transposed pairs are halves in some models and alternate in others.
    if (alone || (transposed && !makes_linear_experts(type_, decoded.dialect))) {
        return false;
    }
    return find_single(pair->second, decoded.name, found);
}

Original Originals::find(const qk_layer &decoded) const {
    Original original = {};
    qk_layer *found = &original.from.layer;
    if (qk_checkpoint_find_layer(checkpoint_.get(), decoded.name, found, sizeof *found) == QK_OK) {
        join_rows(&found->desc);
    } else if (!find_fused(decoded, &original.from)) {
        original.reason = "the original has no layer of this name";
        return original;
    }
    if (!is_loadable(*found)) {
        original.reason = std::string("in the original ") + found->reason;
    } else if (found->desc.shape[0] != decoded.desc.shape[0] ||
               found->desc.shape[1] != decoded.desc.shape[1]) {
        original.reason = "is " + shape_name(decoded.desc.shape, 2) + ", in the original " +
                          shape_name(found->desc.shape, 2);
    }
    return original;
}

OriginalRows::OriginalRows(const Checkpoint &checkpoint, const Context &context,
                           const Original &original)
    : from_(original.from) {
    const qk_tensor_desc &desc = from_.layer.desc;
    if (from_.data == nullptr) {
        rows_.emplace(checkpoint, context, from_.layer);
    } else if (from_.line_bytes == 0) {
        Tensor weight = wrap_dense(context, desc.format, desc.shape[0], desc.shape[1],
                                   const_cast<void *>(from_.data));  // read alone
        rows_.emplace(context, from_.layer.name, std::move(weight));
    }
}

int64_t OriginalRows::read(int64_t begin, int64_t most, Values *values) {
    if (!rows_) return read_transposed(begin, most, values);
    const RowBlock block = rows_->block(begin);
    *values = rows_->values(block);
    return std::min(block.count, most);
}

// At most the rest of an expert.
int64_t OriginalRows::read_transposed(int64_t begin, int64_t most, Values *values) {
    const qk_tensor_desc &desc = from_.layer.desc;
    const int64_t n = desc.shape[0] / std::max<int64_t>(1, from_.experts), k = desc.shape[1];
    const int64_t size = element_bytes(desc.format), first = begin % n;
    const int64_t count = std::min(most, n - first);
    turned_.resize(static_cast<size_t>(count * k * size));
    const char *expert = static_cast<const char *>(from_.data) + begin / n * k * from_.line_bytes;
    transpose({k, count, size}, expert + first * size, from_.line_bytes, turned_.data(), k * size);
    *values = {desc.format, turned_.data()};
    return count;
}
