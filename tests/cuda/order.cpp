// Weights whose columns are stored in an order of their own: x gathered, the plane repacked, values
// put in their place, and whole products through qk.h. The same tests run on simulated threads.
#include <numeric>

#include "cuda/device_tensors.hpp"
#include "cuda/harness.hpp"
#include "cuda/kernels.hpp"

namespace cuda_test {
namespace {

std::vector<int32_t> random_order(int64_t k, Rng &rng) {
    std::vector<int32_t> order(size_t(k), 0);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), rng);
    return order;
}

std::vector<uint8_t> bytes_of(const std::vector<int32_t> &order) {
    std::vector<uint8_t> bytes(order.size() * 4);
    memcpy(bytes.data(), order.data(), bytes.size());
    return bytes;
}

// Few rows and many, whole blocks and what is left of them, and indexes that are none.
TEST(CudaOrder, GatherEqualsTheCpu) {
    const int64_t shapes[][2] = {{1, 1},   {3, 70},    {6, 300},  {17, 129},
                                 {40, 64}, {1030, 48}, {18, 4104}};
    Rng rng(16);
    size_t turn = 0;
    for (const qk_format format : {QK_FORMAT_F16, QK_FORMAT_F32}) {
        const qk::Format *const type = qk::find_format(format);
        for (const auto &[rows, k] : shapes) {
            for (const size_t offset : {size_t{0}, size_t{1}}) {
                std::vector<int32_t> order = random_order(k, rng);
                if (++turn % 3 == 0) order[size_t(k / 2)] = turn % 2 == 0 ? -7 : INT32_MAX;
                std::vector<uint8_t> x = random_floats(format, rows * k, rng), by = bytes_of(order);
                std::vector<uint8_t> expected(x.size());
                ASSERT_EQ(
                    qk::cpu::kGatherGeneric.run(
                        {{type, rows, k, x.data()}, {type, rows, k, expected.data()}, by.data()},
                        host_launch()),
                    QK_OK);
                const DeviceBuffer from(x, offset), to(std::vector<uint8_t>(x.size()), offset),
                    device_order(by, offset);
                qk::ErrorText error = {};
                ASSERT_EQ(qk::cuda::kGatherColumns.run({{type, rows, k, from.data()},
                                                        {type, rows, k, to.data()},
                                                        device_order.data()},
                                                       device_launch(&error)),
                          QK_OK)
                    << error.text;
                EXPECT_EQ(to.read(), expected) << rows << " x " << k << " at " << offset;
            }
        }
    }
}

class CudaOrderedProduct : public DeviceTensors {
  protected:
    qk_tensor *weight(const HostWeight &w, qk_tensor_desc desc) {
        qk_tensor *const tensor = make(desc);
        for (qk_plane plane = 0; plane < QK_PLANE_COUNT; ++plane) {
            if (!w.planes[plane].empty()) upload(tensor, plane, w.planes[plane]);
        }
        return tensor;
    }
    qk_tensor *packed(qk_tensor *stored, qk_tensor_desc desc) {
        desc.layout = QK_LAYOUT_PACKED;
        qk_tensor *const tensor = make(desc);
        EXPECT_EQ(qk_repack(context_, stored, tensor), QK_OK) << qk_context_error(context_);
        return tensor;
    }
    std::vector<uint8_t> values(qk_tensor *w, int64_t n, int64_t k) {
        qk_tensor *const out = dense(n, k);
        EXPECT_EQ(qk_dequantize(context_, w, out), QK_OK) << qk_context_error(context_);
        return read(out, n * k);
    }
};

TEST_F(CudaOrderedProduct, IsThatOfGatheredX) {
    constexpr int64_t n = 24, k = 192;
    Rng rng(17);
    open(size_t{1} << 20);
    qk_tensor_desc plain =
        weight_desc(QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_GPTQ, 64, n, k);
    qk_tensor_desc ordered = plain;
    ordered.flags |= QK_TENSOR_ORDERED;
    const std::vector<int32_t> order = random_order(k, rng);
    HostWeight host = random_weight(plain, rng);
    qk_tensor *const w = weight(host, plain);
    host.planes[QK_PLANE_ORDER] = bytes_of(order);
    qk_tensor *const moved = weight(host, ordered);
    qk_tensor_desc other = ordered;
    other.layout = QK_LAYOUT_ROW;
    qk_tensor *const repacked = make(other);
    ASSERT_EQ(qk_repack(context_, moved, repacked), QK_OK) << qk_context_error(context_);

    std::vector<uint8_t> in_place(size_t(n * k * 2));
    const std::vector<uint8_t> stored = values(w, n, k);
    for (int64_t i = 0; i < n * k; ++i) {
        memcpy(&in_place[size_t(i / k * k + order[size_t(i % k)]) * 2], &stored[size_t(i) * 2], 2);
    }
    EXPECT_EQ(values(moved, n, k), in_place);
    EXPECT_EQ(values(repacked, n, k), in_place);

    for (const int64_t m : {1, 2, 7, 33}) {
        const std::vector<uint8_t> x = random_floats(QK_FORMAT_F16, m * k, rng);
        std::vector<uint8_t> gathered(x.size());
        for (int64_t i = 0; i < m * k; ++i) {
            memcpy(&gathered[size_t(i) * 2], &x[size_t(i / k * k + order[size_t(i % k)]) * 2], 2);
        }
        qk_tensor *const a = dense(m, k), *const b = dense(m, k), *const y = dense(m, n);
        upload(a, QK_PLANE_DATA, x);
        upload(b, QK_PLANE_DATA, gathered);
        ASSERT_EQ(qk_linear(context_, b, w, nullptr, y), QK_OK) << qk_context_error(context_);
        const std::vector<uint8_t> expected = read(y, m * n);
        ASSERT_EQ(qk_linear(context_, a, moved, nullptr, y), QK_OK) << qk_context_error(context_);
        EXPECT_EQ(read(y, m * n), expected) << "m " << m;
        qk_product product = QK_PRODUCT_INIT;
        product.x = a, product.w = moved, product.y = y;
        qk_plan plan = QK_PLAN_INIT;
        ASSERT_EQ(qk_explain(context_, &product, &plan), QK_OK);
        EXPECT_GE(plan.workspace_bytes, size_t(m * k * 2));
        EXPECT_TRUE(plan.batch_first <= m && m <= plan.batch_last);
    }
}

// Groups of every kernel for one row, tails, indexes that are none.
TEST_F(CudaOrderedProduct, OneRowOfAPackedWeight) {
    struct Case {
        qk_format format, scale;
        int32_t group;
        int64_t n, k;
    };
    Rng rng(19);
    open(size_t{1} << 20);
    for (const Case &c : {Case{QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 128, 40, 1024},
                          Case{QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 32, 600, 2000},
                          Case{QK_FORMAT_U4_AFFINE, QK_FORMAT_BF16, 16, 33, 624},
                          Case{QK_FORMAT_NF4, QK_FORMAT_F32, 64, 60, 10304},
                          Case{QK_FORMAT_FP4_E2M1, QK_FORMAT_E8M0, 32, 77, 16384},
                          Case{QK_FORMAT_FP4_E2M1, QK_FORMAT_E4M3, 16, 77, 4112}}) {
        qk_tensor_desc plain = weight_desc(c.format, c.scale, QK_LAYOUT_ROW, c.group, c.n, c.k);
        if (c.scale == QK_FORMAT_E4M3) plain.flags |= QK_TENSOR_GLOBAL;
        qk_tensor_desc ordered = plain;
        ordered.flags |= QK_TENSOR_ORDERED;
        std::vector<int32_t> order = random_order(c.k, rng);
        order[1] = -1, order[size_t(c.k) - 1] = int32_t(c.k);
        HostWeight host = random_weight(plain, rng);
        qk_tensor *const w = packed(weight(host, plain), plain);
        host.planes[QK_PLANE_ORDER] = bytes_of(order);
        qk_tensor *const moved = packed(weight(host, ordered), ordered);
        const std::vector<uint8_t> x = random_floats(QK_FORMAT_F16, c.k, rng);
        std::vector<uint8_t> gathered(x.size());
        for (int64_t i = 0; i < c.k; ++i) {
            const int64_t from = qk::ordered_column(order[size_t(i)], c.k);
            memcpy(&gathered[size_t(i) * 2], &x[size_t(from) * 2], 2);
        }
        qk_tensor *const a = dense(1, c.k), *const b = dense(1, c.k), *const y = dense(1, c.n);
        upload(a, QK_PLANE_DATA, x);
        upload(b, QK_PLANE_DATA, gathered);
        ASSERT_EQ(qk_linear(context_, b, w, nullptr, y), QK_OK) << qk_context_error(context_);
        const std::vector<uint8_t> expected = read(y, c.n);
        ASSERT_EQ(qk_linear(context_, a, moved, nullptr, y), QK_OK) << qk_context_error(context_);
        EXPECT_EQ(read(y, c.n), expected) << c.format << " " << c.group << " k " << c.k;
    }
}

TEST_F(CudaOrderedProduct, NeedsItsWorkspace) {
    Rng rng(18);
    open(512);
    qk_tensor_desc desc = weight_desc(QK_FORMAT_NF4, QK_FORMAT_F32, QK_LAYOUT_ROW, 64, 8, 128);
    desc.flags = QK_TENSOR_ORDERED;
    HostWeight host = random_weight(desc, rng);
    host.planes[QK_PLANE_ORDER] = bytes_of(random_order(128, rng));
    qk_tensor *const w = weight(host, desc);
    qk_product product = QK_PRODUCT_INIT;
    product.w = w;
    product.x = dense(3, 128), product.y = dense(3, 8);
    EXPECT_EQ(qk_multiply(context_, &product, 1), QK_ERROR_WORKSPACE);
    EXPECT_STREQ(qk_context_error(context_),
                 "products[0]: workspace: the product needs 768 bytes, the context has 512");
    product.x = dense(2, 128), product.y = dense(2, 8);
    EXPECT_EQ(qk_multiply(context_, &product, 1), QK_OK) << qk_context_error(context_);
}

}  // namespace
}  // namespace cuda_test
