// The table that sweeps run over: every format x layout x grouping x scale kind, and shapes with
// every tail. Also the bridge from the reference's words to qk.h's codes.
#pragma once
#include <ostream>
#include <string>
#include <vector>

#include "harness/random.hpp"
#include "qk.h"
#include "reference/reference.hpp"

namespace reference {

// How GoogleTest tells a case's format.
inline void PrintTo(Format format, std::ostream *out) { *out << name(format); }

}  // namespace reference

namespace harness {

qk_format code(reference::Format format);
qk_layout code(reference::Layout layout);
qk_tensor_desc describe(const reference::Spec &spec);
qk_tensor_desc describe_dense(reference::Format format, int64_t rows, int64_t columns);

// Every valid combination but the shape: n, k and group_size are left to the shape.
std::vector<reference::Spec> kinds();
std::vector<reference::Spec> kinds_of(reference::Format format);
// Those with scales of e8m0 and of e4m3, with and without a GLOBAL plane: small on purpose.
std::vector<reference::Spec> small_scale_kinds(reference::Format format);
// What sweeps over kernels run for a format; kinds() are those that recorded bits are made of.
std::vector<reference::Spec> sweep_of(reference::Format format);
const char *scale_name(const reference::Spec &spec);
std::string title(const reference::Spec &spec);

struct Shape {
    int64_t n, k, group_size;
};
// The shape for a kind; records have rows of whole records and groups of their own.
void cut(reference::Spec *spec, const Shape &shape);
// Small shapes, each remainder of n and k by 2, 8, 16 and 32 with each group size that fits, and
// long rows. About `count` of them.
const std::vector<Shape> &shapes();

// Slow builds (sanitizers, emulators) run one case of QK_SWEEP_EVERY, spread over the table.
// Whether this build leaves case `number` out. Small tables run one case of `at_most` at least.
bool thinned(uint64_t number, uint64_t at_most = UINT64_MAX);

constexpr reference::Format kFloats[] = {reference::Format::f32, reference::Format::f16,
                                         reference::Format::bf16};

// Random contents.
enum class Data {
    real,     // codes uniform, scales like a model's
    integer,  // entries and scales small integers: sums are exact in f32, whatever their order
    wild      // scales of any bits, NaN and infinity too
};
bool has_integer_data(reference::Format format);
reference::Weight random_weight(const reference::Spec &spec, Data data, Random *random);

}  // namespace harness
