// Dequantize, quantize and repack: every format x layout x grouping x scale kind, shapes in turn.
#include <algorithm>
#include <cstring>
#include <limits>

#include "record/cases.hpp"

namespace record {

using harness::Data;
using harness::Random;
using reference::Format;
using reference::Layout;
using reference::Planes;
using reference::Spec;
using reference::Weight;
using sweep::Home;
using sweep::kFirst, sweep::kSecond, sweep::kThird, sweep::kX, sweep::kY;

namespace {

// Poison in place of a weight's planes, its tables excepted.
void clear_planes(Home *home, int first_slot, const qk::Weight &weight) {
    const auto clear = [&](int plane, void *data) {
        if (data != nullptr) poison(home, first_slot + plane, data);
    };
    clear(QK_PLANE_DATA, weight.data);
    clear(QK_PLANE_SCALE, weight.scale.data);
    clear(QK_PLANE_SCALE2, weight.scale.second);
    clear(QK_PLANE_SCALE_BIAS, weight.scale.bias);
    clear(QK_PLANE_ZERO, weight.zero);
}

void clear_tables(Home *home, int first_slot, const qk::Weight &weight) {
    if (weight.table != nullptr) poison(home, first_slot + QK_PLANE_TABLE, weight.table);
    if (weight.scale.code == nullptr) return;
    poison(home, first_slot + QK_PLANE_SCALE_CODE, weight.scale.code);
}

void digest_planes(Home *home, int first_slot, const Spec &spec, Digest *digest) {
    const Planes planes = planes_of(home, first_slot, spec);
    digest->bytes(planes.data);
    spec.nested ? digest->bytes(planes.scale) : digest->floats(spec.scale_format, planes.scale);
    digest->bytes(planes.zero);
    digest->floats(Format::f32, planes.second_scale);
    digest->floats(Format::f32, planes.scale_bias);
    digest->floats(Format::f32, planes.scale_code);
    digest->floats(Format::f32, planes.table);
}

}  // namespace

void write(Home *home, void *to, const Bytes &bytes) {
    if (home->backend.memory.allocate == nullptr) {
        std::memcpy(to, bytes.data(), bytes.size());
    } else {
        EXPECT_EQ(home->backend.memory.upload({}, to, bytes.data(), bytes.size()), QK_OK);
    }
}

void poison(Home *home, int slot, void *data, uint8_t value) {
    const Bytes bytes(home->memory.get(slot).size(), value);
    if (!bytes.empty()) write(home, data, bytes);
}

qk::Weight repacked(Home *home, const qk::Weight &from, const Spec &spec, uint64_t number) {
    const qk::Weight to = place_packed(home, kSecond, spec, number);
    const auto &list = home->backend.repack;
    EXPECT_EQ(run(home, *list.kernels[list.count - 1], qk::RepackArgs{from, to}, 0), QK_OK);
    return to;
}

// ---- dequantize ------------------------------------------------------------------------------

static void dequantize(Home *home, uint64_t number, const Spec &spec, const qk::Weight &from,
                       const Visit<qk::DequantizeArgs> &visit) {
    const Format to = harness::kFloats[number % 3];
    const size_t bytes = size_t(spec.n * spec.k) * size_t(reference::bytes_of(to));
    void *const output = home->memory.space(kY, bytes, number / 3);
    const qk::DequantizeArgs args = {from, sweep::dense(to, spec.n, spec.k, output)};
    visit({number, args, [&] { poison(home, kY, output); },
           [&](Digest *digest) { digest->floats(to, home->memory.get(kY)); }});
}

void visit_dequantize(Home *home, uint64_t every, const Visit<qk::DequantizeArgs> &visit) {
    uint64_t number = 0;
    const auto each = [&](const Spec &spec) {
        if (++number, number % every != 0) return;
        Random random = random_of(1, number);
        const Data data = number % 5 == 0 ? Data::wild : Data::real;
        const Weight weight = random_weight(spec, data, &random);
        const Planes planes = pack(weight, uint32_t(random.next()));
        const qk::Weight from = place(home, kFirst, spec, &planes, number);
        dequantize(home, number, spec, from, visit);
        if (spec.layout != Layout::row || !has_packed(*home, spec.format)) return;
        dequantize(home, number, spec, repacked(home, from, spec, number), visit);
    };
    uint64_t kind = 0;
    for (Spec spec : harness::kinds()) {
        const auto &shapes = harness::shapes();
        for (size_t i = kind++ * 5 % 11; i < shapes.size(); i += 11) {
            spec.n = shapes[i].n, spec.k = shapes[i].k, spec.group_size = shapes[i].group_size;
            each(spec);
        }
    }
    for (const Format format : {Format::u4, Format::nf4, Format::lut8}) {
        Spec spec;  // stores that go past the caches
        spec.format = format, spec.scale_format = harness::kFloats[number % 3];
        spec.n = 1025, spec.k = 2080, spec.group_size = 32;
        each(spec);
    }
}

// ---- quantize --------------------------------------------------------------------------------

namespace {

enum class Input { weights, grid, zeros, constant, tiny, wild, count };

float number_of(Input input, uint64_t number, Random *random) {
    switch (input) {
        case Input::grid: return float(random->between(-64, 64)) / 64;  // ties of every rule
        case Input::zeros:
            if (random->one_in(9)) return random->weight_like();
            return random->one_in(2) ? 0.0f : -0.0f;
        case Input::constant: return number % 7 < 3 ? 0.375f : -0.375f;
        case Input::tiny: return random->any_magnitude(-149, -110);
        case Input::wild:
            switch (random->below(60)) {
                case 0: return std::numeric_limits<float>::quiet_NaN();
                case 1: return std::numeric_limits<float>::infinity();
                case 2: return -std::numeric_limits<float>::infinity();
                default: return random->any_magnitude(-149, 127);
            }
        default: return random->weight_like();
    }
}

// Ascending: bitsandbytes' own, or one of random steps.
std::vector<float> table_of(Random *random) {
    if (!random->one_in(3)) return reference::dynamic_table();
    std::vector<float> values;
    for (int i = 0; i < 256; ++i) values.push_back(float(2 * random->unit() - 1));
    std::sort(values.begin(), values.end());
    return values;
}

}  // namespace

void visit_quantize(Home *home, uint64_t every, const Visit<qk::QuantizeArgs> &visit) {
    uint64_t number = 0;
    const auto each = [&](const Spec &spec) {
        if (++number, number % every != 0) return;
        Random random = random_of(2, number);
        const Format format = harness::kFloats[number % 3];
        const Input input = Input(random.below(int64_t(Input::count)));
        std::vector<float> x;
        for (int64_t i = 0; i < spec.n * spec.k; ++i) {
            x.push_back(number_of(input, number, &random));
        }
        if (random.one_in(4)) {  // whole groups of zeros among others
            std::fill(x.begin(), x.begin() + int64_t(x.size() / 2), 0.0f);
        }
        void *const data = home->memory.put(kX, sweep::dense_bytes(format, x), number + 4);
        const qk::Weight to = place(home, kFirst, spec, nullptr, number);
        const Bytes table = sweep::dense_bytes(Format::f32, table_of(&random));
        for (void *const plane : {to.table, to.scale.code}) {
            if (plane != nullptr) write(home, plane, table);
        }
        const qk::QuantizeArgs args = {sweep::dense(format, spec.n, spec.k, data), to};
        visit({number, args, [&] { clear_planes(home, kFirst, to); },
               [&](Digest *digest) { digest_planes(home, kFirst, spec, digest); }});
    };
    uint64_t kind = 0;
    for (Spec spec : harness::kinds()) {
        const auto &shapes = harness::shapes();
        for (size_t i = kind++ * 5 % 13; i < shapes.size(); i += 13) {
            spec.n = shapes[i].n, spec.k = shapes[i].k, spec.group_size = shapes[i].group_size;
            each(spec);
        }
    }
    for (const Format format : kQuantized) {  // every level of the cascaded mean of scales
        for (const int64_t groups : {33, 513, 8200}) {
            Spec spec;
            spec.format = format, spec.nested = true, spec.zeros = format == Format::u4;
            spec.group_size = 16, spec.k = groups * 16;
            each(spec);
        }
    }
}

// ---- repack ----------------------------------------------------------------------------------

namespace {

struct Move {
    Home *home;
    const Visit<qk::RepackArgs> &visit;
    uint64_t number;

    void operator()(const qk::Weight &from, int slot, const qk::Weight &to, const Spec &spec) {
        const qk::RepackArgs args = {from, to};
        const auto clear = [&] {
            clear_planes(home, slot, to);
            clear_tables(home, slot, to);
        };
        visit({number, args, clear,
               [&](Digest *digest) { digest_planes(home, slot, spec, digest); }});
    }
};

bool may_be_flat(Layout layout) { return layout == Layout::row || layout == Layout::row_high; }

// From layout to layout, and through the packed one.
void repack_pair(Home *home, uint64_t number, Spec spec, Layout to_layout,
                 const Visit<qk::RepackArgs> &visit) {
    Random random = random_of(3, number);
    const Weight weight = random_weight(spec, Data::wild, &random);
    const Planes planes = pack(weight, uint32_t(random.next()));
    const qk::Weight from = place(home, kFirst, spec, &planes, number);
    Move move = {home, visit, number};
    Spec target = spec;
    target.layout = to_layout;
    // A weight without zeros may move into planes that have them: every zero is 8.
    if (spec.format == Format::u4 && number % 7 == 0) target.zeros = true;
    move(from, kThird, place(home, kThird, target, nullptr, number + 7), target);
    if (!has_packed(*home, spec.format)) return;
    target.zeros = spec.zeros;
    const qk::Weight packed = repacked(home, from, spec, number + 3);
    move(packed, kThird, place(home, kThird, target, nullptr, number + 9), target);
    move(from, kSecond, packed, spec);
}

}  // namespace

void visit_repack(Home *home, uint64_t every, const Visit<qk::RepackArgs> &visit) {
    constexpr Layout kLayouts[] = {Layout::row,      Layout::row_high, Layout::awq_gemm,
                                   Layout::awq_gemv, Layout::gptq,     Layout::gptq_v1,
                                   Layout::word};
    uint64_t number = 0, turn = 0;
    const auto each = [&](Spec spec, Layout to) {
        if (++number, number % every != 0) return;
        spec.zeros = spec.format == Format::u4 && number % 3 != 0;
        spec.nested = number % 4 == 3;
        spec.scale_format = harness::kFloats[number % 4 % 3];
        repack_pair(home, number, spec, to, visit);
    };
    for (const Format format : kQuantized) {
        for (const harness::Shape &shape : harness::shapes()) {
            Spec spec;
            spec.format = format;
            spec.n = shape.n, spec.k = shape.k, spec.group_size = shape.group_size;
            if (reference::eight_bit(format)) {
                spec.flat = ++turn % 2 == 0;
                if (turn % 3 == 0) each(spec, Layout::row);
                continue;
            }
            for (const Layout from : kLayouts) {
                for (const Layout to : kLayouts) {
                    if (++turn % 37 != 0) continue;
                    spec.layout = from;
                    spec.flat = may_be_flat(from) && may_be_flat(to) && turn % 2 == 0;
                    each(spec, to);
                }
            }
        }
    }
    Spec spec;  // stores that go past the caches
    spec.layout = Layout::awq_gemm, spec.n = 2065, spec.k = 4224, spec.group_size = 128;
    each(spec, Layout::awq_gemm);
}

}  // namespace record
