// qk_quantize and qk_dynamic_table against the bytes that bitsandbytes itself stored: README.md.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "qk.h"
#include "qk_io.h"

namespace {

struct Checkpoint {
    explicit Checkpoint(const std::string &name) {
        const std::string path = std::string(QK_GOLDEN_DATA) + "/bnb_quantize_oracle/" + name;
        qk_io_message message;
        EXPECT_EQ(qk_checkpoint_open(path.c_str(), nullptr, &handle, &message), QK_OK)
            << message.text;
    }
    ~Checkpoint() { qk_checkpoint_destroy(handle); }
    qk_file_tensor find(const std::string &name) const {
        qk_file_tensor tensor{};
        EXPECT_EQ(qk_checkpoint_find_tensor(handle, name.c_str(), &tensor), QK_OK) << name;
        return tensor;
    }
    qk_checkpoint *handle = nullptr;
};

// "plain_f32.nf4.bs64.nested.absmax": the input, the quantizer, the block size, the plane.
struct Answer {
    std::string input, kind, plane;
    int32_t block_size = 0;
};

Answer parse(const std::string &name) {
    Answer answer;
    const size_t first = name.find('.');
    const size_t second = name.find('.', first + 1);
    const size_t third = name.find('.', second + 1);
    answer.input = name.substr(0, first);
    answer.kind = name.substr(first + 1, second - first - 1);
    answer.block_size = std::stoi(name.substr(second + 3, third - second - 3));
    answer.plane = name.substr(third + 1);
    return answer;
}

bool nested(const Answer &answer) { return answer.plane.rfind("nested.", 0) == 0; }

qk_plane plane_of(const Answer &answer) {
    if (answer.plane == "packed" || answer.plane == "data") return QK_PLANE_DATA;
    if (answer.plane == "nested.nested_absmax") return QK_PLANE_SCALE2;
    if (answer.plane == "nested.offset") return QK_PLANE_SCALE_BIAS;
    return QK_PLANE_SCALE;
}

qk_format dense_format(qk_dtype dtype) {
    if (dtype == QK_DTYPE_F16) return QK_FORMAT_F16;
    return dtype == QK_DTYPE_BF16 ? QK_FORMAT_BF16 : QK_FORMAT_F32;
}

qk_tensor_desc dense_desc(const qk_file_tensor &tensor) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = dense_format(tensor.dtype);
    desc.shape[0] = tensor.shape[0];
    return desc;
}

qk_tensor_desc quantized_desc(const Answer &answer, int64_t count) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = QK_FORMAT_LUT8;
    desc.layout = QK_LAYOUT_ROW;
    if (answer.kind != "8bit") {
        desc.format = answer.kind == "nf4" ? QK_FORMAT_NF4 : QK_FORMAT_FP4_BNB;
        desc.layout = QK_LAYOUT_ROW_HIGH;
    }
    desc.scale_format = nested(answer) ? QK_FORMAT_LUT8 : QK_FORMAT_F32;
    desc.group_size = answer.block_size;
    desc.grouping = QK_GROUPING_FLAT;
    desc.shape[0] = count;
    return desc;
}

class BnbOracle : public testing::Test {
protected:
    void SetUp() override { ASSERT_EQ(qk_context_create(nullptr, &context), QK_OK); }
    void TearDown() override { qk_context_destroy(context); }

    // The plane that qk stores for one answer's input.
    std::vector<uint8_t> quantize(const Answer &answer, const qk_file_tensor &input,
                                  const qk_file_tensor &map) {
        const qk_tensor_desc from = dense_desc(input);
        const qk_tensor_desc to = quantized_desc(answer, input.shape[0]);
        qk_tensor *dense = nullptr, *quantized = nullptr;
        std::vector<uint8_t> bytes;
        size_t size = 0;
        EXPECT_EQ(qk_tensor_create(context, &from, &dense), QK_OK);
        EXPECT_EQ(qk_tensor_create(context, &to, &quantized), QK_OK);
        EXPECT_EQ(qk_tensor_upload(context, dense, QK_PLANE_DATA, input.data,
                                   static_cast<size_t>(input.bytes)), QK_OK);
        for (const qk_plane plane : {QK_PLANE_TABLE, QK_PLANE_SCALE_CODE}) {
            EXPECT_EQ(qk_tensor_plane_bytes(&to, plane, &size), QK_OK);
            if (size == 0) continue;
            EXPECT_EQ(qk_tensor_upload(context, quantized, plane, map.data, size), QK_OK);
        }
        EXPECT_EQ(qk_quantize(context, dense, quantized), QK_OK) << qk_context_error(context);
        EXPECT_EQ(qk_tensor_plane_bytes(&to, plane_of(answer), &size), QK_OK);
        bytes.resize(size);
        EXPECT_EQ(qk_tensor_download(context, quantized, plane_of(answer), bytes.data(), size),
                  QK_OK);
        qk_tensor_destroy(dense);
        qk_tensor_destroy(quantized);
        return bytes;
    }

    qk_context *context = nullptr;
};

TEST_F(BnbOracle, QuantizedBytesAreThoseOfBitsandbytes) {
    const Checkpoint inputs("inputs.safetensors");
    const Checkpoint expected("expected.safetensors");
    const qk_file_tensor map = expected.find("dynamic_map");
    int64_t compared = 0;
    for (int64_t i = 0; i < qk_checkpoint_tensor_count(expected.handle); ++i) {
        qk_file_tensor answer;
        ASSERT_EQ(qk_checkpoint_tensor(expected.handle, i, &answer), QK_OK);
        if (std::strchr(answer.name, '.') == nullptr) continue; // a table, not an answer
        const Answer parsed = parse(answer.name);
        const std::vector<uint8_t> bytes = quantize(parsed, inputs.find(parsed.input), map);
        ASSERT_EQ(static_cast<int64_t>(bytes.size()), answer.bytes) << answer.name;
        EXPECT_EQ(std::memcmp(bytes.data(), answer.data, bytes.size()), 0) << answer.name;
        ++compared;
    }
    EXPECT_GT(compared, 250);
}

TEST_F(BnbOracle, DynamicTableIsTheOneInTheFiles) {
    const Checkpoint expected("expected.safetensors");
    const qk_file_tensor map = expected.find("dynamic_map");
    float table[256];
    ASSERT_EQ(map.bytes, static_cast<int64_t>(sizeof(table)));
    ASSERT_EQ(qk_dynamic_table(table), QK_OK);
    EXPECT_EQ(std::memcmp(table, map.data, sizeof(table)), 0);
}

} // namespace
