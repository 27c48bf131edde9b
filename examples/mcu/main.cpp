// A program without a C library for Cortex-M and RISC-V: start, semihosting, and the GRU from
// flash.
#include "digest.hpp"

extern "C" {
extern const uint8_t model_begin[], model_end[];
extern uint32_t stack_top;

// The compiler may call these even in freestanding code.
void *memcpy(void *to, const void *from, size_t count) {
    for (size_t i = 0; i < count; ++i)
        static_cast<char *>(to)[i] = static_cast<const char *>(from)[i];
    return to;
}
void *memset(void *to, int value, size_t count) {
    for (size_t i = 0; i < count; ++i) static_cast<char *>(to)[i] = char(value);
    return to;
}
}

namespace {

#if defined(__riscv)
void semihost(uint32_t operation, const void *argument) {
    register uint32_t a0 __asm__("a0") = operation;
    register const void *a1 __asm__("a1") = argument;
    __asm__ volatile(
        ".option push\n.option norvc\n.balign 16\n"
        "slli x0, x0, 0x1f\nebreak\nsrai x0, x0, 7\n.option pop"
        : "+r"(a0)
        : "r"(a1)
        : "memory");
}
#else
void semihost(uint32_t operation, const void *argument) {
    register uint32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}
#endif

void print(const char *text) { semihost(0x04, text); }

void print_number(uint64_t value, uint32_t base) {
    char text[24];
    int at = 23;
    text[at] = '\0';
    do {
        text[--at] = "0123456789abcdef"[value % base];
        value /= base;
    } while (value != 0);
    print(text + at);
}

#if defined(__riscv)
uint32_t now() {
    uint32_t instructions;
    // csrr %0, minstret, in the words of an assembler that is told of rv32imc alone.
    __asm__ volatile(".insn i 0x73, 2, %0, x0, -1278" : "=r"(instructions));
    return instructions;
}
#else
// SysTick counts down from 2^24 - 1.
volatile uint32_t *const kSysTick = reinterpret_cast<volatile uint32_t *>(0xe000e010);
uint32_t now() { return (0u - kSysTick[2]) & 0xffffffu; }
#endif

constexpr uint32_t kPaint = 0xa5a5a5a5u;
constexpr int kPainted = 512;  // words below the caller of the step
int stack_words = 0;

// Called before and after a step, from the frame that calls the step: paints what lies below that
// frame, then looks how deep the paint is gone.
__attribute__((noinline)) uint32_t ticks() {
    static bool in_step = false;
    const uint32_t before = now();
    volatile uint32_t *const top = static_cast<uint32_t *>(__builtin_dwarf_cfa());
    in_step = !in_step;
    if (in_step) {
        for (int i = 16; i <= kPainted; ++i) top[-i] = kPaint;  // above: this function's own frame
        return now();
    }
    int deepest = kPainted;
    while (deepest > stack_words && top[-deepest] == kPaint) --deepest;
    stack_words = deepest;
    return before;
}

[[noreturn]] void finish(bool ok) {
    semihost(0x18, reinterpret_cast<const void *>(ok ? 0x20026 : 0x20023));
    for (;;) {
    }
}

[[noreturn]] void fault() {
    print("fault\n");
    finish(false);
}

[[noreturn]] __attribute__((used)) void reset() {
#if defined(__ARM_FEATURE_MVE)
    *reinterpret_cast<volatile uint32_t *>(0xe000ed88) |= 0xf00000;  // CPACR: the vector registers
    __asm__ volatile("dsb\nisb");
#endif
#if !defined(__riscv)
    kSysTick[1] = 0xffffff;
    kSysTick[2] = 0;
    kSysTick[0] = 5;
#endif
    uint64_t digest = 0;
    uint32_t elapsed = 0;
    const bool ok =
        mcu::run(model_begin, size_t(model_end - model_begin), ticks, &digest, &elapsed);
    if (!ok) fault();
    print("digest ");
    print_number(digest, 16);
    print("\nticks ");
    print_number(elapsed / mcu::kSteps, 10);
    print(" a step\nstack ");
    print_number(uint64_t(stack_words) * 4, 10);
    print(" bytes\n");
    finish(true);
}

}  // namespace

#if defined(__riscv)
__asm__(".section .vectors\n.globl vectors\nvectors: la sp, stack_top\n\tj start");
extern "C" [[noreturn]] void start() { reset(); }
#else
extern "C" {
extern void *const vectors[];
}
__attribute__((section(".vectors"))) void *const vectors[] = {&stack_top,
                                                              reinterpret_cast<void *>(reset),
                                                              reinterpret_cast<void *>(fault),
                                                              reinterpret_cast<void *>(fault),
                                                              reinterpret_cast<void *>(fault),
                                                              reinterpret_cast<void *>(fault),
                                                              reinterpret_cast<void *>(fault)};
#endif
