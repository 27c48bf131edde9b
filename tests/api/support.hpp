// What the tests of the C interface share: a watching allocator, descriptions, and memory whose
// every byte is compared after each call.
#pragma once
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "harness/aligned.hpp"
#include "qk.h"

namespace api {

// Counts, can fail, and keeps what was released readable (quarantine), so that calls on destroyed
// handles are defined: what they read is ours.
class Allocator {
  public:
    Allocator() : table_{allocate, release, this} {}
    ~Allocator() {
        for (void *pointer : quarantine_) harness::give_aligned(pointer);
    }
    Allocator(const Allocator &) = delete;
    Allocator &operator=(const Allocator &) = delete;

    const qk_allocator *table() const { return &table_; }
    int64_t live() const { return int64_t(live_.size()); }
    int64_t calls() const { return calls_; }
    // The n-th allocation from now on fails (1: the next); `forever`: and all that follow.
    void fail_at(int64_t n, bool forever) {
        fail_at_ = calls_ + n;
        forever_ = forever;
        failures_ = 0;
    }
    void stop_failing() { fail_at_ = 0; }
    int64_t failures() const { return failures_; }
    bool keep_released = false;
    size_t largest = size_t{1} << 30;

  private:
    static void *allocate(void *user, size_t bytes, size_t align) {
        Allocator &self = *static_cast<Allocator *>(user);
        const std::lock_guard<std::mutex> lock(self.mutex_);
        ++self.calls_;
        const bool due = self.fail_at_ != 0 && (self.forever_ ? self.calls_ >= self.fail_at_
                                                              : self.calls_ == self.fail_at_);
        if (due || bytes > self.largest) {
            ++self.failures_;
            return nullptr;
        }
        void *const pointer = harness::take_aligned(bytes, align);
        if (pointer == nullptr) return nullptr;
        std::memset(pointer, 0xcd, bytes);  // nothing may rely on fresh memory being zero
        self.live_.insert(pointer);
        return pointer;
    }
    static void release(void *user, void *pointer) {
        Allocator &self = *static_cast<Allocator *>(user);
        const std::lock_guard<std::mutex> lock(self.mutex_);
        EXPECT_EQ(self.live_.erase(pointer), 1u) << "released twice, or not allocated here";
        if (self.keep_released) {
            self.quarantine_.push_back(pointer);
        } else {
            harness::give_aligned(pointer);
        }
    }

    qk_allocator table_;
    std::mutex mutex_;
    std::set<void *> live_;
    std::vector<void *> quarantine_;
    int64_t calls_ = 0, fail_at_ = 0, failures_ = 0;
    bool forever_ = false;
};

inline qk_tensor_desc dense_desc(qk_format format, std::initializer_list<int64_t> shape) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = format;
    desc.rank = int32_t(shape.size());
    int i = 0;
    for (const int64_t size : shape) desc.shape[i++] = size;
    return desc;
}

inline qk_tensor_desc weight_desc(qk_format format, qk_layout layout, int64_t n, int64_t k,
                                  int32_t group_size = 16, qk_format scale = QK_FORMAT_F32) {
    qk_tensor_desc desc = dense_desc(format, {n, k});
    desc.layout = layout;
    desc.group_size = group_size;
    desc.scale_format = scale;
    return desc;
}

// A wrapped tensor and the memory under it.
struct Planes {
    std::vector<std::vector<unsigned char>> bytes{QK_PLANE_COUNT};
    void *pointers[QK_PLANE_COUNT] = {};

    explicit Planes(const qk_tensor_desc &desc, int fill = 0xa5) {
        for (qk_plane plane = 0; plane < QK_PLANE_COUNT; ++plane) {
            size_t count = 0;
            EXPECT_EQ(qk_tensor_plane_bytes(&desc, plane, &count), QK_OK);
            bytes[size_t(plane)].assign(count, static_cast<unsigned char>(fill));
            if (count != 0) pointers[plane] = bytes[size_t(plane)].data();
        }
    }
    template <class T>
    T *as(qk_plane plane = QK_PLANE_DATA) {
        return reinterpret_cast<T *>(bytes[size_t(plane)].data());
    }
    // Values that are different everywhere and of both signs; tables and scales that make sense.
    void fill_dense(qk_format format, unsigned seed = 1) {
        unsigned state = seed;
        const size_t width = format == QK_FORMAT_F32 ? 4 : 2;
        for (size_t i = 0; i < bytes[0].size() / width; ++i) {
            state = state * 1664525u + 1013904223u;
            const float value = float(int32_t(state) >> 12) * 0x1p-16f;  // |value| <= 8
            if (format == QK_FORMAT_F32) {
                as<float>()[i] = value;
            } else {  // a positive exponent range that is finite in both half formats
                as<uint16_t>()[i] = uint16_t(0x3800u + (state >> 16 & 0x87ffu));
            }
        }
    }
    void fill_tables() {
        for (const qk_plane plane : {QK_PLANE_TABLE, QK_PLANE_SCALE_CODE}) {
            if (pointers[plane] == nullptr) continue;
            EXPECT_EQ(qk_dynamic_table(as<float>(plane)), QK_OK);
        }
    }
};

inline qk_context *make_context(Allocator &allocator, int32_t threads = 1,
                                const qk_executor *executor = nullptr, size_t workspace = 0) {
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.thread_count = threads;
    options.allocator = allocator.table();
    options.executor = executor;
    options.workspace_bytes = workspace;
    qk_context *context = nullptr;
    EXPECT_EQ(qk_context_create(&options, &context), QK_OK);
    return context;
}

inline qk_tensor *wrap(qk_context *context, const qk_tensor_desc &desc, void *const *planes) {
    qk_tensor *tensor = nullptr;
    EXPECT_EQ(qk_tensor_wrap(context, &desc, planes, QK_PLANE_COUNT, &tensor), QK_OK)
        << qk_context_error(context);
    return tensor;
}

inline qk_tensor *wrap(qk_context *context, const qk_tensor_desc &desc, Planes &planes) {
    return wrap(context, desc, planes.pointers);
}

inline qk_tensor *create(qk_context *context, const qk_tensor_desc &desc) {
    qk_tensor *tensor = nullptr;
    EXPECT_EQ(qk_tensor_create(context, &desc, &tensor), QK_OK) << qk_context_error(context);
    return tensor;
}

// Every description that a weight [n, k] can have, apart from group sizes.
std::vector<qk_tensor_desc> weight_descs(int64_t n, int64_t k, int32_t group_size);

}  // namespace api
