// Frozen GRUs from hostile bytes. Even first byte: the rest is a file whose length and checksum are
// corrected, so that the fuzzer reaches what follows them. Odd: the rest fills a model's
// numbers. Whatever is accepted runs; the sanitizers watch for overflow.
#include <cstdint>
#include <cstring>
#include <vector>

#include "qk.h"

namespace {

std::uint32_t crc32(const std::uint8_t *bytes, std::size_t count) {
    std::uint32_t crc = ~0u;
    for (std::size_t i = 0; i < count; ++i) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
    }
    return ~crc;
}

void put(std::vector<std::uint8_t> &file, std::size_t at, std::uint64_t value) {
    for (std::size_t i = 0; i < 8; ++i) file[at + i] = static_cast<std::uint8_t>(value >> 8 * i);
}

class Bytes {
  public:
    Bytes(const std::uint8_t *data, std::size_t size) : data_(data), size_(size) {}
    // Runs round, so that a short input still makes a whole model.
    std::uint8_t next() { return size_ == 0 ? 0 : data_[at_++ % size_]; }
    int below(int limit) { return next() % limit; }
    template <class T>
    std::vector<T> many(std::size_t count) {
        std::vector<T> result(count);
        for (T &value : result)
            for (std::size_t i = 0; i < sizeof(T); ++i)
                value = static_cast<T>(static_cast<std::uint64_t>(value) << 8 | next());
        return result;
    }

  private:
    const std::uint8_t *data_;
    std::size_t size_, at_ = 0;
};

void run(qk_context *context, qk_gru *gru) {
    qk_gru_model model;
    model.struct_size = sizeof(model);
    if (qk_gru_describe(gru, &model) != QK_OK) __builtin_trap();
    const int t = 4, c = model.input_size, h = model.hidden_size;
    if (c > 256 || h > 256) return;
    std::vector<float> x(static_cast<std::size_t>(t) * c), y(static_cast<std::size_t>(t) * h);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = i % 3 == 0 ? 1e30f : i % 3 == 1 ? -1e30f : 0;
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.rank = 2, desc.shape[0] = t, desc.shape[1] = c;
    void *planes[] = {x.data()};
    qk_tensor *tx = nullptr, *ty = nullptr;
    qk_gru_state *state = nullptr;
    bool ok = qk_tensor_wrap(context, &desc, planes, 1, &tx) == QK_OK;
    desc.shape[1] = h, planes[0] = y.data();
    ok = ok && qk_tensor_wrap(context, &desc, planes, 1, &ty) == QK_OK;
    ok = ok && qk_gru_state_create(context, gru, 1, &state) == QK_OK;
    ok = ok && qk_gru_run(context, gru, state, tx, ty) == QK_OK;
    if (!ok) __builtin_trap();  // an accepted GRU runs
    qk_gru_state_destroy(state);
    qk_tensor_destroy(tx);
    qk_tensor_destroy(ty);
}

void from_file(qk_context *context, const std::uint8_t *data, std::size_t size) {
    std::vector<std::uint8_t> file(data, data + size);
    if (size >= 32) {
        put(file, 16, size);
        put(file, 24, crc32(file.data() + 32, size - 32));
    }
    qk_gru *gru = nullptr;
    if (qk_gru_load(context, file.data(), file.size(), &gru) == QK_OK) run(context, gru);
    qk_gru_destroy(gru);
}

void fill_table(Bytes &bytes, qk_gru_table &table, std::vector<std::int32_t> *arrays) {
    table.kind = 1 + bytes.below(2);
    table.count = 1 + bytes.below(20);
    table.shift = bytes.below(70) - 4;
    table.width_log2 = table.kind == QK_GRU_TABLE_UNIFORM ? bytes.below(17) : 0;
    table.first = table.kind == QK_GRU_TABLE_UNIFORM ? -bytes.below(256) * bytes.below(256) : 0;
    auto count = static_cast<std::size_t>(table.count);
    arrays[0].assign(count, bytes.next());  // knots in order: all at one place
    arrays[1] = bytes.many<std::int32_t>(count);
    arrays[2] = bytes.many<std::int32_t>(count);
    for (std::int32_t &value : arrays[1]) value >>= bytes.below(32);
    for (std::int32_t &value : arrays[2]) value >>= bytes.below(32);
    table.threshold = arrays[0].data(), table.slope = arrays[1].data();
    table.intercept = arrays[2].data();
}

void from_model(qk_context *context, const std::uint8_t *data, std::size_t size) {
    Bytes bytes(data, size);
    qk_gru_model model = {};
    model.struct_size = sizeof(model);
    model.flags = bytes.next() & 1;
    model.input_size = 1 + bytes.below(4), model.hidden_size = 1 + bytes.below(4);
    model.h_view_shift = bytes.below(9);
    const int middle = bytes.below(24) - 4, spread = 1 + bytes.below(40);
    for (int which = 0; which < QK_GRU_TENSOR_COUNT; ++which) {
        const bool weight = which >= QK_GRU_W && which <= QK_GRU_BR;
        const int most = which == QK_GRU_BW || which == QK_GRU_BR ? 32 : 16;
        model.quant[which].bits = 4 + bytes.below(most - 3);
        model.quant[which].is_unsigned = which > QK_GRU_BR ? bytes.next() & 1 : 0;
        model.quant[which].is_symmetric = weight ? 1 : 0;
        if (weight) continue;
        model.shift[which] = middle + bytes.below(spread) - spread / 2;
        const int low = model.quant[which].is_unsigned ? 0 : 1 << (model.quant[which].bits - 1);
        model.zero_point[which] =
            bytes.below(256) * (1 << (model.quant[which].bits - 4)) / 16 - low;
    }
    const int step = 1 << model.h_view_shift;
    model.zero_point[QK_GRU_H] = model.zero_point[QK_GRU_H] / step * step;
    std::vector<std::int32_t> tables[9];
    fill_table(bytes, model.update, tables);
    fill_table(bytes, model.reset, tables + 3);
    fill_table(bytes, model.candidate, tables + 6);
    const std::size_t rows = 3 * static_cast<std::size_t>(model.hidden_size);
    auto w = bytes.many<std::int16_t>(rows * model.input_size);
    auto r = bytes.many<std::int16_t>(rows * model.hidden_size);
    for (std::int16_t &code : w) code >>= 16 - model.quant[QK_GRU_W].bits;
    for (std::int16_t &code : r) code >>= 16 - model.quant[QK_GRU_R].bits;
    std::vector<std::int8_t> w8(w.begin(), w.end()), r8(r.begin(), r.end());
    auto bw = bytes.many<std::int32_t>(rows), br = bytes.many<std::int32_t>(rows);
    for (std::int32_t &code : bw) code >>= 32 - model.quant[QK_GRU_BW].bits;
    for (std::int32_t &code : br) code >>= 32 - model.quant[QK_GRU_BR].bits;
    std::vector<std::int8_t> shifts[4];
    for (auto &row_shifts : shifts)
        for (std::size_t i = 0; i < rows; ++i)
            row_shifts.push_back(static_cast<std::int8_t>(middle + bytes.below(spread)));
    model.w_shift = shifts[0].data(), model.r_shift = shifts[1].data();
    model.bw_shift = shifts[2].data(), model.br_shift = shifts[3].data();
    model.w = model.quant[QK_GRU_W].bits <= 8 ? static_cast<void *>(w8.data()) : w.data();
    model.r = model.quant[QK_GRU_R].bits <= 8 ? static_cast<void *>(r8.data()) : r.data();
    model.bw = bw.data(), model.br = br.data();
    qk_gru *gru = nullptr;
    if (qk_gru_create_from_model(context, &model, &gru) == QK_OK) run(context, gru);
    qk_gru_destroy(gru);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    if (size < 1) return 0;
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.thread_count = 1;
    qk_context *context = nullptr;
    if (qk_context_create(&options, &context) != QK_OK) __builtin_trap();
    data[0] % 2 == 0 ? from_file(context, data + 1, size - 1)
                     : from_model(context, data + 1, size - 1);
    qk_context_destroy(context);
    return 0;
}
