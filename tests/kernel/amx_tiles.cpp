// The kernel of int8 mode on AMX, with tiles that are arrays: any processor with AVX-512 VNNI and
// VBMI tells whether its bits are those of the kernel without tiles.
#include "cpu/int8/batch.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/x86_amx/int8_tile.hpp"
#include "kernel/plain_tiles.hpp"
#include "kernel/weights.hpp"

namespace {

using Int8 = qk::cpu::AmxInt8<PlainTiles>;

const qk::Device kHere = qk::device_at(qk::kCpuBackend, 0);

std::vector<uint8_t> result(const qk::Kernel<qk::LinearArgs> &kernel, const qk::LinearArgs &args,
                            const TestDense &out) {
    memset(out.data(), 0xa5, out.bytes());
    qk::Launch launch = test_launch(3, kHere);
    const size_t bytes = kernel.workspace_bytes(args, kHere);
    Guarded room(bytes);
    memset(room.data(), 0xff, bytes);
    launch.workspace = room.data();
    launch.workspace_bytes = bytes;
    EXPECT_EQ(kernel.run(args, launch), QK_OK);
    return {out.data(), out.data() + out.bytes()};
}

// Calls body(weight, its case, m).
template <class Body>
void for_each_case(const std::vector<int32_t> &groups, const Body &body) {
    constexpr qk_format kFormats[] = {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4, QK_FORMAT_FP4_BNB,
                                      QK_FORMAT_FP4_E2M1};
    constexpr int64_t kShapes[][3] = {{8, 32, 128},   {16, 40, 512},  {17, 8, 72},
                                      {33, 40, 1000}, {70, 104, 200}, {300, 136, 136}};
    constexpr qk_layout kLayouts[] = {qk::kLayoutRows8, QK_LAYOUT_ROW_HIGH, QK_LAYOUT_AWQ_GEMM};
    int cases = 0;
    for (const qk_format format : kFormats) {
        for (const int32_t group : groups) {
            for (int kind = 0; kind < 4; ++kind) {  // symmetric, minima, nested, or none of these
                for (const auto &[m, n, k] : kShapes) {
                    const qk_layout layout = kLayouts[cases % 5 < 2 ? 0 : cases % 3];
                    WeightCase c = {format, QK_FORMAT_F16, layout, n, k, group};
                    c.grouping = QK_GROUPING_ALONG_K;
                    c.symmetric = kind == 1, c.minimum = kind == 2;
                    if (kind == 3) c.scale_format = QK_FORMAT_LUT8, c.scale_group_size = 16;
                    if (format != QK_FORMAT_U4_AFFINE && (kind == 1 || kind == 2)) continue;
                    if (m > 64 && (group > 128 || kind == 1)) continue;
                    const TestWeight w(c, uint32_t(7 + cases));
                    ++cases;
                    if (w.valid()) body(w, c, m);
                }
            }
        }
    }
}

TEST(AmxTiles, Int8HasTheBitsOfVectors) {
    if (!qk::has(kHere, qk::cpu::kVnniVbmi)) GTEST_SKIP() << "no AVX-512 VNNI and VBMI here";
    const qk::Kernel<qk::LinearArgs> stand = {
        "amx int8 batch", nullptr, qk::cpu::int8_tiles_bytes<Int8>, qk::cpu::run_int8_batch<Int8>};
    const qk::Kernel<qk::LinearArgs> &vectors = qk::cpu::kLinearInt8VnniBatch;
    int ran = 0;
    for_each_case({64, 128, 256, QK_GROUP_ROW},
                  [&](const TestWeight &w, const WeightCase &c, int64_t m) {
        const TestDense x(QK_FORMAT_F32, m, c.k, 5), y(QK_FORMAT_F32, m, c.n, 6);
        const qk::LinearArgs args = {x.view(), w.view(), nullptr, y.view()};
        ASSERT_TRUE(vectors.can_run(args, kHere)) << describe(c);
        ASSERT_EQ(result(stand, args, y), result(vectors, args, y)) << describe(c) << " m " << m;
        ++ran;
    });
    EXPECT_GT(ran, 150);
    EXPECT_GT(PlainTiles::Session::sessions, ran) << "a session for each range of tasks";
}

}  // namespace
