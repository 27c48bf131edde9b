// Products with experts of random routings against a reference in double: tables of what each row
// of x gives with each expert, from which a routing picks. Packed weights by the kernels for them,
// weights of any format and layout by the one that takes all. QK_ROUTINGS says how many of each;
// before a release 10^5, whose parts run side by side (docs/testing.md). The stored weights' run on
// simulated threads as well.
#include <cstdlib>

#include "cuda/experts_case.hpp"
#include "harness/guarded.hpp"

namespace cuda_test {
namespace {

constexpr int64_t kMostSlots = 16, kXRows = 48, kOfAWeight = 500;  // routings
constexpr int kParts = 8;

int64_t routings_of_a_part() {
    const char *const text = std::getenv("QK_ROUTINGS");
    return qk::ceil_div(text != nullptr ? std::atoll(text) : kSimulated ? 64 : 1000, kParts);
}

// In f32; of a dense weight as well.
std::vector<float> all_values_of(HostWeight &w) {
    if (!qk::is_dense(*w.shape.format)) return values_of(w);
    std::vector<float> values;
    for (int64_t i = 0; i < w.shape.rows * w.shape.columns; ++i) {
        values.push_back(float_at(w.shape.format->id, w.planes[QK_PLANE_DATA], i));
    }
    return values;
}

// A weight, kXRows rows of x, and all of their products.
struct Tables {
    Case c;
    DeviceWeight w;
    std::vector<ExactSum> z;  // [row of x][expert][row]
    DeviceBuffer x, bias, weight;

    Tables(Case from, bool packs)
        : c(std::move(from)), w(packs ? packed_on_host(c.w) : c.w), x(c.x), bias(c.bias),
          weight(c.weight) {
        const std::vector<float> values = all_values_of(c.w);
        for (int64_t x_row = 0; x_row < kXRows; ++x_row) {
            std::vector<double> row;
            for (int64_t i = 0; i < c.k(); ++i) {
                row.push_back(double(float_at(c.type, c.x, x_row * c.k() + i)));
            }
            for (int64_t at = 0; at < c.count * c.rows(); ++at) {
                const double start = c.biased ? double(float_at(QK_FORMAT_F32, c.bias, at)) : 0;
                ExactSum sum = {start, std::fabs(start)};
                for (int64_t i = 0; i < c.k(); ++i) {
                    const double term = row[size_t(i)] * double(values[size_t(at * c.k() + i)]);
                    sum.value += term;
                    sum.magnitude += std::fabs(term);
                }
                z.push_back(sum);
            }
        }
    }
    const ExactSum *products(int64_t x_row, int32_t expert) const {
        return &z[size_t((x_row * c.count + expert) * c.rows())];
    }
    // Nothing beside an operand has been written.
    void expect_whole() const {
        for (const DeviceBuffer *operand : {&x, &bias, &weight}) operand->read();
        for (const DeviceBuffer &plane : w.planes) plane.read();
    }
};

// What a test takes at random of a weight; tokens and slots are a routing's.
Case case_of(const qk_tensor_desc &desc, int64_t count, qk_format type, int at, Rng &rng) {
    Case c = make_case(desc, count, type, at, rng);
    c.activation = QK_ACTIVATION_NONE;
    c.accumulates = false;
    c.y_type = QK_FORMAT_F32;
    c.x = random_floats(type, kXRows * c.k(), rng);
    c.weight = random_floats(QK_FORMAT_F32, kXRows, rng);
    std::vector<uint8_t> &table = c.w.planes[QK_PLANE_TABLE];
    if (table.size() == 64) table = random_floats(QK_FORMAT_F32, 16, rng);  // LUT4's
    for (uint8_t &code : c.w.planes[QK_PLANE_DATA]) {
        if (desc.format == QK_FORMAT_E4M3 && code % 128 == 127) code = 0;  // NaN
    }
    return c;
}

constexpr int64_t kCounts[] = {1, 2, 3, 8, 31, 128, 512, 1024};

// Other tables of 16 entries.
constexpr Kind kOtherTables[] = {
    {QK_FORMAT_FP4_BNB, QK_FORMAT_F16, QK_LAYOUT_ROW, 64, false, false},
    {QK_FORMAT_IQ4_NL, QK_FORMAT_F16, QK_LAYOUT_ROW, 32, false, false}};

Case packed_case(int at, Rng &rng) {
    constexpr int kKinds = int(std::size(kPacked)), kOthers = int(std::size(kOtherTables));
    const int64_t count = kCounts[at % 8], rows = 16 * int64_t(1 + rng() % (count > 100 ? 2 : 9));
    const int64_t k = count > 100 ? 64 + 16 * int64_t(rng() % 5) : 16 * int64_t(4 + rng() % 90);
    const qk_format type = rng() % 2 == 0 ? QK_FORMAT_F16 : QK_FORMAT_BF16;
    const int kind = at % (kKinds + kOthers);
    const Kind &of = kind < kKinds ? kPacked[kind] : kOtherTables[kind - kKinds];
    return case_of(desc_of(of, count * rows, k), count, type, at, rng);
}

// As files have them. Words of 8 codes of a column or a row, groups that straddle rows, records.
constexpr Kind kStored[] = {
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_ROW, 64, false, false},
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_BF16, QK_LAYOUT_AWQ_GEMM, 32, false, false},
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_AWQ_GEMV, 64, false, false},
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_GPTQ, 32, false, false},
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_GPTQ_V1, 32, false, false},
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_BF16, QK_LAYOUT_WORD, 32, false, false},
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_F32, QK_LAYOUT_ROW, QK_GROUP_ROW, true, false},
    {QK_FORMAT_NF4, QK_FORMAT_F32, QK_LAYOUT_ROW, 24, false, true},
    {QK_FORMAT_NF4, QK_FORMAT_LUT8, QK_LAYOUT_ROW, 64, false, false},
    {QK_FORMAT_FP4_BNB, QK_FORMAT_F16, QK_LAYOUT_ROW_HIGH, 32, false, false},
    {QK_FORMAT_FP4_E2M1, QK_FORMAT_E8M0, QK_LAYOUT_ROW, 32, false, false},
    {QK_FORMAT_FP4_E2M1, QK_FORMAT_E4M3, QK_LAYOUT_ROW, 16, false, false},
    {QK_FORMAT_LUT4, QK_FORMAT_F32, QK_LAYOUT_ROW, 32, false, false},
    {QK_FORMAT_FP4_GGML, QK_FORMAT_E8M0, QK_LAYOUT_ROW, 32, false, false},
    {QK_FORMAT_S8, QK_FORMAT_F32, QK_LAYOUT_ROW, 64, false, false},
    {QK_FORMAT_LUT8, QK_FORMAT_F32, QK_LAYOUT_ROW, 64, false, false},
    {QK_FORMAT_E4M3, QK_FORMAT_F32, QK_LAYOUT_ROW, QK_GROUP_ROW, false, false},
    {QK_FORMAT_F32, QK_FORMAT_F32, QK_LAYOUT_ROW, 0, false, false},
    {QK_FORMAT_F16, QK_FORMAT_F32, QK_LAYOUT_ROW, 0, false, false},
    {QK_FORMAT_BF16, QK_FORMAT_F32, QK_LAYOUT_ROW, 0, false, false},
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_GGUF_Q4_0, 32, true, false},
    {QK_FORMAT_IQ4_NL, QK_FORMAT_F16, QK_LAYOUT_GGUF_IQ4_NL, 32, false, false},
    {QK_FORMAT_S8, QK_FORMAT_F16, QK_LAYOUT_GGUF_Q8_0, 32, false, false},
    {QK_FORMAT_FP4_GGML, QK_FORMAT_E8M0, QK_LAYOUT_GGUF_MXFP4, 32, false, false}};

Case stored_case(int at, Rng &rng) {
    const Kind &kind = kStored[at % int(std::size(kStored))];
    const int64_t count = kCounts[(at + at / kParts) % (kSimulated ? 5 : 8)];
    const bool words = kind.layout != QK_LAYOUT_ROW && kind.layout != QK_LAYOUT_ROW_HIGH;
    const bool few = kSimulated || count > 100;
    int64_t rows = 8 * int64_t(1 + rng() % (few ? 3 : 16)), k = 64 * int64_t(1 + rng() % 3);
    if (!words) rows -= int64_t(rng() % 8), k += int64_t(rng() % 64);
    constexpr qk_format types[] = {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32};
    return case_of(desc_of(kind, count * rows, k), count, types[rng() % 3], at, rng);
}

void draw(Case *c, Rng &rng) {
    c->slots = 1 + int64_t(rng() % kMostSlots);
    c->tokens = 1 + int64_t(rng() % uint64_t(kXRows / c->slots));
    c->by_slot = rng() % 2 == 0;
    c->summed = rng() % 2 == 0;
    c->weighted = c->summed && rng() % 2 == 0;
    c->expert = bytes_of(routing(c->tokens * c->slots, c->count, rng));
}

// Of a weight's terms, rounded as gemm_experts.cpp says where they are rounded to a type, and their
// weighted sum in f32.
void expect_sums(const Tables &t, const std::vector<float> &y, qk_format rounded_to) {
    const Case &c = t.c;
    const double relative =
        3.2 * rounding_of(rounded_to) + double(c.k()) * 0x1p-22 + double(c.slots) * 0x1p-23;
    const double least = rounded_to == QK_FORMAT_F16 ? double(c.k()) * 0x1p-19 : 0x1p-60;
    for (int64_t head = 0; head < c.y_rows(); ++head) {
        for (int64_t i = 0; i < c.rows(); ++i) {
            ExactSum sum = {};
            double weights = 0;
            for (int64_t j = 0; j < (c.summed ? c.slots : 1); ++j) {
                const int64_t slot = c.summed ? head * c.slots + j : head;
                const int32_t e = expert_at(c, slot);
                if (e < 0) continue;
                if (e >= c.count) sum.value = NAN;
                if (e >= c.count) continue;
                const ExactSum z = t.products(c.by_slot ? slot : slot / c.slots, e)[i];
                const double weight =
                    c.weighted ? double(float_at(QK_FORMAT_F32, c.weight, slot)) : 1;
                sum.value += weight * z.value;
                sum.magnitude += std::fabs(weight) * z.magnitude;
                weights += std::fabs(weight);
            }
            const float actual = y[size_t(head * c.rows() + i)];
            if (std::isnan(sum.value)) {
                ASSERT_TRUE(std::isnan(actual)) << "row " << head;
                continue;
            }
            ASSERT_LE(std::fabs(double(actual) - sum.value),
                      relative * sum.magnitude + weights * least)
                << "row " << head << " column " << i;
        }
    }
}

// A case's y by a kernel, from operands that are on the device.
class Runner {
  public:
    explicit Runner(const Tables &t)
        : t_(t), expert_(std::vector<uint8_t>(kXRows * 4)),
          y_(std::vector<uint8_t>(size_t(kXRows * t.c.rows() * 4) + kBand)),
          workspace_(std::vector<uint8_t>(kWorkspace)) {}

    std::vector<float> run(const qk::Kernel<qk::LinearArgs> &kernel) const {
        const Case &c = t_.c;
        const Arguments a(
            c, t_.w.view(),
            {t_.x.data(), t_.bias.data(), y_.data(), expert_.data(), t_.weight.data()});
        const size_t numbers = size_t(c.y_rows() * c.rows());
        qk::ErrorText error = {};
        qk::Launch launch = device_launch(&error);
        const size_t room = qk::workspace_of(kernel, a.args, launch.device);
        EXPECT_LE(room + kBand, kWorkspace);
        launch.workspace = workspace_.data();
        launch.workspace_bytes = room;
        EXPECT_TRUE(kernel.can_run(a.args, launch.device));
        const uint8_t poison = harness::working_poison(turn_++);
        cudaMemcpy(expert_.data(), c.expert.data(), c.expert.size(), cudaMemcpyHostToDevice);
        cudaMemsetAsync(y_.data(), 0xff, numbers * 4 + kBand, nullptr);
        cudaMemsetAsync(workspace_.data(), poison, room + kBand, nullptr);
        EXPECT_EQ(kernel.run(a.args, launch), QK_OK) << error.text;
        expect_band(workspace_, room, poison);
        expect_band(y_, numbers * 4, 0xff);
        std::vector<float> y(numbers);
        EXPECT_EQ(cudaMemcpy(y.data(), y_.data(), numbers * 4, cudaMemcpyDeviceToHost),
                  cudaSuccess);
        return y;
    }
    void expect_whole() const {
        for (const DeviceBuffer *operand : {&expert_, &y_, &workspace_}) operand->read();
    }

  private:
    static constexpr size_t kWorkspace = size_t{8} << 20, kBand = 256;

    // What follows an operand of so many bytes is as it was.
    static void expect_band(const DeviceBuffer &operand, size_t bytes, uint8_t value) {
        std::vector<uint8_t> band(kBand);
        EXPECT_EQ(cudaMemcpy(band.data(), static_cast<uint8_t *>(operand.data()) + bytes, kBand,
                             cudaMemcpyDeviceToHost),
                  cudaSuccess);
        EXPECT_EQ(band, std::vector<uint8_t>(kBand, value));
    }

    const Tables &t_;
    DeviceBuffer expert_, y_, workspace_;
    mutable uint64_t turn_ = 0;
};

class CudaRandomRoutings : public testing::TestWithParam<int> {};

// Checks so many routings of each weight that `make` gives. Part p begins with the p-th of the
// numbers of experts, so that a few routings have them all.
template <class Make, class Check>
void check_routings(int part, int64_t of_a_weight, bool packs, const Make &make,
                    const Check &check) {
    Rng rng(61 + uint64_t(part));
    const int64_t wanted = routings_of_a_part();
    int64_t done = 0;
    for (int at = part; done < wanted; at += packs ? 1 : kParts) {
        Tables t(make(at, rng), packs);
        const Runner runner(t);
        for (int64_t i = 0; i < of_a_weight && done < wanted; ++i, ++done) {
            draw(&t.c, rng);
            SCOPED_TRACE(t.c.title() + " routing " + std::to_string(done));
            ASSERT_NO_FATAL_FAILURE(check(t, runner));
        }
        t.expect_whole();
        runner.expect_whole();
        ASSERT_FALSE(testing::Test::HasFailure()) << t.c.title();
    }
    EXPECT_GE(done, wanted);
}

TEST_P(CudaRandomRoutings, AreRight) {
    QK_NEEDS_DEVICE();
    if (kSimulated) GTEST_SKIP() << "its kernels need a GPU's instructions";
    check_routings(GetParam(), kOfAWeight, true, packed_case, [](Tables &t, const Runner &runner) {
        const std::vector<float> alone = runner.run(qk::cuda::kLinearSm90Experts);
        const std::vector<float> together = runner.run(qk::cuda::kLinearSm90ExpertRows);
        ASSERT_NO_FATAL_FAILURE(expect_sums(t, alone, t.c.type));
        ASSERT_TRUE(same_values(QK_FORMAT_F32, bytes_of(alone), bytes_of(together)));
        const std::vector<float> gemm = runner.run(qk::cuda::kLinearSm90ExpertGemm);
        ASSERT_NO_FATAL_FAILURE(expect_sums(t, gemm, t.c.type));
    });
}

TEST_P(CudaRandomRoutings, OfStoredWeightsAreRight) {
    QK_NEEDS_DEVICE();
    const int64_t of_a_weight = kSimulated ? 2 : 40;  // by default all kinds are met
    check_routings(GetParam(), of_a_weight, false, stored_case,
                   [](Tables &t, const Runner &runner) {
        expect_sums(t, runner.run(qk::cuda::kLinearExperts), QK_FORMAT_F32);
    });
}

INSTANTIATE_TEST_SUITE_P(Parts, CudaRandomRoutings, testing::Range(0, kParts));

}  // namespace
}  // namespace cuda_test
