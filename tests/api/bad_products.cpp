// Lists of products x every class of bad operand: nothing runs, and the sentence names the product.
#include <gtest/gtest.h>

#include "api/world.hpp"

namespace api {
namespace {

qk_product good_product(const World &o) {
    return {sizeof(qk_product), 0, o.x, o.nf4, o.bias, o.y, nullptr};
}

// qk_multiply, qk_multiply_workspace and qk_explain with products of which one is spoiled.
struct Cells {
    std::vector<Cell> list;

    using Change = std::function<void(World &, qk_product *)>;
    void add(const std::string &wrong, qk_status expected, const char *word, const Change &change) {
        for (const int32_t at : {0, 2}) {
            static const char *const names[] = {"products[0]: ", nullptr, "products[2]: "};
            const auto products = [=](World &o) {
                std::vector<qk_product> all(3, good_product(o));
                change(o, &all[size_t(at)]);
                return all;
            };
            const std::string place = wrong + ", " + names[at];
            for (const char *const part : {word, names[at]}) {
                list.push_back({place, expected, part, [=](World &o) {
                                    return qk_multiply(o.context, products(o).data(), 3);
                                }});
            }
            list.push_back({place + "workspace", expected, names[at], [=](World &o) {
                                return qk_multiply_workspace(o.context, products(o).data(), 3,
                                                             &o.outputs.bytes);
                            }});
        }
        list.push_back({wrong + ", explain", expected, word, [=](World &o) {
                            qk_product product = good_product(o);
                            change(o, &product);
                            return qk_explain(o.context, &product, &o.outputs.plan);
                        }});
    }
};

qk_status multiply_one(World &o) {
    const qk_product product = good_product(o);
    return qk_multiply(o.context, &product, 1);
}

TEST(BadProducts, Handles) {
    Cells cells;
    const auto each = [&](const char *name, auto set) {
        const std::string who = name;
        cells.add(who + " destroyed", QK_ERROR_STATE, name,
                  [=](World &o, qk_product *p) { set(p, o.destroyed_tensor()); });
        cells.add(who + " not a handle", QK_ERROR_STATE, name,
                  [=](World &o, qk_product *p) { set(p, o.stranger_tensor()); });
        if (who == "bias") return;
        cells.add(who + " NULL", QK_ERROR_NULL, name,
                  [=](World &, qk_product *p) { set(p, nullptr); });
    };
    each("x", [](qk_product *p, qk_tensor *t) { p->x = t; });
    each("w", [](qk_product *p, qk_tensor *t) { p->w = t; });
    each("bias", [](qk_product *p, qk_tensor *t) { p->bias = t; });
    each("y", [](qk_product *p, qk_tensor *t) { p->y = t; });
    run_cells(cells.list, multiply_one);
}

TEST(BadProducts, Operands) {
    Cells cells;
    cells.add("x quantized", QK_ERROR_FORMAT, "x", [](World &o, qk_product *p) { p->x = o.nf4; });
    cells.add("w integers", QK_ERROR_FORMAT, "w", [](World &o, qk_product *p) { p->w = o.ints; });
    cells.add("y another type", QK_ERROR_FORMAT, "y",
              [](World &o, qk_product *p) { p->y = o.y_half; });
    cells.add("bias quantized", QK_ERROR_FORMAT, "bias",
              [](World &o, qk_product *p) { p->bias = o.nf4; });
    cells.add("k differs", QK_ERROR_SHAPE, "w: k is 33, x has k 32",
              [](World &o, qk_product *p) { p->w = o.wide; });
    cells.add("transposed, n differs", QK_ERROR_SHAPE, "w: n is 16, x has n 32",
              [](World &, qk_product *p) { p->flags = QK_PRODUCT_TRANSPOSED; });
    cells.add("transposed, k differs", QK_ERROR_SHAPE, "y: k is 16, w has k 32",
              [](World &o, qk_product *p) { p->flags = QK_PRODUCT_TRANSPOSED, p->x = o.y; });
    cells.add("transposed, bias", QK_ERROR_SHAPE, "bias: is 1 x 16, y has k 32",
              [](World &o, qk_product *p) {
        p->flags = QK_PRODUCT_TRANSPOSED, p->x = o.y;
        p->y = o.tensor(dense_desc(QK_FORMAT_F32, {3, 32}));
    });
    const auto apart = [](std::initializer_list<int64_t> shape, int64_t stride, uint32_t flags) {
        qk_tensor_desc desc = dense_desc(QK_FORMAT_F32, shape);
        desc.row_stride = stride, desc.flags = flags;
        return desc;
    };
    cells.add("w with a stride", QK_ERROR_UNSUPPORTED, "w: has a row_stride",
              [=](World &o, qk_product *p) {
        p->w = o.tensor(apart({16, 32}, 33, 0));
    });
    cells.add("x column-major", QK_ERROR_UNSUPPORTED, "x: is column-major",
              [=](World &o, qk_product *p) {
        p->x = o.tensor(apart({3, 32}, 0, QK_TENSOR_COLUMN_MAJOR));
    });
    cells.add("y column-major", QK_ERROR_UNSUPPORTED, "y: is column-major",
              [=](World &o, qk_product *p) {
        p->y = o.tensor(apart({3, 16}, 0, QK_TENSOR_COLUMN_MAJOR));
    });
    // Columns 31..46 of an array of which x is 0..31: one element is shared, and none at 32..47.
    cells.add("y over x, both apart", QK_ERROR_STATE, "y: plane 0 overlaps plane 0 of x",
              [=](World &o, qk_product *p) {
        qk_tensor *const whole = o.tensor(dense_desc(QK_FORMAT_F32, {3, 48}));
        p->x = o.tensor_over(apart({3, 32}, 48, 0), whole, 0);
        p->y = o.tensor_over(apart({3, 16}, 48, 0), whole, 31 * 4);
    });
    cells.add("y read-only", QK_ERROR_STATE, "y",
              [](World &o, qk_product *p) { p->y = o.read_only_y; });
    cells.add("y over x", QK_ERROR_STATE, "y", [](World &o, qk_product *p) {
        p->y = o.tensor_over(dense_desc(QK_FORMAT_F32, {3, 16}), o.x, 4);
    });
    cells.add("y over w", QK_ERROR_STATE, "y", [](World &o, qk_product *p) {
        p->y = o.tensor_over(dense_desc(QK_FORMAT_F32, {3, 16}), o.nf4, 255);
    });
    cells.add("y over bias", QK_ERROR_STATE, "y", [](World &o, qk_product *p) {
        p->bias = o.tensor_over(dense_desc(QK_FORMAT_F32, {16}), o.y, 3 * 16 * 4 - 1);
    });
    run_cells(cells.list, multiply_one);
}

TEST(BadProducts, Structs) {
    Cells cells;
    for (const uint32_t size : {0u, 4u, uint32_t(sizeof(qk_product)) - 16,
                                uint32_t(sizeof(qk_product)) + 1, 4104u, UINT32_MAX}) {
        cells.list.push_back({"struct_size", QK_ERROR_ABI, "products[0]: struct_size",
                              [=](World &o) {
            qk_product product = good_product(o);
            product.struct_size = size;
            return qk_multiply(o.context, &product, 1);
                              }});
        cells.list.push_back({"struct_size, explain", QK_ERROR_ABI, "struct_size", [=](World &o) {
                                  qk_product product = good_product(o);
                                  product.struct_size = size;
                                  return qk_explain(o.context, &product, &o.outputs.plan);
                              }});
    }
    cells.list.push_back({"struct sizes differ", QK_ERROR_ABI, "products[1]: struct_size",
                          [](World &o) {
        qk_product products[] = {good_product(o), good_product(o), {}};
        products[1].struct_size = 2 * sizeof(qk_product);
        return qk_multiply(o.context, products, 2);
                          }});
    for (const uint32_t flags : {4u, 7u, 0x80000000u, UINT32_MAX}) {
        cells.add("flags", QK_ERROR_ARGUMENT, "flags",
                  [=](World &, qk_product *p) { p->flags = flags; });
    }
    run_cells(cells.list, multiply_one);
}

TEST(BadProducts, ListsAndOutputs) {
    std::vector<Cell> cells;
    const auto add = [&](const char *wrong, qk_status expected, const char *word,
                         std::function<qk_status(World &)> call) {
        cells.push_back({wrong, expected, word, std::move(call)});
    };
    for (const int32_t count : {-1, INT32_MIN}) {
        add("count", QK_ERROR_ARGUMENT, "count", [=](World &o) {
            const qk_product product = good_product(o);
            return qk_multiply(o.context, &product, count);
        });
        add("count", QK_ERROR_ARGUMENT, "count", [=](World &o) {
            return qk_multiply_workspace(o.context, nullptr, count, &o.outputs.bytes);
        });
    }
    add("products NULL", QK_ERROR_NULL, "products",
        [](World &o) { return qk_multiply(o.context, nullptr, 1); });
    add("products NULL", QK_ERROR_NULL, "products",
        [](World &o) { return qk_multiply_workspace(o.context, nullptr, 1, &o.outputs.bytes); });
    add("bytes NULL", QK_ERROR_NULL, "bytes",
        [](World &o) { return qk_multiply_workspace(o.context, nullptr, 0, nullptr); });
    add("product NULL", QK_ERROR_NULL, "product",
        [](World &o) { return qk_explain(o.context, nullptr, &o.outputs.plan); });
    add("plan NULL", QK_ERROR_NULL, "plan", [](World &o) {
        const qk_product product = good_product(o);
        return qk_explain(o.context, &product, nullptr);
    });
    for (const uint32_t size : {0u, 3u, 4097u, UINT32_MAX}) {
        add("plan's struct_size", QK_ERROR_ABI, "plan: struct_size", [=](World &o) {
            const qk_product product = good_product(o);
            o.outputs.plan.struct_size = size;
            const qk_status status = qk_explain(o.context, &product, &o.outputs.plan);
            o.outputs.plan.struct_size = sizeof(qk_plan);
            return status;
        });
    }
    const auto contexts = {+[](World &) { return static_cast<qk_context *>(nullptr); },
                           +[](World &o) { return o.destroyed_context(); },
                           +[](World &o) { return o.stranger_context(); }};
    for (const auto pick : contexts) {
        const auto answer = [=](auto call) {
            return [=](World &o) {
                const qk_product product = good_product(o);
                qk_context *const context = pick(o);
                const qk_status status = call(o, context, &product);
                return context == nullptr && status == QK_ERROR_NULL ? QK_ERROR_STATE : status;
            };
        };
        add("context", QK_ERROR_STATE, "", answer([](World &, qk_context *c, const qk_product *p) {
                return qk_multiply(c, p, 1);
            }));
        add("context", QK_ERROR_STATE, "", answer([](World &o, qk_context *c, const qk_product *p) {
                return qk_multiply_workspace(c, p, 1, &o.outputs.bytes);
            }));
        add("context", QK_ERROR_STATE, "", answer([](World &o, qk_context *c, const qk_product *p) {
                return qk_explain(c, p, &o.outputs.plan);
            }));
    }
    run_cells(cells, [](World &o) { return qk_multiply(o.context, nullptr, 0); });
}

}  // namespace
}  // namespace api
