// What a case is, from one number: sizes lean to edges, everything else is uniform enough.
#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "soak/soak.hpp"

namespace soak {
namespace {

// Next to the tiles of the kernels (8, 16, 32, 64, 128, 192, 256, 512, 768), and as layers have it.
constexpr int64_t kUnits[] = {8,    16,   32,   48,   64,    80,    96,    128,   160,   192,  256,
                              320,  384,  512,  640,  768,   1024,  1280,  1536,  2048,  2304, 3072,
                              4096, 5120, 6144, 8192, 11008, 12288, 14336, 16384, 20480, 28672};

int64_t size(int64_t limit, Random *random) {
    if (limit <= 2 || random->one_in(20)) return random->between(1, std::max<int64_t>(limit, 1));
    if (random->one_in(5)) return std::min(limit, random->between(1, 9));
    if (random->one_in(4)) return int64_t(std::exp(random->unit() * std::log(double(limit))));
    int64_t fitting = 0;
    while (fitting < int64_t(std::size(kUnits)) && kUnits[fitting] <= limit) ++fitting;
    if (fitting == 0) return random->between(1, limit);
    const int64_t unit = kUnits[random->below(fitting)];
    if (random->one_in(3)) {  // a few of them
        return unit * random->between(1, std::max<int64_t>(1, std::min<int64_t>(7, limit / unit)));
    }
    return std::min(limit, unit + (random->one_in(2) ? 0 : random->between(-1, 1)));
}

template <class T, size_t count>
T one_of(const T (&list)[count], Random *random) {
    return list[random->below(int64_t(count))];
}

// Most cases are small enough for the plain reference; some are as large as kernels have tiles.
int64_t budget(qk_device device, Random *random) {
    const int64_t pick = random->below(100);
    if (pick < 78) return int64_t(std::exp2(6 + 10 * random->unit()));
    if (pick < 96) return int64_t(std::exp2(16 + 4 * random->unit()));
    return int64_t(std::exp2(20 + (device == QK_DEVICE_CUDA ? 4 : 2) * random->unit()));
}

void draw_shape(Case *c, qk_device device, Random *random) {
    const int64_t codes = budget(device, random);
    const int64_t way = random->below(5);
    if (way == 0) {  // long
        c->spec.k = size(std::min<int64_t>(codes, 40000), random);
        c->spec.n = size(std::max<int64_t>(codes / c->spec.k, 1), random);
    } else if (way == 1) {  // flat
        c->spec.n = size(std::min<int64_t>(codes, 40000), random);
        c->spec.k = size(std::max<int64_t>(codes / c->spec.n, 1), random);
    } else {
        const int64_t side = std::max<int64_t>(int64_t(std::sqrt(double(codes)) * 2), 2);
        c->spec.k = size(std::min(codes, side), random);
        c->spec.n = size(std::max<int64_t>(codes / c->spec.k, 1), random);
    }
}

void draw_groups(Case *c, Random *random) {
    const int64_t usual[] = {32, 64, 64, 64, 128, 128, 128, 256, -1, 16, 512};
    const int64_t odd[] = {17, 33, 48, 96, 100, 127, 192, 384, 1024, 1000, 4096};
    c->spec.group_size = random->below(5) < 4 ? one_of(usual, random) : one_of(odd, random);
    if (random->one_in(3)) return;
    // Often k is whole groups, as layers have it.
    const int64_t group = c->spec.group_size;
    if (group > 0 && c->spec.k > group) c->spec.k = c->spec.k / group * group;
}

void draw_small_scale(Case *c, Random *random) {
    using reference::Global;
    constexpr Global globals[] = {Global::none, Global::one, Global::one_divides, Global::rows,
                                  Global::rows_divide};
    c->spec.scale_format = random->one_in(2) ? Format::e8m0 : Format::e4m3;
    c->spec.global = globals[random->below(c->spec.flat ? 3 : 5)];
}

// Of those, what has a rule for quantizing.
void draw_quantized_small_scale(Case *c, Random *random) {
    if (c->spec.format != Format::fp4_e2m1 && c->spec.format != Format::e4m3) return;
    draw_small_scale(c, random);
    if (c->spec.format == Format::e4m3) c->spec.scale_format = Format::e8m0;
    if (c->spec.scale_format == Format::e8m0) c->spec.global = reference::Global::none;
}

void draw_weight(Case *c, Random *random) {
    constexpr Format formats[] = {Format::u4,  Format::u4,       Format::u4,       Format::nf4,
                                  Format::nf4, Format::fp4_bnb,  Format::fp4_e2m1, Format::lut8,
                                  Format::s8,  Format::fp4_e2m1, Format::lut4,     Format::e4m3};
    constexpr Layout layouts[] = {Layout::row,      Layout::row_high, Layout::awq_gemm,
                                  Layout::awq_gemv, Layout::gptq,     Layout::gptq_v1,
                                  Layout::word};
    c->spec.format = one_of(formats, random);
    const bool quantizes = c->op == Op::quantize || c->op == Op::refuse;
    if (quantizes && c->spec.format == Format::lut4) c->spec.format = Format::fp4_e2m1;
    const bool wide = reference::eight_bit(c->spec.format);
    c->spec.layout = wide ? Layout::row : one_of(layouts, random);
    c->spec.zeros = c->spec.format == Format::u4 && random->below(4) < 3;
    const bool may_flat = c->spec.layout == Layout::row || c->spec.layout == Layout::row_high;
    c->spec.flat = may_flat && c->spec.group_size > 0 && random->one_in(3);
    c->spec.nested = random->one_in(4);
    constexpr int64_t second[] = {256, 256, 16, 64, 100};
    c->spec.second_group = one_of(second, random);
    c->spec.scale_format = c->spec.nested ? Format::f32 : one_of(harness::kFloats, random);
    if (!quantizes && !c->spec.nested && random->one_in(3)) draw_small_scale(c, random);
    if (quantizes && !c->spec.nested && random->one_in(2)) draw_quantized_small_scale(c, random);
    c->spec.whole_range = quantizes && c->spec.format == Format::s8 && random->one_in(2);
    c->second = wide ? Layout::row : one_of(layouts, random);
    if (c->spec.flat && c->second != Layout::row) c->second = Layout::row_high;
}

// Minima, scales of I8 and ggml's tables: in the records of a file, or as planes.
void draw_ggml(Case *c, Random *random) {
    const std::vector<reference::RecordKind> &kinds = reference::record_kinds();
    const reference::RecordKind &kind = kinds[random->below(kinds.size())];
    const bool wide = reference::eight_bit(kind.format);
    Spec &spec = c->spec;
    spec.format = kind.format;
    spec.scale_format = kind.scale_format;
    spec.float_min = kind.has_minimum;
    spec.nested = spec.zeros = false;
    spec.global = reference::Global::none;
    if (kind.second_group > 0) spec.second_group = kind.second_group;
    if (wide) spec.layout = c->second = Layout::row;
    if (random->one_in(2)) {
        spec.layout = kind.layout;
        spec.flat = false;
    }
    harness::cut(&spec, {spec.n, spec.k, spec.group_size});
    spec.n = std::min(spec.n, std::max<int64_t>(1, (1 << 17) / spec.k));  // the reference's alone
}

int64_t rows(const Case &c, qk_device device, Random *random) {
    constexpr int64_t edges[] = {
        1,   1,   1,   2,   3,   4,   5,   7,   8,   9,    12,   15,   16,   17,   24,  31,  32,
        33,  40,  47,  48,  49,  63,  64,  65,  80,  96,   127,  128,  129,  160,  191, 192, 193,
        255, 256, 257, 300, 384, 511, 512, 513, 640, 1000, 1023, 1024, 1025, 1500, 2048};
    const int64_t work = device == QK_DEVICE_CUDA ? int64_t{1} << 28 : int64_t{1} << 24;
    const int64_t most = std::max<int64_t>(1, work / (c.spec.n * c.spec.k));
    const int64_t x_most = std::max<int64_t>(1, (int64_t{1} << 21) / std::max(c.spec.n, c.spec.k));
    return std::min(
        {random->one_in(5) ? random->between(1, 70) : one_of(edges, random), most, x_most});
}

Op draw_op(qk_device device, Random *random) {
    const int64_t pick = random->below(100);
    if (pick < 13) return Op::dequantize;
    if (pick < 28) return Op::repack;
    if (pick < 40) return Op::quantize;
    if (pick < 45) return Op::refuse;
    return pick < 55 && device == QK_DEVICE_CUDA ? Op::queue : Op::linear;
}

}  // namespace

Case draw(uint64_t number, qk_device device) {
    Random random(number);
    Case c;
    c.number = number;
    c.op = draw_op(device, &random);
    draw_shape(&c, device, &random);
    draw_groups(&c, &random);
    draw_weight(&c, &random);
    const bool values = c.op == Op::dequantize || c.op == Op::repack || c.op == Op::linear;
    if (values && random.one_in(4)) draw_ggml(&c, &random);
    c.m = rows(c, device, &random);
    c.dense_weight = c.op == Op::linear && random.one_in(9);
    c.dense_format = one_of(harness::kFloats, &random);
    c.x_format = one_of(harness::kFloats, &random);
    if (random.one_in(3)) c.x_format = Format::f16;
    c.bias = random.one_in(2);
    c.bias_format = one_of(harness::kFloats, &random);
    c.packed = random.one_in(2);
    c.inputs = Inputs(random.below(int64_t(Inputs::count)));
    if (c.inputs == Inputs::wild && random.one_in(2)) c.inputs = Inputs::real;
    c.data = random.one_in(8) ? Data::wild : Data::real;
    if (c.op == Op::linear) {
        c.data = Data::real;
        const bool exact = c.dense_weight || harness::has_integer_data(c.spec.format);
        if (c.inputs == Inputs::integer && !exact) c.inputs = Inputs::sparse;
        if (c.inputs == Inputs::integer) c.data = Data::integer;
        if (c.data == Data::real && random.one_in(8)) {
            c.scale_up = float(std::exp2(double(random.between(-9, 9))));
        }
    }
    if (device == QK_DEVICE_CPU && c.op == Op::linear && random.one_in(3)) {
        c.flags = random.one_in(2) ? QK_CONTEXT_INT8_ACTIVATIONS : QK_CONTEXT_BF16_PRODUCTS;
    }
    constexpr int32_t threads[] = {1, 1, 2, 3, 4, 7, 16};
    c.threads = one_of(threads, &random);
    c.executor = random.one_in(4);
    c.room = Room(random.below(3));
    return c;
}

const char *name(Op op) {
    constexpr const char *names[] = {"dequantize", "repack", "quantize",
                                     "linear",     "queue",  "refuse"};
    return names[int(op)];
}

std::string describe(const Case &c) {
    constexpr const char *inputs[] = {"real", "integer", "sparse", "wild"};
    constexpr const char *rooms[] = {"none", "best", "little"};
    std::string text = name(c.op);
    text += ' ';
    if (c.dense_weight) {
        text += std::string("dense ").append(reference::name(c.dense_format));
        text += " n " + std::to_string(c.spec.n) + " k " + std::to_string(c.spec.k);
    } else {
        text += harness::title(c.spec);
        if (c.spec.nested) text += " second " + std::to_string(c.spec.second_group);
    }
    if (c.op == Op::repack) text += std::string(" to ").append(reference::name(c.second));
    if (c.packed) text += " packed";
    text += " m " + std::to_string(c.m) + " x ";
    text += reference::name(c.x_format);
    text += std::string(" inputs ").append(inputs[int(c.inputs)]);
    if (c.bias) text += std::string(" bias ").append(reference::name(c.bias_format));
    if (c.scale_up != 1) text += " scales x " + std::to_string(c.scale_up);
    text += " flags " + std::to_string(c.flags) + " threads " + std::to_string(c.threads);
    if (c.executor) text += " executor";
    return text.append(" workspace ").append(rooms[int(c.room)]);
}

void fail(const char *format, ...) {
    char text[600];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    throw Failure(text);
}

}  // namespace soak
