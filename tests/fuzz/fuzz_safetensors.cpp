// Whole files. A first byte of 'h' says that a header and its data follow without the length,
// which is put in front here: random lengths would hide the header from the fuzzer.
#include "walk.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const std::string input(reinterpret_cast<const char *>(data), size);
    if (input.empty() || input[0] != 'h') {
        fuzz::open_and_walk(input, nullptr);
        return 0;
    }
    const size_t brace = input.rfind('}');
    const size_t end = brace == std::string::npos ? input.size() : brace + 1;
    fuzz::open_and_walk(fuzz::with_length(input.substr(1, end - 1), input.substr(end)), nullptr);
    return 0;
}
