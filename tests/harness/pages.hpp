// Pages of memory by what the system has: some to use, between others that fault.
#pragma once
#include <cstddef>
#include <cstdint>

namespace harness {

std::size_t page_size();
// `all` bytes that fault, `open` of them from `first` on to read and write; whole pages each. Ends
// the program where there is no such memory.
std::uint8_t *take_pages(std::size_t all, std::size_t first, std::size_t open);
void give_pages(std::uint8_t *pages, std::size_t all);

}  // namespace harness
