// Descriptions with one thing wrong, through every function that takes one.
#include <gtest/gtest.h>

#include "api/world.hpp"

namespace api {
namespace {

struct Wrong {
    const char *what;
    qk_status expected;
    const char *word;
    qk_tensor_desc desc;
};

constexpr int32_t kExtremes[] = {-1, INT32_MIN, INT32_MAX};

class Table {
  public:
    std::vector<Wrong> rows;
    // A valid description with one field changed.
    template <class Change>
    void add(const char *what, qk_status expected, const char *word, Change change,
             qk_tensor_desc desc = weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, 16, 32)) {
        change(desc);
        rows.push_back({what, expected, word, desc});
    }
};

const qk_tensor_desc kDense = dense_desc(QK_FORMAT_F16, {16, 32});
const qk_tensor_desc kNested =
    weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, 16, 32, 16, QK_FORMAT_LUT8);

void add_header(Table &t) {
    for (const uint32_t size : {0u, 4u, uint32_t(sizeof(qk_tensor_desc)) - 1,
                                uint32_t(sizeof(qk_tensor_desc)) + 1, UINT32_MAX}) {
        t.add("struct_size", QK_ERROR_ABI, "struct_size",
              [=](qk_tensor_desc &d) { d.struct_size = size; });
    }
    for (const uint32_t bits : {256u, 512u, 0x80000000u, ~0u}) {
        t.add("flags", QK_ERROR_ARGUMENT, "flags", [=](qk_tensor_desc &d) { d.flags = bits; });
    }
    for (const uint32_t value : {1u, UINT32_MAX}) {
        t.add("reserved", QK_ERROR_ARGUMENT, "reserved",
              [=](qk_tensor_desc &d) { d.reserved = value; });
    }
}

void add_codes(Table &t) {
    for (const int32_t value : {0, 7, 15, 23, 27, 99, -1, INT32_MIN, INT32_MAX}) {
        t.add("format", QK_ERROR_FORMAT, "format", [=](qk_tensor_desc &d) { d.format = value; });
    }
    for (const qk_format value :
         std::initializer_list<qk_format>{0, QK_FORMAT_I16, QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4,
                                          QK_FORMAT_S8, 99, -1, INT32_MIN, INT32_MAX}) {
        t.add("scale_format", QK_ERROR_FORMAT, "scale_format",
              [=](qk_tensor_desc &d) { d.scale_format = value; });
    }
    // 1000 and on are numbers the library uses inside.
    for (const int32_t value : {7, 98, 100, 1000, 1001, -1, INT32_MIN, INT32_MAX}) {
        t.add("layout", QK_ERROR_FORMAT, "layout", [=](qk_tensor_desc &d) { d.layout = value; });
    }
    for (const int32_t value : {3, -1, INT32_MIN, INT32_MAX}) {
        t.add("grouping", QK_ERROR_ARGUMENT, "grouping",
              [=](qk_tensor_desc &d) { d.grouping = value; });
    }
    for (qk_layout layout = QK_LAYOUT_ROW_HIGH; layout <= QK_LAYOUT_WORD; ++layout) {
        for (const qk_format format : {QK_FORMAT_S8, QK_FORMAT_LUT8}) {
            t.add("8-bit codes in a 4-bit layout", QK_ERROR_FORMAT, "layout",
                  [=](qk_tensor_desc &d) { d.layout = layout, d.format = format; });
        }
    }
    t.add("symmetric without zeros", QK_ERROR_FORMAT, "SYMMETRIC",
          [](qk_tensor_desc &d) { d.flags = QK_TENSOR_SYMMETRIC; });
}

void add_globals(Table &t) {
    const auto small = weight_desc(QK_FORMAT_FP4_E2M1, QK_LAYOUT_ROW, 16, 32, 16, QK_FORMAT_E4M3);
    const auto add = [&](const char *what, qk_status status, const char *word, uint32_t flags,
                         const qk_tensor_desc &desc) {
        t.add(
            what, status, word, [=](qk_tensor_desc &d) { d.flags = flags; }, desc);
    };
    add("both kinds", QK_ERROR_ARGUMENT, "exclude", QK_TENSOR_GLOBAL | QK_TENSOR_GLOBAL_ROWS,
        small);
    add("divides by nothing", QK_ERROR_ARGUMENT, "DIVIDES", QK_TENSOR_GLOBAL_DIVIDES, small);
    add("global of plain scales", QK_ERROR_FORMAT, "global", QK_TENSOR_GLOBAL,
        weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, 16, 32));
    add("global of nested scales", QK_ERROR_FORMAT, "global", QK_TENSOR_GLOBAL_ROWS, kNested);
    add("global of a dense tensor", QK_ERROR_FORMAT, "dense", QK_TENSOR_GLOBAL, kDense);
    add("order of a dense tensor", QK_ERROR_FORMAT, "order", QK_TENSOR_ORDERED, kDense);
    t.add(
        "rows of flat groups", QK_ERROR_FORMAT, "straddle",
        [](qk_tensor_desc &d) {
        d.flags = QK_TENSOR_GLOBAL_ROWS, d.grouping = QK_GROUPING_FLAT, d.shape[1] = 24;
        },
        small);
}

void add_groups(Table &t) {
    for (const int32_t value : {0, 1, 15, 4097, -2, INT32_MIN, INT32_MAX}) {
        t.add("group_size", QK_ERROR_SHAPE, "group_size",
              [=](qk_tensor_desc &d) { d.group_size = value; });
    }
    for (const int32_t value : {0, -2, INT32_MIN}) {
        t.add(
            "group_size of lut8", QK_ERROR_SHAPE, "accepted are 1 to 2147483647",
            [=](qk_tensor_desc &d) { d.group_size = value; },
            weight_desc(QK_FORMAT_LUT8, QK_LAYOUT_ROW, 16, 32));
    }
    t.add("flat groups of a row", QK_ERROR_SHAPE, "group_size",
          [](qk_tensor_desc &d) { d.grouping = QK_GROUPING_FLAT, d.group_size = QK_GROUP_ROW; });
    for (qk_layout layout = QK_LAYOUT_AWQ_GEMM; layout <= QK_LAYOUT_WORD; ++layout) {
        t.add("flat groups", QK_ERROR_FORMAT, "layout",
              [=](qk_tensor_desc &d) { d.grouping = QK_GROUPING_FLAT, d.layout = layout; });
    }
    for (const int32_t value : {1, 256, -1, INT32_MIN, INT32_MAX}) {
        t.add("scale_group_size without nesting", QK_ERROR_FORMAT, "scale_group_size",
              [=](qk_tensor_desc &d) { d.scale_group_size = value; });
    }
    for (const int32_t value : {1, 15, 4097, -1, INT32_MIN, INT32_MAX}) {
        t.add(
            "scale_group_size", QK_ERROR_SHAPE, "scale_group_size",
            [=](qk_tensor_desc &d) { d.scale_group_size = value; }, kNested);
    }
}

void add_shapes(Table &t) {
    for (const int32_t value : {0, QK_MAX_RANK + 1, -1, INT32_MIN, INT32_MAX}) {
        t.add("rank", QK_ERROR_SHAPE, "rank", [=](qk_tensor_desc &d) { d.rank = value; });
        t.add(
            "rank", QK_ERROR_SHAPE, "rank", [=](qk_tensor_desc &d) { d.rank = value; }, kDense);
    }
    for (int i = 0; i < 2; ++i) {
        for (const int64_t value : {int64_t{0}, int64_t{-1}, INT64_MIN, INT64_MAX, INT64_MAX / 2,
                                    (int64_t{1} << 60) + 1}) {
            if (i == 1 || value != 0) {  // a dense tensor may have no rows
                t.add(
                    "shape", QK_ERROR_SHAPE, "shape",
                    [=](qk_tensor_desc &d) { d.shape[i] = value; }, kDense);
            }
            const char *const word = value < 1 ? "shape" : "overflow";
            t.add("shape", QK_ERROR_SHAPE, word, [=](qk_tensor_desc &d) { d.shape[i] = value; });
        }
    }
    // Products that wrap to something small and positive.
    t.add("product", QK_ERROR_SHAPE, "overflow", [](qk_tensor_desc &d) {
        d.shape[0] = (int64_t{1} << 32) + 1, d.shape[1] = int64_t{1} << 32;
    });
    t.add("product of three", QK_ERROR_SHAPE, "overflow", [](qk_tensor_desc &d) {
        d.rank = 4;
        for (int i = 0; i < 4; ++i) d.shape[i] = int64_t{1} << 22;
    });
    // The counts fit int64, their bytes with padding do not.
    t.add("padding", QK_ERROR_SHAPE, "overflow",
          [](qk_tensor_desc &d) { d.shape[0] = INT64_MAX / 8 - 100, d.shape[1] = 1; });
}

void add_dense(Table &t) {
    const auto add = [&](const char *what, auto change) {
        t.add(what, QK_ERROR_FORMAT, "desc", change, kDense);
    };
    for (qk_layout layout = QK_LAYOUT_ROW_HIGH; layout <= QK_LAYOUT_WORD; ++layout) {
        add("dense with a layout", [=](qk_tensor_desc &d) { d.layout = layout; });
    }
    for (const int32_t value : kExtremes) {
        add("dense layout", [=](qk_tensor_desc &d) { d.layout = value; });
        add("dense scales", [=](qk_tensor_desc &d) { d.scale_format = value; });
        add("dense groups", [=](qk_tensor_desc &d) { d.group_size = value; });
        add("dense grouping", [=](qk_tensor_desc &d) { d.grouping = value; });
        add("dense scale groups", [=](qk_tensor_desc &d) { d.scale_group_size = value; });
    }
    add("dense scales", [](qk_tensor_desc &d) { d.scale_format = QK_FORMAT_F32; });
    add("dense symmetric", [](qk_tensor_desc &d) { d.flags = QK_TENSOR_SYMMETRIC; });
}

const std::vector<Wrong> &wrong_descriptions() {
    static const std::vector<Wrong> rows = [] {
        Table table;
        add_header(table);
        add_codes(table);
        add_globals(table);
        add_groups(table);
        add_shapes(table);
        add_dense(table);
        return table.rows;
    }();
    return rows;
}

const qk_tensor_desc kGood = weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, 16, 32);

TEST(BadArguments, PlaneBytes) {
    std::vector<Cell> cells;
    const auto add =
        [&](std::string what, qk_status expected, const qk_tensor_desc &desc, qk_plane plane) {
        cells.push_back({std::move(what), expected, "", [=](World &o) {
                             return qk_tensor_plane_bytes(&desc, plane, &o.outputs.bytes);
                         }});
    };
    for (const Wrong &wrong : wrong_descriptions()) {
        add(wrong.what, wrong.expected, wrong.desc, QK_PLANE_DATA);
    }
    for (const qk_plane plane : {QK_PLANE_COUNT + 0, -1, INT32_MIN, INT32_MAX}) {
        add("plane", QK_ERROR_ARGUMENT, kGood, plane);
    }
    qk_tensor_desc packed = kGood;
    packed.layout = QK_LAYOUT_PACKED;
    add("packed", QK_ERROR_UNSUPPORTED, packed, QK_PLANE_DATA);
    cells.push_back({"desc NULL", QK_ERROR_NULL, "", [](World &o) {
                         return qk_tensor_plane_bytes(nullptr, QK_PLANE_DATA, &o.outputs.bytes);
                     }});
    cells.push_back({"bytes NULL", QK_ERROR_NULL, "", [](World &) {
                         return qk_tensor_plane_bytes(&kGood, QK_PLANE_DATA, nullptr);
                     }});
    run_cells(cells, [](World &) {
        size_t bytes = 0;
        return qk_tensor_plane_bytes(&kGood, QK_PLANE_DATA, &bytes);
    });
}

// Past the first two words, nothing that struct_size does not cover is read: ASan guards the end
// of the block.
TEST(BadArguments, ShortDescriptionIsNotReadPastItsSize) {
    Allocator allocator;
    qk_context *const context = make_context(allocator);
    std::vector<uint32_t> only_size(2, 8u);
    const auto *const desc = reinterpret_cast<const qk_tensor_desc *>(only_size.data());
    size_t bytes = 7;
    qk_tensor *out = nullptr;
    void *planes[1] = {&bytes};
    EXPECT_EQ(qk_tensor_plane_bytes(desc, QK_PLANE_DATA, &bytes), QK_ERROR_ABI);
    EXPECT_EQ(qk_tensor_create(context, desc, &out), QK_ERROR_ABI);
    EXPECT_EQ(qk_tensor_wrap(context, desc, planes, 1, &out), QK_ERROR_ABI);
    EXPECT_EQ(bytes, 7u);
    EXPECT_EQ(out, nullptr);
    const auto *const options = reinterpret_cast<const qk_context_options *>(only_size.data());
    qk_context *none = nullptr;
    EXPECT_EQ(qk_context_create(options, &none), QK_ERROR_ABI);
    EXPECT_EQ(none, nullptr);
    qk_context_destroy(context);
}

TEST(BadArguments, Create) {
    std::vector<Cell> cells;
    const auto add =
        [&](std::string what, qk_status expected, const char *word, const qk_tensor_desc &desc) {
        cells.push_back({std::move(what), expected, word, [=](World &o) {
                             return qk_tensor_create(o.context, &desc, &o.outputs.tensor);
                         }});
    };
    for (const Wrong &wrong : wrong_descriptions()) {
        add(wrong.what, wrong.expected, wrong.word, wrong.desc);
    }
    add("too large for memory", QK_ERROR_MEMORY, "tensor",
        dense_desc(QK_FORMAT_F32, {int64_t{1} << 20, int64_t{1} << 20}));
    add("too large for the address space", QK_ERROR_MEMORY, "tensor",
        dense_desc(QK_FORMAT_F32, {int64_t{1} << 29, int64_t{1} << 30}));
    cells.push_back({"desc NULL", QK_ERROR_NULL, "desc", [](World &o) {
                         return qk_tensor_create(o.context, nullptr, &o.outputs.tensor);
                     }});
    cells.push_back({"out NULL", QK_ERROR_NULL, "out",
                     [](World &o) { return qk_tensor_create(o.context, &kGood, nullptr); }});
    for (const bool dead : {false, true}) {
        cells.push_back({"context", dead ? QK_ERROR_STATE : QK_ERROR_NULL, "", [=](World &o) {
                             return qk_tensor_create(dead ? o.destroyed_context() : nullptr, &kGood,
                                                     &o.outputs.tensor);
                         }});
    }
    run_cells(cells, [](World &o) {
        qk_tensor *tensor = nullptr;
        const qk_status status = qk_tensor_create(o.context, &kGood, &tensor);
        qk_tensor_destroy(tensor);
        return status;
    });
}

TEST(BadArguments, WrapDescriptions) {
    std::vector<Cell> cells;
    const auto add =
        [&](std::string what, qk_status expected, const char *word, const qk_tensor_desc &desc) {
        cells.push_back({std::move(what), expected, word, [=](World &o) {
                             void *planes[QK_PLANE_COUNT] = {o.plane(o.nf4, QK_PLANE_DATA),
                                                             o.plane(o.nf4, QK_PLANE_SCALE)};
                             return qk_tensor_wrap(o.context, &desc, planes, 2, &o.outputs.tensor);
                         }});
    };
    for (const Wrong &wrong : wrong_descriptions()) {
        add(wrong.what, wrong.expected, wrong.word, wrong.desc);
    }
    qk_tensor_desc packed = kGood;
    packed.layout = QK_LAYOUT_PACKED;
    add("packed", QK_ERROR_UNSUPPORTED, "packed", packed);
    run_cells(cells, [](World &o) {
        qk_tensor *tensor = nullptr;
        void *planes[2] = {o.plane(o.nf4, QK_PLANE_DATA), o.plane(o.nf4, QK_PLANE_SCALE)};
        const qk_status status = qk_tensor_wrap(o.context, &kGood, planes, 2, &tensor);
        qk_tensor_destroy(tensor);
        return status;
    });
}

}  // namespace
}  // namespace api
