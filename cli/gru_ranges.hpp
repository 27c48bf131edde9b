// What calibration saw, as a JSON file: --ranges-out writes it, --ranges-in gives it to a GRU.
#pragma once
#include <string>

#include "gru.hpp"

// Ends and sums with 17 digits, so that what is read is what was written, to the bit.
std::string ranges_text(const Context &context, const Gru &gru, int64_t input_size,
                        int64_t hidden_size);
void merge_ranges(const Context &context, const Gru &gru, const std::string &path,
                  int64_t input_size, int64_t hidden_size);
