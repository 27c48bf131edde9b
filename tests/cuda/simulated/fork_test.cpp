// A forked child cannot use its parent's GPU: every call says so, and giving handles back touches
// nothing on the device.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "cuda/mock/mock.hpp"
#include "cuda/simulated/fake_library.hpp"
#include "qk.h"

namespace {

struct Inherited {
    qk_context *context = nullptr;
    qk_tensor *w = nullptr, *x = nullptr, *y = nullptr;
    qk_gru *trained = nullptr, *gru = nullptr;
    qk_gru_state *state = nullptr;

    Inherited() {
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        options.device = QK_DEVICE_CUDA;
        options.workspace_bytes = 1 << 20;
        EXPECT_EQ(qk_context_create(&options, &context), QK_OK);
        w = dense(8, 32);
        x = dense(2, 32);
        y = dense(2, 8);
        static float weights[3 * 8 * 32];
        qk_gru_config config = QK_GRU_CONFIG_INIT;
        config.input_size = 32;
        config.hidden_size = 8;
        for (qk_gru **to : {&trained, &gru}) {
            EXPECT_EQ(qk_gru_create(context, &config, weights, weights, nullptr, nullptr, to),
                      QK_OK);
        }
        EXPECT_EQ(qk_gru_calibrate(context, gru, x, nullptr), QK_OK) << qk_context_error(context);
        EXPECT_EQ(qk_gru_freeze(context, gru), QK_OK) << qk_context_error(context);
        EXPECT_EQ(qk_gru_state_create(context, gru, 1, &state), QK_OK);
    }
    qk_tensor *dense(int64_t rows, int64_t columns) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.rank = 2;
        desc.shape[0] = rows;
        desc.shape[1] = columns;
        qk_tensor *tensor = nullptr;
        EXPECT_EQ(qk_tensor_create(context, &desc, &tensor), QK_OK);
        const std::vector<float> zeros(size_t(rows * columns));
        EXPECT_EQ(qk_tensor_upload(context, tensor, 0, zeros.data(), zeros.size() * 4), QK_OK);
        return tensor;
    }
    void destroy() {
        qk_gru_state_destroy(state);
        qk_gru_destroy(gru);
        qk_gru_destroy(trained);
        for (qk_tensor *const tensor : {w, x, y}) qk_tensor_destroy(tensor);
        qk_context_destroy(context);
    }

    // 0, or the number of the first call that was not refused as it should be.
    int refuses_all() {
        float values[64 * 8] = {};
        size_t bytes = 0;
        qk_tensor *tensor = nullptr;
        qk_gru *new_gru = nullptr;
        qk_gru_state *new_state = nullptr;
        DLManagedTensorVersioned *managed = nullptr;
        const qk_tensor_desc desc = {sizeof(desc), QK_FORMAT_F32, 0, 0, 0, 0, 0, 1, 0, 0, {4}, 0};
        void *planes[] = {values};
        qk_gru_config config = QK_GRU_CONFIG_INIT;
        config.input_size = config.hidden_size = 1;
        qk_gru_ranges ranges = {};
        ranges.struct_size = sizeof(ranges);
        qk_gru_clipped clipped = {};
        clipped.struct_size = sizeof(clipped);
        qk_gru_model model = {};
        model.struct_size = sizeof(model);
        qk_gru_describe(gru, &model);
        const auto refused = [&](qk_status status) {
            return status == QK_ERROR_DEVICE_FAULT &&
                   std::strstr(qk_context_error(context), "fork") != nullptr;
        };
        const bool answers[] = {
            true,
            refused(qk_context_synchronize(context)),
            refused(qk_context_set_stream(context, nullptr)),
            refused(qk_tensor_create(context, &desc, &tensor)),
            refused(qk_tensor_wrap(context, &desc, planes, 1, &tensor)),
            refused(qk_tensor_to_dlpack(y, QK_PLANE_DATA, &managed)),
            refused(qk_tensor_upload(context, x, 0, values, 256)),
            refused(qk_tensor_download(context, x, 0, values, 256)),
            refused(qk_quantize(context, x, w)),
            refused(qk_dequantize(context, w, x)),
            refused(qk_repack(context, w, w)),
            refused(qk_linear(context, x, w, nullptr, y)),
            refused(qk_linear_workspace(context, w, 4, &bytes)),
            refused(qk_gru_create(context, &config, values, values, nullptr, nullptr, &new_gru)),
            refused(qk_gru_calibrate(context, trained, x, nullptr)),
            refused(qk_gru_run_float(context, trained, x, nullptr, y)),
            refused(qk_gru_get_ranges(context, trained, &ranges)),
            refused(qk_gru_set_ranges(context, trained, &ranges)),
            refused(qk_gru_merge_ranges(context, trained, &ranges)),
            refused(qk_gru_freeze(context, trained)),
            refused(qk_gru_create_from_model(context, &model, &new_gru)),
            refused(qk_gru_state_create(context, gru, 1, &new_state)),
            refused(qk_gru_state_reset(context, state)),
            refused(qk_gru_state_count_clipped(context, state, 1)),
            refused(qk_gru_state_clipped(context, state, &clipped)),
            refused(qk_gru_state_write(context, state, values)),
            refused(qk_gru_state_read(context, state, values)),
            refused(qk_gru_run(context, gru, state, x, y)),
            refused(qk_gru_run_gates(context, gru, state, x, y, y)),
            refused(qk_gru_workspace(context, gru, 1, 1, &bytes)),
            refused(qk_gru_load(context, values, sizeof(values), &new_gru)),
        };
        for (int i = 0; i < int(std::size(answers)); ++i) {
            if (!answers[i]) return i;
        }
        return 0;
    }
};

TEST(CudaFork, AChildIsToldAndHarmsNothing) {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "ThreadSanitizer does not follow forks";
#endif
    mock::reset();
    Inherited parent;
    const int64_t live = mock::live_allocations();
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        const int calls = mock::calls();
        const int wrong = parent.refuses_all();
        if (wrong != 0) _exit(wrong);
        qk_context_info info = QK_CONTEXT_INFO_INIT;
        if (qk_context_describe(parent.context, &info) != QK_OK) _exit(100);
        parent.destroy();
        if (mock::live_allocations() != live) _exit(101);
        _exit(mock::calls() == calls ? 0 : 102);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << "the number of a call, or what is at the child's end";
    EXPECT_EQ(qk_context_synchronize(parent.context), QK_OK) << "the parent goes on";
    EXPECT_EQ(qk_linear(parent.context, parent.x, parent.w, nullptr, parent.y), QK_OK)
        << qk_context_error(parent.context);
    parent.destroy();
    EXPECT_EQ(mock::live_allocations(), 0);
}

}  // namespace
