#include "api/support.hpp"

namespace api {

std::vector<qk_tensor_desc> weight_descs(int64_t n, int64_t k, int32_t group_size) {
    std::vector<qk_tensor_desc> all;
    for (const qk_format format : {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4, QK_FORMAT_FP4_BNB,
                                   QK_FORMAT_FP4_E2M1, QK_FORMAT_LUT8, QK_FORMAT_S8}) {
        for (qk_layout layout = QK_LAYOUT_ROW; layout <= QK_LAYOUT_WORD; ++layout) {
            for (const qk_format scale :
                 {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_LUT8}) {
                for (const qk_grouping grouping : {QK_GROUPING_ALONG_K, QK_GROUPING_FLAT}) {
                    for (const uint32_t flags : {0u, QK_TENSOR_SYMMETRIC}) {
                        auto desc = weight_desc(format, layout, n, k, group_size, scale);
                        desc.grouping = grouping;
                        desc.flags = flags;
                        size_t bytes = 0;
                        const bool valid =
                            qk_tensor_plane_bytes(&desc, QK_PLANE_DATA, &bytes) == QK_OK;
                        const bool wide = format == QK_FORMAT_LUT8 || format == QK_FORMAT_S8;
                        const bool flat_layout =
                            layout == QK_LAYOUT_ROW || layout == QK_LAYOUT_ROW_HIGH;
                        const bool expected =
                            (!wide || layout == QK_LAYOUT_ROW) &&
                            (grouping == QK_GROUPING_ALONG_K || flat_layout) &&
                            (flags == 0 || format == QK_FORMAT_U4_AFFINE || format == QK_FORMAT_S8);
                        EXPECT_EQ(valid, expected) << format << ' ' << layout << ' ' << grouping;
                        if (valid) all.push_back(desc);
                    }
                }
            }
        }
    }
    return all;
}

}  // namespace api
