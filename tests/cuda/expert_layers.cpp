// Layers of experts as lists of two products, whose second one may read its routing before the
// first has finished: the bits of a call for each, whatever the ids are and whenever they changed,
// in a graph too.
#include "cuda/device_tensors.hpp"
#include "cuda/harness.hpp"

namespace cuda_test {
namespace {

constexpr int64_t kExperts = 16, kHidden = 512, kInner = 256, kSlots = 4;

class CudaExpertLayers : public DeviceTensors {
  protected:
    void make_layer(int64_t tokens) {
        tokens_ = tokens;
        open(size_t{4} << 20, stream_);
        gate_up_ = weights(2 * kInner, kHidden, microscaled_[0]);
        down_ = weights(columns_, kInner, microscaled_[1]);
        x_ = rows({tokens, kHidden}, QK_FORMAT_F16);
        middle_ = rows({tokens, kSlots, kInner}, QK_FORMAT_F16);
        y_ = rows({tokens, columns_}, QK_FORMAT_F16);
        weight_ = rows({tokens, kSlots}, QK_FORMAT_F32);
        upload(x_, QK_PLANE_DATA, random_floats(QK_FORMAT_F16, tokens * kHidden, rng_));
        upload(weight_, QK_PLANE_DATA, random_floats(QK_FORMAT_F32, tokens * kSlots, rng_));
    }
    qk_tensor *weights(int64_t n, int64_t k, bool microscaled) {
        qk_tensor_desc desc = microscaled ? weight_desc(QK_FORMAT_FP4_E2M1, QK_FORMAT_E8M0,
                                                        QK_LAYOUT_ROW, 32, kExperts * n, k)
                                          : weight_desc(QK_FORMAT_U4_AFFINE, QK_FORMAT_F16,
                                                        QK_LAYOUT_ROW, 128, kExperts * n, k);
        const HostWeight host = random_weight(desc, rng_);
        desc.rank = 3;
        desc.shape[0] = kExperts, desc.shape[1] = n, desc.shape[2] = k;
        qk_tensor *const stored = make(desc);
        for (const qk_plane plane : {QK_PLANE_DATA, QK_PLANE_SCALE, QK_PLANE_ZERO}) {
            if (!host.planes[plane].empty()) upload(stored, plane, host.planes[plane]);
        }
        desc.layout = QK_LAYOUT_PACKED;
        qk_tensor *const packed = make(desc);
        EXPECT_EQ(qk_repack(context_, stored, packed), QK_OK) << qk_context_error(context_);
        return packed;
    }
    qk_tensor *rows(std::initializer_list<int64_t> shape, qk_format format) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.format = format;
        desc.rank = int32_t(shape.size());
        std::copy(shape.begin(), shape.end(), desc.shape);
        return make(desc);
    }
    std::vector<int32_t> random_ids() {
        std::vector<int32_t> ids;
        for (int64_t i = 0; i < tokens_ * kSlots; ++i) {
            ids.push_back(rng_() % 9 == 0 ? -1 : int32_t(rng_() % kExperts));
        }
        return ids;
    }
    qk_tensor *wrap_ids(const DeviceBuffer &buffer) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.format = QK_FORMAT_I32;
        desc.rank = 2;
        desc.shape[0] = tokens_, desc.shape[1] = kSlots;
        void *data = buffer.data();
        qk_tensor *tensor = nullptr;
        EXPECT_EQ(qk_tensor_wrap(context_, &desc, &data, 1, &tensor), QK_OK);
        tensors_.push_back(tensor);
        return tensor;
    }
    // The layer with these ids of its products, as one list or as two calls.
    void run(const qk_tensor *up_ids, const qk_tensor *down_ids, bool as_list) {
        qk_experts up = QK_EXPERTS_INIT, down = QK_EXPERTS_INIT;
        up.expert = up_ids, up.activation = QK_ACTIVATION_SILU, up.flags = flags_;
        down.expert = down_ids, down.weight = weight_;
        const qk_product both[] = {{sizeof(qk_product), 0, x_, gate_up_, nullptr, middle_, &up},
                                   {sizeof(qk_product), 0, middle_, down_, nullptr, y_, &down}};
        if (as_list) {
            EXPECT_EQ(qk_multiply(context_, both, 2), QK_OK) << qk_context_error(context_);
            return;
        }
        for (const qk_product &one : both) {
            EXPECT_EQ(qk_multiply(context_, &one, 1), QK_OK) << qk_context_error(context_);
            EXPECT_EQ(qk_context_synchronize(context_), QK_OK);
        }
    }
    // Launches of the layer as a list.
    int launches(int64_t tokens) {
        EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
        make_layer(tokens);
        std::vector<uint8_t> bytes(size_t(tokens * kSlots * 4), 0);
        const DeviceBuffer ids(bytes);
        const qk_tensor *const tensor = wrap_ids(ids);
        EXPECT_EQ(qk_context_synchronize(context_), QK_OK);
        cudaGraph_t graph = nullptr;
        EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        run(tensor, tensor, true);
        EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
        size_t nodes = 0;
        EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
        EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
        close();
        EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
        stream_ = nullptr;
        return int(nodes);
    }
    // Layer after layer without a wait; each has ids of its own, copied to where the last's were.
    void check(int64_t tokens) {
        constexpr int kRounds = 50;
        make_layer(tokens);
        std::vector<std::vector<uint8_t>> sets;
        std::vector<DeviceBuffer> copies;
        for (int i = 0; i <= kRounds; ++i) {
            sets.push_back(bytes_of_ids(random_ids()));
            copies.emplace_back(sets.back());
        }
        const DeviceBuffer ids(sets[0]), others(sets[kRounds]);
        const qk_tensor *const up = wrap_ids(ids), *const other = wrap_ids(others);
        for (int i = 0; i < kRounds; ++i) {
            const qk_tensor *const down = i % 5 == 4 ? other : up;
            ASSERT_EQ(cudaMemcpy(ids.data(), sets[size_t(i)].data(), sets[size_t(i)].size(),
                                 cudaMemcpyHostToDevice),
                      cudaSuccess);
            run(up, down, false);
            const std::vector<uint8_t> expected = read(y_, tokens * columns_);
            for (int before = 0; before <= 4; ++before) {  // layers with other ids in front
                const size_t set = before == 4 ? size_t(i) : size_t((i + before) % kRounds);
                ASSERT_EQ(cudaMemcpyAsync(ids.data(), copies[set].data(), sets[set].size(),
                                          cudaMemcpyDeviceToDevice, nullptr),
                          cudaSuccess);
                run(up, down, true);
            }
            ASSERT_EQ(read(y_, tokens * columns_), expected) << "round " << i;
        }
    }
    // A graph of three layers in turn, which finds other ids at the same place each time.
    void replay(int64_t tokens) {
        SCOPED_TRACE(tokens);
        make_layer(tokens);
        const DeviceBuffer ids(bytes_of_ids(random_ids()));
        const qk_tensor *const routing = wrap_ids(ids);
        cudaStream_t stream = nullptr;
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t executable = nullptr;
        ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
        ASSERT_EQ(qk_context_set_stream(context_, stream), QK_OK);
        ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        for (int layer = 0; layer < 3; ++layer) run(routing, routing, true);
        ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
        const std::vector<uint8_t> poison(size_t(tokens * columns_ * 2), 0xff);
        for (int round = 0; round < 24; ++round) {
            std::vector<int32_t> drawn = random_ids();
            constexpr int32_t kAlike[] = {-1, 0, kExperts - 1, kExperts};
            if (round < 4) drawn.assign(drawn.size(), kAlike[round]);
            const std::vector<uint8_t> bytes = bytes_of_ids(drawn);
            ASSERT_EQ(cudaMemcpy(ids.data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
                      cudaSuccess);
            ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
            run(routing, routing, false);
            const std::vector<uint8_t> expected = read(y_, tokens * columns_);
            upload(y_, QK_PLANE_DATA, poison);
            ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
            ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
            ASSERT_TRUE(same_values(QK_FORMAT_F16, expected, read(y_, tokens * columns_)))
                << "round " << round;
        }
        EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
        EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
        close();
        EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    }
    static std::vector<uint8_t> bytes_of_ids(const std::vector<int32_t> &ids) {
        std::vector<uint8_t> bytes(ids.size() * 4);
        memcpy(bytes.data(), ids.data(), bytes.size());
        return bytes;
    }

    Rng rng_{45};
    cudaStream_t stream_ = nullptr;
    uint32_t flags_ = 0;                      // of gate and up
    bool microscaled_[2] = {false, false};    // gate and up, down
    int64_t tokens_ = 0, columns_ = kHidden;  // of y
    qk_tensor *gate_up_ = nullptr, *down_ = nullptr;
    qk_tensor *x_ = nullptr, *middle_ = nullptr, *y_ = nullptr, *weight_ = nullptr;
};

TEST_F(CudaExpertLayers, OneToken) {
    QK_NEEDS_DEVICE();
    check(1);
}
TEST_F(CudaExpertLayers, RowsTogether) {
    QK_NEEDS_DEVICE();
    check(9);
}
TEST_F(CudaExpertLayers, ManyRows) {
    QK_NEEDS_DEVICE();
    check(40);
}
TEST_F(CudaExpertLayers, ManyRowsInterleaved) {
    QK_NEEDS_DEVICE();
    flags_ = QK_EXPERTS_INTERLEAVED;
    check(60);
}
// A list, x by expert, two products and sums, where two calls would list and gather twice.
TEST_F(CudaExpertLayers, OfOneListTakesFiveLaunches) {
    QK_NEEDS_DEVICE();
    for (const int64_t tokens : {60, 200, 260, 400}) EXPECT_EQ(launches(tokens), 5) << tokens;
}
TEST_F(CudaExpertLayers, ItemsOf64Rows) {
    QK_NEEDS_DEVICE();
    check(200);
}
TEST_F(CudaExpertLayers, ItemsOf96Rows) {
    QK_NEEDS_DEVICE();
    check(260);
}
// Gathered rows of x have their columns in another sequence.
TEST_F(CudaExpertLayers, ManyRowsMicroscaled) {
    QK_NEEDS_DEVICE();
    microscaled_[0] = microscaled_[1] = true;
    check(70);
}
// The same in items of 64 and of 160 rows.
TEST_F(CudaExpertLayers, ItemsOf64RowsMicroscaled) {
    QK_NEEDS_DEVICE();
    microscaled_[0] = microscaled_[1] = true;
    check(200);
}
TEST_F(CudaExpertLayers, ItemsOf160RowsMicroscaled) {
    QK_NEEDS_DEVICE();
    microscaled_[0] = microscaled_[1] = true;
    check(300);
}
// x of gate and up takes more room than z, so that x of down moves up.
TEST_F(CudaExpertLayers, XIsLargerThanZ) {
    QK_NEEDS_DEVICE();
    columns_ = 128;
    check(60);
}
TEST_F(CudaExpertLayers, ManyRowsOfTwoFormats) {
    QK_NEEDS_DEVICE();
    microscaled_[1] = true;
    check(50);
}
// One token, rows together, and items of the matrix kernel.
TEST_F(CudaExpertLayers, GraphsTakeAnotherRouting) {
    QK_NEEDS_DEVICE();
    for (const int64_t tokens : {1, 9, 40, 200}) replay(tokens);
    microscaled_[0] = microscaled_[1] = true;
    for (const int64_t tokens : {1, 70, 300}) replay(tokens);
}

}  // namespace
}  // namespace cuda_test
