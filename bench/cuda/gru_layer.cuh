// A quantized GRU of random weights on the GPU, its operands and its state.
#pragma once
#include <cstdint>
#include <random>

#include "../../cli/trace.hpp"
#include "timing.cuh"

namespace bench {

// Numbers in -2..2 that look random.
__global__ void fill_floats(float *x, int64_t count) {
    const int64_t stride = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        uint32_t bits = uint32_t(i) * 2654435761u;
        bits = (bits ^ bits >> 16) * 0x7feb352du;
        x[i] = float(int32_t(bits ^ bits >> 15)) * 0x1p-30f;
    }
}

std::vector<float> random_values(int64_t count, float size, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<float> uniform(-size, size);
    std::vector<float> values(static_cast<size_t>(count));
    for (float &value : values) value = uniform(random);
    return values;
}

qk_tensor *wrap(qk_context *context, int64_t t, int64_t b, int64_t columns, void *data) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.rank = 3;
    desc.shape[0] = t, desc.shape[1] = b, desc.shape[2] = columns;
    qk_tensor *tensor = nullptr;
    QK_BENCH(context, qk_tensor_wrap(context, &desc, &data, 1, &tensor));
    return tensor;
}

// A frozen GRU of random weights as a file, so that contexts of any workspace can load it.
std::vector<char> make_file(qk_gru_preset preset, int32_t h) {
    qk_context *cpu = nullptr;
    QK_BENCH(cpu, qk_context_create(nullptr, &cpu));
    qk_gru_config config = QK_GRU_CONFIG_INIT;
    config.input_size = config.hidden_size = h;
    config.preset = preset;
    const int64_t rows = int64_t{3} * h;
    const float size = 1 / std::sqrt(float(h));
    const auto w = random_values(rows * h, size, 1), r = random_values(rows * h, size, 2);
    const auto bw = random_values(rows, size, 3), br = random_values(rows, size, 4);
    qk_gru *gru = nullptr;
    QK_BENCH(cpu, qk_gru_create(cpu, &config, w.data(), r.data(), bw.data(), br.data(), &gru));
    constexpr int64_t kSteps = 16;
    auto x = random_values(kSteps * h, 2, 5);
    qk_tensor *const tensor = wrap(cpu, kSteps, 1, h, x.data());
    QK_BENCH(cpu, qk_gru_calibrate(cpu, gru, tensor, nullptr));
    qk_tensor_destroy(tensor);
    QK_BENCH(cpu, qk_gru_freeze(cpu, gru));
    size_t bytes = 0;
    QK_BENCH(cpu, qk_gru_save(gru, nullptr, 0, &bytes));
    std::vector<char> file(bytes);
    QK_BENCH(cpu, qk_gru_save(gru, file.data(), bytes, &bytes));
    qk_gru_destroy(gru);
    qk_context_destroy(cpu);
    return file;
}

struct Layer {
    qk_context *context = nullptr;
    qk_gru *gru = nullptr;
    qk_gru_state *state = nullptr;
    qk_tensor *x = nullptr, *y = nullptr;
    float *x_data = nullptr, *y_data = nullptr;

    Layer(cudaStream_t stream, const std::vector<char> &file, int64_t t, int32_t b, int64_t h) {
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        options.device = QK_DEVICE_CUDA;
        options.stream = stream;
        trace_if_asked(&options);
        QK_BENCH(context, qk_context_create(&options, &context));
        QK_BENCH(context, qk_gru_load(context, file.data(), file.size(), &gru));
        QK_BENCH(context, qk_gru_workspace(context, gru, b, t, &options.workspace_bytes));
        qk_gru_destroy(gru);
        qk_context_destroy(context);
        QK_BENCH(context, qk_context_create(&options, &context));
        QK_BENCH(context, qk_gru_load(context, file.data(), file.size(), &gru));
        QK_BENCH(context, qk_gru_state_create(context, gru, b, &state));
        BENCH_CHECK(cudaMalloc(&x_data, size_t(t * b * h) * 4));
        BENCH_CHECK(cudaMalloc(&y_data, size_t(t * b * h) * 4));
        fill_floats<<<1024, 256>>>(x_data, t * b * h);
        BENCH_CHECK(cudaDeviceSynchronize());
        x = wrap(context, t, b, h, x_data);
        y = wrap(context, t, b, h, y_data);
    }
    ~Layer() {
        qk_tensor_destroy(x);
        qk_tensor_destroy(y);
        cudaFree(x_data);
        cudaFree(y_data);
        qk_gru_state_destroy(state);
        qk_gru_destroy(gru);
        qk_context_destroy(context);
    }
    void run() { QK_BENCH(context, qk_gru_run(context, gru, state, x, y)); }
};

}  // namespace bench
