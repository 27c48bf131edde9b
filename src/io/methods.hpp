// Ways of storing weights that qk names and does not load. A row goes when a dialect takes its
// layers; which ones are there is methods.cpp's.
#pragma once
#include "dialect.hpp"

namespace qk_io {

// Types of a tensor as a set, bit 1 << QK_DTYPE_...
using Types = uint32_t;
constexpr Types only(qk_dtype dtype) { return Types{1} << dtype; }
constexpr Types kAnyType = ~Types{0};
constexpr Types kF8 = only(QK_DTYPE_F8_E4M3) | only(QK_DTYPE_F8_E5M2);

struct Sign {
    const char *suffix;  // NULL: none is asked for
    Types types;
};

struct Foreign {
    const char *name;        // as its users call it: "NVFP4"
    Sign anchor;             // the tensor that announces a layer
    Sign beside;             // one that must be there too
    const char *configured;  // the configuration's method or detail; NULL: whatever it says
    const char *instead;     // what to do; NULL: to quantize the 16-bit model
};

// The row that a tensor announces a layer of; `name`, of kMaxNameBytes + 1, becomes the layer's.
// NULL: none.
const Foreign *find_foreign(const qk_checkpoint *checkpoint, const Tensor &tensor, char *name);

// What the configuration says of the method: quant_method "modelopt", quant_algo "nvfp4".
struct Saying {
    char text[160];
};
Saying saying_of(const Config &config);

// What to do with weights that qk does not load.
constexpr const char *kInstead = "run qk quantize on the model's 16-bit checkpoint";

}  // namespace qk_io
