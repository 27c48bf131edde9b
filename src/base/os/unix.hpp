// What POSIX leaves to each system; linux.cpp and macos.cpp answer.
#pragma once
#include <stddef.h>

namespace qk::os {

void name_thread(const char *name);                    // the calling one
void advise_large_pages(void *pointer, size_t bytes);  // advice: where refused, pages stay small

}  // namespace qk::os
