// docs/measurements/cuda-kernels.md: what linear/select.hpp gives on four cards. The page in the
// repository is this program's output, and `--check PAGE` fails where it is not.
#include <stdio.h>
#include <string.h>

#include <fstream>
#include <sstream>

#include "cuda/select_case.hpp"

namespace {

using namespace select_test;

struct Weight {
    const char *name;
    qk_format format;
    qk_layout layout;
    int32_t group;
    qk_format x;
    bool lowered = false;
};

constexpr Weight kWeights[] = {
    {"U4, packed", QK_FORMAT_U4_AFFINE, QK_LAYOUT_PACKED, 128, QK_FORMAT_F16},
    {"U4, packed, groups of 32", QK_FORMAT_U4_AFFINE, QK_LAYOUT_PACKED, 32, QK_FORMAT_F16},
    {"U4, packed, F32 x", QK_FORMAT_U4_AFFINE, QK_LAYOUT_PACKED, 128, QK_FORMAT_F32},
    {"U4, packed, groups of 32, F32 x", QK_FORMAT_U4_AFFINE, QK_LAYOUT_PACKED, 32, QK_FORMAT_F32},
    {"NF4 or FP4, packed", QK_FORMAT_NF4, QK_LAYOUT_PACKED, 64, QK_FORMAT_F16},
    {"NF4 or FP4, packed, F32 x", QK_FORMAT_NF4, QK_LAYOUT_PACKED, 64, QK_FORMAT_F32},
    {"U4, ROW, AWQ_GEMV, WORD or GPTQ", QK_FORMAT_U4_AFFINE, QK_LAYOUT_ROW, 128, QK_FORMAT_F16},
    {"U4, AWQ_GEMM", QK_FORMAT_U4_AFFINE, QK_LAYOUT_AWQ_GEMM, 128, QK_FORMAT_F16},
    {"NF4 or FP4, ROW or ROW_HIGH", QK_FORMAT_NF4, QK_LAYOUT_ROW, 64, QK_FORMAT_F16},
    {"S8", QK_FORMAT_S8, QK_LAYOUT_ROW, 128, QK_FORMAT_F16},
    {"FP8", QK_FORMAT_E4M3, QK_LAYOUT_ROW, 128, QK_FORMAT_F16},
    {"LUT8", QK_FORMAT_LUT8, QK_LAYOUT_ROW, 128, QK_FORMAT_F16},
    {"U4 with minima, packed", QK_FORMAT_U4_AFFINE, QK_LAYOUT_PACKED, 32, QK_FORMAT_F16, true},
    {"U4 with minima, GPTQ or AWQ_GEMM", QK_FORMAT_U4_AFFINE, QK_LAYOUT_GPTQ, 32, QK_FORMAT_F16,
     true},
    {"S8, or U4 in rows, with minima", QK_FORMAT_S8, QK_LAYOUT_ROW, 32, QK_FORMAT_F16, true},
    {"records of a GGUF file", QK_FORMAT_U4_AFFINE, QK_LAYOUT_GGUF_Q4_0, 32, QK_FORMAT_F16},
    {"F16", QK_FORMAT_F16, QK_LAYOUT_ROW, 0, QK_FORMAT_F16},
};
constexpr int64_t kShapes[][2] = {{4096, 4096}, {28672, 8192}};

// "1 sm90 gemv, 2-16 sm90 few rows, 17- sm90 gemm"
std::string ranges_of(const Weight &w, int64_t n, int64_t k, const Card &card, int64_t workspace) {
    constexpr int64_t kLast = 8192;
    Case c = {w.format, w.layout, n, k, 1, w.x, w.group};
    c.lowered = w.lowered;
    qk::cuda::Facts f = facts_of(c, card.device);
    std::string out, now;
    int64_t first = 1;
    const auto close = [&](int64_t last) {
        if (!out.empty()) out += ", ";
        out += std::to_string(first);
        if (last > first) out += '-';
        if (last > first && last < kLast) out += std::to_string(last);
        out += ' ';
        out += now;
    };
    for (f.m = 1; f.m <= kLast; ++f.m) {
        const std::string kernel = kernel_of(f, card.device, workspace);
        if (kernel == now) continue;
        if (!now.empty()) close(f.m - 1);
        now = kernel;
        first = f.m;
    }
    close(kLast);
    return out;
}

std::string page() {
    std::ostringstream out;
    out << "# CUDA: which kernel runs when\n\n"
           "Rows of x (m) and the kernel that multiplies them, F16 x unless it says F32, by\n"
           "`kernels/cuda/linear/select.hpp`. `qk_explain` answers for one product. Written by\n"
           "`cuda_kernel_page --write`; a test compares.\n\n"
           "\"dense\" is cuBLASLt with w in x's type, slab by slab; \"repacked\" packs w in the\n"
           "workspace and runs as packed w. Where two shapes differ, the first is "
           "4096 x 4096 (n x k),\nthe second 28672 x 8192. Only the H200 has been measured.\n";
    for (const Card &card : kCards) {
        const qk::Device &d = card.device;
        out << "\n## " << card.name << "\n\nCompute capability " << d.capability / 10 << "."
            << d.capability % 10 << ", " << d.multiprocessors << " multiprocessors, "
            << d.shared_bytes / 1024 << " KiB of shared memory a block.\n\n"
            << "| w | with the workspace that `qk_linear_workspace` says | without |\n"
            << "|---|---|---|\n";
        for (const Weight &w : kWeights) {
            out << "| " << w.name;
            for (const int64_t workspace : {kAmple, int64_t{0}}) {
                const std::string small =
                    ranges_of(w, kShapes[0][0], kShapes[0][1], card, workspace);
                const std::string large =
                    ranges_of(w, kShapes[1][0], kShapes[1][1], card, workspace);
                out << " | " << small;
                if (large != small) out << "<br>" << large;
            }
            out << " |\n";
        }
    }
    return out.str();
}

}  // namespace

int main(int argc, char **argv) {
    const bool write = argc == 3 && strcmp(argv[1], "--write") == 0;
    if (!write && (argc != 3 || strcmp(argv[1], "--check") != 0)) {
        fprintf(stderr, "usage: cuda_kernel_page --write PAGE | --check PAGE\n");
        return 2;
    }
    const std::string expected = page();
    if (write) {
        std::ofstream(argv[2]) << expected;
        return 0;
    }
    std::stringstream found;
    found << std::ifstream(argv[2]).rdbuf();
    if (found.str() == expected) return 0;
    fprintf(stderr, "%s is not what the table gives: cuda_kernel_page --write %s\n", argv[2],
            argv[2]);
    return 1;
}
