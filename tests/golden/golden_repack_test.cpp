// Checkpoints written by the real packages, repacked to every layout that can hold them: the bits
// stay those of the packages. (tests/io/golden.cpp loads them in their own layout.)
#include <algorithm>
#include <cstring>
#include <filesystem>

#include "golden/golden_files.hpp"

namespace {

using golden::Checkpoint;
using golden::Context;
using golden::Tensor;

struct GoldenRepack : testing::TestWithParam<std::string> {
    Context context = golden::make_context();
};

std::vector<std::string> folders() {
    std::vector<std::string> names;
    for (const auto &entry : std::filesystem::directory_iterator(QK_GOLDEN_DATA)) {
        const std::string name = entry.path().filename();
        const bool layers = std::filesystem::exists(entry.path() / "truth.safetensors") &&
                            name != "bnb_8bit_blockwise";  // no dialect: golden_quantize_test
        const bool nan = name.find("_nan") != std::string::npos;  // of any payload: tests/io
        if (layers && !nan && name.find("refused") == std::string::npos) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
}

std::string layer_of(const char *tensor) {
    const std::string name = tensor;
    return name.substr(0, name.size() - std::strlen(".weight"));
}

void expect_same_bits(const Context &context, const Tensor &weight, const qk_file_tensor &truth,
                      const std::string &what) {
    const qk_tensor_desc desc =
        golden::dense_desc(golden::dense_format(truth.dtype), truth.shape[0], truth.shape[1]);
    const Tensor dense = golden::create(context, desc);
    ASSERT_EQ(qk_dequantize(context.get(), weight.get(), dense.get()), QK_OK)
        << what << ": " << qk_context_error(context.get());
    const auto bytes = golden::download(context, dense, QK_PLANE_DATA, size_t(truth.bytes));
    EXPECT_EQ(std::memcmp(bytes.data(), truth.data, bytes.size()), 0) << what;
}

// Repacks to every layout that can hold the weight and compares again.
void expect_every_layout(const Context &context, const Tensor &weight, const qk_file_tensor &truth,
                         const std::string &what) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    EXPECT_EQ(qk_tensor_describe(weight.get(), &desc), QK_OK);
    desc.flags &= ~QK_TENSOR_READ_ONLY;
    const bool bytes = desc.format == QK_FORMAT_S8 || desc.format == QK_FORMAT_E4M3;
    int held = 0;
    for (qk_layout layout : {0, 1, 2, 3, 4, 5, 6, int(QK_LAYOUT_PACKED)}) {
        qk_tensor_desc other = desc;
        other.layout = layout;
        qk_tensor *raw = nullptr;
        if (qk_tensor_create(context.get(), &other, &raw) != QK_OK) {
            // Layouts without flat groups refuse a tensor whose groups straddle rows, those of
            // nibbles refuse bytes.
            EXPECT_TRUE(bytes || desc.grouping == QK_GROUPING_FLAT) << what << " layout " << layout;
            continue;
        }
        const Tensor repacked(raw, qk_tensor_destroy);
        const bool same_layout = layout == desc.layout;
        EXPECT_EQ(qk_repack(context.get(), weight.get(), repacked.get()), QK_OK)
            << what << " layout " << layout << ": " << qk_context_error(context.get());
        expect_same_bits(context, repacked, truth, what + " layout " + std::to_string(layout));
        held += same_layout ? 0 : 1;
    }
    EXPECT_GE(held, bytes ? 1 : 2) << what;
}

Tensor repacked_to(const Context &context, const Tensor &weight, qk_layout layout) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    EXPECT_EQ(qk_tensor_describe(weight.get(), &desc), QK_OK);
    desc.flags &= ~QK_TENSOR_READ_ONLY;
    desc.layout = layout;
    Tensor to = golden::create(context, desc);
    EXPECT_EQ(qk_repack(context.get(), weight.get(), to.get()), QK_OK)
        << qk_context_error(context.get());
    return to;
}

// y of m rows of ramps, as bits.
std::vector<uint8_t> product(const Context &context, const Tensor &weight, int64_t m,
                             const qk_file_tensor &truth) {
    const int64_t n = truth.shape[0], k = truth.shape[1];
    std::vector<float> ramp(size_t(m * k));
    for (size_t i = 0; i < ramp.size(); ++i) ramp[i] = float(int(i * 37 % 101) - 50) / 16;
    const Tensor x = golden::create(context, golden::dense_desc(QK_FORMAT_F32, m, k));
    const Tensor y = golden::create(context, golden::dense_desc(QK_FORMAT_F32, m, n));
    golden::upload(context, x, QK_PLANE_DATA, ramp.data(), ramp.size() * 4);
    EXPECT_EQ(qk_linear(context.get(), x.get(), weight.get(), nullptr, y.get()), QK_OK)
        << qk_context_error(context.get());
    return golden::download(context, y, QK_PLANE_DATA, size_t(m * n * 4));
}

// Records give the products of their repacked weights; what qk writes back is what it read.
void expect_records(const Context &context, const Tensor &records, const qk_file_tensor &truth) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    EXPECT_EQ(qk_tensor_describe(records.get(), &desc), QK_OK);
    const Tensor rows = repacked_to(context, records, QK_LAYOUT_ROW);
    const Tensor packed = repacked_to(context, records, QK_LAYOUT_PACKED);
    for (int64_t m : {1, 3}) {
        const std::vector<uint8_t> y = product(context, records, m, truth);
        EXPECT_EQ(y, product(context, rows, m, truth)) << truth.name << " m = " << m;
        EXPECT_EQ(y, product(context, packed, m, truth)) << truth.name << " m = " << m;
    }
    for (qk_layout layout : {QK_LAYOUT_GGUF_Q4_0, QK_LAYOUT_GGUF_Q4_1, QK_LAYOUT_GGUF_Q8_0,
                             QK_LAYOUT_GGUF_IQ4_NL, QK_LAYOUT_GGUF_MXFP4}) {
        if (layout != desc.layout) continue;
        size_t bytes = 0;
        EXPECT_EQ(qk_tensor_plane_bytes(&desc, QK_PLANE_DATA, &bytes), QK_OK);
        const Tensor again = repacked_to(context, packed, layout);
        EXPECT_EQ(golden::download(context, again, QK_PLANE_DATA, bytes),
                  golden::download(context, records, QK_PLANE_DATA, bytes))
            << truth.name;
    }
}

void check_records(uint32_t instruction_sets) {
    const Context context = golden::make_context(instruction_sets);
    const Checkpoint checkpoint = golden::open("gguf/model.gguf");
    const Checkpoint truths = golden::open("gguf/truth.gguf");
    int64_t layers = 0;
    for (int64_t i = 0; i < qk_checkpoint_tensor_count(truths.get()); ++i) {
        qk_file_tensor truth = {};
        ASSERT_EQ(qk_checkpoint_tensor(truths.get(), i, &truth), QK_OK);
        if (truth.rank != 2) continue;
        qk_tensor *raw = nullptr;
        ASSERT_EQ(qk_checkpoint_load(checkpoint.get(), context.get(), layer_of(truth.name).c_str(),
                                     QK_LOAD_IN_PLACE, &raw, nullptr, nullptr),
                  QK_OK);
        const Tensor records(raw, qk_tensor_destroy);
        expect_every_layout(context, records, truth, truth.name);
        expect_records(context, records, truth);
        ++layers;
    }
    EXPECT_EQ(layers, 16);
}

TEST(GoldenRecords, OfGgufFilesRepackAndMultiply) {
    const uint32_t caps[] = {0, QK_ISA_GENERIC, QK_ISA_AVX2 | QK_ISA_NEON};
    for (uint32_t instruction_sets : caps) check_records(instruction_sets);
}

TEST_P(GoldenRepack, KeepsThePackagesBits) {
    const Checkpoint checkpoint = golden::open(GetParam());
    const Checkpoint truths = golden::open(GetParam() + "/truth.safetensors");
    const int64_t count = qk_checkpoint_tensor_count(truths.get());
    ASSERT_GT(count, 0);
    for (int64_t i = 0; i < count; ++i) {
        qk_file_tensor truth = {};
        ASSERT_EQ(qk_checkpoint_tensor(truths.get(), i, &truth), QK_OK);
        const std::string layer = layer_of(truth.name);
        qk_tensor *raw = nullptr;
        qk_io_message message = {};
        ASSERT_EQ(qk_checkpoint_load(checkpoint.get(), context.get(), layer.c_str(),
                                     QK_LOAD_IN_PLACE, &raw, nullptr, &message),
                  QK_OK)
            << message.text;
        const Tensor weight(raw, qk_tensor_destroy);
        expect_every_layout(context, weight, truth, layer);
    }
}

INSTANTIATE_TEST_SUITE_P(Packages, GoldenRepack, testing::ValuesIn(folders()),
                         [](const auto &info) { return info.param; });

}  // namespace
