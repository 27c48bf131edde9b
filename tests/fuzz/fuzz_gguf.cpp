// GGUF files. A first byte of 'h' says that a header follows without magic and version, and without
// the zeros that align its data, which are put in here: '|' ends the header, the rest is data.
#include "walk.hpp"

namespace {

std::string with_magic(const std::string &input) {
    const size_t bar = input.find('|');
    std::string bytes("GGUF\3\0\0\0", 8);
    bytes += input.substr(1, bar == std::string::npos ? bar : bar - 1);
    while (bytes.size() % 32 != 0) bytes += '\0';
    if (bar != std::string::npos) bytes += input.substr(bar + 1);
    return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const std::string input(reinterpret_cast<const char *>(data), size);
    fuzz::open_and_walk(input.empty() || input[0] != 'h' ? input : with_magic(input), nullptr);
    return 0;
}
