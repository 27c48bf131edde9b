// A layer's weight as another dialect stores it: the same values, or a sentence about what would be
// lost.
#pragma once
#include <optional>

#include "rows.hpp"

struct Job {
    qk_layer layer;
    qk_tensor_desc desc;  // as it will be stored
    // One expert of several in a layer of records: that layer's name, and where its rows begin.
    const char *whole = nullptr;
    int64_t first = 0;
};

// The weights of jobs, as the file has them.
class Sources {
  public:
    Sources(const Checkpoint &checkpoint, const Context &context)  // must outlive this
        : checkpoint_(checkpoint), context_(context) {}

    const Context &context() const { return context_; }
    // Borrows what stays until the next call.
    Tensor of(const Job &job);

  private:
    const Checkpoint &checkpoint_;
    const Context &context_;
    // A layer of all experts is loaded once for those that come one after the other.
    std::string whole_;
    std::optional<LayerRows> experts_;
};

Tensor recast(Sources *sources, const Job &job);

struct Zeros {
    bool all_eight = true, any_zero = false;
};
// Of a layer of 4-bit integers.
Zeros zeros_of(Sources *sources, const Job &job);
