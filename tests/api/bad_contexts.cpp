// Contexts, and what can be asked without one, x every class of bad argument.
#include <gtest/gtest.h>

#include "api/world.hpp"

namespace api {
namespace {

void run_serially(void *, int32_t count, void (*task)(void *, int32_t), void *argument) {
    for (int32_t i = 0; i < count; ++i) task(argument, i);
}

TEST(BadArguments, ContextCreate) {
    std::vector<Cell> cells;
    const auto add = [&](std::string what, qk_status expected, auto change) {
        cells.push_back({std::move(what), expected, "", [=](World &o) {
                             qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
                             options.allocator = o.allocator.table();
                             const int64_t calls = o.allocator.calls();
                             change(options);
                             const qk_status status =
                                 qk_context_create(&options, &o.outputs.context);
                             EXPECT_TRUE(status == QK_ERROR_MEMORY || o.allocator.calls() == calls);
                             return status;
                         }});
    };
    for (const uint32_t size : {0u, 4u, uint32_t(sizeof(qk_context_options)) - 1,
                                uint32_t(sizeof(qk_context_options)) + 1, UINT32_MAX}) {
        add("struct_size", QK_ERROR_ABI, [=](auto &o) { o.struct_size = size; });
    }
    for (const uint32_t version : {0u, QK_ABI_VERSION + 1u, UINT32_MAX}) {
        add("abi_version", QK_ERROR_ABI, [=](auto &o) { o.abi_version = version; });
    }
    for (const qk_device device : {0, 3, -1, INT32_MIN, INT32_MAX}) {
        add("device", QK_ERROR_ARGUMENT, [=](auto &o) { o.device = device; });
    }
    for (const int32_t index : {1, -1, INT32_MIN, INT32_MAX}) {
        add("device_index", QK_ERROR_NO_DEVICE, [=](auto &o) { o.device_index = index; });
    }
    for (const int32_t threads : {-1, 1025, INT32_MIN, INT32_MAX}) {
        add("thread_count", QK_ERROR_ARGUMENT, [=](auto &o) { o.thread_count = threads; });
    }
    for (const uint32_t flags : {3u, 4u, 0x80000000u, UINT32_MAX}) {
        add("flags", QK_ERROR_ARGUMENT, [=](auto &o) { o.flags = flags; });
    }
    for (const size_t bytes : {(size_t{1} << 30) + 1, SIZE_MAX, SIZE_MAX - 63}) {
        add("workspace_bytes", QK_ERROR_MEMORY, [=](auto &o) { o.workspace_bytes = bytes; });
    }
    static const qk_allocator no_allocate = {nullptr, [](void *, void *) {}, nullptr};
    static const auto nothing = [](void *, size_t, size_t) -> void * { return nullptr; };
    static const qk_allocator no_release = {nothing, nullptr, nullptr};
    static const qk_allocator empty = {nothing, no_allocate.release, nullptr};
    add("allocate NULL", QK_ERROR_NULL, [](auto &o) { o.allocator = &no_allocate; });
    add("release NULL", QK_ERROR_NULL, [](auto &o) { o.allocator = &no_release; });
    add("allocates nothing", QK_ERROR_MEMORY, [](auto &o) { o.allocator = &empty; });
    static const qk_executor no_function = {nullptr, nullptr, 4};
    static const qk_executor concurrency[] = {{run_serially, nullptr, 0},
                                              {run_serially, nullptr, -1},
                                              {run_serially, nullptr, INT32_MIN}};
    add("parallel_for NULL", QK_ERROR_NULL, [](auto &o) { o.executor = &no_function; });
    for (const qk_executor &executor : concurrency) {
        add("concurrency", QK_ERROR_ARGUMENT, [&](auto &o) { o.executor = &executor; });
    }
    cells.push_back({"out NULL", QK_ERROR_NULL, "",
                     [](World &) { return qk_context_create(nullptr, nullptr); }});
    run_cells(cells, [](World &) {
        qk_context *context = nullptr;
        const qk_status status = qk_context_create(nullptr, &context);
        qk_context_destroy(context);
        return status;
    });
}

TEST(BadArguments, CudaIsAnsweredWhereItIsNotBuilt) {
    int32_t count = -5;
    ASSERT_EQ(qk_device_count(QK_DEVICE_CUDA, &count), QK_OK);
    ASSERT_GE(count, 0);
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.device = QK_DEVICE_CUDA;
    options.device_index = count;  // one past the last
    qk_context *context = nullptr;
    const qk_status status = qk_context_create(&options, &context);
    const bool built = std::strstr(qk_build_info(), "cuda") != nullptr;
    EXPECT_EQ(status, built ? QK_ERROR_NO_DEVICE : QK_ERROR_UNSUPPORTED);
    EXPECT_EQ(context, nullptr);
}

TEST(BadArguments, DeviceCount) {
    std::vector<Cell> cells;
    for (const qk_device device : {0, 3, -1, INT32_MIN, INT32_MAX}) {
        cells.push_back({"device", QK_ERROR_ARGUMENT, "",
                         [=](World &o) { return qk_device_count(device, &o.outputs.count); }});
    }
    cells.push_back({"count NULL", QK_ERROR_NULL, "",
                     [](World &) { return qk_device_count(QK_DEVICE_CPU, nullptr); }});
    run_cells(cells, [](World &) {
        int32_t count = 0;
        const qk_status status = qk_device_count(QK_DEVICE_CPU, &count);
        return count == 1 ? status : QK_ERROR_INTERNAL;
    });
}

TEST(BadArguments, StreamAndSynchronize) {
    std::vector<Cell> cells;
    const auto add = [&](const char *what, qk_status expected, auto pick) {
        cells.push_back({what, expected, "",
                         [=](World &o) { return qk_context_set_stream(pick(o), &o.outputs); }});
        cells.push_back(
            {what, expected, "", [=](World &o) { return qk_context_synchronize(pick(o)); }});
    };
    add("NULL", QK_ERROR_NULL, [](World &) { return static_cast<qk_context *>(nullptr); });
    add("destroyed", QK_ERROR_STATE, [](World &o) { return o.destroyed_context(); });
    add("not a handle", QK_ERROR_STATE, [](World &o) { return o.stranger_context(); });
    add("a tensor", QK_ERROR_STATE, [](World &o) { return reinterpret_cast<qk_context *>(o.nf4); });
    run_cells(cells, [](World &o) {
        const qk_status status = qk_context_set_stream(o.context, nullptr);
        return status == QK_OK ? qk_context_synchronize(o.context) : status;
    });
}

TEST(BadArguments, DynamicTable) {
    EXPECT_EQ(qk_dynamic_table(nullptr), QK_ERROR_NULL);
    float table[258];
    for (float &value : table) value = 77;
    EXPECT_EQ(qk_dynamic_table(table + 1), QK_OK);
    EXPECT_EQ(table[0], 77);
    EXPECT_EQ(table[257], 77);
    for (int i = 2; i <= 256; ++i) EXPECT_LT(table[i - 1], table[i]);
}

// Functions that cannot fail take anything.
TEST(BadArguments, DestroyAndAskAnything) {
    World world;
    qk_context *const dead_context = world.destroyed_context();
    qk_tensor *const dead_tensor = world.destroyed_tensor();
    for (qk_context *const context :
         {static_cast<qk_context *>(nullptr), dead_context, world.stranger_context()}) {
        EXPECT_STREQ(qk_context_error(context), "");
        qk_context_destroy(context);
    }
    for (qk_tensor *const tensor :
         {static_cast<qk_tensor *>(nullptr), dead_tensor, world.stranger_tensor()}) {
        qk_tensor_destroy(tensor);
    }
    EXPECT_STREQ(qk_context_error(world.context), "") << "nothing failed on this context";
    world.expect_untouched();
    // A destroyed context is remembered as such while a child keeps its memory.
    qk_context *const parent = make_context(world.allocator);
    qk_tensor *const child = create(parent, dense_desc(QK_FORMAT_F32, {4}));
    qk_context_destroy(parent);
    qk_context_destroy(parent);
    EXPECT_EQ(qk_context_synchronize(parent), QK_ERROR_STATE);
    EXPECT_EQ(qk_quantize(world.context, child, world.nf4), QK_ERROR_SHAPE) << "child is alive";
    qk_tensor_destroy(child);
    qk_tensor_destroy(child);
    world.expect_untouched();
}

TEST(BadArguments, StatusTexts) {
    const qk_status known[] = {QK_OK,
                               QK_ERROR_NULL,
                               QK_ERROR_SHAPE,
                               QK_ERROR_FORMAT,
                               QK_ERROR_STATE,
                               QK_ERROR_DEVICE_MIX,
                               QK_ERROR_BUFFER_SIZE,
                               QK_ERROR_ABI,
                               QK_ERROR_ARGUMENT,
                               QK_ERROR_UNSUPPORTED,
                               QK_ERROR_NO_DEVICE,
                               QK_ERROR_MEMORY,
                               QK_ERROR_WORKSPACE,
                               QK_ERROR_DEVICE_FAULT,
                               QK_ERROR_CORRUPT,
                               QK_ERROR_FILE,
                               QK_ERROR_INTERNAL};
    // Programs print them and people search for them: not one is changed or exchanged by accident.
    const std::pair<qk_status, const char *> said[] = {
        {QK_OK, "ok"},
        {QK_ERROR_NULL, "a required pointer is NULL"},
        {QK_ERROR_SHAPE, "shapes do not fit"},
        {QK_ERROR_FORMAT, "format or layout does not fit"},
        {QK_ERROR_STATE, "the object is not in a state for this call"},
        {QK_ERROR_DEVICE_MIX, "operands live on different devices"},
        {QK_ERROR_BUFFER_SIZE, "buffer has the wrong size"},
        {QK_ERROR_ABI, "header and library disagree"},
        {QK_ERROR_ARGUMENT, "value outside its documented range"},
        {QK_ERROR_UNSUPPORTED, "not supported by this build or device"},
        {QK_ERROR_NO_DEVICE, "no such device"},
        {QK_ERROR_MEMORY, "out of memory"},
        {QK_ERROR_WORKSPACE, "workspace is too small"},
        {QK_ERROR_DEVICE_FAULT, "the device failed"},
        {QK_ERROR_CORRUPT, "stored bytes are damaged or too new"},
        {QK_ERROR_FILE, "file cannot be opened, read or written"},
        {QK_ERROR_INTERNAL, "internal error, please report it"}};
    for (const auto &[status, text] : said) EXPECT_STREQ(qk_status_string(status), text);
    std::set<std::string> texts;
    for (const qk_status status : known) texts.insert(qk_status_string(status));
    EXPECT_EQ(texts.size(), std::size(known)) << "two codes share a text";
    const std::string unknown = qk_status_string(-1);
    EXPECT_EQ(texts.count(unknown), 0u);
    const std::set<qk_status> set(std::begin(known), std::end(known));
    for (qk_status status = -1000; status <= 2000; ++status) {
        const char *const text = qk_status_string(status);
        ASSERT_NE(text, nullptr);
        EXPECT_EQ(text == unknown, set.count(status) == 0) << status;
    }
    for (const qk_status status : {INT32_MIN, INT32_MAX}) {
        EXPECT_EQ(qk_status_string(status), unknown);
    }
    EXPECT_EQ(qk_version(), QK_VERSION_MAJOR * 10000u + QK_VERSION_MINOR * 100u + QK_VERSION_PATCH);
    const std::string version = std::to_string(QK_VERSION_MAJOR) + "." +
                                std::to_string(QK_VERSION_MINOR) + "." +
                                std::to_string(QK_VERSION_PATCH);
    EXPECT_NE(std::string(qk_build_info()).find(version), std::string::npos);
}

}  // namespace
}  // namespace api
