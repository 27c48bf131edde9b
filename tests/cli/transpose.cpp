// Blocks of any size, within wider rows on both sides: every element, and nothing beside them.
#include "../../cli/transpose.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace {

template <class Element>
void expect_transposed(int64_t rows, int64_t columns) {
    const int64_t from_width = columns + 3, to_width = rows + 5, margin = 7;
    std::vector<Element> from(static_cast<size_t>(rows * from_width));
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<Element>(i * 40503 + 1);
    std::vector<Element> to(static_cast<size_t>(columns * to_width + margin), Element{0});
    std::vector<Element> expected = to;
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t column = 0; column < columns; ++column) {
            expected[static_cast<size_t>(column * to_width + row)] =
                from[static_cast<size_t>(row * from_width + column)];
        }
    }
    const int64_t size = sizeof(Element);
    transpose({rows, columns, size}, reinterpret_cast<const char *>(from.data()), from_width * size,
              reinterpret_cast<char *>(to.data()), to_width * size);
    EXPECT_EQ(expected, to) << rows << " x " << columns;
}

TEST(Transpose, BlocksOfAnySize) {
    for (const int64_t rows : {0, 1, 31, 32, 33, 100}) {
        for (const int64_t columns : {0, 1, 2, 32, 65}) {
            expect_transposed<uint16_t>(rows, columns);
            expect_transposed<uint32_t>(rows, columns);
        }
    }
}

}  // namespace
