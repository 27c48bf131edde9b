// Products with experts through the C interface: every row has the bits of its own product of one
// row, slots are added up in order, and what is wrong is refused with its name.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "api/support.hpp"

namespace api {
namespace {

constexpr int64_t kTokens = 5, kSlots = 3, kExperts = 3, kRows = 64, kColumns = 128;
// Negative ids, ids past the last, an expert twice for a token, one that no token has (1).
constexpr int32_t kRouting[kTokens * kSlots] = {0,         2, 0, -1, 2,         2,  3, 0,
                                                INT32_MIN, 2, 0, 2,  INT32_MAX, -1, 0};

int64_t width(qk_format format) { return format == QK_FORMAT_F32 ? 4 : 2; }

// A dense tensor and its memory.
struct Array {
    qk_tensor_desc desc;
    Planes planes;
    qk_tensor *tensor;

    Array(qk_context *context, qk_format format, std::initializer_list<int64_t> shape,
          unsigned seed = 0)
        : desc(dense_desc(format, shape)), planes(desc) {
        if (seed != 0) planes.fill_dense(format, seed);
        tensor = wrap(context, desc, planes);
    }
    ~Array() { qk_tensor_destroy(tensor); }
    Array(const Array &) = delete;
    Array &operator=(const Array &) = delete;
    unsigned char *row(int64_t i) {
        const int64_t columns = desc.shape[desc.rank - 1];
        return planes.bytes[0].data() + i * columns * width(desc.format);
    }
};

// `desc` quantized from f32 values; tables are bitsandbytes' own.
qk_tensor *quantized(qk_context *context, qk_tensor_desc desc, const float *values) {
    qk_tensor *const w = create(context, desc);
    qk_tensor_desc dense = dense_desc(QK_FORMAT_F32, {});
    dense.rank = desc.rank;
    std::copy(desc.shape, desc.shape + QK_MAX_RANK, dense.shape);
    void *planes[QK_PLANE_COUNT] = {const_cast<float *>(values)};
    qk_tensor *const from = wrap(context, dense, planes);
    float table[256];
    EXPECT_EQ(qk_dynamic_table(table), QK_OK);
    for (const qk_plane plane : {QK_PLANE_TABLE, QK_PLANE_SCALE_CODE}) {
        qk_tensor_upload(context, w, plane, table, sizeof(table));  // where it has one
    }
    EXPECT_EQ(qk_quantize(context, from, w), QK_OK) << qk_context_error(context);
    qk_tensor_destroy(from);
    return w;
}

// One expert's planes of a weight in rows, where all experts' are parts of equal length.
qk_tensor *cut_out(qk_context *context, qk_tensor_desc desc, const qk_tensor *all, int64_t e) {
    qk_tensor *const one = create(context, desc);
    qk_tensor_desc of_all = QK_TENSOR_DESC_INIT;
    EXPECT_EQ(qk_tensor_describe(all, &of_all), QK_OK);
    for (qk_plane plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        size_t bytes = 0, part = 0;
        EXPECT_EQ(qk_tensor_plane_bytes(&of_all, plane, &bytes), QK_OK);
        EXPECT_EQ(qk_tensor_plane_bytes(&desc, plane, &part), QK_OK);
        if (bytes == 0) continue;
        std::vector<unsigned char> whole(bytes);
        EXPECT_EQ(qk_tensor_download(context, all, plane, whole.data(), bytes), QK_OK);
        const unsigned char *const from = whole.data() + (part == bytes ? 0 : size_t(e) * part);
        EXPECT_EQ(qk_tensor_upload(context, one, plane, from, part), QK_OK);
    }
    return one;
}

struct Layer {
    qk_context *context;
    qk_tensor *all, *one[kExperts];
    Array bias;

    Layer(qk_context *c, const qk_tensor_desc &desc)
        : context(c), bias(c, QK_FORMAT_F32, {kExperts, kRows}, 5) {
        Planes dense(dense_desc(QK_FORMAT_F32, {kExperts * kRows, kColumns}));
        dense.fill_dense(QK_FORMAT_F32, 3);
        qk_tensor_desc row = desc, three = desc;
        row.layout = QK_LAYOUT_ROW;
        three.rank = 3;
        three.shape[0] = kExperts, three.shape[1] = kRows, three.shape[2] = kColumns;
        qk_tensor_desc three_rows = three;
        three_rows.layout = QK_LAYOUT_ROW;
        qk_tensor *const rows = quantized(context, three_rows, dense.as<float>());
        for (int64_t e = 0; e < kExperts; ++e) {
            qk_tensor *const cut = cut_out(context, row, rows, e);
            one[e] = repacked(desc, cut);
            qk_tensor_destroy(cut);
        }
        all = repacked(three, rows);
        qk_tensor_destroy(rows);
    }
    ~Layer() {
        for (qk_tensor *const w : one) qk_tensor_destroy(w);
        qk_tensor_destroy(all);
    }
    qk_tensor *repacked(const qk_tensor_desc &desc, const qk_tensor *from) {
        qk_tensor *const to = create(context, desc);
        EXPECT_EQ(qk_repack(context, from, to), QK_OK) << qk_context_error(context);
        return to;
    }
    // x . transpose(w[e]) + bias[e] of one row, by qk_linear.
    std::vector<unsigned char> product(Array &x, int64_t row, int64_t e, qk_format format) {
        Array y(context, format, {1, kRows});
        void *planes[QK_PLANE_COUNT] = {x.row(row)};
        qk_tensor *const one_x = wrap(context, dense_desc(x.desc.format, {1, kColumns}), planes);
        planes[0] = bias.row(e);
        qk_tensor *const b = wrap(context, dense_desc(QK_FORMAT_F32, {kRows}), planes);
        EXPECT_EQ(qk_linear(context, one_x, one[e], b, y.tensor), QK_OK)
            << qk_context_error(context);
        qk_tensor_destroy(one_x);
        qk_tensor_destroy(b);
        return y.planes.bytes[0];
    }
};

struct Routing {
    Array expert, weight;
    qk_experts experts = QK_EXPERTS_INIT;

    explicit Routing(qk_context *context)
        : expert(context, QK_FORMAT_I32, {kTokens, kSlots}),
          weight(context, QK_FORMAT_F32, {kTokens, kSlots}, 8) {
        std::memcpy(expert.planes.bytes[0].data(), kRouting, sizeof(kRouting));
        experts.expert = expert.tensor;
    }
};

// Threads of the test's own: qk's are left out where there is so little work.
void on_two_threads(void *, int32_t count, void (*task)(void *, int32_t), void *argument) {
    std::thread other([=] {
        for (int32_t i = 1; i < count; i += 2) task(argument, i);
    });
    for (int32_t i = 0; i < count; i += 2) task(argument, i);
    other.join();
}

qk_context *context_of(uint32_t flags, int32_t threads, size_t workspace) {
    static const qk_executor two = {on_two_threads, nullptr, 2};
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    if (threads == 2) options.executor = &two;
    options.flags = flags;
    options.thread_count = threads;
    options.workspace_bytes = workspace;
    qk_context *context = nullptr;
    EXPECT_EQ(qk_context_create(&options, &context), QK_OK);
    return context;
}

// A row a slot: skipped rows are zeros, those of unknown experts NaN, all others one row's product.
void compare_rows(Layer &layer, qk_format x_format, qk_format y_format, bool by_slot) {
    Routing routing(layer.context);
    Array x(layer.context, x_format, {kTokens, by_slot ? kSlots : 1, kColumns}, 7);
    if (!by_slot) {  // [t,k]
        qk_tensor_destroy(x.tensor);
        x.desc = dense_desc(x_format, {kTokens, kColumns});
        x.tensor = wrap(layer.context, x.desc, x.planes);
    }
    Array y(layer.context, y_format, {kTokens, kSlots, kRows});
    const qk_product product = {sizeof(qk_product), 0,        x.tensor,        layer.all,
                                layer.bias.tensor,  y.tensor, &routing.experts};
    ASSERT_EQ(qk_multiply(layer.context, &product, 1), QK_OK) << qk_context_error(layer.context);
    const size_t bytes = size_t(kRows * width(y_format));
    for (int64_t row = 0; row < kTokens * kSlots; ++row) {
        const int32_t e = kRouting[row];
        const std::vector<unsigned char> got(y.row(row), y.row(row) + bytes);
        if (e < 0) {
            EXPECT_EQ(got, std::vector<unsigned char>(bytes, 0)) << "row " << row;
        } else if (e >= kExperts) {
            const unsigned exponent = y_format == QK_FORMAT_F16 ? 0x7c : 0x7f;
            for (size_t i = size_t(width(y_format)) - 1; i < bytes; i += size_t(width(y_format))) {
                ASSERT_EQ(got[i] & exponent, exponent) << "row " << row;
            }
        } else {
            EXPECT_EQ(got, layer.product(x, by_slot ? row : row / kSlots, e, y_format))
                << "row " << row << " expert " << e;
        }
    }
}

TEST(Experts, ARowHasTheBitsOfItsOwnProduct) {
    for (const uint32_t flags : {0u, QK_CONTEXT_BF16_PRODUCTS, QK_CONTEXT_INT8_ACTIVATIONS}) {
        qk_context *const context = context_of(flags, 2, 1 << 20);
        int turn = 0;
        for (const qk_tensor_desc &desc : weight_descs(kRows, kColumns, 32)) {
            SCOPED_TRACE(testing::Message()
                         << "flags " << flags << " format " << desc.format << " layout "
                         << desc.layout << " scale " << desc.scale_format);
            Layer layer(context, desc);
            const qk_format x = turn % 3 == 0   ? QK_FORMAT_F32
                                : turn % 3 == 1 ? QK_FORMAT_F16
                                                : QK_FORMAT_BF16;
            compare_rows(layer, x, turn % 2 == 0 ? x : QK_FORMAT_F32, turn % 5 < 2);
            ++turn;
            const bool packs = desc.layout == QK_LAYOUT_ROW && desc.format != QK_FORMAT_LUT8 &&
                               desc.format != QK_FORMAT_S8;
            if (!packs) continue;
            qk_tensor_desc fast = desc;
            fast.layout = QK_LAYOUT_PACKED;
            Layer packed(context, fast);
            compare_rows(packed, x, x, false);
        }
        qk_context_destroy(context);
    }
}

double join(qk_activation activation, const qk_experts &e, double gate, double up) {
    switch (activation) {
        case QK_ACTIVATION_SILU: return gate / (1 + std::exp(-gate)) * up;
        case QK_ACTIVATION_GELU: return gate * std::erfc(-gate / std::sqrt(2.0)) / 2 * up;
        case QK_ACTIVATION_GELU_TANH:
            return gate / 2 * up *
                   (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) *
                                  (gate + 0.044715 * std::pow(gate, 3))));
        default:
            gate = std::min(gate, double(e.limit));
            up = std::max(-double(e.limit), std::min(up, double(e.limit)));
            return gate / (1 + std::exp(-double(e.alpha) * gate)) * (up + 1);
    }
}

// Against doubles made from qk_linear's rows; with and without a workspace the same bits.
void compare_sums(qk_activation activation, uint32_t interleaved, uint32_t flags, bool weighted) {
    std::vector<unsigned char> first;
    for (const size_t workspace : {size_t{0}, size_t{1} << 20}) {
        qk_context *const context = context_of(0, 2, workspace);
        {
            Layer layer(context, weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, kRows, kColumns, 32));
            Routing routing(context);
            const int64_t n = activation == QK_ACTIVATION_NONE ? kRows : kRows / 2;
            Array x(context, QK_FORMAT_F32, {kTokens, kColumns}, 7);
            Array y(context, QK_FORMAT_F32, {kTokens, n}, 9),
                before(context, QK_FORMAT_F32, {kTokens, n}, 9);
            for (size_t i = 0; i < x.planes.bytes[0].size() / 4; ++i) {
                x.planes.as<float>()[i] *= 0x1p-7f;
            }
            qk_experts &e = routing.experts;
            e.activation = activation, e.flags = interleaved, e.limit = 7, e.alpha = 1.702f;
            if (weighted) e.weight = routing.weight.tensor;
            const qk_product product = {sizeof(qk_product), flags,    x.tensor, layer.all,
                                        layer.bias.tensor,  y.tensor, &e};
            ASSERT_EQ(qk_multiply(context, &product, 1), QK_OK) << qk_context_error(context);
            for (int64_t t = 0; t < kTokens; ++t) {
                std::vector<double> sum(size_t(n), 0), size(size_t(n), 1e-3);
                bool unknown = false;
                for (int64_t row = t * kSlots; row < (t + 1) * kSlots; ++row) {
                    unknown = unknown || kRouting[row] >= kExperts;
                    if (kRouting[row] < 0 || kRouting[row] >= kExperts) continue;
                    const auto bytes = layer.product(x, t, kRouting[row], QK_FORMAT_F32);
                    const float *const z = reinterpret_cast<const float *>(bytes.data());
                    const double weight = weighted ? routing.weight.planes.as<float>()[row] : 1;
                    for (int64_t i = 0; i < n; ++i) {
                        const int64_t gate = interleaved != 0 ? 2 * i : i;
                        const int64_t up = interleaved != 0 ? 2 * i + 1 : n + i;
                        const double value = activation == QK_ACTIVATION_NONE
                                                 ? z[i]
                                                 : join(activation, e, z[gate], z[up]);
                        sum[size_t(i)] += weight * value;
                        size[size_t(i)] += std::fabs(weight * value);
                    }
                }
                for (int64_t i = 0; i < n; ++i) {
                    const float got = y.planes.as<float>()[t * n + i];
                    const float held = before.planes.as<float>()[t * n + i];
                    const double want = sum[size_t(i)] + (flags != 0 ? held : 0);
                    if (unknown) {
                        EXPECT_TRUE(std::isnan(got));
                    } else {
                        EXPECT_NEAR(got, want, (size[size_t(i)] + std::fabs(held)) * 0x1p-20)
                            << "token " << t << " column " << i;
                    }
                }
            }
            if (workspace == 0) first = y.planes.bytes[0];
            EXPECT_EQ(y.planes.bytes[0], first) << "depends on the workspace";
        }
        qk_context_destroy(context);
    }
}

TEST(Experts, SlotsAreAddedUp) {
    for (qk_activation a = QK_ACTIVATION_NONE; a <= QK_ACTIVATION_SWIGLU_CLAMPED; ++a) {
        for (const uint32_t interleaved : {0u, QK_EXPERTS_INTERLEAVED}) {
            SCOPED_TRACE(testing::Message() << "activation " << a << ' ' << interleaved);
            compare_sums(a, a == QK_ACTIVATION_NONE ? 0 : interleaved, 0, true);
            compare_sums(a, a == QK_ACTIVATION_NONE ? 0 : interleaved, QK_PRODUCT_ACCUMULATE,
                         false);
        }
    }
}

TEST(Experts, RefusesWhatIsWrong) {
    qk_context *const context = context_of(0, 1, 0);
    {
        Layer layer(context, weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, kRows, kColumns, 32));
        Routing good(context);
        Array x(context, QK_FORMAT_F32, {kTokens, kColumns}, 7);
        Array y(context, QK_FORMAT_F32, {kTokens, kSlots, kRows}),
            sum(context, QK_FORMAT_F32, {kTokens, kRows});
        Array wide(context, QK_FORMAT_I32, {kTokens + 1, kSlots});
        const auto refused =
            [&](const qk_experts &e, qk_product p, qk_status status, const char *text) {
            p.experts = &e;
            EXPECT_EQ(qk_multiply(context, &p, 1), status) << text;
            EXPECT_NE(std::strstr(qk_context_error(context), text), nullptr)
                << qk_context_error(context);
        };
        const qk_product p = {sizeof(qk_product), 0,      x.tensor, layer.all, nullptr,
                              y.tensor,           nullptr};
        qk_experts e = good.experts;
        qk_product q = p;
        refused(e, (q.w = layer.one[0], q), QK_ERROR_SHAPE, "w: has rank 2");
        refused(e, (q = p, q.y = layer.one[0], q), QK_ERROR_FORMAT, "y: ");
        refused(e, (q = p, q.flags = QK_PRODUCT_TRANSPOSED, q), QK_ERROR_UNSUPPORTED, "flags");
        refused((e.struct_size = 8, e), p, QK_ERROR_ABI, "experts: struct_size");
        refused((e = good.experts, e.flags = 2, e), p, QK_ERROR_ARGUMENT, "experts: flags");
        refused((e = good.experts, e.activation = 5, e), p, QK_ERROR_ARGUMENT, "activation is 5");
        refused((e = good.experts, e.reserved = 1, e), p, QK_ERROR_ARGUMENT, "reserved is 1");
        refused((e = good.experts, e.activation = QK_ACTIVATION_SWIGLU_CLAMPED, e), p,
                QK_ERROR_ARGUMENT, "limit is 0");
        refused((e = good.experts, e.activation = QK_ACTIVATION_SILU, e), p, QK_ERROR_SHAPE,
                "y: is ");
        refused((e = good.experts, e.expert = nullptr, e), p, QK_ERROR_NULL, "expert: is NULL");
        refused((e = good.experts, e.expert = x.tensor, e), p, QK_ERROR_FORMAT, "expert: is f32");
        refused((e = good.experts, e.expert = wide.tensor, e), p, QK_ERROR_SHAPE, "x: is 5 x 128");
        refused((e = good.experts, e.weight = good.weight.tensor, e), p, QK_ERROR_SHAPE,
                "weight: needs y [t,n], which adds slots up; y has a row for each slot");
        refused((e = good.experts, e.weight = x.tensor, e), (q = p, q.y = sum.tensor, q),
                QK_ERROR_SHAPE, "weight: is 5 x 128");
        refused(good.experts, (q = p, q.bias = sum.tensor, q), QK_ERROR_SHAPE, "bias: is 5 x 64");
    }
    qk_context_destroy(context);
}

// What is explained runs, and its class is every number of rows.
TEST(Experts, AreExplained) {
    qk_context *const context = context_of(0, 1, 0);
    {
        Layer layer(context, weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, kRows, kColumns, 32));
        Routing routing(context);
        Array x(context, QK_FORMAT_F32, {kTokens, kColumns}, 7);
        Array y(context, QK_FORMAT_F32, {kTokens, kRows});
        const qk_product product = {sizeof(qk_product), 0, x.tensor, layer.all, nullptr, y.tensor,
                                    &routing.experts};
        qk_plan plan = QK_PLAN_INIT;
        size_t bytes = 0;
        ASSERT_EQ(qk_explain(context, &product, &plan), QK_OK) << qk_context_error(context);
        EXPECT_STREQ(plan.kernel, "experts");
        EXPECT_EQ(plan.batch_first, 1);
        EXPECT_EQ(plan.batch_last, INT32_MAX);
        ASSERT_EQ(qk_multiply_workspace(context, &product, 1, &bytes), QK_OK);
        EXPECT_EQ(bytes, size_t(kTokens * kSlots * kRows * 4)) << "of all slots";
        EXPECT_STRNE(plan.reason, "");
    }
    qk_context_destroy(context);
}

// Only what fits in 32 bits is sorted by expert. Nothing lies at these addresses, and nothing is
// read.
TEST(Experts, OfMoreSlotsThan32BitsCountHaveNoList) {
    qk_context *const context = context_of(0, 1, 0);
    int64_t next = int64_t{1} << 44;
    const auto at = [&](const qk_tensor_desc &desc) {
        void *planes[QK_PLANE_COUNT] = {reinterpret_cast<void *>(next)};
        next += int64_t{1} << 42;
        return wrap(context, desc, planes);
    };
    for (const int64_t tokens : {int64_t{1} << 26, int64_t{1} << 27}) {
        qk_tensor *const expert = at(dense_desc(QK_FORMAT_I32, {tokens, 16}));
        qk_tensor *const x = at(dense_desc(QK_FORMAT_F32, {tokens, 32}));
        qk_tensor *const w = at(dense_desc(QK_FORMAT_F32, {2, 16, 32}));
        qk_tensor *const y = at(dense_desc(QK_FORMAT_F32, {tokens, 16, 16}));
        qk_experts experts = QK_EXPERTS_INIT;
        experts.expert = expert;
        const qk_product product = {sizeof(qk_product), 0, x, w, nullptr, y, &experts};
        size_t bytes = 0;
        EXPECT_EQ(qk_multiply_workspace(context, &product, 1, &bytes), QK_OK)
            << qk_context_error(context);
        const bool fits = tokens * 16 <= INT32_MAX;
        EXPECT_EQ(bytes > size_t{1} << 32, fits) << bytes;
        EXPECT_EQ(bytes < size_t{1} << 20, !fits) << bytes;
        for (qk_tensor *const tensor : {expert, x, w, y}) qk_tensor_destroy(tensor);
    }
    qk_context_destroy(context);
}

}  // namespace
}  // namespace api
