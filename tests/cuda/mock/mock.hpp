// What a test asks of the mock runtime, and what it tells.
#pragma once
#include <set>

#include "cuda/mock/cuda_runtime.h"

namespace mock {

struct Machine {
    int devices = 2;
    cudaError_t no_devices = cudaErrorNoDevice;  // what the count says where there are none
    int capability = 90, multiprocessors = 4, shared_bytes = 227 * 1024, l2_bytes = 50 << 20;
    int static_shared_bytes = 1024;  // of every kernel
    int code = 0;  // the capability for which every kernel was compiled; 0: that of the device
    cudaError_t without_code = cudaSuccess;  // else what the driver says of every kernel
};

enum class Fault {
    kOnce,    // the call fails, the next ones do not
    kSticky,  // every later call fails too, as after an illegal access
    kLate     // the call succeeds; the next that waits finds the device dead
};

void reset(const Machine &machine = {});
// The `call`-th call of the runtime from now on (1 is the next; 0: none) fails. Asking for the last
// error, or for its text, is no call that can fail.
void fail(int call, cudaError_t error, Fault fault = Fault::kOnce);

// Whether launches run (they do after reset): where only statuses matter, they need not.
void run_kernels(bool run);

// Runs once, at the start of the next launch: what another thread does between a launch's
// preparation and the launch.
void before_launch(std::function<void()> act);

// A kernel's attributes on the current device.
cudaFuncAttributes attributes_of(const void *kernel);
void forget_attributes();               // of every kernel, as in a new process
std::set<cudaStream_t> streams_used();  // by launches, copies, fills and waits, since reset
int64_t queued();                       // pieces of work that nothing has waited for

int calls();                // since reset
const char *failed_call();  // the name of the call that failed, "" while none has
int64_t live_allocations();
int current_device();       // of the calling thread
bool thread_has_context();  // without one the driver refuses
void set_current_device(int device);

}  // namespace mock
