// Frozen GRUs of random widths, shifts, tables and codes, and the float GRU of calibration.
#include <cmath>
#include <cstring>
#include <random>

#include "gru/derive.hpp"
#include "gru/owned_model.hpp"
#include "gru/step.hpp"
#include "record/cases.hpp"

namespace record {

using harness::Random;
using reference::Format;
using sweep::Home;

namespace {

Bytes zeros(int64_t bytes) { return Bytes(size_t(bytes)); }

// 64-byte aligned, and guarded.
enum Slot { kPacked = 40, kInput, kState, kScratch, kOutput, kGates, kClipped };
void *aligned(Home *home, Slot slot, const Bytes &bytes) {
    return home->memory.put(slot, bytes, 2);
}

class GruCase {
  public:
    GruCase(Home *home, uint64_t number) : home_(home), number_(number), random_(number) {}

    void run(int c, int h, const Visit<qk::GruArgs> &visit) {
        if (!derive(c, h)) return;
        steps_ = 1 + int64_t(random_() % 6);
        batch_ = random_() % 2 == 0 ? 1 : 1 + int64_t(random_() % 18);
        f32_ = random_() % 4 == 0;
        const auto &packing = home_->backend.gru_packing;
        const int64_t packed_bytes = packing.bytes(cell_);
        void *const packed = aligned(home_, kPacked, zeros(qk::round_up(packed_bytes, 64)));
        if (packed_bytes > 0) packing.make(cell_, packed);
        input_ = x();
        state_ = first_state();
        const bool whole = number_ % 8 == 3;  // gates, and counts: by the portable kernel alone
        const int64_t cells = batch_ * h;
        qk::GruArgs args = {};
        args.cell = &cell_;
        args.steps = steps_, args.batch = batch_;
        args.x_format = format(cell_.x_bytes), args.y_format = format(cell_.h_bytes);
        args.x = aligned(home_, kInput, input_);
        args.y = aligned(home_, kOutput, zeros(steps_ * cells * (f32_ ? 4 : cell_.h_bytes)));
        args.h = aligned(home_, kState, state_);
        args.scratch = aligned(
            home_, kScratch,
            zeros(qk::round_up(
                batch_ * qk::gru_scratch_bytes(cell_) + packing.scratch_bytes(cell_, batch_), 64)));
        args.packed = packed_bytes > 0 ? packed : nullptr;
        void *const gates = aligned(home_, kGates, zeros(whole ? steps_ * cells * 4 * 4 : 0));
        void *const clipped =
            aligned(home_, kClipped, zeros(whole ? batch_ * QK_GRU_TENSOR_COUNT * int64_t{8} : 0));
        if (whole) args.gates = static_cast<float *>(gates);
        if (whole) args.clipped = static_cast<int64_t *>(clipped);
        visit({number_, args, [&] { clear(args); }, [&](Digest *digest) { sum(digest); }});
    }

  private:
    bool derive(int c, int h) {
        gru_test::RandomOptions options;
        options.c = c, options.h = h;
        options.extreme = random_() % 5 == 0;
        options.weight_bits = random_() % 3 == 0 ? 16 : 8;
        if (random_() % 2 == 0) options.inside_bits = 14;
        options.straight = true;
        owned_ = std::make_unique<gru_test::OwnedModel>(c, h);
        gru_test::randomize(*owned_, random_, options);
        const qk_gru_model &model = owned_->view();
        ih_offset_.resize(size_t(3 * h)), hh_offset_.resize(size_t(3 * h));
        using qk::gru::Fault;
        return qk::gru::compute_offsets(model, ih_offset_.data(), hh_offset_.data()) ==
                   Fault::kNone &&
               qk::gru::derive(model, ih_offset_.data(), hh_offset_.data(), &cell_) == Fault::kNone;
    }

    const qk::Format *format(int bytes) const {
        return qk::find_format(f32_ ? QK_FORMAT_F32 : bytes == 1 ? QK_FORMAT_I8 : QK_FORMAT_I16);
    }

    // Codes, some beyond the type's bits, or f32 that round to any code, NaN and beyond among them.
    Bytes x() {
        const qk_gru_model &model = owned_->model;
        const int64_t count = steps_ * batch_ * model.input_size;
        const auto codes = gru_test::random_codes(model.quant[QK_GRU_X], count, random_, false);
        Bytes bytes = zeros(count * (f32_ ? 4 : cell_.x_bytes));
        for (int64_t i = 0; i < count; ++i) {
            const int32_t code = int32_t(codes[size_t(i)]);
            const bool odd = random_() % 64 == 0;
            if (!f32_) {
                qk::gru::store_code(bytes.data(), cell_.x_bytes, i, odd ? -32768 : code);
                continue;
            }
            float value = float(code - model.zero_point[QK_GRU_X]) + float(random_() % 5) * 0.25f;
            value = std::ldexp(value, -model.shift[QK_GRU_X]);
            if (odd) value = random_() % 2 == 0 ? NAN : -INFINITY;
            std::memcpy(&bytes[size_t(4 * i)], &value, 4);
        }
        return bytes;
    }

    Bytes first_state() {
        const int64_t count = batch_ * cell_.hidden_size;
        const auto codes =
            gru_test::random_codes(owned_->model.quant[QK_GRU_H], count, random_, false);
        Bytes bytes = zeros(count * cell_.h_bytes);
        for (int64_t i = 0; i < count; ++i) {
            qk::gru::store_code(bytes.data(), cell_.h_bytes, i, int32_t(codes[size_t(i)]));
        }
        return bytes;
    }

    void clear(const qk::GruArgs &args) {
        std::memcpy(args.h, state_.data(), state_.size());
        std::memset(args.y, harness::kPoison, home_->memory.get(kOutput).size());
        std::memset(args.scratch, 0x5a, home_->memory.get(kScratch).size());
        if (args.gates == nullptr) return;
        std::memset(args.gates, harness::kPoison, home_->memory.get(kGates).size());
        std::memset(args.clipped, 0, home_->memory.get(kClipped).size());
    }

    void sum(Digest *digest) {
        for (const Slot slot : {kOutput, kState, kGates, kClipped}) {
            digest->bytes(home_->memory.get(slot));
        }
    }

    Home *const home_;
    const uint64_t number_;
    std::mt19937_64 random_;
    std::unique_ptr<gru_test::OwnedModel> owned_;
    std::vector<int64_t> ih_offset_, hh_offset_;
    qk::gru::Cell cell_;
    int64_t steps_ = 0, batch_ = 0;
    bool f32_ = false;
    Bytes input_, state_;
};

std::vector<float> floats(int64_t count, float reach, Random *random) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) {
        values.push_back(float(2 * random->unit() - 1) * reach);
    }
    return values;
}

}  // namespace

void visit_gru(Home *home, uint64_t every, const Visit<qk::GruArgs> &visit) {
    uint64_t number = 0;
    const auto each = [&](int c, int h) {
        if (++number, number % every != 0) return;
        GruCase(home, number).run(c, h, visit);
    };
    for (int i = 0; i < 1200; ++i) each(1 + i % 23, 1 + i * 7 % 29);
    for (const int c : {1, 33, 64, 129, 300}) {
        for (const int h : {1, 31, 64, 100, 257}) each(c, h);
    }
    for (const int c : {503, 504, 528, 1009}) each(c, 520);
}

void visit_float_product(Home *, uint64_t every, const Visit<qk::FloatProductArgs> &visit) {
    uint64_t number = 0;
    for (const int rows : {1, 2, 3, 4, 5, 9}) {
        for (const int count : {1, 16, 127, 128, 129, 300}) {
            for (const int outputs : {3, 15, 16, 48, 63, 129, 192}) {
                if (++number, number % every != 0) continue;
                Random random = random_of(6, number);
                const auto w = floats(outputs * count, 1, &random);
                const auto x = floats(rows * count, 1, &random);
                const auto padded = size_t(qk::gru::panels_rows(outputs));
                std::vector<float> panels(padded * size_t(count));
                auto bias = floats(outputs, 1, &random);
                bias.resize(padded);
                qk::gru::fill_panels(w.data(), outputs, count, panels.data());
                std::vector<float> y(size_t(rows * outputs));
                const qk::FloatProductArgs args = {panels.data(), bias.data(), x.data(), rows,
                                                   count,         outputs,     y.data()};
                visit({number, args, [&] { y.assign(y.size(), 7); },
                       [&](Digest *digest) {
                    digest->floats(Format::f32, sweep::dense_bytes(Format::f32, y));
                       }});
            }
        }
    }
}

void visit_float_gates(Home *, uint64_t every, const Visit<qk::FloatGatesArgs> &visit) {
    uint64_t number = 0;
    for (const int units : {1, 3, 4, 7, 8, 15, 16, 17, 40, 129}) {
        for (const float reach : {1e-6f, 0.5f, 4.0f, 30.0f, 1e30f}) {
            for (const int batch : {1, 2, 5}) {
                if (++number, number % every != 0) continue;
                Random random = random_of(7, number);
                const int64_t states = int64_t{batch} * units;
                const auto ih = floats(3 * states, reach, &random);
                const auto hh = floats(3 * states, reach, &random);
                const auto h = floats(states, 1, &random);
                std::vector<float> out(size_t(7 * states));
                const auto part = [&](int64_t index) { return out.data() + index * states; };
                const qk::FloatGatesArgs args = {batch,    units,   ih.data(), hh.data(),
                                                 h.data(), part(0), part(1),   part(2),
                                                 part(3),  part(4), part(5),   part(6)};
                visit({number, args, [&] { out.assign(out.size(), 7); },
                       [&](Digest *digest) {
                    digest->floats(Format::f32, sweep::dense_bytes(Format::f32, out));
                       }});
            }
        }
    }
}

}  // namespace record
