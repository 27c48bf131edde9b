// Weights turned around a block at a time: rows become columns.
#pragma once
#include <cstdint>

struct Block {
    int64_t rows, columns;
    int64_t element;  // bytes: 2 or 4
};
// to[column][row] = from[row][column]; rows of `from` are from_bytes apart, those of `to` to_bytes.
void transpose(const Block &block, const char *from, int64_t from_bytes, char *to,
               int64_t to_bytes);
