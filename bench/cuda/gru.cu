// The quantized GRU on a GPU: whole sequences and single steps, replayed as CUDA graphs, c = h.
//     bench_cuda_gru [out.json [hidden batch steps preset]]     (preset: 0 W8A8, 1 W8H16)
#include <cstdint>
#include <random>

#include "qk.h"
#include "timing.cuh"

namespace bench {

#define QK_BENCH(context, call)                                           \
    do {                                                                  \
        const qk_status status_ = (call);                                 \
        if (status_ != QK_OK) {                                           \
            std::printf("%s: %s: %s\n", #call, qk_status_string(status_), \
                        qk_context_error(context));                       \
            std::exit(1);                                                 \
        }                                                                 \
    } while (0)

__global__ void empty() {}

// Numbers in -2..2 that look random.
__global__ void fill(float *x, int64_t count) {
    const int64_t stride = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        uint32_t bits = uint32_t(i) * 2654435761u;
        bits = (bits ^ bits >> 16) * 0x7feb352du;
        x[i] = float(int32_t(bits ^ bits >> 15)) * 0x1p-30f;
    }
}

constexpr const char *kPresetNames[] = {"W8A8", "W8H16"};

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
        fill<<<1024, 256>>>(x_data, t * b * h);
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

struct Row {
    int32_t h, batch;
    int64_t steps;
    int32_t preset;
};

class Output {
  public:
    explicit Output(const char *path) : file_(path != nullptr ? std::fopen(path, "w") : nullptr) {
        if (file_ != nullptr) std::fprintf(file_, "[\n");
    }
    ~Output() {
        if (file_ == nullptr) return;
        std::fprintf(file_, "\n]\n");
        std::fclose(file_);
    }
    void add(const Row &row, double us, double empty_us) {
        const double step = us / double(row.steps);
        std::printf("%-6s h %5d batch %3d steps %5lld  %9.3f us a step", kPresetNames[row.preset],
                    row.h, row.batch, (long long)row.steps, step);
        if (row.steps == 1) std::printf("  %.2f x an empty launch", us / empty_us);
        std::printf("\n");
        std::fflush(stdout);
        if (file_ == nullptr) return;
        std::fprintf(file_,
                     "%s{\"preset\": \"%s\", \"h\": %d, \"batch\": %d, \"steps\": %lld, "
                     "\"us_step\": %.4f, \"us_empty_launch\": %.3f}",
                     first_ ? "" : ",\n", kPresetNames[row.preset], row.h, row.batch,
                     (long long)row.steps, step, empty_us);
        first_ = false;
    }

  private:
    std::FILE *file_;
    bool first_ = true;
};

void bench_row(Timer &timer, Output &output, double empty_us, const std::vector<char> &file,
               const Row &row) {
    Layer layer(timer.stream(), file, row.steps, row.batch, row.h);
    const Call call = [&](cudaStream_t) { layer.run(); };
    const double us = row.steps == 1 ? timer.run_alone(call) : timer.run({call}, 2e-3, 15);
    output.add(row, us, empty_us);
}

}  // namespace bench

int main(int argc, char **argv) {
    using namespace bench;
    Timer timer;
    Output output(argc > 1 ? argv[1] : nullptr);
    cudaDeviceProp device = {};
    BENCH_CHECK(cudaGetDeviceProperties(&device, 0));
    std::printf("%s, %d multiprocessors, %s\n", device.name, device.multiProcessorCount,
                qk_build_info());
    const double empty_us =
        timer.run_alone([](cudaStream_t stream) { empty<<<1, 32, 0, stream>>>(); });
    std::printf("an empty kernel's graph launch: %.3f us\n", empty_us);
    if (argc > 5) {
        const Row row = {std::atoi(argv[2]), std::atoi(argv[3]), std::atoll(argv[4]),
                         std::atoi(argv[5])};
        bench_row(timer, output, empty_us, make_file(row.preset, row.h), row);
        return 0;
    }
    for (const int32_t preset : {QK_GRU_W8A8, QK_GRU_W8H16}) {
        for (const int32_t h : {256, 512, 1024}) {
            const std::vector<char> file = make_file(preset, h);
            for (const int32_t batch : {1, 64}) {
                bench_row(timer, output, empty_us, file, {h, batch, 1000, preset});
            }
            bench_row(timer, output, empty_us, file, {h, 1, 100, preset});
            bench_row(timer, output, empty_us, file, {h, 1, 1, preset});
        }
    }
    return 0;
}
