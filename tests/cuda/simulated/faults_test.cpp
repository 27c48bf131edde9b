// Every path of the CUDA backend on which a call of the runtime fails, through qk.h: the right
// status, a sentence, no memory kept, no error left behind, the caller's device still current, and
// the next attempt succeeds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/harness.hpp"
#include "cuda/mock/mock.hpp"
#include "cuda/simulated/fake_library.hpp"
#include "qk.h"

namespace {

constexpr int64_t kN = 8, kK = 32, kMany = 17;  // rows of x: few, many

struct Outcome {
    qk_status status = QK_OK;
    std::string sentence;
    std::vector<uint16_t> dense, y, y_many;
};

// A context on device 0 and everything done with it once. Stops at the first failure.
class Session {
  public:
    Outcome run() {
        Outcome outcome;
        outcome.status = work(&outcome);
        if (context_ != nullptr) outcome.sentence = qk_context_error(context_);
        for (qk_tensor *tensor : tensors_) qk_tensor_destroy(tensor);
        qk_context_destroy(context_);
        return outcome;
    }

  private:
#define QK_STEP(call)                         \
    do {                                      \
        const qk_status status_ = (call);     \
        if (status_ != QK_OK) return status_; \
    } while (0)

    qk_status make(qk_format format, qk_layout layout, int64_t rows, int64_t columns,
                   qk_tensor **out) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.format = format;
        desc.rank = 2;
        desc.shape[0] = rows;
        desc.shape[1] = columns;
        if (format == QK_FORMAT_NF4) {
            desc.scale_format = QK_FORMAT_LUT8;
            desc.scale_group_size = 16;
            desc.group_size = kK;
            desc.layout = layout;
        }
        const qk_status status = qk_tensor_create(context_, &desc, out);
        if (status == QK_OK) tensors_.push_back(*out);
        return status;
    }

    qk_status fill(qk_tensor *tensor, qk_plane plane, size_t count, float value) {
        const std::vector<float> floats(count, value);
        return qk_tensor_upload(context_, tensor, plane, floats.data(), count * 4);
    }

    qk_status work(Outcome *outcome) {
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        options.device = QK_DEVICE_CUDA;
        options.workspace_bytes = 1024;  // the packed weight fits
        QK_STEP(qk_context_create(&options, &context_));
        qk_tensor *w, *packed, *x, *y, *many, *y_many, *dense, *row, *columns;
        QK_STEP(make(QK_FORMAT_NF4, QK_LAYOUT_ROW_HIGH, kN, kK, &w));
        QK_STEP(make(QK_FORMAT_NF4, QK_LAYOUT_PACKED, kN, kK, &packed));
        QK_STEP(make(QK_FORMAT_NF4, QK_LAYOUT_ROW, kN, kK, &row));
        QK_STEP(make(QK_FORMAT_NF4, QK_LAYOUT_GPTQ, kN, kK, &columns));
        QK_STEP(make(QK_FORMAT_F16, QK_LAYOUT_ROW, 2, kK, &x));
        QK_STEP(make(QK_FORMAT_F16, QK_LAYOUT_ROW, 2, kN, &y));
        QK_STEP(make(QK_FORMAT_F16, QK_LAYOUT_ROW, kMany, kK, &many));
        QK_STEP(make(QK_FORMAT_F16, QK_LAYOUT_ROW, kMany, kN, &y_many));
        QK_STEP(make(QK_FORMAT_F16, QK_LAYOUT_ROW, kN, kK, &dense));
        const std::vector<uint8_t> codes(kN * kK / 2, 0x7e), scales(kN, 3);
        const std::vector<uint16_t> ones(kMany * kK, 0x3c00);
        QK_STEP(qk_tensor_upload(context_, w, QK_PLANE_DATA, codes.data(), codes.size()));
        QK_STEP(qk_tensor_upload(context_, w, QK_PLANE_SCALE, scales.data(), scales.size()));
        QK_STEP(fill(w, QK_PLANE_SCALE2, 1, 0.5f));
        QK_STEP(fill(w, QK_PLANE_SCALE_CODE, 256, 2.0f));
        QK_STEP(fill(w, QK_PLANE_SCALE_BIAS, 1, 0.25f));
        QK_STEP(qk_tensor_upload(context_, x, QK_PLANE_DATA, ones.data(), 2 * kK * 2));
        QK_STEP(qk_tensor_upload(context_, many, QK_PLANE_DATA, ones.data(), ones.size() * 2));
        QK_STEP(qk_repack(context_, w, packed));
        QK_STEP(qk_repack(context_, w, row));
        QK_STEP(qk_dequantize(context_, packed, dense));
        QK_STEP(qk_dequantize(context_, w, dense));
        QK_STEP(qk_quantize(context_, dense, columns));
        QK_STEP(qk_linear(context_, x, packed, nullptr, y));
        QK_STEP(qk_linear(context_, many, w, nullptr, y_many));  // repacks first
        QK_STEP(qk_context_synchronize(context_));
        outcome->dense.assign(kN * kK, 0);
        outcome->y.assign(2 * kN, 0);
        outcome->y_many.assign(kMany * kN, 0);
        QK_STEP(
            qk_tensor_download(context_, dense, QK_PLANE_DATA, outcome->dense.data(), kN * kK * 2));
        QK_STEP(qk_tensor_download(context_, y_many, QK_PLANE_DATA, outcome->y_many.data(),
                                   kMany * kN * 2));
        return qk_tensor_download(context_, y, QK_PLANE_DATA, outcome->y.data(), 2 * kN * 2);
    }
#undef QK_STEP

    qk_context *context_ = nullptr;
    std::vector<qk_tensor *> tensors_;
};

class CudaFaults : public ::testing::Test {
  protected:
    void SetUp() override {
        mock::reset();
        mock::set_current_device(1);  // the caller's; qk works on device 0
        fake_library::state = {};
        const Outcome good = Session().run();
        ASSERT_EQ(good.status, QK_OK) << good.sentence;
        EXPECT_EQ(fake_library::state.tile_products, 1);
        y_many_ = good.y_many;
        EXPECT_EQ(y_many_, std::vector<uint16_t>(kMany * kN, good.y[0]));
        dense_ = good.dense;
        y_ = good.y;
        EXPECT_EQ(dense_[0], dense_[2]);
        EXPECT_NE(dense_[0], dense_[1]);  // two codes take turns
        expect_clean("a good run");
    }
    ~CudaFaults() override {
        fake_library::state = {};
        mock::reset();
    }

    static void expect_clean(const std::string &after) {
        EXPECT_EQ(mock::live_allocations(), 0) << after;
        EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << after;
        EXPECT_EQ(mock::current_device(), 1) << after;
    }

    void expect_retry_succeeds(const std::string &after) {
        mock::set_current_device(1);
        mock::run_kernels(true);
        const Outcome again = Session().run();
        mock::run_kernels(false);
        EXPECT_EQ(again.status, QK_OK) << after << ": " << again.sentence;
        EXPECT_EQ(again.dense, dense_) << after;
        EXPECT_EQ(again.y, y_) << after;
        EXPECT_EQ(again.y_many, y_many_) << after;
        expect_clean(after);
    }

    std::vector<uint16_t> dense_, y_, y_many_;
};

bool is(const char *name, const char *other) { return std::strcmp(name, other) == 0; }

// What a failing call may lead to: `direct` where qk reports it.
bool right_status(const char *call, qk_status direct, qk_status status) {
    if (is(call, "cudaGetDeviceCount")) return status == QK_ERROR_NO_DEVICE;
    if (is(call, "cudaMalloc")) return status == QK_ERROR_MEMORY;
    if (is(call, "cudaFree")) return status == QK_OK;  // there is no caller to tell
    // A context is made all the same; the first kernel that lacks its code says so.
    if (is(call, "cudaFuncGetAttributes") && direct == QK_ERROR_UNSUPPORTED && status == QK_OK) {
        return true;
    }
    // Around cudaMalloc the reason is lost: the caller gets no memory.
    if (is(call, "cudaSetDevice") || is(call, "cudaGetDevice")) {
        return status == direct || status == QK_ERROR_MEMORY || status == QK_OK;
    }
    return status == direct;
}

TEST_F(CudaFaults, EachCallFailsInTurn) {
    const struct {
        cudaError_t error;
        qk_status status;
    } errors[] = {{cudaErrorMemoryAllocation, QK_ERROR_MEMORY},
                  {cudaErrorNoKernelImageForDevice, QK_ERROR_UNSUPPORTED},
                  {cudaErrorLaunchOutOfResources, QK_ERROR_INTERNAL},
                  {cudaErrorUnknown, QK_ERROR_DEVICE_FAULT}};
    std::vector<std::string> seen;
    mock::run_kernels(false);
    for (const auto &[error, status] : errors) {
        bool failed = true;
        for (int call = 1; failed; ++call) {
            mock::set_current_device(1);
            mock::forget_attributes();
            mock::fail(call, error);
            const Outcome outcome = Session().run();
            const std::string name = mock::failed_call();
            mock::fail(0, cudaSuccess);
            failed = !name.empty();
            if (!failed) break;
            seen.push_back(name);
            const std::string where =
                name + ", call " + std::to_string(call) + ", error " + std::to_string(error);
            EXPECT_TRUE(right_status(name.c_str(), status, outcome.status))
                << where << ": " << outcome.status << " " << outcome.sentence;
            if (outcome.status == QK_ERROR_UNSUPPORTED && !outcome.sentence.empty()) {
                EXPECT_NE(outcome.sentence.find("-DQK_CUDA_ARCHITECTURES="), std::string::npos)
                    << outcome.sentence;
            }
            // A device that could not be restored is the one thing that qk cannot mend.
            if (outcome.status == QK_OK && name == "cudaSetDevice") mock::set_current_device(1);
            expect_clean(where);
            if (call % 16 == 0) expect_retry_succeeds(where);
            if (HasFailure()) return;
        }
        expect_retry_succeeds("all calls");
    }
    for (const char *call :
         {"cudaGetDeviceCount", "cudaGetDevice", "cudaSetDevice", "cudaMalloc", "cudaFree",
          "cudaMemcpyAsync", "cudaMemsetAsync", "cudaStreamSynchronize", "cudaFuncGetAttributes",
          "cudaFuncSetAttribute", "cudaDeviceGetAttribute", "cudaLaunchKernelEx"}) {
        EXPECT_NE(std::find(seen.begin(), seen.end(), call), seen.end()) << call;
    }
}

TEST_F(CudaFaults, ADeadDeviceFailsEverythingThatFollows) {
    for (const mock::Fault fault : {mock::Fault::kSticky, mock::Fault::kLate}) {
        for (int call = 10; call < 90; call += 7) {
            mock::reset();
            mock::set_current_device(1);
            mock::fail(call, cudaErrorIllegalAddress, fault);
            const Outcome outcome = Session().run();
            ASSERT_STRNE(mock::failed_call(), "") << call;
            EXPECT_TRUE(outcome.status == QK_ERROR_DEVICE_FAULT ||
                        outcome.status == QK_ERROR_MEMORY)
                << call << ": " << outcome.status;
            EXPECT_EQ(mock::live_allocations(), 0) << call;
        }
    }
}

TEST_F(CudaFaults, ALateFaultIsReportedBySynchronize) {
    mock::reset();
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.device = QK_DEVICE_CUDA;
    qk_context *context = nullptr;
    ASSERT_EQ(qk_context_create(&options, &context), QK_OK);
    mock::fail(1, cudaErrorLaunchFailure, mock::Fault::kLate);
    EXPECT_EQ(qk_context_synchronize(context), QK_ERROR_DEVICE_FAULT);
    EXPECT_NE(std::string(qk_context_error(context)).find("719"), std::string::npos);
    qk_context_destroy(context);
}

// Whichever call comes first: the one sentence names what the binary has, and what to do.
TEST(CudaMachines, ABinaryWithoutCodeForTheCardSaysSo) {
    for (const cudaError_t why : {cudaErrorNoKernelImageForDevice, cudaErrorInvalidDeviceFunction,
                                  cudaErrorUnsupportedPtxVersion, cudaErrorJitCompilerNotFound,
                                  cudaErrorJitCompilationDisabled}) {
        mock::Machine machine;
        machine.without_code = why;
        mock::reset(machine);
        const Outcome outcome = Session().run();
        EXPECT_EQ(outcome.status, QK_ERROR_UNSUPPORTED) << why;
        EXPECT_EQ(outcome.sentence,
                  "repack: this build has code for no GPU and none for this GPU, build qk with "
                  "-DQK_CUDA_ARCHITECTURES=native on its machine, or all");
        EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    }
    mock::reset();
}

// What kernels may use is what their code was compiled for, however new the card.
TEST(CudaMachines, OlderCodeOnANewerCard) {
    const struct {
        int card, code, usable;
    } cases[] = {{90, 90, 90},    {90, 80, 80},    {90, 89, 89},   {120, 80, 80},
                 {100, 100, 100}, {120, 90, 89},   {86, 80, 80},   {80, 75, 75},
                 {75, 75, 75},    {121, 120, 120}, {103, 100, 100}};
    for (const auto &c : cases) {
        mock::Machine machine;
        machine.capability = c.card;
        machine.code = c.code;
        mock::reset(machine);
        EXPECT_EQ(cuda_test::device_0().capability, c.usable) << c.card << " " << c.code;
        EXPECT_EQ(Session().run().status, QK_OK) << c.card << " " << c.code;
    }
    mock::reset();
}

TEST(CudaMachines, WithoutADeviceTheCpuServes) {
    for (const cudaError_t why : {cudaErrorNoDevice, cudaErrorInsufficientDriver}) {
        mock::Machine machine;
        machine.devices = 0;
        machine.no_devices = why;
        mock::reset(machine);
        int32_t count = -1;
        EXPECT_EQ(qk_device_count(QK_DEVICE_CUDA, &count), QK_OK);
        EXPECT_EQ(count, 0);
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        options.device = QK_DEVICE_CUDA;
        qk_context *context = nullptr;
        EXPECT_EQ(qk_context_create(&options, &context), QK_ERROR_NO_DEVICE);
        EXPECT_EQ(context, nullptr);
        EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
        ASSERT_EQ(qk_context_create(nullptr, &context), QK_OK);
        qk_context_destroy(context);
    }
    mock::reset();
}

TEST(CudaMachines, AnIndexPastTheLastDeviceIsRefused) {
    mock::reset();
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.device = QK_DEVICE_CUDA;
    options.device_index = 2;
    qk_context *context = nullptr;
    EXPECT_EQ(qk_context_create(&options, &context), QK_ERROR_NO_DEVICE);
    options.device_index = 1;
    ASSERT_EQ(qk_context_create(&options, &context), QK_OK);
    qk_context_destroy(context);
    EXPECT_EQ(mock::current_device(), 0);
}

}  // namespace
