#include "remake.hpp"

#include "order.hpp"

namespace qk_io {
namespace {

int64_t groups_of_row(const Layer &layer) {
    const int64_t k = layer.desc.shape[1], group = layer.desc.group_size;
    return group == QK_GROUP_ROW ? 1 : k / group + (k % group != 0);
}

size_t width_of(const Tensor *tensor) {
    const DtypeRow *row = dtype_by_code(tensor->dtype);
    return row == nullptr ? 1 : static_cast<size_t>(row->bits / 8);
}

// The column of the file that is stored as column `stored`.
int64_t file_column(const int32_t *order, int64_t stored) {
    return order == nullptr ? stored : order[stored];
}

// The same numbers: q - 128 of q in 0..255 is q with its highest bit flipped, as a signed byte.
uint8_t without_offset(uint8_t code) { return static_cast<uint8_t>(code ^ 0x80); }

float f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float f32_from_f16(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 31u, fraction = half & 0x3ffu;
    if (exponent == 0) {  // a multiple of 2^-24
        const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
        return sign != 0 ? -magnitude : magnitude;
    }
    const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
    return f32_from_bits(sign | wide << 23 | fraction << 13);
}

// Element g of row r of the plane is value(r, g).
template <typename Value>
void fill_f32(const Layer &layer, uint8_t *plane, const Value &value) {
    const int64_t groups = groups_of_row(layer);
    for (int64_t row = 0; row < layer.desc.shape[0]; ++row) {
        for (int64_t group = 0; group < groups; ++group) {
            const float element = value(row, group);
            memcpy(plane + (row * groups + group) * 4, &element, sizeof element);
        }
    }
}

}  // namespace

float number_at(const Tensor *tensor, int64_t index) {
    uint32_t wide;
    uint16_t half;
    if (tensor->dtype == QK_DTYPE_F32) {
        memcpy(&wide, tensor->data + index * 4, sizeof wide);
        return f32_from_bits(wide);
    }
    memcpy(&half, tensor->data + index * 2, sizeof half);
    return tensor->dtype == QK_DTYPE_F16 ? f32_from_f16(half)
                                         : f32_from_bits(static_cast<uint32_t>(half) << 16);
}

void make_offset_rows(const Layer &layer, const Recipe &recipe, uint8_t *plane) {
    const int64_t n = layer.desc.shape[0], k = layer.desc.shape[1];
    const int64_t stored = (k + 3) / 4 * 4;
    const int32_t *order = order_of(layer);
    for (int64_t row = 0; row < n; ++row) {
        const uint8_t *from = recipe.from->data + row * stored;
        uint8_t *to = plane + row * k;
        for (int64_t column = 0; column < k; ++column) {
            to[column] = without_offset(from[file_column(order, column)]);
        }
    }
}

void make_offset_words(const Layer &layer, const Recipe &recipe, uint8_t *plane) {
    constexpr int64_t kRows = 64;  // of the plane, so that their lines stay in the cache
    const int32_t *order = order_of(layer);
    const int64_t n = layer.desc.shape[0], k = layer.desc.shape[1];
    for (int64_t first = 0; first < n; first += kRows) {
        const int64_t end = first + kRows < n ? first + kRows : n;
        for (int64_t line = 0; line < k / 4; ++line) {
            int64_t from[4];  // of the column's first row
            for (int i = 0; i < 4; ++i) {
                const int64_t column = file_column(order, line * 4 + i);
                from[i] = column / 4 * n * 4 + column % 4;
            }
            for (int64_t row = first; row < end; ++row) {
                uint8_t *to = plane + row * k + line * 4;
                for (int i = 0; i < 4; ++i) {
                    to[i] = without_offset(recipe.from->data[from[i] + row * 4]);
                }
            }
        }
    }
}

void make_ordered_words(const Layer &layer, const Recipe &recipe, uint8_t *plane) {
    const int64_t n = layer.desc.shape[0], k = layer.desc.shape[1];
    memset(plane, 0, static_cast<size_t>(recipe.from->bytes));
    for (int64_t stored = 0; stored < k; ++stored) {
        const int64_t column = order_of(layer)[stored];
        const uint8_t *from = recipe.from->data + column / 8 * n * 4 + column % 8 / 2;
        uint8_t *to = plane + stored / 8 * n * 4 + stored % 8 / 2;
        const int down = column % 2 * 4, up = stored % 2 * 4;
        for (int64_t row = 0; row < n; ++row) {
            to[row * 4] = static_cast<uint8_t>(to[row * 4] | (from[row * 4] >> down & 15) << up);
        }
    }
}

void make_ordered_rows(const Layer &layer, const Recipe &recipe, uint8_t *plane) {
    const int64_t n = layer.desc.shape[0], k = layer.desc.shape[1];
    const int64_t line = (k + 7) / 8 * 4;
    const int32_t *order = order_of(layer);
    memset(plane, 0, static_cast<size_t>(recipe.from->bytes));
    for (int64_t row = 0; row < n; ++row) {
        const uint8_t *from = recipe.from->data + row * line;
        uint8_t *to = plane + row * line;
        for (int64_t stored = 0; stored < k; ++stored) {
            const int32_t column = order[stored];
            const int code = from[column / 2] >> column % 2 * 4 & 15;
            to[stored / 2] = static_cast<uint8_t>(to[stored / 2] | code << stored % 2 * 4);
        }
    }
}

void make_repeated(const Layer &layer, const Recipe &recipe, uint8_t *plane) {
    const size_t line = static_cast<size_t>(groups_of_row(layer)) * width_of(recipe.from);
    for (int64_t row = 0; row < layer.desc.shape[0]; ++row) {
        const size_t at = static_cast<size_t>(row / recipe.rows) * line;
        memcpy(plane + static_cast<size_t>(row) * line, recipe.from->data + at, line);
    }
}

void make_transposed(const Layer &layer, const Recipe &recipe, uint8_t *plane) {
    const size_t size = width_of(recipe.from);
    const size_t n = static_cast<size_t>(layer.desc.shape[0]);
    const size_t groups = static_cast<size_t>(groups_of_row(layer));
    for (size_t row = 0; row < n; ++row) {
        for (size_t group = 0; group < groups; ++group) {
            memcpy(plane + (row * groups + group) * size,
                   recipe.from->data + (group * n + row) * size, size);
        }
    }
}

void make_wide_repeated(const Layer &layer, const Recipe &recipe, uint8_t *plane) {
    const int64_t groups = groups_of_row(layer);
    fill_f32(layer, plane, [&](int64_t row, int64_t group) {
        return number_at(recipe.from, row / recipe.rows * groups + group);
    });
}

void make_wide_transposed(const Layer &layer, const Recipe &recipe, uint8_t *plane) {
    const int64_t n = layer.desc.shape[0];
    fill_f32(layer, plane,
             [&](int64_t row, int64_t group) { return number_at(recipe.from, group * n + row); });
}

void make_minima(const Layer &layer, const Recipe &recipe, uint8_t *plane) {
    const int64_t groups = groups_of_row(layer);
    fill_f32(layer, plane, [&](int64_t row, int64_t group) {
        const int64_t at = row / recipe.rows * groups + group;
        return static_cast<float>(static_cast<int8_t>(recipe.from->data[at])) *
               number_at(recipe.scales, at);
    });
}

void make_minima_of_rows(const Layer &layer, const Recipe &recipe, uint8_t *plane) {
    const int64_t groups = groups_of_row(layer);
    fill_f32(layer, plane, [&](int64_t row, int64_t group) {
        const int zero = recipe.from->data[(row / 4 * groups + group) * 4 + row % 4];
        return static_cast<float>(zero - 128) * number_at(recipe.scales, row * groups + group);
    });
}

void make_minima_of_words(const Layer &layer, const Recipe &recipe, uint8_t *plane) {
    const int64_t n = layer.desc.shape[0];
    const int missing = layer.dialect == QK_DIALECT_GPTQ_V1 ? 1 : 0;  // zeros minus one
    fill_f32(layer, plane, [&](int64_t row, int64_t group) {
        const int zero = (recipe.from->data[group * n + row] + missing) & 255;
        return static_cast<float>(zero - 128) * number_at(recipe.scales, group * n + row);
    });
}

void make_127th(const Layer &, const Recipe &recipe, uint8_t *plane) {
    for (int64_t i = 0; i < recipe.from->bytes / 4; ++i) {
        const float scale = number_at(recipe.from, i) * (1.0f / 127.0f);
        memcpy(plane + i * 4, &scale, sizeof scale);
    }
}

void make_wider(const Layer &, const Recipe &recipe, uint8_t *plane) {
    for (int64_t i = 0; i < recipe.from->bytes / 2; ++i) {
        const float wide = number_at(recipe.from, i);
        memcpy(plane + i * 4, &wide, sizeof wide);
    }
}

}  // namespace qk_io
