// What the library asks of the operating system: memory, threads, locks and the clock. CMake
// chooses the files in os/ that answer; no other source of the library knows which system it
// is.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace qk::os {

// Large sizes are on large pages where the system has them. Null: there is no memory.
void *allocate(size_t bytes, size_t align);
void release(void *pointer);

int64_t process();       // a forked child has another
int64_t nanoseconds();   // of a clock that never goes back
int32_t usable_cores();  // what this process may run on, at least 1
uintptr_t this_thread();
void yield();  // to threads that wait for a core

// The system's own object is inside; it is neither copied nor moved.
struct alignas(16) Mutex {
    unsigned char object[64];
};
struct alignas(16) Condition {
    unsigned char object[64];
};
void create(Mutex *mutex);
void destroy(Mutex *mutex);
void lock(Mutex *mutex);
void unlock(Mutex *mutex);
void create(Condition *condition);
void destroy(Condition *condition);
void wait(Condition *condition, Mutex *mutex);
void wake_one(Condition *condition);
void wake_all(Condition *condition);

// Runs main(argument) until that returns. Stays where it is until it is joined.
struct Thread {
    void (*main)(void *argument);
    void *argument;
    uintptr_t handle;
};
// It gets no signal of the program, only those that its own faults raise. False: none was made.
bool start(Thread *thread, size_t stack_bytes);
void join(Thread *thread);

// What an Arm processor has beyond its architecture's least; on others nothing.
struct ArmExtensions {
    bool neon, dotprod, i8mm;
};
ArmExtensions arm_extensions();

// Asks for the use of AMX's tiles in this process, where the system wants to be asked.
bool allow_tiles();

// Whether a RISC-V processor has vectors and the system lets this process use them.
bool riscv_vectors();

}  // namespace qk::os
