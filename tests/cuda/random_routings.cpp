// Products with experts of random routings against a reference in double: tables of what each row
// of x gives with each expert, from which a routing picks. QK_ROUTINGS says how many; before a
// release 10^5, whose parts run side by side (docs/testing.md).
#include <cstdlib>

#include "cuda/experts_case.hpp"
#include "harness/guarded.hpp"

namespace cuda_test {
namespace {

constexpr int64_t kMostSlots = 16, kXRows = 48, kOfAWeight = 500;  // routings
constexpr int kParts = 8;

int64_t routings_of_a_part() {
    const char *const text = std::getenv("QK_ROUTINGS");
    return qk::ceil_div(text != nullptr ? std::atoll(text) : 1000, kParts);
}

// A weight, kXRows rows of x, and all of their products.
struct Tables {
    Case c;
    DeviceWeight w;
    std::vector<ExactSum> z;  // [row of x][expert][row]
    DeviceBuffer x, bias, weight;

    explicit Tables(Case from)
        : c(std::move(from)), w(packed_on_host(c.w)), x(c.x), bias(c.bias), weight(c.weight) {
        const std::vector<float> values = values_of(c.w);
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
};

// Weights of one shape and kind; tokens and slots are a routing's.
Case random_case(int at, Rng &rng) {
    constexpr int64_t counts[] = {1, 2, 3, 8, 31, 128, 512, 1024};
    const int64_t count = counts[at % 8], rows = 16 * int64_t(1 + rng() % (count > 100 ? 2 : 9));
    const int64_t k = count > 100 ? 64 + 16 * int64_t(rng() % 5) : 16 * int64_t(4 + rng() % 90);
    const qk_format type = rng() % 2 == 0 ? QK_FORMAT_F16 : QK_FORMAT_BF16;
    Case c = make_case(desc_of(kPacked[at % 7], count * rows, k), count, type, at, rng);
    c.activation = QK_ACTIVATION_NONE;
    c.accumulates = false;
    c.y_type = QK_FORMAT_F32;
    c.x = random_floats(type, kXRows * k, rng);
    c.weight = random_floats(QK_FORMAT_F32, kXRows, rng);
    return c;
}

void draw(Case *c, Rng &rng) {
    c->slots = 1 + int64_t(rng() % kMostSlots);
    c->tokens = 1 + int64_t(rng() % uint64_t(kXRows / c->slots));
    c->by_slot = rng() % 2 == 0;
    c->summed = rng() % 2 == 0;
    c->weighted = c->summed && rng() % 2 == 0;
    c->expert = bytes_of(routing(c->tokens * c->slots, c->count, rng));
}

// Of a weight's terms, rounded as gemm_experts.cpp says, and their weighted sum in f32.
void expect_sums(const Tables &t, const std::vector<float> &y) {
    const Case &c = t.c;
    const double relative =
        3.2 * rounding_of(c.type) + double(c.k()) * 0x1p-22 + double(c.slots) * 0x1p-23;
    const double least = c.type == QK_FORMAT_F16 ? double(c.k()) * 0x1p-19 : 0x1p-60;
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
          y_(std::vector<uint8_t>(size_t(kXRows * t.c.rows() * 4))),
          workspace_(std::vector<uint8_t>(kWorkspace)) {}

    std::vector<float> run(const qk::Kernel<qk::LinearArgs> &kernel) const {
        const Case &c = t_.c;
        const Arguments a(
            c, t_.w.view(),
            {t_.x.data(), t_.bias.data(), y_.data(), expert_.data(), t_.weight.data()});
        std::vector<float> y(size_t(c.y_rows() * c.rows()));
        qk::ErrorText error = {};
        qk::Launch launch = device_launch(&error);
        launch.workspace = workspace_.data();
        launch.workspace_bytes = kWorkspace;
        EXPECT_TRUE(kernel.can_run(a.args, launch.device));
        if (kernel.workspace_bytes != nullptr) {
            EXPECT_LE(kernel.workspace_bytes(a.args, launch.device), launch.workspace_bytes);
        }
        cudaMemcpy(expert_.data(), c.expert.data(), c.expert.size(), cudaMemcpyHostToDevice);
        cudaMemset(y_.data(), 0xff, y.size() * 4);
        cudaMemset(workspace_.data(), harness::working_poison(turn_++), kWorkspace);
        EXPECT_EQ(kernel.run(a.args, launch), QK_OK) << error.text;
        EXPECT_EQ(cudaMemcpy(y.data(), y_.data(), y.size() * 4, cudaMemcpyDeviceToHost),
                  cudaSuccess);
        return y;
    }

  private:
    static constexpr size_t kWorkspace = size_t{8} << 20;
    const Tables &t_;
    DeviceBuffer expert_, y_, workspace_;
    mutable uint64_t turn_ = 0;
};

class CudaRandomRoutings : public testing::TestWithParam<int> {};

// Part p begins with the p-th of the numbers of experts, so that a few routings have them all.
TEST_P(CudaRandomRoutings, AreRight) {
    QK_NEEDS_DEVICE();
    Rng rng(61 + uint64_t(GetParam()));
    const int64_t wanted = routings_of_a_part();
    int64_t done = 0;
    for (int at = GetParam(); done < wanted; ++at) {
        Tables t(random_case(at, rng));
        const Runner runner(t);
        for (int64_t i = 0; i < kOfAWeight && done < wanted; ++i, ++done) {
            draw(&t.c, rng);
            SCOPED_TRACE(t.c.title() + " routing " + std::to_string(done));
            const std::vector<float> alone = runner.run(qk::cuda::kLinearSm90Experts);
            const std::vector<float> together = runner.run(qk::cuda::kLinearSm90ExpertRows);
            ASSERT_NO_FATAL_FAILURE(expect_sums(t, alone));
            ASSERT_TRUE(same_values(QK_FORMAT_F32, bytes_of(alone), bytes_of(together)));
            ASSERT_NO_FATAL_FAILURE(expect_sums(t, runner.run(qk::cuda::kLinearSm90ExpertGemm)));
        }
    }
    EXPECT_GE(done, wanted);
}

INSTANTIATE_TEST_SUITE_P(Parts, CudaRandomRoutings, testing::Range(0, kParts));

}  // namespace
}  // namespace cuda_test
