// Products of one x that one launch takes (linear/sm90/gemv/siblings.cuh): the bits of each alone.
#include "cuda/linear_problem.hpp"

namespace cuda_test {
namespace {

using qk::cuda::kLinearSm90Gemv;

// Weights of several heights and one x, on the device; a bias for every other one.
class Siblings {
  public:
    Siblings(const qk_tensor_desc &like, qk_format type, const std::vector<int64_t> &heights,
             Rng &rng)
        : type_(qk::find_format(type)), k_(like.shape[1]),
          x_(random_floats(type, like.shape[1], rng)) {
        for (const int64_t n : heights) {
            qk_tensor_desc desc = like;
            desc.shape[0] = n;
            HostWeight w = random_weight(desc, rng);
            weights_.push_back(packed_weight(w));
            biases_.emplace_back(random_floats(QK_FORMAT_F32, n, rng));
            views_.push_back({qk::find_format(QK_FORMAT_F32), 1, n, biases_.back().data()});
        }
    }
    qk::LinearArgs args(size_t i, const DeviceBuffer &y) const {
        const int64_t n = views_[i].columns;
        return {{type_, 1, k_, x_.data()},
                weights_[i].view(),
                i % 2 == 1 ? &views_[i] : nullptr,
                {type_, 1, n, y.data()}};
    }
    std::vector<uint8_t> empty(size_t i) const {
        return std::vector<uint8_t>(size_t(views_[i].columns) * 2, 0xff);
    }
    std::vector<uint8_t> alone(size_t i) const {
        const DeviceBuffer y(empty(i));
        qk::ErrorText error = {};
        EXPECT_EQ(kLinearSm90Gemv.run(args(i, y), device_launch(&error)), QK_OK) << error.text;
        return y.read();
    }
    // All of them by one launch.
    void check_together() const {
        std::vector<DeviceBuffer> y;
        std::vector<qk::LinearArgs> all;
        std::vector<const qk::LinearArgs *> cases;
        for (size_t i = 0; i < weights_.size(); ++i) y.emplace_back(empty(i));
        for (size_t i = 0; i < weights_.size(); ++i) all.push_back(args(i, y[i]));
        for (const qk::LinearArgs &one : all) cases.push_back(&one);
        ASSERT_TRUE(kLinearSm90Gemv.can_run(all[0], device_0()));
        qk::ErrorText error = {};
        int32_t ran = 0;
        ASSERT_EQ(kLinearSm90Gemv.run_siblings(cases.data(), int32_t(cases.size()),
                                               device_launch(&error), &ran),
                  QK_OK)
            << error.text;
        ASSERT_EQ(ran, int32_t(cases.size()));
        for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i].read(), alone(i)) << "weight " << i;
    }

  private:
    const qk::Format *type_;
    int64_t k_;
    DeviceBuffer x_;
    std::vector<DeviceWeight> weights_;
    std::vector<DeviceBuffer> biases_;
    std::vector<qk::Dense> views_;
};

// Weights of less than a row of tiles, of blocks with one, two and 32, and with several waves of
// blocks.
TEST(CudaSiblings, KeepTheirBits) {
    QK_NEEDS_DEVICE();
    Rng rng(31);
    const std::vector<std::vector<int64_t>> sets = {
        {1, 16, 17, 1}, {40, 8, 33}, {1000, 264, 264, 7}, {2113, 2112}, {40000, 31000}};
    struct Kind {
        qk_format format, scale;
        int32_t group;
        bool symmetric = false;
    };
    const Kind kinds[] = {{QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 128},
                          {QK_FORMAT_U4_AFFINE, QK_FORMAT_F32, 64},
                          {QK_FORMAT_U4_AFFINE, QK_FORMAT_BF16, 32},
                          {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 128, true},
                          {QK_FORMAT_NF4, QK_FORMAT_F32, 64},
                          {QK_FORMAT_NF4, QK_FORMAT_LUT8, 64},
                          {QK_FORMAT_U4_AFFINE, QK_FORMAT_LUT8, 128},
                          {QK_FORMAT_FP4_E2M1, QK_FORMAT_F16, 16},
                          {QK_FORMAT_FP4_E2M1, QK_FORMAT_E8M0, 32},
                          {QK_FORMAT_FP4_BNB, QK_FORMAT_BF16, QK_GROUP_ROW}};
    for (const Kind &kind : kinds) {
        for (const qk_format type : {QK_FORMAT_F16, QK_FORMAT_BF16}) {
            for (const auto &heights : sets) {
                for (const int64_t k : {64, 528, 8720}) {
                    if (heights[0] > (k == 64 ? 40000 : k == 528 ? 2113 : 40)) continue;
                    SCOPED_TRACE(std::string(qk::find_format(kind.format)->name) + " group " +
                                 std::to_string(kind.group) + " type " + std::to_string(type) +
                                 " n " + std::to_string(heights[0]) + " k " + std::to_string(k));
                    const Siblings all(weight_desc(kind.format, kind.scale, QK_LAYOUT_ROW,
                                                   kind.group, 1, k, kind.symmetric),
                                       type, heights, rng);
                    ASSERT_NO_FATAL_FAILURE(all.check_together());
                }
            }
        }
    }
}

}  // namespace
}  // namespace cuda_test
