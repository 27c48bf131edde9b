// The reference's products: the documented order on numbers that show it, and its error bound.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "reference.hpp"

namespace {

using namespace reference;

Product dense(std::vector<float> x, std::vector<float> w) {
    const int64_t k = int64_t(x.size());
    return {std::move(x), 1, 1, k, std::move(w), {1.0f}, dense_groups(1, k), {}, 0, {}};
}

TEST(ReferenceLinear, LanesAndFold) {
    // Column c is in lane c mod 16. Lane 0: 2^24 + 1 (column 16) rounds to 2^24; were the columns
    // added one after the other, or folded with other neighbours, the 1s would not be lost alike.
    std::vector<float> x(32, 0.0f), w(32, 1.0f);
    x[0] = 16777216.0f, x[16] = 1, x[8] = -16777216.0f, x[1] = 1;
    EXPECT_EQ(linear_ordered(dense(x, w))[0], 1.0f);  // (lane 0 + lane 8) + ... + lane 1
    x[17] = 16777216.0f, x[9] = 0;                    // lane 1 = 2^24 + 1 rounds away its 1
    EXPECT_EQ(linear_ordered(dense(x, w))[0], 16777216.0f);
}

TEST(ReferenceLinear, WeightsAreRoundedBeforeTheyMultiply) {
    Spec spec;
    spec.k = 32;
    spec.group_size = 16;
    Product product = dense(std::vector<float>(32, 1.0f), std::vector<float>(32, 3.0f));
    product.groups = groups_of(spec);
    product.scales = {0.5f, 0.25f};
    product.bias = {100.0f};
    EXPECT_EQ(linear_ordered(product)[0], 16 * 1.5f + 16 * 0.75f + 100.0f);
    EXPECT_EQ(linear_exact(product).value[0], 136.0);
    product.scales[1] = INFINITY;
    EXPECT_EQ(linear_ordered(product)[0], INFINITY);
    product.entries[31] = 0;  // 0 * infinity
    EXPECT_TRUE(std::isnan(linear_ordered(product)[0]));
    // fl(3 * (1 + 2^-23)) = 3 + 2^-21, and 3 times that is 9 + 2^-19. Scaled last: 9 + 2^-20.
    product = dense({3.0f}, {3.0f});
    product.scales = {1.0f + 0x1p-23f};
    EXPECT_EQ(linear_ordered(product)[0], 9.0f + 0x1p-19f);
}

// Three rows and more: a chain a block of 128 columns. One or two: the lanes of one.
TEST(ReferenceLinear, BlocksOfColumns) {
    std::vector<float> x(3 * 200, 0.0f), w(200, 1.0f);
    x[0] = 16777216.0f, x[1] = 1, x[17] = 1;  // each 1 is lost at once
    x[128] = 1, x[129] = 1;                   // together they are not
    Product product = dense(x, w);
    product.m = 3, product.k = 200;
    product.groups = dense_groups(1, 200);
    EXPECT_EQ(linear_ordered(product)[0], 16777218.0f);
    EXPECT_EQ(linear_ordered(product)[2], 0.0f);
    product.m = 2, product.x.resize(2 * 200);
    const float two = linear_ordered(product)[0];
    product.m = 1, product.x.resize(200);
    EXPECT_EQ(linear_ordered(product)[0], two);
    EXPECT_EQ(two, 16777220.0f);  // lane 1 has 3, lane 0 loses the fourth 1
}

// One row on integers: products are summed exactly, x is cut to a grid.
TEST(ReferenceLinear, IntegersOfBlocks) {
    std::vector<float> x(128, 0.0f), w(128, 1.0f);
    x[0] = 1, x[16] = 0x1p-22f, x[32] = 0x1p-23f, x[48] = 0x1.8p-23f;  // unit 2^-22; ties to even
    Product product = dense(x, w);
    product.entry_steps = 1;
    EXPECT_EQ(linear_ordered(product)[0], 1.0f + 0x1p-22f + 0x1p-22f);
    x[0] = 0x1.fbfffep0f;  // just below 2^23 - 2^16 units
    product.x = x;
    product.x[16] = product.x[32] = product.x[48] = 0;
    EXPECT_EQ(linear_ordered(product)[0], 0x1.fcp0f);  // half a unit, to even
    product.x[1] = INFINITY;
    EXPECT_EQ(linear_ordered(product)[0], INFINITY);
    product.x[1] = 0x1p64f;  // floats again
    EXPECT_EQ(linear_ordered(product)[0], 0x1p64f);
}

TEST(ReferenceLinear, OrderStaysWithinTheBound) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    double worst = 0;
    for (int round = 0; round < 200; ++round) {
        Spec spec;
        spec.k = 1 + int64_t(random() % 400);
        spec.n = 3;
        spec.group_size = 16;
        spec.flat = round % 2 == 0;
        Product product;
        product.m = 2 + round % 2, product.n = 3, product.k = spec.k;
        product.groups = groups_of(spec);
        for (int64_t i = 0; i < product.m * spec.k; ++i) product.x.push_back(normal(random));
        for (int64_t i = 0; i < 3 * spec.k; ++i) product.entries.push_back(normal(random));
        for (int64_t g = 0; g < product.groups.count; ++g) product.scales.push_back(normal(random));
        product.bias = {1.0f, -2.0f, 0.5f};
        const Bounded exact = linear_exact(product);
        const std::vector<float> y = linear_ordered(product);
        for (size_t i = 0; i < y.size(); ++i) {
            const double error = std::fabs(double(y[i]) - exact.value[i]);
            ASSERT_LE(error, exact.bound[i]);
            worst = std::max(worst, error / exact.bound[i]);
        }
    }
    EXPECT_GT(worst, 0.001);  // a bound that nothing comes near would prove nothing
}

TEST(ReferenceLinear, Within) {
    EXPECT_TRUE(within(Format::f32, std::bit_cast<uint32_t>(1.0f), 1.0 + 1e-9, 0));
    EXPECT_FALSE(within(Format::f32, std::bit_cast<uint32_t>(1.0f), 1.0 + 1e-6, 0));
    EXPECT_TRUE(within(Format::f16, 0x3C00, 1.0 + 0.0004, 0));
    EXPECT_FALSE(within(Format::f16, 0x3C00, 1.0 + 0.0006, 0));
    EXPECT_TRUE(within(Format::f16, 0x3C00, 1.0 + 0.0006, 0.0002));
    EXPECT_FALSE(within(Format::f32, 0x7FC00000, 1.0, 0.5));
}

}  // namespace
