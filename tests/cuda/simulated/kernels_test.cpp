// The simple kernels on simulated threads against the generic CPU kernels, bit for bit. Under
// AddressSanitizer every access past a plane is caught: the mock's memory is the heap's.
#include "cuda/kernels.hpp"
#include "cuda/harness.hpp"
#include "cuda/mock/mock.hpp"

namespace cuda_test {
namespace {

class CudaSimulated : public ::testing::Test {
  protected:
    CudaSimulated() { mock::reset(); }
};

std::string name_of(const qk_tensor_desc &d, size_t offset) {
    std::string name = "format ";
    for (const int64_t part : {int64_t(d.format), int64_t(d.scale_format), int64_t(d.layout),
                               int64_t(d.group_size), d.shape[0], d.shape[1], int64_t(offset)}) {
        name.append(std::to_string(part)).append(" ");
    }
    return name;
}

// Every kernel of the list that takes the case; returns how many did.
int check_weight(HostWeight &w, qk_format to, size_t offset, int64_t first_row) {
    const int64_t n = w.shape.rows, k = w.shape.columns;
    std::vector<uint8_t> expected(size_t(n * k * (to == QK_FORMAT_F32 ? 4 : 2)), 0xcd);
    EXPECT_EQ(qk::cpu::kDequantizeGeneric.run(
                  {w.view(), {qk::find_format(to), n, k, expected.data()}}, host_launch()),
              QK_OK);
    expected.erase(expected.begin(),
                   expected.begin() + long(expected.size() / size_t(n) * size_t(first_row)));
    const DeviceWeight device(w, offset);
    const auto &list = qk::kCudaBackend.dequantize;
    int ran = 0;
    for (int32_t i = 0; i < list.count; ++i) {
        const DeviceBuffer out(std::vector<uint8_t>(expected.size(), 0xcd), offset);
        const qk::DequantizeArgs args = {
            device.view(), {qk::find_format(to), n - first_row, k, out.data()}, first_row};
        if (!list.kernels[i]->can_run(args, device_0())) continue;
        ++ran;
        if (!harness::wanted("cuda", list.kernels[i]->name)) continue;
        qk::ErrorText error = {};
        EXPECT_EQ(list.kernels[i]->run(args, device_launch(&error)), QK_OK) << error.text;
        EXPECT_TRUE(same_values(to, expected, out.read())) << list.kernels[i]->name;
    }
    return ran;
}

int check_dequantize(const qk_tensor_desc &desc, qk_format to, size_t offset, Rng &rng,
                     int64_t first_row = 0) {
    SCOPED_TRACE(name_of(desc, offset));
    HostWeight w = random_weight(desc, rng);
    return check_weight(w, to, offset, first_row);
}

// The last rows of so many groups that their numbers need 32 bits, where one second scale is all
// groups': planes that would begin as far before them.
TEST_F(CudaSimulated, GroupsPast2To31HaveTheOneSecondScale) {
    constexpr int64_t kRows = 32, kColumns = 64, kBefore = int64_t{1} << 29;
    Rng rng(2);
    qk_tensor_desc desc =
        weight_desc(QK_FORMAT_FP4_E2M1, QK_FORMAT_E4M3, QK_LAYOUT_ROW, 16, kRows, kColumns);
    desc.flags |= QK_TENSOR_GLOBAL;
    HostWeight stored = random_weight(desc, rng);
    HostWeight w = packed_on_host(stored);
    const DeviceWeight device(w);
    const float seconds[] = {float_at(QK_FORMAT_F32, w.planes[QK_PLANE_GLOBAL], 0), NAN};
    std::vector<uint8_t> bytes(sizeof(seconds));
    memcpy(bytes.data(), seconds, sizeof(seconds));
    const DeviceBuffer second(bytes);
    const auto before = [](void *plane, int64_t row_bytes) {
        return reinterpret_cast<void *>(uintptr_t(plane) - uintptr_t(kBefore * row_bytes));
    };
    qk::Weight many = device.view();
    many.geometry.n += kBefore;
    many.geometry.group_count += kBefore * many.geometry.groups_per_row;
    many.data = before(many.data, kColumns / 2);
    many.scale.data = before(many.scale.data, many.geometry.groups_per_row);
    many.scale.second = second.data();
    ASSERT_GE(many.geometry.group_count, int64_t{1} << 31);
    std::vector<uint8_t> expected(size_t(kRows * kColumns * 4));
    ASSERT_EQ(qk::cpu::kDequantizeGeneric.run(
                  {w.view(), {qk::find_format(QK_FORMAT_F32), kRows, kColumns, expected.data()}},
                  host_launch()),
              QK_OK);
    int ran = 0;
    const auto &list = qk::kCudaBackend.dequantize;
    for (int32_t i = 0; i < list.count; ++i) {
        const DeviceBuffer out(std::vector<uint8_t>(expected.size(), 0xcd));
        const qk::DequantizeArgs args = {
            many, {qk::find_format(QK_FORMAT_F32), kRows, kColumns, out.data()}, kBefore};
        if (!list.kernels[i]->can_run(args, device_0())) continue;
        ++ran;
        qk::ErrorText error = {};
        EXPECT_EQ(list.kernels[i]->run(args, device_launch(&error)), QK_OK) << error.text;
        EXPECT_TRUE(same_values(QK_FORMAT_F32, expected, out.read())) << list.kernels[i]->name;
    }
    EXPECT_GE(ran, 2);
}

TEST_F(CudaSimulated, DequantizeEqualsTheCpu) {
    const qk_layout layouts[] = {QK_LAYOUT_ROW,      QK_LAYOUT_ROW_HIGH, QK_LAYOUT_AWQ_GEMM,
                                 QK_LAYOUT_AWQ_GEMV, QK_LAYOUT_GPTQ,     QK_LAYOUT_GPTQ_V1,
                                 QK_LAYOUT_WORD};
    const qk_format scales[] = {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_LUT8};
    const qk_format types[] = {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32};
    const int64_t shapes[][2] = {{1, 16}, {3, 70}, {17, 129}, {32, 64}};
    Rng rng(1);
    int ran = 0, cases = 0, at = 0;
    for (const qk_layout layout : layouts) {
        for (const qk_format scale : scales) {
            for (const auto &[n, k] : shapes) {
                if (++at % 2 == 0) continue;  // every other case: simulated threads are slow
                qk_tensor_desc desc =
                    weight_desc(cases % 3 == 0 ? QK_FORMAT_NF4 : QK_FORMAT_U4_AFFINE, scale, layout,
                                cases % 2 == 0 ? 16 : 64, n, k, cases % 5 == 1,
                                layout == QK_LAYOUT_ROW_HIGH && cases % 2 == 0);
                if (scale == QK_FORMAT_LUT8) desc.scale_group_size = 16;
                if (desc.format == QK_FORMAT_NF4) desc.flags = 0;
                ran += check_dequantize(desc, types[cases % 3], cases % 4 == 3 ? 5 : 0, rng);
                ++cases;
            }
        }
    }
    for (const qk_format format : {QK_FORMAT_LUT8, QK_FORMAT_S8}) {
        ran += check_dequantize(weight_desc(format, QK_FORMAT_F32, QK_LAYOUT_ROW, 64, 5, 136),
                                QK_FORMAT_F16, 0, rng);
        ++cases;
    }
    EXPECT_GT(ran, cases + cases / 8);  // the fast kernels took their share
}

TEST_F(CudaSimulated, PackedTilesEqualTheCpu) {
    const qk_format types[] = {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32};
    // The last: two blocks a row of tiles, the second of which begins inside a group of 48.
    const int64_t shapes[][2] = {{1, 16}, {17, 80}, {40, 320}, {18, 2128}};
    const int32_t groups[] = {16, 128, 48};
    Rng rng(4);
    int at = 0, ran = 0;
    for (const qk_format scale : {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_LUT8}) {
        for (const auto &[n, k] : shapes) {
            const bool pairs = at / 2 % 2 == 1;
            qk_tensor_desc desc =
                weight_desc(pairs ? QK_FORMAT_NF4 : QK_FORMAT_U4_AFFINE, scale, QK_LAYOUT_ROW,
                            groups[at % 3], n, k, !pairs && at % 5 == 2);
            if (scale == QK_FORMAT_LUT8) desc.scale_group_size = 16;
            SCOPED_TRACE(name_of(desc, 0));
            HostWeight w = random_weight(desc, rng);
            desc.layout = QK_LAYOUT_PACKED;
            HostWeight packed =
                empty_weight(desc, pairs ? qk::kLayoutTilesPairs : qk::kLayoutTiles, 0);
            ASSERT_EQ(qk::cpu::kRepackGeneric.run({w.view(), packed.view()}, host_launch()), QK_OK);
            ran += check_weight(packed, types[at % 3], 0, n > 32 ? 16 : 0);
            ++at;
        }
    }
    EXPECT_EQ(ran, 2 * at);  // the fast kernel took each
}

// Blocks of 128 x 256 and what is left of them: 16 bytes at a time, or element by element.
TEST_F(CudaSimulated, GptqEqualsTheCpu) {
    const qk_format types[] = {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32};
    const qk_format scales[] = {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16};
    const int64_t shapes[][2] = {{4, 8}, {132, 72}, {36, 264}, {50, 41}};
    const int32_t groups[] = {64, 16, 20, QK_GROUP_ROW};
    Rng rng(6);
    int at = 0;
    for (const auto &[n, k] : shapes) {
        for (const qk_format scale : scales) {
            const qk_layout layout = at % 2 == 0 ? QK_LAYOUT_GPTQ : QK_LAYOUT_GPTQ_V1;
            const qk_tensor_desc desc =
                weight_desc(QK_FORMAT_U4_AFFINE, scale, layout, groups[at % 4], n, k, at % 5 == 3);
            const int64_t first_row = at % 2 == 0 && n > 32 ? 32 : 0;
            EXPECT_EQ(check_dequantize(desc, types[at % 3], at % 4 == 3 ? 4 : 0, rng, first_row),
                      2);  // gptq and generic
            ++at;
        }
    }
}

TEST_F(CudaSimulated, ASlabOfRowsEqualsItsRows) {
    Rng rng(5);
    const qk_tensor_desc weights[] = {
        weight_desc(QK_FORMAT_NF4, QK_FORMAT_LUT8, QK_LAYOUT_ROW_HIGH, 64, 48, 128, false, true),
        weight_desc(QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_WORD, 32, 37, 64),
        weight_desc(QK_FORMAT_U4_AFFINE, QK_FORMAT_BF16, QK_LAYOUT_AWQ_GEMM, 64, 48, 64),
        weight_desc(QK_FORMAT_U4_AFFINE, QK_FORMAT_F32, QK_LAYOUT_GPTQ, 32, 37, 64),
        weight_desc(QK_FORMAT_LUT8, QK_FORMAT_F32, QK_LAYOUT_ROW, 64, 40, 128)};
    for (qk_tensor_desc desc : weights) {
        if (desc.scale_format == QK_FORMAT_LUT8) desc.scale_group_size = 16;
        EXPECT_GE(check_dequantize(desc, QK_FORMAT_F16, 0, rng, 16), 1);
        EXPECT_GE(check_dequantize(desc, QK_FORMAT_F32, 0, rng, 32), 1);
    }
    const qk_tensor_desc divided[] = {
        // groups that end in a store, rows with a small one
        weight_desc(QK_FORMAT_U4_AFFINE, QK_FORMAT_BF16, QK_LAYOUT_ROW_HIGH, 33, 130, 265, false,
                    true),
        weight_desc(QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_AWQ_GEMV, 32, 37, 104),
        weight_desc(QK_FORMAT_S8, QK_FORMAT_F32, QK_LAYOUT_ROW, 20, 37, 109),
        weight_desc(QK_FORMAT_LUT8, QK_FORMAT_F16, QK_LAYOUT_ROW, 20, 37, 109, false, true),
        weight_desc(QK_FORMAT_U4_AFFINE, QK_FORMAT_LUT8, QK_LAYOUT_ROW, 64, 37, 136),
        weight_desc(QK_FORMAT_S8, QK_FORMAT_F16, QK_LAYOUT_ROW, QK_GROUP_ROW, 37, 136),
        weight_desc(QK_FORMAT_NF4, QK_FORMAT_LUT8, QK_LAYOUT_ROW_HIGH, 48, 37, 101, false, true),
        weight_desc(QK_FORMAT_U4_AFFINE, QK_FORMAT_F32, QK_LAYOUT_WORD, 24, 48, 72)};
    for (qk_tensor_desc desc : divided) {
        if (desc.scale_format == QK_FORMAT_LUT8) desc.scale_group_size = 16;
        for (const qk_format to : {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32}) {
            EXPECT_EQ(check_dequantize(desc, to, 0, rng, 0), 2);  // stream and generic
            EXPECT_EQ(check_dequantize(desc, to, 0, rng, 16), 2);
        }
    }
}

TEST_F(CudaSimulated, RepackEqualsTheCpu) {
    const qk_layout layouts[] = {QK_LAYOUT_ROW,      QK_LAYOUT_ROW_HIGH, QK_LAYOUT_AWQ_GEMM,
                                 QK_LAYOUT_AWQ_GEMV, QK_LAYOUT_GPTQ_V1,  QK_LAYOUT_WORD,
                                 QK_LAYOUT_PACKED};
    Rng rng(2);
    for (const qk_format scale : {QK_FORMAT_F16, QK_FORMAT_LUT8}) {
        HostWeight w = random_weight(
            weight_desc(QK_FORMAT_U4_AFFINE, scale, QK_LAYOUT_AWQ_GEMM, 32, 11, 45), rng);
        const DeviceWeight from(w);
        for (const qk_layout layout : layouts) {
            SCOPED_TRACE(layout);
            qk_tensor_desc desc = weight_desc(QK_FORMAT_U4_AFFINE, scale, layout, 32, 11, 45);
            desc.scale_group_size = int32_t(w.shape.second_group);
            HostWeight expected = empty_weight(desc, qk::kLayoutTiles, 0x5a);
            const DeviceWeight to(expected);
            ASSERT_EQ(qk::cpu::kRepackGeneric.run({w.view(), expected.view()}, host_launch()),
                      QK_OK);
            qk::ErrorText error = {};
            ASSERT_EQ(qk::cuda::kRepackGeneric.run({from.view(), to.view()}, device_launch(&error)),
                      QK_OK)
                << error.text;
            for (int plane = 0; plane < QK_PLANE_COUNT; ++plane) {
                EXPECT_EQ(to.planes[plane].read(), expected.planes[plane]) << "plane " << plane;
            }
        }
    }
}

TEST_F(CudaSimulated, LinearEqualsTheCpu) {
    const qk_format types[] = {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16};
    const qk_tensor_desc weights[] = {
        weight_desc(QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_AWQ_GEMM, 40, 9, 77),
        weight_desc(QK_FORMAT_NF4, QK_FORMAT_F32, QK_LAYOUT_ROW_HIGH, 64, 17, 100, false, true),
        weight_desc(QK_FORMAT_S8, QK_FORMAT_F32, QK_LAYOUT_ROW, QK_GROUP_ROW, 8, 31)};
    Rng rng(3);
    int at = 0;
    for (const qk_tensor_desc &desc : weights) {
        for (const int64_t m : {1, 9}) {
            SCOPED_TRACE(name_of(desc, 0));
            const qk::Format *const type = qk::find_format(types[at++ % 3]);
            HostWeight w = random_weight(desc, rng);
            const int64_t n = desc.shape[0], k = desc.shape[1];
            std::vector<uint8_t> x = random_floats(type->id, m * k, rng);
            std::vector<uint8_t> bias = random_floats(QK_FORMAT_F32, n, rng);
            std::vector<uint8_t> y(size_t(m * n * type->bits / 8), 0xff);
            const DeviceBuffer device_x(x), device_bias(bias), device_y(y);
            const DeviceWeight device_w(w);
            qk::Dense b = {qk::find_format(QK_FORMAT_F32), 1, n, bias.data()};
            const int64_t bytes = type->bits / 8;
            for (int64_t i = 0; i < m; ++i) {  // the CPU's order for one row of x
                ASSERT_EQ(qk::cpu::kLinearGeneric.run({{type, 1, k, x.data() + i * k * bytes},
                                                       w.view(),
                                                       &b,
                                                       {type, 1, n, y.data() + i * n * bytes}},
                                                      host_launch()),
                          QK_OK);
            }
            b.data = device_bias.data();
            qk::ErrorText error = {};
            ASSERT_EQ(qk::cuda::kLinearGeneric.run({{type, m, k, device_x.data()},
                                                    device_w.view(),
                                                    &b,
                                                    {type, m, n, device_y.data()}},
                                                   device_launch(&error)),
                      QK_OK)
                << error.text;
            EXPECT_TRUE(same_values(type->id, y, device_y.read()));
        }
    }
}

}  // namespace
}  // namespace cuda_test
