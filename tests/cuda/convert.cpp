// Dequantize and repack on the GPU against the generic CPU kernels, bit for bit: every format,
// layout, kind of scale, type, tail and alignment, every kernel of the lists.
#include "cuda/harness.hpp"

namespace cuda_test {
namespace {

struct Case {
    qk_tensor_desc desc;
    std::string name;
};

// Each kind of GLOBAL plane in turn.
uint32_t global_of(size_t number, bool flat) {
    constexpr uint32_t kinds[] = {0, QK_TENSOR_GLOBAL, QK_TENSOR_GLOBAL | QK_TENSOR_GLOBAL_DIVIDES,
                                  QK_TENSOR_GLOBAL_ROWS,
                                  QK_TENSOR_GLOBAL_ROWS | QK_TENSOR_GLOBAL_DIVIDES};
    return kinds[number % (flat ? 3 : 5)];
}

void add_cases(qk_format format, bool symmetric, qk_layout layout, bool flat,
               std::vector<Case> *cases) {
    const int64_t shapes[][2] = {{1, 16},   {3, 70},   {16, 64},  {17, 129},
                                 {32, 256}, {70, 200}, {288, 272}};
    for (const qk_format scale : {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_LUT8,
                                  QK_FORMAT_E8M0, QK_FORMAT_E4M3}) {
        const bool small = scale == QK_FORMAT_E8M0 || scale == QK_FORMAT_E4M3;
        if (small && format != QK_FORMAT_FP4_E2M1 && format != QK_FORMAT_LUT4) continue;
        for (const int32_t group : {16, 64, 128, 48, QK_GROUP_ROW}) {
            if (flat && group == QK_GROUP_ROW) continue;
            for (const auto &[n, k] : shapes) {
                Case c = {weight_desc(format, scale, layout, group, n, k, symmetric, flat), ""};
                c.name = "format " + std::to_string(format) + " scale " + std::to_string(scale) +
                         " layout " + std::to_string(layout) + " group " + std::to_string(group) +
                         " n " + std::to_string(n) + " k " + std::to_string(k) +
                         (symmetric ? " symmetric" : "") + (flat ? " flat" : "");
                if (scale == QK_FORMAT_LUT8) c.desc.scale_group_size = group == 48 ? 48 : 16;
                if (scale == QK_FORMAT_E4M3) c.desc.flags |= global_of(cases->size(), flat);
                cases->push_back(c);
            }
        }
    }
}

std::vector<Case> all_cases() {
    std::vector<Case> cases;
    const qk_layout any[] = {QK_LAYOUT_ROW,      QK_LAYOUT_ROW_HIGH, QK_LAYOUT_AWQ_GEMM,
                             QK_LAYOUT_AWQ_GEMV, QK_LAYOUT_GPTQ,     QK_LAYOUT_GPTQ_V1,
                             QK_LAYOUT_WORD};
    for (const qk_layout layout : any) {
        const bool flat_too = layout == QK_LAYOUT_ROW || layout == QK_LAYOUT_ROW_HIGH;
        for (int flat = 0; flat <= int(flat_too); ++flat) {
            add_cases(QK_FORMAT_U4_AFFINE, false, layout, flat != 0, &cases);
            add_cases(QK_FORMAT_U4_AFFINE, true, layout, flat != 0, &cases);
            add_cases(QK_FORMAT_NF4, false, layout, flat != 0, &cases);
        }
    }
    add_cases(QK_FORMAT_FP4_BNB, false, QK_LAYOUT_ROW_HIGH, true, &cases);
    add_cases(QK_FORMAT_FP4_E2M1, false, QK_LAYOUT_ROW, false, &cases);
    add_cases(QK_FORMAT_FP4_E2M1, false, QK_LAYOUT_GPTQ, false, &cases);
    add_cases(QK_FORMAT_LUT4, false, QK_LAYOUT_ROW, false, &cases);
    add_cases(QK_FORMAT_E4M3, false, QK_LAYOUT_ROW, false, &cases);
    add_cases(QK_FORMAT_LUT8, false, QK_LAYOUT_ROW, true, &cases);
    add_cases(QK_FORMAT_S8, false, QK_LAYOUT_ROW, false, &cases);
    return cases;
}

std::vector<uint8_t> expected_values(HostWeight &w, qk_format to) {
    const int64_t n = w.shape.rows, k = w.shape.columns;
    std::vector<uint8_t> out(size_t(n * k * (to == QK_FORMAT_F32 ? 4 : 2)), 0xcd);
    const qk::DequantizeArgs args = {w.view(), {qk::find_format(to), n, k, out.data()}};
    EXPECT_EQ(qk::cpu::kDequantizeGeneric.run(args, host_launch()), QK_OK);
    return out;
}

// Runs every kernel of the list that takes the case; returns how many did.
int check_dequantize(HostWeight &w, const DeviceWeight &device, qk_format to, size_t offset) {
    const std::vector<uint8_t> expected = expected_values(w, to);
    const auto &list = qk::kCudaBackend.dequantize;
    int ran = 0;
    for (int32_t i = 0; i < list.count; ++i) {
        DeviceBuffer out(std::vector<uint8_t>(expected.size(), 0xcd), offset);
        const qk::DequantizeArgs args = {
            device.view(), {qk::find_format(to), w.shape.rows, w.shape.columns, out.data()}};
        if (!list.kernels[i]->can_run(args, device_0())) continue;
        ++ran;
        if (!harness::wanted("cuda", list.kernels[i]->name)) continue;
        qk::ErrorText error = {};
        EXPECT_EQ(list.kernels[i]->run(args, device_launch(&error)), QK_OK) << error.text;
        EXPECT_TRUE(same_values(to, expected, out.read())) << list.kernels[i]->name;
    }
    return ran;
}

TEST(CudaConvert, DequantizeEqualsTheCpu) {
    QK_NEEDS_DEVICE();
    Rng rng(1);
    int ran = 0, cases = 0;
    for (const Case &c : all_cases()) {
        SCOPED_TRACE(c.name);
        HostWeight w = random_weight(c.desc, rng);
        const DeviceWeight device(w);
        const qk_format to[] = {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32};
        ran += check_dequantize(w, device, to[cases % 3], 0);
        ++cases;
        if (HasFailure()) return;
    }
    EXPECT_GT(ran, cases + cases / 8);  // the fast kernels took their share
}

TEST(CudaConvert, DequantizeAtAnyAddress) {
    QK_NEEDS_DEVICE();
    Rng rng(2);
    for (size_t offset = 1; offset < 32; offset += offset < 4 ? 1 : 4) {
        for (const qk_layout layout : {QK_LAYOUT_ROW_HIGH, QK_LAYOUT_AWQ_GEMM, QK_LAYOUT_GPTQ}) {
            HostWeight w = random_weight(
                weight_desc(QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, layout, 64, 32, 128), rng);
            const DeviceWeight device(w, offset);
            EXPECT_GE(check_dequantize(w, device, QK_FORMAT_F16, offset), 1) << offset;
        }
    }
}

TEST(CudaConvert, EveryScaleOfNf4) {  // all 65,536 bit patterns of an f16 scale
    QK_NEEDS_DEVICE();
    Rng rng(3);
    HostWeight w = random_weight(
        weight_desc(QK_FORMAT_NF4, QK_FORMAT_F16, QK_LAYOUT_ROW_HIGH, 16, 4096, 256), rng);
    ASSERT_EQ(w.planes[QK_PLANE_SCALE].size(), 65536u * 2);
    for (uint32_t i = 0; i < 65536; ++i) {
        const uint16_t bits = uint16_t(i);
        memcpy(&w.planes[QK_PLANE_SCALE][i * 2], &bits, 2);
    }
    for (size_t i = 0; i < w.planes[QK_PLANE_DATA].size(); ++i) {  // every code with every scale
        w.planes[QK_PLANE_DATA][i] = uint8_t((i % 8 * 2) << 4 | (i % 8 * 2 + 1));
    }
    const DeviceWeight device(w);
    for (const qk_format to : {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32}) {
        EXPECT_GE(check_dequantize(w, device, to, 0), 2);
    }
}

void check_repack(HostWeight &w, qk_layout layout, qk_layout packed) {
    qk_tensor_desc desc =
        weight_desc(w.shape.format->id, w.shape.scale_format->id, layout,
                    int32_t(w.shape.geometry.group_size), w.shape.rows, w.shape.columns,
                    w.planes[QK_PLANE_ZERO].empty() && w.shape.format->id == QK_FORMAT_U4_AFFINE,
                    w.shape.geometry.flat);
    desc.scale_group_size = int32_t(w.shape.second_group);
    HostWeight expected = empty_weight(desc, packed, 0x5a);
    const DeviceWeight from(w), to(expected);
    EXPECT_EQ(qk::cpu::kRepackGeneric.run({w.view(), expected.view()}, host_launch()), QK_OK);
    const auto &list = qk::kCudaBackend.repack;
    for (int32_t i = 0; i < list.count; ++i) {
        qk::ErrorText error = {};
        const qk::RepackArgs args = {from.view(), to.view()};
        if (!list.kernels[i]->can_run(args, device_0()))
            continue;  // tiles only: tests/cuda/repacked.cpp
        if (!harness::wanted("cuda", list.kernels[i]->name)) continue;
        ASSERT_EQ(list.kernels[i]->run(args, device_launch(&error)), QK_OK) << error.text;
        for (int plane = 0; plane < QK_PLANE_COUNT; ++plane) {
            EXPECT_EQ(to.planes[plane].read(), expected.planes[plane]) << "plane " << plane;
        }
    }
}

TEST(CudaConvert, RepackEqualsTheCpu) {
    QK_NEEDS_DEVICE();
    Rng rng(4);
    const qk_layout layouts[] = {QK_LAYOUT_ROW,      QK_LAYOUT_ROW_HIGH, QK_LAYOUT_AWQ_GEMM,
                                 QK_LAYOUT_AWQ_GEMV, QK_LAYOUT_GPTQ,     QK_LAYOUT_GPTQ_V1,
                                 QK_LAYOUT_WORD};
    for (const qk_layout source : layouts) {
        for (const qk_format scale : {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_LUT8}) {
            HostWeight w =
                random_weight(weight_desc(QK_FORMAT_U4_AFFINE, scale, source, 32, 21, 77), rng);
            for (const qk_layout target : layouts) check_repack(w, target, QK_LAYOUT_PACKED);
            check_repack(w, QK_LAYOUT_PACKED, qk::kLayoutTiles);
            check_repack(w, QK_LAYOUT_PACKED, qk::kLayoutTilesPairs);
        }
    }
    HostWeight flat = random_weight(
        weight_desc(QK_FORMAT_NF4, QK_FORMAT_LUT8, QK_LAYOUT_ROW_HIGH, 64, 21, 77, false, true),
        rng);
    check_repack(flat, QK_LAYOUT_ROW, QK_LAYOUT_PACKED);
    check_repack(flat, QK_LAYOUT_PACKED, qk::kLayoutTilesPairs);
    HostWeight bytes =
        random_weight(weight_desc(QK_FORMAT_S8, QK_FORMAT_F32, QK_LAYOUT_ROW, 32, 21, 77), rng);
    check_repack(bytes, QK_LAYOUT_PACKED, QK_LAYOUT_ROW);
}

}  // namespace
}  // namespace cuda_test
