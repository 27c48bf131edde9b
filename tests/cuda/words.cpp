// Kernels that read any layout of 4-bit codes by words, against the CPU, byte for byte, on
// simulated threads too: repacking from every layout to every other, and values by columns.
#include "cuda/harness.hpp"
#include "cuda/kernels.hpp"

namespace cuda_test {
namespace {

const qk_layout kLayouts[] = {
    QK_LAYOUT_ROW,      QK_LAYOUT_ROW_HIGH, QK_LAYOUT_AWQ_GEMM,
    QK_LAYOUT_AWQ_GEMV, QK_LAYOUT_GPTQ,     QK_LAYOUT_GPTQ_V1,
    QK_LAYOUT_WORD,     qk::kLayoutTiles,   qk::kLayoutTilesPairs,
};

// An empty weight in a layout, packed or not.
HostWeight empty_in(qk_tensor_desc desc, qk_layout layout, uint8_t fill) {
    const bool packed = layout == qk::kLayoutTiles || layout == qk::kLayoutTilesPairs;
    desc.layout = packed ? qk_layout{QK_LAYOUT_PACKED} : layout;
    return empty_weight(desc, packed ? layout : qk_layout{QK_LAYOUT_PACKED}, fill);
}

// A random weight in a layout.
HostWeight random_in(qk_tensor_desc desc, qk_layout layout, Rng &rng) {
    desc.layout = QK_LAYOUT_ROW;
    HostWeight rows = random_weight(desc, rng);
    HostWeight w = empty_in(desc, layout, 0);
    EXPECT_EQ(qk::cpu::kRepackGeneric.run({rows.view(), w.view()}, host_launch()), QK_OK);
    return w;
}

// One case of the next grouping, kind of scale and format, planes `offset` bytes behind addresses
// of vectors; whether the kernel takes it.
bool check_repack(qk_layout source, qk_layout target, int64_t n, int64_t k, int at, Rng &rng,
                  size_t offset = 0) {
    constexpr qk_format scales[] = {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_LUT8};
    constexpr int32_t groups[] = {64, 16, 128, 48, QK_GROUP_ROW, 32};
    const bool looks_up = at % 3 == 2;
    qk_tensor_desc desc =
        weight_desc(looks_up ? QK_FORMAT_NF4 : QK_FORMAT_U4_AFFINE, scales[at % 4], QK_LAYOUT_ROW,
                    groups[at % 6], n, k, at % 3 == 1);
    if (desc.scale_format == QK_FORMAT_LUT8) desc.scale_group_size = 16;
    HostWeight w = random_in(desc, source, rng);
    HostWeight expected = empty_in(desc, target, 0x5a);
    const DeviceWeight from(w, offset), to(expected, offset);
    EXPECT_EQ(qk::cpu::kRepackGeneric.run({w.view(), expected.view()}, host_launch()), QK_OK);
    const qk::RepackArgs args = {from.view(), to.view()};
    if (!qk::cuda::kRepackWords.can_run(args, device_0())) return false;
    qk::ErrorText error = {};
    EXPECT_EQ(qk::cuda::kRepackWords.run(args, device_launch(&error)), QK_OK) << error.text;
    for (int plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        EXPECT_EQ(to.planes[plane].read(), expected.planes[plane]) << "plane " << plane;
        EXPECT_EQ(from.planes[plane].read(), w.planes[plane]) << "source, plane " << plane;
    }
    return true;
}

TEST(CudaWords, RepackedBytesAreTheCpus) {
    QK_NEEDS_DEVICE();
    Rng rng(71);
    // The last three in pieces of 16 bytes in every layout, in one block and in several.
    const int64_t shapes[][2] = {{8, 64},  {136, 264}, {24, 520},  {1, 8},
                                 {21, 72}, {128, 256}, {288, 544}, {544, 160}};
    int at = 0;
    for (const qk_layout source : kLayouts) {
        for (const qk_layout target : kLayouts) {
            for (const auto &[n, k] : shapes) {
                SCOPED_TRACE(std::to_string(source) + " to " + std::to_string(target) + ", " +
                             std::to_string(n) + " x " + std::to_string(k) + ", case " +
                             std::to_string(at));
                const bool awq = source == QK_LAYOUT_AWQ_GEMM || target == QK_LAYOUT_AWQ_GEMM;
                EXPECT_EQ(check_repack(source, target, n, k, at, rng), !awq || n % 8 == 0);
                ++at;
                if (HasFailure()) return;
            }
        }
    }
}

// Pieces of 16 bytes that start between vectors go word by word.
TEST(CudaWords, RepacksAtTheAddressesOfWords) {
    QK_NEEDS_DEVICE();
    Rng rng(74);
    int at = 0;
    for (const qk_layout source : kLayouts) {
        for (const qk_layout target : kLayouts) {
            SCOPED_TRACE(std::to_string(source) + " to " + std::to_string(target));
            const auto tiles = [](qk_layout layout) {
                return layout == qk::kLayoutTiles || layout == qk::kLayoutTilesPairs;
            };
            const size_t offset = size_t(at % 3 + 1) * 4;
            EXPECT_EQ(check_repack(source, target, 32, 256, at, rng, offset),
                      !tiles(source) && !tiles(target));
            ++at;
        }
    }
}

// The values by columns, `stride` apart; whether the kernel takes the case.
bool check_columns(HostWeight &w, qk_format type, int64_t stride) {
    const int64_t n = w.shape.rows, k = w.shape.columns;
    const qk::Format *const to = qk::find_format(type);
    std::vector<uint8_t> expected(size_t(stride * k * (to->bits / 8)), 0xcd);
    const DeviceBuffer out(expected);
    EXPECT_EQ(qk::cpu::kDequantizeGeneric.run({w.view(), {to, n, k, expected.data(), stride, true}},
                                              host_launch()),
              QK_OK);
    const DeviceWeight from(w);
    const qk::DequantizeArgs args = {from.view(), {to, n, k, out.data(), stride, true}};
    if (!qk::cuda::kDequantizeColumns.can_run(args, device_0())) return false;
    qk::ErrorText error = {};
    EXPECT_EQ(qk::cuda::kDequantizeColumns.run(args, device_launch(&error)), QK_OK) << error.text;
    EXPECT_TRUE(same_values(type, expected, out.read()));
    return true;
}

TEST(CudaWords, ColumnsOfValuesAreTheCpus) {
    QK_NEEDS_DEVICE();
    Rng rng(73);
    const qk_format types[] = {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32};
    const qk_format scales[] = {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_LUT8};
    const qk_format formats[] = {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4, QK_FORMAT_U4_AFFINE,
                                 QK_FORMAT_FP4_E2M1, QK_FORMAT_FP4_BNB};
    const int32_t groups[] = {64, 16, 128, 24, QK_GROUP_ROW, 32};
    const int64_t shapes[][2] = {{136, 264}, {128, 256}, {24, 520}, {1, 8},
                                 {21, 72},   {288, 544}, {160, 272}};
    int at = 0, taken = 0, awq = 0;
    for (const qk_layout layout : kLayouts) {
        for (const auto &[n, k] : shapes) {
            SCOPED_TRACE(std::to_string(layout) + ", " + std::to_string(n) + " x " +
                         std::to_string(k) + ", case " + std::to_string(at));
            qk_tensor_desc desc = weight_desc(formats[at % 5], scales[at % 4], QK_LAYOUT_ROW,
                                              groups[at % 6], n, k, at % 5 == 2);
            if (desc.scale_format == QK_FORMAT_LUT8) desc.scale_group_size = 16;
            HostWeight w = random_in(desc, layout, rng);
            const int64_t stride = (n + 7) / 8 * 8 + at % 2 * 8;
            taken += check_columns(w, types[at % 3], stride);
            awq += layout == QK_LAYOUT_AWQ_GEMM && n % 8 != 0;
            ++at;
            if (HasFailure()) return;
        }
    }
    EXPECT_EQ(taken, at - awq);
    HostWeight w = random_in(weight_desc(QK_FORMAT_NF4, QK_FORMAT_F32, QK_LAYOUT_ROW, 64, 20, 64),
                             QK_LAYOUT_ROW, rng);
    EXPECT_FALSE(check_columns(w, QK_FORMAT_F16, 20));  // columns start between vectors
}

// Rows that do not end with a word, and planes at odd addresses, are for the portable kernel.
TEST(CudaWords, TakesWholeWordsAlone) {
    QK_NEEDS_DEVICE();
    Rng rng(72);
    EXPECT_FALSE(check_repack(QK_LAYOUT_ROW, QK_LAYOUT_WORD, 16, 68, 0, rng));
    const qk_tensor_desc desc =
        weight_desc(QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_ROW, 32, 16, 64);
    HostWeight w = random_in(desc, QK_LAYOUT_ROW, rng);
    for (const size_t offset : {0, 1, 2}) {
        const DeviceWeight from(w, offset), to(empty_in(desc, QK_LAYOUT_GPTQ, 0));
        EXPECT_EQ(qk::cuda::kRepackWords.can_run({from.view(), to.view()}, device_0()),
                  offset == 0);
    }
}

}  // namespace
}  // namespace cuda_test
