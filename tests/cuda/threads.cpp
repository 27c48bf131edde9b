// Threads with contexts, streams and shapes of their own: they share the kernels' attributes, which
// belong to the process.
#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "cuda/harness.hpp"
#include "qk.h"

namespace cuda_test {
namespace {

constexpr int kThreads = 16, kRounds = 300;

// A context of its own, a weight and x of a shape of its own, and their product.
class Worker {
  public:
    explicit Worker(int number) : n_(256 + 464 * number), k_(256 * (1 + number % 7)), m_(batch()) {
        EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        options.device = QK_DEVICE_CUDA;
        options.stream = stream_;
        EXPECT_EQ(qk_context_create(&options, &context_), QK_OK);
        Rng rng(uint64_t(number) + 1);
        const bool pairs = number % 2 == 1;
        const qk_format format = pairs ? QK_FORMAT_NF4 : QK_FORMAT_U4_AFFINE;
        HostWeight host =
            random_weight(weight_desc(format, QK_FORMAT_F16, QK_LAYOUT_ROW, 64, n_, k_), rng);
        qk_tensor *const row = make(format, QK_LAYOUT_ROW, n_, k_);
        w_ = make(format, QK_LAYOUT_PACKED, n_, k_);
        x_ = make(QK_FORMAT_F16, QK_LAYOUT_ROW, m_, k_);
        y_ = make(QK_FORMAT_F16, QK_LAYOUT_ROW, m_, n_);
        for (const qk_plane plane : {QK_PLANE_DATA, QK_PLANE_SCALE, QK_PLANE_ZERO}) {
            const std::vector<uint8_t> &bytes = host.planes[plane];
            if (bytes.empty()) continue;
            EXPECT_EQ(qk_tensor_upload(context_, row, plane, bytes.data(), bytes.size()), QK_OK);
        }
        const std::vector<uint8_t> x = random_floats(QK_FORMAT_F16, m_ * k_, rng);
        EXPECT_EQ(qk_tensor_upload(context_, x_, QK_PLANE_DATA, x.data(), x.size()), QK_OK);
        EXPECT_EQ(qk_repack(context_, row, w_), QK_OK) << qk_context_error(context_);
        EXPECT_EQ(qk_context_synchronize(context_), QK_OK);
        alone_ = product();
    }
    Worker(const Worker &) = delete;
    Worker &operator=(const Worker &) = delete;
    ~Worker() {
        for (qk_tensor *tensor : tensors_) qk_tensor_destroy(tensor);
        qk_context_destroy(context_);
        cudaStreamDestroy(stream_);
    }

    // Launches, and now and then a look at what came out.
    void run() {
        for (int round = 0; round < kRounds && failure_.empty(); ++round) {
            const qk_status status = qk_linear(context_, x_, w_, nullptr, y_);
            if (status != QK_OK) failure_ = qk_context_error(context_);
            if (round % 16 == 0 && failure_.empty() && product() != alone_) failure_ = "other bits";
        }
    }
    const std::string &failure() const { return failure_; }

  private:
    int64_t batch() {
        constexpr int64_t kBatches[] = {1, 2, 16, 17, 64, 3, 1, 200};
        return kBatches[n_ / 464 % 8];
    }
    qk_tensor *make(qk_format format, qk_layout layout, int64_t rows, int64_t columns) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        if (format != QK_FORMAT_F16) {
            desc = weight_desc(format, QK_FORMAT_F16, layout, 64, rows, columns);
        } else {
            desc.format = format;
            desc.rank = 2;
            desc.shape[0] = rows;
            desc.shape[1] = columns;
        }
        qk_tensor *tensor = nullptr;
        EXPECT_EQ(qk_tensor_create(context_, &desc, &tensor), QK_OK) << qk_context_error(context_);
        tensors_.push_back(tensor);
        return tensor;
    }
    std::vector<uint8_t> product() {
        std::vector<uint8_t> y(size_t(m_ * n_ * 2));
        qk_status status = qk_linear(context_, x_, w_, nullptr, y_);
        if (status == QK_OK) {
            status = qk_tensor_download(context_, y_, QK_PLANE_DATA, y.data(), y.size());
        }
        if (status != QK_OK) failure_ = qk_context_error(context_);
        return y;
    }

    int64_t n_, k_, m_;
    cudaStream_t stream_ = nullptr;
    qk_context *context_ = nullptr;
    qk_tensor *w_ = nullptr, *x_ = nullptr, *y_ = nullptr;
    std::vector<qk_tensor *> tensors_;
    std::vector<uint8_t> alone_;
    std::string failure_;
};

TEST(CudaThreads, SixteenContextsShareTheKernels) {
    QK_NEEDS_DEVICE();
    std::vector<std::unique_ptr<Worker>> workers;
    for (int i = 0; i < kThreads; ++i) workers.push_back(std::make_unique<Worker>(i));
    if (HasFailure()) return;
    std::atomic<int> waiting = 0;
    std::vector<std::thread> threads;
    for (const auto &worker : workers) {
        threads.emplace_back([&waiting, &worker] {
            ++waiting;
            while (waiting < kThreads) std::this_thread::yield();
            worker->run();
        });
    }
    for (std::thread &thread : threads) thread.join();
    for (int i = 0; i < kThreads; ++i) EXPECT_EQ(workers[size_t(i)]->failure(), "") << i;
}

}  // namespace
}  // namespace cuda_test
