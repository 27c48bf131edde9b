// The JSON text in .quant_state.bitsandbytes__nf4, beside planes of 5 x 33 codes in blocks of 32.
#include "walk.hpp"

namespace {

const float kNf4[16] = {-1.0f,
                        -0.6961928009986877f,
                        -0.5250730514526367f,
                        -0.39491748809814453f,
                        -0.28444138169288635f,
                        -0.18477343022823334f,
                        -0.09105003625154495f,
                        0.0f,
                        0.07958029955625534f,
                        0.16093020141124725f,
                        0.24611230194568634f,
                        0.33791524171829224f,
                        0.44070982933044434f,
                        0.5626170039176941f,
                        0.7229568362236023f,
                        1.0f};

std::string entry(const std::string &name, const char *dtype, size_t count, size_t width,
                  size_t *end) {
    std::string text = "\"x.weight";
    text.append(name).append("\":{\"dtype\":\"").append(dtype).append("\",\"shape\":[");
    text.append(std::to_string(count)).append("],\"data_offsets\":[");
    text.append(std::to_string(*end)).append(",");
    *end += count * width;
    return text.append(std::to_string(*end)).append("]}");
}

// 165 codes are 83 bytes and 6 blocks, which are one second block.
std::string file(const std::string &state, bool nested) {
    size_t end = 0;
    std::string header = "{" + entry("", "U8", 83, 1, &end);
    header += "," + entry(".absmax", nested ? "U8" : "F32", 6, nested ? 1 : 4, &end);
    if (nested) {
        header += "," + entry(".nested_absmax", "F32", 1, 4, &end);
        header += "," + entry(".nested_quant_map", "F32", 256, 4, &end);
    }
    const size_t zeros = end;
    header += "," + entry(".quant_map", "F32", 16, 4, &end);
    header += "," + entry(".quant_state.bitsandbytes__nf4", "U8", state.size(), 1, &end) + "}";
    std::string data(zeros, '\0');
    data.append(reinterpret_cast<const char *>(kNf4), sizeof kNf4).append(state);
    return fuzz::with_length(header, data);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const std::string state(reinterpret_cast<const char *>(data), size);
    fuzz::open_and_walk(file(state, false), nullptr);
    fuzz::open_and_walk(file(state, true), nullptr);
    return 0;
}
