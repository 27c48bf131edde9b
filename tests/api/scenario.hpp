// One life of everything: each function that allocates, each operation, and the way back.
#pragma once
#include "api/dlpack_spec.hpp"
#include "api/support.hpp"

namespace api {

// Calls `attempt` until it stops answering QK_ERROR_MEMORY, at most twice. A failed attempt must
// leave `*out` alone; `recover` runs in between.
template <class Handle, class Attempt, class Recover>
void must_make(Handle **out, const Attempt &attempt, const Recover &recover, bool *failed) {
    Handle *const poison = reinterpret_cast<Handle *>(uintptr_t{0x5a5a});
    *out = poison;
    qk_status status = attempt(out);
    if (status != QK_OK) {
        ASSERT_EQ(status, QK_ERROR_MEMORY);
        ASSERT_EQ(*out, poison) << "out changed although the call failed";
        *failed = true;
        recover();
        status = attempt(out);
    }
    ASSERT_EQ(status, QK_OK) << "the retry fails";
    ASSERT_NE(*out, poison);
}

// Everything from one context on, with `allocator` failing as it was told to. Says whether any
// call failed. After it nothing is left allocated.
inline bool run_scenario(Allocator &allocator) {
    bool failed = false;
    const auto recover = [&] { allocator.stop_failing(); };
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.thread_count = 3;
    options.allocator = allocator.table();
    options.workspace_bytes = 1000;
    qk_context *context = nullptr;
    must_make(
        &context, [&](qk_context **out) { return qk_context_create(&options, out); }, recover,
        &failed);
    if (::testing::Test::HasFatalFailure()) return failed;

    Planes dense(dense_desc(QK_FORMAT_F32, {40, 96}));
    dense.fill_dense(QK_FORMAT_F32);
    const qk_tensor_desc desc = dense_desc(QK_FORMAT_F32, {40, 96});
    qk_tensor_desc packed = weight_desc(QK_FORMAT_NF4, QK_LAYOUT_PACKED, 40, 96, 32);
    qk_tensor *w = nullptr, *q = nullptr, *p = nullptr, *x = nullptr, *y = nullptr;
    const auto make = [&](qk_tensor **out, const qk_tensor_desc &what) {
        must_make(
            out, [&](qk_tensor **t) { return qk_tensor_create(context, &what, t); }, recover,
            &failed);
    };
    must_make(
        &w, [&](qk_tensor **t) { return qk_tensor_wrap(context, &desc, dense.pointers, 7, t); },
        recover, &failed);
    make(&q, weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, 40, 96, 32));
    make(&p, packed);
    make(&y, dense_desc(QK_FORMAT_F32, {5, 40}));
    DlSource source(5, 96);
    must_make(
        &x, [&](qk_tensor **t) { return qk_tensor_from_dlpack(context, &source.managed, t); },
        recover, &failed);
    DLManagedTensorVersioned *view = nullptr;
    must_make(
        &view,
        [&](DLManagedTensorVersioned **v) { return qk_tensor_to_dlpack(y, QK_PLANE_DATA, v); },
        recover, &failed);
    if (::testing::Test::HasFatalFailure()) return failed;
    EXPECT_EQ(source.deleted, 0);

    const int64_t calls = allocator.calls();
    EXPECT_EQ(qk_quantize(context, w, q), QK_OK);
    EXPECT_EQ(qk_repack(context, q, p), QK_OK);
    EXPECT_EQ(qk_linear(context, x, p, nullptr, y), QK_OK);
    EXPECT_EQ(allocator.calls(), calls) << "an operation allocates";

    qk_context_destroy(context);
    for (qk_tensor *const tensor : {w, q, p, x, y}) qk_tensor_destroy(tensor);
    EXPECT_EQ(source.deleted, 1);
    EXPECT_GT(allocator.live(), 0) << "the view keeps its tensor, and that its context";
    view->deleter(view);
    EXPECT_EQ(allocator.live(), 0) << "something leaked";
    return failed;
}

}  // namespace api
