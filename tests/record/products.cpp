// Products: every format x layout x grouping x scale kind, types of x and bias, m = 1 to 130.
#include <cmath>
#include <cstring>
#include <limits>

#include "record/cases.hpp"

namespace record {
namespace {

using harness::Data;
using harness::Random;
using reference::Format;
using reference::Layout;
using reference::Planes;
using reference::Spec;
using reference::Weight;
using sweep::Home;
using sweep::kBias, sweep::kFirst, sweep::kX, sweep::kY;

// What x holds in addition to numbers like a layer's: infinities and NaN, and the edges of the
// numbers that blocks are summed with as integers.
constexpr float kOdd[] = {0.0f,          -0.0f,          0x1p-64f, 0x1p-65f,  0x1.fffffep63f,
                          0x1p64f,       1e-40f,         INFINITY, -INFINITY, 0x1.fc0000p1f,
                          0x1.fbfffep1f, -0x1.fffffep3f, 1e30f,    NAN};

enum class Numbers { real, integer, loud, wild, odd };

Numbers numbers_of(bool integers, Random *random) {
    switch (random->below(12)) {
        case 0: return Numbers::wild;
        case 1: return Numbers::odd;
        case 2:
        case 3: return Numbers::loud;
        case 4:
        case 5: return integers ? Numbers::integer : Numbers::real;
        default: return Numbers::real;
    }
}

Data data_of(Numbers numbers) {
    if (numbers == Numbers::integer) return Data::integer;
    return numbers == Numbers::wild ? Data::wild : Data::real;
}

float number_of(Numbers numbers, Random *random) {
    switch (numbers) {
        case Numbers::integer: return float(random->between(-8, 8));
        case Numbers::loud: return random->one_in(9) ? -20.0f : 20.0f;  // every integer the largest
        case Numbers::wild:
            if (random->one_in(40)) return random->any_magnitude(-140, 100);
            break;
        case Numbers::odd:
            if (random->one_in(90)) return kOdd[random->below(int64_t(std::size(kOdd)))];
            break;
        default: break;
    }
    return 20 * random->weight_like();
}

struct Products {
    Home *home;
    uint64_t every;
    const Visit<qk::LinearArgs> &visit;
    uint64_t number = 0;

    // One row, which has kernels of its own, in two cases of five; else every m up to 33 for small
    // products and a few rows for large ones.
    static int64_t rows(int64_t n, int64_t k, Random *random) {
        const int64_t m = random->below(5) < 2 ? 1 : random->between(1, 33);
        return m * n * k <= 40000 ? m : m % 3 + 1;
    }

    Bytes dense_numbers(Format format, int64_t count, Numbers numbers, Random *random) {
        std::vector<float> values;
        for (int64_t i = 0; i < count; ++i) values.push_back(number_of(numbers, random));
        return sweep::dense_bytes(format, values);
    }

    // The same x and bias for each of the weights, which are one in several layouts.
    void multiply(const std::vector<qk::Weight> &weights, int64_t m, Numbers numbers,
                  Random random) {
        const int64_t n = weights[0].geometry.n, k = weights[0].geometry.k;
        const Format format = harness::kFloats[random.below(3)];
        const Format bias_format = harness::kFloats[random.below(3)];
        void *const x =
            home->memory.put(kX, dense_numbers(format, m * k, numbers, &random), number + 11);
        const bool has_bias = random.one_in(2);
        const Numbers calm = numbers == Numbers::integer ? numbers : Numbers::real;
        void *const added =
            home->memory.put(kBias, dense_numbers(bias_format, n, calm, &random), number + 5);
        const qk::Dense bias = sweep::dense(bias_format, 1, n, added);
        const size_t y_bytes = size_t(m * n) * size_t(reference::bytes_of(format));
        void *const y = home->memory.space(kY, y_bytes, number + 3);
        for (const qk::Weight &w : weights) {
            const qk::LinearArgs args = {sweep::dense(format, m, k, x), w,
                                         has_bias ? &bias : nullptr, sweep::dense(format, m, n, y)};
            visit({number, args, [&] { poison(home, kY, y); },
                   [&](Digest *digest) { digest->floats(format, home->memory.get(kY)); }});
        }
    }

    // m = 0: as rows() says.
    void quantized(const Spec &spec, int64_t m) {
        if (++number, number % every != 0) return;
        Random random = random_of(4, number);
        const Numbers numbers = numbers_of(harness::has_integer_data(spec.format), &random);
        const Weight weight = random_weight(spec, data_of(numbers), &random);
        const Planes planes = pack(weight, uint32_t(random.next()));
        std::vector<qk::Weight> weights = {place(home, kFirst, spec, &planes, number)};
        if (spec.layout == Layout::row && has_packed(*home, spec.format)) {
            weights.push_back(repacked(home, weights[0], spec, number));
        }
        multiply(weights, m == 0 ? rows(spec.n, spec.k, &random) : m, numbers, random);
    }

    void dense(Format format, int64_t n, int64_t k) {
        if (++number, number % every != 0) return;
        Random random = random_of(5, number);
        const Numbers numbers = numbers_of(true, &random);
        qk::Weight w = {};
        w.format = qk::find_format(harness::code(format));
        w.geometry = {n, k, k, 1, 0, false};
        w.data = home->memory.put(kFirst, dense_numbers(format, n * k, numbers, &random), number);
        multiply({w}, rows(n, k, &random), numbers, random);
    }

    void every_kind_and_shape();
    void batches();
    void columns_of_codes();
    void long_rows();
    void whole_tiles();
};

void Products::every_kind_and_shape() {
    const auto &shapes = harness::shapes();
    uint64_t kind = 0;
    for (Spec spec : harness::kinds()) {
        for (size_t i = kind++ * 5 % 11; i < shapes.size(); i += 11) {
            spec.n = shapes[i].n, spec.k = shapes[i].k, spec.group_size = shapes[i].group_size;
            quantized(spec, 0);
        }
    }
    for (const Format format : harness::kFloats) {
        for (size_t i = 0; i < shapes.size(); i += 2) dense(format, shapes[i].n, shapes[i].k);
    }
}

// The tiles of m, n and k at once, on what real layers look like.
void Products::batches() {
    constexpr int64_t kRows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 24, 33, 66, 130};
    constexpr int64_t kGroups[] = {16, 32, 64, 128, 256, -1, 48};
    uint64_t turn = 0;
    for (Spec spec : harness::kinds()) {
        const bool row = spec.layout == Layout::row && !spec.flat;
        for (int i = 0; i < (row ? 6 : 2); ++i, ++turn) {
            spec.n = 41, spec.k = 530 - int64_t(turn % 4) * 6, spec.group_size = kGroups[turn % 7];
            quantized(spec, kRows[turn % std::size(kRows)]);
        }
    }
}

// Layouts that store columns: tiles and strips that end anywhere, groups and blocks that are cut.
void Products::columns_of_codes() {
    constexpr int64_t kRows[] = {7, 16, 31, 120, 128, 129, 250, 264, 1024, 1031, 2050};
    constexpr int64_t kColumns[] = {8, 100, 128, 130, 256, 385, 640, 144};
    int64_t turn = 0;
    for (const Layout layout : {Layout::awq_gemm, Layout::gptq, Layout::gptq_v1}) {
        for (const Format format : {Format::u4, Format::u4, Format::nf4}) {
            for (const int64_t group : {16, 32, 48, 64, 128, 256, 128, -1}) {
                ++turn;
                Spec spec;
                spec.format = format, spec.layout = layout, spec.group_size = group;
                spec.n = kRows[turn % 11], spec.k = kColumns[turn % 8];
                spec.scale_format = harness::kFloats[turn % 3], spec.nested = turn % 4 == 3;
                spec.zeros = format == Format::u4 && turn % 5 != 0;
                quantized(spec, turn % 3 == 0 && spec.n < 300 ? 2 + turn % 7 : 1);
            }
        }
    }
}

// More columns than a task keeps of x and of scales at once.
void Products::long_rows() {
    uint64_t turn = 0;
    for (const int64_t k : {16384, 16384 + 130, 40000}) {
        for (const Format format : kQuantized) {
            for (const Layout layout : {Layout::row, Layout::awq_gemm, Layout::gptq}) {
                if (reference::eight_bit(format) && layout != Layout::row) continue;
                constexpr int64_t kGroups[] = {128, 64, 3968, -1, 32};
                Spec spec;
                spec.format = format, spec.layout = layout, spec.n = 9, spec.k = k;
                spec.group_size = kGroups[++turn % 5];
                spec.scale_format = harness::kFloats[turn % 3];
                spec.zeros = format == Format::u4;
                quantized(spec, turn % 4 == 0 ? 3 : 1);
            }
        }
    }
}

// Every group, scale and batch of the packed layout's kernels, and of those from stored layouts.
void Products::whole_tiles() {
    constexpr int64_t kRows[] = {1, 2, 3, 5, 8, 9, 16, 17, 24, 25, 33, 64, 65, 130, 256};
    constexpr int64_t kGroups[] = {16, 32, 64, 128, 256, -1};
    constexpr int64_t kSides[] = {64, 128, 80, 256, 32, 192};
    uint64_t turn = 0;
    every = every > 16 ? every / 16 : 1;  // there are few
    for (int round = 0; round < 6; ++round) {
        for (Spec spec : harness::kinds()) {
            if (spec.flat) continue;
            ++turn;
            spec.n = kSides[turn % 6], spec.k = kSides[turn / 6 % 6] * 2;
            spec.group_size = kGroups[turn % 7 % 6];
            quantized(spec, kRows[turn % std::size(kRows)]);
        }
    }
}

}  // namespace

void visit_linear_tiles(Home *home, uint64_t every, const Visit<qk::LinearArgs> &visit) {
    Products products = {home, every, visit};
    products.every_kind_and_shape();
    products.batches();
    products.columns_of_codes();
    products.long_rows();
    products.whole_tiles();
}

void visit_linear(Home *home, uint64_t every, const Visit<qk::LinearArgs> &visit) {
    Products products = {home, every, visit};
    products.every_kind_and_shape();
    products.batches();
    products.columns_of_codes();
    products.long_rows();
}

void visit_linear_along_k(Home *home, uint64_t every, const Visit<qk::LinearArgs> &visit) {
    visit_linear(home, every, [&](const Case<qk::LinearArgs> &c) {
        if (!c.args.w.geometry.flat) visit(c);
    });
}

}  // namespace record
