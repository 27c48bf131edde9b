// Handles: destroyed in any order, described as they were made, moved in and out.
#include <gtest/gtest.h>

#include <algorithm>

#include "api/dlpack_spec.hpp"
#include "api/support.hpp"

namespace api {
namespace {

// A context, a child of each kind, a view of one, and one handle in another context: every one of
// the 720 orders of destruction frees everything, calls each deleter once, and crashes nowhere.
TEST(Handles, DestroyInAnyOrder) {
    std::vector<int> order = {0, 1, 2, 3, 4, 5};
    int orders = 0;
    do {
        Allocator allocator;
        qk_context *const context = make_context(allocator, 2);
        qk_context *const other = make_context(allocator);
        DlSource source;
        qk_tensor *const owned = create(context, dense_desc(QK_FORMAT_F32, {7, 5}));
        Planes planes(dense_desc(QK_FORMAT_F32, {3}));
        qk_tensor *const borrowed = wrap(context, dense_desc(QK_FORMAT_F32, {3}), planes);
        qk_tensor *imported = nullptr;
        ASSERT_EQ(qk_tensor_from_dlpack(context, &source.managed, &imported), QK_OK);
        DLManagedTensorVersioned *view = nullptr;
        ASSERT_EQ(qk_tensor_to_dlpack(owned, QK_PLANE_DATA, &view), QK_OK);
        qk_tensor *reimported = nullptr;  // the view's consumer is another context
        ASSERT_EQ(qk_tensor_from_dlpack(other, view, &reimported), QK_OK);
        for (const int i : order) {
            switch (i) {
                case 0: qk_context_destroy(context); break;
                case 1: qk_context_destroy(other); break;
                case 2: qk_tensor_destroy(owned); break;
                case 3: qk_tensor_destroy(borrowed); break;
                case 4: qk_tensor_destroy(imported); break;
                default: qk_tensor_destroy(reimported);
            }
        }
        ASSERT_EQ(source.deleted, 1);
        ASSERT_EQ(allocator.live(), 0);
        ++orders;
    } while (std::next_permutation(order.begin(), order.end()));
    EXPECT_EQ(orders, 720);
}

TEST(Handles, ChildrenOutliveTheirContext) {
    Allocator allocator;
    qk_context *const parent = make_context(allocator), *const other = make_context(allocator);
    qk_tensor *const dense = create(parent, dense_desc(QK_FORMAT_F32, {4, 32}));
    qk_tensor *const q = create(parent, weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, 4, 32));
    qk_context_destroy(parent);
    const std::vector<float> ones(4 * 32, 1.0f);
    std::vector<float> back(4 * 32, 0.0f);
    EXPECT_EQ(qk_tensor_upload(other, dense, QK_PLANE_DATA, ones.data(), 512), QK_OK);
    EXPECT_EQ(qk_quantize(other, dense, q), QK_OK);
    EXPECT_EQ(qk_dequantize(other, q, dense), QK_OK);
    EXPECT_EQ(qk_tensor_download(other, dense, QK_PLANE_DATA, back.data(), 512), QK_OK);
    EXPECT_EQ(back, ones);
    for (qk_tensor *const tensor : {dense, q}) qk_tensor_destroy(tensor);
    qk_context_destroy(other);
    EXPECT_EQ(allocator.live(), 0);
}

TEST(Handles, DescribeRoundTrip) {
    Allocator allocator;
    qk_context *const context = make_context(allocator);
    auto descs = weight_descs(24, 80, 32);
    for (const qk_format format :
         {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_I8, QK_FORMAT_I16}) {
        descs.push_back(dense_desc(format, {2, 3, 4, 5}));
    }
    descs.push_back(weight_desc(QK_FORMAT_NF4, QK_LAYOUT_PACKED, 24, 80, 32));
    auto cube = weight_desc(QK_FORMAT_S8, QK_LAYOUT_ROW, 0, 0, QK_GROUP_ROW);
    cube.rank = 3;
    for (int i = 0; i < 3; ++i) cube.shape[i] = 5 + i;
    descs.push_back(cube);
    for (const qk_tensor_desc &desc : descs) {
        qk_tensor *const made = create(context, desc);
        qk_tensor_desc first = QK_TENSOR_DESC_INIT, second = QK_TENSOR_DESC_INIT;
        EXPECT_EQ(qk_tensor_describe(made, &first), QK_OK);
        EXPECT_EQ(first.format, desc.format);
        EXPECT_EQ(first.scale_format, desc.scale_format);
        EXPECT_EQ(first.layout, desc.layout);
        EXPECT_EQ(first.group_size, desc.group_size);
        EXPECT_EQ(first.flags, desc.flags);
        EXPECT_EQ(first.rank, desc.rank);
        EXPECT_EQ(std::memcmp(first.shape, desc.shape, sizeof(desc.shape)), 0);
        const bool nested = desc.scale_format == QK_FORMAT_LUT8;
        EXPECT_EQ(first.scale_group_size, nested ? 256 : 0);
        const bool dense = desc.format <= QK_FORMAT_I16;
        EXPECT_EQ(first.grouping == QK_GROUPING_DEFAULT, dense) << "comes back resolved";
        EXPECT_TRUE(desc.grouping == QK_GROUPING_DEFAULT || first.grouping == desc.grouping);
        // What came back describes the same tensor again, and the same bytes.
        qk_tensor *const again = create(context, first);
        EXPECT_EQ(qk_tensor_describe(again, &second), QK_OK);
        EXPECT_EQ(std::memcmp(&first, &second, sizeof(first)), 0);
        for (qk_plane plane = 0; desc.layout != QK_LAYOUT_PACKED && plane < QK_PLANE_COUNT;
             ++plane) {
            size_t a = 1, b = 2;
            EXPECT_EQ(qk_tensor_plane_bytes(&desc, plane, &a), QK_OK);
            EXPECT_EQ(qk_tensor_plane_bytes(&first, plane, &b), QK_OK);
            EXPECT_EQ(a, b);
        }
        qk_tensor_destroy(made);
        qk_tensor_destroy(again);
    }
    qk_context_destroy(context);
    EXPECT_EQ(allocator.live(), 0);
}

TEST(Handles, DefaultGroupingIsResolved) {
    Allocator allocator;
    qk_context *const context = make_context(allocator);
    struct {
        qk_format format;
        qk_layout layout;
        int32_t group_size;
        qk_grouping expected;
    } const rows[] = {
        {QK_FORMAT_NF4, QK_LAYOUT_ROW, 32, QK_GROUPING_ALONG_K},
        {QK_FORMAT_NF4, QK_LAYOUT_ROW_HIGH, 32, QK_GROUPING_FLAT},
        {QK_FORMAT_NF4, QK_LAYOUT_ROW_HIGH, QK_GROUP_ROW, QK_GROUPING_ALONG_K},
        {QK_FORMAT_LUT8, QK_LAYOUT_ROW, 32, QK_GROUPING_FLAT},
        {QK_FORMAT_LUT8, QK_LAYOUT_ROW, QK_GROUP_ROW, QK_GROUPING_ALONG_K},
        {QK_FORMAT_S8, QK_LAYOUT_ROW, 32, QK_GROUPING_ALONG_K},
        {QK_FORMAT_U4_AFFINE, QK_LAYOUT_GPTQ, 32, QK_GROUPING_ALONG_K},
    };
    for (const auto &row : rows) {
        qk_tensor *const made =
            create(context, weight_desc(row.format, row.layout, 3, 50, row.group_size));
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        EXPECT_EQ(qk_tensor_describe(made, &desc), QK_OK);
        EXPECT_EQ(desc.grouping, row.expected) << row.format << ' ' << row.layout;
        qk_tensor_destroy(made);
    }
    qk_context_destroy(context);
}

// Every plane of every description: what goes up comes down, and lands in no other plane.
TEST(Handles, UploadAndDownload) {
    Allocator allocator;
    qk_context *const context = make_context(allocator);
    for (const qk_tensor_desc &desc : weight_descs(9, 50, 16)) {
        qk_tensor *const made = create(context, desc);
        Planes sent(desc), back(desc, 0);
        for (qk_plane plane = 0; plane < QK_PLANE_COUNT; ++plane) {
            auto &bytes = sent.bytes[size_t(plane)];
            for (size_t i = 0; i < bytes.size(); ++i) {
                bytes[i] = static_cast<unsigned char>(i * 7 + size_t(plane) * 31);
            }
            if (bytes.empty()) continue;
            EXPECT_EQ(qk_tensor_upload(context, made, plane, bytes.data(), bytes.size()), QK_OK);
        }
        for (qk_plane plane = 0; plane < QK_PLANE_COUNT; ++plane) {
            auto &bytes = back.bytes[size_t(plane)];
            if (bytes.empty()) continue;
            EXPECT_EQ(qk_tensor_download(context, made, plane, bytes.data(), bytes.size()), QK_OK);
        }
        EXPECT_EQ(sent.bytes, back.bytes);
        qk_tensor_destroy(made);
    }
    qk_context_destroy(context);
}

}  // namespace
}  // namespace api
