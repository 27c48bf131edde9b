// The kernel of int8 mode on AMX, with tiles that are arrays: any processor with AVX-512 VNNI and
// VBMI tells whether its bits are those of the kernel without tiles.
#include "cpu/int8/batch.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/x86_amx/int8_tile.hpp"
#include "kernel/weights.hpp"

namespace {

using qk::cpu::kTileRegisters, qk::cpu::kTileRowBytes, qk::cpu::kTileRows16;

// What Intel's manual says of the instructions (SDM volume 2, TILELOADD, TDPBSUD).
class PlainTiles {
  public:
    struct Session {
        Session() { ++sessions; }
        ~Session() {}
        static inline std::atomic<int> sessions;
    };

    template <int tile>
    void zero() {
        memset(tile_[tile], 0, sizeof(tile_[tile]));
    }
    template <int tile>
    void load(const void *from, int64_t stride) {
        for (int row = 0; row < kTileRows16; ++row) {
            memcpy(tile_[tile][row], static_cast<const char *>(from) + row * stride, kTileRowBytes);
        }
    }
    template <int tile>
    void store(void *to, int64_t stride) const {
        for (int row = 0; row < kTileRows16; ++row) {
            memcpy(static_cast<char *>(to) + row * stride, tile_[tile][row], kTileRowBytes);
        }
    }
    template <int sum, int a, int b>
    void add_products() {
        for (int i = 0; i < kTileRows16; ++i) {
            for (int j = 0; j < 16; ++j) {
                int32_t total;
                memcpy(&total, tile_[sum][i] + 4 * j, 4);
                for (int k = 0; k < kTileRowBytes; ++k) {
                    total += int8_t(tile_[a][i][k]) * int32_t(tile_[b][k / 4][4 * j + k % 4]);
                }
                memcpy(tile_[sum][i] + 4 * j, &total, 4);
            }
        }
    }

  private:
    uint8_t tile_[kTileRegisters][kTileRows16][kTileRowBytes];
};

using Stand = qk::cpu::AmxInt8<PlainTiles>;

std::vector<uint8_t> result(const qk::Kernel<qk::LinearArgs> &kernel, const qk::LinearArgs &args,
                            const TestDense &out, const qk::Device &device) {
    memset(out.data(), 0xa5, out.bytes());
    qk::Launch launch = test_launch(3, device);
    const size_t bytes = kernel.workspace_bytes(args, device);
    Guarded room(bytes);
    launch.workspace = room.data();
    launch.workspace_bytes = bytes;
    EXPECT_EQ(kernel.run(args, launch), QK_OK);
    return {out.data(), out.data() + out.bytes()};
}

TEST(AmxTiles, HaveTheBitsOfVectors) {
    const qk::Device here = qk::device_at(qk::kCpuBackend, 0);
    if (!qk::has(here, qk::cpu::kVnniVbmi)) GTEST_SKIP() << "no AVX-512 VNNI and VBMI here";
    const qk::Kernel<qk::LinearArgs> stand = {"amx int8 batch", nullptr,
                                              qk::cpu::int8_tiles_bytes<Stand>,
                                              qk::cpu::run_int8_batch<Stand>};
    const qk::Kernel<qk::LinearArgs> &vectors = qk::cpu::kLinearInt8VnniBatch;
    constexpr qk_format kFormats[] = {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4, QK_FORMAT_FP4_BNB,
                                      QK_FORMAT_FP4_E2M1};
    constexpr int64_t kShapes[][3] = {{8, 32, 128},    {16, 40, 512},  {17, 8, 72},
                                      {33, 100, 1000}, {129, 64, 320}, {150, 37, 640}};
    int cases = 0;
    for (const qk_format format : kFormats) {
        for (const int32_t group : {64, 128, 256, QK_GROUP_ROW}) {
            for (int kind = 0; kind < 4; ++kind) {  // symmetric, minima, nested, or none of these
                for (const auto &[m, n, k] : kShapes) {
                    WeightCase c = {format, QK_FORMAT_F16, qk::kLayoutRows8, n, k, group};
                    c.grouping = QK_GROUPING_ALONG_K;
                    c.symmetric = kind == 1, c.minimum = kind == 2;
                    if (kind == 3) c.scale_format = QK_FORMAT_LUT8, c.scale_group_size = 16;
                    if (format != QK_FORMAT_U4_AFFINE && (kind == 1 || kind == 2)) continue;
                    const TestWeight w(c, uint32_t(7 + cases));
                    if (!w.valid()) continue;
                    const TestDense x(QK_FORMAT_F32, m, k, 5), y(QK_FORMAT_F32, m, n, 6);
                    const qk::LinearArgs args = {x.view(), w.view(), nullptr, y.view()};
                    ASSERT_TRUE(vectors.can_run(args, here)) << describe(c);
                    ASSERT_EQ(result(stand, args, y, here), result(vectors, args, y, here))
                        << describe(c) << " m " << m;
                    ++cases;
                }
            }
        }
    }
    EXPECT_GT(cases, 150);
    EXPECT_GT(PlainTiles::Session::sessions, cases) << "a session for each range of tasks";
}

}  // namespace
