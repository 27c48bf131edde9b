// Windows, by its own threads: nothing but kernel32 and the C runtime is needed.
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>

#include <malloc.h>

#include "base/os.hpp"

namespace qk::os {
namespace {

static_assert(sizeof(SRWLOCK) <= sizeof(Mutex) && sizeof(CONDITION_VARIABLE) <= sizeof(Condition));

SRWLOCK *of(Mutex *mutex) { return reinterpret_cast<SRWLOCK *>(mutex->object); }
CONDITION_VARIABLE *of(Condition *condition) {
    return reinterpret_cast<CONDITION_VARIABLE *>(condition->object);
}

DWORD WINAPI run(void *argument) {
    const Thread *const thread = static_cast<const Thread *>(argument);
    thread->main(thread->argument);
    return 0;
}

}  // namespace

void *allocate(size_t bytes, size_t align) { return _aligned_malloc(bytes, align); }
void release(void *pointer) { _aligned_free(pointer); }

int64_t process() { return GetCurrentProcessId(); }

int64_t nanoseconds() {
    LARGE_INTEGER ticks, per_second;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&per_second);
    const int64_t second = per_second.QuadPart, seconds = ticks.QuadPart / second;
    return seconds * 1000000000 + ticks.QuadPart % second * 1000000000 / second;
}

int32_t usable_cores() {
    DWORD_PTR own = 0, all = 0;
    if (!GetProcessAffinityMask(GetCurrentProcess(), &own, &all)) return 1;
    const int32_t count = __builtin_popcountll(own);
    return count >= 1 ? count : 1;  // 0: a process that spans several groups of processors
}

uintptr_t this_thread() { return uintptr_t{GetCurrentThreadId()} << 12; }  // as far apart as stacks
void yield() { SwitchToThread(); }

void create(Mutex *mutex) { InitializeSRWLock(of(mutex)); }
void destroy(Mutex *) {}
void lock(Mutex *mutex) { AcquireSRWLockExclusive(of(mutex)); }
void unlock(Mutex *mutex) { ReleaseSRWLockExclusive(of(mutex)); }
void create(Condition *condition) { InitializeConditionVariable(of(condition)); }
void destroy(Condition *) {}
void wait(Condition *condition, Mutex *mutex) {
    SleepConditionVariableSRW(of(condition), of(mutex), INFINITE, 0);
}
void wake_one(Condition *condition) { WakeConditionVariable(of(condition)); }
void wake_all(Condition *condition) { WakeAllConditionVariable(of(condition)); }

bool start(Thread *thread, size_t stack_bytes) {
    const DWORD flags = STACK_SIZE_PARAM_IS_A_RESERVATION;
    const HANDLE made = CreateThread(nullptr, stack_bytes, run, thread, flags, nullptr);
    thread->handle = reinterpret_cast<uintptr_t>(made);
    return made != nullptr;
}

void join(Thread *thread) {
    const HANDLE handle = reinterpret_cast<HANDLE>(thread->handle);
    WaitForSingleObject(handle, INFINITE);
    CloseHandle(handle);
}

ArmExtensions arm_extensions() {
    constexpr DWORD dotprod = 43, i8mm = 67;  // PF_ARM_V82_DP_..., PF_ARM_V82_I8MM_...
    return {true, IsProcessorFeaturePresent(dotprod) != 0, IsProcessorFeaturePresent(i8mm) != 0};
}

bool allow_tiles() { return false; }

bool riscv_vectors() { return false; }

}  // namespace qk::os
