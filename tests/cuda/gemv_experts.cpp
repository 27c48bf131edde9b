// Products with experts by the kernel for one row of x: a slot has the bits of that kernel's own
// product of its row with its expert, and what becomes of slots is what docs/formats.md says.
#include "cuda/experts_case.hpp"

namespace cuda_test {
namespace {

using qk::cuda::kLinearSm90ExpertRows;
using qk::cuda::kLinearSm90Experts;
using qk::cuda::kLinearSm90Gemv;

// Of one row of x, all experts' rows of w.
std::vector<uint8_t> one_row(const Case &c, const DeviceWeight &w, int64_t x_row) {
    const size_t x_bytes = size_t(c.k() * 2);
    const DeviceBuffer x(std::vector<uint8_t>(c.x.begin() + long(size_t(x_row) * x_bytes),
                                              c.x.begin() + long(size_t(x_row + 1) * x_bytes)));
    const DeviceBuffer bias(c.bias), y(std::vector<uint8_t>(size_t(c.w.shape.rows * 2), 0xff));
    const qk::Dense b = {qk::find_format(QK_FORMAT_F32), 1, c.w.shape.rows, bias.data()};
    qk::LinearArgs args = {};
    args.x = {qk::find_format(c.type), 1, c.k(), x.data()};
    args.w = w.view();
    args.bias = c.biased ? &b : nullptr;
    args.y = {qk::find_format(c.type), 1, c.w.shape.rows, y.data()};
    qk::ErrorText error = {};
    EXPECT_TRUE(kLinearSm90Gemv.can_run(args, device_0()));
    EXPECT_EQ(kLinearSm90Gemv.run(args, device_launch(&error)), QK_OK) << error.text;
    return y.read();
}

void expect_own_products(const Case &c, const DeviceWeight &w, const std::vector<float> &z) {
    for (int64_t slot = 0; slot < c.tokens * c.slots; ++slot) {
        const int32_t e = expert_at(c, slot);
        const auto first = z.begin() + long(slot * c.rows());
        const std::vector<float> row(first, first + long(c.rows()));
        std::vector<uint8_t> expected;
        if (e < 0) expected = rounded(c.type, std::vector<float>(row.size(), 0));
        if (e >= c.count) expected = rounded(c.type, std::vector<float>(row.size(), NAN));
        if (expected.empty()) {
            const std::vector<uint8_t> all = one_row(c, w, c.by_slot ? slot : slot / c.slots);
            const auto from = all.begin() + long(e * c.rows() * 2);
            expected.assign(from, from + long(c.rows() * 2));
        }
        ASSERT_TRUE(same_values(c.type, expected, rounded(c.type, row))) << "slot " << slot;
    }
}

void check(const Kind &kind, int64_t count, int64_t rows, int64_t k, int at, Rng &rng) {
    const qk_format type = at % 2 == 0 ? QK_FORMAT_F16 : QK_FORMAT_BF16;
    Case c = make_case(desc_of(kind, count * rows, k), count, type, at, rng);
    const bool halves = c.activation != QK_ACTIVATION_NONE && !c.interleaved;
    if (halves && rows % 32 != 0) c.interleaved = true;
    SCOPED_TRACE(c.title());
    const DeviceWeight w(packed_on_host(c.w));
    const std::vector<float> z = slots_of(c, w, kLinearSm90Experts);
    ASSERT_NO_FATAL_FAILURE(expect_own_products(c, w, z));
    const std::vector<uint8_t> expected = made_of(c, z);
    ASSERT_TRUE(same_values(c.y_type, expected, on_device(c, w, kLinearSm90Experts)));
    ASSERT_TRUE(same_values(c.y_type, expected, on_device(c, w, kLinearSm90ExpertRows)))
        << "rows together";
}

// Units, rows of tiles and blocks that end everywhere, 1 to 8 slots.
TEST(CudaGemvExperts, SlotsAreProductsOfOneRow) {
    QK_NEEDS_DEVICE();
    Rng rng(42);
    const int64_t shapes[][3] = {{1, 16, 64},    {3, 64, 512},  {5, 32, 1040},  {4, 96, 2048},
                                 {2, 544, 8720}, {16, 48, 720}, {3, 1536, 256}, {7, 2080, 80}};
    int at = 0;
    for (const Kind &kind : kPacked) {
        for (const auto &[count, rows, k] : shapes) {
            for (int turn = 0; turn < 5; ++turn, ++at) {
                ASSERT_NO_FATAL_FAILURE(check(kind, count, rows, k, at, rng));
            }
        }
    }
}

// Experts with many rows, none and one, as a batch has them, in the bits of each row alone; sums of
// more tokens than are kept at once; rows of which four, not eight, fit a block; more slots than
// are counted at once.
TEST(CudaGemvExperts, ManyTokens) {
    QK_NEEDS_DEVICE();
    Rng rng(43);
    const int64_t shapes[][4] = {{300, 6, 96, 512},
                                 {70, 3, 64, 1040},
                                 {150, 4, 16384, 64},
                                 {60, 3, 32, 14336},
                                 {2100, 5, 32, 64}};
    int at = 0;
    for (const auto &[tokens, count, rows, k] : shapes) {
        for (int turn = 0; turn < 4; ++turn, ++at) {
            Case c = make_case(desc_of(kPacked[at % 7], count * rows, k), count, QK_FORMAT_BF16, at,
                               rng);
            c.tokens = tokens, c.slots = rows > 1000 ? 8 : 2;
            c.summed = rows > 1000 || at % 2 == 0;
            c.weighted = c.summed;
            if (c.activation != QK_ACTIVATION_NONE) c.interleaved = at % 2 == 0;
            c.x = random_floats(c.type, c.x_rows() * k, rng);
            c.y = random_floats(c.y_type, c.y_rows() * c.columns(), rng);
            c.expert = bytes_of(routing(tokens * c.slots, count, rng));
            c.weight = random_floats(QK_FORMAT_F32, tokens * c.slots, rng);
            SCOPED_TRACE(c.title());
            const DeviceWeight w(packed_on_host(c.w));
            ASSERT_TRUE(same_values(c.y_type, on_device(c, w, kLinearSm90Experts),
                                    on_device(c, w, kLinearSm90ExpertRows)));
        }
    }
}

// A graph reads the routing when it runs: the same one, replayed with other ids, gives what a call
// with those gives.
TEST(CudaGemvExperts, GraphsTakeAnotherRouting) {
    QK_NEEDS_DEVICE();
    Rng rng(44);
    for (const auto *kernel : {&kLinearSm90Experts, &kLinearSm90ExpertRows,
                               &qk::cuda::kLinearSm90ExpertGemm, &qk::cuda::kLinearExperts}) {
        SCOPED_TRACE(kernel->name);
        Case c = make_case(desc_of(kPacked[0], 4 * 96, 512), 4, QK_FORMAT_F16, 1, rng);
        const DeviceWeight w(packed_on_host(c.w));
        const DeviceBuffer x(c.x), bias(c.bias), y(c.y), expert(c.expert), weight(c.weight);
        const Arguments a(c, w.view(),
                          {x.data(), bias.data(), y.data(), expert.data(), weight.data()});
        qk::ErrorText error = {};
        qk::Launch launch = device_launch(&error);
        const DeviceBuffer workspace =
            give_workspace(qk::workspace_of(*kernel, a.args, launch.device), &launch);
        cudaStream_t stream;
        cudaGraph_t graph;
        cudaGraphExec_t executable;
        ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
        launch.stream = stream;
        ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        EXPECT_EQ(kernel->run(a.args, launch), QK_OK) << error.text;
        ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
        for (int replay = 0; replay < 6; ++replay) {
            c.expert = bytes_of(routing(c.tokens * c.slots, c.count, rng));
            ASSERT_EQ(
                cudaMemcpy(expert.data(), c.expert.data(), c.expert.size(), cudaMemcpyHostToDevice),
                cudaSuccess);
            ASSERT_EQ(cudaMemcpy(y.data(), c.y.data(), c.y.size(), cudaMemcpyHostToDevice),
                      cudaSuccess);
            ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
            ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
            ASSERT_TRUE(same_values(c.y_type, on_device(c, w, *kernel), y.read())) << replay;
        }
        EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
        EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
        EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    }
}

}  // namespace
}  // namespace cuda_test
