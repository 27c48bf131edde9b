// Products with experts by the matrix kernel: z within the bound of its roundings, in bits that
// depend on nothing but a slot's own x and expert; what becomes of slots is what docs/formats.md
// says.
#include <array>

#include "cuda/experts_case.hpp"

namespace cuda_test {
namespace {

using qk::cuda::kLinearSm90ExpertGemm;

// Tokens, slots and everything that goes with their number.
void resize(Case *c, int64_t tokens, int64_t slots, Rng &rng) {
    c->tokens = tokens, c->slots = slots;
    c->x = random_floats(c->type, c->x_rows() * c->k(), rng);
    c->y = random_floats(c->y_type, c->y_rows() * c->columns(), rng);
    c->expert = bytes_of(routing(tokens * slots, c->count, rng));
    c->weight = random_floats(QK_FORMAT_F32, tokens * slots, rng);
}

// A weight is an entry of a table, its scale, and their product, each rounded to x's type; z is
// their sum in f32, of which tensor cores keep 22 bits.
void expect_within_bound(Case &c, const std::vector<float> &z) {
    const double unit = rounding_of(c.type);
    const double relative = 3.2 * unit + double(c.k()) * 0x1p-22;
    const std::vector<float> w = values_of(c.w);
    const int64_t step = std::max<int64_t>(c.tokens * c.slots / 23, 1);
    for (int64_t slot = 0; slot < c.tokens * c.slots; slot += step) {
        const int32_t e = expert_at(c, slot);
        const int64_t x_row = c.by_slot ? slot : slot / c.slots;
        for (int64_t row = 0; row < c.rows(); ++row) {
            const float actual = z[size_t(slot * c.rows() + row)];
            if (e < 0 || e >= c.count) {
                ASSERT_TRUE(e < 0 ? actual == 0 : std::isnan(actual)) << "slot " << slot;
                continue;
            }
            const int64_t at = e * c.rows() + row;
            const double bias = c.biased ? float_at(QK_FORMAT_F32, c.bias, at) : 0;
            const ExactSum exact =
                exact_sum(c.type, c.x, x_row, w.data() + at * c.k(), c.k(), bias);
            // f16's subnormal numbers are 2^-24 apart; x is below 8 here.
            const double least = c.type == QK_FORMAT_F16 ? double(c.k()) * 0x1p-19 : 0x1p-60;
            ASSERT_LE(std::fabs(actual - exact.value), relative * exact.magnitude + least)
                << "slot " << slot << " row " << row;
        }
    }
}

// Activations are in f32: a few of its last places, and then rounded.
void expect_close(const Case &c, const std::vector<uint8_t> &expected,
                  const std::vector<uint8_t> &actual, double magnitude) {
    const int64_t bytes = c.y_type == QK_FORMAT_F32 ? 4 : 2;
    const double relative = 0x1p-18 + 2.5 * rounding_of(c.y_type);
    for (int64_t i = 0; i < int64_t(expected.size()) / bytes; ++i) {
        const float a = float_at(c.y_type, expected, i), b = float_at(c.y_type, actual, i);
        if (std::isnan(a) || std::isinf(a)) {
            ASSERT_TRUE(std::isnan(a) ? std::isnan(b) : a == b) << i;
            continue;
        }
        ASSERT_LE(std::fabs(double(a) - b), relative * std::fabs(a) + magnitude) << i;
    }
}

float largest(const std::vector<float> &z) {
    float most = 0;
    for (const float v : z) most = std::isfinite(v) ? std::max(most, std::fabs(v)) : most;
    return most;
}

void check(Case &c) {
    SCOPED_TRACE(c.title());
    const DeviceWeight w(packed_on_host(c.w));
    const std::vector<float> z = slots_of(c, w, kLinearSm90ExpertGemm);
    ASSERT_NO_FATAL_FAILURE(expect_within_bound(c, z));
    const std::vector<uint8_t> expected = made_of(c, z);
    const std::vector<uint8_t> y = on_device(c, w, kLinearSm90ExpertGemm);
    if (c.activation == QK_ACTIVATION_NONE) {
        ASSERT_TRUE(same_values(c.y_type, expected, y));
        return;
    }
    // Slots that cancel each other leave what the largest of them was rounded by.
    const double most = largest(z), slots = c.summed ? double(c.slots) * 8 : 1;
    ASSERT_NO_FATAL_FAILURE(expect_close(c, expected, y, slots * most * most * 0x1p-18));
}

// Items of all widths, rows of w that end in a block and past it, weights of every kind.
TEST(CudaGemmExperts, AreWithinTheBound) {
    QK_NEEDS_DEVICE();
    Rng rng(51);
    const int64_t shapes[][3] = {{1, 16, 64},   {3, 64, 512},   {5, 160, 1040}, {4, 96, 2048},
                                 {2, 544, 720}, {16, 288, 192}, {3, 1536, 256}, {7, 80, 80}};
    const int64_t sizes[][2] = {{3, 2}, {40, 3}, {200, 2}, {33, 8}, {130, 1}};
    int at = 0;
    for (const Kind &kind : kPacked) {
        for (const auto &[count, rows, k] : shapes) {
            for (const auto &[tokens, slots] : sizes) {
                const qk_format type = ++at % 2 == 0 ? QK_FORMAT_F16 : QK_FORMAT_BF16;
                Case c = make_case(desc_of(kind, count * rows, k), count, type, at, rng);
                const bool halves = c.activation != QK_ACTIVATION_NONE && !c.interleaved;
                if (halves && rows % 32 != 0) c.interleaved = true;
                resize(&c, tokens, slots, rng);
                ASSERT_NO_FATAL_FAILURE(check(c));
            }
        }
    }
}

// Gate's and up's rows of tiles in one block, items of every width, and scales that warps copy in
// pieces of different sizes: 20, 40, 70 and 150 rows an expert; halves end within a block.
TEST(CudaGemmExperts, HalvesOfEveryItem) {
    QK_NEEDS_DEVICE();
    Rng rng(56);
    int at = 0;
    for (const qk_format scale : {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32}) {
        for (const Kind &codes : {kPacked[0], kPacked[2], kPacked[3]}) {
            Kind kind = codes;
            kind.scale = scale;
            for (const int64_t tokens : {20, 40, 70, 150}) {
                const qk_format type = ++at % 2 == 0 ? QK_FORMAT_F16 : QK_FORMAT_BF16;
                Case c = make_case(desc_of(kind, 3 * 416, 320), 3, type, at, rng);
                c.activation = QK_ACTIVATION_SILU, c.interleaved = false;
                c.by_slot = c.summed = c.weighted = c.accumulates = false;
                resize(&c, tokens, 3, rng);
                ASSERT_NO_FATAL_FAILURE(check(c));
            }
        }
    }
}

// Placed codes are a power of two too small: scales make up for it, unless one of a stage would
// overflow then. From 2^-24, below which f16 has none, to 2; with some of 4 and more; none below.
TEST(CudaGemmExperts, ScalesOfPlacedCodes) {
    QK_NEEDS_DEVICE();
    Rng rng(54);
    const Kind &mxfp4 = kPacked[5];
    ASSERT_EQ(mxfp4.scale, QK_FORMAT_E8M0);
    int at = 0;
    for (const auto &[first, count, large] : {std::array{103, 26, 0},
                                              {112, 4, 0},
                                              {118, 6, 500},
                                              {124, 9, 0},
                                              {127, 6, 0},
                                              {88, 20, 0}}) {
        for (const int64_t tokens : {17, 70, 190}) {
            const qk_format type = ++at % 2 == 0 ? QK_FORMAT_F16 : QK_FORMAT_BF16;
            Case c = make_case(desc_of(mxfp4, 3 * 288, 544), 3, type, at, rng);
            for (uint8_t &code : c.w.planes[QK_PLANE_SCALE]) {
                code = uint8_t(first + int(rng() % uint64_t(count)));
                if (large != 0 && rng() % uint64_t(large) == 0) code = 131;
            }
            resize(&c, tokens, 3, rng);
            ASSERT_NO_FATAL_FAILURE(check(c));
        }
    }
}

// A stage with one scale of 4 or more is not lifted: its other rows keep their bits. A NaN's and an
// infinity's are lifted, and show in their own row alone.
TEST(CudaGemmExperts, StagesThatAreNotLiftedHaveTheSameBits) {
    QK_NEEDS_DEVICE();
    Rng rng(55);
    constexpr int64_t kRow = 288 + 5, kGroups = 17;  // row 5 of expert 1
    for (const qk_format type : {QK_FORMAT_F16, QK_FORMAT_BF16}) {
        for (const int64_t tokens : {17, 70, 190}) {
            Case c = make_case(desc_of(kPacked[5], 3 * 288, kGroups * 32), 3, type, 0, rng);
            std::vector<uint8_t> &codes = c.w.planes[QK_PLANE_SCALE];
            for (uint8_t &code : codes) code = uint8_t(112 + rng() % 16);
            resize(&c, tokens, 3, rng);
            const std::vector<float> z =
                slots_of(c, DeviceWeight(packed_on_host(c.w)), kLinearSm90ExpertGemm);
            for (const int code : {131, 200, 255}) {
                codes[kRow * kGroups + 3] = uint8_t(code);
                const std::vector<float> other =
                    slots_of(c, DeviceWeight(packed_on_host(c.w)), kLinearSm90ExpertGemm);
                for (size_t i = 0; i < z.size(); ++i) {
                    const int64_t slot = int64_t(i) / c.rows();
                    if (expert_at(c, slot) * c.rows() + int64_t(i) % c.rows() != kRow) {
                        ASSERT_EQ(memcmp(&other[i], &z[i], 4), 0) << code << " at " << i;
                    } else if (code == 255) {
                        ASSERT_TRUE(std::isnan(other[i])) << i;
                    }
                }
            }
        }
    }
}

// Of every 13th token.
void expect_own_bits(Case &many) {
    SCOPED_TRACE(many.title());
    const DeviceWeight w(packed_on_host(many.w));
    const std::vector<float> z = slots_of(many, w, kLinearSm90ExpertGemm);
    for (int64_t token = 0; token < many.tokens; token += 13) {
        Case one = many;
        one.tokens = 1;
        const int64_t x_rows = many.by_slot ? many.slots : 1, x_bytes = x_rows * many.k() * 2;
        const auto x = many.x.begin() + long(token * x_bytes);
        one.x.assign(x, x + long(x_bytes));
        const auto ids = many.expert.begin() + long(token * many.slots * 4);
        one.expert.assign(ids, ids + long(many.slots * 4));
        const auto first = z.begin() + long(token * many.slots * many.rows());
        const std::vector<float> expected(first, first + long(many.slots * many.rows()));
        ASSERT_TRUE(same_values(QK_FORMAT_F32, bytes_of(expected),
                                bytes_of(slots_of(one, w, kLinearSm90ExpertGemm))))
            << "token " << token;
    }
}

// A slot's bits, among many tokens and alone: in products of 8 rows and of others up to 160.
TEST(CudaGemmExperts, BitsAreARowsOwn) {
    QK_NEEDS_DEVICE();
    Rng rng(52);
    int at = 0;
    for (const Kind &kind : kPacked) {
        for (const int64_t tokens : {13, 27, 48, 63, 76, 90, 106, 200}) {
            Case many = make_case(desc_of(kind, 4 * 96, 720), 4, QK_FORMAT_BF16, ++at, rng);
            resize(&many, tokens, 3, rng);
            ASSERT_NO_FATAL_FAILURE(expect_own_bits(many));
        }
    }
}

// More tokens than the workspace has room for at once, and more rows of x: the last rows of an
// expert are multiplied apart from the others.
TEST(CudaGemmExperts, ManyTokens) {
    QK_NEEDS_DEVICE();
    Rng rng(53);
    for (const bool summed : {true, false}) {
        Case c = make_case(desc_of(kPacked[0], 4 * 64, 8192), 4, QK_FORMAT_F16, 3, rng);
        c.activation = QK_ACTIVATION_NONE;
        c.summed = summed;
        resize(&c, 3000, 4, rng);
        ASSERT_NO_FATAL_FAILURE(check(c));
    }
}

}  // namespace
}  // namespace cuda_test
