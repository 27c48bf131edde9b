#include "cuda/harness.hpp"

#include "backend/weight.hpp"
#include "cuda/scale_tables.hpp"
#include "harness/guarded.hpp"
#include "harness/scratch.hpp"
#include "harness/shared_memory.hpp"
#include "object/context.hpp"

namespace cuda_test {

DeviceBuffer::DeviceBuffer(const std::vector<uint8_t> &bytes, size_t offset, uint8_t canary)
    : bytes_(bytes.size()), offset_(offset), canary_(canary) {
    if (bytes.empty()) return;
    std::vector<uint8_t> all(bytes.size() + offset + 2 * kCanary, canary);
    std::copy(bytes.begin(), bytes.end(), all.begin() + long(kCanary + offset));
    void *pointer = nullptr;
    EXPECT_EQ(cudaMalloc(&pointer, all.size()), cudaSuccess);
    base_ = static_cast<uint8_t *>(pointer);
    EXPECT_EQ(cudaMemcpy(base_, all.data(), all.size(), cudaMemcpyHostToDevice), cudaSuccess);
}

std::vector<uint8_t> DeviceBuffer::read() const {
    if (base_ == nullptr) return {};
    std::vector<uint8_t> all(bytes_ + offset_ + 2 * kCanary);
    EXPECT_EQ(cudaMemcpy(all.data(), base_, all.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    const size_t first = kCanary + offset_;
    for (size_t i = 0; i < first; ++i) {
        EXPECT_EQ(all[i], canary_) << first - i << " bytes before the plane";
    }
    for (size_t i = first + bytes_; i < all.size(); ++i) {
        EXPECT_EQ(all[i], canary_) << i - first - bytes_ << " bytes past the plane";
    }
    return {all.begin() + long(first), all.begin() + long(first + bytes_)};
}

qk::Weight HostWeight::view() {
    void *pointers[QK_PLANE_COUNT];
    for (int i = 0; i < QK_PLANE_COUNT; ++i) {
        pointers[i] = planes[i].empty() ? nullptr : planes[i].data();
    }
    return qk::weight_of(shape, pointers, qk::kScaleTables);
}

DeviceWeight::DeviceWeight(const HostWeight &from, size_t offset, uint8_t canary)
    : shape(from.shape) {
    for (int i = 0; i < QK_PLANE_COUNT; ++i) {
        planes[i] = DeviceBuffer(from.planes[i], offset, canary);
    }
}

qk::Weight DeviceWeight::view() const {
    void *pointers[QK_PLANE_COUNT];
    for (int i = 0; i < QK_PLANE_COUNT; ++i) pointers[i] = planes[i].data();
    return qk::weight_of(shape, pointers, *qk::cuda::scale_tables(0));
}

qk_tensor_desc weight_desc(qk_format format, qk_format scale, qk_layout layout, int32_t group,
                           int64_t n, int64_t k, bool symmetric, bool flat) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = format;
    desc.scale_format = scale;
    desc.layout = layout;
    desc.group_size = group;
    desc.grouping = flat ? QK_GROUPING_FLAT : QK_GROUPING_ALONG_K;
    desc.flags = symmetric ? QK_TENSOR_SYMMETRIC : 0;
    desc.rank = 2;
    desc.shape[0] = n;
    desc.shape[1] = k;
    return desc;
}

HostWeight empty_weight(const qk_tensor_desc &desc, qk_layout packed, uint8_t fill) {
    HostWeight w;
    qk::ErrorText error;
    EXPECT_EQ(qk::resolve(desc, packed, &w.shape, &error), QK_OK) << error.text;
    for (int i = 0; i < QK_PLANE_COUNT; ++i) {
        w.planes[i].assign(size_t(w.shape.plane_bytes[i]), fill);
    }
    return w;
}

void put_float(qk_format format, std::vector<uint8_t> &data, int64_t index, float value) {
    if (format == QK_FORMAT_F32) {
        memcpy(data.data() + index * 4, &value, 4);
        return;
    }
    const uint16_t bits =
        format == QK_FORMAT_F16 ? qk::f16_from_f32(value) : qk::bf16_from_f32(value);
    memcpy(data.data() + index * 2, &bits, 2);
}

static int64_t size_of(qk_format format) { return format == QK_FORMAT_F32 ? 4 : 2; }

std::vector<uint8_t> random_floats(qk_format format, int64_t count, Rng &rng) {
    std::vector<uint8_t> data(size_t(count * size_of(format)));
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < count; ++i) put_float(format, data, i, normal(rng));
    return data;
}

float float_at(qk_format format, const std::vector<uint8_t> &data, int64_t index) {
    if (format == QK_FORMAT_F32) {
        float value;
        memcpy(&value, data.data() + index * 4, 4);
        return value;
    }
    uint16_t bits;
    memcpy(&bits, data.data() + index * 2, 2);
    return format == QK_FORMAT_F16 ? qk::f32_from_f16(bits) : qk::f32_from_bf16(bits);
}

static void fill_scales(qk_format format, std::vector<uint8_t> &plane, float size, Rng &rng) {
    std::lognormal_distribution<float> positive(0, 1);
    for (int64_t i = 0; i < int64_t(plane.size()) / size_of(format); ++i) {
        const uint64_t kind = rng() % 64;
        const float value = kind == 0 ? 0.0f : positive(rng) * size * (kind == 1 ? -1.0f : 1.0f);
        put_float(format, plane, i, value);
    }
}

static void fill_scales_or_codes(qk_format format, std::vector<uint8_t> &plane, Rng &rng) {
    if (format == QK_FORMAT_E8M0 || format == QK_FORMAT_E4M3) {
        const int first = format == QK_FORMAT_E8M0 ? 115 : 0x10;
        for (uint8_t &code : plane) code = uint8_t(first + code % 16);
    } else if (format != QK_FORMAT_LUT8 && format != QK_FORMAT_I8) {
        fill_scales(format, plane, 0.05f, rng);
    }
}

// The numbers of records, which random bytes would make infinite or NaN.
static void fill_records(const qk::Record &record, std::vector<uint8_t> &data, Rng &rng) {
    const bool coded = record.scale_format == QK_FORMAT_E8M0;
    std::vector<size_t> places = {record.bytes == 210 ? 208u : 0u};  // Q6_K ends with it
    if (record.has_minimum) places.push_back(2);
    for (size_t first = 0; first < data.size(); first += size_t(record.bytes)) {
        for (const size_t place : places) {
            std::vector<uint8_t> number(coded ? 1 : 2, uint8_t(rng()));
            fill_scales_or_codes(coded ? QK_FORMAT_E8M0 : QK_FORMAT_F16, number, rng);
            std::copy(number.begin(), number.end(), data.begin() + long(first + place));
        }
    }
}

HostWeight random_weight(const qk_tensor_desc &desc, Rng &rng) {
    HostWeight w = empty_weight(desc, QK_LAYOUT_PACKED, 0);
    for (const qk_plane plane : {QK_PLANE_DATA, QK_PLANE_ZERO, QK_PLANE_SCALE}) {
        for (uint8_t &byte : w.planes[plane]) byte = uint8_t(rng());
    }
    fill_scales_or_codes(desc.scale_format, w.planes[QK_PLANE_SCALE], rng);
    if (w.shape.has_minimum) fill_scales_or_codes(desc.scale_format, w.planes[QK_PLANE_ZERO], rng);
    if (w.shape.layout->record != nullptr) {
        fill_records(*w.shape.layout->record, w.planes[QK_PLANE_DATA], rng);
    }
    fill_scales(QK_FORMAT_F32, w.planes[QK_PLANE_GLOBAL], 1.5f, rng);
    fill_scales(QK_FORMAT_F32, w.planes[QK_PLANE_SCALE2], 0.05f, rng);
    fill_scales(QK_FORMAT_F32, w.planes[QK_PLANE_MIN2], 0.05f, rng);
    fill_scales(QK_FORMAT_F32, w.planes[QK_PLANE_SCALE_BIAS], 0.1f, rng);
    for (const qk_plane plane : {QK_PLANE_TABLE, QK_PLANE_SCALE_CODE}) {
        if (w.planes[plane].size() == 1024) {
            EXPECT_EQ(qk_dynamic_table(reinterpret_cast<float *>(w.planes[plane].data())), QK_OK);
        }
    }
    return w;
}

HostWeight packed_on_host(HostWeight &w) {
    const qk::Geometry &s = w.shape.geometry;
    qk_tensor_desc desc = weight_desc(
        w.shape.format->id, w.shape.scale_format->id, QK_LAYOUT_PACKED,
        s.groups_per_row == 1 ? QK_GROUP_ROW : int32_t(s.group_size), w.shape.rows, w.shape.columns,
        w.shape.format->id == QK_FORMAT_U4_AFFINE && !w.shape.has_zero && !w.shape.has_minimum,
        s.flat);
    if (w.shape.has_minimum) desc.flags |= QK_TENSOR_FLOAT_MIN;
    desc.scale_group_size = int32_t(w.shape.second_group);
    if (w.shape.globals == 1) desc.flags |= QK_TENSOR_GLOBAL;
    if (w.shape.globals > 1) desc.flags |= QK_TENSOR_GLOBAL_ROWS;
    HostWeight to = empty_weight(desc, qk::kCudaBackend.packed_layout(*w.shape.format), 0);
    EXPECT_EQ(qk::cpu::kRepackGeneric.run({w.view(), to.view()}, host_launch()), QK_OK);
    return to;
}

std::vector<float> values_of(HostWeight &w) {
    const qk::Geometry &s = w.shape.geometry;
    std::vector<float> values(size_t(s.n * s.k));
    const qk::Dense to = {qk::find_format(QK_FORMAT_F32), s.n, s.k, values.data()};
    EXPECT_EQ(qk::cpu::kDequantizeGeneric.run({w.view(), to}, host_launch()), QK_OK);
    return values;
}

double rounding_of(qk_format type) {
    return type == QK_FORMAT_F16 ? 0x1p-11 : type == QK_FORMAT_BF16 ? 0x1p-8 : 0x1p-24;
}

ExactSum exact_sum(qk_format type, const std::vector<uint8_t> &x, int64_t x_row, const float *w,
                   int64_t k, double bias) {
    ExactSum sum = {bias, std::fabs(bias)};
    for (int64_t c = 0; c < k; ++c) {
        const double term = double(float_at(type, x, x_row * k + c)) * double(w[c]);
        sum.value += term;
        sum.magnitude += std::fabs(term);
    }
    return sum;
}

static void run_here(void *, int32_t count, void (*task)(void *, int32_t), void *argument) {
    for (int32_t i = 0; i < count; ++i) task(argument, i);
}

qk::Launch host_launch() {
    return {{run_here, nullptr, 1},  nullptr, {}, nullptr, 0, nullptr, nullptr,
            harness::dirty_scratch()};
}

qk::Device device_0() { return qk::device_at(qk::kCudaBackend, 0); }

qk::Launch device_launch(qk::ErrorText *error) {
    harness::poison_shared_memory();
    return {{run_here, nullptr, 1}, nullptr, device_0(), nullptr, 0, error};
}

DeviceBuffer give_workspace(size_t bytes, qk::Launch *launch) {
    static uint64_t turn = 0;
    DeviceBuffer room(std::vector<uint8_t>(bytes, harness::working_poison(turn++)));
    launch->workspace = room.data();
    launch->workspace_bytes = bytes;
    return room;
}

void poison_workspace(const qk_context &context) {
    const std::vector<uint8_t> nans(context.workspace_bytes, harness::kPoisonNan);
    EXPECT_EQ(cudaMemcpy(context.workspace, nans.data(), nans.size(), cudaMemcpyHostToDevice),
              cudaSuccess);
}

bool no_device() { return qk::kCudaBackend.device_count() == 0; }

::testing::AssertionResult same_values(qk_format format, const std::vector<uint8_t> &expected,
                                       const std::vector<uint8_t> &actual) {
    if (expected.size() != actual.size()) return ::testing::AssertionFailure() << "sizes differ";
    if (expected == actual) return ::testing::AssertionSuccess();
    const int64_t bytes = size_of(format);
    for (int64_t i = 0; i < int64_t(expected.size()) / bytes; ++i) {
        const float a = float_at(format, expected, i), b = float_at(format, actual, i);
        if (memcmp(&expected[size_t(i * bytes)], &actual[size_t(i * bytes)], size_t(bytes)) == 0) {
            continue;
        }
        if (std::isnan(a) && std::isnan(b)) continue;
        return ::testing::AssertionFailure()
               << "element " << i << ": expected " << a << ", is " << b;
    }
    return ::testing::AssertionSuccess();
}

}  // namespace cuda_test
