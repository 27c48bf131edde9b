// The oracles of qk_linear. The CPU's modes have documented bits (the reference's where it is quick
// enough, else the generic kernel's, which small cases and `--isa generic` compare with it); bf16
// products and CUDA have bounds.
#include "soak/expect.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/kernels.hpp"
#include "harness/scratch.hpp"

namespace soak {
namespace {

float number(const Case &c, Random *random) {
    switch (c.inputs) {
        case Inputs::integer: return float(random->between(-8, 8));
        case Inputs::wild:
            return random->one_in(40) ? random->any_magnitude(-140, 100)
                                      : 20 * random->weight_like();
        default: return 20 * random->weight_like();
    }
}

void poison_x(const Case &c, Problem *p, Random *random) {
    for (int64_t i = 0; i < 1 + c.m / 9; ++i) {
        const float value = random->one_in(2) ? NAN : INFINITY;
        p->x[size_t(random->below(c.m) * c.spec.k + random->below(c.spec.k))] = value;
    }
}

bool integers_fit(const Case &c) {
    // |x| <= 8, entries to 15 (E2M1 6, 8 bits 15), scales to 4: below 2^24 as f32 sums.
    return c.spec.k <= 30000;
}

reference::Product product_of(const Problem &p) {
    const Case &c = *p.c;
    reference::Product product;
    product.x = p.x, product.bias = p.bias;
    product.m = c.m, product.n = c.spec.n, product.k = c.spec.k;
    if (c.dense_weight) {
        product.entries = p.weight;
        product.scales = {1.0f};
        product.groups = reference::dense_groups(c.spec.n, c.spec.k);
    } else {
        product.entries = reference::entries(p.w->meaning);
        product.scales = reference::scale_values(p.w->meaning);
        product.minima = reference::minimum_values(p.w->meaning);
        product.groups = reference::groups_of(c.spec);
        product.entry_steps = entry_steps(c.spec);
    }
    return product;
}

void same_bits(const Problem &p, const std::vector<float> &expected, const Bytes &y,
               const char *what) {
    const Format format = p.c->x_format;
    const std::vector<uint32_t> got = sweep::dense_bits(format, y);
    for (size_t i = 0; i < got.size(); ++i) {
        const uint32_t bits = reference::encode(format, expected[i]);
        if (reference::same(format, got[i], bits)) continue;
        fail("%s: y[%lld, %lld] is %g (%x), expected %g (%x)", what, (long long)i / p.c->spec.n,
             (long long)i % p.c->spec.n, double(reference::decode(format, got[i])), got[i],
             double(expected[i]), bits);
    }
}

void within_bound(const Problem &p, const reference::Bounded &bound, const Bytes &y) {
    const Format format = p.c->x_format;
    const std::vector<uint32_t> got = sweep::dense_bits(format, y);
    for (size_t i = 0; i < got.size(); ++i) {
        if (reference::within(format, got[i], bound.value[i], bound.bound[i])) continue;
        fail("y[%lld, %lld] is %g, expected %g within %g", (long long)i / p.c->spec.n,
             (long long)i % p.c->spec.n, double(reference::decode(format, got[i])), bound.value[i],
             bound.bound[i]);
    }
}

// One row of a product that is too large for the reference as a whole.
// Batches round weights, fewer rows of x their entries.
reference::Bounded bf16_bound(const Case &c, const Contents &w, const Problem &p) {
    if (c.m >= reference::kBf16Batch) return reference::linear_bf16_batch(product_of(p));
    return reference::linear_bf16(w.meaning, product_of(p));
}

void expect_bf16_row(const Problem &p, int64_t row, const Bytes &y) {
    const int64_t n = p.c->spec.n, k = p.c->spec.k;
    Contents w = *p.w;
    if (!w.small) w.meaning = reference::unpack(p.c->spec, w.planes);
    Case one = *p.c;
    one.m = 1;
    Problem part = p;
    part.c = &one, part.w = &w;
    part.x = {p.x.begin() + row * k, p.x.begin() + (row + 1) * k};
    const int64_t bytes = n * reference::bytes_of(one.x_format);
    within_bound(part, bf16_bound(*p.c, w, part),
                 Bytes(y.begin() + row * bytes, y.begin() + (row + 1) * bytes));
}

bool takes_int8(const Case &c) {
    const Format format = c.spec.format;
    if (c.dense_weight || format == Format::lut8 || format == Format::lut4 ||
        format == Format::e4m3) {
        return false;
    }
    const reference::Groups groups = reference::groups_of(c.spec);
    const bool steps = c.spec.k % 16 == 0 && groups.size % 16 == 0;
    return !groups.flat || (steps && !reference::eight_bit(format));
}

// The bits of the generic kernel on aligned memory.
Bytes generic(const Problem &p, const qk::Kernel<qk::LinearArgs> &kernel) {
    const Case &c = *p.c;
    Bytes y(size_t(c.m * c.spec.n * reference::bytes_of(c.x_format)));
    Bytes x = p.x_bytes, bias = p.bias_bytes;
    const qk::Dense b = sweep::dense(c.bias_format, 1, c.spec.n, bias.data());
    const qk::LinearArgs args = {sweep::dense(c.x_format, c.m, c.spec.k, x.data()),
                                 host_view(c, *p.w), c.bias ? &b : nullptr,
                                 sweep::dense(c.x_format, c.m, c.spec.n, y.data())};
    Bytes workspace(qk::workspace_of(kernel, args, {}) + 64);
    void *const aligned =
        reinterpret_cast<void *>((reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64);
    qk::ErrorText error = {};
    const qk::Launch launch = {sweep::parallel_of(0), nullptr, {},      aligned,
                               workspace.size(),      &error,  nullptr, harness::dirty_scratch()};
    if (kernel.run(args, launch) != QK_OK) fail("generic: %s", error.text);
    return y;
}

std::vector<float> floats(Format format, const Bytes &bytes) {
    std::vector<float> values;
    for (const uint32_t bits : sweep::dense_bits(format, bytes)) {
        values.push_back(reference::decode(format, bits));
    }
    return values;
}

bool finite(const std::vector<float> &row) {
    return std::all_of(row.begin(), row.end(), [](float value) { return std::isfinite(value); });
}

// Sum and sum of magnitudes of x . w and of |x|, eight chains each.
struct Sums {
    double value = 0, magnitude = 0, inputs = 0;
};
Sums dot(const float *x, const float *w, int64_t k) {
    double sum[8] = {}, size[8] = {}, of_x[8] = {};
    for (int64_t c = 0; c < k; ++c) {
        const double term = double(x[c]) * double(w[c]);
        sum[c % 8] += term;
        size[c % 8] += std::fabs(term);
        of_x[c % 8] += std::fabs(double(x[c]));
    }
    Sums all;
    for (int i = 0; i < 8; ++i) {
        all.value += sum[i], all.magnitude += size[i], all.inputs += of_x[i];
    }
    return all;
}

}  // namespace

Problem problem(const Case &c, const Contents &w, Random *random) {
    Problem p = {&c, &w, {}, {}, {}, {}, {}};
    const int64_t k = c.spec.k;
    for (int64_t i = 0; i < c.m; ++i) {
        const bool sparse = c.inputs == Inputs::sparse;
        for (int64_t j = 0; j < k; ++j) p.x.push_back(sparse ? 0.0f : number(c, random));
        for (int64_t j = 0; sparse && j < 3; ++j) {
            p.x[size_t(i * k + random->below(k))] = number(c, random);
        }
    }
    if (c.inputs == Inputs::wild) poison_x(c, &p, random);
    p.x = sweep::rounded(c.x_format, p.x);
    if (c.bias) {
        for (int64_t i = 0; i < c.spec.n; ++i) p.bias.push_back(number(c, random));
        p.bias = sweep::rounded(c.bias_format, p.bias);
    }
    p.x_bytes = sweep::dense_bytes(c.x_format, p.x);
    p.bias_bytes = sweep::dense_bytes(c.bias_format, p.bias);
    for (const uint32_t bits : dequantized(c, w, Format::f32)) {
        p.weight.push_back(reference::decode(Format::f32, bits));
    }
    return p;
}

void expect_on_cpu(const Problem &p, const Bytes &y) {
    const Case &c = *p.c;
    const bool plain = p.w->small || c.dense_weight;
    const bool slow = double(c.m) * double(c.spec.n) * double(c.spec.k) > 3e6;
    if ((c.flags & QK_CONTEXT_INT8_ACTIVATIONS) && takes_int8(c)) {
        if (slow || !plain) {
            const Bytes bits = generic(p, qk::cpu::kLinearInt8Generic);
            return same_bits(p, floats(c.x_format, bits), y, "int8 mode, the generic kernel");
        }
        return same_bits(p, reference::linear_int8(p.w->meaning, product_of(p)), y, "int8 mode");
    }
    std::vector<float> exact;
    if (slow || !plain) {
        exact = floats(c.x_format, generic(p, qk::cpu::kLinearGeneric));
    } else {
        exact = reference::linear_ordered(product_of(p));
    }
    const bool may_round = (c.flags & QK_CONTEXT_BF16_PRODUCTS) && !c.dense_weight;
    if (!may_round) return same_bits(p, exact, y, "the documented order");
    try {
        same_bits(p, exact, y, "exact");
        return;
    } catch (const Failure &) {  // it rounds
    }
    if (c.inputs == Inputs::wild) return;
    if (plain && !slow) {
        return within_bound(p, bf16_bound(c, *p.w, p), y);
    }
    for (const int64_t row : {int64_t(0), c.m / 2, c.m - 1}) expect_bf16_row(p, row, y);
}

// The bounds of docs/formats.md. u is one rounding to x's type. Weights are taken as they are up to
// 64 rows without a workspace (entries of tables rounded once); else scale, entry and product may
// be rounded, each to half of 2^-24 at least in f16, entries up to 15 (IQ4_NL's: 127), and the
// bias. A sum adds up k terms in f32, each addition off by at most 2^-23 (tensor cores truncate);
// f32 x is up to three terms of a value, so six products stand for one, each pair of terms complete
// to 2^-22.
void expect_on_cuda(const Problem &p, const Bytes &y) {
    const Case &c = *p.c;
    const int64_t n = c.spec.n, k = c.spec.k;
    const bool wide = c.x_format == Format::f32;
    const bool table =
        !c.dense_weight && c.spec.format != Format::u4 && c.spec.format != Format::s8;
    const double u = c.x_format == Format::f16 ? 0x1p-11 : c.x_format == Format::bf16 ? 0x1p-8 : 0;
    const double relative = wide ? 0x1p-22 : u * (p.tight ? (table ? 1.0 : 0.0) : 3.01);
    const double most = !c.dense_weight && c.spec.format == Format::iq4_nl ? 129 : 17;
    const double absolute = p.tight || c.x_format != Format::f16 ? 0 : most * 0x1p-25;
    const double additions =
        (p.tight ? 128 + double(k) / 4 : 2 * double(k) + 128) * (wide ? 6 : 1) + 1;
    const std::vector<uint32_t> got = sweep::dense_bits(c.x_format, y);
    for (int64_t i = 0; i < c.m; ++i) {
        const float *const x = &p.x[size_t(i * k)];
        const bool is_finite = finite({x, x + k});
        for (int64_t row = 0; row < n; ++row) {
            const uint32_t bits = got[size_t(i * n + row)];
            const double result = reference::decode(c.x_format, bits);
            const Sums sums = dot(x, &p.weight[size_t(row * k)], k);
            const double bias = p.bias.empty() ? 0 : double(p.bias[size_t(row)]);
            const double size = sums.magnitude + std::fabs(bias);
            if (!is_finite || size > 1e30) {  // whatever the order, nothing finite comes of it
                if (!is_finite && std::isfinite(result)) {
                    fail("y[%lld, %lld] is %g though x is not finite", (long long)i, (long long)row,
                         result);
                }
                continue;
            }
            if (size == 0 && std::isnan(sums.value)) continue;
            const double bound = sums.magnitude * (relative + 0x1p-24) + sums.inputs * absolute +
                                 (p.tight ? 0 : u * std::fabs(bias)) + size * additions * 0x1p-23 +
                                 double(k) * 0x1p-140;
            const double exact = sums.value + bias;
            if (c.inputs == Inputs::integer && integers_fit(c)) {
                if (bits == reference::encode(c.x_format, float(exact))) continue;
                fail("y[%lld, %lld] is %g, an exact sum is %g", (long long)i, (long long)row,
                     result, exact);
            }
            if (reference::within(c.x_format, bits, exact, bound)) continue;
            fail("y[%lld, %lld] is %g, expected %g within %g", (long long)i, (long long)row, result,
                 exact, bound);
        }
    }
}

}  // namespace soak
