// The same programs on a computer.
#include <stdio.h>

#include "board.h"

void board_print(const char *text) { fputs(text, stdout); }
void board_print_number(uint32_t value) { printf("%u", unsigned(value)); }
uint32_t board_now() { return 0; }
uint32_t board_flash() { return 0; }
uint32_t board_ram() { return 0; }

int main() { return program(); }
