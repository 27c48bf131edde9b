#include "object/context.hpp"

#include <string.h>

#include "base/os.hpp"

namespace qk {
namespace {

constexpr size_t kAlignment = 64;  // a cache line, and the widest vector
constexpr int32_t kMaxThreads = 1024;

void *default_allocate(void *, size_t size_bytes, size_t align_bytes) {
    return os::allocate(size_bytes, align_bytes);
}

void default_release(void *, void *pointer) { os::release(pointer); }

constexpr qk_allocator kStandardAllocator = {default_allocate, default_release, nullptr};

// The caller's options as this library knows them: a program of an older header has fewer, one of
// a newer header more, which must be 0.
Status read_options(const qk_context_options &given, qk_context_options *options) {
    constexpr size_t first_release = offsetof(qk_context_options, instruction_sets);
    constexpr size_t largest = 4096, known = sizeof(qk_context_options);
    const size_t size = given.struct_size;
    if (given.abi_version != QK_ABI_VERSION || size < first_release || size > largest ||
        size % alignof(qk_context_options) != 0) {
        return QK_ERROR_ABI;
    }
    memset(options, 0, known);
    memcpy(options, &given, size < known ? size : known);
    const char *const bytes = reinterpret_cast<const char *>(&given);
    for (size_t i = known; i < size; ++i) {
        if (bytes[i] != 0) return QK_ERROR_ABI;
    }
    return QK_OK;
}

Status check_options(const qk_context_options &options) {
    if (options.reserved != 0) return QK_ERROR_ARGUMENT;
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

bool is_in_reach(const qk_context &context) {
    return context.process == 0 || context.process == os::process();
}

Status make_threads(qk_context *context, const qk_context_options &options) {
    if (options.executor != nullptr) {
        context->executor = {*options.executor, &context->outside, 0, 0};
        context->parallel = executor_parallel(&context->executor);
        return QK_OK;
    }
    const bool cpu = options.device == QK_DEVICE_CPU;
    const int32_t wanted = options.thread_count == 0 ? os::usable_cores() : options.thread_count;
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
    context->workspace = device_allocate(context, bytes);
    context->workspace_bytes = bytes;
    return context->workspace == nullptr ? QK_ERROR_MEMORY : QK_OK;
}

void free_context(qk_context *context) {
    thread_pool_destroy(context->allocator, context->pool);
    scratch_destroy(context->allocator, context->scratch);
    if (context->session != nullptr && is_in_reach(*context)) {
        context->backend->session.close(context->device.index, context->session);
    }
    device_release(context, context->workspace);
    const qk_allocator allocator = context->allocator;
    context->magic = kDestroyedMagic;
    allocator.release(allocator.user, context);
}

}  // namespace

Status context_create(const qk_context_options *given, qk_context **out) {
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    if (given != nullptr) QK_TRY(read_options(*given, &options));
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
    context->flags = options.flags;
    context->process = context->backend->memory.allocate != nullptr ? os::process() : 0;
    context->stream = options.stream;
    context->allocator = allocator;
    context->trace = options.trace;
    context->trace_user = options.trace_user;
    Status status =
        describe(*context->backend, options.device_index,
                 options.instruction_sets == 0 ? ~0u : options.instruction_sets, &context->device);
    if (status == QK_OK) status = make_threads(context, options);
    if (status == QK_OK) status = make_scratch(context);
    if (status == QK_OK) status = make_workspace(context, options.workspace_bytes);
    if (status != QK_OK) {
        free_context(context);
        return status;
    }
    const Session &session = context->backend->session;
    if (session.open != nullptr) {
        context->session = session.open(&context->device, context->workspace_bytes);
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

Status check_reach(qk_context *context) {
    QK_CHECK(is_in_reach(*context), &context->error, DEVICE_FAULT,
             "context: was made on %s:%d before a fork, process %d cannot use that device through "
             "it",
             context->backend->name, context->device.index, int(os::process()));
    return QK_OK;
}

qk_context_info context_info(const qk_context &context) {
    const int32_t threads =
        context.pool != nullptr ? thread_pool_threads(context.pool) : context.parallel.concurrency;
    return {
        sizeof(qk_context_info), context.backend->device,         context.device.index,   threads,
        context.flags,           context.device.instruction_sets, context.workspace_bytes};
}

void *device_allocate(qk_context *context, size_t bytes) {
    const DeviceMemory &memory = context->backend->memory;
    return memory.allocate != nullptr ? memory.allocate(context->device.index, bytes)
                                      : host_allocate(context, bytes);
}

void device_release(qk_context *context, void *pointer) {
    if (pointer == nullptr) return;
    const DeviceMemory &memory = context->backend->memory;
    if (memory.release == nullptr) return host_release(context, pointer);
    if (is_in_reach(*context)) memory.release(context->device.index, pointer);
}

FloatMode callbacks_mode(const qk_context &context) {
    return context.is_computing ? context.outside : float_mode();
}

Launch make_launch(qk_context *context) {
    return {context->parallel,        context->stream, context->device,  context->workspace,
            context->workspace_bytes, &context->error, context->session, context->scratch};
}

void *host_allocate(qk_context *context, size_t bytes) {
    const FloatScope floats(callbacks_mode(*context));
    return context->allocator.allocate(context->allocator.user, bytes, kAlignment);
}

void host_release(qk_context *context, void *pointer) {
    const FloatScope floats(callbacks_mode(*context));
    context->allocator.release(context->allocator.user, pointer);
}

}  // namespace qk
