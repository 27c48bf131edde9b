// The floating-point mode of a thread: rounding, subnormals, traps, and the exceptions it has seen.
// Results are defined for one mode only, so everything that computes floats runs in it.
#pragma once
#include <stdint.h>

namespace qk {

#if defined(__x86_64__)

using FloatMode = uint32_t;                   // MXCSR
constexpr FloatMode kDefaultFloats = 0x1f80;  // nearest, subnormals kept, nothing trapped

static inline FloatMode float_mode() {
    FloatMode mode;
    asm volatile("stmxcsr %0" : "=m"(mode) : : "memory");
    return mode;
}

static inline void set_float_mode(FloatMode mode) {
    asm volatile("ldmxcsr %0" : : "m"(mode) : "memory");
}

#elif defined(__aarch64__)

struct FloatMode {
    uint64_t control, status;  // FPCR, FPSR
};
constexpr FloatMode kDefaultFloats = {0, 0};  // nearest, subnormals kept, nothing trapped

static inline FloatMode float_mode() {
    FloatMode mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode.control) : : "memory");
    asm volatile("mrs %0, fpsr" : "=r"(mode.status) : : "memory");
    return mode;
}

static inline void set_float_mode(FloatMode mode) {
    asm volatile("msr fpcr, %0" : : "r"(mode.control) : "memory");
    asm volatile("msr fpsr, %0" : : "r"(mode.status) : "memory");
}

#elif defined(__arm__) && defined(__ARM_FP)

using FloatMode = uint32_t;              // FPSCR
constexpr FloatMode kDefaultFloats = 0;  // nearest, subnormals kept, nothing trapped

static inline FloatMode float_mode() {
    FloatMode mode;
    asm volatile("vmrs %0, fpscr" : "=r"(mode) : : "memory");
    return mode;
}

static inline void set_float_mode(FloatMode mode) {
    asm volatile("vmsr fpscr, %0" : : "r"(mode) : "memory");
}

#else

struct FloatMode {};  // processors without vector kernels: the mode is the caller's
constexpr FloatMode kDefaultFloats = {};
static inline FloatMode float_mode() { return {}; }
static inline void set_float_mode(FloatMode) {}

#endif

// Sets a mode for its own lifetime, then restores the previous one, exception flags included.
class FloatScope {
  public:
    explicit FloatScope(FloatMode mode) : before_(float_mode()) { set_float_mode(mode); }
    ~FloatScope() { set_float_mode(before_); }
    FloatScope(const FloatScope &) = delete;
    FloatScope &operator=(const FloatScope &) = delete;

    FloatMode before() const { return before_; }

  private:
    const FloatMode before_;
};

}  // namespace qk
