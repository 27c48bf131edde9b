// Every kind of product on every card.
#pragma once
#include <utility>

#include "cuda/select_case.hpp"

namespace select_test {

using qk::cuda::Facts;

constexpr qk_format kU4 = QK_FORMAT_U4_AFFINE, kNf4 = QK_FORMAT_NF4, kS8 = QK_FORMAT_S8,
                    kLut8 = QK_FORMAT_LUT8, kF16 = QK_FORMAT_F16, kF32 = QK_FORMAT_F32;
constexpr qk_layout kPacked = QK_LAYOUT_PACKED, kRow = QK_LAYOUT_ROW, kGptq = QK_LAYOUT_GPTQ,
                    kAwq = QK_LAYOUT_AWQ_GEMM, kQ4_0 = QK_LAYOUT_GGUF_Q4_0;

// Experts, of which a token picks some: whole tiles or not, few or many.
template <class Do>
void for_all_experts(const qk::Device &device, const Do &act) {
    for (const qk_format format : {kU4, kNf4, kF16}) {
        for (const int64_t rows : {64, 40}) {
            for (const int64_t count : {8, 256, 20000}) {
                for (const int64_t slots : {2, 40}) {
                    for (const int64_t tokens : {1, 64, 1000}) {
                        Case c = {format, format == kF16 ? kRow : kPacked, rows * count, 4096};
                        c.m = tokens;
                        c.experts = count, c.slots = slots;
                        for (const int64_t room : {int64_t{0}, kAmple}) {
                            act(facts_of(c, device), device, room);
                        }
                    }
                }
            }
        }
    }
}

// Formats x layouts x groups x shapes x m x x, on all cards and one without a library.
template <class Do>
void for_all(const Do &act) {
    std::vector<qk::Device> devices;
    for (const Card &card : kCards) devices.push_back(card.device);
    devices.push_back(kH200.device);
    devices.back().lacks_library = true;
    const struct {
        qk_format format;
        qk_layout layout;
        bool lowered = false;
        qk_format scale = QK_FORMAT_F16;
    } weights[] = {{kU4, kPacked},     {kNf4, kPacked},
                   {kU4, kRow},        {kNf4, kRow},
                   {kU4, kGptq},       {kU4, kAwq},
                   {kS8, kRow},        {kLut8, kRow},
                   {kF16, kRow},       {kF32, kRow},
                   {kU4, kQ4_0},       {kU4, kPacked, true},
                   {kS8, kRow, true},  {kU4, kRow, true},
                   {kU4, kGptq, true}, {kNf4, kPacked, false, QK_FORMAT_LUT8}};
    for (const qk::Device &device : devices) {
        for_all_experts(device, act);
        for (const auto &[format, layout, lowered, scale] : weights) {
            for (const int32_t group : {16, 32, 64, 128, 24}) {
                for (const int64_t n : {4096, 28672, 1000, 1004}) {
                    for (const int64_t k : {4096, 4112, 1004}) {
                        if (layout == kQ4_0 && (group != 32 || k % 32 != 0)) continue;
                        if (layout == kAwq && n % 8 != 0) continue;
                        for (const auto &[x, transposed] :
                             {std::pair{kF16, false}, {kF32, false}, {kF16, true}}) {
                            Case c = {format, layout, n, k, 1, x, group, scale};
                            c.lowered = lowered;
                            c.transposed = transposed;
                            const Facts f = facts_of(c, device);
                            for (const int64_t m :
                                 {1, 2, 4, 6, 9, 16, 17, 24, 25, 33, 65, 129, 257, 513, 4097}) {
                                Facts g = f;
                                g.m = m;
                                for (const int64_t room : {int64_t{0}, int64_t{1} << 22, kAmple}) {
                                    act(g, device, room);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

}  // namespace select_test
