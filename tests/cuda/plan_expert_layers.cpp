// Which gate and up and down of a layer of experts run with one list, which a call a product takes
// a tenth longer than (sm90/gemm/experts_plan.hpp): no GPU needed.
#include <gtest/gtest.h>

#include "cuda/linear/sm90/gemm/experts_plan.hpp"

namespace {

constexpr size_t kWorkspace = size_t{256} << 20;

struct Model {
    const char *name;
    int64_t experts, hidden, inner, slots;
};
constexpr Model kQwen3 = {"Qwen3-30B-A3B", 128, 2048, 768, 8};
constexpr Model kGptOss = {"gpt-oss-120b", 128, 2880, 2880, 4};
constexpr Model kMixtral = {"Mixtral-8x7B", 8, 4096, 14336, 2};
constexpr Model kDeepSeek = {"DeepSeek-V3", 256, 7168, 2048, 8};

// A layer at addresses that nobody reads.
struct Layer {
    qk::Experts experts[2] = {};
    qk::LinearArgs up = {}, down = {};

    Layer(const Model &m, int64_t tokens, bool microscaled = false) {
        const qk::Format *const f16 = qk::find_format(QK_FORMAT_F16);
        for (qk::Experts &e : experts) {
            e.expert = address(1);
            e.tokens = tokens, e.slots = m.slots, e.count = m.experts;
        }
        experts[0].activation = QK_ACTIVATION_SILU;
        experts[1].x_by_slot = experts[1].summed = true;
        up.x = {f16, tokens, m.hidden, address(2)};
        up.y = {f16, tokens * m.slots, m.inner, address(3)};
        down.x = {f16, tokens * m.slots, m.inner, address(3)};
        down.y = {f16, tokens, m.hidden, address(4)};
        set_weight(m.experts * 2 * m.inner, m.hidden, microscaled, &up.w);
        set_weight(m.experts * m.hidden, m.inner, microscaled, &down.w);
        up.experts = &experts[0], down.experts = &experts[1];
    }
    Layer(const Layer &) = delete;
    Layer &operator=(const Layer &) = delete;

    static void *address(size_t number) { return reinterpret_cast<void *>(number << 40); }
    static void set_weight(int64_t n, int64_t k, bool microscaled, qk::Weight *w) {
        w->format = qk::find_format(microscaled ? QK_FORMAT_FP4_E2M1 : QK_FORMAT_U4_AFFINE);
        w->scale.format = qk::find_format(microscaled ? QK_FORMAT_E8M0 : QK_FORMAT_F16);
        w->layout = qk::find_layout(microscaled ? qk::kLayoutTilesPairs : qk::kLayoutTiles, 4);
        qk::make_geometry(n, k, microscaled ? 32 : 64, false, &w->geometry);
    }
    qk::cuda::ExpertsLayer layer() const { return qk::cuda::gemm_layer_of(up, down); }
    bool runs_as_one(size_t workspace = kWorkspace) const {
        return qk::cuda::runs_as_one(layer(), workspace);
    }
};

// From six slots an expert on, in items of 32, 64 and more rows, with z and x of either size.
TEST(PlanExpertLayers, ModelsHaveOneList) {
    for (const Model &m : {kQwen3, kGptOss, kMixtral, kDeepSeek}) {
        for (const int64_t tokens : {256, 512, 1024}) {
            for (const bool microscaled : {false, true}) {
                EXPECT_TRUE(Layer(m, tokens, microscaled).runs_as_one())
                    << m.name << ", " << tokens << " tokens";
            }
        }
    }
    EXPECT_TRUE(Layer(kQwen3, 96).runs_as_one());
    EXPECT_TRUE(Layer(kQwen3, 4096).runs_as_one());
}

// Where rows of x come in passes, or nothing has room for both.
TEST(PlanExpertLayers, ListsOfTheirOwn) {
    EXPECT_FALSE(Layer(kDeepSeek, 4096).runs_as_one());
    const Layer layer(kQwen3, 1024);
    const size_t end = size_t(layer.layer().end());
    EXPECT_TRUE(layer.runs_as_one(end));
    EXPECT_FALSE(layer.runs_as_one(end - 1));
}

// Passes begin with a block of rows of w; z takes the place of gate and up's x.
TEST(PlanExpertLayers, PassesAreWholeBlocks) {
    for (const Model &m : {kQwen3, kGptOss, kMixtral, kDeepSeek}) {
        for (int64_t tokens = 64; tokens <= 8192; tokens += tokens < 1024 ? 32 : 512) {
            for (const bool microscaled : {false, true}) {
                const Layer layer(m, tokens, microscaled);
                const qk::cuda::ExpertsLayer both = layer.layer();
                const qk::cuda::ExpertsListPlan alone = qk::cuda::gemm_list_of(layer.down);
                for (const auto &[item_rows, columns] :
                     {std::pair(alone.item_rows, alone.columns),
                      std::pair(both.of_down.item_rows, both.of_down.columns)}) {
                    EXPECT_TRUE(columns == m.hidden ||
                                columns % qk::cuda::gemm_block_rows(item_rows) == 0)
                        << m.name << ", " << tokens << " tokens, " << columns << " columns";
                }
                EXPECT_GE(both.of_down.columns, alone.columns);
            }
        }
    }
    EXPECT_EQ(Layer(kQwen3, 4096).layer().of_down.columns, 1024);
    EXPECT_EQ(qk::cuda::gemm_list_of(Layer(kQwen3, 4096).down).columns, 512);
}

// x of down is the y of gate and up, and no other.
TEST(PlanExpertLayers, OneRoutingAndOneTensorBetween) {
    const auto with = [](auto change) {
        Layer layer(kQwen3, 256);
        EXPECT_TRUE(layer.runs_as_one());
        change(layer);
        return layer.runs_as_one();
    };
    EXPECT_FALSE(with([](Layer &l) { l.experts[1].expert = Layer::address(5); }));
    EXPECT_FALSE(with([](Layer &l) { l.experts[1].x_by_slot = false; }));
    EXPECT_FALSE(with([](Layer &l) { l.experts[0].summed = true; }));
    EXPECT_FALSE(with([](Layer &l) { l.experts[1].count = 64; }));
    EXPECT_FALSE(with([](Layer &l) { l.down.x.data = Layer::address(5); }));
    EXPECT_FALSE(with([](Layer &l) { l.down.x.stride = 1024; }));
    EXPECT_FALSE(with([](Layer &l) { l.up.accumulate = true; }));
    EXPECT_FALSE(with([](Layer &l) { l.up.y.stride = l.down.x.stride = 772; }));
    EXPECT_FALSE(with([](Layer &l) { l.up.y.format = qk::find_format(QK_FORMAT_F32); }));
    // Their gathered x has its columns in other sequences.
    EXPECT_FALSE(with([](Layer &l) {
        Layer::set_weight(kQwen3.experts * kQwen3.hidden, kQwen3.inner, true, &l.down.w);
    }));
}

}  // namespace
