#include "api/world.hpp"

namespace api {

World::World() {
    allocator.keep_released = true;
    context = make_context(allocator, 2);
    std::memset(static_cast<void *>(&outputs), 0x5a, sizeof(outputs));
    outputs.desc.struct_size = sizeof(qk_tensor_desc);
    outputs.plan.struct_size = sizeof(qk_plan);
    x = tensor(dense_desc(QK_FORMAT_F32, {3, 32}));
    x_half = tensor(dense_desc(QK_FORMAT_F16, {3, 32}));
    y_half = tensor(dense_desc(QK_FORMAT_F16, {3, 16}));
    w = tensor(dense_desc(QK_FORMAT_F32, {16, 32}));
    w_half = tensor(dense_desc(QK_FORMAT_F16, {16, 32}));
    nf4 = tensor(weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, 16, 32));
    u4 = tensor(weight_desc(QK_FORMAT_U4_AFFINE, QK_LAYOUT_AWQ_GEMM, 16, 32));
    qk_tensor_desc desc = weight_desc(QK_FORMAT_U4_AFFINE, QK_LAYOUT_ROW, 16, 32);
    desc.flags = QK_TENSOR_SYMMETRIC;
    u4_symmetric = tensor(desc);
    bias = tensor(dense_desc(QK_FORMAT_F32, {16}));
    y = tensor(dense_desc(QK_FORMAT_F32, {3, 16}));
    ints = tensor(dense_desc(QK_FORMAT_I8, {16, 32}));
    wide = tensor(dense_desc(QK_FORMAT_F32, {16, 33}));
    desc = dense_desc(QK_FORMAT_F32, {16, 32});
    desc.flags = QK_TENSOR_READ_ONLY;
    read_only_dense = tensor(desc);
    desc = weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW_HIGH, 16, 32);
    desc.flags = QK_TENSOR_READ_ONLY;
    read_only_nf4 = tensor(desc);
    desc = dense_desc(QK_FORMAT_F32, {3, 16});
    desc.flags = QK_TENSOR_READ_ONLY;
    read_only_y = tensor(desc);
}

World::~World() {
    qk_context_destroy(context);
    for (const auto &entry : tensors_) qk_tensor_destroy(entry.first);
    EXPECT_EQ(allocator.live(), 0) << "something leaked";
}

qk_tensor *World::tensor(const qk_tensor_desc &desc) {
    memory_.emplace_back(desc);
    qk_tensor *const made = wrap(context, desc, memory_.back());
    tensors_.emplace_back(made, memory_.back().pointers);
    return made;
}

qk_tensor *World::tensor_over(const qk_tensor_desc &desc, qk_tensor *other, int64_t offset_bytes) {
    memory_.emplace_back(desc);
    pointers_.emplace_back(memory_.back().pointers, memory_.back().pointers + QK_PLANE_COUNT);
    pointers_.back()[0] = static_cast<char *>(plane(other, QK_PLANE_DATA)) + offset_bytes;
    return tensor_at(desc, pointers_.back().data());
}

qk_tensor *World::tensor_at(const qk_tensor_desc &desc, void *const *planes) {
    qk_tensor *const made = wrap(context, desc, planes);
    tensors_.emplace_back(made, planes);
    return made;
}

void *World::plane(qk_tensor *tensor, qk_plane plane) {
    for (const auto &entry : tensors_) {
        if (entry.first == tensor) return entry.second[plane];
    }
    return nullptr;
}

qk_tensor *World::destroyed_tensor() {
    memory_.emplace_back(dense_desc(QK_FORMAT_F32, {16, 32}));
    qk_tensor *const made = wrap(context, dense_desc(QK_FORMAT_F32, {16, 32}), memory_.back());
    qk_tensor_destroy(made);
    return made;
}

qk_context *World::destroyed_context() {
    qk_context *const made = make_context(allocator);
    qk_context_destroy(made);
    return made;
}

qk_tensor *World::created(const qk_tensor_desc &desc) {
    qk_tensor *const made = create(context, desc);
    tensors_.emplace_back(made, nullptr);
    ++own_storage_;
    return made;
}

void World::expect_untouched() const {
    Outputs poison;
    std::memset(static_cast<void *>(&poison), 0x5a, sizeof(poison));
    poison.desc.struct_size = sizeof(qk_tensor_desc);
    poison.plan.struct_size = sizeof(qk_plan);
    EXPECT_EQ(std::memcmp(&poison, &outputs, sizeof(poison)), 0) << "an output changed";
    int64_t changed = 0;
    for (const Planes &planes : memory_) {
        for (const auto &bytes : planes.bytes) {
            for (const unsigned char byte : bytes) changed += byte != 0xa5;
        }
    }
    EXPECT_EQ(changed, 0) << "bytes of an operand changed";
    // A context with a pool and scratch memory is three allocations, a wrapped tensor is one.
    EXPECT_EQ(allocator.live(), 3 + int64_t(tensors_.size()) + own_storage_)
        << "a refused call kept memory";
}

void run_cells(const std::vector<Cell> &cells, const std::function<qk_status(World &)> &good) {
    {
        World world;
        ASSERT_EQ(good(world), QK_OK) << "the valid call: " << qk_context_error(world.context);
    }
    for (const Cell &cell : cells) {
        SCOPED_TRACE(cell.wrong);
        World world;
        // A known sentence before, so that an unchanged one shows.
        size_t bytes = 0;
        ASSERT_EQ(qk_linear_workspace(world.context, world.w, -77, &bytes), QK_ERROR_SHAPE);
        const std::string before = qk_context_error(world.context);
        EXPECT_EQ(cell.call(world), cell.expected) << qk_context_error(world.context);
        const std::string text = qk_context_error(world.context);
        if (*cell.word != 0) {
            EXPECT_NE(text, before);
            EXPECT_NE(text.find(cell.word), std::string::npos) << text;
        }
        world.expect_untouched();
        // Nothing stuck: the same context goes on working.
        EXPECT_EQ(good(world), QK_OK) << qk_context_error(world.context);
    }
    std::printf("%zu cells\n", cells.size());
}

}  // namespace api
