// The types of ggml, all that a file may have. Numbers that are missing were withdrawn.
#include "gguf.hpp"

namespace qk_io {
namespace {

constexpr GgufType kTypes[] = {
    {0, "F32", 1, 4, QK_DTYPE_F32},
    {1, "F16", 1, 2, QK_DTYPE_F16},
    {2, "Q4_0", 32, 18, 0},
    {3, "Q4_1", 32, 20, 0},
    {6, "Q5_0", 32, 22, 0},
    {7, "Q5_1", 32, 24, 0},
    {8, "Q8_0", 32, 34, 0},
    {9, "Q8_1", 32, 36, 0},
    {10, "Q2_K", 256, 84, 0},
    {11, "Q3_K", 256, 110, 0},
    {12, "Q4_K", 256, 144, 0},
    {13, "Q5_K", 256, 176, 0},
    {14, "Q6_K", 256, 210, 0},
    {15, "Q8_K", 256, 292, 0},
    {16, "IQ2_XXS", 256, 66, 0},
    {17, "IQ2_XS", 256, 74, 0},
    {18, "IQ3_XXS", 256, 98, 0},
    {19, "IQ1_S", 256, 50, 0},
    {20, "IQ4_NL", 32, 18, 0},
    {21, "IQ3_S", 256, 110, 0},
    {22, "IQ2_S", 256, 82, 0},
    {23, "IQ4_XS", 256, 136, 0},
    {24, "I8", 1, 1, QK_DTYPE_I8},
    {25, "I16", 1, 2, QK_DTYPE_I16},
    {26, "I32", 1, 4, QK_DTYPE_I32},
    {27, "I64", 1, 8, QK_DTYPE_I64},
    {28, "F64", 1, 8, QK_DTYPE_F64},
    {29, "IQ1_M", 256, 56, 0},
    {30, "BF16", 1, 2, QK_DTYPE_BF16},
    {34, "TQ1_0", 256, 54, 0},
    {35, "TQ2_0", 256, 66, 0},
    {39, "MXFP4", 32, 17, 0},
    {40, "NVFP4", 64, 36, 0},
    {41, "Q1_0", 128, 18, 0},
    {42, "Q2_0", 64, 18, 0},
};

}  // namespace

const GgufType *find_gguf_type(uint32_t number) {
    for (const GgufType &type : kTypes) {
        if (type.number == number) return &type;
    }
    return nullptr;
}

}  // namespace qk_io
