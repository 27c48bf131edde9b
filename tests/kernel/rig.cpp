#include "kernel/rig.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <thread>

namespace sweep {

using harness::Placement;
using reference::Format;
using reference::Spec;

namespace {

constexpr size_t kMargin = 256;  // poison around a device buffer

bool on_host(const qk::Backend &backend) { return backend.memory.allocate == nullptr; }

}  // namespace

// ---- memory ----------------------------------------------------------------------------------

Memory::~Memory() {
    for (auto &entry : buffers_) {
        if (entry.second->device != nullptr) backend_.memory.release(0, entry.second->device);
    }
}

Memory::Buffer &Memory::buffer(int slot) {
    std::unique_ptr<Buffer> &found = buffers_[slot];
    if (found == nullptr) found = std::make_unique<Buffer>();
    return *found;
}

void *Memory::put_device(Buffer *buffer, const Bytes *bytes, size_t size, uint64_t turn,
                         uint8_t poison) {
    const size_t needed = size + 2 * kMargin + 64;
    if (needed > buffer->capacity) {
        if (buffer->device != nullptr) backend_.memory.release(0, buffer->device);
        buffer->capacity = needed * 2;
        buffer->device = backend_.memory.allocate(0, buffer->capacity);
        if (buffer->device == nullptr) std::abort();
    }
    buffer->bytes = size;
    buffer->offset = kMargin + (mostly_aligned_ && turn % 16 != 0 ? 0 : turn % 64);
    buffer->poison = poison;
    Bytes staged(needed, buffer->poison);
    if (bytes != nullptr) {
        std::copy(bytes->begin(), bytes->end(), staged.begin() + int64_t(buffer->offset));
    }
    backend_.memory.upload({}, buffer->device, staged.data(), staged.size());
    return static_cast<uint8_t *>(buffer->device) + buffer->offset;
}

Bytes Memory::whole(const Buffer &buffer) {
    Bytes bytes(buffer.bytes + 2 * kMargin + 64);
    backend_.memory.download({}, bytes.data(), buffer.device, bytes.size());
    return bytes;
}

void *Memory::put(int slot, const Bytes &bytes, uint64_t turn) {
    Buffer &to = buffer(slot);
    constexpr uint8_t poison = harness::kPoisonNan;
    if (!on_host(backend_)) return put_device(&to, &bytes, bytes.size(), turn, poison);
    uint8_t *const data = to.guarded.place(bytes.size(), Placement::turn(turn), poison);
    if (!bytes.empty()) std::memcpy(data, bytes.data(), bytes.size());
    return data;
}

void *Memory::space(int slot, size_t bytes, uint64_t turn, uint8_t poison) {
    Buffer &to = buffer(slot);
    if (!on_host(backend_)) return put_device(&to, nullptr, bytes, turn, poison);
    return to.guarded.place(bytes, Placement::turn(turn), poison);
}

Bytes Memory::get(int slot) {
    const Buffer &from = buffer(slot);
    if (on_host(backend_)) {
        return Bytes(from.guarded.data(), from.guarded.data() + from.guarded.bytes());
    }
    const Bytes all = whole(from);
    const auto first = all.begin() + int64_t(from.offset);
    return Bytes(first, first + int64_t(from.bytes));
}

bool Memory::intact() {
    for (const auto &entry : buffers_) {
        const Buffer &each = *entry.second;
        if (on_host(backend_)) {
            if (!each.guarded.intact()) return false;
            continue;
        }
        const Bytes all = whole(each);
        const auto poisoned = [&each](uint8_t byte) { return byte == each.poison; };
        const auto first = all.begin() + int64_t(each.offset);
        if (!std::all_of(all.begin(), first, poisoned) ||
            !std::all_of(first + int64_t(each.bytes), all.end(), poisoned)) {
            return false;
        }
    }
    return true;
}

std::vector<std::unique_ptr<Home>> homes() {
    std::vector<std::unique_ptr<Home>> list;
    for (int32_t i = 0; qk::backend_at(i) != nullptr; ++i) {
        const qk::Backend &backend = *qk::backend_at(i);
        if (backend.device_count() > 0) {
            list.push_back(std::make_unique<Home>(backend));
        } else {
            std::printf("skipped: backend %s: no device on this machine\n", backend.name);
        }
    }
    return list;
}

// ---- operands --------------------------------------------------------------------------------

static qk::Weight place_as(Home *home, int first_slot, const qk_tensor_desc &desc,
                           const reference::Planes *planes, uint64_t turn) {
    const qk::Format &format = *qk::find_format(desc.format);
    qk::Shape shape;
    qk::ErrorText error = {};
    const qk::Status status =
        qk::resolve(desc, home->backend.packed_layout(format), &shape, &error);
    EXPECT_EQ(status, QK_OK) << error.text;
    void *planes_at[QK_PLANE_COUNT] = {};
    for (int plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        const size_t size = size_t(shape.plane_bytes[plane]);
        if (planes != nullptr) {
            const Bytes &bytes = harness::plane_of(*planes, plane);
            EXPECT_EQ(bytes.size(), size)
                << "plane " << plane << " of format " << desc.format << " layout " << desc.layout
                << " group " << desc.group_size << " k " << desc.shape[1];
        }
        if (size == 0) continue;
        planes_at[plane] =
            planes != nullptr
                ? home->memory.put(first_slot + plane, harness::plane_of(*planes, plane),
                                   turn + uint64_t(plane))
                : home->memory.space(first_slot + plane, size, turn + uint64_t(plane));
    }
    qk::Weight weight = qk::weight_of(shape, planes_at, *home->device.tables);
    // Only codes that are decoded are divided; a poisoned weight is about to be written.
    if (planes != nullptr && home->backend.device == QK_DEVICE_CPU) {
        qk::fold_global(&weight, home->folded.emplace_back().data());
    }
    return weight;
}

qk::Weight place(Home *home, int first_slot, const Spec &spec, const reference::Planes *planes,
                 uint64_t turn) {
    return place_as(home, first_slot, harness::describe(spec), planes, turn);
}

qk::Weight place_packed(Home *home, int first_slot, const Spec &spec, uint64_t turn) {
    qk_tensor_desc desc = harness::describe(spec);
    desc.layout = QK_LAYOUT_PACKED;
    return place_as(home, first_slot, desc, nullptr, turn);
}

bool has_packed(const Home &home, Format format) {
    const qk::Format &found = *qk::find_format(harness::code(format));
    return home.backend.packed_layout(found) > QK_LAYOUT_PACKED;
}

reference::Planes planes_of(Home *home, int first_slot, const Spec &spec) {
    reference::Planes planes;
    for (int plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        const bool nested = plane == QK_PLANE_SCALE2 || plane == QK_PLANE_SCALE_CODE ||
                            plane == QK_PLANE_SCALE_BIAS;
        if ((nested && !spec.nested) || (plane == QK_PLANE_ZERO && !spec.zeros) ||
            (plane == QK_PLANE_TABLE && spec.format != Format::lut8 &&
             spec.format != Format::lut4) ||
            (plane == QK_PLANE_GLOBAL && spec.global == reference::Global::none) ||
            (plane == QK_PLANE_ORDER && !spec.ordered) || plane == QK_PLANE_MIN2) {
            continue;
        }
        harness::plane_of(planes, plane) = home->memory.get(first_slot + plane);
    }
    return planes;
}

Bytes dense_bytes(Format format, const std::vector<float> &values) {
    const size_t size = size_t(reference::bytes_of(format));
    Bytes bytes(values.size() * size);
    for (size_t i = 0; i < values.size(); ++i) {
        const uint32_t bits = reference::encode(format, values[i]);
        std::memcpy(&bytes[i * size], &bits, size);
    }
    return bytes;
}

std::vector<float> rounded(Format format, std::vector<float> values) {
    if (format == Format::f32) return values;
    for (float &value : values) value = reference::decode(format, reference::encode(format, value));
    return values;
}

std::vector<uint32_t> dense_bits(Format format, const Bytes &bytes) {
    const size_t size = size_t(reference::bytes_of(format));
    std::vector<uint32_t> bits(bytes.size() / size);
    for (size_t i = 0; i < bits.size(); ++i) std::memcpy(&bits[i], &bytes[i * size], size);
    return bits;
}

qk::Dense dense(Format format, int64_t rows, int64_t columns, void *data) {
    return {qk::find_format(harness::code(format)), rows, columns, data};
}

// ---- running ---------------------------------------------------------------------------------

Tally::~Tally() {
    for (const auto &entry : counts_) {
        const auto [ran, refused] = entry.second;
        if (ran == 0) {
            std::printf("skipped: %s %s: takes none of these cases on this machine\n", operation_,
                        entry.first.c_str());
        } else {
            std::printf("%s %s: %lld cases\n", operation_, entry.first.c_str(), (long long)ran);
        }
    }
}

// A pool of one thread that pretends to be three: last task first, every other one skipped once.
static void shuffled(void *, int32_t count, void (*task)(void *, int32_t), void *argument) {
    for (int32_t i = count - 1; i >= 0; i -= 2) task(argument, i);
    for (int32_t i = count - 2; i >= 0; i -= 2) task(argument, i);
}

static void in_order(void *, int32_t count, void (*task)(void *, int32_t), void *argument) {
    for (int32_t i = 0; i < count; ++i) task(argument, i);
}

// Real threads, for ThreadSanitizer's eyes: each takes every third task.
static void threaded(void *, int32_t count, void (*task)(void *, int32_t), void *argument) {
    std::vector<std::thread> threads;
    for (int32_t first = 0; first < 3; ++first) {
        threads.emplace_back([=] {
            for (int32_t i = first; i < count; i += 3) task(argument, i);
        });
    }
    for (std::thread &thread : threads) thread.join();
}

qk::Parallel parallel_of(uint64_t turn) {
    const uint64_t pick = harness::Random(turn).next() % 32;
    if (pick < 15) return {in_order, nullptr, 1};
    return {pick == 15 ? threaded : shuffled, nullptr, 3};
}

std::vector<harness::Shape> shapes_of(reference::Format format) {
    std::vector<harness::Shape> list = harness::shapes();
    if (format != reference::Format::lut8) return list;
    constexpr int64_t sizes[][2] = {{1, 1},   {3, 40},   {17, 129}, {33, 65},
                                    {5, 301}, {18, 140}, {1, 5003}, {9, 1200}};
    for (const int64_t group : {1, 2, 3, 7, 15, 5000, 65536, INT32_MAX}) {
        for (const auto &[n, k] : sizes) list.push_back({n, k, group});
    }
    return list;
}

}  // namespace sweep
