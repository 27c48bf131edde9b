// qk_quantize gives the bytes of bitsandbytes' CPU backend: NF4, FP4, nested scales, 8-bit
// blockwise. The oracle's inputs hold every tie, zero blocks, subnormals and the largest numbers.
#include <algorithm>
#include <cstring>

#include "golden/golden_files.hpp"

namespace {

using golden::Checkpoint;
using golden::Context;
using golden::Tensor;

struct GoldenQuantize : testing::Test {
    Context context = golden::make_context();
    Checkpoint inputs = golden::open("bnb_quantize_oracle/inputs.safetensors");
    Checkpoint expected = golden::open("bnb_quantize_oracle/expected.safetensors");

    Tensor input(const std::string &name) {
        qk_file_tensor file = {};
        EXPECT_EQ(qk_checkpoint_find_tensor(inputs.get(), name.c_str(), &file), QK_OK) << name;
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.format = golden::dense_format(file.dtype);
        desc.shape[0] = file.shape[0];
        Tensor tensor = golden::create(context, desc);
        golden::upload(context, tensor, QK_PLANE_DATA, file.data, size_t(file.bytes));
        return tensor;
    }

    void expect_plane(const Tensor &tensor, qk_plane plane, const std::string &name) {
        qk_file_tensor file = {};
        ASSERT_EQ(qk_checkpoint_find_tensor(expected.get(), name.c_str(), &file), QK_OK) << name;
        const auto bytes = golden::download(context, tensor, plane, size_t(file.bytes));
        if (std::memcmp(bytes.data(), file.data, bytes.size()) == 0) return;
        const auto *truth = static_cast<const uint8_t *>(file.data);
        const auto at = std::mismatch(bytes.begin(), bytes.end(), truth).first - bytes.begin();
        ADD_FAILURE() << name << ": byte " << at << " is " << int(bytes[size_t(at)])
                      << ", expected " << int(truth[at]);
    }
};

struct Case {
    std::string input, format;  // "x", "nf4"
    int32_t block;
    bool nested;
};

// "x.nf4.bs64.nested.offset" -> {x, nf4, 64, true}
Case parse(const std::string &name) {
    const size_t format = name.find('.') + 1, block = name.find(".bs") + 3;
    return {name.substr(0, format - 1), name.substr(format, block - 3 - format),
            std::stoi(name.substr(block)), name.find(".nested.") != std::string::npos};
}

TEST_F(GoldenQuantize, EqualsBitsandbytes) {
    const int64_t count = qk_checkpoint_tensor_count(expected.get());
    int cases = 0, nested_cases = 0;
    float dynamic[256];
    ASSERT_EQ(qk_dynamic_table(dynamic), QK_OK);
    for (int64_t i = 0; i < count; ++i) {
        qk_file_tensor file = {};
        ASSERT_EQ(qk_checkpoint_tensor(expected.get(), i, &file), QK_OK);
        const std::string name = file.name;
        const bool nested = name.size() > 14 && name.find(".nested.offset") != std::string::npos;
        const bool packed = name.find(".packed") != std::string::npos;
        const bool blockwise = name.find(".data") != std::string::npos;
        if (!nested && !packed && !blockwise) continue;
        const Case test = parse(name);
        const Tensor x = input(test.input);
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        ASSERT_EQ(qk_tensor_describe(x.get(), &desc), QK_OK);
        desc.format = blockwise              ? QK_FORMAT_LUT8
                      : test.format == "nf4" ? QK_FORMAT_NF4
                                             : QK_FORMAT_FP4_BNB;
        desc.scale_format = nested ? QK_FORMAT_LUT8 : QK_FORMAT_F32;
        desc.layout = blockwise ? QK_LAYOUT_ROW : QK_LAYOUT_ROW_HIGH;
        desc.group_size = test.block;
        const Tensor q = golden::create(context, desc);
        if (blockwise) golden::upload(context, q, QK_PLANE_TABLE, dynamic, sizeof(dynamic));
        if (nested) golden::upload(context, q, QK_PLANE_SCALE_CODE, dynamic, sizeof(dynamic));
        ASSERT_EQ(qk_quantize(context.get(), x.get(), q.get()), QK_OK)
            << name << ": " << qk_context_error(context.get());
        const std::string stem =
            test.input + "." + test.format + ".bs" + std::to_string(test.block);
        if (nested) {
            expect_plane(q, QK_PLANE_SCALE_BIAS, stem + ".nested.offset");
            expect_plane(q, QK_PLANE_SCALE2, stem + ".nested.nested_absmax");
            expect_plane(q, QK_PLANE_SCALE, stem + ".nested.absmax");
            ++nested_cases;
        } else {
            expect_plane(q, QK_PLANE_DATA, stem + (blockwise ? ".data" : ".packed"));
            expect_plane(q, QK_PLANE_SCALE, stem + ".absmax");
        }
        ++cases;
    }
    EXPECT_GE(cases, 100);
    EXPECT_GE(nested_cases, 20);
}

// Descriptions that have a package's own rule: all of quantizer_oracle.
struct Described {
    const char *name;
    qk_format format, scale_format;
    int32_t group_size;
    uint32_t flags;
    qk_layout layout = QK_LAYOUT_ROW;
};
constexpr Described kDescribed[] = {
    {"mxfp4", QK_FORMAT_FP4_E2M1, QK_FORMAT_E8M0, 32, 0},
    {"mxfp8", QK_FORMAT_E4M3, QK_FORMAT_E8M0, 32, 0},
    {"nvfp4", QK_FORMAT_FP4_E2M1, QK_FORMAT_E4M3, 16, QK_TENSOR_GLOBAL | QK_TENSOR_GLOBAL_DIVIDES},
    {"nvfp4_modelopt", QK_FORMAT_FP4_E2M1, QK_FORMAT_E4M3, 16, QK_TENSOR_GLOBAL},
    {"int8_row", QK_FORMAT_S8, 0, QK_GROUP_ROW, QK_TENSOR_SYMMETRIC},
    {"int8_g32", QK_FORMAT_S8, 0, 32, QK_TENSOR_SYMMETRIC},
    {"fp8_row", QK_FORMAT_E4M3, 0, QK_GROUP_ROW, 0},
    {"fp8_g32", QK_FORMAT_E4M3, 0, 32, 0},
    {"q4_0", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 32, QK_TENSOR_SYMMETRIC, QK_LAYOUT_GGUF_Q4_0},
    {"q8_0", QK_FORMAT_S8, QK_FORMAT_F16, 32, 0, QK_LAYOUT_GGUF_Q8_0},
};

TEST_F(GoldenQuantize, EqualsThePackages) {
    inputs = golden::open("quantizer_oracle/inputs.safetensors");
    expected = golden::open("quantizer_oracle/expected.safetensors");
    ASSERT_EQ(qk_checkpoint_tensor_count(inputs.get()), 18);
    for (int64_t i = 0; i < qk_checkpoint_tensor_count(inputs.get()); ++i) {
        qk_file_tensor file = {};
        ASSERT_EQ(qk_checkpoint_tensor(inputs.get(), i, &file), QK_OK);
        const qk_format type = golden::dense_format(file.dtype);
        const Tensor x =
            golden::create(context, golden::dense_desc(type, file.shape[0], file.shape[1]));
        golden::upload(context, x, QK_PLANE_DATA, file.data, size_t(file.bytes));
        for (const Described &to : kDescribed) {
            qk_tensor_desc desc = golden::dense_desc(to.format, file.shape[0], file.shape[1]);
            desc.scale_format = to.scale_format != 0 ? to.scale_format : type;
            desc.group_size = to.group_size;
            desc.flags = to.flags;
            desc.layout = to.layout;
            const Tensor q = golden::create(context, desc);
            ASSERT_EQ(qk_quantize(context.get(), x.get(), q.get()), QK_OK)
                << to.name << ": " << qk_context_error(context.get());
            const std::string stem = std::string(file.name) + "." + to.name;
            expect_plane(q, QK_PLANE_DATA, stem + ".data");
            if (to.layout == QK_LAYOUT_ROW) expect_plane(q, QK_PLANE_SCALE, stem + ".scale");
            if ((to.flags & QK_TENSOR_GLOBAL) != 0) {
                expect_plane(q, QK_PLANE_GLOBAL, stem + ".global");
            }
        }
    }
}

TEST_F(GoldenQuantize, RefusesWhatHasNoRule) {
    const Described none[] = {
        {"lut4", QK_FORMAT_LUT4, QK_FORMAT_F32, 32, 0},
        {"nf4", QK_FORMAT_NF4, QK_FORMAT_E4M3, 32, 0},
        {"s8", QK_FORMAT_S8, QK_FORMAT_E8M0, 32, 0},
        {"e2m1 with e8m0 scales and a GLOBAL plane", QK_FORMAT_FP4_E2M1, QK_FORMAT_E8M0, 32,
         QK_TENSOR_GLOBAL},
        {"u4 with f16 scales and minima", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 32,
         QK_TENSOR_FLOAT_MIN},
        {"e4m3", QK_FORMAT_E4M3, QK_FORMAT_E4M3, 32, 0},
    };
    const Tensor x = golden::create(context, golden::dense_desc(QK_FORMAT_F32, 2, 64));
    for (const Described &to : none) {
        qk_tensor_desc desc = golden::dense_desc(to.format, 2, 64);
        desc.scale_format = to.scale_format;
        desc.group_size = to.group_size;
        desc.flags = to.flags;
        const Tensor q = golden::create(context, desc);
        EXPECT_EQ(qk_quantize(context.get(), x.get(), q.get()), QK_ERROR_UNSUPPORTED) << to.name;
        EXPECT_EQ(std::string(qk_context_error(context.get()))
                      .find("quantized: qk has no quantizer for " + std::string(to.name)),
                  0u)
            << qk_context_error(context.get());
    }
}

TEST_F(GoldenQuantize, TablesAreBitsandbytes) {
    float dynamic[256];
    ASSERT_EQ(qk_dynamic_table(dynamic), QK_OK);
    qk_file_tensor file = {};
    ASSERT_EQ(qk_checkpoint_find_tensor(expected.get(), "dynamic_map", &file), QK_OK);
    ASSERT_EQ(file.bytes, int64_t(sizeof(dynamic)));
    EXPECT_EQ(std::memcmp(dynamic, file.data, sizeof(dynamic)), 0);
}

TEST_F(GoldenQuantize, BlockwiseDequantizesToThePackagesBits) {
    const Checkpoint model = golden::open("bnb_8bit_blockwise/model.safetensors");
    const Checkpoint truths = golden::open("bnb_8bit_blockwise/truth.safetensors");
    for (int64_t i = 0; i < qk_checkpoint_tensor_count(truths.get()); ++i) {
        qk_file_tensor truth = {}, part = {};
        ASSERT_EQ(qk_checkpoint_tensor(truths.get(), i, &truth), QK_OK);
        const std::string name = truth.name, layer = name.substr(0, name.size() - 7);
        qk_tensor_desc desc = golden::dense_desc(QK_FORMAT_LUT8, truth.shape[0], truth.shape[1]);
        desc.scale_format = QK_FORMAT_F32;
        desc.group_size = std::stoi(layer.substr(layer.find(".bs") + 3));
        const Tensor q = golden::create(context, desc);
        const std::pair<qk_plane, const char *> planes[] = {
            {QK_PLANE_DATA, ".data"}, {QK_PLANE_SCALE, ".absmax"}, {QK_PLANE_TABLE, ".code"}};
        for (const auto &[plane, suffix] : planes) {
            const std::string name = layer + suffix;
            ASSERT_EQ(qk_checkpoint_find_tensor(model.get(), name.c_str(), &part), QK_OK);
            golden::upload(context, q, plane, part.data, size_t(part.bytes));
        }
        const Tensor dense = golden::create(
            context,
            golden::dense_desc(golden::dense_format(truth.dtype), truth.shape[0], truth.shape[1]));
        ASSERT_EQ(qk_dequantize(context.get(), q.get(), dense.get()), QK_OK);
        const auto bytes = golden::download(context, dense, QK_PLANE_DATA, size_t(truth.bytes));
        EXPECT_EQ(std::memcmp(bytes.data(), truth.data, bytes.size()), 0) << layer;
    }
}

}  // namespace
