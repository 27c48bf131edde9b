// The kernels on AMX, with tiles that are arrays: any processor with the AVX-512 sets that they
// stand on tells whether int8 mode has the bits of the kernel without tiles, and bf16 mode those of
// its stated sequence of sums. Where there is AMX, the instructions are held against the arrays.
#include "cpu/int8/x.hpp"
#include "cpu/linear/select.hpp"
#include "kernel/amx_stands.hpp"
#include "kernel/plain_tiles.hpp"
#include "kernel/weights.hpp"

namespace {

const qk::Device kHere = qk::device_at(qk::kCpuBackend, 0);

std::vector<uint8_t> result(const qk::Kernel<qk::LinearArgs> &kernel, const qk::LinearArgs &args,
                            const TestDense &out, int32_t threads = 3) {
    memset(out.data(), 0xa5, out.bytes());
    qk::Launch launch = test_launch(threads, kHere);
    const size_t bytes = kernel.workspace_bytes(args, kHere);
    Guarded room(bytes);
    memset(room.data(), 0xff, bytes);
    launch.workspace = room.data();
    launch.workspace_bytes = bytes;
    EXPECT_EQ(kernel.run(args, launch), QK_OK);
    return {out.data(), out.data() + out.bytes()};
}

// Calls body(weight, its case, m), for both modes.
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
            for (int kind = 0; kind < 5; ++kind) {  // symmetric, minima, nested, flat, or none
                for (const auto &[m, n, k] : kShapes) {
                    const qk_layout layout = kLayouts[cases % 5 < 2 ? 0 : cases % 3];
                    WeightCase c = {format, QK_FORMAT_F16, layout, n, k, group};
                    c.grouping = QK_GROUPING_ALONG_K;
                    c.symmetric = kind == 1, c.minimum = kind == 2;
                    if (kind == 3) c.scale_format = QK_FORMAT_LUT8, c.scale_group_size = 16;
                    if (kind == 4) {  // groups straddle rows, at multiples of 16 columns
                        c.layout =
                            cases % 2 == 0 ? qk_layout{qk::kLayoutRows8} : QK_LAYOUT_ROW_HIGH;
                        c.k = k / 16 * 16 + 16, c.grouping = QK_GROUPING_FLAT;
                    }
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
    const qk::Kernel<qk::LinearArgs> &batch = qk::cpu::kLinearInt8VnniBatch,
                                     &columns = qk::cpu::kLinearInt8ColumnsAvx2;  // of few rows
    int ran = 0;
    for_each_case({16, 32, 64, 128, 256, QK_GROUP_ROW},
                  [&](const TestWeight &w, const WeightCase &c, int64_t m) {
        const TestDense x(QK_FORMAT_F32, m, c.k, 5), y(QK_FORMAT_F32, m, c.n, 6);
        const qk::LinearArgs args = {x.view(), w.view(), nullptr, y.view()};
        const qk::Kernel<qk::LinearArgs> &vectors = batch.can_run(args, kHere) ? batch : columns;
        ASSERT_TRUE(vectors.can_run(args, kHere)) << describe(c);
        ASSERT_EQ(result(kAmxStands.int8, args, y), result(vectors, args, y))
            << describe(c) << " m " << m;
        ++ran;
    });
    EXPECT_GT(ran, 200);
    EXPECT_GT(kAmxStands.sessions(), ran) << "a session for each range of tasks";
}

TEST(AmxTiles, RowsOfBytesHaveTheBitsOfVectors) {
    if (!qk::has(kHere, qk::cpu::kVnniVbmi)) GTEST_SKIP() << "no AVX-512 VNNI and VBMI here";
    const qk::Kernel<qk::LinearArgs> &vectors = qk::cpu::kLinearInt8VnniBytesBatch;
    constexpr int64_t kShapes[][3] = {{8, 3, 128},   {16, 40, 512}, {17, 8, 70},
                                      {33, 33, 999}, {530, 40, 72}, {70, 1064, 72}};
    for (const int32_t group : {16, 32, 64, 128, 256, int32_t{QK_GROUP_ROW}}) {
        for (const auto &[m, n, k] : kShapes) {
            for (const bool minimum : {false, true}) {
                WeightCase c = {QK_FORMAT_S8, QK_FORMAT_F16, QK_LAYOUT_ROW, n, k, group};
                c.grouping = QK_GROUPING_ALONG_K;
                c.minimum = minimum;
                const TestWeight w(c, uint32_t(m + group));
                ASSERT_TRUE(w.valid()) << describe(c);
                const TestDense x(QK_FORMAT_F32, m, k, 5), y(QK_FORMAT_F32, m, n, 6);
                const qk::LinearArgs args = {x.view(), w.view(), nullptr, y.view()};
                ASSERT_TRUE(vectors.can_run(args, kHere)) << describe(c);
                ASSERT_EQ(result(kAmxStands.int8_bytes, args, y, 1 + n % 3),
                          result(vectors, args, y))
                    << describe(c) << " m " << m;
            }
        }
    }
}

// A tile of x has 32 rows, a product reads 16: the others are not made where there are none.
TEST(AmxTiles, MakeNoRowsOfXForNothing) {
    if (!qk::has(kHere, qk::cpu::kVnniVbmi)) GTEST_SKIP() << "no AVX-512 VNNI and VBMI here";
    const WeightCase c = {QK_FORMAT_NF4, QK_FORMAT_F32, QK_LAYOUT_ROW, 8,
                          128,           128,           false,         QK_GROUPING_ALONG_K};
    const TestWeight w(c, 7);
    ASSERT_TRUE(w.valid());
    for (const auto &[m, made] : {std::pair<int64_t, int64_t>{13, 16}, {16, 16}, {17, 32}}) {
        const TestDense x(QK_FORMAT_F32, m, c.k, 5), y(QK_FORMAT_F32, m, c.n, 6);
        const qk::LinearArgs args = {x.view(), w.view(), nullptr, y.view()};
        qk::Launch launch = test_launch(1, kHere);
        std::vector<uint8_t> room(kAmxStands.int8.workspace_bytes(args, kHere), 0x55);
        launch.workspace = room.data();
        launch.workspace_bytes = room.size();
        ASSERT_EQ(kAmxStands.int8.run(args, launch), QK_OK);
        const auto *const tile = reinterpret_cast<const void *>(qk::cpu::aligned_workspace(launch));
        const std::vector<int8_t> untouched(64, 0x55);
        for (int64_t j = 0; j < kAmxStands.rows_of_x; ++j) {
            EXPECT_EQ(memcmp(kAmxStands.row_of_x(tile, j), untouched.data(), 64) != 0, j < made)
                << m << " " << j;
        }
    }
}

// Weights as qk_dequantize gives them, rounded to bf16.
std::vector<float> rounded_weights(const TestWeight &w, const WeightCase &c) {
    const TestDense out(QK_FORMAT_F32, c.n, c.k, 1);
    const qk::DequantizeArgs args = {w.view(), out.view()};
    const qk::Kernel<qk::DequantizeArgs> &generic = qk::cpu::kDequantizeGeneric;
    EXPECT_EQ(generic.run(args, test_launch(1, kHere)), QK_OK);
    std::vector<float> weights(size_t(c.n * c.k));
    memcpy(weights.data(), out.data(), out.bytes());
    for (float &weight : weights) weight = qk::f32_from_bf16(qk::bf16_from_f32(weight));
    return weights;
}

// The sequence that x86_amx/bf16_strip.hpp and the manual state, for numbers far from 2^-126.
float stated_sum(const float *x, const float *w, int64_t k) {
    float y = 0;
    for (int64_t panel = 0; panel < k; panel += 256) {
        float of_panel = 0;
        for (int64_t i = 0; i < 8; ++i) {
            const int64_t step = panel + i / 4 * 128 + i % 4 * 16;
            float first = 0, second = 0;
            for (int64_t c = step; c < std::min(step + 16, k); ++c) {
                first = fmaf(x[c], w[c], first);
                if (c + 64 < k) second = fmaf(x[c + 64], w[c + 64], second);
            }
            of_panel += first + second;
        }
        y += of_panel;
    }
    return y;
}

TEST(AmxTiles, Bf16HasTheStatedSequenceOfSums) {
    if (!qk::has(kHere, qk::cpu::kAvx512Bf16)) GTEST_SKIP() << "no AVX-512 BF16 here";
    int ran = 0;
    const auto body = [&](const TestWeight &w, const WeightCase &c, int64_t m) {
        if (c.minimum) return;  // runs exact
        const qk_format format = ran % 2 == 0 ? QK_FORMAT_BF16 : QK_FORMAT_F32;
        const TestDense x(format, m, c.k, 5), y(QK_FORMAT_F32, m, c.n, 6);
        const qk::LinearArgs args = {x.view(), w.view(), nullptr, y.view()};
        const std::vector<uint8_t> bytes = result(kAmxStands.bf16, args, y);
        const std::vector<float> weights = rounded_weights(w, c);
        std::vector<float> row(size_t(c.k));
        for (int64_t i = 0; i<m; i += m> 64 ? 31 : 1) {
            qk::cpu::load_floats(format, x.data(), i * c.k, c.k, row.data());
            for (float &value : row) value = qk::f32_from_bf16(qk::bf16_from_f32(value));
            for (int64_t j = 0; j < c.n; ++j) {
                float got;
                memcpy(&got, bytes.data() + (i * c.n + j) * 4, 4);
                ASSERT_EQ(got, stated_sum(row.data(), &weights[size_t(j * c.k)], c.k))
                    << describe(c) << " m " << m << " y[" << i << ", " << j << "]";
            }
        }
        ++ran;
    };
    for_each_case({16, 32, 64, 128, QK_GROUP_ROW}, body);
    EXPECT_GT(ran, 150);
}

// One task has more rows of w than it multiplies at once, and more rows of x than it keeps sums of.
TEST(AmxTiles, StripsAndBatchesChangeNoBit) {
    if (!qk::has(kHere, qk::cpu::kVnniVbmi | qk::cpu::kAvx512Bf16))
        GTEST_SKIP() << "no AVX-512 VNNI, VBMI and BF16 here";
    for (const int32_t group : {16, 32, 64}) {
        for (const bool minimum : {false, true}) {
            WeightCase c = {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, qk::kLayoutRows8, 536, 136, group};
            c.grouping = QK_GROUPING_ALONG_K;
            c.minimum = minimum;
            const TestWeight w(c, 7);
            ASSERT_TRUE(w.valid());
            const TestDense x(QK_FORMAT_F32, 530, c.k, 5), y(QK_FORMAT_F32, 530, c.n, 6);
            const qk::LinearArgs args = {x.view(), w.view(), nullptr, y.view()};
            EXPECT_EQ(result(kAmxStands.int8, args, y, 1),
                      result(qk::cpu::kLinearInt8VnniBatch, args, y, 1));
            if (minimum || group < 64) continue;  // minima run exact
            EXPECT_EQ(result(kAmxStands.bf16, args, y, 1), result(kAmxStands.bf16, args, y, 40));
        }
    }
}

// Numbers of any size, the smallest, infinities and NaN among them.
class Instructions {
  public:
    void draw(int round) {
        for (auto &tile : from_) {
            for (auto &row : tile) {
                for (uint16_t &value : row) value = number(round);
            }
        }
        for (auto &row : start_) {
            for (float &value : row) value = qk::f32_from_bf16(number(round));
        }
    }

    struct Products {
        alignas(64) uint8_t integers[1024], floats[1024];
    };
    // Registers 6 and 2 hold factors. Floats are multiplied in whole rows alone.
    template <class Tiles, int kColumns>
    Products products() const {
        const typename Tiles::template SessionOf<kColumns> session;
        Tiles tiles;
        Products to = {};
        tiles.template load<0>(start_, 64);
        tiles.template load<1>(start_, 64);
        tiles.template load<6>(from_[0], 64);
        tiles.template load<2>(from_[1], 64);
        tiles.template add_products<0, 6, 2>();
        tiles.template store<0>(to.integers, 64);
        if (kColumns < 64) return to;
        tiles.template add_bf16_products<1, 6, 2>();
        tiles.template store<1>(to.floats, 64);
        return to;
    }

    template <int kColumns>
    void compare() const {
        const Products a = products<PlainTiles, kColumns>();
        const Products b = products<qk::cpu::AmxTiles, kColumns>();
        ASSERT_EQ(memcmp(a.integers, b.integers, 1024), 0) << kColumns;
        for (int i = 0; i < 256; ++i) {
            float x, y;
            memcpy(&x, a.floats + 4 * i, 4);
            memcpy(&y, b.floats + 4 * i, 4);
            if (isnan(x) && isnan(y)) continue;  // which of several NaNs is not said
            ASSERT_EQ(memcmp(&x, &y, 4), 0) << x << " and " << y;
        }
    }

  private:
    uint16_t number(int round) {
        const float any = ldexpf(normal_(random_), int(random_() % 120) - 100);
        const float value = round % 3 == 0   ? normal_(random_)
                            : round % 3 == 1 ? any
                                             : any * 0x1p-40f;
        return random_() % 4000 == 0 ? uint16_t(random_()) : qk::bf16_from_f32(value);
    }

    std::mt19937 random_{11};
    std::normal_distribution<float> normal_;
    alignas(64) uint16_t from_[2][16][32];
    alignas(64) float start_[16][16];
};

TEST(AmxTiles, InstructionsDoWhatTheArraysDo) {
    if (!qk::has(kHere, qk::cpu::kAmxInt8 | qk::cpu::kAmxBf16)) GTEST_SKIP() << "no AMX here";
    if (!qk::cpu::tiles_allowed()) GTEST_SKIP() << "the system keeps AMX's tiles back";
    Instructions instructions;
    for (int round = 0; round < 3000 && !HasFatalFailure(); ++round) {
        SCOPED_TRACE(round);
        instructions.draw(round);
        instructions.compare<64>();
        instructions.compare<32>();
        instructions.compare<16>();
    }
}

}  // namespace
