// The GRU from flash on made-up inputs: prints the digest of its states, the time of a step and its
// stack.
#include "board.h"
#include "digest.hpp"

extern "C" const uint8_t model_begin[], model_end[];

namespace {

constexpr uint32_t kPaint = 0xa5a5a5a5u;
constexpr int kPainted = 512;  // words below the caller of the step
int stack_words = 0;

// Called before and after a step, from the frame that calls the step: paints what lies below that
// frame, then looks how deep the paint is gone.
__attribute__((noinline)) uint32_t ticks() {
    static bool in_step = false;
    const uint32_t before = board_now();
    volatile uint32_t *const top = static_cast<uint32_t *>(__builtin_dwarf_cfa());
    in_step = !in_step;
    if (in_step) {
        for (int i = 16; i <= kPainted; ++i) top[-i] = kPaint;  // above: this function's own frame
        return board_now();
    }
    int deepest = kPainted;
    while (deepest > stack_words && top[-deepest] == kPaint) --deepest;
    stack_words = deepest;
    return before;
}

void print_hex(uint64_t value) {
    char text[17] = {};
    int at = 16;
    do {
        text[--at] = "0123456789abcdef"[value & 15];
        value >>= 4;
    } while (value != 0);
    board_print(text + at);
}

}  // namespace

int program() {
    uint64_t digest = 0;
    uint32_t elapsed = 0;
    if (!mcu::run(model_begin, size_t(model_end - model_begin), ticks, &digest, &elapsed)) return 1;
    board_print("digest ");
    print_hex(digest);
    board_print("\nticks ");
    board_print_number(elapsed / mcu::kSteps);
    board_print(" a step\nstack ");
    board_print_number(uint32_t(stack_words) * 4);
    board_print(" bytes\n");
    return 0;
}
