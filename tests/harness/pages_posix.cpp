#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "harness/pages.hpp"

namespace harness {

std::size_t page_size() {
    static const std::size_t size = std::size_t(sysconf(_SC_PAGESIZE));
    return size;
}

std::uint8_t *take_pages(std::size_t all, std::size_t first, std::size_t open) {
    void *const memory = mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    auto *const pages = static_cast<std::uint8_t *>(memory);
    if (open != 0 && mprotect(pages + first, open, PROT_READ | PROT_WRITE) != 0) std::abort();
    return pages;
}

void give_pages(std::uint8_t *pages, std::size_t all) { munmap(pages, all); }

}  // namespace harness
