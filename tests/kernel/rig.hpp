// What the kernel sweeps stand on: every kernel of every backend's lists, run on guarded memory
// with tasks in an awkward order.
#pragma once
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "backend/weight.hpp"
#include "harness/guarded.hpp"
#include "harness/scratch.hpp"
#include "harness/shared_memory.hpp"
#include "harness/specs.hpp"
#include "harness/tensor.hpp"
#include "kernel/instruction_sets.hpp"

namespace sweep {

using Bytes = std::vector<uint8_t>;

// Numbered buffers that kernels of one backend may touch. On the CPU they are guarded; elsewhere
// they are device memory with poison on both sides.
class Memory {
  public:
    explicit Memory(const qk::Backend &backend) : backend_(backend) {}
    ~Memory();
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;

    void *put(int slot, const Bytes &bytes, uint64_t turn);  // amid NaNs
    void *space(int slot, size_t bytes, uint64_t turn, uint8_t poison = harness::kPoison);
    Bytes get(int slot);
    bool intact();  // no byte around any buffer was written

    // Device memory: fifteen buffers in sixteen start where fast kernels take them.
    void mostly_aligned() { mostly_aligned_ = true; }

  private:
    struct Buffer {
        harness::Guarded guarded;  // CPU; elsewhere the staging copy is `whole`
        void *device = nullptr;
        size_t capacity = 0, bytes = 0, offset = 0;
        uint8_t poison = 0;
    };
    Buffer &buffer(int slot);
    void *put_device(Buffer *buffer, const Bytes *bytes, size_t size, uint64_t turn,
                     uint8_t poison);
    Bytes whole(const Buffer &buffer);

    const qk::Backend &backend_;
    std::map<int, std::unique_ptr<Buffer>> buffers_;
    bool mostly_aligned_ = false;
};

// One backend that has a device here.
struct Home {
    const qk::Backend &backend;
    qk::Device device;
    Memory memory;
    // Of weights whose scales are divided by one number, as the context has them (host memory).
    std::deque<std::array<float, 256>> folded = {};

    explicit Home(const qk::Backend &b) : backend(b), device(qk::device_at(b, 0)), memory(b) {}
};
// The backends to test; those without a device are named, once, as skipped.
std::vector<std::unique_ptr<Home>> homes();

// Slots: planes of three weights, then the dense operands.
constexpr int kFirst = 0, kSecond = 10, kThird = 30;
constexpr int kX = 20, kY = 21, kBias = 22, kWorkspace = 23;

// A weight over fresh slots, holding `planes`, or poisoned where that is null. `layout` replaces
// the spec's where it is a product's own (packed).
qk::Weight place(Home *home, int first_slot, const reference::Spec &spec,
                 const reference::Planes *planes, uint64_t turn);
qk::Weight place_packed(Home *home, int first_slot, const reference::Spec &spec, uint64_t turn);
// Whether QK_LAYOUT_PACKED is a layout of its own for this format there.
bool has_packed(const Home &home, reference::Format format);
reference::Planes planes_of(Home *home, int first_slot, const reference::Spec &spec);

Bytes dense_bytes(reference::Format format, const std::vector<float> &values);
std::vector<float> rounded(reference::Format format, std::vector<float> values);
std::vector<uint32_t> dense_bits(reference::Format format, const Bytes &bytes);
qk::Dense dense(reference::Format format, int64_t rows, int64_t columns, void *data);

// How often each kernel ran; printed at a sweep's end.
class Tally {
  public:
    explicit Tally(const char *operation) : operation_(operation) {}
    ~Tally();
    void ran(const Home &home, const char *kernel) { ++counts_[key(home, kernel)].first; }
    void refused(const Home &home, const char *kernel) { ++counts_[key(home, kernel)].second; }

  private:
    static std::string key(const Home &home, const char *kernel) {
        return std::string(home.backend.name) + "/" + kernel;
    }
    const char *operation_;
    std::map<std::string, std::pair<int64_t, int64_t>> counts_;
};

// Serial, three at once in a shuffled order, or now and then on real threads.
qk::Parallel parallel_of(uint64_t turn);

template <class Args>
qk::Status run(Home *home, const qk::Kernel<Args> &kernel, const Args &args, uint64_t turn) {
    const size_t workspace = qk::workspace_of(kernel, args, home->device);
    qk::ErrorText error = {};
    qk::Launch launch = {parallel_of(turn), nullptr, home->device, nullptr, workspace, &error};
    launch.scratch = harness::dirty_scratch();
    if (workspace > 0) {
        const uint8_t poison = harness::working_poison(turn);
        launch.workspace = home->memory.space(kWorkspace, workspace, 2, poison);
    }
    if (home->backend.device == QK_DEVICE_CUDA) harness::poison_shared_memory();
    qk::Status status = kernel.run(args, launch);
    if (status == QK_OK) status = home->backend.synchronize(launch);
    return status;
}

// Whether the kernel takes the case; on the CPU it must, where its instruction sets are here.
template <class Args>
bool taken(const Home &home, const qk::Kernel<Args> &kernel, const Args &args) {
    return home.backend.device == QK_DEVICE_CPU
               ? takes(kernel, args, home.device)
               : kernel.can_run(args, home.device) &&
                     harness::wanted(home.backend.name, kernel.name);
}

// Calls body(kernel) for every kernel of `list` that takes the case. Some kernel must.
template <class Args, class Body>
void for_each_kernel(Home *home, const qk::KernelList<Args> &list, const Args &args, Tally *tally,
                     const Body &body) {
    bool any = false;
    for (int32_t i = 0; i < list.count; ++i) {
        const qk::Kernel<Args> &kernel = *list.kernels[i];
        if (!taken(*home, kernel, args)) {
            tally->refused(*home, kernel.name);
            continue;
        }
        any = true;
        tally->ran(*home, kernel.name);
        body(kernel);
    }
    if (!any && harness::only().name.empty())
        ADD_FAILURE() << home->backend.name << ": no kernel takes this case";
}

// After this many failures a sweep has said enough.
inline bool enough() {
    return ::testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count() >
           8;
}

// harness::shapes() and, of formats whose groups have any size, some with such groups.
std::vector<harness::Shape> shapes_of(reference::Format format);

}  // namespace sweep
