// Lists of products: the bits of one call each, in order; structs of other headers; and that
// qk_explain says what runs.
#include <gtest/gtest.h>

#include <cstring>

#include "api/support.hpp"

namespace api {
namespace {

// y1 = x . transpose(w1), y2 = y1 . transpose(w2) + bias: a chain.
class Chain : public ::testing::Test {
  protected:
    static constexpr int64_t m = 3, k = 96, n1 = 64, n2 = 40;

    Chain() {
        x_plane.fill_dense(QK_FORMAT_F32, 1);
        w1_plane.fill_dense(QK_FORMAT_F32, 2);
        w2_plane.fill_dense(QK_FORMAT_F32, 3);
        bias_plane.fill_dense(QK_FORMAT_F32, 4);
        context = make_context(allocator, 2);
        x = wrap(context, x_desc, x_plane);
        y1 = wrap(context, y1_desc, y1_plane);
        y2 = wrap(context, y2_desc, y2_plane);
        bias = wrap(context, bias_desc, bias_plane);
        qk_tensor *const d1 = wrap(context, w1_desc, w1_plane);
        qk_tensor *const d2 = wrap(context, w2_desc, w2_plane);
        w1 = create(context, weight_desc(QK_FORMAT_NF4, QK_LAYOUT_PACKED, n1, k, 32));
        w2 = create(context, weight_desc(QK_FORMAT_U4_AFFINE, QK_LAYOUT_ROW, n2, n1, 32));
        EXPECT_EQ(qk_quantize(context, d2, w2), QK_OK) << qk_context_error(context);
        qk_tensor *const row =
            create(context, weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, n1, k, 32));
        EXPECT_EQ(qk_quantize(context, d1, row), QK_OK) << qk_context_error(context);
        EXPECT_EQ(qk_repack(context, row, w1), QK_OK) << qk_context_error(context);
        for (qk_tensor *const tensor : {d1, d2, row}) qk_tensor_destroy(tensor);
        products[0] = {sizeof(qk_product), 0, x, w1, nullptr, y1, nullptr};
        products[1] = {sizeof(qk_product), 0, y1, w2, bias, y2, nullptr};
    }
    ~Chain() override {
        for (qk_tensor *const tensor : {x, w1, w2, bias, y1, y2}) qk_tensor_destroy(tensor);
        qk_context_destroy(context);
        EXPECT_EQ(allocator.live(), 0);
    }
    // What qk_linear makes of the chain.
    std::vector<unsigned char> expected() {
        EXPECT_EQ(qk_linear(context, x, w1, nullptr, y1), QK_OK);
        EXPECT_EQ(qk_linear(context, y1, w2, bias, y2), QK_OK);
        std::vector<unsigned char> bytes = y2_plane.bytes[0];
        clear();
        return bytes;
    }
    void clear() {
        for (Planes *const planes : {&y1_plane, &y2_plane}) {
            std::fill(planes->bytes[0].begin(), planes->bytes[0].end(),
                      static_cast<unsigned char>(0xa5));
        }
    }

    Allocator allocator;
    qk_tensor_desc x_desc = dense_desc(QK_FORMAT_F32, {m, k});
    qk_tensor_desc w1_desc = dense_desc(QK_FORMAT_F32, {n1, k});
    qk_tensor_desc w2_desc = dense_desc(QK_FORMAT_F32, {n2, n1});
    qk_tensor_desc bias_desc = dense_desc(QK_FORMAT_F32, {n2});
    qk_tensor_desc y1_desc = dense_desc(QK_FORMAT_F32, {m, n1});
    qk_tensor_desc y2_desc = dense_desc(QK_FORMAT_F32, {m, n2});
    Planes x_plane{x_desc}, w1_plane{w1_desc}, w2_plane{w2_desc}, bias_plane{bias_desc},
        y1_plane{y1_desc}, y2_plane{y2_desc};
    qk_context *context = nullptr;
    qk_tensor *x, *w1, *w2, *bias, *y1, *y2;
    qk_product products[2];
};

TEST_F(Chain, RunsInOrder) {
    const auto bytes = expected();
    ASSERT_EQ(qk_multiply(context, products, 2), QK_OK) << qk_context_error(context);
    EXPECT_EQ(y2_plane.bytes[0], bytes) << "the y of one is the x of the next";
    clear();
    ASSERT_EQ(qk_multiply(context, products, 1), QK_OK);
    ASSERT_EQ(qk_multiply(context, products + 1, 1), QK_OK);
    EXPECT_EQ(y2_plane.bytes[0], bytes);
}

// Longer than what is kept from the check to the run.
TEST_F(Chain, LongListsRunToTheirEnd) {
    std::vector<qk_product> list;
    for (int i = 0; i < 40; ++i) list.insert(list.end(), products, products + 2);
    const auto bytes = expected();
    ASSERT_EQ(qk_multiply(context, list.data(), 80), QK_OK) << qk_context_error(context);
    EXPECT_EQ(y2_plane.bytes[0], bytes);
}

TEST_F(Chain, NoProductsAreNone) {
    clear();
    const auto before = y1_plane.bytes[0];
    EXPECT_EQ(qk_multiply(context, nullptr, 0), QK_OK);
    EXPECT_EQ(qk_multiply(context, products, 0), QK_OK);
    EXPECT_EQ(y1_plane.bytes[0], before);
    size_t bytes = 77;
    EXPECT_EQ(qk_multiply_workspace(context, nullptr, 0, &bytes), QK_OK);
    EXPECT_EQ(bytes, 0u);
}

TEST_F(Chain, NothingRunsBeforeAllAreChecked) {
    clear();
    const auto before = y1_plane.bytes[0];
    products[1].bias = x;
    EXPECT_EQ(qk_multiply(context, products, 2), QK_ERROR_SHAPE);
    EXPECT_STREQ(qk_context_error(context), "products[1]: bias: is 3 x 96, y has n 40");
    EXPECT_EQ(y1_plane.bytes[0], before);
}

// A program of a newer header has more fields, which are 0; its products are further apart.
TEST_F(Chain, ProductsOfANewerHeader) {
    struct Newer {
        qk_product known;
        uint64_t more[3];
    } list[2] = {{products[0], {}}, {products[1], {}}};
    for (Newer &newer : list) newer.known.struct_size = sizeof(Newer);
    const auto bytes = expected();
    ASSERT_EQ(qk_multiply(context, &list[0].known, 2), QK_OK) << qk_context_error(context);
    EXPECT_EQ(y2_plane.bytes[0], bytes);
    size_t workspace = 77;
    EXPECT_EQ(qk_multiply_workspace(context, &list[0].known, 2, &workspace), QK_OK);
    list[1].more[2] = uint64_t{1} << 63;
    EXPECT_EQ(qk_multiply(context, &list[0].known, 2), QK_ERROR_ABI);
    EXPECT_EQ(std::strncmp(qk_context_error(context), "products[1]: byte ", 18), 0)
        << qk_context_error(context);
}

TEST_F(Chain, PlansOfOtherHeaders) {
    qk_plan all = QK_PLAN_INIT;
    ASSERT_EQ(qk_explain(context, products, &all), QK_OK) << qk_context_error(context);
    struct {
        qk_plan plan;
        unsigned char more[32], guard;
    } given;
    for (uint32_t room = 4; room <= sizeof(given); ++room) {
        std::memset(&given, 0xa5, sizeof(given));
        given.plan.struct_size = room;
        ASSERT_EQ(qk_explain(context, products, &given.plan), QK_OK);
        const uint32_t known = std::min(room, uint32_t(sizeof(all)));
        ASSERT_EQ(given.plan.struct_size, known);
        const auto *const bytes = reinterpret_cast<const unsigned char *>(&given);
        for (uint32_t i = sizeof(uint32_t); i < sizeof(given); ++i) {
            const unsigned char expected = i >= room ? 0xa5
                                           : i < known
                                               ? reinterpret_cast<const unsigned char *>(&all)[i]
                                               : 0;
            ASSERT_EQ(bytes[i], expected) << "room " << room << " byte " << i;
        }
    }
}

// ------------------------------------------------------------------------------- what would run

struct Seen {
    std::string kernel;
    int64_t calls = 0;

    static void note(void *user, const qk_trace *call) {
        Seen &seen = *static_cast<Seen *>(user);
        seen.kernel = call->kernel;
        ++seen.calls;
    }
};

qk_context *traced_context(uint32_t flags, uint32_t instruction_sets, size_t workspace,
                           Seen *seen) {
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.thread_count = 1;
    options.flags = flags;
    options.instruction_sets = instruction_sets;
    options.workspace_bytes = workspace;
    options.trace = Seen::note;
    options.trace_user = seen;
    qk_context *context = nullptr;
    EXPECT_EQ(qk_context_create(&options, &context), QK_OK);
    return context;
}

// One product: what is explained is what runs, and is refused where it is refused.
void explain_and_run(qk_context *context, const qk_tensor_desc &desc, int64_t m, Seen *seen) {
    const int64_t n = desc.shape[0], k = desc.shape[1];
    const auto x_desc = dense_desc(QK_FORMAT_F32, {m, k}),
               y_desc = dense_desc(QK_FORMAT_F32, {m, n});
    Planes x_plane(x_desc), y_plane(y_desc);
    x_plane.fill_dense(QK_FORMAT_F32);
    qk_tensor *const x = wrap(context, x_desc, x_plane), *const y = wrap(context, y_desc, y_plane);
    qk_tensor *const w = create(context, desc);
    const qk_product product = {sizeof(qk_product), 0, x, w, nullptr, y, nullptr};
    qk_plan plan = QK_PLAN_INIT;
    const qk_status explained = qk_explain(context, &product, &plan);
    const std::string why = qk_context_error(context);
    const int64_t calls = seen->calls;
    size_t bytes = 0, of_w = 0;
    EXPECT_EQ(qk_multiply_workspace(context, &product, 1, &bytes), QK_OK);
    EXPECT_EQ(qk_linear_workspace(context, w, m, &of_w), QK_OK);
    EXPECT_GE(of_w, bytes) << "of any rows up to m, of any x";
    EXPECT_EQ(seen->calls, calls) << "a question ran a kernel";
    qk_context_info info = QK_CONTEXT_INFO_INIT;
    ASSERT_EQ(qk_context_describe(context, &info), QK_OK);
    ASSERT_EQ(qk_multiply(context, &product, 1), explained) << qk_context_error(context);
    if (explained == QK_OK) {
        EXPECT_EQ(seen->calls, calls + 1);
        EXPECT_EQ(seen->kernel, plan.kernel);
        EXPECT_LE(plan.batch_first, m);
        EXPECT_GE(plan.batch_last, m);
        EXPECT_LE(plan.workspace_bytes, info.workspace_bytes);
        EXPECT_EQ(std::string(plan.reason).find('\n'), std::string::npos);
    } else {
        EXPECT_EQ(explained, QK_ERROR_WORKSPACE);
        EXPECT_EQ("products[0]: " + why, qk_context_error(context));
        EXPECT_GT(bytes, info.workspace_bytes);
    }
    for (qk_tensor *const tensor : {x, w, y}) qk_tensor_destroy(tensor);
}

TEST(Explain, SaysWhatRuns) {
    std::set<std::string> kernels;
    auto descs = weight_descs(12, 128, 32);
    for (const qk_layout layout : {QK_LAYOUT_PACKED, QK_LAYOUT_ROW}) {
        for (const int32_t group : {32, 64, 128}) {
            descs.push_back(weight_desc(QK_FORMAT_U4_AFFINE, layout, 16, 256, group));
        }
    }
    for (const uint32_t flags : {0u, QK_CONTEXT_BF16_PRODUCTS, QK_CONTEXT_INT8_ACTIVATIONS}) {
        for (const uint32_t sets :
             {0u, QK_ISA_GENERIC, QK_ISA_GENERIC | QK_ISA_AVX2, QK_ISA_GENERIC | QK_ISA_NEON}) {
            for (const size_t workspace : {size_t{0}, size_t{1} << 20}) {
                Seen seen;
                qk_context *const context = traced_context(flags, sets, workspace, &seen);
                for (const qk_tensor_desc &desc : descs) {
                    for (const int64_t m : {1, 2, 17}) {
                        SCOPED_TRACE(testing::Message()
                                     << "flags " << flags << " sets " << sets << " workspace "
                                     << workspace << " format " << desc.format << " layout "
                                     << desc.layout << " group " << desc.group_size << " m " << m);
                        explain_and_run(context, desc, m, &seen);
                        kernels.insert(seen.kernel);
                    }
                }
                qk_context_destroy(context);
            }
        }
    }
    EXPECT_GE(kernels.size(), 2u) << "generic, and generic int8 at least";
}

// What a program may rely on: where the plan says one batch class, a row has the same bits.
TEST(Explain, ARowHasTheSameBitsInItsBatchClass) {
    constexpr uint32_t kBf16 = QK_CONTEXT_BF16_PRODUCTS, kInt8 = QK_CONTEXT_INT8_ACTIVATIONS;
    struct Call {
        uint32_t flags;
        qk_layout layout;
    };
    for (const auto &[flags, layout] : {Call{0, QK_LAYOUT_ROW}, Call{kBf16, QK_LAYOUT_PACKED},
                                        Call{kBf16, QK_LAYOUT_ROW}, Call{kInt8, QK_LAYOUT_ROW}}) {
        Seen seen;
        qk_context *const context = traced_context(flags, 0, 1 << 20, &seen);
        const auto w_desc = weight_desc(QK_FORMAT_NF4, layout, 24, 256, 64);
        qk_tensor *const w = create(context, w_desc);
        Planes dense(dense_desc(QK_FORMAT_F32, {24, 256}));
        dense.fill_dense(QK_FORMAT_F32);
        qk_tensor *const d = wrap(context, dense_desc(QK_FORMAT_F32, {24, 256}), dense);
        ASSERT_EQ(qk_quantize(context, d, w), QK_OK);
        std::vector<std::vector<unsigned char>> rows(20);
        std::vector<qk_plan> plans(20, qk_plan QK_PLAN_INIT);
        for (int64_t m = 1; m < 20; ++m) {
            Planes x(dense_desc(QK_FORMAT_F32, {m, 256})), y(dense_desc(QK_FORMAT_F32, {m, 24}));
            x.fill_dense(QK_FORMAT_F32, 9);  // the first row is the same for all m
            qk_tensor *const tx = wrap(context, dense_desc(QK_FORMAT_F32, {m, 256}), x);
            qk_tensor *const ty = wrap(context, dense_desc(QK_FORMAT_F32, {m, 24}), y);
            const qk_product product = {sizeof(qk_product), 0, tx, w, nullptr, ty, nullptr};
            ASSERT_EQ(qk_explain(context, &product, &plans[size_t(m)]), QK_OK);
            ASSERT_EQ(qk_multiply(context, &product, 1), QK_OK);
            rows[size_t(m)].assign(y.bytes[0].begin(), y.bytes[0].begin() + 24 * 4);
            qk_tensor_destroy(tx);
            qk_tensor_destroy(ty);
        }
        int compared = 0;
        for (size_t a = 1; a < 20; ++a) {
            for (size_t b = 1; b < 20; ++b) {
                if (int(b) < plans[a].batch_first || int(b) > plans[a].batch_last) continue;
                EXPECT_EQ(rows[a], rows[b]) << "m " << a << " and " << b;
                ++compared;
            }
        }
        const auto rounds = [&](int m) {
            return std::strstr(plans[size_t(m)].kernel, "bf16") != nullptr;
        };
        const int few = rounds(1) ? 7 * 7 : 2 * 2 + 5 * 5;
        const int exact = 2 * 2 + 17 * 17, bf16 = few + 12 * 12, int8 = 19 * 19;
        EXPECT_EQ(compared, flags == kInt8 ? int8
                            : rounds(8)    ? bf16
                                           : exact)
            << "qk.h: up to 2 rows and from 3 on; bf16 mode: from 8 on; int8 mode: any m";
        EXPECT_EQ(plans[19].batch_last, INT32_MAX);
        for (qk_tensor *const tensor : {w, d}) qk_tensor_destroy(tensor);
        qk_context_destroy(context);
    }
}

}  // namespace
}  // namespace api
