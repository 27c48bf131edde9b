// The quantized GRU on a GPU: whole sequences and single steps, replayed as CUDA graphs, c = h.
//     bench_cuda_gru [out.json [hidden batch steps preset]]     (preset: 0 W8A8, 1 W8H16)
#include "gru_layer.cuh"

namespace bench {

__global__ void empty() {}

constexpr const char *kPresetNames[] = {"W8A8", "W8H16"};

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
