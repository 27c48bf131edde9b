#include "object/context.hpp"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

namespace qk {
namespace {

constexpr size_t kAlignment = 64;  // a cache line, and the widest vector
constexpr int32_t kMaxThreads = 1024;

// Weights are read front to back, once a token: small pages cost a tenth of the memory's rate.
constexpr size_t kLargePage = size_t{2} << 20;

void *default_allocate(void *, size_t size_bytes, size_t align_bytes) {
    void *pointer = nullptr;
    const bool large = size_bytes >= 2 * kLargePage;
    const size_t align = large && align_bytes < kLargePage ? kLargePage : align_bytes;
    if (posix_memalign(&pointer, align, size_bytes) != 0) return nullptr;
#if defined(MADV_HUGEPAGE)
    // Advice: where it is refused, the pages stay small.
    if (large) madvise(pointer, size_bytes / kLargePage * kLargePage, MADV_HUGEPAGE);
#endif
    return pointer;
}

void default_release(void *, void *pointer) { free(pointer); }

constexpr qk_allocator kStandardAllocator = {default_allocate, default_release, nullptr};

void call_executor(void *opaque, int32_t task_count, void (*task)(void *, int32_t),
                   void *argument) {
    const qk_executor &executor = *static_cast<qk_executor *>(opaque);
    executor.parallel_for(executor.user, task_count, task, argument);
}

Status check_options(const qk_context_options &options) {
    if (options.struct_size != sizeof(qk_context_options) ||
        options.abi_version != QK_ABI_VERSION) {
        return QK_ERROR_ABI;
    }
    constexpr uint32_t modes = QK_CONTEXT_BF16_PRODUCTS | QK_CONTEXT_INT8_ACTIVATIONS;
    if ((options.flags & ~modes) != 0 || options.flags == modes) return QK_ERROR_ARGUMENT;
    if (options.thread_count < 0 || options.thread_count > kMaxThreads) return QK_ERROR_ARGUMENT;
    const qk_allocator *const allocator = options.allocator;
    if (allocator != nullptr && (allocator->allocate == nullptr || allocator->release == nullptr)) {
        return QK_ERROR_NULL;
    }
    const qk_executor *const executor = options.executor;
    if (executor != nullptr && executor->parallel_for == nullptr) return QK_ERROR_NULL;
    if (executor != nullptr && executor->concurrency < 1) return QK_ERROR_ARGUMENT;
    if (options.device != QK_DEVICE_CPU && options.device != QK_DEVICE_CUDA) {
        return QK_ERROR_ARGUMENT;
    }
    const Backend *const backend = find_backend(options.device);
    if (backend == nullptr) return QK_ERROR_UNSUPPORTED;
    if (options.flags != 0 && !backend->has_modes) return QK_ERROR_UNSUPPORTED;
    if (options.device_index < 0 || options.device_index >= backend->device_count()) {
        return QK_ERROR_NO_DEVICE;
    }
    return QK_OK;
}

Status make_threads(qk_context *context, const qk_context_options &options) {
    if (options.executor != nullptr) {
        context->executor = *options.executor;
        context->parallel = {call_executor, &context->executor, options.executor->concurrency};
        return QK_OK;
    }
    const bool cpu = options.device == QK_DEVICE_CPU;
    const int32_t wanted = options.thread_count == 0 ? usable_cores() : options.thread_count;
    context->pool = thread_pool_create(context->allocator, cpu ? wanted : 1);
    if (context->pool == nullptr) return QK_ERROR_MEMORY;
    context->parallel = thread_pool_parallel(context->pool);
    return QK_OK;
}

Status make_scratch(qk_context *context) {
    if (context->backend->device != QK_DEVICE_CPU) return QK_OK;
    context->scratch = scratch_create(context->allocator, context->parallel.concurrency);
    return context->scratch == nullptr ? QK_ERROR_MEMORY : QK_OK;
}

Status make_workspace(qk_context *context, size_t bytes) {
    if (bytes == 0) return QK_OK;
    const DeviceMemory &memory = context->backend->memory;
    context->workspace = memory.allocate != nullptr
                             ? memory.allocate(context->device.index, bytes)
                             : host_allocate(context, bytes);
    context->workspace_bytes = bytes;
    return context->workspace == nullptr ? QK_ERROR_MEMORY : QK_OK;
}

void free_context(qk_context *context) {
    thread_pool_destroy(context->allocator, context->pool);
    scratch_destroy(context->allocator, context->scratch);
    if (context->session != nullptr) {
        context->backend->session.close(context->device.index, context->session);
    }
    if (context->workspace != nullptr) {
        const DeviceMemory &memory = context->backend->memory;
        memory.release != nullptr ? memory.release(context->device.index, context->workspace)
                                  : host_release(context, context->workspace);
    }
    const qk_allocator allocator = context->allocator;
    context->magic = kDestroyedMagic;
    allocator.release(allocator.user, context);
}

}  // namespace

Status context_create(const qk_context_options *given, qk_context **out) {
    const qk_context_options defaults = QK_CONTEXT_OPTIONS_INIT;
    const qk_context_options &options = given != nullptr ? *given : defaults;
    QK_TRY(check_options(options));
    const qk_allocator allocator =
        options.allocator != nullptr ? *options.allocator : kStandardAllocator;
    void *const memory = allocator.allocate(allocator.user, sizeof(qk_context), kAlignment);
    if (memory == nullptr) return QK_ERROR_MEMORY;
    memset(memory, 0, sizeof(qk_context));
    qk_context *const context = static_cast<qk_context *>(memory);
    context->magic = kContextMagic;
    context->references.store(1);
    context->backend = find_backend(options.device);
    context->device = device_at(*context->backend, options.device_index);
    context->flags = options.flags;
    context->stream = options.stream;
    context->allocator = allocator;
    Status status = make_threads(context, options);
    if (status == QK_OK) status = make_scratch(context);
    if (status == QK_OK) status = make_workspace(context, options.workspace_bytes);
    if (status != QK_OK) {
        free_context(context);
        return status;
    }
    const Session &session = context->backend->session;
    if (session.open != nullptr) {
        context->session = session.open(context->device.index, context->workspace_bytes);
    }
    *out = context;
    return QK_OK;
}

void context_retain(qk_context *context) {
    context->references.fetch_add(1, std::memory_order_relaxed);
}

void context_release(qk_context *context) {
    if (context->references.fetch_sub(1, std::memory_order_acq_rel) == 1) free_context(context);
}

void context_destroy(qk_context *context) {
    if (check_context(context) != QK_OK) return;
    context->magic = kDestroyedMagic;
    context_release(context);
}

Status check_context(const qk_context *context) {
    if (context == nullptr) return QK_ERROR_NULL;
    return context->magic == kContextMagic ? QK_OK : QK_ERROR_STATE;
}

Launch make_launch(qk_context *context) {
    return {context->parallel,        context->stream, context->device, context->workspace,
            context->workspace_bytes, &context->error, context->session,
            context->scratch};
}

void *host_allocate(qk_context *context, size_t bytes) {
    return context->allocator.allocate(context->allocator.user, bytes, kAlignment);
}

void host_release(qk_context *context, void *pointer) {
    context->allocator.release(context->allocator.user, pointer);
}

}  // namespace qk
