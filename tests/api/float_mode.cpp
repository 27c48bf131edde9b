// Equal calls give equal bits whatever floating-point mode the caller or its threads are in, and
// afterwards the mode and the recorded exceptions are unchanged.
#include <gtest/gtest.h>

#include <thread>

#include "api/outputs.hpp"

namespace api {
namespace {

struct Mode {
    const char *name;
    uint64_t control, status;
};

#if defined(__x86_64__)
Mode mode_now() {
    uint32_t word;
    asm volatile("stmxcsr %0" : "=m"(word));
    return {"now", word, 0};
}
void set_mode(const Mode &mode) {
    const uint32_t word = uint32_t(mode.control);
    asm volatile("ldmxcsr %0" : : "m"(word) : "memory");
}
constexpr Mode kModes[] = {
    {"flush to zero, subnormals are zero", 0x9fc0, 0},
    {"down", 0x3f80, 0},
    {"up", 0x5f80, 0},
    {"toward zero", 0x7f80, 0},
    {"all exceptions trap", 0x0000, 0},
    {"default, everything on record", 0x1fbf, 0},
    {"flush, up, invalid on record", 0xdfc1, 0},
};
#elif defined(__aarch64__)
Mode mode_now() {
    Mode mode = {"now", 0, 0};
    asm volatile("mrs %0, fpcr" : "=r"(mode.control));
    asm volatile("mrs %0, fpsr" : "=r"(mode.status));
    return mode;
}
void set_mode(const Mode &mode) {
    asm volatile("msr fpcr, %0" : : "r"(mode.control) : "memory");
    asm volatile("msr fpsr, %0" : : "r"(mode.status) : "memory");
}
constexpr Mode kModes[] = {
    {"flush to zero", 1u << 24, 0},
    {"up", 1u << 22, 0},
    {"down", 2u << 22, 0},
    {"toward zero", 3u << 22, 0},
    {"all exceptions trap", 0x9f00, 0},  // where there are traps; else as the default
    {"default, everything on record", 0, 0x9f},
    {"flush, up, invalid on record", 5u << 22, 1},
};
#elif defined(__arm__)
Mode mode_now() {
    uint32_t word;
    asm volatile("vmrs %0, fpscr" : "=r"(word));
    return {"now", word, 0};
}
void set_mode(const Mode &mode) {
    const uint32_t word = uint32_t(mode.control);
    asm volatile("vmsr fpscr, %0" : : "r"(word) : "memory");
}
constexpr Mode kModes[] = {
    {"flush to zero", 1u << 24, 0},
    {"up", 1u << 22, 0},
    {"down", 2u << 22, 0},
    {"toward zero", 3u << 22, 0},
    {"any NaN is one", 1u << 25, 0},
    {"default, everything on record", 0x9f, 0},
    {"flush, up, invalid on record", 5u << 22 | 1, 0},
};
#endif

#if defined(__x86_64__) || defined(__aarch64__) || defined(__arm__)

bool same(const Mode &a, const Mode &b) { return a.control == b.control && a.status == b.status; }

// A mode for as long as this lives. Nothing of the test computes floats meanwhile.
class InMode {
  public:
    explicit InMode(const Mode &mode) : before_(mode_now()) {
        set_mode(mode);
        inside_ = mode_now();  // processors without traps do not keep their bits
    }
    ~InMode() {
        const Mode after = mode_now();
        set_mode(before_);
        EXPECT_TRUE(same(after, inside_)) << std::hex << after.control << " " << after.status
                                          << ", was " << inside_.control << " " << inside_.status;
    }

  private:
    const Mode before_;
    Mode inside_;
};

// Threads of the caller in a mode that qk did not choose.
struct Pool {
    const Mode *mode;

    static void run(void *user, int32_t count, void (*task)(void *, int32_t), void *argument) {
        Pool &self = *static_cast<Pool *>(user);
        const Mode mode = *self.mode;
        std::atomic<int32_t> next{0};
        std::vector<std::thread> threads;
        for (int t = 0; t < 3; ++t) {
            threads.emplace_back([&] {
                for (int32_t i = next++; i < count; i = next++) {
                    const InMode here(mode);
                    task(argument, i);
                }
            });
        }
        for (std::thread &thread : threads) thread.join();
    }
};

// One thread, threads of qk's, threads of the caller's.
template <class Each>
void for_each_context(const Mode *mode, const Each &each) {
    Allocator allocator;
    Pool pool{mode};
    const qk_executor executor = {Pool::run, &pool, 8};
    const auto create = [&](int32_t threads, const qk_executor *given) {
        const InMode here(*mode);  // which new threads inherit
        return make_context(allocator, threads, given);
    };
    qk_context *const contexts[] = {create(1, nullptr), create(3, nullptr), create(0, &executor)};
    for (qk_context *const context : contexts) {
        each(context);
        qk_context_destroy(context);
    }
}

Around around(const Mode &mode) {
    return [&mode](const std::function<qk_status()> &call) {
        const InMode here(mode);
        return call();
    };
}

constexpr float kSubnormal = 0x1p-130f;

TEST(FloatMode, OperationsOnWeights) {
    auto descs = odd_descs();
#if defined(QK_EMULATED)
    constexpr size_t every = 23;
#else
    constexpr size_t every = 5;
#endif
    const qk_tensor_desc large = descs.back();  // which qk's own threads share
    for (size_t i = 1; i * every < descs.size(); ++i) descs[i] = descs[i * every];
    descs.resize((descs.size() + every - 1) / every);
    descs.push_back(large);
    for (const float scale : {kSubnormal, 0.37f}) {
        std::vector<std::vector<unsigned char>> expected;
        Allocator allocator;
        qk_context *const one = make_context(allocator, 1);
        for (const auto &desc : descs) expected.push_back(outputs_of(one, desc, scale));
        qk_context_destroy(one);
        for (const Mode &mode : kModes) {
            for_each_context(&mode, [&](qk_context *context) {
                for (size_t i = 0; i < descs.size(); ++i) {
                    ASSERT_EQ(outputs_of(context, descs[i], scale, around(mode)), expected[i])
                        << mode.name << ", scale " << scale << ", format " << descs[i].format
                        << " layout " << descs[i].layout;
                }
            });
        }
    }
}

// Everything that a GRU's calls write, from float weights to a saved image, codes and states.
std::vector<unsigned char> gru_outputs(qk_context *context, int32_t preset, const Around &call) {
    constexpr int32_t c = 12, h = 97, steps = 11, batch = 10;  // a step is shared
    std::vector<float> w(3 * h * c), r(3 * h * h), x(steps * batch * c), h0(batch * h);
    std::vector<float> y(steps * batch * h), y_float(y.size()), read(h0.size());
    for (size_t i = 0; i < w.size(); ++i) w[i] = float(int(i * 37 % 101) - 50) / 60;
    for (size_t i = 0; i < r.size(); ++i) r[i] = float(int(i * 53 % 97) - 48) / 90;
    for (size_t i = 0; i < x.size(); ++i) x[i] = float(int(i * 29 % 61) - 30) / 17;
    for (size_t i = 0; i < w.size(); i += 7) w[i] = kSubnormal;
    for (size_t i = 0; i < x.size(); i += 5) x[i] = kSubnormal;
    for (size_t i = 0; i < h0.size(); ++i) h0[i] = float(int(i * 31 % 41) - 20) / 21;
    qk_tensor_desc desc = dense_desc(QK_FORMAT_F32, {steps, batch, c});
    void *plane = x.data();
    qk_tensor *tensors[3] = {};
    EXPECT_EQ(qk_tensor_wrap(context, &desc, &plane, 1, &tensors[0]), QK_OK);
    desc.shape[2] = h;
    plane = y.data();
    EXPECT_EQ(qk_tensor_wrap(context, &desc, &plane, 1, &tensors[1]), QK_OK);
    plane = y_float.data();
    EXPECT_EQ(qk_tensor_wrap(context, &desc, &plane, 1, &tensors[2]), QK_OK);
    qk_gru_config config = QK_GRU_CONFIG_INIT;
    config.input_size = c;
    config.hidden_size = h;
    config.preset = preset;
    config.calibration = preset == QK_GRU_W8A16 ? QK_GRU_CALIBRATE_MSE : QK_GRU_CALIBRATE_MIN_MAX;
    qk_gru *gru = nullptr;
    qk_gru_state *state = nullptr;
    std::vector<unsigned char> image;
    const auto run = [&](auto function, auto... arguments) {
        const qk_status status = call([&] { return function(context, arguments...); });
        EXPECT_EQ(status, QK_OK) << qk_context_error(context);
    };
    const float *const none = nullptr;
    run(qk_gru_create, &config, w.data(), r.data(), none, none, &gru);
    run(qk_gru_run_float, gru, tensors[0], h0.data(), tensors[2]);
    run(qk_gru_calibrate, gru, tensors[0], h0.data());
    run(qk_gru_freeze, gru);
    run(qk_gru_state_create, gru, batch, &state);
    run(qk_gru_state_write, state, h0.data());
    run(qk_gru_run, gru, state, tensors[0], tensors[1]);
    run(qk_gru_state_read, state, read.data());
    size_t bytes = 0;
    EXPECT_EQ(qk_gru_save(gru, nullptr, 0, &bytes), QK_OK);
    image.resize(bytes);
    EXPECT_EQ(qk_gru_save(gru, image.data(), bytes, &bytes), QK_OK);
    qk_gru *loaded = nullptr;
    run(qk_gru_load, image.data(), image.size(), &loaded);
    for (const auto *const floats : {&y, &y_float, &read}) {
        const auto *const from = reinterpret_cast<const unsigned char *>(floats->data());
        image.insert(image.end(), from, from + floats->size() * 4);
    }
    qk_gru_state_destroy(state);
    qk_gru_destroy(loaded);
    qk_gru_destroy(gru);
    for (qk_tensor *const tensor : tensors) qk_tensor_destroy(tensor);
    return image;
}

TEST(FloatMode, Grus) {
    for (const int32_t preset : {QK_GRU_W8A8, QK_GRU_W8H16, QK_GRU_W8A16, QK_GRU_W16A16}) {
        Allocator allocator;
        qk_context *const one = make_context(allocator, 1);
        const auto expected = gru_outputs(one, preset, plainly);
        qk_context_destroy(one);
        for (const Mode &mode : kModes) {
            for_each_context(&mode, [&](qk_context *context) {
                ASSERT_EQ(gru_outputs(context, preset, around(mode)), expected)
                    << mode.name << ", preset " << preset;
            });
        }
    }
}

TEST(FloatMode, TheDynamicTable) {
    float expected[256], table[256];
    ASSERT_EQ(qk_dynamic_table(expected), QK_OK);
    for (const Mode &mode : kModes) {
        {
            const InMode here(mode);
            EXPECT_EQ(qk_dynamic_table(table), QK_OK);
        }
        EXPECT_EQ(std::memcmp(table, expected, sizeof(table)), 0) << mode.name;
    }
}

// The caller's own function runs in the caller's mode, also in the middle of a call.
TEST(FloatMode, AnExecutorFindsItsOwn) {
    struct Seen {
        Mode mode = {};
        static void run(void *user, int32_t count, void (*task)(void *, int32_t), void *argument) {
            static_cast<Seen *>(user)->mode = mode_now();
            for (int32_t i = 0; i < count; ++i) task(argument, i);
        }
    } seen;
    const qk_executor executor = {Seen::run, &seen, 4};
    Allocator allocator;
    qk_context *const context = make_context(allocator, 0, &executor);
    for (const Mode &mode : kModes) {
        Mode inside;
        outputs_of(context, weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, 601, 64, 32), 1,
                   [&](const std::function<qk_status()> &call) {
            const InMode here(mode);
            inside = mode_now();
            return call();
        });
        EXPECT_TRUE(same(seen.mode, inside)) << mode.name;
    }
    qk_context_destroy(context);
}

#endif

}  // namespace
}  // namespace api
