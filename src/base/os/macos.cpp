// macOS: affinity is no promise there, large pages are not the program's to choose.
#include <pthread.h>
#include <sys/sysctl.h>
#include <unistd.h>

#include "base/os.hpp"
#include "base/os/unix.hpp"

namespace qk::os {
namespace {

bool has(const char *feature) {
    int32_t value = 0;
    size_t bytes = sizeof(value);
    return sysctlbyname(feature, &value, &bytes, nullptr, 0) == 0 && value != 0;
}

}  // namespace

void name_thread(const char *name) { pthread_setname_np(name); }

void advise_large_pages(void *, size_t) {}

int32_t usable_cores() {
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online >= 1 && online <= 1024 ? int32_t(online) : 1;
}

ArmExtensions arm_extensions() {
    return {true, has("hw.optional.arm.FEAT_DotProd"), has("hw.optional.arm.FEAT_I8MM")};
}

bool allow_tiles() { return false; }

bool riscv_vectors() { return false; }

}  // namespace qk::os
