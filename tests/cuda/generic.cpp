// Weights in every format and layout: products by the generic kernel, y = x . transpose(w) and
// y = x . w, with all that a product may have besides, rows of x and y that are apart, y that is
// f32, sums that go on, an order of columns; and their values. Bits are the CPU's. The same tests
// run on simulated threads.
#include <numeric>

#include "cuda/harness.hpp"
#include "cuda/kernels.hpp"

namespace cuda_test {
namespace {

constexpr qk_format kTypes[] = {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32};
constexpr int64_t kSizes[][2] = {{3, 70}, {17, 129}, {40, 64}, {200, 33}};  // a block has 128 rows

int64_t bytes_of(qk_format type) { return type == QK_FORMAT_F32 ? 4 : 2; }

bool exists(const qk_tensor_desc &desc) {
    qk::Shape shape;
    qk::ErrorText error;
    return qk::resolve(desc, QK_LAYOUT_PACKED, &shape, &error) == QK_OK;
}

qk_tensor_desc records_desc(qk_layout layout, const qk::Record &record, int64_t n) {
    const bool symmetric = record.format == QK_FORMAT_U4_AFFINE && !record.has_minimum;
    qk_tensor_desc desc = weight_desc(record.format, record.scale_format, layout, record.group, n,
                                      2 * record.codes, symmetric);
    if (record.has_minimum) desc.flags |= QK_TENSOR_FLOAT_MIN;
    return desc;
}

// Every format in every layout that holds it, kinds of groups and scales in turn.
std::vector<qk_tensor_desc> all_weights() {
    constexpr qk_format scales[] = {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_LUT8};
    constexpr int32_t groups[] = {32, 16, QK_GROUP_ROW, 24, 128};
    std::vector<qk_tensor_desc> all;
    size_t at = 0;
    for (qk_format format = QK_FORMAT_U4_AFFINE; format <= QK_FORMAT_E4M3; ++format) {
        for (qk_layout layout = QK_LAYOUT_ROW; layout < QK_LAYOUT_PACKED; ++layout) {
            const qk::Layout *found = qk::find_layout(layout, 4);
            if (found == nullptr) found = qk::find_layout(layout, 8);
            if (found == nullptr) continue;
            const int64_t *const size = kSizes[at % 4];
            qk_tensor_desc desc = weight_desc(format, scales[at % 4], layout, groups[at % 5],
                                              size[0], size[1], false, at % 7 == 0);
            if (format == QK_FORMAT_FP4_E2M1) desc.scale_format = QK_FORMAT_E4M3;
            if (format == QK_FORMAT_FP4_GGML) desc.scale_format = QK_FORMAT_E8M0;
            if (desc.scale_format == QK_FORMAT_LUT8) desc.scale_group_size = 16;
            if (found->record != nullptr) desc = records_desc(layout, *found->record, size[0]);
            if (desc.format != format || !exists(desc)) continue;
            all.push_back(desc);
            ++at;
        }
    }
    return all;
}

HostWeight numbers_of(const qk_tensor_desc &desc, Rng &rng) {
    HostWeight w = random_weight(desc, rng);
    if (desc.format == QK_FORMAT_LUT4) {
        w.planes[QK_PLANE_TABLE] = random_floats(QK_FORMAT_F32, 16, rng);
    }
    if (desc.format != QK_FORMAT_E4M3) return w;
    for (uint8_t &code : w.planes[QK_PLANE_DATA]) code ^= (code & 0x7f) == 0x7f ? 1 : 0;  // no NaN
    return w;
}

// A product with its operands in one memory or the other.
struct Case {
    HostWeight w;
    qk_format type, y_type;
    int64_t m, x_columns, y_columns, x_stride, y_stride;
    bool transposed, accumulates;
    std::vector<uint8_t> x, bias, y, order;
};

Case make_case(const qk_tensor_desc &desc, bool transposed, Rng &rng) {
    const int64_t n = desc.shape[0], k = desc.shape[1];
    Case c = {};
    c.w = numbers_of(desc, rng);
    c.type = kTypes[rng() % 3];
    c.y_type = rng() % 2 == 0 ? c.type : qk_format{QK_FORMAT_F32};
    c.m = 1 + int64_t(rng() % 11);
    c.transposed = transposed;
    c.accumulates = rng() % 2 == 0;
    c.x_columns = transposed ? n : k;
    c.y_columns = transposed ? k : n;
    c.x_stride = c.x_columns + int64_t(rng() % 3);
    c.y_stride = c.y_columns + int64_t(rng() % 5);
    c.x = random_floats(c.type, c.m * c.x_stride, rng);
    c.y = random_floats(c.y_type, c.m * c.y_stride, rng);
    if (rng() % 4 != 0) c.bias = random_floats(QK_FORMAT_F32, c.y_columns, rng);
    if (!transposed || rng() % 3 != 0) return c;
    std::vector<int32_t> order(size_t(k), 0);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), rng);
    c.order.resize(order.size() * 4);
    memcpy(c.order.data(), order.data(), c.order.size());
    return c;
}

qk::LinearArgs arguments(const Case &c, qk::Weight w, void *x, const qk::Dense *bias, void *y,
                         void *order) {
    qk::LinearArgs args = {};
    args.x = {qk::find_format(c.type), c.m, c.x_columns, x, c.x_stride};
    args.w = w;
    args.w.order = order;
    args.bias = c.bias.empty() ? nullptr : bias;
    args.y = {qk::find_format(c.y_type), c.m, c.y_columns, y, c.y_stride};
    args.transposed = c.transposed;
    args.accumulate = c.accumulates;
    return args;
}

// The weight's values as a weight of their own.
HostWeight decoded(HostWeight &w) {
    const std::vector<float> values = values_of(w);
    qk_tensor_desc desc =
        weight_desc(QK_FORMAT_F32, 0, QK_LAYOUT_ROW, 0, w.shape.rows, w.shape.columns);
    desc.grouping = QK_GROUPING_DEFAULT;
    HostWeight dense = empty_weight(desc, QK_LAYOUT_PACKED, 0);
    memcpy(dense.planes[QK_PLANE_DATA].data(), values.data(), values.size() * sizeof(float));
    return dense;
}

// Of one row the CPU has an order of sums for integers, too, which CUDA has not: values have the
// other. CUDA has it for any number of rows.
std::vector<uint8_t> on_host(Case &c) {
    std::vector<uint8_t> y = c.y;
    HostWeight dense = decoded(c.w);
    const qk::Dense bias = {qk::find_format(QK_FORMAT_F32), 1, c.y_columns, c.bias.data()};
    qk::LinearArgs args = arguments(c, c.transposed ? c.w.view() : dense.view(), c.x.data(), &bias,
                                    y.data(), c.order.empty() ? nullptr : c.order.data());
    if (c.transposed) {
        EXPECT_EQ(qk::cpu::kTransposedGeneric.run(args, host_launch()), QK_OK);
        return y;
    }
    args.x.rows = args.y.rows = 1;
    for (int64_t i = 0; i < c.m; ++i) {
        args.x.data = c.x.data() + i * c.x_stride * bytes_of(c.type);
        args.y.data = y.data() + i * c.y_stride * bytes_of(c.y_type);
        EXPECT_EQ(qk::cpu::kLinearGeneric.run(args, host_launch()), QK_OK);
    }
    return y;
}

std::vector<uint8_t> on_device(const Case &c) {
    const DeviceWeight w(c.w);
    const DeviceBuffer x(c.x), b(c.bias), y(c.y), order(c.order);
    const qk::Dense bias = {qk::find_format(QK_FORMAT_F32), 1, c.y_columns, b.data()};
    const qk::LinearArgs args =
        arguments(c, w.view(), x.data(), &bias, y.data(), c.order.empty() ? nullptr : order.data());
    qk::ErrorText error = {};
    EXPECT_TRUE(qk::cuda::kLinearGeneric.can_run(args, device_0()));
    EXPECT_EQ(qk::cuda::kLinearGeneric.run(args, device_launch(&error)), QK_OK) << error.text;
    return y.read();
}

TEST(CudaGeneric, EveryProductHasTheBitsOfTheCpu) {
    QK_NEEDS_DEVICE();
    Rng rng(71);
    const std::vector<qk_tensor_desc> weights = all_weights();
    EXPECT_GE(weights.size(), size_t{40});
    for (const qk_tensor_desc &desc : weights) {
        for (const bool transposed : {true, false}) {
            Case c = make_case(desc, transposed, rng);
            SCOPED_TRACE("format " + std::to_string(desc.format) + " layout " +
                         std::to_string(desc.layout) + " m " + std::to_string(c.m) +
                         (transposed ? " transposed" : ""));
            ASSERT_TRUE(same_values(c.y_type, on_host(c), on_device(c)));
        }
    }
}

// Of kernels that dequantize the first in the list that takes a case: as [n,k] and as [k,n], lines
// apart and not.
TEST(CudaGeneric, EveryWeightIsDequantizedToRowsAndColumns) {
    QK_NEEDS_DEVICE();
    Rng rng(72);
    for (const qk_tensor_desc &desc : all_weights()) {
        HostWeight w = numbers_of(desc, rng);
        const DeviceWeight from(w);
        for (const bool columns : {false, true}) {
            const int64_t n = desc.shape[0], k = desc.shape[1];
            const qk::Format *const type = qk::find_format(kTypes[rng() % 3]);
            const int64_t stride = (columns ? n : k) + int64_t(rng() % 3) * 8;
            std::vector<uint8_t> expected =
                random_floats(type->id, stride * (columns ? k : n), rng);
            const DeviceBuffer out(expected);
            SCOPED_TRACE("format " + std::to_string(desc.format) + " layout " +
                         std::to_string(desc.layout) + (columns ? " columns" : " rows"));
            ASSERT_EQ(
                qk::cpu::kDequantizeGeneric.run(
                    {w.view(), {type, n, k, expected.data(), stride, columns}}, host_launch()),
                QK_OK);
            const qk::DequantizeArgs args = {from.view(),
                                             {type, n, k, out.data(), stride, columns}};
            qk::ErrorText error = {};
            const auto *const kernel = qk::pick(qk::kCudaBackend.dequantize, args, device_0());
            ASSERT_EQ(kernel->run(args, device_launch(&error)), QK_OK) << error.text;
            ASSERT_TRUE(same_values(type->id, expected, out.read())) << kernel->name;
        }
    }
}

}  // namespace
}  // namespace cuda_test
