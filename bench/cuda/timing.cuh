// The protocol of docs/measurements/cuda.md: calls captured in one CUDA graph that rotates over
// enough copies of the operands to defeat the L2; the median of its replays, in microseconds a
// call. Records go to a JSON file and to the screen.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "qk.h"

namespace bench {

#define BENCH_CHECK(call)                                               \
    do {                                                                \
        const cudaError_t error_ = (call);                              \
        if (error_ != cudaSuccess) {                                    \
            std::printf("%s: %s\n", #call, cudaGetErrorString(error_)); \
            std::exit(1);                                               \
        }                                                               \
    } while (0)

#define QK_BENCH(context, call)                                           \
    do {                                                                  \
        const qk_status status_ = (call);                                 \
        if (status_ != QK_OK) {                                           \
            std::printf("%s: %s: %s\n", #call, qk_status_string(status_), \
                        qk_context_error(context));                       \
            std::exit(1);                                                 \
        }                                                                 \
    } while (0)

using Call = std::function<void(cudaStream_t)>;

// Whether a kernel may start while the one before it runs (programmatic dependent launch), as it
// was captured, or each launch stands alone.
enum class Edges { kAsCaptured, kFull };

inline void replace_edges(cudaGraph_t graph) {
    size_t count = 0;
    BENCH_CHECK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
    std::vector<cudaGraphNode_t> from(count), to(count);
    std::vector<cudaGraphEdgeData> data(count);
    BENCH_CHECK(cudaGraphGetEdges(graph, from.data(), to.data(), data.data(), &count));
    for (size_t i = 0; i < count; ++i) {
        if (data[i].type == cudaGraphDependencyTypeDefault) continue;
        BENCH_CHECK(cudaGraphRemoveDependencies(graph, &from[i], &to[i], &data[i], 1));
        BENCH_CHECK(cudaGraphAddDependencies(graph, &from[i], &to[i], nullptr, 1));
    }
}

class Timer {
  public:
    Timer() {
        BENCH_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
        BENCH_CHECK(cudaEventCreate(&begin_));
        BENCH_CHECK(cudaEventCreate(&end_));
    }
    cudaStream_t stream() const { return stream_; }

    // Median microseconds of one call; calls are made in turn.
    double run(const std::vector<Call> &calls, double seconds = 2e-3, int replays = 11,
               Edges edges = Edges::kFull) {
        for (const Call &call : calls) call(stream_);
        BENCH_CHECK(cudaStreamSynchronize(stream_));
        const size_t once = calls.size();
        cudaGraphExec_t graph = capture(calls, once, edges);
        replay(graph);
        const double estimate = std::min(replay(graph), replay(graph)) / double(once);
        const double wanted = std::ceil(seconds / estimate / double(once)) * double(once);
        const size_t many = size_t(std::min(3000.0, std::max(double(once), wanted)));
        if (many > once) {
            BENCH_CHECK(cudaGraphExecDestroy(graph));
            graph = capture(calls, many, edges);
            replay(graph);
        }
        std::vector<double> times;
        for (int i = 0; i < replays; ++i)
            times.push_back(replay(graph) / double(std::max(many, once)));
        BENCH_CHECK(cudaGraphExecDestroy(graph));
        std::sort(times.begin(), times.end());
        return times[times.size() / 2] * 1e6;
    }

    // Median microseconds of a graph that holds one call.
    double run_alone(const Call &call, int replays = 201) {
        call(stream_);
        cudaGraphExec_t graph = capture({call}, 1, Edges::kFull);
        std::vector<double> times;
        for (int i = 0; i < replays; ++i) times.push_back(replay(graph));
        BENCH_CHECK(cudaGraphExecDestroy(graph));
        std::sort(times.begin(), times.end());
        return times[times.size() / 2] * 1e6;
    }

    // Median microseconds of a graph as captured, over several that are replayed in turn.
    double run_graphs(const std::vector<std::vector<Call>> &graphs, int rounds = 11) {
        std::vector<cudaGraphExec_t> captured;
        for (const std::vector<Call> &calls : graphs) {
            for (const Call &call : calls) call(stream_);
            captured.push_back(capture(calls, calls.size(), Edges::kAsCaptured));
        }
        std::vector<double> times;
        for (int round = 0; round < rounds; ++round) {
            for (cudaGraphExec_t graph : captured) {
                const double time = replay(graph);
                if (round > 0) times.push_back(time);
            }
        }
        for (cudaGraphExec_t graph : captured) BENCH_CHECK(cudaGraphExecDestroy(graph));
        std::sort(times.begin(), times.end());
        return times[times.size() / 2] * 1e6;
    }

  private:
    cudaGraphExec_t capture(const std::vector<Call> &calls, size_t count, Edges edges) {
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t executable = nullptr;
        BENCH_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
        for (size_t i = 0; i < count; ++i) calls[i % calls.size()](stream_);
        BENCH_CHECK(cudaStreamEndCapture(stream_, &graph));
        if (edges == Edges::kFull) replace_edges(graph);
        BENCH_CHECK(cudaGraphInstantiate(&executable, graph, 0));
        BENCH_CHECK(cudaGraphDestroy(graph));
        return executable;
    }
    double replay(cudaGraphExec_t graph) {
        BENCH_CHECK(cudaEventRecord(begin_, stream_));
        BENCH_CHECK(cudaGraphLaunch(graph, stream_));
        BENCH_CHECK(cudaEventRecord(end_, stream_));
        BENCH_CHECK(cudaEventSynchronize(end_));
        float milliseconds = 0;
        BENCH_CHECK(cudaEventElapsedTime(&milliseconds, begin_, end_));
        return double(milliseconds) * 1e-3;
    }

    cudaStream_t stream_;
    cudaEvent_t begin_, end_;
};

class Report {
  public:
    explicit Report(const char *path) : file_(path != nullptr ? std::fopen(path, "w") : nullptr) {
        if (file_ != nullptr) std::fprintf(file_, "[\n");
    }
    ~Report() {
        if (file_ == nullptr) return;
        std::fprintf(file_, "\n]\n");
        std::fclose(file_);
    }
    // `share`: of the floor or ceiling of the same shape, measured in this run.
    void add(const std::string &what, int64_t n, int64_t k, int64_t m, double us, double bytes,
             double share) {
        std::printf("%-34s %6lld x %-6lld m %-4lld %9.2f us %7.0f GB/s %6.1f%%\n", what.c_str(),
                    (long long)n, (long long)k, (long long)m, us, bytes / us * 1e-3, share * 100);
        std::fflush(stdout);
        if (file_ == nullptr) return;
        std::fprintf(file_,
                     "%s{\"what\": \"%s\", \"n\": %lld, \"k\": %lld, \"m\": %lld, \"us\": %.4f, "
                     "\"bytes\": %.0f, \"share\": %.4f}",
                     first_ ? "" : ",\n", what.c_str(), (long long)n, (long long)k, (long long)m,
                     us, bytes, share);
        first_ = false;
    }

  private:
    std::FILE *file_;
    bool first_ = true;
};

// How many copies of `bytes` bytes to rotate over.
inline int copies_for(double bytes) {
    return int(std::min(64.0, std::max(2.0, std::ceil(400e6 / bytes))));
}

}  // namespace bench
