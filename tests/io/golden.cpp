// Checkpoints that the real packages wrote: every layer is recognised, loads both ways, and
// dequantizes to the packages' own bits.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "qk_io.h"

namespace {

struct Folder {
    const char *name;
    qk_dialect dialect;
    qk_status status;
    const char *reason;          // a piece of it
    qk_status verified = QK_OK;  // where it loads: what verifying says
};

const Folder kFolders[] = {
    {"dense", QK_DIALECT_DENSE, QK_OK, ""},
    {"awq_gemm_channel", QK_DIALECT_AWQ_GEMM, QK_OK, ""},
    {"awq_gemm_g128", QK_DIALECT_AWQ_GEMM, QK_OK, ""},
    {"awq_gemm_g64", QK_DIALECT_AWQ_GEMM, QK_OK, ""},
    {"awq_gemv_fast_refused", QK_DIALECT_UNKNOWN, QK_ERROR_UNSUPPORTED, "gemv_fast"},
    {"awq_gemv_g128", QK_DIALECT_AWQ_GEMV, QK_OK, ""},
    {"awq_gemv_g32", QK_DIALECT_AWQ_GEMV, QK_OK, ""},
    {"awq_gemv_g64", QK_DIALECT_AWQ_GEMV, QK_OK, ""},
    {"auto_round_awq_asym_g32", QK_DIALECT_AWQ_GEMM, QK_OK, ""},
    {"auto_round_gptq_sym_g32", QK_DIALECT_GPTQ_V1, QK_OK, ""},
    {"auto_round_gptqmodel_asym_g32", QK_DIALECT_GPTQ_V2, QK_OK, ""},
    {"auto_round_mixed_groups", QK_DIALECT_GPTQ_V1, QK_OK, ""},
    {"awq_marlin_refused", QK_DIALECT_UNKNOWN, QK_ERROR_UNSUPPORTED, "marlin"},
    {"bnb_fp4", QK_DIALECT_BITSANDBYTES, QK_OK, ""},
    {"bnb_fp4_nested", QK_DIALECT_BITSANDBYTES, QK_OK, ""},
    {"bnb_nf4", QK_DIALECT_BITSANDBYTES, QK_OK, ""},
    {"bnb_nf4_nested", QK_DIALECT_BITSANDBYTES, QK_OK, ""},
    {"bnb_int8", QK_DIALECT_BITSANDBYTES, QK_OK, ""},
    {"bnb_nf4_nested_half", QK_DIALECT_BITSANDBYTES, QK_OK, ""},
    {"bnb_nf4_nested_bf16_storage", QK_DIALECT_BITSANDBYTES, QK_OK, ""},
    {"bnb_sharded", QK_DIALECT_BITSANDBYTES, QK_OK, ""},
    {"ct_int4_act_order_asym_g64", QK_DIALECT_COMPRESSED_TENSORS, QK_OK, ""},
    {"ct_int4_act_order_sym_g32", QK_DIALECT_COMPRESSED_TENSORS, QK_OK, ""},
    {"ct_int4_asym_channel", QK_DIALECT_COMPRESSED_TENSORS, QK_OK, ""},
    {"ct_int4_asym_g32", QK_DIALECT_COMPRESSED_TENSORS, QK_OK, ""},
    {"ct_int4_sym_channel", QK_DIALECT_COMPRESSED_TENSORS, QK_OK, ""},
    {"ct_int4_sym_g128", QK_DIALECT_COMPRESSED_TENSORS, QK_OK, ""},
    {"ct_int4_sym_g32", QK_DIALECT_COMPRESSED_TENSORS, QK_OK, ""},
    {"ct_fp8_block", QK_DIALECT_COMPRESSED_TENSORS, QK_OK, ""},
    {"ct_fp8_block_128", QK_DIALECT_COMPRESSED_TENSORS, QK_OK, ""},
    {"ct_fp8_channel", QK_DIALECT_COMPRESSED_TENSORS, QK_OK, ""},
    {"ct_fp8_tensor", QK_DIALECT_COMPRESSED_TENSORS, QK_OK, ""},
    {"ct_int8_asym_channel", QK_DIALECT_COMPRESSED_TENSORS, QK_OK, ""},
    {"ct_int8_channel", QK_DIALECT_COMPRESSED_TENSORS, QK_OK, ""},
    {"ct_int8_g64", QK_DIALECT_COMPRESSED_TENSORS, QK_OK, ""},
    {"ct_int8_tensor", QK_DIALECT_COMPRESSED_TENSORS, QK_OK, ""},
    {"ct_pack8_act_order_g32", QK_DIALECT_COMPRESSED_TENSORS, QK_OK, ""},
    {"ct_pack8_asym_g32", QK_DIALECT_COMPRESSED_TENSORS, QK_OK, ""},
    {"ct_mxfp4", QK_DIALECT_COMPRESSED_TENSORS, QK_OK, ""},
    {"ct_nvfp4", QK_DIALECT_COMPRESSED_TENSORS, QK_OK, ""},
    {"ct_pack8_channel", QK_DIALECT_COMPRESSED_TENSORS, QK_OK, ""},
    {"ct_pack8_g32", QK_DIALECT_COMPRESSED_TENSORS, QK_OK, ""},
    {"ct_nvfp4_nan", QK_DIALECT_COMPRESSED_TENSORS, QK_OK, "", QK_ERROR_CORRUPT},
    {"deepseek_v4", QK_DIALECT_DEEPSEEK, QK_OK, ""},
    {"deepseek_v4_nan", QK_DIALECT_DEEPSEEK, QK_OK, "", QK_ERROR_CORRUPT},
    {"gpt_oss", QK_DIALECT_GPT_OSS, QK_OK, ""},
    {"gpt_oss_f16_ends", QK_DIALECT_GPT_OSS, QK_OK, ""},
    {"torchao_fp8", QK_DIALECT_TORCHAO, QK_OK, ""},
    {"torchao_int4_asym_g32", QK_DIALECT_TORCHAO, QK_OK, ""},
    {"torchao_int4_g32", QK_DIALECT_TORCHAO, QK_OK, ""},
    {"torchao_int8", QK_DIALECT_TORCHAO, QK_OK, ""},
    {"torchao_int8_channel", QK_DIALECT_TORCHAO, QK_OK, ""},
    {"modelopt_mixed", QK_DIALECT_MODELOPT, QK_OK, ""},
    {"modelopt_nvfp4", QK_DIALECT_MODELOPT, QK_OK, ""},
    {"modelopt_nvfp4_f16", QK_DIALECT_MODELOPT, QK_OK, ""},
    {"modelopt_nvfp4_nan", QK_DIALECT_MODELOPT, QK_OK, "", QK_ERROR_CORRUPT},
    {"fp8_block_32", QK_DIALECT_FP8, QK_OK, ""},
    {"fp8_block_32_nan", QK_DIALECT_FP8, QK_OK, ""},
    {"fp8_block_ue8m0", QK_DIALECT_FP8, QK_OK, ""},
    {"gguf", QK_DIALECT_GGUF, QK_OK, ""},
    {"gptq_v1_8bit_act_order_g32", QK_DIALECT_GPTQ_V1, QK_OK, ""},
    {"gptq_v1_8bit_g32", QK_DIALECT_GPTQ_V1, QK_OK, ""},
    {"gptq_v1_8bit_asym_g32", QK_DIALECT_GPTQ_V1, QK_OK, ""},
    {"gptq_v1_act_order_asym_g32", QK_DIALECT_GPTQ_V1, QK_OK, ""},
    {"gptq_v1_act_order_sym_g32", QK_DIALECT_GPTQ_V1, QK_OK, ""},
    {"gptq_v1_8bit_act_order_asym_g32", QK_DIALECT_GPTQ_V1, QK_OK, ""},
    {"gptq_v2_8bit_g64", QK_DIALECT_GPTQ_V2, QK_OK, ""},
    {"gptq_v1_asym_g32", QK_DIALECT_GPTQ_V1, QK_OK, ""},
    {"gptq_v1_asym_g64", QK_DIALECT_GPTQ_V1, QK_OK, ""},
    {"gptq_v1_sym_g128", QK_DIALECT_GPTQ_V1, QK_OK, ""},
    {"gptq_v2_act_order_asym_g64", QK_DIALECT_GPTQ_V2, QK_OK, ""},
    {"gptq_v2_asym_g128", QK_DIALECT_GPTQ_V2, QK_OK, ""},
    {"gptq_v2_sym_g32", QK_DIALECT_GPTQ_V2, QK_OK, ""},
};

std::string folder_path(const char *name) { return std::string(QK_GOLDEN_DATA) + "/" + name; }

qk_format format_of(qk_dtype dtype) {
    return dtype == QK_DTYPE_F32   ? QK_FORMAT_F32
           : dtype == QK_DTYPE_F16 ? QK_FORMAT_F16
                                   : QK_FORMAT_BF16;
}

bool is_nan(qk_dtype dtype, const char *at) {
    uint32_t wide = 0;
    uint16_t narrow = 0;
    memcpy(&wide, at, dtype == QK_DTYPE_F32 ? 4 : 0);
    memcpy(&narrow, at, 2);
    if (dtype == QK_DTYPE_F32) return (wide & 0x7fffffff) > 0x7f800000;
    return (narrow & 0x7fff) > (dtype == QK_DTYPE_F16 ? 0x7c00 : 0x7f80);
}

// Bit for bit; a NaN for a NaN of any payload.
bool same_bits(const qk_file_tensor &expected, const std::vector<char> &found) {
    const char *data = static_cast<const char *>(expected.data);
    const size_t size = expected.dtype == QK_DTYPE_F32 ? 4 : 2;
    for (size_t i = 0; i < found.size(); i += size) {
        const bool nan = is_nan(expected.dtype, data + i);
        if (nan != is_nan(expected.dtype, &found[i])) return false;
        if (!nan && memcmp(data + i, &found[i], size) != 0) return false;
    }
    return true;
}

void PrintTo(const Folder &folder, std::ostream *out) { *out << folder.name; }

class Golden : public testing::TestWithParam<Folder> {
  protected:
    void SetUp() override {
        ASSERT_EQ(QK_OK, qk_context_create(nullptr, &context));
        std::string path = folder_path(GetParam().name);
        if (GetParam().dialect == QK_DIALECT_GGUF) path += "/model.gguf";
        ASSERT_EQ(QK_OK, qk_checkpoint_open(path.c_str(), nullptr, &checkpoint, &message))
            << message.text;
    }
    void TearDown() override {
        qk_checkpoint_destroy(truth);
        qk_checkpoint_destroy(checkpoint);
        qk_context_destroy(context);
    }

    // The layer's weights as the packages' own dequantized tensor, bit for bit.
    void compare(const qk_layer &layer, qk_tensor *weight) {
        qk_file_tensor expected;
        const std::string name = std::string(layer.name) + ".weight";
        ASSERT_EQ(QK_OK, qk_checkpoint_find_tensor(truth, name.c_str(), &expected)) << name;
        ASSERT_EQ(layer.desc.rank, expected.rank);
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.format = format_of(expected.dtype);
        desc.rank = expected.rank;
        for (int32_t i = 0; i < expected.rank; ++i) {
            desc.shape[i] = layer.desc.shape[i];
            ASSERT_EQ(expected.shape[i], desc.shape[i]);
        }
        qk_tensor *dense = nullptr;
        ASSERT_EQ(QK_OK, qk_tensor_create(context, &desc, &dense));
        EXPECT_EQ(QK_OK, qk_dequantize(context, weight, dense)) << qk_context_error(context);
        std::vector<char> bytes(static_cast<size_t>(expected.bytes));
        EXPECT_EQ(QK_OK,
                  qk_tensor_download(context, dense, QK_PLANE_DATA, bytes.data(), bytes.size()));
        EXPECT_TRUE(same_bits(expected, bytes)) << name;
        qk_tensor_destroy(dense);
    }

    void load_and_compare(const qk_layer &layer, uint32_t flags) {
        qk_tensor *weight = nullptr, *bias = nullptr;
        ASSERT_EQ(QK_OK, qk_checkpoint_load(checkpoint, context, layer.name, flags, &weight, &bias,
                                            &message))
            << message.text;
        EXPECT_EQ(layer.has_bias != 0, bias != nullptr);
        qk_tensor_desc numbers = QK_TENSOR_DESC_INIT;
        if (bias != nullptr) {
            EXPECT_EQ(QK_OK, qk_tensor_describe(bias, &numbers));
            EXPECT_EQ(layer.desc.shape[0], numbers.shape[0]);
        }
        compare(layer, weight);
        qk_tensor_destroy(weight);
        qk_tensor_destroy(bias);
    }

    qk_context *context = nullptr;
    qk_checkpoint *checkpoint = nullptr, *truth = nullptr;
    qk_io_message message = {};
};

TEST_P(Golden, LayersAreTheirPackagesBits) {
    const Folder &folder = GetParam();
    if (folder.status == QK_OK && folder.dialect != QK_DIALECT_DENSE) {
        const bool gguf = folder.dialect == QK_DIALECT_GGUF;
        const std::string path =
            folder_path(folder.name) + (gguf ? "/truth.gguf" : "/truth.safetensors");
        ASSERT_EQ(QK_OK, qk_checkpoint_open(path.c_str(), nullptr, &truth, &message))
            << message.text;
    }
    int64_t of_dialect = 0;
    for (int64_t i = 0; i < qk_checkpoint_layer_count(checkpoint); ++i) {
        qk_layer layer;
        ASSERT_EQ(QK_OK, qk_checkpoint_layer(checkpoint, i, &layer, sizeof layer));
        if (layer.dialect == QK_DIALECT_DENSE && folder.dialect != QK_DIALECT_DENSE) continue;
        ++of_dialect;
        const bool expected = layer.dialect == folder.dialect || layer.dialect == QK_DIALECT_FP8;
        EXPECT_TRUE(expected) << layer.name << ": " << qk_dialect_name(layer.dialect);
        ASSERT_EQ(folder.status, layer.status) << layer.name << ": " << layer.reason;
        EXPECT_NE(nullptr, strstr(layer.reason, folder.reason)) << layer.reason;
        const qk_status verified = layer.status != QK_OK             ? layer.status
                                   : layer.dialect == folder.dialect ? folder.verified
                                                                     : QK_OK;
        EXPECT_EQ(verified, qk_checkpoint_verify_layer(checkpoint, layer.name, &message));
        EXPECT_EQ(verified == QK_OK, message.text[0] == 0) << message.text;
        if (layer.status != QK_OK) continue;
        if (truth == nullptr) continue;
        load_and_compare(layer, 0);
        load_and_compare(layer, QK_LOAD_IN_PLACE);
    }
    EXPECT_GT(of_dialect, 0);
}

INSTANTIATE_TEST_SUITE_P(All, Golden, testing::ValuesIn(kFolders),
                         [](const auto &info) { return std::string(info.param.name); });

}  // namespace
