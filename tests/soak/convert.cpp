// dequantize, repack and quantize: every byte as docs/formats.md has it, whatever the backend.
#include <algorithm>
#include <cstring>

#include "cpu/kernels.hpp"
#include "harness/scratch.hpp"
#include "soak/soak.hpp"

namespace soak {

std::vector<uint32_t> dequantized(const Case &c, const Contents &w, Format format) {
    if (w.small) return reference::dequantize(w.meaning, format);
    const size_t count = size_t(c.spec.n * c.spec.k);
    Bytes bytes(count * size_t(reference::bytes_of(format)));
    if (c.dense_weight) {
        const auto bits = sweep::dense_bits(c.dense_format, w.planes.data);
        std::vector<float> values;
        for (const uint32_t one : bits) values.push_back(reference::decode(c.dense_format, one));
        return sweep::dense_bits(format, sweep::dense_bytes(format, values));
    }
    const qk::DequantizeArgs args = {host_view(c, w),
                                     sweep::dense(format, c.spec.n, c.spec.k, bytes.data())};
    qk::ErrorText error = {};
    const qk::Launch launch = {sweep::parallel_of(0),   nullptr, {}, nullptr, 0, &error, nullptr,
                               harness::dirty_scratch()};
    if (qk::cpu::kDequantizeGeneric.run(args, launch) != QK_OK) fail("generic: %s", error.text);
    return sweep::dense_bits(format, bytes);
}

static void same_floats(Format format, const Bytes &expected, const Bytes &got, const char *what) {
    if (expected == got) return;
    const auto a = sweep::dense_bits(format, expected), b = sweep::dense_bits(format, got);
    if (a.size() != b.size()) fail("%s: sizes differ", what);
    for (size_t i = 0; i < a.size(); ++i) {
        if (!reference::same(format, a[i], b[i])) {
            fail("%s: element %zu is %x, expected %x", what, i, b[i], a[i]);
        }
    }
}

void same_planes(const Case &c, const reference::Planes &expected, const Tensor &got,
                 const char *what) {
    for (int plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        const Bytes &a = harness::plane_of(expected, plane);
        const Bytes b = got.bytes(plane);
        if (a == b) continue;
        if (plane == QK_PLANE_SCALE && !c.spec.nested && !c.dense_weight) {
            same_floats(c.spec.scale_format, a, b, what);
        } else if (plane == QK_PLANE_SCALE2 || plane == QK_PLANE_SCALE_BIAS) {
            same_floats(Format::f32, a, b, what);
        } else {
            size_t at = 0;
            while (at < std::min(a.size(), b.size()) && a[at] == b[at]) ++at;
            fail("%s: byte %zu of plane %d differs", what, at, plane);
        }
    }
}

static Bytes to_bytes(Format format, const std::vector<uint32_t> &bits) {
    const size_t size = size_t(reference::bytes_of(format));
    Bytes bytes(bits.size() * size);
    for (size_t i = 0; i < bits.size(); ++i) std::memcpy(&bytes[i * size], &bits[i], size);
    return bytes;
}

static ContextOptions options_of(const Case &c) { return {c.threads, c.executor, c.flags, 0}; }

void check_dequantize(World *world, const Case &c, Random *random) {
    const Contents w = contents(c, random);
    const Context context(*world, options_of(c));
    const Tensor from(world, context, describe_weight(c), &w.planes, kW, place(*world, random));
    qk_tensor_desc packed_desc = from.desc;
    packed_desc.layout = QK_LAYOUT_PACKED;
    const Tensor packed(*world, context, packed_desc);
    context.expect_ok(qk_repack(context.get(), from.get(), packed.get()), "qk_repack");
    for (const Format format : harness::kFloats) {
        const Bytes expected = to_bytes(format, dequantized(c, w, format));
        for (const Tensor *const each : {&from, &packed}) {
            const Tensor dense(world, context, harness::describe_dense(format, c.spec.n, c.spec.k),
                               nullptr, kY, place(*world, random));
            context.expect_ok(qk_dequantize(context.get(), each->get(), dense.get()),
                              "qk_dequantize");
            context.synchronize();
            same_floats(format, expected, dense.bytes(0),
                        each == &packed ? "from packed" : "qk_dequantize");
            intact(world, "qk_dequantize");
        }
    }
    same_planes(c, w.planes, from, "the weight after qk_dequantize");
}

void check_repack(World *world, const Case &c, Random *random) {
    const Contents w = contents(c, random);
    const Context context(*world, options_of(c));
    const Tensor from(world, context, describe_weight(c), &w.planes, kW, place(*world, random));
    Case there = c;
    there.spec.layout = c.second;
    // No zeros means eights, which a tensor with zeros can hold too.
    const bool eights = c.spec.format == Format::u4 && !c.spec.float_min;
    there.spec.zeros = c.spec.zeros || (eights && random->one_in(3));
    reference::Weight meaning = w.small ? w.meaning : reference::unpack(c.spec, w.planes);
    meaning.spec = there.spec;
    if (there.spec.zeros && !c.spec.zeros) meaning.zeros.assign(meaning.scales.size(), 8);
    const reference::Planes expected = reference::pack(meaning);
    const Tensor to(world, context, describe_weight(there), nullptr, kTo, place(*world, random));
    if (random->one_in(2)) {  // by way of the packed layout
        qk_tensor_desc packed_desc = (random->one_in(2) ? from : to).desc;
        packed_desc.layout = QK_LAYOUT_PACKED;
        const Tensor packed(*world, context, packed_desc);
        context.expect_ok(qk_repack(context.get(), from.get(), packed.get()), "qk_repack");
        context.expect_ok(qk_repack(context.get(), packed.get(), to.get()), "from packed");
        context.synchronize();
    } else {
        context.expect_ok(qk_repack(context.get(), from.get(), to.get()), "qk_repack");
        context.synchronize();
    }
    same_planes(there, expected, to, "qk_repack");
    same_planes(c, w.planes, from, "the weight after qk_repack");
    intact(world, "qk_repack");
}

static float number(const Case &c, Random *random) {
    switch (c.inputs) {
        case Inputs::integer: return float(random->between(-64, 64)) / 64;
        case Inputs::sparse: return random->one_in(9) ? random->weight_like() : 0.0f;
        case Inputs::wild:
            if (random->one_in(200)) return random->one_in(2) ? NAN : -INFINITY;
            return random->any_magnitude(-149, 127);
        default: return random->weight_like() * c.scale_up;
    }
}

void check_quantize(World *world, const Case &c, Random *random) {
    std::vector<float> x;
    for (int64_t i = 0; i < c.spec.n * c.spec.k; ++i) x.push_back(number(c, random));
    x = sweep::rounded(c.x_format, x);
    const std::vector<float> table = reference::dynamic_table();
    const reference::Quantized made = reference::quantize(c.spec, x, table, table, c.x_format);
    reference::Planes expected = reference::pack(made.weight);
    if (c.spec.layout == Layout::row_high && c.spec.n * c.spec.k % 2 != 0) {
        expected.data.back() |= made.tail_nibble;
    }
    reference::Planes input;
    input.data = sweep::dense_bytes(c.x_format, x);
    const Context context(*world, options_of(c));
    const Tensor dense(world, context, harness::describe_dense(c.x_format, c.spec.n, c.spec.k),
                       &input, kX, place(*world, random));
    reference::Planes start = expected;  // tables are the caller's, the rest is poison
    for (int plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        Bytes &bytes = harness::plane_of(start, plane);
        if (plane != QK_PLANE_TABLE && plane != QK_PLANE_SCALE_CODE) {
            std::fill(bytes.begin(), bytes.end(), harness::kPoison);
        }
    }
    const Tensor to(world, context, describe_weight(c), &start, kTo, place(*world, random));
    context.expect_ok(qk_quantize(context.get(), dense.get(), to.get()), "qk_quantize");
    context.synchronize();
    same_planes(c, expected, to, "qk_quantize");
    if (dense.bytes(0) != input.data) fail("qk_quantize changed its input");
    intact(world, "qk_quantize");
}

}  // namespace soak
