// Where codes, scales and zeros are stored: every list is built in storage order, word by word.
#include "reference.hpp"

namespace reference {
namespace {

int64_t up(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

using Owners = std::vector<int64_t>;

// A grid of numbered things, [rows, columns]; outside of it there is padding.
struct Grid {
    int64_t rows, columns;
    int64_t at(int64_t row, int64_t column) const {
        return row < rows && column < columns ? row * columns + column : kPadding;
    }
};

void low_nibble_first(Owners &list, int64_t first, int64_t second) {
    list.push_back(first);
    list.push_back(second);
}
void high_nibble_first(Owners &list, int64_t first, int64_t second) {
    list.push_back(second);
    list.push_back(first);
}

using PushByte = void (*)(Owners &, int64_t, int64_t);

Owners run_of_nibbles(int64_t count, PushByte push) {
    Owners list;
    for (int64_t i = 0; i < count; i += 2) push(list, i, i + 1 < count ? i + 1 : kPadding);
    return list;
}

Owners rows_of_bytes(Grid grid) {
    Owners list;
    for (int64_t row = 0; row < grid.rows; ++row) {
        for (int64_t byte = 0; byte < up(grid.columns, 2); ++byte) {
            low_nibble_first(list, grid.at(row, 2 * byte), grid.at(row, 2 * byte + 1));
        }
    }
    return list;
}

// One 32-bit word for each row and each 8 columns; nibble i is column i of the 8.
Owners words_along_columns(Grid grid, int64_t words_per_row) {
    Owners list;
    for (int64_t row = 0; row < grid.rows; ++row) {
        for (int64_t word = 0; word < words_per_row; ++word) {
            for (int64_t nibble = 0; nibble < 8; ++nibble) {
                list.push_back(grid.at(row, 8 * word + nibble));
            }
        }
    }
    return list;
}

// Words [columns, rows / 8]: each column of the grid is a line of words that run down the rows.
Owners lines_down_rows(Grid grid, const int64_t (&order)[8]) {
    Owners list;
    for (int64_t column = 0; column < grid.columns; ++column) {
        for (int64_t word = 0; word < up(grid.rows, 8); ++word) {
            for (const int64_t row_of_eight : order) {
                list.push_back(grid.at(8 * word + row_of_eight, column));
            }
        }
    }
    return list;
}

// Words [lines, across]: each line takes 8 of one side, and has a word for each of the other.
Owners words_of_eight_columns(Grid grid) {
    Owners list;
    for (int64_t eight = 0; eight < up(grid.columns, 8); ++eight) {
        for (int64_t row = 0; row < grid.rows; ++row) {
            for (int64_t i = 0; i < 8; ++i) list.push_back(grid.at(row, 8 * eight + i));
        }
    }
    return list;
}

Owners words_of_eight_rows(Grid grid) {
    Owners list;
    for (int64_t eight = 0; eight < up(grid.rows, 8); ++eight) {
        for (int64_t column = 0; column < grid.columns; ++column) {
            for (int64_t i = 0; i < 8; ++i) list.push_back(grid.at(8 * eight + i, column));
        }
    }
    return list;
}

constexpr int64_t kNatural[8] = {0, 1, 2, 3, 4, 5, 6, 7};
constexpr int64_t kAwq[8] = {0, 2, 4, 6, 1, 3, 5, 7};

// AutoAWQ rounds the words of zeros in a row up to a number that depends on the group size.
int64_t gemv_zero_words(const Groups &groups) {
    const int64_t words = up(groups.per_row, 8);
    const int64_t multiple = groups.size >= 128  ? 1
                             : groups.size >= 64 ? 2
                             : groups.size >= 32 ? 4
                                                 : 8;
    return up(words, multiple) * multiple;
}

Owners in_order(int64_t count) {
    Owners list;
    for (int64_t i = 0; i < count; ++i) list.push_back(i);
    return list;
}

}  // namespace

bool eight_bit(Format format) {
    return format == Format::lut8 || format == Format::s8 || format == Format::e4m3;
}

Groups groups_of(const Spec &spec) {
    Groups groups;
    groups.flat = spec.flat && spec.group_size > 0 && spec.k % spec.group_size != 0;
    groups.size = spec.group_size;
    if (spec.group_size < 0) groups.size = spec.k;
    groups.per_row = groups.flat ? 0 : up(spec.k, groups.size);
    groups.count = groups.flat ? up(spec.n * spec.k, groups.size) : spec.n * groups.per_row;
    int64_t group = -1;
    for (int64_t row = 0, flat_index = 0; row < spec.n; ++row) {
        for (int64_t column = 0; column < spec.k; ++column, ++flat_index) {
            if ((groups.flat ? flat_index : column) % groups.size == 0) ++group;
            groups.of_code.push_back(group);
        }
    }
    return groups;
}

Groups dense_groups(int64_t n, int64_t k) {
    return {false, k, 1, 1, std::vector<int64_t>(size_t(n * k), 0)};
}

std::vector<int64_t> code_owners(const Spec &spec) {
    const Grid grid = {spec.n, spec.k};
    if (eight_bit(spec.format)) return in_order(spec.n * spec.k);
    switch (spec.layout) {
        case Layout::row: return rows_of_bytes(grid);
        case Layout::row_high: return run_of_nibbles(spec.n * spec.k, high_nibble_first);
        case Layout::awq_gemm: return lines_down_rows(grid, kAwq);
        case Layout::awq_gemv: return words_along_columns(grid, up(spec.k, 8));
        case Layout::gptq:
        case Layout::gptq_v1: return words_of_eight_columns(grid);
        case Layout::word: return words_along_columns(grid, up(spec.k, 8));
        default: return {};  // records: records.cpp
    }
}

std::vector<int64_t> scale_owners(const Spec &spec, const Groups &groups) {
    if (groups.flat) return in_order(groups.count);
    const Grid grid = {spec.n, groups.per_row};
    Owners list;
    switch (spec.layout) {
        case Layout::awq_gemm:
        case Layout::gptq:
        case Layout::gptq_v1:
            for (int64_t group = 0; group < grid.columns; ++group) {
                for (int64_t row = 0; row < grid.rows; ++row) list.push_back(grid.at(row, group));
            }
            return list;
        case Layout::awq_gemv:
            for (int64_t row = 0; row < grid.rows; ++row) {
                for (int64_t column = 0; column < 8 * gemv_zero_words(groups); ++column) {
                    list.push_back(grid.at(row, column));
                }
            }
            return list;
        default: return in_order(groups.count);
    }
}

std::vector<int64_t> zero_owners(const Spec &spec, const Groups &groups) {
    if (!spec.zeros) return {};
    const Grid grid = {spec.n, groups.per_row};
    if (spec.layout == Layout::row_high) return run_of_nibbles(groups.count, high_nibble_first);
    if (groups.flat) return run_of_nibbles(groups.count, low_nibble_first);
    switch (spec.layout) {
        case Layout::awq_gemm: return lines_down_rows(grid, kAwq);
        case Layout::gptq:
        case Layout::gptq_v1: return lines_down_rows(grid, kNatural);
        case Layout::awq_gemv: return words_along_columns(grid, gemv_zero_words(groups));
        case Layout::word: return words_of_eight_rows(grid);
        default: return rows_of_bytes(grid);
    }
}

}  // namespace reference
