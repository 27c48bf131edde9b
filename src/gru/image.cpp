#include "gru/image.hpp"

namespace qk::gru {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "images are read in place");

// Magic, version, length, checksum; then the words of the header; then the arrays.
constexpr uint8_t kMagic[8] = {'Q', 'K', 'G', 'R', 'U', 0x1a, '\r', '\n'};
constexpr uint32_t kVersion = 1;
constexpr int64_t kLengthAt = 16;
constexpr int64_t kChecksumAt = 24;
constexpr int64_t kBodyAt = 32;  // the checksum covers everything from here
constexpr int32_t kSizeWords = 6;
constexpr int32_t kQuantWords = 4;
constexpr int32_t kTableWords = 6;
constexpr int64_t kHeaderWords =
    kSizeWords + QK_GRU_TENSOR_COUNT * (kQuantWords + 2) + 3 * kTableWords;
constexpr int64_t kArraysAt = kBodyAt + (kHeaderWords * 4 + 7) / 8 * 8;

uint32_t crc32(const uint8_t *bytes, int64_t count) {  // IEEE 802.3, reflected
    uint32_t crc = 0xffffffffu;
    for (int64_t i = 0; i < count; ++i) {
        crc ^= bytes[i];
        for (int32_t bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1u)));
    }
    return ~crc;
}

uint64_t load(const uint8_t *from, int32_t bytes) {
    uint64_t value = 0;
    for (int32_t i = bytes; i-- > 0;) value = value << 8 | from[i];
    return value;
}

void store(uint8_t *to, uint64_t value, int32_t bytes) {
    for (int32_t i = 0; i < bytes; ++i) to[i] = uint8_t(value >> 8 * i);
}

template <class Model>
auto *table_of(Model &model, int32_t gate) {
    return gate == 0 ? &model.update : gate == 1 ? &model.reset : &model.candidate;
}

// The header's words in file order; one list serves both directions.
template <class Model, class Word>
void each_word(Model &model, Word word) {
    word(model.flags);
    word(model.input_size);
    word(model.hidden_size);
    word(model.h_view_shift);
    word(model.reserved);
    uint32_t spare = 0;
    word(spare);
    for (int32_t which = 0; which < QK_GRU_TENSOR_COUNT; ++which) {
        word(model.quant[which].bits);
        word(model.quant[which].is_unsigned);
        word(model.quant[which].is_symmetric);
        word(model.quant[which].granularity);
        word(model.shift[which]);
        word(model.zero_point[which]);
    }
    for (int32_t gate = 0; gate < 3; ++gate) {
        auto *table = table_of(model, gate);
        word(table->kind);
        word(table->count);
        word(table->shift);
        word(table->width_log2);
        word(table->first);
        word(table->reserved);
    }
}

// The arrays in file order, each padded to 8 bytes: array(pointer, element_bytes, count).
template <class Model, class Array>
void each_array(Model &model, const int64_t *&ih_offset, const int64_t *&hh_offset, Array array) {
    int64_t rows = int64_t{3} * model.hidden_size;
    array(ih_offset, 8, rows);
    array(hh_offset, 8, rows);
    array(model.bw, 4, rows);
    array(model.br, 4, rows);
    for (int32_t gate = 0; gate < 3; ++gate) {
        auto *table = table_of(model, gate);
        if (table->kind == QK_GRU_TABLE_KNOTS) array(table->threshold, 4, table->count);
        array(table->slope, 4, table->count);
        array(table->intercept, 4, table->count);
    }
    array(model.w_shift, 1, rows);
    array(model.r_shift, 1, rows);
    array(model.bw_shift, 1, rows);
    array(model.br_shift, 1, rows);
    array(model.w, code_bytes(model.quant[QK_GRU_W].bits), rows * model.input_size);
    array(model.r, code_bytes(model.quant[QK_GRU_R].bits), rows * model.hidden_size);
}

int64_t padded(int64_t bytes) { return (bytes + 7) / 8 * 8; }

void write_body(const qk_gru_model &model, const int64_t *ih_offset, const int64_t *hh_offset,
                uint8_t *bytes) {
    uint8_t *to = bytes + kBodyAt;
    each_word(model, [&](auto word) {
        store(to, uint64_t(uint32_t(word)), 4);
        to += 4;
    });
    to = bytes + kArraysAt;
    each_array(model, ih_offset, hh_offset, [&](auto *from, int64_t element, int64_t count) {
        const uint8_t *source = reinterpret_cast<const uint8_t *>(from);
        // The offsets are already where they belong.
        if (source != to)
            for (int64_t i = 0; i < element * count; ++i) to[i] = source[i];
        to += padded(element * count);
    });
}

}  // namespace

int64_t image_bytes(const qk_gru_model &model) {
    int64_t total = kArraysAt;
    const int64_t *none = nullptr;
    each_array(model, none, none,
               [&](auto *, int64_t element, int64_t count) { total += padded(element * count); });
    return total;
}

Fault image_write(const qk_gru_model &model, void *image) {
    Fault fault = check_model(model);
    if (fault != Fault::kNone) return fault;
    uint8_t *bytes = static_cast<uint8_t *>(image);
    int64_t total = image_bytes(model);
    for (int64_t i = 0; i < total; ++i) bytes[i] = 0;
    for (int32_t i = 0; i < 8; ++i) bytes[i] = kMagic[i];
    store(bytes + 8, kVersion, 4);
    store(bytes + kLengthAt, uint64_t(total), 8);

    int64_t *ih_offset = reinterpret_cast<int64_t *>(bytes + kArraysAt);
    int64_t *hh_offset = ih_offset + int64_t{3} * model.hidden_size;
    fault = compute_offsets(model, ih_offset, hh_offset);
    if (fault != Fault::kNone) return fault;
    Cell cell;
    fault = derive(model, ih_offset, hh_offset, &cell);
    if (fault != Fault::kNone) return fault;
    write_body(model, ih_offset, hh_offset, bytes);
    store(bytes + kChecksumAt, crc32(bytes + kBodyAt, total - kBodyAt), 4);
    return Fault::kNone;
}

namespace {

template <class Integer>
void set_word(Integer &word, uint32_t value) {
    word = Integer(value);
}

template <class Pointer>
void point_at(Pointer &pointer, const uint8_t *at) {
    pointer = reinterpret_cast<Pointer>(at);
}

Fault check_frame(const uint8_t *bytes, size_t count, qk_gru_model *model) {
    if (count < size_t(kArraysAt)) return Fault::kLength;
    for (int32_t i = 0; i < 8; ++i)
        if (bytes[i] != kMagic[i]) return Fault::kHeader;
    if (load(bytes + 8, 4) != kVersion || load(bytes + 12, 4) != 0) return Fault::kHeader;
    if (load(bytes + kLengthAt, 8) != count) return Fault::kLength;
    if (load(bytes + kChecksumAt, 8) != crc32(bytes + kBodyAt, int64_t(count) - kBodyAt))
        return Fault::kChecksum;
    const uint8_t *from = bytes + kBodyAt;
    bool spare_is_zero = true;
    int32_t index = 0;
    each_word(*model, [&](auto &word) {
        uint32_t value = uint32_t(load(from, 4));
        set_word(word, value);
        if (++index == kSizeWords && value != 0) spare_is_zero = false;
        from += 4;
    });
    model->struct_size = sizeof(qk_gru_model);
    return spare_is_zero ? Fault::kNone : Fault::kFlags;
}

// Recomputed row by row rather than trusted: the proof against overflow rests on them.
Fault check_offsets(const qk_gru_model &model, const int64_t *ih_offset, const int64_t *hh_offset) {
    int64_t rows = int64_t{3} * model.hidden_size;
    for (int64_t row = 0; row < rows; ++row) {
        int64_t ih = 0, hh = 0;
        Fault fault = compute_row_offsets(model, row, &ih, &hh);
        if (fault != Fault::kNone) return fault;
        if (ih != ih_offset[row] || hh != hh_offset[row]) return Fault::kOffset;
    }
    return Fault::kNone;
}

}  // namespace

Fault image_read(const void *image, size_t count, qk_gru_model *model, Cell *cell) {
    const uint8_t *bytes = static_cast<const uint8_t *>(image);
    if (bytes == nullptr || reinterpret_cast<uintptr_t>(bytes) % kImageAlignment != 0)
        return Fault::kPointer;
    *model = qk_gru_model{};
    Fault fault = check_frame(bytes, count, model);
    if (fault == Fault::kNone) fault = check_header(*model);
    if (fault != Fault::kNone) return fault;
    // Sizes are bounded by check_header, so this sum cannot overflow.
    if (image_bytes(*model) != int64_t(count)) return Fault::kLength;

    const int64_t *ih_offset = nullptr, *hh_offset = nullptr;
    const uint8_t *at = bytes + kArraysAt;
    each_array(*model, ih_offset, hh_offset, [&](auto &pointer, int64_t element, int64_t n) {
        point_at(pointer, at);
        at += padded(element * n);
    });
    fault = check_model(*model);
    if (fault == Fault::kNone) fault = check_offsets(*model, ih_offset, hh_offset);
    if (fault == Fault::kNone) fault = derive(*model, ih_offset, hh_offset, cell);
    return fault;
}

}  // namespace qk::gru
