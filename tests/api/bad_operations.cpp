// Operations x every class of bad operand.
#include <gtest/gtest.h>

#include "api/world.hpp"

namespace api {
namespace {

using Run = std::function<qk_status(World &, const qk_tensor *, qk_tensor *)>;

// What a missing, dead or foreign operand answers, the same in each place of each operation.
void add_handle_cells(std::vector<Cell> *cells, const char *name,
                      const std::function<qk_status(World &, qk_context *, qk_tensor *)> &call) {
    const std::string who = name;
    cells->push_back({who + " NULL", QK_ERROR_NULL, name,
                      [=](World &o) { return call(o, o.context, nullptr); }});
    cells->push_back({who + " destroyed", QK_ERROR_STATE, name,
                      [=](World &o) { return call(o, o.context, o.destroyed_tensor()); }});
    cells->push_back({who + " not a handle", QK_ERROR_STATE, name,
                      [=](World &o) { return call(o, o.context, o.stranger_tensor()); }});
}

void add_context_cells(std::vector<Cell> *cells,
                       const std::function<qk_status(World &, qk_context *)> &call) {
    cells->push_back(
        {"context NULL", QK_ERROR_NULL, "", [=](World &o) { return call(o, nullptr); }});
    cells->push_back({"context destroyed", QK_ERROR_STATE, "",
                      [=](World &o) { return call(o, o.destroyed_context()); }});
    cells->push_back({"context not a handle", QK_ERROR_STATE, "",
                      [=](World &o) { return call(o, o.stranger_context()); }});
    cells->push_back({"context is a tensor", QK_ERROR_STATE, "",
                      [=](World &o) { return call(o, reinterpret_cast<qk_context *>(o.w)); }});
}

Cell cell(const char *wrong, qk_status expected, const char *word,
          std::function<qk_status(World &)> call) {
    return {wrong, expected, word, std::move(call)};
}

TEST(BadArguments, Dequantize) {
    std::vector<Cell> cells;
    add_context_cells(&cells, [](World &o, qk_context *c) { return qk_dequantize(c, o.nf4, o.w); });
    add_handle_cells(&cells, "quantized", [](World &o, qk_context *c, qk_tensor *t) {
        return qk_dequantize(c, t, o.w);
    });
    add_handle_cells(&cells, "dense", [](World &o, qk_context *c, qk_tensor *t) {
        return qk_dequantize(c, o.nf4, t);
    });
    const auto run = [&](const char *wrong, qk_status expected, const char *word, auto pick) {
        cells.push_back(cell(wrong, expected, word, [=](World &o) {
            const auto [from, to] = pick(o);
            return qk_dequantize(o.context, from, to);
        }));
    };
    using Pair = std::pair<qk_tensor *, qk_tensor *>;
    run("from dense", QK_ERROR_FORMAT, "quantized", [](World &o) { return Pair(o.w_half, o.w); });
    run("from integers", QK_ERROR_FORMAT, "quantized", [](World &o) { return Pair(o.ints, o.w); });
    run("into quantized", QK_ERROR_FORMAT, "dense", [](World &o) { return Pair(o.nf4, o.u4); });
    run("into integers", QK_ERROR_FORMAT, "dense", [](World &o) { return Pair(o.nf4, o.ints); });
    run("columns differ", QK_ERROR_SHAPE, "dense", [](World &o) { return Pair(o.nf4, o.wide); });
    run("rows differ", QK_ERROR_SHAPE, "dense", [](World &o) { return Pair(o.nf4, o.x); });
    run("read-only", QK_ERROR_STATE, "dense",
        [](World &o) { return Pair(o.nf4, o.read_only_dense); });
    run("into itself", QK_ERROR_FORMAT, "dense", [](World &o) { return Pair(o.nf4, o.nf4); });
    for (const qk_plane plane : {QK_PLANE_DATA, QK_PLANE_SCALE, QK_PLANE_ZERO}) {
        run("overlaps a plane", QK_ERROR_STATE, "dense", [=](World &o) {
            void *planes[QK_PLANE_COUNT] = {};
            const qk_tensor_desc desc = weight_desc(QK_FORMAT_U4_AFFINE, QK_LAYOUT_ROW, 16, 32);
            for (const qk_plane i : {QK_PLANE_DATA, QK_PLANE_SCALE, QK_PLANE_ZERO}) {
                planes[i] = o.plane(i == plane ? o.w : o.wide, QK_PLANE_DATA);
            }
            return Pair(o.tensor_at(desc, planes), o.w);
        });
    }
    run_cells(cells, [](World &o) { return qk_dequantize(o.context, o.nf4, o.w); });
}

TEST(BadArguments, Quantize) {
    std::vector<Cell> cells;
    add_context_cells(&cells, [](World &o, qk_context *c) { return qk_quantize(c, o.w, o.nf4); });
    add_handle_cells(&cells, "dense", [](World &o, qk_context *c, qk_tensor *t) {
        return qk_quantize(c, t, o.nf4);
    });
    add_handle_cells(&cells, "quantized",
                     [](World &o, qk_context *c, qk_tensor *t) { return qk_quantize(c, o.w, t); });
    const auto run = [&](const char *wrong, qk_status expected, const char *word, auto pick) {
        cells.push_back(cell(wrong, expected, word, [=](World &o) {
            const auto [from, to] = pick(o);
            return qk_quantize(o.context, from, to);
        }));
    };
    using Pair = std::pair<qk_tensor *, qk_tensor *>;
    run("from quantized", QK_ERROR_FORMAT, "dense", [](World &o) { return Pair(o.u4, o.nf4); });
    run("from integers", QK_ERROR_FORMAT, "dense", [](World &o) { return Pair(o.ints, o.nf4); });
    run("into dense", QK_ERROR_FORMAT, "quantized", [](World &o) { return Pair(o.w, o.w_half); });
    run("columns differ", QK_ERROR_SHAPE, "dense", [](World &o) { return Pair(o.wide, o.nf4); });
    run("rows differ", QK_ERROR_SHAPE, "dense", [](World &o) { return Pair(o.x, o.nf4); });
    run("read-only", QK_ERROR_STATE, "quantized",
        [](World &o) { return Pair(o.w, o.read_only_nf4); });
    run("overlaps", QK_ERROR_STATE, "quantized", [](World &o) {
        const qk_tensor_desc desc = weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, 16, 32);
        return Pair(o.w, o.tensor_over(desc, o.w, 16 * 32 * 4 - 1));
    });
    run("overlaps from below", QK_ERROR_STATE, "quantized", [](World &o) {
        const qk_tensor_desc desc = dense_desc(QK_FORMAT_F32, {16, 32});
        qk_tensor *const dense = o.tensor_over(desc, o.nf4, 16 * 32 / 2 - 1);
        return Pair(dense, o.nf4);
    });
    run("its own planes overlap", QK_ERROR_STATE, "quantized", [](World &o) {
        void *planes[QK_PLANE_COUNT] = {o.plane(o.w, QK_PLANE_DATA), o.plane(o.w, QK_PLANE_DATA)};
        const qk_tensor_desc desc = weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, 16, 32);
        qk_tensor *const from = o.tensor(dense_desc(QK_FORMAT_F32, {16, 32}));
        return Pair(from, o.tensor_at(desc, planes));
    });
    run_cells(cells, [](World &o) { return qk_quantize(o.context, o.w, o.nf4); });
}

qk_tensor *u4_row(World &o, int32_t group_size = 16, qk_format scale = QK_FORMAT_F32) {
    return o.tensor(weight_desc(QK_FORMAT_U4_AFFINE, QK_LAYOUT_ROW, 16, 32, group_size, scale));
}

TEST(BadArguments, Repack) {
    std::vector<Cell> cells;
    add_context_cells(&cells, [](World &o, qk_context *c) { return qk_repack(c, o.u4, o.nf4); });
    add_handle_cells(&cells, "from", [](World &o, qk_context *c, qk_tensor *t) {
        return qk_repack(c, t, u4_row(o));
    });
    add_handle_cells(&cells, "to",
                     [](World &o, qk_context *c, qk_tensor *t) { return qk_repack(c, o.u4, t); });
    const auto run = [&](const char *wrong, qk_status expected, const char *word, auto pick) {
        cells.push_back(cell(wrong, expected, word, [=](World &o) {
            const auto [from, to] = pick(o);
            return qk_repack(o.context, from, to);
        }));
    };
    using Pair = std::pair<qk_tensor *, qk_tensor *>;
    run("from dense", QK_ERROR_FORMAT, "from", [](World &o) { return Pair(o.w, o.u4); });
    run("to dense", QK_ERROR_FORMAT, "to", [](World &o) { return Pair(o.u4, o.w); });
    run("formats differ", QK_ERROR_FORMAT, "to", [](World &o) { return Pair(o.u4, o.nf4); });
    run("scale formats differ", QK_ERROR_FORMAT, "to",
        [](World &o) { return Pair(o.u4, u4_row(o, 16, QK_FORMAT_F16)); });
    run("group sizes differ", QK_ERROR_SHAPE, "to",
        [](World &o) { return Pair(o.u4, u4_row(o, 32)); });
    run("shapes differ", QK_ERROR_SHAPE, "to", [](World &o) {
        const auto desc = weight_desc(QK_FORMAT_U4_AFFINE, QK_LAYOUT_ROW, 17, 32);
        return Pair(o.u4, o.tensor(desc));
    });
    run("zeros into symmetric", QK_ERROR_FORMAT, "to",
        [](World &o) { return Pair(o.u4, o.u4_symmetric); });
    run("read-only", QK_ERROR_STATE, "to", [](World &o) { return Pair(o.nf4, o.read_only_nf4); });
    run("into itself", QK_ERROR_STATE, "to", [](World &o) { return Pair(o.u4, o.u4); });
    run("overlaps", QK_ERROR_STATE, "to", [](World &o) {
        const auto desc = weight_desc(QK_FORMAT_U4_AFFINE, QK_LAYOUT_ROW, 16, 32);
        return Pair(o.u4, o.tensor_over(desc, o.u4, 255));
    });
    // 3 x 100 codes: flat groups of 128 and of 144 are both 3, as many as rows.
    run("flat groups of another size", QK_ERROR_SHAPE, "to", [](World &o) {
        auto desc = weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW_HIGH, 3, 100, 128);
        qk_tensor *const from = o.tensor(desc);
        desc.group_size = 144;
        return Pair(from, o.tensor(desc));
    });
    run("flat into along k", QK_ERROR_SHAPE, "to", [](World &o) {
        auto desc = weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW_HIGH, 4, 100, 32);
        qk_tensor *const from = o.tensor(desc);
        desc.grouping = QK_GROUPING_ALONG_K;
        return Pair(from, o.tensor(desc));
    });
    run("second groups differ", QK_ERROR_SHAPE, "to", [](World &o) {
        auto desc = weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, 16, 32, 16, QK_FORMAT_LUT8);
        qk_tensor *const from = o.tensor(desc);
        desc.scale_group_size = 64;
        return Pair(from, o.tensor(desc));
    });
    run_cells(cells, [](World &o) { return qk_repack(o.context, o.u4, u4_row(o)); });
}

TEST(BadArguments, Linear) {
    std::vector<Cell> cells;
    add_context_cells(
        &cells, [](World &o, qk_context *c) { return qk_linear(c, o.x, o.nf4, o.bias, o.y); });
    add_handle_cells(&cells, "x", [](World &o, qk_context *c, qk_tensor *t) {
        return qk_linear(c, t, o.nf4, o.bias, o.y);
    });
    add_handle_cells(&cells, "w", [](World &o, qk_context *c, qk_tensor *t) {
        return qk_linear(c, o.x, t, o.bias, o.y);
    });
    add_handle_cells(&cells, "y", [](World &o, qk_context *c, qk_tensor *t) {
        return qk_linear(c, o.x, o.nf4, o.bias, t);
    });
    cells.push_back(cell("bias destroyed", QK_ERROR_STATE, "bias", [](World &o) {
        return qk_linear(o.context, o.x, o.nf4, o.destroyed_tensor(), o.y);
    }));
    cells.push_back(cell("bias not a handle", QK_ERROR_STATE, "bias", [](World &o) {
        return qk_linear(o.context, o.x, o.nf4, o.stranger_tensor(), o.y);
    }));
    struct Operands {
        qk_tensor *x, *w, *bias, *y;
    };
    const auto run = [&](const char *wrong, qk_status expected, const char *word, auto change) {
        cells.push_back(cell(wrong, expected, word, [=](World &o) {
            Operands operands = {o.x, o.nf4, o.bias, o.y};
            change(o, operands);
            return qk_linear(o.context, operands.x, operands.w, operands.bias, operands.y);
        }));
    };
    const auto dense = [](qk_format format, std::initializer_list<int64_t> shape) {
        return dense_desc(format, shape);
    };
    run("x quantized", QK_ERROR_FORMAT, "x", [](World &o, Operands &a) { a.x = o.nf4; });
    run("x integers", QK_ERROR_FORMAT, "x", [](World &o, Operands &a) { a.x = o.ints; });
    run("w integers", QK_ERROR_FORMAT, "w", [](World &o, Operands &a) { a.w = o.ints; });
    run("y quantized", QK_ERROR_FORMAT, "y", [](World &o, Operands &a) { a.y = o.nf4; });
    run("y another type", QK_ERROR_FORMAT, "y", [](World &o, Operands &a) { a.y = o.y_half; });
    run("bias quantized", QK_ERROR_FORMAT, "bias", [](World &o, Operands &a) { a.bias = o.nf4; });
    run("bias integers", QK_ERROR_FORMAT, "bias", [](World &o, Operands &a) { a.bias = o.ints; });
    run("k differs", QK_ERROR_SHAPE, "w", [](World &o, Operands &a) { a.w = o.wide; });
    run("m differs", QK_ERROR_SHAPE, "y", [=](World &o, Operands &a) {
        a.y = o.tensor(dense(QK_FORMAT_F32, {4, 16}));
    });
    run("n differs", QK_ERROR_SHAPE, "y", [=](World &o, Operands &a) {
        a.y = o.tensor(dense(QK_FORMAT_F32, {3, 15}));
    });
    run("bias too short", QK_ERROR_SHAPE, "bias",
        [=](World &o, Operands &a) { a.bias = o.tensor(dense(QK_FORMAT_F32, {15})); });
    run("bias of two rows", QK_ERROR_SHAPE, "bias", [=](World &o, Operands &a) {
        a.bias = o.tensor(dense(QK_FORMAT_F32, {2, 16}));
    });
    run("y read-only", QK_ERROR_STATE, "y", [](World &o, Operands &a) { a.y = o.read_only_y; });
    run("y over x", QK_ERROR_STATE, "y", [=](World &o, Operands &a) {
        a.y = o.tensor_over(dense(QK_FORMAT_F32, {3, 16}), o.x, 4);
    });
    run("y over w", QK_ERROR_STATE, "y", [=](World &o, Operands &a) {
        a.y = o.tensor_over(dense(QK_FORMAT_F32, {3, 16}), o.nf4, 255);
    });
    run("y over bias", QK_ERROR_STATE, "y", [=](World &o, Operands &a) {
        a.bias = o.tensor_over(dense(QK_FORMAT_F32, {16}), o.y, 3 * 16 * 4 - 1);
    });
    run_cells(cells, [](World &o) { return qk_linear(o.context, o.x, o.nf4, o.bias, o.y); });
}

TEST(BadArguments, LinearWorkspace) {
    std::vector<Cell> cells;
    add_context_cells(&cells, [](World &o, qk_context *c) {
        return qk_linear_workspace(c, o.nf4, 1, &o.outputs.bytes);
    });
    add_handle_cells(&cells, "w", [](World &o, qk_context *c, qk_tensor *t) {
        return qk_linear_workspace(c, t, 1, &o.outputs.bytes);
    });
    cells.push_back(cell("w integers", QK_ERROR_FORMAT, "w", [](World &o) {
        return qk_linear_workspace(o.context, o.ints, 1, &o.outputs.bytes);
    }));
    cells.push_back(cell("bytes NULL", QK_ERROR_NULL, "bytes", [](World &o) {
        return qk_linear_workspace(o.context, o.nf4, 1, nullptr);
    }));
    for (const int64_t m : {int64_t{0}, int64_t{-1}, INT64_MIN}) {
        cells.push_back(cell("m_max", QK_ERROR_SHAPE, "m_max", [m](World &o) {
            return qk_linear_workspace(o.context, o.nf4, m, &o.outputs.bytes);
        }));
    }
    run_cells(cells, [](World &o) {
        size_t bytes = 1;
        return qk_linear_workspace(o.context, o.nf4, INT64_MAX, &bytes);
    });
}

// A mode's workspace grows with the rows: for those that no memory holds it is more than any
// context has, and not what is left of it modulo 2^64.
TEST(LinearWorkspace, OfModesIsNeverTooLittle) {
    for (const uint32_t mode : {0u, QK_CONTEXT_BF16_PRODUCTS, QK_CONTEXT_INT8_ACTIVATIONS}) {
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        options.thread_count = 1;
        options.flags = mode;
        qk_context *context = nullptr;
        ASSERT_EQ(qk_context_create(&options, &context), QK_OK);
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.format = QK_FORMAT_NF4;
        desc.scale_format = QK_FORMAT_F32;
        desc.layout = QK_LAYOUT_PACKED;
        desc.group_size = 64;
        desc.rank = 2;
        desc.shape[0] = 8, desc.shape[1] = 512;
        qk_tensor *w = nullptr;
        ASSERT_EQ(qk_tensor_create(context, &desc, &w), QK_OK);
        size_t one = 1, all = 1;
        EXPECT_EQ(qk_linear_workspace(context, w, 1, &one), QK_OK);
        EXPECT_EQ(qk_linear_workspace(context, w, INT64_MAX, &all), QK_OK);
        size_t before = 0, needed = 0;
        for (int64_t m = 1; m <= 40; ++m, before = needed) {  // up to m rows: fewer fit too
            EXPECT_EQ(qk_linear_workspace(context, w, m, &needed), QK_OK);
            EXPECT_GE(needed, before) << "mode " << mode << ", up to " << m << " rows";
        }
        // bf16 mode needs some for up to 7 rows of x alone.
        const size_t most = mode == QK_CONTEXT_BF16_PRODUCTS ? needed : SIZE_MAX;
        EXPECT_EQ(all, one == 0 ? 0 : most) << "mode " << mode;
        // Without it a mode is refused: no slower kernel stands in.
        qk_tensor_desc row = QK_TENSOR_DESC_INIT;
        float x_values[512] = {}, y_values[8] = {};
        void *planes[] = {x_values, y_values};
        qk_tensor *x = nullptr, *y = nullptr;
        row.shape[0] = 512;
        ASSERT_EQ(qk_tensor_wrap(context, &row, &planes[0], 1, &x), QK_OK);
        row.shape[0] = 8;
        ASSERT_EQ(qk_tensor_wrap(context, &row, &planes[1], 1, &y), QK_OK);
        EXPECT_EQ(qk_linear(context, x, w, nullptr, y), one == 0 ? QK_OK : QK_ERROR_WORKSPACE)
            << "mode " << mode;
        qk_tensor_destroy(x);
        qk_tensor_destroy(y);
        qk_tensor_destroy(w);
        qk_context_destroy(context);
    }
}

}  // namespace
}  // namespace api
