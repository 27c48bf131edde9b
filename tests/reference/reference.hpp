// The reference: docs/formats.md as naive code. It shares no line with the library and includes
// nothing of it, so that a mistake has to be made twice to go unseen. Slow and plain on purpose:
// places are listed by walking a file's words as its dialect describes them, never computed in
// closed form, and sums that bounds are checked against run in double.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace reference {

using std::size_t;

enum class Format {
    f32,
    f16,
    bf16,
    u4,
    nf4,
    fp4_bnb,
    fp4_e2m1,
    lut8,
    s8,
    lut4,
    e4m3,
    e8m0,
    i8,
    iq4_nl,
    fp4_ggml
};
enum class Layout {
    row,
    row_high,
    awq_gemm,
    awq_gemv,
    gptq,
    gptq_v1,
    word,
    gguf_q4_0,
    gguf_q4_1,
    gguf_q5_0,
    gguf_q5_1,
    gguf_q8_0,
    gguf_iq4_nl,
    gguf_mxfp4,
    gguf_q4_k,
    gguf_q5_k,
    gguf_q6_k,
    gguf_iq4_xs
};

constexpr int64_t kPadding = -1;  // owner of a stored place that holds nothing

const char *name(Format format);
const char *name(Layout layout);

// ---- numbers ---------------------------------------------------------------------------------

float decode_f16(uint16_t bits);
float decode_bf16(uint16_t bits);
uint16_t encode_f16(double value);  // one rounding, to nearest even; NaN stays a NaN
uint16_t encode_bf16(double value);

float decode_e4m3(uint8_t bits);
float decode_e8m0(uint8_t bits);

float decode(Format format, uint32_t bits);  // f32, f16, bf16, e4m3, e8m0
uint32_t encode(Format format, float value);
int bytes_of(Format format);  // of one number: 4, 2 or 1

// Equal bits, or both NaN: NaN payloads are not promised.
bool same(Format format, uint32_t a, uint32_t b);

// ---- weights ---------------------------------------------------------------------------------

// Numbers that e4m3 and e8m0 scales are multiplied or divided by.
enum class Global { none, one, rows, one_divides, rows_divide };

struct Spec {
    Format format = Format::u4;
    Format scale_format = Format::f16;  // ignored where nested
    Global global = Global::none;
    bool nested = false;
    Layout layout = Layout::row;
    int64_t n = 1, k = 1;
    int64_t group_size = -1;     // codes per scale, or -1: one group a row
    bool flat = false;           // groups over the flattened tensor
    int64_t second_group = 256;  // of nested and i8 scales
    bool zeros = false;          // u4 only: has a zero for each group; otherwise every zero is 8
    bool whole_range = false;    // s8 only: quantized over -128..127 (the flag SYMMETRIC)
    bool float_min = false;      // u4 and s8: a minimum a group instead of a zero
    bool ordered = false;        // columns are stored in an order of their own
};

bool eight_bit(Format format);

// Sizes of groups as docs/formats.md cuts them.
struct Groups {
    bool flat;                     // false too where flat groups happen to end with the rows
    int64_t size;                  // codes of a full group
    int64_t per_row;               // where not flat
    int64_t count;                 // of the whole weight
    std::vector<int64_t> of_code;  // group number of code r * k + c
};
Groups groups_of(const Spec &spec);

// What a weight means, free of any layout.
struct Weight {
    Spec spec;
    std::vector<uint8_t> codes;        // n * k; s8 as its two's complement byte
    std::vector<uint32_t> scales;      // a group: bits in scale_format, or the 8-bit scale code
    std::vector<uint8_t> zeros;        // a group
    std::vector<uint32_t> minima;      // float_min: a group, as the scales are
    std::vector<float> second_scales;  // nested, i8: one a second_group groups
    std::vector<float> second_minima;  // float_min of i8: the minima's
    std::vector<float> scale_code;     // nested: 256
    float scale_bias = 0;              // nested
    std::vector<float> table;          // lut8: 256, lut4: 16
    std::vector<float> global;         // one, or one a row
    std::vector<int32_t> order;        // ordered: the column that each stored one is; the codes
                                       // above are as stored
};

// The bytes of a weight, plane by plane; planes the format does not have are empty.
struct Planes {
    std::vector<uint8_t> data, scale, zero, second_scale, scale_code, scale_bias, table, global,
        order, min2;
};

// What a GGUF type has: the rest of a Spec, and the numbers that its records can hold.
struct RecordKind {
    Layout layout;
    Format format, scale_format;
    int bytes, codes;         // of one record
    int group, second_group;  // codes, groups
    bool has_minimum;
    int lowest, highest;              // codes
    int lowest_scale, highest_scale;  // of i8, minima from 0
};
const std::vector<RecordKind> &record_kinds();
const RecordKind *record_of(Layout layout);  // null: the layout has planes
std::vector<uint8_t> pack_records(const Weight &weight);

// Owners of every stored place, in storage order. Codes: index r * k + c of each nibble (nibble 2b
// is the low half of byte b) or byte. Scales and zeros: group number of each element or nibble.
std::vector<int64_t> code_owners(const Spec &spec);
std::vector<int64_t> scale_owners(const Spec &spec, const Groups &groups);
std::vector<int64_t> zero_owners(const Spec &spec, const Groups &groups);

// `padding` fills every place that holds nothing: 0 is what writers must write, and readers must
// not care.
Planes pack(const Weight &weight, uint32_t padding = 0);
Weight unpack(const Spec &spec, const Planes &planes);

// ---- values ----------------------------------------------------------------------------------

std::array<float, 16> codebook(Format format);  // nf4, fp4_bnb, fp4_e2m1
std::vector<float> dynamic_table();             // bitsandbytes' signed dynamic map

std::vector<float> scale_values(const Weight &weight);    // f32 scale of each group
std::vector<float> minimum_values(const Weight &weight);  // the same of minima; empty without
std::vector<float> entries(const Weight &weight);         // what each code multiplies its scale by
std::vector<uint32_t> dequantize(const Weight &weight, Format to);  // columns in their place

// ---- linear ----------------------------------------------------------------------------------

struct Product {
    std::vector<float> x;  // m * k
    int64_t m = 0, n = 0, k = 0;
    std::vector<float> entries;  // n * k
    std::vector<float> scales;   // a group; dense weights: one, 1
    Groups groups;
    std::vector<float> bias;    // n, or empty
    int entry_steps = 0;        // entries times this are the integers that one row sums; or 0
    std::vector<float> minima;  // a group, or empty
};
// Entries of the weight times this are integers that one row of x sums; 0 where it does not.
inline int entry_steps(const Spec &spec) {
    return spec.format == Format::u4 ? 1 : spec.format == Format::fp4_e2m1 ? 2 : 0;
}
// A dense weight is entries in one group of scale 1.
Groups dense_groups(int64_t n, int64_t k);

struct Bounded {
    std::vector<double> value;  // m * n
    std::vector<double> bound;  // of |f32 result - value|, before the last rounding
};
Bounded linear_exact(const Product &product);

// The documented order of sums, in f32: one of three.
std::vector<float> linear_ordered(const Product &product);

// y = x . w: x m * n, bias k, y m * k.
Bounded transposed_exact(const Product &product);
std::vector<float> transposed_ordered(const Product &product);

// The modes. int8: to the bit, for formats that have integers (not lut8, no flat groups), and how
// far from linear_exact.value it may be. bf16: x and entries rounded, then as exact as any order.
std::vector<float> linear_int8(const Weight &weight, const Product &product);
Bounded linear_int8_bound(const Weight &weight, const Product &product);
Bounded linear_bf16(const Weight &weight, const Product &product);
Bounded linear_bf16_batch(const Product &product);  // from kBf16Batch rows of x on
constexpr int64_t kBf16Batch = 8;

// ---- experts ---------------------------------------------------------------------------------

enum class Activation { none, silu, gelu, gelu_tanh, swiglu_clamped };
struct Mixture {
    int64_t tokens = 0, slots = 0;
    std::vector<int32_t> expert;  // tokens * slots
    std::vector<float> weight;    // the same, or empty: 1
    Activation activation = Activation::none;
    bool interleaved = false;
    float limit = 0, alpha = 0;
};
// Rows of n numbers, gate and up, to rows of n / 2; without an activation as they are.
Bounded joined_rows(const Mixture &mixture, const Bounded &z, int64_t n);
// A row a slot to a row a token: to the bit from bits, and within what bounds from bounds.
std::vector<float> summed_rows(const Mixture &mixture, const std::vector<float> &z, int64_t n);
Bounded summed_rows(const Mixture &mixture, const Bounded &z, int64_t n);

// Whether `bits` can be the rounding to `format` of a number within `bound` of `value`.
bool within(Format format, uint32_t bits, double value, double bound);

// ---- quantize --------------------------------------------------------------------------------

struct Quantized {
    Weight weight;
    uint8_t tail_nibble;  // of an odd row_high run
};
// x: n * k numbers of a type. table: lut8's; scale_code: nested scales'. Both ascending.
Quantized quantize(const Spec &spec, const std::vector<float> &x, const std::vector<float> &table,
                   const std::vector<float> &scale_code, Format from = Format::f32);

// bitsandbytes' 8-bit blockwise codes of one block, and its absmax.
struct Block8 {
    float absmax;
    std::vector<uint8_t> codes;
};
Block8 quantize_block8(const float *x, int64_t count, const std::vector<float> &table);

// Sum in the order of PyTorch's reduction on one thread (8 lanes, cascaded).
float cascade_sum(const std::vector<float> &x);

}  // namespace reference
