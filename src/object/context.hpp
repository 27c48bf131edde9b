// What a qk_context points to: a device, its stream and workspace, threads, and the last sentence.
#pragma once
#include <atomic>

#include "backend/backend.hpp"
#include "base/status.hpp"
#include "object/executor.hpp"
#include "object/thread_pool.hpp"

struct qk_context {
    uint32_t magic;
    std::atomic<int64_t> references;  // the handle itself, and every child
    const qk::Backend *backend;
    qk::Device device;
    uint32_t flags;  // QK_CONTEXT_...
    void *stream;
    qk_allocator allocator;
    qk::Executor executor;  // the caller's, where `pool` is null
    qk::ThreadPool *pool;
    qk::Parallel parallel;
    qk::Scratch *scratch;  // of tasks; null where they run on a device
    void *workspace;
    size_t workspace_bytes;
    void *session;          // the backend's, null where it keeps nothing
    int64_t process;        // that alone can reach the device; 0: any that inherits the memory
    bool is_computing;      // between the two, floats are in the default mode
    qk::FloatMode outside;  // what the caller's were
    void (*trace)(void *user, const qk_trace *call);  // null: nothing is told
    void *trace_user;
    qk::ErrorText error;
};

namespace qk {

constexpr uint32_t kContextMagic = 0x716b4358;  // 'qkCX'
constexpr uint32_t kDestroyedMagic = 0xdead716b;

Status context_create(const qk_context_options *options, qk_context **out);
// Children keep the context's memory alive; the last one to let go frees it.
void context_destroy(qk_context *context);
void context_retain(qk_context *context);
void context_release(qk_context *context);

// QK_OK for a live handle. A destroyed one is caught as long as something keeps its memory alive.
Status check_context(const qk_context *context);
// QK_OK where this process can reach the device: a forked child cannot reach its parent's GPU.
Status check_reach(qk_context *context);

qk_context_info context_info(const qk_context &context);

// The floating-point mode that the caller's own functions find, wherever they are called from.
FloatMode callbacks_mode(const qk_context &context);

Launch make_launch(qk_context *context);

// Memory of the context's device; in a forked child that cannot reach it, release does nothing.
void *device_allocate(qk_context *context, size_t bytes);
void device_release(qk_context *context, void *pointer);

// Host memory through the context's allocator.
void *host_allocate(qk_context *context, size_t bytes);
void host_release(qk_context *context, void *pointer);

}  // namespace qk
