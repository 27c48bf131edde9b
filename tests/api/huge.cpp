// Indexes past 2^31 and 2^32, in every operation: a few rows at the far end, checked against the
// same rows as a small tensor.
#include <gtest/gtest.h>

#include "api/huge.hpp"

namespace api {
namespace {

constexpr int32_t kGroup = 64;

// [n, k] = 4.3e9 codes in a layout, over aliased memory, u4 with zeros.
struct Weight {
    Place place;
    qk_tensor_desc desc;
    Alias data, scale, zero;
    qk_tensor *tensor;

    Weight(qk_context *context, qk_layout layout, int64_t n, int64_t k, unsigned seed)
        : place{layout, n, k, (k + kGroup - 1) / kGroup},
          desc(weight_desc(QK_FORMAT_U4_AFFINE, layout, n, k, kGroup)),
          data(bytes(QK_PLANE_DATA), seed), scale(bytes(QK_PLANE_SCALE), seed + 1),
          zero(bytes(QK_PLANE_ZERO), seed + 2) {
        scale.make_floats();
        void *planes[QK_PLANE_COUNT] = {data.data(), scale.data(), zero.data()};
        tensor = wrap(context, desc, planes);
    }
    ~Weight() { qk_tensor_destroy(tensor); }
    size_t bytes(qk_plane plane) const {
        size_t count = 0;
        EXPECT_EQ(qk_tensor_plane_bytes(&desc, plane, &count), QK_OK);
        return count;
    }
    // Row r as a small tensor's planes, in layout ROW.
    Planes row(int64_t r) {
        Planes small(weight_desc(QK_FORMAT_U4_AFFINE, QK_LAYOUT_ROW, 1, place.k, kGroup), 0);
        for (int64_t c = 0; c < place.k; ++c) {
            small.bytes[QK_PLANE_DATA][size_t(c / 2)] |=
                static_cast<unsigned char>(nibble(data.data(), place.code(r, c)) << c % 2 * 4);
        }
        for (int64_t g = 0; g < place.groups; ++g) {
            std::memcpy(small.as<float>(QK_PLANE_SCALE) + g, scale.data() + 4 * place.scale(r, g),
                        4);
            small.bytes[QK_PLANE_ZERO][size_t(g / 2)] |=
                static_cast<unsigned char>(nibble(zero.data(), place.zero(r, g)) << g % 2 * 4);
        }
        return small;
    }
};

class Huge : public ::testing::Test {
  protected:
    void open(int64_t n, int64_t per_row) {
        // Both ends, and both sides of where an index of 31 or 32 bits ends.
        sampler.rows = n;
        for (const int64_t elements : {int64_t{1} << 31, int64_t{1} << 32}) {
            const int64_t row = elements / per_row;
            for (const int64_t r : {row - 9, row, row + 9}) sampler.wanted.push_back(r);
        }
        for (const int64_t r : {int64_t{0}, n - 1}) sampler.wanted.push_back(r);
        for (const int64_t r : sampler.wanted) ASSERT_TRUE(r >= 0 && r < n);
        const qk_executor table = sampler.table();
        context = make_context(allocator, 0, &table);
        small = make_context(allocator, 1);
    }
    void TearDown() override {
        EXPECT_GT(sampler.calls, 0);
        qk_context_destroy(context);
        qk_context_destroy(small);
    }
    qk_tensor_desc small_desc(int64_t k) const {
        return weight_desc(QK_FORMAT_U4_AFFINE, QK_LAYOUT_ROW, 1, k, kGroup);
    }
    Allocator allocator;
    Sampler sampler{0, {}};
    qk_context *context = nullptr, *small = nullptr;
};

constexpr int64_t kK = 1031, kN = (int64_t{1} << 32) / kK / 8 * 8 + 32;  // kN * kK > 2^32

void dequantize(qk_context *context, qk_context *small, Sampler &sampler, qk_layout layout) {
    Weight w(context, layout, kN, kK, 11);
    const auto matrix = dense_desc(QK_FORMAT_F16, {kN, kK});
    Alias out(size_t(kN) * kK * 2, 5);
    void *planes[QK_PLANE_COUNT] = {out.data()};
    qk_tensor *const dense = wrap(context, matrix, planes);
    ASSERT_EQ(sampler.sample([&] { return qk_dequantize(context, w.tensor, dense); }), kSampled)
        << qk_context_error(context);
    for (const int64_t r : sampler.wanted) {
        Planes row = w.row(r), expected(dense_desc(QK_FORMAT_F16, {1, kK}));
        qk_tensor *const from =
            wrap(small, weight_desc(QK_FORMAT_U4_AFFINE, QK_LAYOUT_ROW, 1, kK, kGroup), row);
        qk_tensor *const to = wrap(small, dense_desc(QK_FORMAT_F16, {1, kK}), expected);
        ASSERT_EQ(qk_dequantize(small, from, to), QK_OK);
        EXPECT_EQ(std::memcmp(out.data() + r * kK * 2, expected.pointers[0], kK * 2), 0) << r;
        qk_tensor_destroy(from);
        qk_tensor_destroy(to);
    }
    qk_tensor_destroy(dense);
}

TEST_F(Huge, DequantizeRow) {
    open(kN, kK);
    dequantize(context, small, sampler, QK_LAYOUT_ROW);
}

TEST_F(Huge, DequantizeGptq) {
    open(kN, kK);
    dequantize(context, small, sampler, QK_LAYOUT_GPTQ);
}

TEST_F(Huge, DequantizeAwqGemm) {
    open(kN, kK);
    dequantize(context, small, sampler, QK_LAYOUT_AWQ_GEMM);
}

TEST_F(Huge, Repack) {
    open(kN, kK);
    Weight from(context, QK_LAYOUT_WORD, kN, kK, 21), to(context, QK_LAYOUT_AWQ_GEMM, kN, kK, 31);
    ASSERT_EQ(sampler.sample([&] { return qk_repack(context, from.tensor, to.tensor); }), kSampled)
        << qk_context_error(context);
    for (const int64_t r : sampler.wanted) {
        EXPECT_EQ(from.row(r).bytes, to.row(r).bytes) << r;
    }
}

TEST_F(Huge, Quantize) {
    open(kN, kK);
    const auto matrix = dense_desc(QK_FORMAT_F32, {kN, kK});
    Alias in(size_t(kN) * kK * 4, 41);
    in.make_floats();
    void *planes[QK_PLANE_COUNT] = {in.data()};
    qk_tensor *const dense = wrap(context, matrix, planes);
    Weight w(context, QK_LAYOUT_ROW, kN, kK, 51);
    ASSERT_EQ(sampler.sample([&] { return qk_quantize(context, dense, w.tensor); }), kSampled)
        << qk_context_error(context);
    for (const int64_t r : sampler.wanted) {
        Planes x(dense_desc(QK_FORMAT_F32, {1, kK})), expected(small_desc(kK));
        std::memcpy(x.pointers[0], in.data() + r * kK * 4, kK * 4);
        qk_tensor *const from = wrap(small, dense_desc(QK_FORMAT_F32, {1, kK}), x);
        qk_tensor *const to = wrap(small, small_desc(kK), expected);
        ASSERT_EQ(qk_quantize(small, from, to), QK_OK);
        EXPECT_EQ(w.row(r).bytes, expected.bytes) << r;
        qk_tensor_destroy(from);
        qk_tensor_destroy(to);
    }
    qk_tensor_destroy(dense);
}

// w has more than 2^32 codes and y more than 2^32 elements.
TEST_F(Huge, Linear) {
    constexpr int64_t k = 16, m = 17, n = (int64_t{1} << 28) + 32;
    open(n, k);
    Weight w(context, QK_LAYOUT_ROW, n, k, 61);
    const auto x_desc = dense_desc(QK_FORMAT_F16, {m, k});
    const auto y_desc = dense_desc(QK_FORMAT_F16, {m, n});
    Planes x(x_desc);
    x.fill_dense(QK_FORMAT_F16, 3);
    Alias out(size_t(n) * m * 2, 5);
    void *planes[QK_PLANE_COUNT] = {out.data()};
    qk_tensor *const tx = wrap(context, x_desc, x), *const ty = wrap(context, y_desc, planes);
    ASSERT_EQ(sampler.sample([&] { return qk_linear(context, tx, w.tensor, nullptr, ty); }),
              kSampled)
        << qk_context_error(context);
    for (const int64_t r : sampler.wanted) {
        Planes row = w.row(r), expected(dense_desc(QK_FORMAT_F16, {m, 1}));
        qk_tensor *const from = wrap(small, small_desc(k), row);
        qk_tensor *const to = wrap(small, dense_desc(QK_FORMAT_F16, {m, 1}), expected);
        ASSERT_EQ(qk_linear(small, tx, from, nullptr, to), QK_OK);
        for (int64_t i = 0; i < m; ++i) {
            uint16_t y = 0;
            std::memcpy(&y, out.data() + (i * n + r) * 2, 2);
            EXPECT_EQ(y, expected.as<uint16_t>()[i]) << "row " << r << " of w, " << i << " of x";
        }
        qk_tensor_destroy(from);
        qk_tensor_destroy(to);
    }
    qk_tensor_destroy(tx);
    qk_tensor_destroy(ty);
}

}  // namespace
}  // namespace api
