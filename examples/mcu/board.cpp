#include "board.h"

#include <stddef.h>

extern "C" {
extern uint32_t flash_begin[], flash_end[], ram_begin[], ram_used[], stack_top[];

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
// SysTick counts down from 2^24 - 1.
volatile uint32_t *const kSysTick = reinterpret_cast<volatile uint32_t *>(0xe000e010);
#endif

constexpr uint32_t kPaint = 0x5a5a5a5au;

// The words below the caller's frame that no variable has: what a program leaves of them painted,
// its stack never reached.
__attribute__((always_inline)) inline void paint_stack() {
    uint32_t *const here = static_cast<uint32_t *>(__builtin_frame_address(0)) - 32;
    for (volatile uint32_t *word = ram_used; word < here; ++word) *word = kPaint;
}

[[noreturn]] void finish(bool ok) {
    semihost(0x18, reinterpret_cast<const void *>(ok ? 0x20026 : 0x20023));
    for (;;) {
    }
}

[[noreturn]] __attribute__((unused)) void fault() {
    board_print("fault\n");
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
    paint_stack();
    if (program() != 0) fault();
    finish(true);
}

}  // namespace

void board_print(const char *text) { semihost(0x04, text); }

void board_print_number(uint32_t value) {
    char text[12];
    int at = sizeof(text) - 1;
    text[at] = '\0';
    do {
        text[--at] = char('0' + value % 10);
        value /= 10;
    } while (value != 0);
    board_print(text + at);
}

uint32_t board_now() {
#if defined(__riscv)
    uint32_t instructions;
    // csrr %0, minstret, in the words of an assembler that is told of rv32imc alone.
    __asm__ volatile(".insn i 0x73, 2, %0, x0, -1278" : "=r"(instructions));
    return instructions;
#else
    return (0u - kSysTick[2]) & 0xffffffu;
#endif
}

uint32_t board_flash() { return uint32_t(flash_end - flash_begin) * 4; }

uint32_t board_ram() {
    const volatile uint32_t *deepest = ram_used;
    while (*deepest == kPaint) ++deepest;
    return uint32_t((ram_used - ram_begin) + (stack_top - deepest)) * 4;
}

#if defined(__riscv)
__asm__(".section .vectors\n.globl vectors\nvectors: la sp, stack_top\n\tj start");
extern "C" [[noreturn]] void start() { reset(); }
#else
extern "C" {
extern void *const vectors[];
}
__attribute__((section(".vectors"))) void *const vectors[] = {stack_top,
                                                              reinterpret_cast<void *>(reset),
                                                              reinterpret_cast<void *>(fault),
                                                              reinterpret_cast<void *>(fault),
                                                              reinterpret_cast<void *>(fault),
                                                              reinterpret_cast<void *>(fault),
                                                              reinterpret_cast<void *>(fault)};
#endif
