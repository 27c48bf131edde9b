// What qk quantize writes: formats, whose dialects hold them, and their options.
#pragma once
#include <string>
#include <vector>

#include "commands.hpp"

struct Scheme {
    const char *format, *dialect_name;  // as --format and --dialect spell them
    qk_dialect dialect;
    qk_format codes;
    qk_layout layout;
    int32_t group;  // as chosen
};

std::vector<std::string> quantize_formats();
std::vector<std::string> quantize_dialects();
// Throws where an option is not one of the format's or dialect's.
Scheme choose_scheme(const QuantizeOptions &options);

// The layer as it is quantized, and as it is stored: with zeros of 8 where the dialect has no word
// for symmetric weights.
struct Stored {
    qk_tensor_desc quantized, stored;
};
Stored describe_stored(const QuantizeOptions &options, const Scheme &scheme, const qk_layer &layer);
// Why the dialect has no place for the layer, or Python could not load it; "" when all is well.
std::string unfit(const Scheme &scheme, const qk_layer &layer);
