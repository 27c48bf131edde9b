// The CUDA backend through qk.h: contexts, transfers, streams, the caller's device, graph capture,
// and what happens where no device is.
#include <vector>

#include "cuda/harness.hpp"
#include "qk.h"

namespace {

qk_context_options cuda_options() {
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.device = QK_DEVICE_CUDA;
    return options;
}

TEST(CudaApi, WithoutADeviceTheCpuStillServes) {
    int32_t devices = -1;
    ASSERT_EQ(qk_device_count(QK_DEVICE_CUDA, &devices), QK_OK);
    qk_context *context = nullptr;
    qk_context_options options = cuda_options();
    options.device_index = devices;  // one past the last
    EXPECT_EQ(qk_context_create(&options, &context), QK_ERROR_NO_DEVICE);
    ASSERT_EQ(qk_context_create(nullptr, &context), QK_OK);
    qk_context_destroy(context);
}

TEST(CudaApi, NoStaleErrorIsLeftBehind) {
    QK_NEEDS_DEVICE();
    int32_t devices = -1;
    ASSERT_EQ(qk_device_count(QK_DEVICE_CUDA, &devices), QK_OK);
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST(CudaApi, UploadDownloadRoundTrip) {
    QK_NEEDS_DEVICE();
    qk_context *context = nullptr;
    const qk_context_options options = cuda_options();
    ASSERT_EQ(qk_context_create(&options, &context), QK_OK);
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.rank = 2;
    desc.shape[0] = 7;
    desc.shape[1] = 9;
    qk_tensor *tensor = nullptr;
    ASSERT_EQ(qk_tensor_create(context, &desc, &tensor), QK_OK) << qk_context_error(context);
    std::vector<float> values(63), back(63, -1.0f);
    for (size_t i = 0; i < values.size(); ++i) values[i] = float(i);
    ASSERT_EQ(qk_tensor_upload(context, tensor, QK_PLANE_DATA, values.data(), 63 * 4), QK_OK);
    ASSERT_EQ(qk_tensor_download(context, tensor, QK_PLANE_DATA, back.data(), 63 * 4), QK_OK);
    EXPECT_EQ(values, back);
    qk_tensor_destroy(tensor);
    qk_context_destroy(context);
}

// Everything a captured graph needs: weights, x and y on the device, on a stream of the test's own.
struct Layer {
    qk_context *context = nullptr;
    cudaStream_t stream = nullptr;
    qk_tensor *w = nullptr, *packed = nullptr, *x = nullptr, *y = nullptr, *dense = nullptr;
    qk_tensor *coded = nullptr, *nested = nullptr;  // dense, quantized again

    void create(int64_t n, int64_t k) {
        ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
        qk_context_options options = cuda_options();
        options.stream = stream;
        ASSERT_EQ(qk_context_create(&options, &context), QK_OK);
        cuda_test::Rng rng(9);
        qk_tensor_desc desc =
            cuda_test::weight_desc(QK_FORMAT_NF4, QK_FORMAT_F32, QK_LAYOUT_ROW_HIGH, 64, n, k);
        const cuda_test::HostWeight host = cuda_test::random_weight(desc, rng);
        ASSERT_EQ(qk_tensor_create(context, &desc, &w), QK_OK) << qk_context_error(context);
        for (const qk_plane plane : {QK_PLANE_DATA, QK_PLANE_SCALE}) {
            ASSERT_EQ(qk_tensor_upload(context, w, plane, host.planes[plane].data(),
                                       host.planes[plane].size()),
                      QK_OK);
        }
        ASSERT_EQ(qk_tensor_create(context, &desc, &coded), QK_OK) << qk_context_error(context);
        desc.scale_format = QK_FORMAT_LUT8;
        ASSERT_EQ(qk_tensor_create(context, &desc, &nested), QK_OK) << qk_context_error(context);
        float table[256];
        ASSERT_EQ(qk_dynamic_table(table), QK_OK);
        ASSERT_EQ(qk_tensor_upload(context, nested, QK_PLANE_SCALE_CODE, table, sizeof table),
                  QK_OK);
        desc.scale_format = QK_FORMAT_F32;
        desc.layout = QK_LAYOUT_PACKED;
        ASSERT_EQ(qk_tensor_create(context, &desc, &packed), QK_OK) << qk_context_error(context);
        create_dense(1, k, &x);
        create_dense(1, n, &y);
        create_dense(n, k, &dense);
        const auto values = cuda_test::random_floats(QK_FORMAT_F16, k, rng);
        ASSERT_EQ(qk_tensor_upload(context, x, QK_PLANE_DATA, values.data(), values.size()), QK_OK);
    }
    void create_dense(int64_t rows, int64_t columns, qk_tensor **out) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.format = QK_FORMAT_F16;
        desc.rank = 2;
        desc.shape[0] = rows;
        desc.shape[1] = columns;
        ASSERT_EQ(qk_tensor_create(context, &desc, out), QK_OK) << qk_context_error(context);
    }
    qk_status run_all() {
        const qk_status statuses[] = {qk_repack(context, w, packed),
                                      qk_dequantize(context, packed, dense),
                                      qk_dequantize(context, w, dense),
                                      qk_linear(context, x, w, nullptr, y),
                                      qk_linear(context, x, packed, nullptr, y),
                                      qk_quantize(context, dense, coded),
                                      qk_quantize(context, dense, nested)};
        for (const qk_status status : statuses) {
            if (status != QK_OK) return status;
        }
        return QK_OK;
    }
    std::vector<uint16_t> read(qk_tensor *tensor, size_t count) {
        std::vector<uint16_t> values(count);
        EXPECT_EQ(qk_tensor_download(context, tensor, QK_PLANE_DATA, values.data(), count * 2),
                  QK_OK);
        return values;
    }
    std::vector<uint8_t> read_codes(qk_tensor *tensor, int64_t count) {
        std::vector<uint8_t> codes(size_t(count) / 2);
        EXPECT_EQ(qk_tensor_download(context, tensor, QK_PLANE_DATA, codes.data(), codes.size()),
                  QK_OK);
        return codes;
    }
    ~Layer() {
        for (qk_tensor *tensor : {w, packed, x, y, dense, coded, nested}) qk_tensor_destroy(tensor);
        qk_context_destroy(context);
        if (stream != nullptr) cudaStreamDestroy(stream);
    }
};

TEST(CudaApi, EveryOperationCanBeCaptured) {
    QK_NEEDS_DEVICE();
    Layer layer;
    layer.create(96, 256);
    ASSERT_EQ(layer.run_all(), QK_OK) << qk_context_error(layer.context);
    const auto y = layer.read(layer.y, 96), dense = layer.read(layer.dense, 96 * 256);
    const auto coded = layer.read_codes(layer.coded, 96 * 256);
    const auto nested = layer.read_codes(layer.nested, 96 * 256);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(layer.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(layer.run_all(), QK_OK) << qk_context_error(layer.context);
    ASSERT_EQ(cudaStreamEndCapture(layer.stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    const std::vector<uint16_t> poison(96 * 256, 0xffff);
    ASSERT_EQ(qk_tensor_upload(layer.context, layer.dense, QK_PLANE_DATA, poison.data(),
                               poison.size() * 2),
              QK_OK);
    ASSERT_EQ(qk_tensor_upload(layer.context, layer.y, QK_PLANE_DATA, poison.data(), 96 * 2),
              QK_OK);
    for (qk_tensor *tensor : {layer.coded, layer.nested}) {
        ASSERT_EQ(
            qk_tensor_upload(layer.context, tensor, QK_PLANE_DATA, poison.data(), coded.size()),
            QK_OK);
    }
    ASSERT_EQ(cudaGraphLaunch(executable, layer.stream), cudaSuccess);
    ASSERT_EQ(qk_context_synchronize(layer.context), QK_OK);
    EXPECT_EQ(layer.read_codes(layer.coded, 96 * 256), coded);
    EXPECT_EQ(layer.read_codes(layer.nested, 96 * 256), nested);
    EXPECT_EQ(layer.read(layer.y, 96), y);
    EXPECT_EQ(layer.read(layer.dense, 96 * 256), dense);
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
}

// y of one product is x of the next, thousands of times: a kernel that started before its x was
// ready, or overwrote what another still reads, would change the result.
TEST(CudaApi, ADependentChainRepeatsBitForBit) {
    QK_NEEDS_DEVICE();
    Layer layer;
    layer.create(512, 512);
    ASSERT_EQ(qk_repack(layer.context, layer.w, layer.packed), QK_OK);
    const auto start = layer.read(layer.x, 512);
    std::vector<uint16_t> first;
    for (int repeat = 0; repeat < 50; ++repeat) {
        ASSERT_EQ(qk_tensor_upload(layer.context, layer.x, QK_PLANE_DATA, start.data(), 1024),
                  QK_OK);
        for (int step = 0; step < 20; ++step) {
            ASSERT_EQ(qk_linear(layer.context, layer.x, layer.packed, nullptr, layer.y), QK_OK);
            ASSERT_EQ(qk_linear(layer.context, layer.y, layer.packed, nullptr, layer.x), QK_OK);
        }
        const auto end = layer.read(layer.x, 512);
        if (repeat == 0) first = end;
        ASSERT_EQ(end, first) << "repeat " << repeat;
    }
}

TEST(CudaApi, OutOfMemoryIsAStatusAndLeavesNoError) {
    QK_NEEDS_DEVICE();
    qk_context *context = nullptr;
    const qk_context_options options = cuda_options();
    ASSERT_EQ(qk_context_create(&options, &context), QK_OK);
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.shape[0] = int64_t{1} << 50;  // 4 PiB
    qk_tensor *tensor = nullptr;
    EXPECT_EQ(qk_tensor_create(context, &desc, &tensor), QK_ERROR_MEMORY);
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    desc.shape[0] = 4;
    EXPECT_EQ(qk_tensor_create(context, &desc, &tensor), QK_OK) << qk_context_error(context);
    qk_tensor_destroy(tensor);
    qk_context_destroy(context);
}

}  // namespace
