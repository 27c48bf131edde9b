// Experts that a file has in one tensor: gpt-oss's, GGUF's, and dense ones, transposed or not.
#include "experts.hpp"
#include "maker_gguf.hpp"

namespace {

using namespace io_test;

TEST_F(Experts, OfOneTensorStayAsTheyAre) {
    Parts one;
    one.set("m.experts.gate_up_proj_blocks", "U8", {2, 3, 2, 16}, zeros(192));
    one.set("m.experts.gate_up_proj_scales", "U8", {2, 3, 2}, std::string(12, '\x7f'));
    one.set("m.experts.gate_up_proj_bias", "F32", {2, 3}, zeros(24));
    Parts parts;
    unsigned seed = 9;
    for (const Parts::Part &part : one.parts) {
        const bool scales = part.name.find("scales") != std::string::npos;
        parts.set(part.name, part.dtype, part.shape, scales ? part.bytes : varied(part, ++seed));
    }
    open(parts.build(), "");
    const std::vector<float> expected = layer_values("m.experts.gate_up_proj");
    loads("m.experts.gate_up_proj", nullptr, expected, biases, {2, 3, 64});
}

// As transformers saves them: [E,2n,k] and [E,k,n], or transposed, told by the sizes of both.
TEST_F(Experts, OfDenseTensorsAreLoaded) {
    constexpr int64_t n = 34, k = 37;  // more than a tile each
    const auto value = [](int64_t expert, int64_t row, int64_t column) {
        return static_cast<float>(expert * 10000 + row * 100 + column);
    };
    for (const bool turned : {false, true}) {
        const auto tensor = [&](int64_t rows, int64_t columns) {
            std::vector<float> values;
            for (int64_t i = 0; i < 2 * rows * columns; ++i) {
                const int64_t e = i / (rows * columns), at = i % (rows * columns);
                values.push_back(turned ? value(e, at % rows, at / rows)
                                        : value(e, at / columns, at % columns));
            }
            return bytes_of(values);
        };
        const auto shape = [&](int64_t rows, int64_t columns) {
            return turned ? std::vector<int64_t>{2, columns, rows}
                          : std::vector<int64_t>{2, rows, columns};
        };
        const auto expected = [&](int64_t rows, int64_t columns) {
            std::vector<float> values;
            for (int64_t i = 0; i < 2 * rows * columns; ++i) {
                const int64_t at = i % (rows * columns);
                values.push_back(value(i / (rows * columns), at / columns, at % columns));
            }
            return values;
        };
        std::vector<float> bias(4 * n);
        for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i);
        Parts parts;
        parts.set("m.experts.gate_up_proj", "F32", shape(2 * n, k), tensor(2 * n, k));
        parts.set("m.experts.gate_up_proj_bias", "F32", {2, 2 * n}, bytes_of(bias));
        parts.set("m.experts.down_proj", "F32", shape(k, n), tensor(k, n));
        parts.set("m.block_sparse_moe.input_linear.weight", "F32", {2, n, k}, zeros(2 * n * k * 4));
        open(parts.build(), "");
        EXPECT_EQ(0, qk_checkpoint_layer_count(checkpoint));
        EXPECT_EQ(3, qk_checkpoint_expert_layer_count(checkpoint));
        EXPECT_STREQ("dense", qk_checkpoint_layer_method(checkpoint, "m.experts.down_proj"));
        loads("m.experts.gate_up_proj", nullptr, expected(2 * n, k), bias, {2, 2 * n, k});
        EXPECT_STREQ("layer \"m.experts.gate_up_proj\" is not quantized: its weights are f32",
                     message.text);
        loads("m.experts.down_proj", nullptr, expected(k, n), {}, {2, k, n});
        std::vector<float> twice;
        const std::vector<float> once = expected(k, n);
        for (int e = 0; e < 2; ++e) {
            for (int part = 0; part < 2; ++part) {
                twice.insert(twice.end(), once.begin() + e * n * k, once.begin() + (e + 1) * n * k);
            }
        }
        loads("m.experts.down_proj", "m.experts.down_proj", twice, {}, {2, 2 * k, n});
        loads("m.block_sparse_moe.input_linear", nullptr,
              std::vector<float>(static_cast<size_t>(2 * n * k)), {}, {2, n, k});
    }
}

// By their names, of three dimensions, of floats; what is left of a quantized weight is none.
TEST_F(Experts, OfDenseTensorsAreFoundByTheirNames) {
    Parts parts;
    for (const char *name :
         {"m.experts.up", "m.experts.up_scale", "m.experts.up_bias", "m.experts.0.conv.weight",
          "m.norm.weight", "experts.w1.weight", "m.shared_experts.w1", "blk.0.ffn_up_exps.weight",
          "m.experts.*.up_exps"}) {
        parts.set(name, "F16", {2, 4, 8}, half_ones(64));
    }
    parts.set("m.experts.flat", "F16", {8, 8}, half_ones(64));
    parts.set("m.experts.codes", "U8", {2, 4, 8}, zeros(64));
    parts.set("m.experts.none", "F16", {0, 4, 8}, "");
    open(parts.build(), "");
    std::string names;
    for (int64_t i = 0; i < qk_checkpoint_expert_layer_count(checkpoint); ++i) {
        qk_layer layer;
        ASSERT_EQ(QK_OK, qk_checkpoint_expert_layer(checkpoint, i, &layer, sizeof layer));
        names += std::string(layer.name) + " " + std::to_string(layer.desc.shape[0]) + " " +
                 layer.reason + "\n";
    }
    EXPECT_EQ(
        "blk.0.ffn_up_exps 2 \nexperts.w1 2 \n"
        "m.experts.none 0 weight is F16 [0,4,8]; a weight of qk has at least 1 of each\n"
        "m.experts.up 2 bias is F16 [2,4,8]; expected F32, F16 or BF16 [2,4]\n",
        names);
}

// The sizes of both tell, whatever their types; of one alone nothing does.
TEST_F(Experts, OfDenseTensorsAreTurnedInModulesOfExpertsAlone) {
    const auto rows_of = [&](const char *module, const char *dtype) {
        Parts parts;
        const std::string name = module;
        parts.set(name + ".gate_up_proj", "F16", {2, 8, 32}, half_ones(512));
        parts.set(name + ".down_proj", dtype, {2, 16, 8}, half_ones(256));
        open(parts.build(), "");
        qk_layer layer = {};
        const qk_status status = qk_checkpoint_find_expert_layer(
            checkpoint, (name + ".gate_up_proj").c_str(), &layer, sizeof layer);
        EXPECT_EQ(QK_OK, status) << module;
        return layer.desc.shape[1];
    };
    EXPECT_EQ(32, rows_of("m.experts", "F16"));
    EXPECT_EQ(32, rows_of("experts", "F16"));
    EXPECT_EQ(32, rows_of("m.experts", "BF16"));
    EXPECT_EQ(8, rows_of("m_moe", "F16"));
    for (const char *end : {"", ".weight"}) {
        Parts parts;
        parts.set(std::string("m.experts.gate_up_proj") + end, "F16", {2, 8, 32}, half_ones(512));
        open(parts.build(), "");
        qk_layer layer = {};
        ASSERT_EQ(QK_OK, qk_checkpoint_find_expert_layer(checkpoint, "m.experts.gate_up_proj",
                                                         &layer, sizeof layer));
        EXPECT_EQ(QK_ERROR_UNSUPPORTED, layer.status);
        EXPECT_STREQ(
            "without down_proj, which may be in another file of the model, nothing says "
            "whether experts are transposed",
            layer.reason);
    }
}

// down_proj beside up_proj alone (Nemotron-H's experts) or a quantized gate_up_proj is no half of a
// pair.
TEST_F(Experts, OfDenseTensorsBesideOthersAreAsStored) {
    for (const char *first : {".up_proj", ".up_proj.weight", ".gate_up_proj_blocks"}) {
        Parts parts;
        parts.set(std::string("m.experts") + first, "F16", {2, 16, 8}, half_ones(256));
        parts.set("m.experts.down_proj", "F16", {2, 8, 16}, half_ones(256));
        open(parts.build(), "");
        qk_layer layer = {};
        ASSERT_EQ(QK_OK, qk_checkpoint_find_expert_layer(checkpoint, "m.experts.down_proj", &layer,
                                                         sizeof layer));
        EXPECT_EQ(QK_OK, layer.status) << first << ": " << layer.reason;
        EXPECT_EQ(8, layer.desc.shape[1]) << first;
    }
}

// Q8_0: blocks of an f16 scale and 32 codes.
TEST_F(Experts, OfGgufAreJoined) {
    const auto blocks = [](unsigned seed) {
        std::string bytes(size_t{2} * 3 * 34, '\0');
        for (size_t i = 0; i < bytes.size(); ++i) {
            seed = seed * 1664525 + 1013904223;
            bytes[i] = static_cast<char>(i % 34 == 1 ? 0x3c : seed >> 24);
        }
        return bytes;
    };
    const std::string bias = bytes_of(std::vector<float>{1, 2, 3, 4, 5, 6});
    Gguf gguf;
    for (const char *name : {"blk.0.ffn_gate_exps", "blk.0.ffn_up_exps"}) {
        gguf.tensor(name + std::string(".weight"), {32, 3, 2}, 8, blocks(name[10]));
        gguf.tensor(name + std::string(".bias"), {3, 2}, 0, bias);
    }
    open(gguf.build(), "");
    ASSERT_EQ(2, qk_checkpoint_expert_layer_count(checkpoint));
    const std::vector<float> gate = layer_values("blk.0.ffn_gate_exps");
    EXPECT_EQ((std::vector<float>{1, 2, 3, 4, 5, 6}), biases);
    const std::vector<float> up = layer_values("blk.0.ffn_up_exps");
    loads("blk.0.ffn_up_exps", nullptr, up, biases, {2, 3, 32});
    std::vector<float> both;
    for (int e = 0; e < 2; ++e) {
        both.insert(both.end(), gate.begin() + e * 96, gate.begin() + e * 96 + 96);
        both.insert(both.end(), up.begin() + e * 96, up.begin() + e * 96 + 96);
    }
    loads("blk.0.ffn_gate_exps", "blk.0.ffn_up_exps", both, {1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6},
          {2, 6, 32});
}

}  // namespace
