// Repacking into the GPU's tiles against the CPU, byte for byte, and products that repack first:
// the bits of the packed weight. The same tests run on simulated threads, with a kernel for packed
// weights that stands in for wgmma.
#include <algorithm>

#include "cuda/linear_problem.hpp"
#if defined(QK_CUDA_SIMULATED)
#include "cuda/simulated/fake_library.hpp"
#endif

namespace cuda_test {
namespace {

const qk_layout kLayouts[] = {QK_LAYOUT_ROW,      QK_LAYOUT_ROW_HIGH, QK_LAYOUT_AWQ_GEMM,
                              QK_LAYOUT_AWQ_GEMV, QK_LAYOUT_GPTQ,     QK_LAYOUT_GPTQ_V1,
                              QK_LAYOUT_WORD};
const qk_format kScales[] = {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32, QK_FORMAT_LUT8};

class CudaRepacked : public ::testing::Test {
  protected:
    CudaRepacked() {
#if defined(QK_CUDA_SIMULATED)
        fake_library::state = {};
#endif
    }
};

std::string name_of(const qk_tensor_desc &d) {
    std::string name = "format, scale, layout, group, n, k:";
    for (const int64_t part : {int64_t(d.format), int64_t(d.scale_format), int64_t(d.layout),
                               int64_t(d.group_size), d.shape[0], d.shape[1]}) {
        name.append(" ").append(std::to_string(part));
    }
    return name;
}

HostWeight empty_tiles(qk_tensor_desc desc, int64_t n, qk_layout tiles, uint8_t fill) {
    desc.layout = QK_LAYOUT_PACKED;
    desc.shape[0] = n;
    return empty_weight(desc, tiles, fill);
}

// Rows [first, n) as tiles: the CPU's bytes, all of them, padding too. False where not taken.
bool check_tiles(const qk_tensor_desc &desc, qk_layout tiles, int64_t first, size_t offset,
                 Rng &rng) {
    SCOPED_TRACE(name_of(desc) + ", row " + std::to_string(first) + ", offset " +
                 std::to_string(offset));
    HostWeight w = random_weight(desc, rng);
    const int64_t n = desc.shape[0];
    HostWeight whole = empty_tiles(desc, n, tiles, 0x5a);
    HostWeight expected = empty_tiles(desc, n - first, tiles, 0x5a);
    EXPECT_EQ(qk::cpu::kRepackGeneric.run({w.view(), whole.view()}, host_launch()), QK_OK);
    const DeviceWeight from(w, offset), to(expected);
    qk::ErrorText error = {};
    qk::RepackArgs args = {from.view(), to.view(), first, first != 0};
    if (first != 0) {  // slabs share what belongs to nested scales
        args.to.scale.code = args.from.scale.code;
        args.to.scale.second = args.from.scale.second;
        args.to.scale.bias = args.from.scale.bias;
    }
    if (!qk::cuda::kRepackTiles.can_run(args, device_0())) return false;
    EXPECT_EQ(qk::cuda::kRepackTiles.run(args, device_launch(&error)), QK_OK) << error.text;
    for (const qk_plane plane : {QK_PLANE_DATA, QK_PLANE_SCALE, QK_PLANE_ZERO}) {
        const std::vector<uint8_t> actual = to.planes[plane].read();
        // Tiles of rows follow one another; a plane of zeros ends with padding.
        const int64_t all = qk::ceil_div(n, 16), skipped = all - qk::ceil_div(n - first, 16);
        const qk::Geometry &s = w.shape.geometry;
        const size_t rest = plane == QK_PLANE_ZERO && !actual.empty()
                                ? whole.planes[plane].size() - size_t(all * s.groups_per_row * 8)
                                : 0;
        const size_t each = (whole.planes[plane].size() - rest) / size_t(all);
        std::vector<uint8_t> bytes(whole.planes[plane].begin() + long(each) * skipped,
                                   whole.planes[plane].end() - long(rest));
        bytes.resize(actual.size());
        EXPECT_EQ(actual, bytes) << "plane " << plane;
    }
    for (int plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        EXPECT_EQ(from.planes[plane].read(), w.planes[plane]) << "plane " << plane;
    }
    for (const qk_plane plane : {QK_PLANE_SCALE2, QK_PLANE_SCALE_CODE, QK_PLANE_SCALE_BIAS}) {
        if (first != 0) continue;
        EXPECT_EQ(to.planes[plane].read(), whole.planes[plane]) << "plane " << plane;
    }
    return true;
}

TEST_F(CudaRepacked, TilesEqualTheCpus) {
    QK_NEEDS_DEVICE();
    Rng rng(61);
    const std::vector<std::pair<int64_t, int64_t>> shapes =
        kSimulated ? std::vector<std::pair<int64_t, int64_t>>{{1, 16}, {32, 272}, {21, 80}}
                   : std::vector<std::pair<int64_t, int64_t>>{{1, 16},     {16, 64},    {21, 80},
                                                              {48, 272},   {144, 1040}, {272, 592},
                                                              {100, 4096}, {528, 512}};
    int at = 0, ran = 0, awq = 0;
    for (const qk_layout layout : kLayouts) {
        for (const qk_format scale : kScales) {
            for (const auto &[n, k] : shapes) {
                const int32_t groups[] = {64, 16, 128, 48, QK_GROUP_ROW};
                const bool pairs = ++at % 3 == 0;
                if (kSimulated && at % 2 == 0) continue;
                qk_tensor_desc desc =
                    weight_desc(pairs ? QK_FORMAT_NF4 : QK_FORMAT_U4_AFFINE, scale, layout,
                                groups[at % 5], n, k, !pairs && at % 4 == 1);
                if (scale == QK_FORMAT_LUT8) desc.scale_group_size = 16;
                const qk_layout tiles =
                    at % 2 == 0 || pairs ? qk::kLayoutTilesPairs : qk::kLayoutTiles;
                const bool took = check_tiles(desc, tiles, 0, 0, rng);
                ran += took;
                awq += took && layout == QK_LAYOUT_AWQ_GEMM;
                if (n > 32) check_tiles(desc, tiles, 32, 0, rng);
                if (HasFailure()) return;
            }
        }
    }
    EXPECT_GT(ran, kSimulated ? 30 : 150);
    EXPECT_GT(awq, kSimulated ? 1 : 10);
}

TEST_F(CudaRepacked, AtAddressesThatItTakes) {
    QK_NEEDS_DEVICE();
    Rng rng(62);
    int ran = 0;
    for (const qk_layout layout : kLayouts) {
        for (const size_t offset : {1, 2, 4, 8}) {
            for (const qk_format scale : {QK_FORMAT_F16, QK_FORMAT_F32}) {
                ran += check_tiles(weight_desc(QK_FORMAT_U4_AFFINE, scale, layout, 32, 32, 80),
                                   qk::kLayoutTiles, 0, offset, rng);
                if (HasFailure()) return;
            }
        }
    }
    EXPECT_GT(ran, 14);  // offset 8 always, offset 4 where words are read
}

// A product on the device with a poisoned workspace of exactly what it asks for; empty where the
// kernel does not take the case.
std::vector<uint8_t> multiply(const qk::Kernel<qk::LinearArgs> &kernel, const Problem &p,
                              const DeviceWeight &w) {
    const DeviceBuffer x(p.x), bias(p.bias), y(std::vector<uint8_t>(p.y_bytes(), 0xff));
    const qk::Format *const type = qk::find_format(p.type);
    const qk::Dense b = {qk::find_format(QK_FORMAT_F32), 1, p.n(), bias.data()};
    const qk::LinearArgs args = {{type, p.m, p.k(), x.data()},
                                 w.view(),
                                 p.m % 2 == 0 ? &b : nullptr,
                                 {type, p.m, p.n(), y.data()}};
    if (!kernel.can_run(args, device_0())) return {};
    qk::ErrorText error = {};
    qk::Launch launch = device_launch(&error);
    const DeviceBuffer room =
        give_workspace(qk::workspace_of(kernel, args, launch.device), &launch);
    EXPECT_EQ(kernel.run(args, launch), QK_OK) << error.text;
    std::vector<uint8_t> result = y.read();
    room.read();  // looks at the canaries
    return result;
}

TEST_F(CudaRepacked, ProductsHaveThePackedWeightsBits) {
    QK_NEEDS_DEVICE();
    Rng rng(63);
    const std::vector<std::pair<int64_t, int64_t>> shapes =
        kSimulated
            ? std::vector<std::pair<int64_t, int64_t>>{{32, 128}, {21, 80}}
            : std::vector<std::pair<int64_t, int64_t>>{
                  {16, 64}, {32, 128}, {21, 80}, {1, 512}, {400, 1040}, {1024, 2048}, {3000, 256}};
    const int64_t batches[] = {33, 64, 65, 128, 200, 257, 300};
    int at = 0, ran = 0;
    for (const qk_layout layout : kLayouts) {
        for (const qk_format scale : kScales) {
            for (const auto &[n, k] : shapes) {
                ++at;
                if (kSimulated && at % 3 != 0) continue;
                const int32_t groups[] = {64, 128, QK_GROUP_ROW};
                const bool table = at % 3 == 0;
                qk_tensor_desc desc =
                    weight_desc(table ? QK_FORMAT_NF4 : QK_FORMAT_U4_AFFINE, scale, layout,
                                groups[at / 2 % 3], n, k, !table && at % 4 == 1);
                if (scale == QK_FORMAT_LUT8) desc.scale_group_size = 16;
                Problem p = make_problem(desc, at % 2 == 0 ? QK_FORMAT_F16 : QK_FORMAT_BF16,
                                         kSimulated ? 33 + at % 2 : batches[at % 7], rng);
                SCOPED_TRACE(name_of(desc) + ", m " + std::to_string(p.m));
                const DeviceWeight w(p.w), packed = packed_weight(p.w);
                const auto y = multiply(qk::cuda::kLinearRepacked, p, w);
                if (y.empty()) continue;
                ++ran;
                EXPECT_EQ(y, multiply(qk::cuda::kLinearSm90Gemm, p, packed));
                if (HasFailure()) return;
                // More rows round weights to x's type (tests/cuda/batch.cpp has their bound).
                if (kSimulated || p.m > 64 || p.m * n * k > 30000000) continue;
                if (p.m % 2 != 0) p.bias.assign(p.bias.size(), 0);
                expect_within_bound(p, y);
                if (HasFailure()) return;
            }
        }
    }
    EXPECT_GT(ran, at / (kSimulated ? 5 : 2));
}

#if !defined(QK_CUDA_SIMULATED)
// The product reads second scales where the caller has them: an odd address is for other kernels.
TEST_F(CudaRepacked, SecondScalesAtOddAddressesAreLeftToOthers) {
    QK_NEEDS_DEVICE();
    Rng rng(65);
    qk_tensor_desc desc = weight_desc(QK_FORMAT_NF4, QK_FORMAT_LUT8, QK_LAYOUT_WORD, 64, 32, 128);
    desc.scale_group_size = 16;
    Problem p = make_problem(desc, QK_FORMAT_F16, 40, rng);
    DeviceWeight w(p.w);
    if (multiply(qk::cuda::kLinearRepacked, p, w).empty()) GTEST_SKIP() << "needs sm_90a";
    for (const size_t offset : {1, 2, 3}) {
        w.planes[QK_PLANE_SCALE2] = DeviceBuffer(p.w.planes[QK_PLANE_SCALE2], offset);
        EXPECT_TRUE(multiply(qk::cuda::kLinearRepacked, p, w).empty()) << offset;
    }
}
#endif

// A weight of more than one slab, its last one smaller.
TEST_F(CudaRepacked, SlabsHaveThePackedWeightsBits) {
    QK_NEEDS_DEVICE();
    Rng rng(64);
    const int64_t n = kSimulated ? 1600 : 17000, k = kSimulated ? 128 : 32768;
    for (const auto &[format, scale, layout] :
         {std::tuple{QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_GPTQ},
          {QK_FORMAT_NF4, QK_FORMAT_LUT8, QK_LAYOUT_ROW_HIGH}}) {
        qk_tensor_desc desc = weight_desc(format, scale, layout, kSimulated ? 64 : 128, n, k);
        if (scale == QK_FORMAT_LUT8) desc.scale_group_size = 256;
        HostWeight host = empty_weight(desc, QK_LAYOUT_PACKED, 0);
        for (std::vector<uint8_t> &plane : host.planes) {  // f16 scales stay small, f32 ones too
            for (size_t i = 0; i + 8 <= plane.size(); i += 8) {
                const uint64_t word = rng() & 0x3fff3fff3fff3fff;
                memcpy(&plane[i], &word, 8);
            }
        }
        const qk_layout tiles = qk::kCudaBackend.packed_layout(*host.shape.format);
        const HostWeight empty = empty_tiles(desc, n, tiles, 0x5a);
        const DeviceWeight w(host), packed(empty);
        qk::ErrorText error = {};
        ASSERT_EQ(qk::cuda::kRepackGeneric.run({w.view(), packed.view()}, device_launch(&error)),
                  QK_OK);
        for (const int64_t m : {kSimulated ? 17 : 40, kSimulated ? 18 : 300}) {
            Problem p = {{}, QK_FORMAT_F16, m, {}, {}};
            p.w.shape = host.shape;
            p.x = random_floats(p.type, m * k, rng);
            p.bias = random_floats(QK_FORMAT_F32, n, rng);
            const auto y = multiply(qk::cuda::kLinearRepacked, p, w);
            ASSERT_FALSE(y.empty());
            ASSERT_TRUE(std::any_of(y.begin(), y.end(), [](uint8_t b) { return b != 0; }));
            EXPECT_TRUE(y == multiply(qk::cuda::kLinearSm90Gemm, p, packed)) << m;
            EXPECT_EQ(w.planes[QK_PLANE_SCALE2].read(), host.planes[QK_PLANE_SCALE2]);
        }
    }
}

}  // namespace
}  // namespace cuda_test
