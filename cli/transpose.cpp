#include "transpose.hpp"

#include <algorithm>
#include <cstring>

namespace {

constexpr int64_t kTile = 32;  // lines of both sides stay in the first cache

template <int64_t kBytes>
void transpose_tile(const Block &tile, const char *from, int64_t from_bytes, char *to,
                    int64_t to_bytes) {
    for (int64_t column = 0; column < tile.columns; ++column) {
        for (int64_t row = 0; row < tile.rows; ++row) {
            std::memcpy(to + column * to_bytes + row * kBytes,
                        from + row * from_bytes + column * kBytes, kBytes);
        }
    }
}

}  // namespace

void transpose(const Block &block, const char *from, int64_t from_bytes, char *to,
               int64_t to_bytes) {
    const auto tile_of = block.element == 2 ? transpose_tile<2> : transpose_tile<4>;
    for (int64_t row = 0; row < block.rows; row += kTile) {
        for (int64_t column = 0; column < block.columns; column += kTile) {
            const Block tile = {std::min(kTile, block.rows - row),
                                std::min(kTile, block.columns - column), block.element};
            tile_of(tile, from + row * from_bytes + column * block.element, from_bytes,
                    to + column * to_bytes + row * block.element, to_bytes);
        }
    }
}
