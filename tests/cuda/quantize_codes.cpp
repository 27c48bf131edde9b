// Codes at the edges of the quantizer's rules, against the CPU and against the rules themselves:
// every tie, every number of f16, every point of LUT8. The same tests run on simulated threads.
#include <algorithm>

#include "cuda/kernels.hpp"
#include "cuda/quantize_case.hpp"

namespace cuda_test {
namespace {

// Quotients about every tie of a rule, over scales of all sizes, denormals and none.
TEST(CudaQuantize, StreamsRoundAsDivisionsDo) {
    QK_NEEDS_DEVICE();
    Rng rng(39);
    for (const qk_format format : {QK_FORMAT_FP4_E2M1, QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4,
                                   QK_FORMAT_FP4_BNB, QK_FORMAT_S8, QK_FORMAT_LUT8}) {
        const int64_t n = 40, k = 64;
        std::vector<uint8_t> bytes(size_t(n * k * 4));
        for (int64_t i = 0; i < n * k; ++i) {
            const float step = std::ldexp(1.0f + float(i / 64 % 5) / 8, int(i / 64 * 7) - 149);
            float x = step * (float(rng() % 65) - 32) / 4;
            const uint64_t nudge = rng() % 3;
            if (nudge != 0) x = std::nextafter(x, nudge == 1 ? -1e38f : 1e38f);
            memcpy(&bytes[size_t(i) * 4], &x, 4);
        }
        for (const qk_format scale : {QK_FORMAT_F32, QK_FORMAT_F16}) {
            check_quantize(
                weight_desc(format, scale, QK_LAYOUT_ROW, 64, n, k, format == QK_FORMAT_U4_AFFINE),
                QK_FORMAT_F32, bytes, rng);
        }
        if (HasFailure()) return;
    }
}

// FP4_BNB has two codes for 0, of which positive numbers get one and the products that round to 0
// the other; numbers of bf16 and f32 that are tiny beside their group's largest.
TEST(CudaQuantize, TinyNumbersAreTheCpus) {
    QK_NEEDS_DEVICE();
    Rng rng(42);
    for (const qk_format from : {QK_FORMAT_F32, QK_FORMAT_BF16, QK_FORMAT_F16}) {
        const int64_t n = 24, k = 64, bytes = from == QK_FORMAT_F32 ? 4 : 2;
        std::vector<uint8_t> dense(size_t(n * k * bytes));
        for (int64_t i = 0; i < n * k; ++i) {
            const uint32_t sign = rng() % 2 == 0 ? 0 : 0x8000;
            const uint32_t top = from == QK_FORMAT_F16 ? 0x7bff : 0x7f7f;
            // One large number a row, from 2^-120 on; others just above 0.
            uint32_t bits = i % k == 5 ? top - uint32_t(i / k) * (top / 40) : uint32_t(rng() % 4);
            bits |= sign;
            if (from == QK_FORMAT_F32) bits = bits << 16 | (bits & 3);
            memcpy(&dense[size_t(i * bytes)], &bits, size_t(bytes));
        }
        for (const qk_format format : {QK_FORMAT_FP4_BNB, QK_FORMAT_NF4, QK_FORMAT_FP4_E2M1}) {
            SCOPED_TRACE(std::to_string(format).append(" from ").append(std::to_string(from)));
            check_quantize(weight_desc(format, QK_FORMAT_F32, QK_LAYOUT_ROW, 64, n, k), from, dense,
                           rng);
        }
    }
}

// Numbers about each (kEvery-th) of the 65,536 points to which LUT8 rounds, with two tables: of the
// second some entries are the same, as are some thresholds, and some lie outside.
TEST(CudaQuantize, EveryPointOfLut8IsTheCpus) {
    QK_NEEDS_DEVICE();
    Rng rng(43);
    std::vector<float> table(256), numbers;
    for (float &entry : table) entry = float(int(rng() % 4096) - 2048) / 1800;
    std::sort(table.begin(), table.end());
    for (int32_t point = 0; point < 65536; point += kEvery) {
        if (numbers.size() % 256 == 0) numbers.push_back(1.0f);
        const float between = (float(point) + 0.5f) / 32767.5f - 1;
        for (const float x : {between, std::nextafter(between, -2.0f)}) {
            if (numbers.size() % 256 == 0) numbers.push_back(-1.0f);
            numbers.push_back(std::fmin(x, 1.0f));
        }
    }
    while (numbers.size() % 256 != 0) numbers.push_back(1.0f);
    for (const float scale : {1.0f, 0.37f, 0x1p-124f, 0x1p-127f, 3e38f}) {
        std::vector<uint8_t> bytes(numbers.size() * 4);
        for (size_t i = 0; i < numbers.size(); ++i) {
            const float x = numbers[i] * scale;
            memcpy(&bytes[i * 4], &x, 4);
        }
        const qk_tensor_desc desc = weight_desc(QK_FORMAT_LUT8, QK_FORMAT_F32, QK_LAYOUT_ROW, 256,
                                                1, int64_t(numbers.size()));
        const bool own = scale == 0.37f;
        EXPECT_EQ(check_quantize(desc, QK_FORMAT_F32, bytes, rng, own ? table.data() : nullptr), 2)
            << scale;  // lut8 and generic
        if (HasFailure()) return;
    }
}

// Large numbers first, which may stay in a block's memory where a short last group ends.
TEST(CudaQuantize, ShortLastGroupsSeeNothingBehindThem) {
    QK_NEEDS_DEVICE();
    Rng rng(44);
    for (const qk_format format : {QK_FORMAT_LUT8, QK_FORMAT_NF4, QK_FORMAT_FP4_BNB}) {
        for (const qk_format from : {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16}) {
            for (const auto &[k, value] :
                 {std::pair{16384 * 4, 30000.0f}, {77, 0.5f}, {2310, 3.0f}}) {
                SCOPED_TRACE(std::to_string(format) + " from " + std::to_string(from) + " k " +
                             std::to_string(k));
                std::vector<uint8_t> numbers(size_t(k) * (from == QK_FORMAT_F32 ? 4 : 2));
                for (int64_t i = 0; i < k; ++i) {
                    const float x = i % 3 == 0 ? value : value / float(i % 7 + 2);
                    put_float(from, numbers, i, x);
                }
                const qk_tensor_desc desc =
                    weight_desc(format, QK_FORMAT_F32,
                                format == QK_FORMAT_LUT8 ? QK_LAYOUT_ROW : QK_LAYOUT_ROW_HIGH, 256,
                                1, k, false, true);
                EXPECT_EQ(check_quantize(desc, from, numbers, rng), 2);  // with the generic kernel
                if (HasFailure()) return;
            }
        }
    }
}

// Every (kEvery-th) f16 number that is not larger than its group's largest, no power of two.
TEST(CudaQuantize, EveryHalfIsTheCpus) {
    QK_NEEDS_DEVICE();
    constexpr uint16_t largest = 0x3b55;
    std::vector<uint16_t> numbers;
    for (uint32_t sign = 0; sign < 2; ++sign) {
        for (uint32_t bits = 0; bits <= largest; bits += kEvery) {
            if (numbers.size() % 64 == 0) numbers.push_back(largest);
            numbers.push_back(uint16_t(bits | sign << 15));
        }
    }
    while (numbers.size() % 64 != 0) numbers.push_back(largest);
    const int64_t k = int64_t(numbers.size());
    std::vector<uint8_t> bytes(numbers.size() * 2);
    memcpy(bytes.data(), numbers.data(), bytes.size());
    Rng rng(40);
    for (const qk_format format : {QK_FORMAT_NF4, QK_FORMAT_FP4_BNB, QK_FORMAT_FP4_E2M1,
                                   QK_FORMAT_U4_AFFINE, QK_FORMAT_S8, QK_FORMAT_LUT8}) {
        SCOPED_TRACE(std::to_string(format));
        check_quantize(weight_desc(format, QK_FORMAT_F32, QK_LAYOUT_ROW, 64, 1, k,
                                   format == QK_FORMAT_U4_AFFINE),
                       QK_FORMAT_F16, bytes, rng);
    }
}

// Codes of values on both sides of a threshold, and on it, where a group's scale is 1: not what the
// CPU's kernels say, but the codebook and the rules for ties.
void check_ties(qk_format format, float absmax, const std::vector<uint8_t> &ascending,
                bool to_even) {
    const qk::Format *const f = qk::find_format(format);
    std::vector<float> values;
    std::vector<uint8_t> codes;
    for (size_t i = 0; i + 1 < ascending.size(); ++i) {
        const uint8_t low = ascending[i], high = ascending[i + 1];
        const float tie = (f->value(low) + f->value(high)) / 2;
        const float next[] = {std::nextafter(tie, -10.0f), tie, std::nextafter(tie, 10.0f)};
        const bool up = to_even && low % 2 != 0;
        const uint8_t expected[] = {low, up ? high : low, high};
        values.insert(values.end(), next, next + 3);
        codes.insert(codes.end(), expected, expected + 3);
    }
    const uint8_t largest = f->value(ascending.back()) == absmax ? ascending.back() : ascending[0];
    do {
        values.push_back(f->value(largest));
        codes.push_back(largest);
    } while (values.size() % 64 != 0);
    const int64_t k = int64_t(values.size());
    HostWeight w = empty_weight(
        weight_desc(format, QK_FORMAT_F32, QK_LAYOUT_ROW_HIGH, QK_GROUP_ROW, 1, k), 0, 0);
    const DeviceWeight to(w);
    std::vector<uint8_t> bytes(values.size() * 4);
    memcpy(bytes.data(), values.data(), bytes.size());
    const DeviceBuffer from(bytes);
    const qk::QuantizeArgs args = {{qk::find_format(QK_FORMAT_F32), 1, k, from.data()}, to.view()};
    for (const auto *const kernel : {&qk::cuda::kQuantizeStream, &qk::cuda::kQuantizeGeneric}) {
        ASSERT_TRUE(kernel->can_run(args, device_0()));
        qk::ErrorText error = {};
        ASSERT_EQ(kernel->run(args, device_launch(&error)), QK_OK) << error.text;
        EXPECT_EQ(float_at(QK_FORMAT_F32, to.planes[QK_PLANE_SCALE].read(), 0), 1.0f);
        const std::vector<uint8_t> actual = to.planes[QK_PLANE_DATA].read();
        for (size_t i = 0; i < codes.size(); ++i) {
            EXPECT_EQ(actual[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15, codes[i])
                << f->name << ", value " << values[i];
        }
    }
}

TEST(CudaQuantize, TiesFollowTheRules) {
    QK_NEEDS_DEVICE();
    check_ties(QK_FORMAT_NF4, 1, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, false);
    // Signs and magnitudes; of the two zeros the one with a sign is for small positive values.
    check_ties(QK_FORMAT_FP4_BNB, 1, {11, 10, 13, 12, 15, 14, 9, 0}, false);
    check_ties(QK_FORMAT_FP4_BNB, 1, {8, 1, 6, 7, 4, 5, 2, 3}, false);
    check_ties(QK_FORMAT_FP4_E2M1, 6, {0, 1, 2, 3, 4, 5, 6, 7}, true);
}

}  // namespace
}  // namespace cuda_test
