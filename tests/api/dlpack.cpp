// DLPack in and out: what is shared, described how, and released when.
#include <gtest/gtest.h>

#include "api/support.hpp"

#include "api/dlpack_spec.hpp"

namespace api {
namespace {

struct Type {
    qk_format format;
    uint8_t code, bits;
};
constexpr Type kTypes[] = {{QK_FORMAT_F32, kDlFloat, 32},
                           {QK_FORMAT_F16, kDlFloat, 16},
                           {QK_FORMAT_BF16, kDlBfloat, 16},
                           {QK_FORMAT_I8, kDlInt, 8},
                           {QK_FORMAT_I16, kDlInt, 16}};

class Dlpack : public ::testing::Test {
  protected:
    void SetUp() override { context = make_context(allocator); }
    void TearDown() override {
        qk_context_destroy(context);
        EXPECT_EQ(allocator.live(), 0);
    }
    qk_tensor *import(DlSource &source) {
        qk_tensor *tensor = nullptr;
        EXPECT_EQ(qk_tensor_from_dlpack(context, &source.managed, &tensor), QK_OK)
            << qk_context_error(context);
        return tensor;
    }
    qk_tensor_desc describe(qk_tensor *tensor) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        EXPECT_EQ(qk_tensor_describe(tensor, &desc), QK_OK);
        return desc;
    }
    Allocator allocator;
    qk_context *context = nullptr;
};

TEST_F(Dlpack, ImportsEveryType) {
    for (const Type &type : kTypes) {
        DlSource source(3, 8);
        source.managed.dl_tensor.dtype = {type.code, type.bits, 1};
        qk_tensor *const tensor = import(source);
        const qk_tensor_desc desc = describe(tensor);
        EXPECT_EQ(desc.format, type.format);
        EXPECT_EQ(desc.rank, 2);
        EXPECT_EQ(desc.shape[0], 3);
        EXPECT_EQ(desc.shape[1], 8);
        EXPECT_EQ(desc.flags, 0u);
        std::vector<unsigned char> host(size_t(24 * type.bits / 8));
        EXPECT_EQ(qk_tensor_download(context, tensor, QK_PLANE_DATA, host.data(), host.size()),
                  QK_OK);
        EXPECT_EQ(std::memcmp(host.data(), source.data.data(), host.size()), 0);
        EXPECT_EQ(source.deleted, 0);
        qk_tensor_destroy(tensor);
        EXPECT_EQ(source.deleted, 1);
    }
}

TEST_F(Dlpack, ImportsAcceptWhatTheSpecificationAllows) {
    const auto accept = [&](auto change) {
        DlSource source(4, 6);
        change(source);
        qk_tensor *const tensor = import(source);
        qk_tensor_destroy(tensor);
        EXPECT_EQ(source.deleted, 1);
    };
    accept([](DlSource &s) { s.managed.dl_tensor.strides = nullptr; });
    for (const uint32_t minor : {0u, 1u, 99u, UINT32_MAX}) {
        accept([=](DlSource &s) { s.managed.version.minor = minor; });
    }
    accept([](DlSource &s) { s.managed.flags = kDlCopied; });
    accept([](DlSource &s) { s.managed.flags = ~uint64_t{0} & ~kDlReadOnly; });
    // The stride of a dimension of one element means nothing.
    for (const int64_t stride : {int64_t{0}, int64_t{-7}, INT64_MIN, INT64_MAX}) {
        accept([=](DlSource &s) { s.shape[0] = 1, s.strides[0] = stride; });
        accept([=](DlSource &s) { s.shape[1] = 1, s.strides[1] = stride, s.strides[0] = 1; });
    }
    for (int rank = 1; rank <= QK_MAX_RANK; ++rank) {
        accept([=](DlSource &s) {
            int64_t stride = 24 / (rank == 1 ? 1 : 12);
            for (int i = 0; i < rank; ++i) s.shape[i] = 1;
            s.shape[rank - 1] = stride;
            if (rank > 1) s.shape[0] = 12;
            for (int i = rank - 1; i >= 0; --i) s.strides[i] = i == 0 && rank > 1 ? stride : 1;
            for (int i = 1; i < rank - 1; ++i) s.strides[i] = 12345;
            s.managed.dl_tensor.ndim = rank;
        });
    }
    DlSource no_deleter(4, 6);
    no_deleter.managed.deleter = nullptr;
    qk_tensor_destroy(import(no_deleter));
}

// Rows of a wider array come in with their stride and go out with it.
TEST_F(Dlpack, RowsMayBeApart) {
    DlSource source(3, 40);
    source.shape[1] = 32;
    qk_tensor *tensor = nullptr;
    ASSERT_EQ(qk_tensor_from_dlpack(context, &source.managed, &tensor), QK_OK);
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    ASSERT_EQ(qk_tensor_describe(tensor, &desc), QK_OK);
    EXPECT_EQ(desc.row_stride, 40);
    DLManagedTensorVersioned *view = nullptr;
    ASSERT_EQ(qk_tensor_to_dlpack(tensor, QK_PLANE_DATA, &view), QK_OK);
    EXPECT_EQ(view->dl_tensor.strides[0], 40);
    EXPECT_EQ(view->dl_tensor.strides[1], 1);
    view->deleter(view);
    qk_tensor_destroy(tensor);
    EXPECT_EQ(source.deleted, 1);
}

TEST_F(Dlpack, ByteOffsetIsAdded) {
    DlSource source(2, 3, 5);
    for (size_t i = 0; i < source.data.size(); ++i) source.data[i] = float(i);
    qk_tensor *const tensor = import(source);
    float host[6];
    EXPECT_EQ(qk_tensor_download(context, tensor, QK_PLANE_DATA, host, sizeof(host)), QK_OK);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(host[i], float(i + 5));
    qk_tensor_destroy(tensor);
}

TEST_F(Dlpack, ReadOnlyStaysReadOnly) {
    DlSource source(4, 32);
    source.managed.flags = kDlReadOnly;
    qk_tensor *const tensor = import(source);
    EXPECT_EQ(describe(tensor).flags, QK_TENSOR_READ_ONLY);
    qk_tensor *const q = create(context, weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, 4, 32));
    EXPECT_EQ(qk_quantize(context, tensor, q), QK_OK);
    EXPECT_EQ(qk_dequantize(context, q, tensor), QK_ERROR_STATE);
    EXPECT_EQ(qk_tensor_upload(context, tensor, QK_PLANE_DATA, &source, 512), QK_ERROR_STATE);
    for (const float value : source.data) EXPECT_EQ(value, 0.5f);
    DLManagedTensorVersioned *view = nullptr;
    ASSERT_EQ(qk_tensor_to_dlpack(tensor, QK_PLANE_DATA, &view), QK_OK);
    EXPECT_EQ(view->flags & kDlReadOnly, kDlReadOnly);
    view->deleter(view);
    EXPECT_EQ(source.deleted, 0);
    qk_tensor_destroy(tensor);
    qk_tensor_destroy(q);
    EXPECT_EQ(source.deleted, 1);
}

TEST_F(Dlpack, ExportsDenseTensorsAsTheyAre) {
    for (const Type &type : kTypes) {
        Planes planes(dense_desc(type.format, {2, 3, 4}));
        qk_tensor *const tensor = wrap(context, dense_desc(type.format, {2, 3, 4}), planes);
        DLManagedTensorVersioned *view = nullptr;
        ASSERT_EQ(qk_tensor_to_dlpack(tensor, QK_PLANE_DATA, &view), QK_OK);
        EXPECT_EQ(view->version.major, 1u);
        EXPECT_EQ(view->flags, 0u);
        const auto &out = view->dl_tensor;
        EXPECT_EQ(out.data, planes.pointers[0]) << "shared, not copied";
        EXPECT_EQ(out.byte_offset, 0u);
        EXPECT_EQ(out.device.device_type, kDlCpu);
        EXPECT_EQ(out.device.device_id, 0);
        EXPECT_EQ(out.dtype.code, type.code);
        EXPECT_EQ(out.dtype.bits, type.bits);
        EXPECT_EQ(out.dtype.lanes, 1);
        ASSERT_EQ(out.ndim, 3);
        const int64_t shape[] = {2, 3, 4}, strides[] = {12, 4, 1};
        for (int i = 0; i < 3; ++i) {
            EXPECT_EQ(out.shape[i], shape[i]);
            EXPECT_EQ(out.strides[i], strides[i]);
        }
        qk_tensor_destroy(tensor);  // the view alone keeps everything
        EXPECT_EQ(out.shape[2], 4);
        view->deleter(view);
    }
}

TEST_F(Dlpack, ExportsEveryPlaneAsARun) {
    std::vector<qk_tensor_desc> descs = weight_descs(9, 50, 16);
    descs.push_back(descs[0]);
    descs.back().flags |= QK_TENSOR_ORDERED;
    for (const qk_tensor_desc &desc : descs) {
        Planes planes(desc);
        qk_tensor *const tensor = wrap(context, desc, planes);
        for (qk_plane plane = 0; plane < QK_PLANE_COUNT; ++plane) {
            const int64_t bytes = int64_t(planes.bytes[size_t(plane)].size());
            DLManagedTensorVersioned *view = nullptr;
            const qk_status status = qk_tensor_to_dlpack(tensor, plane, &view);
            ASSERT_EQ(status, bytes == 0 ? QK_ERROR_FORMAT : QK_OK);
            if (bytes == 0) continue;
            Type type = {0, kDlUint, 8};
            if (plane == QK_PLANE_SCALE && desc.scale_format != QK_FORMAT_LUT8) {
                type = kTypes[desc.scale_format - QK_FORMAT_F32];
            } else if (plane == QK_PLANE_ORDER) {
                type = {QK_FORMAT_F32, kDlInt, 32};
            } else if (plane >= QK_PLANE_SCALE2) {
                type = kTypes[0];
            }
            EXPECT_EQ(view->dl_tensor.dtype.code, type.code) << plane;
            EXPECT_EQ(view->dl_tensor.dtype.bits, type.bits) << plane;
            EXPECT_EQ(view->dl_tensor.ndim, 1);
            EXPECT_EQ(view->dl_tensor.shape[0] * (type.bits / 8), bytes);
            EXPECT_EQ(view->dl_tensor.strides[0], 1);
            EXPECT_EQ(view->dl_tensor.data, planes.pointers[plane]);
            view->deleter(view);
        }
        qk_tensor_destroy(tensor);
    }
}

}  // namespace
}  // namespace api
