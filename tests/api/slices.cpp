// Rows that are apart, products that are transposed or accumulate, columns that are stored as rows.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>

#include "api/support.hpp"

namespace api {
namespace {

qk_tensor *wrap_over(qk_context *context, const qk_tensor_desc &desc, void *data) {
    qk_tensor *tensor = nullptr;
    EXPECT_EQ(qk_tensor_wrap(context, &desc, &data, 1, &tensor), QK_OK)
        << qk_context_error(context);
    return tensor;
}

class Slices : public ::testing::Test {
  protected:
    static constexpr int64_t m = 3, n = 40, k = 96;

    Slices() {
        Planes dense(weights);
        dense.fill_dense(QK_FORMAT_F32, 2);
        qk_tensor *const d = wrap(context, weights, dense);
        EXPECT_EQ(qk_quantize(context, d, w), QK_OK) << qk_context_error(context);
        qk_tensor_destroy(d);
        Planes numbers(dense_desc(QK_FORMAT_F32, {m, k + n}));
        numbers.fill_dense(QK_FORMAT_F32, 1);
        std::memcpy(array.data(), numbers.pointers[0], sizeof(array[0]) * array.size());
    }
    ~Slices() override {
        qk_tensor_destroy(w);
        for (qk_tensor *const tensor : slices) qk_tensor_destroy(tensor);
        qk_context_destroy(context);
    }
    // Rows of `columns` numbers of an array whose rows have `width`.
    qk_tensor *slice(std::vector<float> *from, int64_t first, int64_t columns, int64_t width) {
        qk_tensor_desc desc = dense_desc(QK_FORMAT_F32, {m, columns});
        desc.row_stride = width;
        const qk_span span = {from->data() + first, (from->size() - size_t(first)) * 4};
        qk_tensor *tensor = nullptr;
        EXPECT_EQ(qk_tensor_wrap_sized(context, &desc, &span, 1, &tensor), QK_OK)
            << qk_context_error(context);
        slices.push_back(tensor);
        return tensor;
    }
    void multiply(uint32_t flags, qk_tensor *x, qk_tensor *y) {
        const qk_product product = {sizeof(qk_product), flags, x, w, nullptr, y, nullptr};
        ASSERT_EQ(qk_multiply(context, &product, 1), QK_OK) << qk_context_error(context);
    }

    Allocator allocator;
    qk_context *context = make_context(allocator, 2);
    qk_tensor_desc weights = dense_desc(QK_FORMAT_F32, {n, k});
    qk_tensor *w = create(context, weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, n, k, 32));
    std::vector<float> array = std::vector<float>(m * (k + n));
    std::vector<qk_tensor *> slices;
};

// x and y are interleaved columns of one array, and no element is shared.
TEST_F(Slices, OfOneArrayDoNotOverlap) {
    std::vector<float> x, y(m * n);
    for (int64_t i = 0; i < m; ++i) {
        x.insert(x.end(), array.begin() + i * (k + n), array.begin() + i * (k + n) + k);
    }
    multiply(0, slice(&x, 0, k, k), slice(&y, 0, n, 0));
    multiply(0, slice(&array, 0, k, k + n), slice(&array, k, n, k + n));
    for (int64_t i = 0; i < m; ++i) {
        for (int64_t r = 0; r < n; ++r) {
            ASSERT_EQ(array[size_t(i * (k + n) + k + r)], y[size_t(i * n + r)]);
        }
    }
}

// There and back: y of a transposed product is what its own definition sums, and adds to.
TEST_F(Slices, TransposedProductsAccumulate) {
    std::vector<float> values(n * k), once(m * k, 2.0f);
    qk_tensor *const dense = wrap_over(context, weights, values.data());
    ASSERT_EQ(qk_dequantize(context, w, dense), QK_OK);
    qk_tensor_destroy(dense);
    multiply(QK_PRODUCT_TRANSPOSED | QK_PRODUCT_ACCUMULATE, slice(&array, 3, n, k + n),
             slice(&once, 0, k, 0));
    for (int64_t i = 0; i < m; ++i) {
        for (int64_t c = 0; c < k; ++c) {
            float sum = 0;
            for (int64_t r = 0; r < n; ++r) {
                sum = std::fma(array[size_t(i * (k + n) + 3 + r)], values[size_t(r * k + c)], sum);
            }
            ASSERT_EQ(once[size_t(i * k + c)], 2.0f + sum);
        }
    }
}

TEST_F(Slices, DequantizeIntoColumns) {
    std::vector<float> rows(n * k), columns(k * (n + 5), 7.0f);
    qk_tensor_desc desc = weights;
    qk_tensor *const to_rows = wrap_over(context, desc, rows.data());
    desc.flags = QK_TENSOR_COLUMN_MAJOR, desc.row_stride = n + 5;
    qk_tensor *const to_columns = wrap_over(context, desc, columns.data());
    ASSERT_EQ(qk_dequantize(context, w, to_rows), QK_OK);
    ASSERT_EQ(qk_dequantize(context, w, to_columns), QK_OK) << qk_context_error(context);
    for (int64_t c = 0; c < k; ++c) {
        for (int64_t r = 0; r < n + 5; ++r) {
            const float expected = r < n ? rows[size_t(r * k + c)] : 7.0f;
            ASSERT_EQ(columns[size_t(c * (n + 5) + r)], expected);
        }
    }
    qk_tensor_destroy(to_rows);
    qk_tensor_destroy(to_columns);
}

// A tensor of qk's own comes back as [k,n]; one with gaps is refused, whose columns are apart.
TEST_F(Slices, ColumnsAreDownloaded) {
    std::vector<float> rows(n * k), columns(k * n);
    qk_tensor_desc desc = weights;
    qk_tensor *const to_rows = wrap_over(context, desc, rows.data());
    desc.flags = QK_TENSOR_COLUMN_MAJOR;
    qk_tensor *const to_columns = create(context, desc);
    ASSERT_EQ(qk_dequantize(context, w, to_rows), QK_OK);
    ASSERT_EQ(qk_dequantize(context, w, to_columns), QK_OK) << qk_context_error(context);
    const size_t bytes = sizeof(float) * columns.size();
    ASSERT_EQ(qk_tensor_download(context, to_columns, QK_PLANE_DATA, columns.data(), bytes), QK_OK)
        << qk_context_error(context);
    for (int64_t i = 0; i < n * k; ++i) {
        ASSERT_EQ(columns[size_t(i % k * n + i / k)], rows[size_t(i)]);
    }
    EXPECT_EQ(qk_tensor_upload(context, to_columns, QK_PLANE_DATA, columns.data(), bytes), QK_OK);
    desc.row_stride = n + 1;
    qk_tensor *const apart = create(context, desc);
    EXPECT_EQ(qk_tensor_download(context, apart, QK_PLANE_DATA, columns.data(), bytes),
              QK_ERROR_UNSUPPORTED);
    EXPECT_STREQ(qk_context_error(context),
                 "tensor: has a row_stride of 41; what is between its columns is not its own");
    for (qk_tensor *const tensor : {to_rows, to_columns, apart}) qk_tensor_destroy(tensor);
}

TEST_F(Slices, PlanesHaveTheBytesThatTheyNeed) {
    qk_tensor_desc desc = dense_desc(QK_FORMAT_I32, {2, 3, 4});
    desc.row_stride = 6;
    size_t bytes = 0;
    ASSERT_EQ(qk_tensor_plane_bytes(&desc, QK_PLANE_DATA, &bytes), QK_OK);
    EXPECT_EQ(bytes, size_t{5 * 6 + 4} * 4);
    std::vector<int32_t> data(5 * 6 + 4);
    qk_span span = {data.data(), bytes - 1};
    qk_tensor *tensor = nullptr;
    EXPECT_EQ(qk_tensor_wrap_sized(context, &desc, &span, 1, &tensor), QK_ERROR_BUFFER_SIZE);
    EXPECT_STREQ(qk_context_error(context), "planes[0]: has 135 bytes, i32 needs 136");
    span.bytes = bytes;
    ASSERT_EQ(qk_tensor_wrap_sized(context, &desc, &span, 1, &tensor), QK_OK);
    EXPECT_EQ(qk_tensor_upload(context, tensor, QK_PLANE_DATA, data.data() + 1, bytes),
              QK_ERROR_UNSUPPORTED);
    qk_tensor_destroy(tensor);
    desc.row_stride = 3;
    EXPECT_EQ(qk_tensor_plane_bytes(&desc, QK_PLANE_DATA, &bytes), QK_ERROR_SHAPE);
}

// A program of the first release has no row_stride in its descriptions.
TEST_F(Slices, DescriptionsOfTheFirstRelease) {
    qk_tensor_desc desc = dense_desc(QK_FORMAT_F32, {2, 3});
    desc.struct_size = offsetof(qk_tensor_desc, row_stride);
    desc.row_stride = 12345;  // behind its end
    size_t bytes = 0;
    ASSERT_EQ(qk_tensor_plane_bytes(&desc, QK_PLANE_DATA, &bytes), QK_OK);
    EXPECT_EQ(bytes, 24u);
    qk_tensor *tensor = nullptr;
    ASSERT_EQ(qk_tensor_create(context, &desc, &tensor), QK_OK);
    ASSERT_EQ(qk_tensor_describe(tensor, &desc), QK_OK);
    EXPECT_EQ(desc.struct_size, offsetof(qk_tensor_desc, row_stride));
    EXPECT_EQ(desc.row_stride, 12345);
    qk_tensor_destroy(tensor);
}

}  // namespace
}  // namespace api
