// Weights with minima and records of GGUF files: values and repacked bytes as the CPU has them,
// products by every kernel that takes them, and through qk.h. The same tests run on simulated
// threads.
#include <map>

#include "cuda/device_tensors.hpp"
#include "cuda/linear_problem.hpp"

namespace cuda_test {
namespace {

constexpr qk_layout kPlanes[] = {QK_LAYOUT_ROW,      QK_LAYOUT_ROW_HIGH, QK_LAYOUT_AWQ_GEMM,
                                 QK_LAYOUT_AWQ_GEMV, QK_LAYOUT_GPTQ,     QK_LAYOUT_GPTQ_V1,
                                 QK_LAYOUT_WORD};
constexpr qk_layout kRecords[] = {QK_LAYOUT_GGUF_Q4_0,   QK_LAYOUT_GGUF_Q4_1, QK_LAYOUT_GGUF_Q5_0,
                                  QK_LAYOUT_GGUF_Q5_1,   QK_LAYOUT_GGUF_Q8_0, QK_LAYOUT_GGUF_Q4_K,
                                  QK_LAYOUT_GGUF_Q5_K,   QK_LAYOUT_GGUF_Q6_K, QK_LAYOUT_GGUF_IQ4_NL,
                                  QK_LAYOUT_GGUF_IQ4_XS, QK_LAYOUT_GGUF_MXFP4};
constexpr qk_format kTypes[] = {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32};

const qk::Record &record_of(qk_layout layout) {
    const qk::Layout *const found = qk::find_layout(layout, 4);
    return *(found != nullptr ? found : qk::find_layout(layout, 8))->record;
}

// `records` of them a row.
qk_tensor_desc records_desc(qk_layout layout, int64_t n, int64_t records) {
    const qk::Record &r = record_of(layout);
    const bool symmetric = r.format == QK_FORMAT_U4_AFFINE && !r.has_minimum;
    qk_tensor_desc desc =
        weight_desc(r.format, r.scale_format, layout, r.group, n, records * r.codes, symmetric);
    if (r.has_minimum) desc.flags |= QK_TENSOR_FLOAT_MIN;
    return desc;
}

qk_tensor_desc lowered_desc(qk_format format, qk_format scale, qk_layout layout, int32_t group,
                            int64_t n, int64_t k) {
    qk_tensor_desc desc = weight_desc(format, scale, layout, group, n, k);
    desc.flags |= QK_TENSOR_FLOAT_MIN;
    if (scale == QK_FORMAT_I8) desc.scale_group_size = 8;
    return desc;
}

// Every layout of records; minima with each kind of scale in every layout of planes.
std::vector<qk_tensor_desc> all_weights() {
    std::vector<qk_tensor_desc> all;
    for (const qk_layout layout : kRecords) {
        all.push_back(records_desc(layout, 5, 3));
        all.push_back(records_desc(layout, 17, record_of(layout).codes == 256 ? 1 : 4));
    }
    int at = 0;
    for (const qk_format scale : {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_I8}) {
        for (const qk_layout layout : kPlanes) {
            const int64_t sizes[][2] = {{3, 70}, {17, 129}, {32, 64}, {16, 256}};
            const int32_t groups[] = {32, 16, QK_GROUP_ROW, 24, 128};
            const auto &[n, k] = sizes[at % 4];
            all.push_back(lowered_desc(QK_FORMAT_U4_AFFINE, scale, layout, groups[at % 5], n, k));
            ++at;
        }
        all.push_back(lowered_desc(QK_FORMAT_S8, scale, QK_LAYOUT_ROW, 32, 9, 96));
        all.push_back(lowered_desc(QK_FORMAT_S8, scale, QK_LAYOUT_ROW, 20, 5, 77));
    }
    // Groups that straddle rows, and the scales of a record that minima do not have.
    qk_tensor_desc flat =
        lowered_desc(QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_ROW, 48, 7, 80);
    flat.grouping = QK_GROUPING_FLAT;
    all.push_back(flat);
    qk_tensor_desc q6 = weight_desc(QK_FORMAT_S8, QK_FORMAT_I8, QK_LAYOUT_ROW, 16, 9, 256);
    q6.scale_group_size = 16;
    all.push_back(q6);
    qk_tensor_desc iq4 = weight_desc(QK_FORMAT_IQ4_NL, QK_FORMAT_I8, QK_LAYOUT_ROW, 32, 17, 256);
    iq4.scale_group_size = 8;
    all.push_back(iq4);
    return all;
}

std::string name_of(const HostWeight &w) {
    const qk::Shape &s = w.shape;
    return std::string(s.format->name) + " scale " + s.scale_format->name + " layout " +
           s.layout->name + " group " + std::to_string(s.geometry.group_size) + " n " +
           std::to_string(s.rows) + " k " + std::to_string(s.columns);
}

using Runs = std::map<std::string, int>;

// Every kernel that takes the case, with the rows from `first` on.
void check_values(HostWeight &w, qk_format to, int64_t first, Runs *runs) {
    SCOPED_TRACE(name_of(w) + " to " + std::to_string(to) + " from row " + std::to_string(first));
    const int64_t n = w.shape.rows, k = w.shape.columns;
    const size_t row_bytes = size_t(k) * (to == QK_FORMAT_F32 ? 4 : 2);
    std::vector<uint8_t> expected(size_t(n) * row_bytes, 0xcd);
    ASSERT_EQ(qk::cpu::kDequantizeGeneric.run(
                  {w.view(), {qk::find_format(to), n, k, expected.data()}}, host_launch()),
              QK_OK);
    expected.erase(expected.begin(), expected.begin() + long(size_t(first) * row_bytes));
    const DeviceWeight device(w);
    const auto &list = qk::kCudaBackend.dequantize;
    for (int32_t i = 0; i < list.count; ++i) {
        const DeviceBuffer out(std::vector<uint8_t>(expected.size(), 0xcd));
        const qk::DequantizeArgs args = {
            device.view(), {qk::find_format(to), n - first, k, out.data()}, first};
        if (!list.kernels[i]->can_run(args, device_0())) continue;
        ++(*runs)[list.kernels[i]->name];
        if (!harness::wanted("cuda", list.kernels[i]->name)) continue;
        qk::ErrorText error = {};
        EXPECT_EQ(list.kernels[i]->run(args, device_launch(&error)), QK_OK) << error.text;
        EXPECT_TRUE(same_values(to, expected, out.read())) << list.kernels[i]->name;
    }
}

TEST(CudaRecords, ValuesEqualTheCpus) {
    QK_NEEDS_DEVICE();
    Rng rng(71);
    Runs runs;
    int cases = 0;
    for (const qk_tensor_desc &desc : all_weights()) {
        HostWeight w = random_weight(desc, rng);
        const qk_format to = kTypes[cases % 3];
        ASSERT_NO_FATAL_FAILURE(check_values(w, to, 0, &runs));
        ASSERT_NO_FATAL_FAILURE(
            check_values(w, kTypes[(cases + 1) % 3], w.shape.rows > 16 ? 16 : 0, &runs));
        ++cases;
        if (w.shape.format->bits == 4 && cases % 2 == 0) {
            HostWeight packed = packed_on_host(w);
            ASSERT_NO_FATAL_FAILURE(check_values(packed, to, 0, &runs));
        }
        if (HasFailure()) return;
    }
    EXPECT_GE(runs["generic"], 2 * cases);
    EXPECT_GT(runs["stream"], 20);
    EXPECT_GT(runs["tiles"], 5);
    EXPECT_GE(runs["records"], 22);
}

// From `w` to the layout `to` on the device: all bytes of all planes, padding too.
void check_repack(HostWeight &w, qk_layout to, Runs *runs) {
    SCOPED_TRACE(name_of(w) + " to layout " + std::to_string(to));
    qk_tensor_desc desc = weight_desc(
        w.shape.format->id, w.shape.scale_format->id, to,
        w.shape.geometry.groups_per_row == 1 ? QK_GROUP_ROW : int32_t(w.shape.geometry.group_size),
        w.shape.rows, w.shape.columns,
        w.shape.format->id == QK_FORMAT_U4_AFFINE && !w.shape.has_zero && !w.shape.has_minimum,
        w.shape.geometry.flat);
    if (w.shape.has_minimum) desc.flags |= QK_TENSOR_FLOAT_MIN;
    desc.scale_group_size = int32_t(w.shape.second_group);
    HostWeight expected = empty_weight(desc, qk::kCudaBackend.packed_layout(*w.shape.format), 0x5a);
    const DeviceWeight from(w);
    const auto &list = qk::kCudaBackend.repack;
    std::vector<DeviceWeight> outputs;
    for (int32_t i = 0; i < list.count; ++i) outputs.emplace_back(expected);
    ASSERT_EQ(qk::cpu::kRepackGeneric.run({w.view(), expected.view()}, host_launch()), QK_OK);
    for (int32_t i = 0; i < list.count; ++i) {
        const qk::RepackArgs args = {from.view(), outputs[size_t(i)].view()};
        if (!list.kernels[i]->can_run(args, device_0())) continue;
        ++(*runs)[list.kernels[i]->name];
        if (!harness::wanted("cuda", list.kernels[i]->name)) continue;
        qk::ErrorText error = {};
        ASSERT_EQ(list.kernels[i]->run(args, device_launch(&error)), QK_OK) << error.text;
        for (int plane = 0; plane < QK_PLANE_COUNT; ++plane) {
            EXPECT_EQ(outputs[size_t(i)].planes[plane].read(), expected.planes[plane])
                << list.kernels[i]->name << " plane " << plane;
        }
    }
}

bool holds(const HostWeight &w, qk_layout layout) {
    if (w.shape.geometry.flat) return layout == QK_LAYOUT_ROW || layout == QK_LAYOUT_PACKED;
    return w.shape.format->bits == 4 || layout == QK_LAYOUT_ROW || layout == QK_LAYOUT_PACKED;
}

TEST(CudaRecords, RepackedBytesEqualTheCpus) {
    QK_NEEDS_DEVICE();
    Rng rng(72);
    Runs runs;
    int cases = 0, written = 0;
    for (const qk_tensor_desc &desc : all_weights()) {
        HostWeight w = random_weight(desc, rng);
        const qk_layout other = kPlanes[++cases % 7];
        ASSERT_NO_FATAL_FAILURE(check_repack(w, QK_LAYOUT_PACKED, &runs));
        if (holds(w, other)) {
            ASSERT_NO_FATAL_FAILURE(check_repack(w, other, &runs));
        }
        if (w.shape.format->bits == 4) {
            HostWeight packed = packed_on_host(w);
            ASSERT_NO_FATAL_FAILURE(check_repack(packed, QK_LAYOUT_ROW, &runs));
        }
        const qk::Record *const record = w.shape.layout->record;
        if (record != nullptr && record->set_scale != nullptr) {  // back, from planes and records
            HostWeight packed = packed_on_host(w);
            ASSERT_NO_FATAL_FAILURE(check_repack(packed, desc.layout, &runs));
            ASSERT_NO_FATAL_FAILURE(check_repack(w, desc.layout, &runs));
            ++written;
        }
        if (HasFailure()) return;
    }
    EXPECT_GE(runs["generic"], 2 * cases);
    EXPECT_EQ(written, 10);
}

// The order of sums that docs/formats.md states for one row of floats.
float lanes_of(const Problem &p, const std::vector<float> &w, int64_t x_row, int64_t row) {
    float lane[16] = {};
    for (int64_t c = 0; c < p.k(); ++c) {
        const float x = float_at(p.type, p.x, x_row * p.k() + c);
        lane[c % 16] = std::fma(x, w[size_t(row * p.k() + c)], lane[c % 16]);
    }
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
    }
    return lane[0] + float_at(QK_FORMAT_F32, p.bias, row);
}

TEST(CudaRecords, GenericProductsHaveTheStatedOrder) {
    QK_NEEDS_DEVICE();
    Rng rng(73);
    int cases = 0;
    for (const qk_tensor_desc &desc : all_weights()) {
        const int64_t batches[] = {1, 3, 9};
        Problem p = make_problem(desc, QK_FORMAT_F32, batches[++cases % 3], rng);
        SCOPED_TRACE(name_of(p.w) + " m " + std::to_string(p.m));
        const std::vector<float> values = values_of(p.w);
        const DeviceWeight w(p.w);
        const std::vector<uint8_t> y = run_on_device(qk::cuda::kLinearGeneric, p, w, 0, p.m);
        for (int64_t i = 0; i < p.m * p.n(); ++i) {
            ASSERT_EQ(float_at(p.type, y, i), lanes_of(p, values, i / p.n(), i % p.n())) << i;
        }
    }
}

// Sums of f32 in any order, y rounded once to its type.
void expect_near(const Problem &p, const std::vector<float> &w, const std::vector<uint8_t> &y,
                 const char *kernel) {
    const double unit = rounding_of(p.type);
    for (int64_t i = 0; i < p.m * p.n(); ++i) {
        const int64_t row = i % p.n();
        const auto [exact, magnitude] = exact_sum(p.type, p.x, i / p.n(), &w[size_t(row * p.k())],
                                                  p.k(), float_at(QK_FORMAT_F32, p.bias, row));
        const double sum = magnitude * double(p.k() + 2) * 0x1p-24;
        const double bound = sum + unit * (std::fabs(exact) + sum) + 0x1p-25;
        ASSERT_LE(std::fabs(double(float_at(p.type, y, i)) - exact), bound) << kernel << " " << i;
    }
}

// By every kernel on plain lanes that takes the case: the same bits in every batch.
void check_product(Problem &p, const DeviceWeight &w, Runs *runs) {
    SCOPED_TRACE(name_of(p.w) + " m " + std::to_string(p.m) + " type " + std::to_string(p.type));
    const std::vector<float> values = values_of(p.w);
    for (const auto *kernel :
         {&qk::cuda::kLinearRecords, &qk::cuda::kLinearPackedLanes, &qk::cuda::kLinearLanes}) {
        const qk::Format *const type = qk::find_format(p.type);
        const DeviceBuffer x(p.x), y(std::vector<uint8_t>(p.y_bytes()));
        const qk::LinearArgs args = {
            {type, p.m, p.k(), x.data()}, w.view(), nullptr, {type, p.m, p.n(), y.data()}};
        if (!kernel->can_run(args, device_0())) continue;
        ++(*runs)[kernel->name];
        if (!harness::wanted("cuda", kernel->name)) continue;
        const std::vector<uint8_t> all = run_on_device(*kernel, p, w, 0, p.m);
        ASSERT_NO_FATAL_FAILURE(expect_near(p, values, all, kernel->name));
        const size_t row_bytes = p.x.size() / size_t(p.m);
        for (int64_t i = 0; i < p.m && row_bytes % 16 == 0; i += 3) {
            ASSERT_NO_FATAL_FAILURE(expect_batch_of(all, *kernel, p, w, i, 1));
        }
    }
}

TEST(CudaRecords, ProductsAreWithinTheirBound) {
    QK_NEEDS_DEVICE();
    Rng rng(75);
    Runs runs;
    std::vector<qk_tensor_desc> weights = all_weights();
    for (const qk_layout layout : kRecords) {  // more than one chunk of a row, and an odd start
        weights.push_back(records_desc(layout, 9, 2304 / record_of(layout).codes));
    }
    for (const qk_format scale : {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_I8}) {
        weights.push_back(
            lowered_desc(QK_FORMAT_U4_AFFINE, scale, QK_LAYOUT_ROW, 32, 37, 64 * 35 + 16));
        weights.push_back(
            lowered_desc(QK_FORMAT_U4_AFFINE, scale, QK_LAYOUT_ROW, QK_GROUP_ROW, 16, 2048));
        weights.push_back(lowered_desc(QK_FORMAT_S8, scale, QK_LAYOUT_ROW, 16, 37, 1040));
    }
    int cases = 0;
    for (const qk_tensor_desc &desc : weights) {
        const int64_t batches[] = {1, 5, 3, 1};
        Problem p = make_problem(desc, kTypes[cases % 3], batches[cases % 4], rng);
        ++cases;
        ASSERT_NO_FATAL_FAILURE(check_product(p, DeviceWeight(p.w), &runs));
        if (p.w.shape.format->bits == 4) {
            ASSERT_NO_FATAL_FAILURE(check_product(p, packed_weight(p.w), &runs));
        }
    }
    EXPECT_EQ(runs["stored records"], 33);
    EXPECT_GT(runs["packed lanes"], 20);
    EXPECT_GT(runs["stored lanes"], 20);
}

// As a program does it with a file's records: uploaded, repacked on the device, multiplied.
class CudaRecordProduct : public DeviceTensors {
  protected:
    void multiply(qk_tensor *tensor, HostWeight &w, int64_t m, Rng &rng) {
        const int64_t n = w.shape.rows, k = w.shape.columns;
        const std::vector<uint8_t> from = random_floats(QK_FORMAT_F16, m * k, rng);
        qk_tensor *const x = dense(m, k), *const y = dense(m, n);
        upload(x, QK_PLANE_DATA, from);
        ASSERT_EQ(qk_linear(context_, x, tensor, nullptr, y), QK_OK) << qk_context_error(context_);
        const std::vector<uint8_t> bytes = read(y, m * n);
        const std::vector<float> values = values_of(w);
        for (int64_t i = 0; i < m * n; ++i) {
            const auto [exact, magnitude] =
                exact_sum(QK_FORMAT_F16, from, i / n, &values[size_t(i % n * k)], k, 0);
            // Weights are rounded to f16 once, y once; sums are f32.
            const double bound =
                magnitude * (0x1p-11 + double(k) * 0x1p-23) + std::fabs(exact) * 0x1p-11 + 0x1p-24;
            ASSERT_LE(std::fabs(float_at(QK_FORMAT_F16, bytes, i) - exact), bound) << i;
        }
    }
};

TEST_F(CudaRecordProduct, OfAFilesRecordsAndOfRepackedOnes) {
    QK_NEEDS_DEVICE();
    Rng rng(74);
    for (const size_t workspace : {size_t{0}, (size_t{32} << 20) + (size_t{1} << 18)}) {
        open(workspace);
        for (const qk_layout layout : kRecords) {
            qk_tensor_desc desc = records_desc(layout, 40, 512 / record_of(layout).codes);
            HostWeight w = random_weight(desc, rng);
            SCOPED_TRACE(name_of(w) + " workspace " + std::to_string(workspace));
            qk_tensor *const records = make(desc);
            upload(records, QK_PLANE_DATA, w.planes[QK_PLANE_DATA]);
            desc.layout = QK_LAYOUT_PACKED;
            desc.scale_group_size = record_of(layout).second_group;
            qk_tensor *const packed = make(desc);
            ASSERT_EQ(qk_repack(context_, records, packed), QK_OK) << qk_context_error(context_);
            for (const int64_t m : {1, 24}) {
                ASSERT_NO_FATAL_FAILURE(multiply(records, w, m, rng));
                ASSERT_NO_FATAL_FAILURE(multiply(packed, w, m, rng));
            }
        }
        close();
    }
}

}  // namespace
}  // namespace cuda_test
