// What every launch and transfer keeps to: the attributes of a kernel belong to the whole process,
// work goes to the context's stream, transfers have happened when they return, grids have limits.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "cuda/harness.hpp"
#include "cuda/kernels.hpp"
#include "cuda/mock/mock.hpp"
#include "cuda/runtime.hpp"
#include "cuda/simulated/leftovers.hpp"

namespace {

constexpr int kStatic = 1024, kMost = 227 * 1024;  // of the mock's machine

// Each test has kernels of its own: attributes outlive a context.
template <int number>
void nothing(int) {}

template <int number>
const void *address() {
    return reinterpret_cast<const void *>(&nothing<number>);
}

template <int number>
qk::Status launch(size_t shared_bytes, bool overlaps, int32_t cluster = 1, int32_t device = 0,
                  bool in_order = false) {
    qk::ErrorText error = {};
    static const qk::Device read_once = cuda_test::device_0();  // as a context does
    qk::Launch how = {};
    how.device = read_once;
    how.error = &error;
    how.device.index = device;
    how.in_order = in_order;
    qk::cuda::Shape3 shape = {dim3(uint32_t(cluster)), 32, shared_bytes, overlaps, cluster};
    return qk::cuda::launch_kernel(how, "test", nothing<number>, shape, 0);
}

class CudaLaunch : public ::testing::Test {
  protected:
    CudaLaunch() {
        mock::reset();
        mock::run_kernels(false);
    }
    ~CudaLaunch() override { mock::reset(); }
};

TEST_F(CudaLaunch, TheMockHoldsALaunchAgainstItsAttributes) {
    cudaLaunchConfig_t config = {};
    config.gridDim = config.blockDim = dim3(1);
    config.dynamicSmemBytes = 48 * 1024 - kStatic;
    EXPECT_EQ(cudaLaunchKernelEx(&config, nothing<0>, 0), cudaSuccess);
    config.dynamicSmemBytes += 1;
    EXPECT_EQ(cudaLaunchKernelEx(&config, nothing<0>, 0), cudaErrorInvalidValue);
    config.dynamicSmemBytes = 0;
    config.gridDim.y = 65536;
    EXPECT_EQ(cudaLaunchKernelEx(&config, nothing<0>, 0), cudaErrorInvalidConfiguration);
    config.gridDim.y = 1;
    config.blockDim = dim3(1025);
    EXPECT_EQ(cudaLaunchKernelEx(&config, nothing<0>, 0), cudaErrorInvalidConfiguration);
}

// What decides is the kernel and the device, not how much a launch needs.
TEST_F(CudaLaunch, AKernelGetsAllThatADeviceGives) {
    EXPECT_EQ(launch<1>(0, false), QK_OK);
    EXPECT_EQ(mock::attributes_of(address<1>()).preferredShmemCarveout, -1);
    EXPECT_EQ(mock::attributes_of(address<1>()).maxDynamicSharedSizeBytes, 48 * 1024 - kStatic);
    EXPECT_EQ(launch<1>(64 * 1024, false), QK_OK);  // as the GRU's, which want the L1
    EXPECT_EQ(mock::attributes_of(address<1>()).preferredShmemCarveout, -1);
    EXPECT_EQ(mock::attributes_of(address<1>()).maxDynamicSharedSizeBytes, kMost - kStatic);
    EXPECT_EQ(launch<2>(1024, true), QK_OK);
    EXPECT_EQ(mock::attributes_of(address<2>()).preferredShmemCarveout, 100);
    EXPECT_EQ(mock::attributes_of(address<2>()).maxDynamicSharedSizeBytes, kMost - kStatic);
    // The next kernel may start early where this one may not.
    EXPECT_EQ(launch<3>(1024, true, 1, 0, true), QK_OK);
    EXPECT_EQ(mock::attributes_of(address<3>()).preferredShmemCarveout, 100);
    EXPECT_EQ(launch<4>(1024, false, 16), QK_OK);     // a cluster beyond the portable size
    EXPECT_EQ(launch<4>(1024, false, 16, 1), QK_OK);  // on another device
    EXPECT_EQ(launch<1>(kMost - kStatic + 1, false), QK_ERROR_DEVICE_FAULT);
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

// The driver remembers: what is set stays set, and is not set again.
TEST_F(CudaLaunch, AttributesAreSetOnce) {
    EXPECT_EQ(launch<5>(100 * 1024, true, 16), QK_OK);
    const int first = mock::calls();
    EXPECT_EQ(launch<5>(200 * 1024, true, 16), QK_OK);
    const int second = mock::calls() - first;
    // Which device is current, making it so, the attributes as they are, the launch.
    EXPECT_EQ(second, 4);
}

TEST_F(CudaLaunch, ASmallerLaunchOfAnotherThreadTakesNothingFromALargerOne) {
    for (const bool overlaps : {false, true}) {
        mock::before_launch(
            [&] { std::thread([&] { EXPECT_EQ(launch<6>(64 * 1024, overlaps), QK_OK); }).join(); });
        EXPECT_EQ(launch<6>(200 * 1024, overlaps), QK_OK);
        mock::before_launch(
            [&] { std::thread([&] { EXPECT_EQ(launch<7>(1024, overlaps, 8), QK_OK); }).join(); });
        EXPECT_EQ(launch<7>(1024, overlaps, 16), QK_OK);
    }
}

TEST_F(CudaLaunch, SixteenThreadsLaunchTheSameKernels) {
    std::vector<std::thread> threads;
    std::vector<qk::Status> worst(16, QK_OK);
    for (int t = 0; t < 16; ++t) {
        threads.emplace_back([&worst, t] {
            cuda_test::Rng rng(uint64_t(t) + 1);
            for (int i = 0; i < 500; ++i) {
                const size_t bytes = size_t(rng() % uint64_t(kMost - kStatic));
                const qk::Status status = i % 2 == 0 ? launch<8>(bytes, true, 1, t % 2)
                                                     : launch<9>(bytes, false, 1, t % 2);
                worst[size_t(t)] = std::max(worst[size_t(t)], status);
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
    EXPECT_EQ(worst, std::vector<qk::Status>(16, QK_OK));
}

// More rows of x than blocks fit along y: 8 a block.
TEST_F(CudaLaunch, GridsKeepToTheirLimits) {
    const qk::Format *const f32 = qk::find_format(QK_FORMAT_F32);
    const int64_t m = int64_t{8} * 65535 + 1;
    std::vector<float> x(size_t(m), 1.0f), y(size_t(m), 0.0f);
    float w = 2;
    qk::Weight weight = {};
    weight.format = f32;
    weight.geometry = {};
    weight.geometry.n = weight.geometry.k = 1;
    weight.data = &w;
    qk::ErrorText error = {};
    const qk::LinearArgs args = {{f32, m, 1, x.data()}, weight, nullptr, {f32, m, 1, y.data()}};
    ASSERT_TRUE(qk::cuda::kLinearGeneric.can_run(args, {0, 0}));
    EXPECT_EQ(qk::cuda::kLinearGeneric.run(args, cuda_test::device_launch(&error)), QK_OK)
        << error.text;
}

class CudaStreams : public ::testing::Test {
  protected:
    CudaStreams() { mock::reset(); }
    ~CudaStreams() override {
        for (qk_tensor *tensor : tensors_) qk_tensor_destroy(tensor);
        qk_context_destroy(context_);
        EXPECT_EQ(mock::live_allocations(), 0);
        mock::reset();
    }

    void open(void *stream) {
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        options.device = QK_DEVICE_CUDA;
        options.stream = stream;
        ASSERT_EQ(qk_context_create(&options, &context_), QK_OK);
    }

    qk_tensor *make(qk_format format, qk_layout layout, int64_t rows, int64_t columns) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.format = format;
        desc.layout = layout;
        desc.rank = 2;
        desc.shape[0] = rows;
        desc.shape[1] = columns;
        if (format == QK_FORMAT_NF4) desc.scale_format = QK_FORMAT_F32, desc.group_size = 16;
        qk_tensor *tensor = nullptr;
        EXPECT_EQ(qk_tensor_create(context_, &desc, &tensor), QK_OK) << qk_context_error(context_);
        tensors_.push_back(tensor);
        return tensor;
    }

    qk_context *context_ = nullptr;
    std::vector<qk_tensor *> tensors_;
};

TEST_F(CudaStreams, EverythingGoesToTheContextsStream) {
    int first = 0, second = 0;  // a stream is an address, here of anything
    open(&first);
    qk_tensor *const dense = make(QK_FORMAT_F32, QK_LAYOUT_ROW, 4, 32);
    qk_tensor *const w = make(QK_FORMAT_NF4, QK_LAYOUT_ROW_HIGH, 4, 32);
    qk_tensor *const packed = make(QK_FORMAT_NF4, QK_LAYOUT_PACKED, 4, 32);
    qk_tensor *const y = make(QK_FORMAT_F32, QK_LAYOUT_ROW, 4, 4);
    std::vector<float> values(4 * 32, 1.0f);
    for (void *const stream : {static_cast<void *>(&first), static_cast<void *>(&second)}) {
        ASSERT_EQ(qk_context_set_stream(context_, stream), QK_OK);
        EXPECT_EQ(qk_tensor_upload(context_, dense, QK_PLANE_DATA, values.data(), 4 * 32 * 4),
                  QK_OK);
        EXPECT_EQ(qk_quantize(context_, dense, w), QK_OK);
        EXPECT_EQ(qk_repack(context_, w, packed), QK_OK);
        EXPECT_EQ(qk_dequantize(context_, packed, dense), QK_OK);
        EXPECT_EQ(qk_linear(context_, dense, w, nullptr, y), QK_OK);
        EXPECT_EQ(qk_context_synchronize(context_), QK_OK);
        EXPECT_EQ(mock::queued(), 0);
        EXPECT_EQ(qk_tensor_download(context_, y, QK_PLANE_DATA, values.data(), 4 * 4 * 4), QK_OK);
        EXPECT_EQ(values[0], 32.0f);
        values.assign(4 * 32, 1.0f);
        const auto stream_of = [](void *p) { return static_cast<cudaStream_t>(p); };
        std::set<cudaStream_t> expected = {stream_of(&first)};
        if (stream == &second) expected.insert(stream_of(&second));
        EXPECT_EQ(mock::streams_used(), expected);
    }
}

TEST_F(CudaStreams, TransfersHaveHappenedWhenTheyReturn) {
    int stream = 0;
    open(&stream);
    qk_tensor *const tensor = make(QK_FORMAT_F32, QK_LAYOUT_ROW, 1, 64);
    std::vector<float> in(64, 3.0f), out(64, 0.0f);
    ASSERT_EQ(qk_tensor_upload(context_, tensor, QK_PLANE_DATA, in.data(), 256), QK_OK);
    EXPECT_EQ(mock::queued(), 0);
    in.assign(64, 5.0f);  // the caller's again
    ASSERT_EQ(qk_tensor_download(context_, tensor, QK_PLANE_DATA, out.data(), 256), QK_OK);
    EXPECT_EQ(out, std::vector<float>(64, 3.0f));
}

// The mock itself: what a block leaves in shared memory, no other finds.
TEST_F(CudaStreams, SharedMemoryIsPoisonedBeforeEachBlock) {
    constexpr uint32_t kBlocks = 64;
    std::vector<leftovers::Found> found(kBlocks);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(kBlocks);
    config.blockDim = dim3(leftovers::kWords);
    ASSERT_EQ(cudaLaunchKernelEx(&config, leftovers::look, found.data()), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    std::set<uint32_t> words;
    for (const leftovers::Found &block : found) {
        words.insert(std::begin(block.own), std::end(block.own));
        words.insert(std::begin(block.of_launch), std::end(block.of_launch));
    }
    EXPECT_EQ(words, (std::set<uint32_t>{0x77777777, 0xffffffff}));
}

// The mock itself: work waits for a wait on its stream.
TEST_F(CudaStreams, WorkIsQueuedUntilItsStreamIsWaitedFor) {
    int a = 0, b = 0, value = 1, copy = 0;
    const auto one = reinterpret_cast<cudaStream_t>(&a), other = reinterpret_cast<cudaStream_t>(&b);
    EXPECT_EQ(cudaMemcpyAsync(&copy, &value, 4, cudaMemcpyHostToDevice, one), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
    EXPECT_EQ(copy, 0);
    EXPECT_EQ(cudaStreamSynchronize(one), cudaSuccess);
    EXPECT_EQ(copy, 1);
}

}  // namespace
