#include "api/outputs.hpp"

namespace api {

static void append(std::vector<unsigned char> *all, const Planes &planes) {
    for (const auto &bytes : planes.bytes) all->insert(all->end(), bytes.begin(), bytes.end());
}

std::vector<unsigned char> outputs_of(qk_context *context, const qk_tensor_desc &desc, float scale,
                                      const Around &around) {
    const auto run = [&](auto function, auto... arguments) {
        const qk_status status = around([&] { return function(context, arguments...); });
        EXPECT_EQ(status, QK_OK) << qk_context_error(context);
    };
    const int64_t n = desc.shape[0], k = desc.shape[1], m = 5;
    const auto matrix = dense_desc(QK_FORMAT_F32, {n, k});
    const qk_format type = scale == 1 ? QK_FORMAT_F16 : QK_FORMAT_F32;  // small sums stay visible
    const auto x_desc = dense_desc(type, {m, k}), y_desc = dense_desc(type, {m, n});
    qk_tensor_desc to_desc = desc;
    to_desc.layout = desc.layout == QK_LAYOUT_ROW ? QK_LAYOUT_ROW_HIGH : QK_LAYOUT_ROW;
    const bool wide = desc.format == QK_FORMAT_LUT8 || desc.format == QK_FORMAT_S8;
    if (wide) to_desc.layout = QK_LAYOUT_ROW;
    Planes w(matrix), q(desc), to(to_desc), back(matrix), x(x_desc), y(y_desc),
        bias(dense_desc(QK_FORMAT_F32, {n}));
    w.fill_dense(QK_FORMAT_F32, 3);
    for (int64_t i = 0; i < n * k; ++i) w.as<float>()[i] *= scale;
    x.fill_dense(type, 5);
    bias.fill_dense(QK_FORMAT_F32, 7);
    for (int64_t i = 0; i < n; ++i) bias.as<float>()[i] *= scale;
    q.fill_tables();
    qk_tensor *const tensors[] = {wrap(context, matrix, w),
                                  wrap(context, desc, q),
                                  wrap(context, to_desc, to),
                                  wrap(context, matrix, back),
                                  wrap(context, x_desc, x),
                                  wrap(context, y_desc, y),
                                  wrap(context, dense_desc(QK_FORMAT_F32, {n}), bias)};
    run(qk_quantize, tensors[0], tensors[1]);
    run(qk_repack, tensors[1], tensors[2]);
    run(qk_dequantize, tensors[1], tensors[3]);
    run(qk_linear, tensors[4], tensors[1], tensors[6], tensors[5]);
    std::vector<unsigned char> all;
    append(&all, q);
    append(&all, to);
    append(&all, back);
    append(&all, y);
    to_desc.layout = QK_LAYOUT_PACKED;
    qk_tensor *const packed = create(context, to_desc);
    run(qk_repack, tensors[1], packed);
    Planes second(y_desc);
    qk_tensor *const y2 = wrap(context, y_desc, second);
    const qk_product list[] = {
        {sizeof(qk_product), 0, tensors[4], packed, nullptr, tensors[5], nullptr},
        {sizeof(qk_product), 0, tensors[4], tensors[1], tensors[6], y2, nullptr},
    };
    run(qk_multiply, list, 2);
    append(&all, y);
    append(&all, second);
    qk_tensor_destroy(y2);
    qk_tensor_destroy(packed);
    for (qk_tensor *const tensor : tensors) qk_tensor_destroy(tensor);
    return all;
}

std::vector<qk_tensor_desc> odd_descs(int64_t rows) {
    auto all = weight_descs(rows, 105, 32);
#if defined(QK_SANITIZED)
    // Sanitizers look at how tasks touch memory, not at every format: every seventh will do.
    for (size_t i = 0; i * 7 < all.size(); ++i) all[i] = all[i * 7];
    all.resize((all.size() + 6) / 7);
#endif
    auto large = weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW_HIGH, 601, 100, 64, QK_FORMAT_LUT8);
    large.grouping = QK_GROUPING_FLAT;
    all.push_back(large);
    large = weight_desc(QK_FORMAT_U4_AFFINE, QK_LAYOUT_AWQ_GEMM, 601, 256, 128, QK_FORMAT_F16);
    all.push_back(large);
    return all;
}

}  // namespace api
