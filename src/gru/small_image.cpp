#include "gru/small_image.hpp"

#include <stdint.h>

#define QK_NOINLINE __attribute__((noinline))

namespace qk::gru {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "images are read in place");

struct TensorWords {
    int32_t bits, is_unsigned, is_symmetric, granularity, shift, zero;
};
struct TableWords {
    int32_t kind, count, shift, width_log2, first, reserved;
};
struct File {  // docs/gru.md, "File"
    uint32_t magic[2], version[2], length[2], checksum[2];
    uint32_t flags;
    int32_t c, h, view;
    uint32_t reserved[2];
    TensorWords tensor[QK_GRU_TENSOR_COUNT];
    TableWords table[3];
};
static_assert(sizeof(File) == 464);

QK_NOINLINE uint32_t magnitude(int32_t value) {
    return value < 0 ? 0u - uint32_t(value) : uint32_t(value);
}

// Bounds of what a chain of operations reaches; all must stay below 2^30. One that does not, and
// any check that fails, is recorded in `seen`. What follows then only has to be harmless.
struct Proof {
    uint32_t seen = 0;

    bool holds() const { return seen >> 30 == 0; }
    void require(bool is_true) {
        if (!is_true) seen = UINT32_MAX;
    }
    QK_NOINLINE void within(int32_t value, int32_t low, int32_t high) {
        require(value >= low && value <= high);
    }
    QK_NOINLINE uint32_t sum(uint32_t a, uint32_t b) {
        seen |= a + b;
        return a + b;
    }
    QK_NOINLINE uint32_t product(uint32_t a, uint32_t b) {
        const uint64_t exact = uint64_t{a} * b;
        require(exact >> 30 == 0);
        return uint32_t(exact);
    }
    QK_NOINLINE uint32_t shifted(uint32_t bound, int32_t n) {
        seen |= bound;
        within(n, -31, 62);
        if (n <= 0) return product(bound, 1u << (-n & 31));
        return (n < 32 ? bound >> n : 0) + 1;
    }
    // shifted(a, to_a) + shifted(b, to_b) + a zero point: what a gate's table is asked for.
    QK_NOINLINE void addends(uint32_t a, int32_t to_a, uint32_t b, int32_t to_b) {
        sum(sum(shifted(a, to_a), shifted(b, to_b)), 1 << 16);
    }
};

// What a tensor's header says of its codes, as words that kFills can name.
struct Codes {
    int32_t shift, zero, min, max;
};
struct Words {
    Codes tensor[QK_GRU_TENSOR_COUNT];
    int32_t none, view_of_h, r_and_hh;  // the last two: shifts
};

QK_NOINLINE uint32_t widest(int32_t min, int32_t max, int32_t zero) {
    const uint32_t low = magnitude(min - zero), high = magnitude(max - zero);
    return low > high ? low : high;
}

uint32_t crc32(const uint8_t *at, const uint8_t *end) {  // IEEE 802.3, reflected
    uint32_t crc = UINT32_MAX;
    while (at != end) {
        crc ^= *at++;
        for (int32_t bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1u)));
    }
    return ~crc;
}

bool frame_is_good(const File &file, size_t bytes) {
    const uint8_t *const first = reinterpret_cast<const uint8_t *>(&file);
    return bytes >= sizeof(File) && file.magic[0] == 0x52474b51 && file.magic[1] == 0x0a0d1a55 &&
           file.version[0] == 1 && file.length[0] == bytes &&
           (file.version[1] | file.length[1] | file.checksum[1]) == 0 &&
           file.checksum[0] == crc32(first + 32, first + bytes);
}

void check_tensors(const File &file, Words *words, Proof *proof) {
    for (int32_t i = 0; i < QK_GRU_TENSOR_COUNT; ++i) {
        const TensorWords &tensor = file.tensor[i];
        const bool is_stored = i <= QK_GRU_BR, is_weight = is_stored && i >= QK_GRU_W;
        const bool is_bias = is_weight && i >= QK_GRU_BW;
        proof->within(tensor.bits, 4, is_bias ? 32 : is_stored ? 8 : 16);
        proof->within(tensor.is_unsigned, 0, !is_stored);
        proof->within(tensor.is_symmetric, is_weight, 1);
        proof->within(tensor.granularity, 0, is_weight ? 2 : 0);
        const int32_t shifts = is_weight ? 0 : 126;
        proof->within(tensor.shift, -shifts, shifts);
        int32_t max = int32_t((1u << ((tensor.bits - 1) & 31)) - 1), min = ~max;
        if (tensor.is_unsigned != 0) max = int32_t(uint32_t(max) * 2 + 1), min = 0;
        words->tensor[i] = {tensor.shift, tensor.zero, min, max};
        if (tensor.is_symmetric != 0) min = max = 0;
        proof->within(tensor.zero, min, max);
    }
}

void check_table(const TableWords &table, Proof *proof) {
    const bool is_uniform = table.kind == QK_GRU_TABLE_UNIFORM;
    const int32_t first = is_uniform ? 1 << 20 : 0;
    proof->within(table.kind, QK_GRU_TABLE_KNOTS, QK_GRU_TABLE_UNIFORM);
    proof->within(table.count, 1, is_uniform ? 4096 : 256);
    proof->within(table.width_log2, 0, is_uniform ? 15 : 0);
    proof->within(table.first, -first, first);
    proof->require(table.reserved == 0 && (table.shift >= 0 || !is_uniform));
}

// Hands out the file's arrays in their order, each padded to 8 bytes.
struct Cursor {
    const uint8_t *at;

    QK_NOINLINE const void *take(uint32_t bytes) {
        const uint8_t *const piece = at;
        at += (bytes + 7) & ~7u;
        return piece;
    }
};

void take_table(const File &file, int32_t gate, const Words &words, Cursor *cursor, Table *to) {
    const TableWords &table = file.table[gate];
    const Codes &in = words.tensor[QK_GRU_UPDATE_IN + 2 * gate];
    const Codes &out = words.tensor[QK_GRU_UPDATE_OUT + 2 * gate];
    const uint32_t bytes = uint32_t(table.count) * 4;
    to->threshold = nullptr;
    if (table.kind == QK_GRU_TABLE_KNOTS)
        to->threshold = static_cast<const int32_t *>(cursor->take(bytes));
    to->slope = static_cast<const int32_t *>(cursor->take(bytes));
    to->intercept = static_cast<const int32_t *>(cursor->take(bytes));
    to->kind = table.kind;
    to->count = table.count;
    to->shift = table.shift;
    to->width_log2 = table.width_log2;
    to->first = table.first;
    to->input_zero = in.zero;
    to->input_min = in.min;
    to->input_max = in.max;
    to->output_min = out.min;
    to->output_max = out.max;
    if (file.flags == 0 && out.shift <= 20) {  // rule 13
        const int32_t one = out.shift < 0 ? 0 : 1 << out.shift;
        const int32_t bottom = gate == kNew ? out.zero - one : out.zero;
        if (out.zero + one < out.max) to->output_max = out.zero + one;
        if (bottom > out.min) to->output_min = bottom;
    }
    int32_t half = 1;
    while (half * 2 < table.count) half *= 2;
    to->half = table.count == 1 ? 0 : half;
}

void prove_table(const Table &table, Proof *proof) {
    const bool is_uniform = table.kind == QK_GRU_TABLE_UNIFORM;
    const uint32_t reach = is_uniform ? (1u << table.width_log2) - 1
                                      : widest(table.input_min, table.input_max, table.input_zero);
    for (int32_t i = 0; i < table.count; ++i) {
        uint32_t line = proof->product(magnitude(table.slope[i]), reach);
        const uint32_t intercept = magnitude(table.intercept[i]);
        if (!is_uniform) line = proof->shifted(line, table.shift);
        line = proof->sum(line, intercept);
        if (is_uniform) proof->shifted(line, table.shift);
        if (!is_uniform && i > 0) proof->require(table.threshold[i] >= table.threshold[i - 1]);
    }
}

// The arrays of W x + bw, of R h + br.
struct Linear {
    const int64_t *offset;
    const int32_t *bias;
    const int8_t *weight_shift, *bias_shift, *weights;
};

// |bias| at the product's scale, half to even; the shift is within -31..62.
uint32_t aligned_bias(uint32_t bias, int32_t n, Proof *proof) {
    if (n <= 0) {
        const uint64_t exact = uint64_t{bias} << (-n & 31);
        proof->require(exact >> 31 == 0);
        return uint32_t(exact);
    }
    if (n > 31) return 0;
    const uint32_t whole = bias >> n, rest = bias << (32 - n), half = 1u << 31;
    return whole + (rest > half || (rest == half && (whole & 1) != 0));
}

// What R multiplies, or x.
struct Vector {
    int32_t count, zero, bound, shift;
};

// Every weight and bias against its bits, every offset against the weights, every sum below 2^30.
// Returns whether all rows shift right, by 31 at most. side: 0 x, 1 h.
QK_NOINLINE bool prove_rows(const Words &words, int32_t side, const Linear &linear,
                            const Vector &vector, int32_t rows, Proof *proof) {
    const Codes *const tensor = words.tensor + side;
    bool goes_right = true;
    const int8_t *weight = linear.weights;
    for (int32_t row = 0; row < rows; ++row) {
        int32_t total = 0;
        uint32_t reach = 0;
        for (int32_t k = 0; k < vector.count; ++k) {
            const int32_t value = *weight++;
            proof->within(value, tensor[QK_GRU_W].min, tensor[QK_GRU_W].max);
            total += value;
            reach += magnitude(value);
        }
        const int32_t bias = linear.bias[row], to = linear.weight_shift[row] + vector.shift;
        const int32_t n = linear.bias_shift[row] - to;
        proof->within(bias, tensor[QK_GRU_BW].min, tensor[QK_GRU_BW].max);
        proof->within(n, -31, 62);
        int64_t offset = aligned_bias(magnitude(bias), n, proof);
        if (bias < 0) offset = -offset;
        offset -= int64_t{total} * vector.zero;
        proof->require(offset == linear.offset[row] && offset == int32_t(offset));
        const uint32_t dot = proof->product(reach, uint32_t(vector.bound));
        const int32_t right = to - tensor[QK_GRU_IH].shift;
        proof->shifted(proof->sum(dot, magnitude(int32_t(offset))), right);
        goes_right &= uint32_t(right - 1) < 31;
    }
    return goes_right;
}

// prove_gates() of derive.cpp.
void prove_gates(const Cell &cell, Proof *proof) {
    const uint32_t ih = widest(cell.ih_min, cell.ih_max, cell.ih_zero);
    const uint32_t hh = widest(cell.hh_min, cell.hh_max, cell.hh_zero);
    proof->addends(ih, cell.ih_to_u, hh, cell.hh_to_u);
    proof->addends(ih, cell.ih_to_r, hh, cell.hh_to_r);
    const uint32_t r = widest(cell.reset.output_min, cell.reset.output_max, cell.r_zero);
    proof->addends(ih, cell.ih_to_n, proof->product(r, hh), cell.rhh_to_n);
    const uint32_t n = widest(cell.candidate.output_min, cell.candidate.output_max, cell.n_zero);
    const uint32_t u = widest(cell.update.output_min, cell.update.output_max, cell.u_zero);
    const uint32_t rest = widest(cell.update.output_min, cell.update.output_max, cell.u_one);
    const uint32_t h = widest(cell.h_min, cell.h_max, cell.h_zero);
    const uint32_t replaced = proof->product(rest, proof->shifted(n, cell.n_to_h));
    proof->sum(proof->shifted(proof->sum(proof->product(u, h), replaced), cell.u_shift), 1 << 16);
    prove_table(cell.update, proof);
    prove_table(cell.reset, proof);
    prove_table(cell.candidate, proof);
}

// Cell's words as differences of two of Words'.
struct Fill {
    uint8_t to, plus, minus;
};
#define QK_WORD(field) uint8_t(offsetof(Words, field) / 4)
#define QK_TENSOR(which, field) \
    uint8_t((offsetof(Words, tensor) + (which) * sizeof(Codes) + offsetof(Codes, field)) / 4)
#define QK_FILL(field, plus, minus) \
    { uint8_t(offsetof(Cell, field) / 4), plus, minus }
#define QK_COPY(field, plus) QK_FILL(field, plus, QK_WORD(none))
#define QK_CODES(prefix, which)                                                                   \
    QK_COPY(prefix##_zero, QK_TENSOR(which, zero)), QK_COPY(prefix##_min, QK_TENSOR(which, min)), \
        QK_COPY(prefix##_max, QK_TENSOR(which, max))
#define QK_SHIFT(field, from, to) QK_FILL(field, QK_TENSOR(from, shift), QK_TENSOR(to, shift))
constexpr Fill kFills[] = {
    QK_CODES(x, QK_GRU_X),
    QK_CODES(h, QK_GRU_H),
    QK_CODES(ih, QK_GRU_IH),
    QK_CODES(hh, QK_GRU_HH),
    QK_COPY(u_zero, QK_TENSOR(QK_GRU_UPDATE_OUT, zero)),
    QK_COPY(r_zero, QK_TENSOR(QK_GRU_RESET_OUT, zero)),
    QK_COPY(n_zero, QK_TENSOR(QK_GRU_NEW_OUT, zero)),
    QK_COPY(u_in_zero, QK_TENSOR(QK_GRU_UPDATE_IN, zero)),
    QK_COPY(r_in_zero, QK_TENSOR(QK_GRU_RESET_IN, zero)),
    QK_COPY(n_in_zero, QK_TENSOR(QK_GRU_NEW_IN, zero)),
    QK_SHIFT(ih_shift, QK_GRU_X, QK_GRU_IH),
    QK_FILL(hh_shift, QK_WORD(view_of_h), QK_TENSOR(QK_GRU_HH, shift)),
    QK_SHIFT(ih_to_u, QK_GRU_IH, QK_GRU_UPDATE_IN),
    QK_SHIFT(hh_to_u, QK_GRU_HH, QK_GRU_UPDATE_IN),
    QK_SHIFT(ih_to_r, QK_GRU_IH, QK_GRU_RESET_IN),
    QK_SHIFT(hh_to_r, QK_GRU_HH, QK_GRU_RESET_IN),
    QK_SHIFT(ih_to_n, QK_GRU_IH, QK_GRU_NEW_IN),
    QK_FILL(rhh_to_n, QK_WORD(r_and_hh), QK_TENSOR(QK_GRU_NEW_IN, shift)),
    QK_SHIFT(n_to_h, QK_GRU_NEW_OUT, QK_GRU_H),
    QK_COPY(u_shift, QK_TENSOR(QK_GRU_UPDATE_OUT, shift)),
    QK_COPY(x_scale, QK_TENSOR(QK_GRU_X, shift)),
    QK_COPY(h_scale, QK_TENSOR(QK_GRU_H, shift)),
    QK_COPY(r_scale, QK_TENSOR(QK_GRU_RESET_OUT, shift)),
    QK_COPY(n_scale, QK_TENSOR(QK_GRU_NEW_OUT, shift)),
    QK_COPY(hh_scale, QK_TENSOR(QK_GRU_HH, shift)),
};

void fill_cell(const File &file, Words *words, Cell *cell) {
    words->none = 0;
    words->view_of_h = words->tensor[QK_GRU_H].shift - file.view;
    words->r_and_hh = words->tensor[QK_GRU_RESET_OUT].shift + words->tensor[QK_GRU_HH].shift;
    const int32_t *const from = &words->tensor[0].shift;
    int32_t *const to = &cell->input_size;
    // w_bytes to view_bytes, and dot_is_32 to lines_is_32.
    for (int32_t i = 0; i < 5; ++i) (&cell->w_bytes)[i] = (&cell->dot_is_32)[i] = 1;
    for (const Fill &fill : kFills) to[fill.to] = from[fill.plus] - from[fill.minus];
    cell->input_size = file.c;
    cell->hidden_size = file.h;
    cell->view_shift = file.view;
    cell->view_min = cell->h_min >> file.view;
    cell->view_max = cell->h_max >> file.view;
    cell->u_one = (1 << cell->u_shift) + cell->u_zero;
}

}  // namespace

bool small_image_read(const void *image, size_t bytes, Cell *cell) {
    if (image == nullptr || (uintptr_t(image) & 7) != 0) return false;
    const File &file = *static_cast<const File *>(image);
    if (!frame_is_good(file, bytes)) return false;
    Proof proof;
    Words words;
    proof.within(file.c, 1, 65535);
    proof.within(file.h, 1, 65535);
    proof.within(file.view, 0, 8);
    proof.require((file.flags & ~1u) == 0 && (file.reserved[0] | file.reserved[1]) == 0);
    check_tensors(file, &words, &proof);
    for (const TableWords &table : file.table) check_table(table, &proof);
    proof.within(file.tensor[QK_GRU_UPDATE_OUT].shift, 0, 30);
    const int32_t h_zero = file.tensor[QK_GRU_H].zero, view = file.view & 15;
    proof.require(file.tensor[QK_GRU_H].bits - view >= 2 && h_zero >> view << view == h_zero);
    const uint32_t rows = 3 * uint32_t(file.h);
    const uint64_t weights = uint64_t{rows} * (uint32_t(file.c) + uint32_t(file.h));
    if (!proof.holds() || weights > bytes) return false;

    fill_cell(file, &words, cell);
    Linear linear[2];
    Cursor cursor = {reinterpret_cast<const uint8_t *>(&file + 1)};
    for (Linear &side : linear) side.offset = static_cast<const int64_t *>(cursor.take(8 * rows));
    for (Linear &side : linear) side.bias = static_cast<const int32_t *>(cursor.take(4 * rows));
    take_table(file, kUpdate, words, &cursor, &cell->update);
    take_table(file, kReset, words, &cursor, &cell->reset);
    take_table(file, kNew, words, &cursor, &cell->candidate);
    for (Linear &side : linear) side.weight_shift = static_cast<const int8_t *>(cursor.take(rows));
    for (Linear &side : linear) side.bias_shift = static_cast<const int8_t *>(cursor.take(rows));
    linear[0].weights = static_cast<const int8_t *>(cursor.take(rows * uint32_t(file.c)));
    linear[1].weights = static_cast<const int8_t *>(cursor.take(rows * uint32_t(file.h)));
    if (cursor.at != reinterpret_cast<const uint8_t *>(image) + bytes) return false;
    cell->ih_offset = linear[0].offset, cell->hh_offset = linear[1].offset;
    cell->w_shift = linear[0].weight_shift, cell->r_shift = linear[1].weight_shift;
    cell->w = linear[0].weights, cell->r = linear[1].weights;

    const Vector x = {file.c, cell->x_zero, -cell->x_min, cell->x_scale};
    const Vector h = {file.h, h_zero >> view, -cell->view_min, words.view_of_h};
    cell->ih_shifts_right = prove_rows(words, 0, linear[0], x, int32_t(rows), &proof);
    cell->hh_shifts_right = prove_rows(words, 1, linear[1], h, int32_t(rows), &proof);
    prove_gates(*cell, &proof);
    return proof.holds();
}

}  // namespace qk::gru
