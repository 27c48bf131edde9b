#include <windows.h>

#include <cstdlib>

#include "harness/pages.hpp"

namespace harness {

std::size_t page_size() {
    SYSTEM_INFO system;
    GetSystemInfo(&system);
    return system.dwPageSize;
}

std::uint8_t *take_pages(std::size_t all, std::size_t first, std::size_t open) {
    void *const memory = VirtualAlloc(nullptr, all, MEM_RESERVE, PAGE_NOACCESS);
    if (memory == nullptr) std::abort();
    auto *const pages = static_cast<std::uint8_t *>(memory);
    if (open != 0 && VirtualAlloc(pages + first, open, MEM_COMMIT, PAGE_READWRITE) == nullptr) {
        std::abort();
    }
    return pages;
}

void give_pages(std::uint8_t *pages, std::size_t) { VirtualFree(pages, 0, MEM_RELEASE); }

}  // namespace harness
