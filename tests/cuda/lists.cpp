// Lists of products through qk.h, some of which share a launch.
#include "cuda/device_tensors.hpp"
#include "cuda/harness.hpp"

namespace cuda_test {
namespace {

// Layers in one list, as a model calls them but for what is between its products: siblings wait for
// what is in front of them, and what follows waits for all of them.
#if defined(QK_CUDA_SIMULATED)
constexpr int kLayers = 1, kRuns = 1;
#else
constexpr int kLayers = 4, kRuns = 20;
#endif

class CudaLists : public DeviceTensors {
  protected:
    qk_tensor *weight(int64_t n, int64_t k, Rng &rng, qk_format format = QK_FORMAT_U4_AFFINE,
                      int32_t group = 64) {
        qk_tensor_desc desc = weight_desc(format, QK_FORMAT_F16, QK_LAYOUT_ROW, group, n, k);
        const HostWeight host = random_weight(desc, rng);
        qk_tensor *const stored = make(desc);
        desc.layout = QK_LAYOUT_PACKED;
        qk_tensor *const packed = make(desc);
        upload(stored, QK_PLANE_DATA, host.planes[QK_PLANE_DATA]);
        if (format == QK_FORMAT_U4_AFFINE) {
            upload(stored, QK_PLANE_ZERO, host.planes[QK_PLANE_ZERO]);
        }
        // Small enough that a chain of products stays finite.
        std::vector<uint8_t> scales(host.planes[QK_PLANE_SCALE].size());
        for (size_t i = 0; i < scales.size(); i += 2) {
            const float scale = (0.7f + 0.1f * float(rng() % 6)) / (6.5f * std::sqrt(float(k)));
            const uint16_t bits = qk::f16_from_f32(scale);
            memcpy(&scales[i], &bits, 2);
        }
        upload(stored, QK_PLANE_SCALE, scales);
        EXPECT_EQ(qk_repack(context_, stored, packed), QK_OK) << qk_context_error(context_);
        return packed;
    }
    void add(qk_tensor *x, qk_tensor *y, int64_t n, int64_t k, Rng &rng) {
        products_.push_back({sizeof(qk_product), 0, x, weight(n, k, rng), nullptr, y, nullptr});
    }

    // y of every product.
    std::vector<std::vector<uint8_t>> read_all(const std::vector<qk_product> &products) {
        std::vector<std::vector<uint8_t>> all;
        for (const qk_product &p : products) {
            qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
            EXPECT_EQ(qk_tensor_describe(p.y, &desc), QK_OK);
            all.push_back(read(p.y, desc.shape[0] * desc.shape[1]));
        }
        return all;
    }

    std::vector<qk_product> products_;
};

// Products without rows among siblings: no launch, and the others are as they were.
TEST_F(CudaLists, ProductsWithoutRowsAreLeftOut) {
    QK_NEEDS_DEVICE();
    Rng rng(35);
    open(0);
    constexpr int64_t n = 128, k = 512;
    qk_tensor *const x = dense(1, k), *const none = dense(0, k), *const empty = dense(0, n);
    qk_tensor *const y[] = {dense(1, n), dense(1, n)};
    for (qk_tensor *const to : y) add(x, to, n, k, rng);
    upload(x, QK_PLANE_DATA, random_floats(QK_FORMAT_F16, k, rng));
    ASSERT_EQ(qk_multiply(context_, products_.data(), 2), QK_OK) << qk_context_error(context_);
    const auto expected = read_all(products_);
    for (qk_tensor *const to : y) upload(to, QK_PLANE_DATA, std::vector<uint8_t>(n * 2));
    qk_product nothing = products_[0];
    nothing.x = none, nothing.y = empty;
    const std::vector<qk_product> list = {nothing, products_[0], nothing, products_[1], nothing};
    ASSERT_EQ(qk_multiply(context_, list.data(), 5), QK_OK) << qk_context_error(context_);
    EXPECT_EQ(read_all(products_), expected);
    EXPECT_EQ(qk_linear(context_, none, nothing.w, nullptr, empty), QK_OK);
    qk_plan plan = QK_PLAN_INIT;
    ASSERT_EQ(qk_explain(context_, &nothing, &plan), QK_OK);
    EXPECT_STREQ(plan.kernel, "nothing");
    EXPECT_EQ(qk_tensor_download(context_, empty, QK_PLANE_DATA, nullptr, 0), QK_OK);
    EXPECT_EQ(qk_context_synchronize(context_), QK_OK);
}

TEST_F(CudaLists, SiblingsAreInOrder) {
    QK_NEEDS_DEVICE();
    Rng rng(32);
    open(0);
    constexpr int64_t kHidden = 512, kKeys = 128, kMiddle = 1408;
    qk_tensor *const hidden = dense(1, kHidden), *const q = dense(1, kHidden),
                     *const keys = dense(1, kKeys), *const values = dense(1, kKeys),
                     *const o = dense(1, kHidden), *const gate = dense(1, kMiddle),
                     *const up = dense(1, kMiddle);
    for (int layer = 0; layer < kLayers; ++layer) {
        add(hidden, q, kHidden, kHidden, rng);
        add(hidden, keys, kKeys, kHidden, rng);
        add(hidden, values, kKeys, kHidden, rng);
        add(q, o, kHidden, kHidden, rng);
        add(o, gate, kMiddle, kHidden, rng);
        add(o, up, kMiddle, kHidden, rng);
        add(layer % 2 == 0 ? gate : up, hidden, kHidden, kMiddle, rng);
    }
    const std::vector<uint8_t> first = random_floats(QK_FORMAT_F16, kHidden, rng);
    const auto all = [&] {
        std::vector<std::vector<uint8_t>> read_all;
        for (qk_tensor *const tensor : {hidden, q, keys, values, o, gate, up}) {
            const bool middle = tensor == gate || tensor == up,
                       small = tensor == keys || tensor == values;
            read_all.push_back(read(tensor, middle ? kMiddle : small ? kKeys : kHidden));
        }
        return read_all;
    };
    upload(hidden, QK_PLANE_DATA, first);
    for (const qk_product &p : products_) {
        ASSERT_EQ(qk_linear(context_, p.x, p.w, nullptr, p.y), QK_OK) << qk_context_error(context_);
        ASSERT_EQ(qk_context_synchronize(context_), QK_OK);
    }
    const auto expected = all();
    for (int i = 0; i < kRuns; ++i) {
        upload(hidden, QK_PLANE_DATA, first);
        ASSERT_EQ(qk_multiply(context_, products_.data(), int32_t(products_.size())), QK_OK)
            << qk_context_error(context_);
        ASSERT_EQ(all(), expected) << "run " << i;
    }
}

// Lists of one x, of which some products are of another kind.
struct Member {
    qk_format format = QK_FORMAT_U4_AFFINE;
    int32_t group = 64;
};
struct OneX {
    const char *name;
    std::vector<Member> members;
    int64_t m;
    size_t fewer;  // launches than products, where one row takes "sm90 gemv"
};
const Member kOther = {QK_FORMAT_NF4, 64};
void PrintTo(const OneX &list, std::ostream *out) { *out << list.name; }
const OneX kOneX[] = {{"three", {{}, {}, {}}, 1, 2},
                      {"kinds_in_runs", {{}, {}, kOther, kOther, kOther, {}}, 1, 3},
                      {"kinds_by_turns", {{}, kOther, {}, {QK_FORMAT_U4_AFFINE, 32}, {}}, 1, 0},
                      {"seven", {{}, {}, {}, {}, {}, {}, {}}, 1, 5},
                      {"two_rows", {{}, {}, kOther}, 2, 0},
                      {"many_rows", {{}, {}}, 40, 0}};

class CudaListsOfOneX : public CudaLists, public ::testing::WithParamInterface<OneX> {
  protected:
    static constexpr int64_t kK = 512;

    void make_products(Rng &rng) {
        const OneX &list = GetParam();
        qk_tensor *const x = dense(list.m, kK);
        upload(x, QK_PLANE_DATA, random_floats(QK_FORMAT_F16, list.m * kK, rng));
        int64_t n = 136;
        for (const Member &member : list.members) {
            products_.push_back({sizeof(qk_product), 0, x,
                                 weight(n, kK, rng, member.format, member.group), nullptr,
                                 dense(list.m, n), nullptr});
            n += 24;
        }
    }
    void poison() {
        for (const qk_product &p : products_) {
            qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
            EXPECT_EQ(qk_tensor_describe(p.y, &desc), QK_OK);
            const size_t bytes = size_t(desc.shape[0] * desc.shape[1] * 2);
            upload(p.y, QK_PLANE_DATA, std::vector<uint8_t>(bytes, 0xff));
        }
    }
    void run_alone() {
        for (const qk_product &p : products_) {
            ASSERT_EQ(qk_linear(context_, p.x, p.w, nullptr, p.y), QK_OK);
        }
    }
    void run_list() {
        ASSERT_EQ(qk_multiply(context_, products_.data(), int32_t(products_.size())), QK_OK)
            << qk_context_error(context_);
    }
};

TEST_P(CudaListsOfOneX, HaveTheBitsOfEachAlone) {
    QK_NEEDS_DEVICE();
    Rng rng(33);
    open(1 << 20);
    make_products(rng);
    run_alone();
    const auto expected = read_all(products_);
    poison();
    run_list();
    EXPECT_EQ(read_all(products_), expected);
}

TEST_P(CudaListsOfOneX, AreEachToldToATrace) {
    QK_NEEDS_DEVICE();
    Rng rng(35);
    std::vector<int64_t> rows_of_w;
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.device = QK_DEVICE_CUDA;
    options.workspace_bytes = 1 << 20;
    options.trace = [](void *user, const qk_trace *call) {
        if (std::string(call->operation) != "multiply") return;
        static_cast<std::vector<int64_t> *>(user)->push_back(call->shape[1]);
        EXPECT_EQ(call->status, QK_OK);
        EXPECT_GE(call->seconds, 0);
    };
    options.trace_user = &rows_of_w;
    ASSERT_EQ(qk_context_create(&options, &context_), QK_OK);
    make_products(rng);
    run_list();
    ASSERT_EQ(rows_of_w.size(), products_.size());
    for (size_t i = 0; i < rows_of_w.size(); ++i) EXPECT_EQ(rows_of_w[i], 136 + 24 * int64_t(i));
}

#if !defined(QK_CUDA_SIMULATED)
// By the nodes of captured graphs.
TEST_P(CudaListsOfOneX, TakeALaunchWhereTheyCan) {
    QK_NEEDS_DEVICE();
    Rng rng(34);
    open(1 << 20);
    make_products(rng);
    run_alone();
    const auto expected = read_all(products_);
    qk_plan plan = {};
    plan.struct_size = sizeof plan;
    ASSERT_EQ(qk_explain(context_, &products_[0], &plan), QK_OK);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(qk_context_set_stream(context_, stream), QK_OK);
    size_t nodes[2] = {};
    for (const bool list : {false, true}) {
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t executable = nullptr;
        poison();
        ASSERT_EQ(qk_context_synchronize(context_), QK_OK);
        ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        list ? run_list() : run_alone();
        ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes[list]), cudaSuccess);
        ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
        ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
        ASSERT_EQ(qk_context_synchronize(context_), QK_OK);
        EXPECT_EQ(read_all(products_), expected) << (list ? "list" : "alone");
        cudaGraphExecDestroy(executable);
        cudaGraphDestroy(graph);
    }
    const bool joins = std::string(plan.kernel) == "sm90 gemv";
    EXPECT_EQ(nodes[1], nodes[0] - (joins ? GetParam().fewer : 0)) << plan.kernel;
    ASSERT_EQ(qk_context_set_stream(context_, nullptr), QK_OK);
    cudaStreamDestroy(stream);
}
#endif

INSTANTIATE_TEST_SUITE_P(Kinds, CudaListsOfOneX, ::testing::ValuesIn(kOneX),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace cuda_test
