#include "gru/derive.hpp"

namespace qk::gru {

const char *fault_text(Fault fault) {
    switch (fault) {
        case Fault::kNone: return "no fault";
        case Fault::kStructSize: return "struct_size is not one this library knows";
        case Fault::kSize: return "input_size and hidden_size must be 1..65535";
        case Fault::kFlags: return "unknown flags, or a reserved field that is not 0";
        case Fault::kQuant: return "bits, is_unsigned, is_symmetric or granularity out of range";
        case Fault::kGranularity:
            return "its shift differs from that of the rows that granularity gives one scale";
        case Fault::kZeroPoint: return "a zero point lies outside its tensor's codes";
        case Fault::kShift:
            return "a shift lies outside its range, or a derived one outside -31..62";
        case Fault::kView: return "h_view_shift must be 0..8 and divide the zero point of h";
        case Fault::kTable: return "a gate table has a wrong kind, count, width or knot order";
        case Fault::kPointer: return "an array is NULL or not aligned to its elements";
        case Fault::kWeight: return "a weight or bias does not fit its bits";
        case Fault::kOverflow: return "some intermediate value could reach 2^62";
        case Fault::kOffset: return "stored offsets differ from what the weights give";
        case Fault::kHeader: return "not a qk GRU file, or one from a newer version";
        case Fault::kLength: return "the file's length is not what its header says";
        case Fault::kChecksum: return "the checksum does not match";
    }
    return "unknown fault";
}

CodeRange code_range(const qk_gru_quant &quant) {
    if (quant.is_unsigned != 0) return {0, int32_t((int64_t{1} << quant.bits) - 1)};
    int64_t half = int64_t{1} << (quant.bits - 1);
    return {int32_t(-half), int32_t(half - 1)};
}

static bool is_weight(int32_t which) { return which >= QK_GRU_W && which <= QK_GRU_BR; }

bool quant_is_valid(int32_t which, const qk_gru_quant &quant) {
    bool bias = which == QK_GRU_BW || which == QK_GRU_BR;
    bool stored = which <= QK_GRU_BR;
    if (quant.bits < 4 || quant.bits > (bias ? 32 : 16)) return false;
    if ((quant.is_unsigned | 1) != 1 || (quant.is_symmetric | 1) != 1) return false;
    if (stored && quant.is_unsigned != 0) return false;
    if (is_weight(which) && quant.is_symmetric == 0) return false;
    return quant.granularity >= 0 && quant.granularity <= (is_weight(which) ? 2 : 0);
}

namespace {

Fault check_table_header(const qk_gru_table &table) {
    if (table.reserved != 0) return Fault::kFlags;
    if (table.kind == QK_GRU_TABLE_KNOTS) {
        if (table.count < 1 || table.count > kMaxKnots) return Fault::kTable;
        if (table.width_log2 != 0 || table.first != 0) return Fault::kTable;
    } else if (table.kind == QK_GRU_TABLE_UNIFORM) {
        if (table.count < 1 || table.count > kMaxUniform) return Fault::kTable;
        if (table.width_log2 < 0 || table.width_log2 > 15) return Fault::kTable;
        if (table.first < -(1 << 20) || table.first > (1 << 20)) return Fault::kTable;
    } else {
        return Fault::kTable;
    }
    return Fault::kNone;
}

bool is_array(const void *pointer, uintptr_t alignment) {
    return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % alignment == 0;
}

Fault check_table_data(const qk_gru_table &table) {
    if (!is_array(table.slope, 4) || !is_array(table.intercept, 4)) return Fault::kPointer;
    if (table.kind != QK_GRU_TABLE_KNOTS) return Fault::kNone;
    if (!is_array(table.threshold, 4)) return Fault::kPointer;
    for (int32_t i = 1; i < table.count; ++i)
        if (table.threshold[i] < table.threshold[i - 1]) return Fault::kTable;
    return Fault::kNone;
}

template <class T>
bool all_within(const void *codes, int64_t count, CodeRange range) {
    const T *values = static_cast<const T *>(codes);
    for (int64_t i = 0; i < count; ++i)
        if (values[i] < range.min || values[i] > range.max) return false;
    return true;
}

bool codes_within(const void *codes, int64_t count, const qk_gru_quant &quant) {
    CodeRange range = code_range(quant);
    return code_bytes(quant.bits) == 1 ? all_within<int8_t>(codes, count, range)
                                       : all_within<int16_t>(codes, count, range);
}

}  // namespace

Fault check_header(const qk_gru_model &model) {
    if (model.struct_size != sizeof(qk_gru_model)) return Fault::kStructSize;
    if ((model.flags & ~QK_GRU_MODEL_CLAMP_TYPE) != 0 || model.reserved != 0) return Fault::kFlags;
    if (model.input_size < 1 || model.input_size > kMaxSize) return Fault::kSize;
    if (model.hidden_size < 1 || model.hidden_size > kMaxSize) return Fault::kSize;
    for (int32_t which = 0; which < QK_GRU_TENSOR_COUNT; ++which) {
        const qk_gru_quant &quant = model.quant[which];
        if (!quant_is_valid(which, quant)) return Fault::kQuant;
        int32_t zero = model.zero_point[which], shift = model.shift[which];
        if (shift < -126 || shift > 126) return Fault::kShift;  // 2^shift is a normal f32
        if (is_weight(which)) {
            if (zero != 0) return Fault::kZeroPoint;
            if (shift != 0) return Fault::kShift;
            continue;
        }
        CodeRange range = code_range(quant);
        if (zero < range.min || zero > range.max) return Fault::kZeroPoint;
        if (quant.is_symmetric != 0 && zero != 0) return Fault::kZeroPoint;
    }
    int32_t view = model.h_view_shift;
    if (view < 0 || view > 8 || model.quant[QK_GRU_H].bits - view < 2) return Fault::kView;
    if (model.zero_point[QK_GRU_H] % (1 << view) != 0) return Fault::kView;
    const qk_gru_table *tables[] = {&model.update, &model.reset, &model.candidate};
    for (const qk_gru_table *table : tables) {
        Fault fault = check_table_header(*table);
        if (fault != Fault::kNone) return fault;
    }
    return Fault::kNone;
}

Fault check_model(const qk_gru_model &model) {
    Fault fault = check_header(model);
    if (fault != Fault::kNone) return fault;
    const qk_gru_table *tables[] = {&model.update, &model.reset, &model.candidate};
    for (const qk_gru_table *table : tables) {
        fault = check_table_data(*table);
        if (fault != Fault::kNone) return fault;
    }
    const void *shifts[] = {model.w_shift, model.r_shift, model.bw_shift, model.br_shift};
    for (const void *shift : shifts)
        if (!is_array(shift, 1)) return Fault::kPointer;
    if (!is_array(model.bw, 4) || !is_array(model.br, 4)) return Fault::kPointer;
    const qk_gru_quant &w = model.quant[QK_GRU_W], &r = model.quant[QK_GRU_R];
    if (!is_array(model.w, uintptr_t(code_bytes(w.bits)))) return Fault::kPointer;
    if (!is_array(model.r, uintptr_t(code_bytes(r.bits)))) return Fault::kPointer;
    int64_t rows = int64_t{3} * model.hidden_size;
    if (!codes_within(model.w, rows * model.input_size, w)) return Fault::kWeight;
    if (!codes_within(model.r, rows * model.hidden_size, r)) return Fault::kWeight;
    if (!all_within<int32_t>(model.bw, rows, code_range(model.quant[QK_GRU_BW])))
        return Fault::kWeight;
    if (!all_within<int32_t>(model.br, rows, code_range(model.quant[QK_GRU_BR])))
        return Fault::kWeight;
    return Fault::kNone;
}

}  // namespace qk::gru
