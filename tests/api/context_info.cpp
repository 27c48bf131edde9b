// What a context says it has, what its options may leave out, and a cap on instruction sets.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "api/outputs.hpp"

namespace api {
namespace {

qk_context *create_capped(uint32_t instruction_sets, int32_t threads = 1) {
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.thread_count = threads;
    options.instruction_sets = instruction_sets;
    qk_context *context = nullptr;
    EXPECT_EQ(qk_context_create(&options, &context), QK_OK);
    return context;
}

qk_context_info describe(const qk_context *context) {
    qk_context_info info = QK_CONTEXT_INFO_INIT;
    EXPECT_EQ(qk_context_describe(context, &info), QK_OK);
    return info;
}

uint32_t sets_under(uint32_t cap) {
    qk_context *const context = create_capped(cap);
    const uint32_t sets = describe(context).instruction_sets;
    qk_context_destroy(context);
    return sets;
}

TEST(ContextInfo, SaysWhatWasAskedFor) {
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.thread_count = 3;
    options.flags = QK_CONTEXT_INT8_ACTIVATIONS;
    options.workspace_bytes = 12345;
    qk_context *context = nullptr;
    ASSERT_EQ(qk_context_create(&options, &context), QK_OK);
    const qk_context_info info = describe(context);
    EXPECT_EQ(info.struct_size, sizeof(info));
    EXPECT_EQ(info.device, QK_DEVICE_CPU);
    EXPECT_EQ(info.device_index, 0);
    EXPECT_EQ(info.thread_count, 3);
    EXPECT_EQ(info.flags, QK_CONTEXT_INT8_ACTIVATIONS);
    EXPECT_EQ(info.workspace_bytes, 12345u);
    EXPECT_NE(info.instruction_sets & QK_ISA_GENERIC, 0u);
    qk_context_destroy(context);
}

TEST(ContextInfo, FillsSmallerAndLargerStructs) {
    qk_context *const context = create_capped(0);
    const qk_context_info all = describe(context);
    struct {
        qk_context_info info;
        unsigned char more[32], guard;
    } given;
    for (uint32_t room = 0; room <= sizeof(given); ++room) {
        std::memset(&given, 0xa5, sizeof(given));
        given.info.struct_size = room;
        const bool fits = room >= sizeof(uint32_t);
        ASSERT_EQ(qk_context_describe(context, &given.info), fits ? QK_OK : QK_ERROR_ABI);
        if (!fits) continue;
        const uint32_t known = std::min(room, uint32_t(sizeof(all)));
        ASSERT_EQ(given.info.struct_size, known);
        const auto *const bytes = reinterpret_cast<const unsigned char *>(&given);
        for (uint32_t i = sizeof(uint32_t); i < sizeof(given); ++i) {
            const unsigned char expected = i >= room ? 0xa5
                                           : i < known
                                               ? reinterpret_cast<const unsigned char *>(&all)[i]
                                               : 0;
            ASSERT_EQ(bytes[i], expected) << "room " << room << " byte " << i;
        }
    }
    given.info.struct_size = UINT32_MAX;
    EXPECT_EQ(qk_context_describe(context, &given.info), QK_ERROR_ABI);
    EXPECT_EQ(qk_context_describe(context, nullptr), QK_ERROR_NULL);
    EXPECT_EQ(qk_context_describe(nullptr, &given.info), QK_ERROR_NULL);
    qk_context_destroy(context);
}

// Programs of an older header have no instruction_sets or no trace, those of a newer one more.
TEST(ContextInfo, OptionsOfOtherHeaders) {
    struct {
        qk_context_options options;
        unsigned char more[64];
    } given = {QK_CONTEXT_OPTIONS_INIT, {}};
    const auto create = [&](size_t size) {
        given.options.struct_size = uint32_t(size);
        qk_context *context = nullptr;
        const qk_status status = qk_context_create(&given.options, &context);
        qk_context_destroy(context);
        return status;
    };
    given.options.thread_count = 1;
    const size_t released = offsetof(qk_context_options, instruction_sets);
    given.options.reserved = 77;  // behind what the older program has
    EXPECT_EQ(create(released), QK_OK);
    EXPECT_EQ(create(sizeof(given.options)), QK_ERROR_ARGUMENT);
    given.options.reserved = 0;
    EXPECT_EQ(create(sizeof(given)), QK_OK);
    for (const size_t at : {size_t{0}, size_t{31}, sizeof(given.more) - 1}) {
        for (const unsigned char value : {1, 2, 0x80, 0xff}) {
            given.more[at] = value;
            EXPECT_EQ(create(sizeof(given)), QK_ERROR_ABI) << "an unknown field's " << int(value);
        }
        given.more[at] = 0;
    }
    for (size_t size = 0; size < sizeof(given); ++size) {
        const bool known = size >= released && size % alignof(qk_context_options) == 0;
        EXPECT_EQ(create(size), known ? QK_OK : QK_ERROR_ABI) << size;
    }
}

#if defined(__linux__)
// The processor's own list, by the kernel's names.
TEST(ContextInfo, InstructionSetsAreThoseOfProcCpuinfo) {
    std::ifstream file("/proc/cpuinfo");
    std::set<std::string> flags;
    for (std::string line; std::getline(file, line);) {
        if (line.rfind("flags", 0) != 0 && line.rfind("Features", 0) != 0) continue;
        std::istringstream words(line.substr(line.find(':') + 1));
        for (std::string word; words >> word;) flags.insert(word);
        break;
    }
    if (flags.empty()) GTEST_SKIP() << "/proc/cpuinfo has no flags";
#if defined(QK_EMULATED)
    GTEST_SKIP() << "/proc/cpuinfo is of the machine that emulates";
#endif
    [[maybe_unused]] const auto has = [&](std::initializer_list<const char *> names) {
        for (const char *const name : names) {
            if (flags.count(name) == 0) return false;
        }
        return true;
    };
    uint32_t expected = QK_ISA_GENERIC;
#if defined(__x86_64__)
    if (has({"avx2", "fma", "f16c"})) {
        expected |= QK_ISA_AVX2;
        if (has({"avx_vnni"})) expected |= QK_ISA_AVX_VNNI;
        if (has({"avx512f", "avx512bw", "avx512dq", "avx512vl"})) {
            expected |= QK_ISA_AVX512;
            if (has({"avx512vbmi"})) expected |= QK_ISA_AVX512_VBMI;
            if (has({"avx512_vnni"})) expected |= QK_ISA_AVX512_VNNI;
            if (has({"avx512_bf16"})) expected |= QK_ISA_AVX512_BF16;
            if (has({"amx_tile", "amx_int8"})) expected |= QK_ISA_AMX_INT8;
            if (has({"amx_tile", "amx_bf16"})) expected |= QK_ISA_AMX_BF16;
        }
    }
#elif defined(__aarch64__)
    expected |= QK_ISA_NEON;
    if (has({"asimddp"})) expected |= QK_ISA_DOTPROD;
    if (has({"asimddp", "i8mm"})) expected |= QK_ISA_I8MM;
#elif defined(__arm__)
    if (has({"neon", "vfpv4"})) expected |= QK_ISA_NEON;
#endif
    const uint32_t found = sets_under(0);
    if (found == QK_ISA_GENERIC) GTEST_SKIP() << "a build without vector kernels";
    EXPECT_EQ(found, expected);
}
#endif

TEST(InstructionSets, ACapLeavesWhatItNamesAndWhatThatExtends) {
    const uint32_t all = sets_under(0);
    EXPECT_EQ(sets_under(~0u), all);
    EXPECT_EQ(sets_under(all), all) << "what a context says can be asked for";
    EXPECT_EQ(sets_under(QK_ISA_GENERIC), QK_ISA_GENERIC);
    EXPECT_EQ(sets_under(1u << 30), QK_ISA_GENERIC) << "a set of a newer header";
    EXPECT_EQ(sets_under(QK_ISA_AVX2), QK_ISA_GENERIC | (all & QK_ISA_AVX2));
    EXPECT_EQ(sets_under(QK_ISA_AVX_VNNI), QK_ISA_GENERIC) << "it extends AVX2";
    EXPECT_EQ(sets_under(QK_ISA_AVX512 | QK_ISA_AVX512_VNNI), QK_ISA_GENERIC)
        << "without the one that it extends, a set does not count";
    EXPECT_EQ(sets_under(~QK_ISA_AVX2),
              all & (QK_ISA_GENERIC | QK_ISA_NEON | QK_ISA_DOTPROD | QK_ISA_I8MM | QK_ISA_RVV));
    EXPECT_EQ(sets_under(~QK_ISA_AVX512_VBMI), all & ~QK_ISA_AVX512_VBMI);
    EXPECT_EQ(sets_under(~QK_ISA_DOTPROD), all & ~(QK_ISA_DOTPROD | QK_ISA_I8MM));
}

// One shape of each kind under every cap; kernels of all sets are compared in tests/kernel.
TEST(InstructionSets, ResultsAreTheSameUnderEveryCap) {
    const uint32_t all = sets_under(0);
    const uint32_t x86 = QK_ISA_AVX2 | QK_ISA_AVX512, arm = QK_ISA_NEON | QK_ISA_DOTPROD;
    const auto descs = odd_descs();
    std::vector<qk_context *> contexts;
    for (const uint32_t cap :
         {0u, QK_ISA_GENERIC, QK_ISA_AVX2, QK_ISA_AVX2 | QK_ISA_AVX_VNNI, x86,
          x86 | QK_ISA_AVX512_VNNI, x86 | QK_ISA_AVX512_VBMI, QK_ISA_NEON, arm, QK_ISA_RVV}) {
        if ((cap & ~all) == 0) contexts.push_back(create_capped(cap));
    }
    for (size_t i = 0; i < descs.size(); i += 3) {
        const auto expected = outputs_of(contexts[0], descs[i]);
        for (size_t c = 1; c < contexts.size(); ++c) {
            ASSERT_EQ(outputs_of(contexts[c], descs[i]), expected)
                << std::hex << "sets 0x" << describe(contexts[c]).instruction_sets << std::dec
                << " format " << descs[i].format << " layout " << descs[i].layout;
        }
    }
    for (qk_context *const context : contexts) qk_context_destroy(context);
}

// A GRU is packed for vector kernels when it is made; a context without them runs it all the same,
// and the other way round.
TEST(InstructionSets, AGruCrossesCaps) {
    constexpr int32_t c = 24, h = 40, steps = 9;
    std::vector<float> w(3 * h * c), r(3 * h * h), data(steps * c), y[4];
    for (size_t i = 0; i < w.size(); ++i) w[i] = float(int(i * 37 % 101) - 50) / 200;
    for (size_t i = 0; i < r.size(); ++i) r[i] = float(int(i * 53 % 97) - 48) / 300;
    for (size_t i = 0; i < data.size(); ++i) data[i] = float(int(i * 29 % 61) - 30) / 30;
    qk_context *const contexts[] = {create_capped(0), create_capped(QK_ISA_GENERIC)};
    for (int i = 0; i < 4; ++i) {
        qk_context *const maker = contexts[i / 2], *const runner = contexts[i % 2];
        const qk_tensor_desc x_desc = dense_desc(QK_FORMAT_F32, {steps, c});
        const qk_tensor_desc y_desc = dense_desc(QK_FORMAT_F32, {steps, h});
        void *x_plane[] = {data.data()};
        y[i].resize(steps * h);
        void *y_plane[] = {y[i].data()};
        qk_tensor *x = nullptr, *out = nullptr;
        ASSERT_EQ(qk_tensor_wrap(runner, &x_desc, x_plane, 1, &x), QK_OK);
        ASSERT_EQ(qk_tensor_wrap(runner, &y_desc, y_plane, 1, &out), QK_OK);
        qk_gru_config config = QK_GRU_CONFIG_INIT;
        config.input_size = c;
        config.hidden_size = h;
        qk_gru *gru = nullptr;
        qk_gru_state *state = nullptr;
        ASSERT_EQ(qk_gru_create(maker, &config, w.data(), r.data(), nullptr, nullptr, &gru), QK_OK);
        ASSERT_EQ(qk_gru_calibrate(maker, gru, x, nullptr), QK_OK);
        ASSERT_EQ(qk_gru_freeze(maker, gru), QK_OK) << qk_context_error(maker);
        ASSERT_EQ(qk_gru_state_create(maker, gru, 1, &state), QK_OK);
        ASSERT_EQ(qk_gru_run(runner, gru, state, x, out), QK_OK) << qk_context_error(runner);
        EXPECT_EQ(y[i], y[0]) << i;
        qk_gru_state_destroy(state);
        qk_gru_destroy(gru);
        qk_tensor_destroy(x);
        qk_tensor_destroy(out);
    }
    for (qk_context *const context : contexts) qk_context_destroy(context);
}

}  // namespace
}  // namespace api
