// A context, operands of every kind, and poison in every byte that a call could reach.
#pragma once
#include <functional>

#include "api/support.hpp"

namespace api {

struct Outputs {  // poisoned; a refused call must leave every byte alone
    qk_context *context;
    qk_tensor *tensor;
    struct DLManagedTensorVersioned *managed;
    size_t bytes;
    int32_t count;
    qk_tensor_desc desc;
    qk_plan plan;
    float table[256];
    unsigned char host[4096];
};

class World {
  public:
    World();
    ~World();

    Allocator allocator;
    qk_context *context = nullptr;
    Outputs outputs;

    // A tensor on poisoned memory of its own, or on memory of another; the world destroys it.
    qk_tensor *tensor(const qk_tensor_desc &desc);
    qk_tensor *tensor_over(const qk_tensor_desc &desc, qk_tensor *other, int64_t offset_bytes);
    qk_tensor *tensor_at(const qk_tensor_desc &desc, void *const *planes);  // on given memory
    void *plane(qk_tensor *tensor, qk_plane plane);
    qk_tensor *destroyed_tensor();
    qk_context *destroyed_context();
    // Memory that never was a handle.
    qk_tensor *stranger_tensor() { return reinterpret_cast<qk_tensor *>(stranger_); }
    qk_context *stranger_context() { return reinterpret_cast<qk_context *>(stranger_); }

    // [n, k] = [16, 32], m = 3; nf4 and u4 in groups of 16.
    qk_tensor *x, *x_half, *y_half, *w, *w_half, *nf4, *u4, *u4_symmetric, *bias, *y, *ints, *wide;
    qk_tensor *read_only_dense, *read_only_nf4, *read_only_y;

    qk_tensor *created(const qk_tensor_desc &desc);  // storage of qk's own, not watched

    // Nothing was written since the world was made, and nothing allocated but its handles.
    void expect_untouched() const;

  private:
    std::deque<Planes> memory_;
    std::vector<std::pair<qk_tensor *, void *const *>> tensors_;
    int64_t own_storage_ = 0;
    std::deque<std::vector<void *>> pointers_;
    alignas(64) unsigned char stranger_[4096] = {};
};

// One cell of the matrix: what is wrong, what the call must answer, and a word its sentence must
// contain (the argument); "" where no context can hold a sentence.
struct Cell {
    std::string wrong;
    qk_status expected;
    const char *word;
    std::function<qk_status(World &)> call;
};

// Runs every cell in a world that `good` works in, before and after.
void run_cells(const std::vector<Cell> &cells, const std::function<qk_status(World &)> &good);

}  // namespace api
