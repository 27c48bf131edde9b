/* What a program needs of a board without an operating system: a start, a clock, and semihosting to
 * print. Cortex-M and RISC-V. */
#ifndef QK_MCU_BOARD_H
#define QK_MCU_BOARD_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

int program(void); /* the program's own: 0 is success */

void board_print(const char *text);
void board_print_number(uint32_t value);
uint32_t board_now(void); /* ticks; on RISC-V, instructions */

/* Bytes that the program takes: code and constants; variables and the stack's deepest so far. */
uint32_t board_flash(void);
uint32_t board_ram(void);

#ifdef __cplusplus
}
#endif
#endif
