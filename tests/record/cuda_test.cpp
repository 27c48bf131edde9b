// The same for the CUDA backend: on simulated threads those kernels that run there, in every build;
// on a GPU all of them. A line's set is "simulated" or the GPU's architecture and multiprocessors,
// since how sums are split may depend on both. The GRU's kernels have no lines: their integers are
// the CPU's, and tests/cuda/gru.cpp compares them.
#include "record/measure.hpp"

#if defined(QK_CUDA_SIMULATED)
#include "cuda/mock/mock.hpp"
#endif

namespace {

using namespace record;

[[maybe_unused]] const int kSeed = setenv("QK_TEST_SEED", "20240607", 1);

Place place(int64_t largest) {
    Place place;
    const qk::Device device = qk::device_at(qk::kCudaBackend, 0);
    place.devices = {device};
#if defined(QK_CUDA_SIMULATED)
    // Small cases, for simulated threads are slow. What stands in for kernels of sm_90a and for
    // cuBLASLt is not qk's, and neither is what they are handed.
    place.sets = {"simulated"};
    place.largest = largest;
    place.every = 64, place.few = 512;
    place.leaves_out = [](const std::string &kernel) {
        return kernel.starts_with("sm90") || kernel == "dense" || kernel == "repacked";
    };
#else
    (void)largest;
    // cuBLASLt's bits are its version's.
    place.leaves_out = [](const std::string &kernel) { return kernel == "dense"; };
    place.sets = {"sm" + std::to_string(device.capability) + "x" +
                  std::to_string(device.multiprocessors)};
#endif
    return place;
}

template <class Args>
void check(const char *operation, const qk::KernelList<Args> &list, Table<Args> table,
           int64_t largest) {
#if defined(QK_CUDA_SIMULATED)
    mock::reset();
#else
    if (qk::kCudaBackend.device_count() == 0) GTEST_SKIP() << "no CUDA device on this machine";
#endif
    const Place here = place(largest);
    const std::vector<Line> lines = read_lines(QK_RECORD);
    const auto ours = [&](const Line &line) { return contains(here.sets, line.set); };
    if (!writes() && std::none_of(lines.begin(), lines.end(), ours)) {
        GTEST_SKIP() << "no line recorded on a GPU yet (" << here.sets[0]
                     << "): tests/record/update writes them there";
    }
    const auto found = measure(operation, qk::kCudaBackend, list, table, here);
    if (writes()) return merge(QK_RECORD, operation, here.sets, found);
    for (const Line &line : found) expect_recorded(lines, here.sets, line);
    for (const Line &line : lines) {
        if (!ours(line) || line.operation != operation || only_few()) continue;
        const auto is_it = [&](const Line &other) { return line.kernel == other.kernel; };
        EXPECT_TRUE(std::any_of(found.begin(), found.end(), is_it))
            << line.key() << " is on record and no case runs it: run tests/record/update";
    }
    for (const std::string &kernel : names_of(list)) {
        const auto is_it = [&](const Line &line) { return line.kernel == kernel; };
        if (std::any_of(found.begin(), found.end(), is_it)) continue;
        std::printf("skipped: %s / %s: nothing runs it on %s\n", operation, kernel.c_str(),
                    here.sets[0].c_str());
    }
}

// The numbers: codes, times rows of x, that simulated threads do in seconds.
TEST(CudaRecord, Dequantize) {
    check("dequantize", qk::kCudaBackend.dequantize, visit_dequantize, 6000);
}
TEST(CudaRecord, Quantize) { check("quantize", qk::kCudaBackend.quantize, visit_quantize, 1000); }
TEST(CudaRecord, Repack) { check("repack", qk::kCudaBackend.repack, visit_repack, 6000); }
TEST(CudaRecord, Linear) { check("linear", qk::kCudaBackend.linear, visit_linear_tiles, 150000); }

}  // namespace
