// The host code of gemm/: which cases it takes, which kernel it calls, what it tells the copy
// engine. The kernels behind it are fakes (fake_gemm.cpp).
#include <thread>

#include "cuda/bytes_problem.hpp"
#include "cuda/linear/sm90/gemm/problem.hpp"
#include "cuda/mock/mock.hpp"
#include "cuda/simulated/fake_library.hpp"
#include "cuda/view.cuh"

namespace cuda_test {
namespace {

using fake_library::state;
using qk::cuda::Codes;
using qk::cuda::GemmPlan;
using qk::cuda::GemmProblem;

class CudaGemmHost : public ::testing::Test {
  protected:
    CudaGemmHost() {
        mock::reset();
        state = {};
    }
    ~CudaGemmHost() override {
        state = {};
        mock::reset();
    }
};

// A product of a packed or an 8-bit weight, and its operands on the device.
struct Case {
    Problem p;
    DeviceWeight w;
    DeviceBuffer x, y;

    Case(Problem problem, bool packed, size_t offset = 0)
        : p(std::move(problem)), w(packed ? packed_weight(p.w) : DeviceWeight(p.w)), x(p.x, offset),
          y(std::vector<uint8_t>(p.y_bytes(), 0xff)) {}

    qk::LinearArgs args() const {
        const qk::Format *const type = qk::find_format(p.type);
        return {{type, p.m, p.k(), x.data()}, w.view(), nullptr, {type, p.m, p.n(), y.data()}};
    }
};

Problem problem(qk_format format, qk_format scale, int32_t group, int64_t n, int64_t k, int64_t m,
                qk_format type = QK_FORMAT_F16) {
    Rng rng(71);
    qk_tensor_desc desc = weight_desc(format, scale, QK_LAYOUT_ROW, group, n, k);
    if (scale == QK_FORMAT_LUT8) desc.scale_group_size = 16;
    return make_problem(desc, type, m, rng);
}

Problem u4(int64_t m, int32_t group = 64, int64_t k = 128, qk_format type = QK_FORMAT_F16) {
    return problem(QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, group, 48, k, m, type);
}

bool tiles_run(Problem p, size_t offset = 0) {
    const Case c(std::move(p), true, offset);
    return qk::cuda::kLinearSm90Gemm.can_run(c.args(), device_0());
}

TEST_F(CudaGemmHost, TakesPackedTilesOfMoreThanSixteenRows) {
    EXPECT_FALSE(tiles_run(u4(16)));
    EXPECT_TRUE(tiles_run(u4(17)));
    EXPECT_TRUE(tiles_run(u4(17, QK_GROUP_ROW, 80)));
    EXPECT_TRUE(tiles_run(u4(17, 64, 128, QK_FORMAT_BF16)));
    EXPECT_FALSE(tiles_run(u4(17, 64, 128, QK_FORMAT_F32)));
    EXPECT_TRUE(tiles_run(u4(17, 32)));  // groups inside a tile
    EXPECT_TRUE(tiles_run(u4(17, 16)));
    EXPECT_FALSE(tiles_run(u4(17, 192, 384)));  // no power of two
    EXPECT_FALSE(tiles_run(u4(17), 8));         // x at an odd address
    for (const int capability : {80, 89, 100}) {
        mock::Machine machine;
        machine.capability = capability;
        mock::reset(machine);
        EXPECT_FALSE(tiles_run(u4(17))) << capability;
    }
    mock::Machine small;
    small.shared_bytes = 199 * 1024;
    mock::reset(small);
    EXPECT_FALSE(tiles_run(u4(17)));
}

TEST_F(CudaGemmHost, TakesRowsOfBytes) {
    const auto runs = [](Problem p, size_t offset = 0) {
        const Case c(std::move(p), false, offset);
        return qk::cuda::kLinearSm90Gemm8Bit.can_run(c.args(), device_0());
    };
    const auto s8 = [](int64_t m, int32_t group = 64, int64_t k = 128) {
        return problem(QK_FORMAT_S8, QK_FORMAT_F32, group, 24, k, m);
    };
    EXPECT_FALSE(runs(s8(4)));
    EXPECT_TRUE(runs(s8(5)));
    EXPECT_TRUE(runs(s8(17, QK_GROUP_ROW, 80)));
    EXPECT_FALSE(runs(s8(17, 32)));
    EXPECT_FALSE(runs(s8(17, QK_GROUP_ROW, 88)));  // rows of no whole 16 bytes
    EXPECT_FALSE(runs(s8(17), 8));
    EXPECT_TRUE(runs(problem(QK_FORMAT_LUT8, QK_FORMAT_F32, 64, 24, 128, 17)));
    EXPECT_FALSE(runs(u4(17)));
    mock::Machine small;
    small.shared_bytes = 226 * 1024;
    mock::reset(small);
    EXPECT_FALSE(runs(s8(17)));
}

// The codes, the type of x and the size decide which instance runs; its sums are right.
TEST_F(CudaGemmHost, CallsTheInstanceOfTheCase) {
    const struct {
        qk_format format;
        Codes codes;
    } rows[] = {{QK_FORMAT_U4_AFFINE, Codes::kU4}, {QK_FORMAT_NF4, Codes::kLut4},
                {QK_FORMAT_FP4_BNB, Codes::kLut4}, {QK_FORMAT_S8, Codes::kS8},
                {QK_FORMAT_E4M3, Codes::kE4m3},    {QK_FORMAT_LUT8, Codes::kLut8}};
    for (const auto &row : rows) {
        for (const qk_format x : {QK_FORMAT_F16, QK_FORMAT_BF16}) {
            SCOPED_TRACE(testing::Message() << "format " << row.format);
            const bool bytes = qk::find_format(row.format)->bits == 8;
            Rng rng(72);
            Case c(bytes ? bytes_problem(row.format, QK_FORMAT_F32, 64, 48, 128, x, 18, rng)
                         : problem(row.format, QK_FORMAT_F32, 64, 48, 128, 18, x),
                   !bytes);
            const auto &kernel = bytes ? qk::cuda::kLinearSm90Gemm8Bit : qk::cuda::kLinearSm90Gemm;
            const auto y = run_on_device(kernel, c.p, c.w, 0, c.p.m);
            EXPECT_EQ(state.last_codes, row.codes);
            EXPECT_EQ(state.last_x, x);
            expect_within_bound(c.p, y, 4);
        }
    }
}

TEST_F(CudaGemmHost, DescribesPlanes) {
    Case c(problem(QK_FORMAT_NF4, QK_FORMAT_LUT8, 128, 40, 272, 20), true);
    const qk::LinearArgs args = c.args();
    const GemmPlan plan = {qk::cuda::GemmCut::k128x128, 3, 0};
    GemmProblem p = qk::cuda::problem_of(args, plan);
    EXPECT_EQ(p.m, 20);
    EXPECT_EQ(p.y_pitch, 40);
    EXPECT_EQ(p.row_tiles, 3);
    EXPECT_EQ(p.tiles, 5);
    EXPECT_EQ(p.group_shift, 1);
    EXPECT_EQ(p.second_shift, 4);
    EXPECT_EQ(p.split, 3);
    EXPECT_EQ(p.cut_rows, 0);
    EXPECT_EQ(p.bias, nullptr);
    EXPECT_EQ(qk::cuda::problem_of(args, {qk::cuda::GemmCut::k128x128, 1, 7}).split, 2);
    EXPECT_EQ(qk::cuda::problem_of(args, {qk::cuda::GemmCut::k128x128, 1, 7}).cut_rows, 7);
    qk::ErrorText error = {};
    ASSERT_EQ(qk::cuda::describe_planes(args, 8, 1, 128, &error, &p), QK_OK) << error.text;
    // Rows of tiles of 5 tiles, each 4 lines of 128 bytes.
    EXPECT_EQ(p.code_map.data, args.w.data);
    EXPECT_EQ(p.code_map.type, CU_TENSOR_MAP_DATA_TYPE_UINT32);
    EXPECT_EQ(std::vector<uint64_t>(p.code_map.sizes, p.code_map.sizes + 3),
              (std::vector<uint64_t>{32, 20, 3}));
    EXPECT_EQ(std::vector<uint64_t>(p.code_map.strides, p.code_map.strides + 2),
              (std::vector<uint64_t>{128, 2560}));
    EXPECT_EQ(std::vector<uint32_t>(p.code_map.box, p.code_map.box + 3),
              (std::vector<uint32_t>{32, 4, 8}));
    EXPECT_EQ(p.x_map.data, args.x.data);
    EXPECT_EQ(p.x_map.type, CU_TENSOR_MAP_DATA_TYPE_UINT16);
    EXPECT_EQ(std::vector<uint64_t>(p.x_map.sizes, p.x_map.sizes + 2),
              (std::vector<uint64_t>{272, 20}));
    EXPECT_EQ(p.x_map.strides[0], 544u);
    EXPECT_EQ(std::vector<uint32_t>(p.x_map.box, p.x_map.box + 2),
              (std::vector<uint32_t>{64, 128}));
    EXPECT_EQ(p.x_map.swizzle, CU_TENSOR_MAP_SWIZZLE_128B);
}

TEST_F(CudaGemmHost, DescribesBytes) {
    Case c(problem(QK_FORMAT_S8, QK_FORMAT_F32, 64, 24, 192, 20), false);
    const qk::LinearArgs args = c.args();
    for (const int32_t columns : {64, 128}) {
        GemmProblem p = qk::cuda::problem_of(args, {qk::cuda::GemmCut::k128x128, 1, 0});
        qk::ErrorText error = {};
        ASSERT_EQ(qk::cuda::describe_bytes(args, columns, 256, 64, &error, &p), QK_OK);
        EXPECT_EQ(p.code_map.data, args.w.data);
        EXPECT_EQ(p.code_map.type, CU_TENSOR_MAP_DATA_TYPE_UINT8);
        EXPECT_EQ(std::vector<uint64_t>(p.code_map.sizes, p.code_map.sizes + 2),
                  (std::vector<uint64_t>{192, 24}));
        EXPECT_EQ(p.code_map.strides[0], 192u);
        EXPECT_EQ(p.code_map.box[0], uint32_t(columns));
        EXPECT_EQ(p.code_map.box[1], 256u);
        EXPECT_EQ(p.code_map.swizzle,
                  columns == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B);
        EXPECT_EQ(p.x_map.sizes[1], 20u);
        EXPECT_EQ(p.x_map.box[1], 64u);
    }
}

// A thread whose first call this is has no context of the driver's yet.
TEST_F(CudaGemmHost, DescribesOnANewThread) {
    const Case tiles(u4(17), true),
        bytes(problem(QK_FORMAT_S8, QK_FORMAT_F32, 64, 24, 128, 17), false);
    for (const auto &[kernel, c] : {std::pair{&qk::cuda::kLinearSm90Gemm, &tiles},
                                    {&qk::cuda::kLinearSm90Gemm8Bit, &bytes}}) {
        std::thread([kernel = kernel, c = c] {
            qk::ErrorText error = {};
            EXPECT_FALSE(mock::thread_has_context());
            EXPECT_EQ(kernel->run(c->args(), device_launch(&error)), QK_OK) << error.text;
        }).join();
    }
}

TEST_F(CudaGemmHost, ADriverWithoutMapsIsSaid) {
    Case tiles(u4(17), true), bytes(problem(QK_FORMAT_S8, QK_FORMAT_F32, 64, 24, 128, 17), false);
    const auto run = [](const qk::Kernel<qk::LinearArgs> &kernel, const Case &c) {
        qk::ErrorText error = {};
        const qk::Status status = kernel.run(c.args(), device_launch(&error));
        EXPECT_NE(std::string(error.text).find("tensor map"), std::string::npos);
        return status;
    };
    state.maps = false;
    EXPECT_EQ(run(qk::cuda::kLinearSm90Gemm, tiles), QK_ERROR_UNSUPPORTED);
    EXPECT_EQ(run(qk::cuda::kLinearSm90Gemm8Bit, bytes), QK_ERROR_UNSUPPORTED);
    state.maps = true;
    state.refuses_maps = true;
    EXPECT_EQ(run(qk::cuda::kLinearSm90Gemm, tiles), QK_ERROR_INTERNAL);
    EXPECT_EQ(run(qk::cuda::kLinearSm90Gemm8Bit, bytes), QK_ERROR_INTERNAL);
    EXPECT_EQ(state.tile_products, 0);
}

}  // namespace
}  // namespace cuda_test
