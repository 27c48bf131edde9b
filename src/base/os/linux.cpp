// Linux, by glibc, musl or Android's bionic.
#include <pthread.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/os.hpp"
#include "base/os/unix.hpp"

namespace qk::os {

void name_thread(const char *name) { pthread_setname_np(pthread_self(), name); }

void advise_large_pages(void *pointer, size_t bytes) { madvise(pointer, bytes, MADV_HUGEPAGE); }

int32_t usable_cores() {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        const int32_t count = CPU_COUNT(&set);
        if (count >= 1) return count;
    }
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online >= 1 && online <= 1024 ? int32_t(online) : 1;
}

// Bit numbers: the kernel's arch/arm64 and arch/arm hwcap.h. Other processors' bits mean other
// things, and nobody asks for them.
ArmExtensions arm_extensions() {
    const unsigned long words[] = {getauxval(AT_HWCAP), getauxval(AT_HWCAP2)};
    if constexpr (sizeof(void *) == 8) {
        return {true, (words[0] >> 20 & 1) != 0, (words[1] >> 13 & 1) != 0};
    } else {
        constexpr unsigned long neon = 1ul << 12, vfp4 = 1ul << 16;  // products are fused
        return {(words[0] & (neon | vfp4)) == (neon | vfp4), false, false};
    }
}

// The kernel's Documentation/arch/x86/xstate.rst; ARCH_REQ_XCOMP_PERM of asm/prctl.h, feature 18.
bool allow_tiles() {
#if defined(SYS_arch_prctl)
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
#else
    return false;
#endif
}

// Letters of the alphabet (arch/riscv hwcap.h). A process may be told to do without vectors: the
// kernel still names them then, and their instructions trap.
bool riscv_vectors() {
    constexpr int get_control = 70, is_off = 1;  // PR_RISCV_V_..., of Linux 6.5
    const bool named = (getauxval(AT_HWCAP) >> ('V' - 'A') & 1) != 0;
    const int control = named ? prctl(get_control, 0, 0, 0, 0) : -1;  // -1: there is no such call
    return named && (control < 0 || (control & 3) != is_off);
}

}  // namespace qk::os
