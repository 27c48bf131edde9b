// Memory: the n-th allocation fails and nothing leaks; what is not marked [allocates] does not.
#include <gtest/gtest.h>

#include <cstdlib>

#include "api/malloc_count.hpp"
#include "api/scenario.hpp"

namespace api {
namespace {

void fail_every_allocation(bool forever) {
    int64_t sites = 0;
    for (int64_t n = 1;; ++n) {
        SCOPED_TRACE(n);
        Allocator allocator;
        allocator.fail_at(n, forever);
        const bool failed = run_scenario(allocator);
        if (::testing::Test::HasFailure()) return;
        EXPECT_EQ(failed, allocator.failures() != 0) << "a failed allocation went unnoticed";
        if (!failed) break;
        ++sites;
    }
    // Context, pool, scratch, workspace; five handles, three of them with storage; one view.
    EXPECT_EQ(sites, 13) << "allocations in the scenario";
}

TEST(Allocation, NthFailsOnce) { fail_every_allocation(false); }
TEST(Allocation, NthAndAllFurtherFail) { fail_every_allocation(true); }

// malloc of the whole process is counted around every call that may not allocate.
TEST(Allocation, OperationsDoNot) {
    Allocator allocator;
#if defined(QK_SANITIZED)
    constexpr int32_t threads = 1;  // the sanitizer allocates when a worker wakes
#else
    constexpr int32_t threads = 2;
#endif
    qk_context *const context = make_context(allocator, threads);
    Planes x_planes(dense_desc(QK_FORMAT_F32, {3, 96}));
    x_planes.fill_dense(QK_FORMAT_F32);
    const auto matrix = dense_desc(QK_FORMAT_F32, {40, 96});
    Planes planes(matrix);
    planes.fill_dense(QK_FORMAT_F32);
    qk_tensor *const w = wrap(context, matrix, planes);
    qk_tensor *const x = wrap(context, dense_desc(QK_FORMAT_F32, {3, 96}), x_planes);
    qk_tensor *const y = create(context, dense_desc(QK_FORMAT_F32, {3, 40}));
    qk_tensor *const back = create(context, matrix);
    const auto descs = weight_descs(40, 96, 32);
    ASSERT_GT(descs.size(), 40u);
    for (const qk_tensor_desc &desc : descs) {
        Planes weight(desc);
        weight.fill_tables();
        qk_tensor_desc packed_desc = desc;
        packed_desc.layout = QK_LAYOUT_PACKED;
        qk_tensor *const q = wrap(context, desc, weight);
        qk_tensor *const packed = create(context, packed_desc);
        std::vector<unsigned char> host(weight.bytes[0].size());
        const int64_t before = allocator.calls();
        const MallocCount count;
        qk_status status = qk_quantize(context, w, q);
        const auto then = [&](qk_status next) { status = status != QK_OK ? status : next; };
        then(qk_dequantize(context, q, back));
        then(qk_repack(context, q, packed));
        then(qk_linear(context, x, q, nullptr, y));
        then(qk_linear(context, x, packed, nullptr, y));
        size_t bytes = 0;
        const qk_product products[] = {{sizeof(qk_product), 0, x, q, nullptr, y, nullptr},
                                       {sizeof(qk_product), 0, x, packed, nullptr, y, nullptr}};
        qk_plan plan = QK_PLAN_INIT;
        then(qk_multiply(context, products, 2));
        then(qk_multiply_workspace(context, products, 2, &bytes));
        then(qk_explain(context, products, &plan));
        then(qk_linear_workspace(context, q, 64, &bytes));
        then(qk_tensor_plane_bytes(&desc, QK_PLANE_SCALE, &bytes));
        qk_tensor_desc described = QK_TENSOR_DESC_INIT;
        then(qk_tensor_describe(q, &described));
        then(qk_tensor_download(context, q, QK_PLANE_DATA, host.data(), host.size()));
        then(qk_tensor_upload(context, q, QK_PLANE_DATA, host.data(), host.size()));
        then(qk_context_synchronize(context));
        const qk_status refused = qk_dequantize(context, w, back);  // formats a sentence
        const int64_t mallocs = count.since();
        EXPECT_EQ(mallocs, 0) << "format " << desc.format << " layout " << desc.layout;
        EXPECT_EQ(allocator.calls(), before);
        EXPECT_EQ(status, QK_OK) << qk_context_error(context);
        EXPECT_EQ(refused, QK_ERROR_FORMAT);
        qk_tensor_destroy(q);
        qk_tensor_destroy(packed);
    }
    for (qk_tensor *const tensor : {w, x, y, back}) qk_tensor_destroy(tensor);
    qk_context_destroy(context);
    EXPECT_EQ(allocator.live(), 0);
}

TEST(Allocation, TheCounterCounts) {
    const MallocCount count;
    void *volatile some = malloc(1000);  // volatile: or clang leaves the pair out
    EXPECT_GE(count.since(), 1) << "the test above would prove nothing";
    free(some);
}

// With a caller's allocator, all memory of the library comes from it.
TEST(Allocation, TheCallersAllocatorGetsAll) {
    struct Fixed {  // an arena without malloc
        alignas(64) char bytes[1 << 19];
        size_t used = 0;
    };
    static Fixed arena;
    const qk_allocator table = {[](void *user, size_t bytes, size_t align) -> void * {
                                    Fixed &fixed = *static_cast<Fixed *>(user);
                                    const size_t start = (fixed.used + align - 1) / align * align;
                                    if (start + bytes > sizeof(fixed.bytes)) return nullptr;
                                    fixed.used = start + bytes;
                                    return fixed.bytes + start;
                                },
                                [](void *, void *) {}, &arena};
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.allocator = &table;
    options.thread_count = 1;
    options.workspace_bytes = 100;
    const auto desc = weight_desc(QK_FORMAT_U4_AFFINE, QK_LAYOUT_PACKED, 40, 96, 32);
    const auto vector = dense_desc(QK_FORMAT_F32, {40});
    qk_context *context = nullptr;
    qk_tensor *tensor = nullptr, *dense = nullptr;
    DLManagedTensorVersioned *view = nullptr;
    const MallocCount count;
    const qk_status made[] = {qk_context_create(&options, &context),
                              qk_tensor_create(context, &desc, &tensor),
                              qk_tensor_create(context, &vector, &dense),
                              qk_tensor_to_dlpack(dense, QK_PLANE_DATA, &view)};
    if (view != nullptr) view->deleter(view);
    qk_tensor_destroy(tensor);
    qk_tensor_destroy(dense);
    qk_context_destroy(context);
    const int64_t mallocs = count.since();
    EXPECT_EQ(mallocs, 0);
    for (const qk_status status : made) EXPECT_EQ(status, QK_OK);
    EXPECT_GT(arena.used, 1000u);
}

}  // namespace
}  // namespace api
