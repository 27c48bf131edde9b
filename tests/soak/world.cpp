// Contexts on poisoned memory with borders, and tensors over numbered memory.
#if defined(QK_WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "backend/weight.hpp"
#include "soak/soak.hpp"

namespace soak {
namespace {

constexpr size_t kBorder = 64;
constexpr uint8_t kFresh = 0xFF, kEdge = 0x5A;

struct Block {
    size_t bytes, align;
};

// What the library allocates is between borders, and held NaNs before.
void *allocate(void *, size_t bytes, size_t align) {
    align = align < kBorder ? kBorder : align;
    const size_t front = (sizeof(Block) + kBorder + align - 1) / align * align;
    const size_t all = (front + bytes + kBorder + align - 1) / align * align;
    auto *const memory = static_cast<uint8_t *>(std::aligned_alloc(align, all));
    if (memory == nullptr) return nullptr;
    std::memset(memory, kEdge, front);
    std::memset(memory + front, kFresh, bytes);
    std::memset(memory + front + bytes, kEdge, kBorder);
    const Block block = {bytes, front};
    std::memcpy(memory, &block, sizeof block);
    std::memcpy(memory + front - sizeof block, &block, sizeof block);
    return memory + front;
}

void release(void *, void *pointer) {
    if (pointer == nullptr) return;
    auto *const data = static_cast<uint8_t *>(pointer);
    Block block;
    std::memcpy(&block, data - sizeof block, sizeof block);
    uint8_t *const memory = data - block.align;
    const bool whole = std::memcmp(memory, &block, sizeof block) == 0;
    bool edges = whole;
    for (size_t i = sizeof block; whole && i < block.align - sizeof block; ++i) {
        edges = edges && memory[i] == kEdge;
    }
    for (size_t i = 0; whole && i < kBorder; ++i) edges = edges && data[block.bytes + i] == kEdge;
    if (!edges) {  // no exception may pass through the library
        std::printf("FAILED: the library wrote outside a block of %zu bytes\n", block.bytes);
        std::fflush(stdout);
        std::_Exit(1);
    }
    std::free(memory);
}

void backwards(void *, int32_t count, void (*task)(void *, int32_t), void *argument) {
    for (int32_t i = count - 1; i >= 0; --i) task(argument, i);
}

// The device allocator hands out what was released last: most workspaces then hold NaNs.
void poison_device(const World &world, size_t bytes) {
#if defined(QK_WITH_CUDA)
    if (!world.cuda() || bytes == 0) return;
    void *memory = nullptr;
    if (cudaMalloc(&memory, bytes) == cudaSuccess) cudaMemset(memory, kFresh, bytes);
    cudaFree(memory);
#else
    (void)world, (void)bytes;
#endif
}

}  // namespace

Context::Context(const World &world, const ContextOptions &from) {
    const qk_allocator allocator = {allocate, release, nullptr};
    const qk_executor executor = {backwards, nullptr, from.threads};
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.device = world.home.backend.device;
    options.instruction_sets = world.home.device.instruction_sets;
    options.allocator = &allocator;
    options.flags = from.flags;
    options.workspace_bytes = from.workspace;
    options.thread_count = from.threads;
    if (from.executor) options.executor = &executor;
    poison_device(world, from.workspace);
    const qk_status status = qk_context_create(&options, &context_);
    if (status != QK_OK) fail("qk_context_create: %s", qk_status_string(status));
}

Context::~Context() { qk_context_destroy(context_); }

void Context::expect_ok(qk_status status, const char *call) const {
    if (status == QK_OK) return;
    if (status == QK_ERROR_DEVICE_FAULT) throw Fault(qk_context_error(context_));
    fail("%s: %s: %s", call, qk_status_string(status), qk_context_error(context_));
}

void Context::synchronize() const { expect_ok(qk_context_synchronize(context_), "synchronize"); }

Tensor::Tensor(World *world, const Context &context, const qk_tensor_desc &d,
               const reference::Planes *planes, int slot, uint64_t turn)
    : desc(d), world_(world), slot_(slot) {
    void *pointers[QK_PLANE_COUNT] = {};
    for (qk_plane plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        size_t size = 0;
        const qk_status status = qk_tensor_plane_bytes(&desc, plane, &size);
        if (status != QK_OK) fail("qk_tensor_plane_bytes: %s", qk_status_string(status));
        if (planes != nullptr && harness::plane_of(*planes, plane).size() != size) {
            fail("plane %d has %zu bytes, the reference's %zu", plane, size,
                 harness::plane_of(*planes, plane).size());
        }
        if (size == 0) continue;
        has_[size_t(plane)] = true;
        // All planes aligned, or each at an address of its own.
        const uint64_t at = turn == 0 ? 0 : turn + uint64_t(plane);
        pointers[plane] =
            planes != nullptr
                ? world->home.memory.put(slot + plane, harness::plane_of(*planes, plane), at)
                : world->home.memory.space(slot + plane, size, at);
    }
    context.expect_ok(qk_tensor_wrap(context.get(), &desc, pointers, QK_PLANE_COUNT, &handle_),
                      "qk_tensor_wrap");
}

Tensor::Tensor(const World &world, const Context &context, const qk_tensor_desc &d) : desc(d) {
    const size_t codes = size_t(desc.shape[0] * desc.shape[1]);
    for (const size_t bytes : {codes / 2, codes, 2 * codes, 4 * codes}) {
        poison_device(world, bytes);  // the memory of planes and of the gaps between them
    }
    context.expect_ok(qk_tensor_create(context.get(), &desc, &handle_), "qk_tensor_create");
}

Bytes Tensor::bytes(int plane) const {
    return has_[size_t(plane)] ? world_->home.memory.get(slot_ + plane) : Bytes();
}

// ---- contents --------------------------------------------------------------------------------

qk_tensor_desc describe_weight(const Case &c) {
    return c.dense_weight ? harness::describe_dense(c.dense_format, c.spec.n, c.spec.k)
                          : harness::describe(c.spec);
}

// Rows may be folded into leading dimensions.
qk_tensor_desc describe_rows(Format format, int64_t rows, int64_t columns, Random *random) {
    qk_tensor_desc desc = harness::describe_dense(format, rows, columns);
    if (rows == 1 && random->one_in(3)) {
        desc.rank = 1;
        desc.shape[0] = columns, desc.shape[1] = 0;
    } else if (rows % 3 == 0 && random->one_in(3)) {
        desc.rank = 3;
        desc.shape[0] = 3, desc.shape[1] = rows / 3, desc.shape[2] = columns;
    }
    return desc;
}

static void scale_up(const Case &c, reference::Weight *weight) {
    if (c.scale_up == 1 || c.spec.nested) return;
    if (reference::bytes_of(c.spec.scale_format) == 1) return;
    for (uint32_t &bits : weight->scales) {
        const float value = reference::decode(c.spec.scale_format, bits) * c.scale_up;
        bits = reference::encode(c.spec.scale_format, value);
    }
}

// Random bytes for codes and zeros, padding included; scales like a model's.
static reference::Planes random_planes(const Case &c, Random *random) {
    reference::Planes planes;
    const qk_tensor_desc desc = describe_weight(c);
    for (qk_plane plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        size_t size = 0;
        if (qk_tensor_plane_bytes(&desc, plane, &size) != QK_OK) fail("plane %d", plane);
        Bytes &bytes = harness::plane_of(planes, plane);
        bytes.resize(size);
        for (size_t i = 0; i + 8 <= size; i += 8) {
            const uint64_t word = random->next();
            std::memcpy(&bytes[i], &word, 8);
        }
    }
    const auto fill = [&](Bytes *bytes, Format format, float size) {
        std::vector<float> values;
        for (size_t i = 0; i < bytes->size() / size_t(reference::bytes_of(format)); ++i) {
            values.push_back(float(size * (0.1 + random->unit())));
        }
        *bytes = sweep::dense_bytes(format, values);
    };
    const float scale = 0.02f * c.scale_up;
    if (c.dense_weight) {
        fill(&planes.data, c.dense_format, 1.0f);
    } else if (c.spec.scale_format == Format::e8m0) {
        for (uint8_t &code : planes.scale) code = uint8_t(115 + code % 10);
    } else if (c.spec.scale_format == Format::e4m3) {
        for (uint8_t &code : planes.scale) code %= 127;  // no NaN
    } else if (!c.spec.nested) {
        fill(&planes.scale, c.spec.scale_format, scale);
    }
    if (c.spec.format == Format::e4m3) {
        for (uint8_t &code : planes.data) code = code % 128 == 127 ? 0 : code;
    }
    fill(&planes.global, Format::f32, 0.01f);
    fill(&planes.second_scale, Format::f32, 0.01f);
    fill(&planes.scale_bias, Format::f32, 0.02f);
    std::vector<float> table = reference::dynamic_table();
    if (!planes.scale_code.empty()) planes.scale_code = sweep::dense_bytes(Format::f32, table);
    if (c.spec.format == Format::lut4) table.resize(16);
    if (!planes.table.empty()) planes.table = sweep::dense_bytes(Format::f32, table);
    return planes;
}

Contents contents(const Case &c, Random *random) {
    Contents w;
    w.small = c.spec.n * c.spec.k <= (1 << 17) && !c.dense_weight;
    if (c.dense_weight) {
        std::vector<float> values;
        for (int64_t i = 0; i < c.spec.n * c.spec.k; ++i) {
            values.push_back(c.inputs == Inputs::integer ? float(random->between(-8, 8))
                                                         : 20 * random->weight_like());
        }
        w.planes.data = sweep::dense_bytes(c.dense_format, values);
    } else if (w.small || c.data != Data::real) {
        w.meaning = harness::random_weight(c.spec, c.data, random);
        scale_up(c, &w.meaning);
        w.planes = reference::pack(w.meaning, uint32_t(random->next()));
    } else {
        w.planes = random_planes(c, random);
    }
    return w;
}

qk::Weight host_view(const Case &c, const Contents &w) {
    qk::Shape shape;
    qk::ErrorText error = {};
    if (qk::resolve(describe_weight(c), QK_LAYOUT_PACKED, &shape, &error) != QK_OK) {
        fail("resolve: %s", error.text);
    }
    const auto at = [&w](int plane) -> void * {
        const Bytes &bytes = harness::plane_of(w.planes, plane);
        return bytes.empty() ? nullptr : const_cast<uint8_t *>(bytes.data());
    };
    void *planes[QK_PLANE_COUNT];
    for (int plane = 0; plane < QK_PLANE_COUNT; ++plane) planes[plane] = at(plane);
    return qk::weight_of(shape, planes, qk::kScaleTables);
}

void intact(World *world, const char *what) {
    if (!world->home.memory.intact()) fail("%s wrote outside a plane", what);
}

uint64_t place(const World &world, Random *random) {
    if (!world.cuda()) return random->next() >> 8;
    constexpr uint64_t places[] = {0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32};
    return places[random->below(11)];
}

}  // namespace soak
