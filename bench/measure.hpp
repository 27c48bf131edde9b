// Measuring against a floor: every sample of a kernel is between two samples of a loop that only
// moves the bytes, with the same threads, so that other load on the machine hits both. One JSON
// object a line.
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "qk.h"

namespace bench {

inline double seconds(clockid_t clock) {
    timespec t;
    clock_gettime(clock, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// Memory in large pages, as the library takes it for large tensors.
struct Buffer {
    uint8_t *data = nullptr;
    size_t bytes = 0, mapped = 0;
    void *base = nullptr;

    explicit Buffer(size_t size) : bytes(size) {
        constexpr size_t large = size_t{2} << 20;
        mapped = (size + large - 1) / large * large + large;
        base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED) abort();
        data = reinterpret_cast<uint8_t *>((uintptr_t(base) + large - 1) / large * large);
        madvise(data, mapped - large, MADV_HUGEPAGE);
    }
    Buffer(const Buffer &) = delete;
    ~Buffer() { munmap(base, mapped); }
};

// All tensors in one run of large pages, so that small weights do not measure the page tables.
class Arena {
  public:
    explicit Arena(size_t bytes) : buffer_(bytes) {}
    qk_allocator allocator() {
        return {allocate, [](void *, void *) {}, this};
    }

  private:
    static void *allocate(void *user, size_t bytes, size_t align) {
        Arena &self = *static_cast<Arena *>(user);
        self.used_ = (self.used_ + align - 1) / align * align;
        if (self.used_ + bytes > self.buffer_.bytes) return nullptr;
        self.used_ += bytes;
        return self.buffer_.data + self.used_ - bytes;
    }
    Buffer buffer_;
    size_t used_ = 0;
};

// Threads that spin between jobs; the caller is one of them. The same ones run floors and, as the
// context's executor, kernels.
class Threads {
  public:
    explicit Threads(int count) : count_(count) {
        for (int i = 1; i < count; ++i) workers_.emplace_back([this] { serve(); });
    }
    ~Threads() {
        stop_ = true;
        for (std::thread &worker : workers_) worker.join();
    }
    int count() const { return count_; }

    void run(int tasks, const std::function<void(int)> &task) {
        if (count_ == 1) {
            for (int i = 0; i < tasks; ++i) task(i);
            return;
        }
        task_ = &task;
        tasks_ = tasks;
        busy_ = count_ - 1;
        next_ = 0;
        job_.fetch_add(1);
        work();
        while (busy_.load() > 0) __builtin_ia32_pause();
    }

    static void parallel_for(void *user, int32_t tasks, void (*task)(void *, int32_t),
                             void *argument) {
        static_cast<Threads *>(user)->run(tasks, [&](int i) { task(argument, i); });
    }
    qk_executor executor() { return {parallel_for, this, count_}; }

  private:
    void work() {
        for (int i; (i = next_.fetch_add(1)) < tasks_;) (*task_)(i);
    }
    void serve() {
        int seen = 0;
        while (!stop_) {
            if (job_.load() == seen) {
                __builtin_ia32_pause();
                continue;
            }
            seen = job_.load();
            work();
            busy_.fetch_sub(1);
        }
    }

    int count_;
    std::vector<std::thread> workers_;
    const std::function<void(int)> *task_ = nullptr;
    int tasks_ = 0;
    std::atomic<int> next_{0}, job_{0}, busy_{0};
    std::atomic<bool> stop_{false};
};

struct Result {
    double gigabytes = 0, floor = 0, ratio = 0, low = 0, high = 0;
    int samples = 0;
};

inline double quantile(std::vector<double> values, double q) {
    std::sort(values.begin(), values.end());
    return values[size_t(q * double(values.size() - 1))];
}

// One thread is timed by its own clock, which leaves out what the machine does in its stead.
inline double time_of(int threads, const std::function<void()> &body) {
    const clockid_t clock = threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    const double start = seconds(clock);
    body();
    return seconds(clock) - start;
}

// `floor` moves floor_bytes, `kernel` kernel_bytes; both may rotate through memory on their own.
inline Result measure_pairs(int threads, double run_seconds, double floor_bytes,
                            const std::function<void()> &floor, double kernel_bytes,
                            const std::function<void()> &kernel) {
    std::vector<double> ratios, rates, floors;
    kernel();
    double before = floor_bytes / time_of(threads, floor);
    for (const double start = seconds(CLOCK_MONOTONIC);
         ratios.size() < 15 || seconds(CLOCK_MONOTONIC) - start < run_seconds;) {
        const double rate = kernel_bytes / time_of(threads, kernel);
        const double after = floor_bytes / time_of(threads, floor);
        ratios.push_back(rate / (0.5 * (before + after)));
        rates.push_back(rate * 1e-9);
        floors.push_back(0.5e-9 * (before + after));
        before = after;
    }
    Result result;
    result.samples = int(ratios.size());
    result.ratio = quantile(ratios, 0.5);
    result.low = quantile(ratios, 0.1);
    result.high = quantile(ratios, 0.9);
    result.gigabytes = quantile(rates, 0.5);
    result.floor = quantile(floors, 0.5);
    return result;
}

// The floors (bench/floors.cpp): one stream, read only or written past the caches.
void read_stream(const uint8_t *data, size_t bytes);  // bytes: a multiple of 512
void write_stream(uint8_t *data, size_t bytes);
// Reads `from` beside writing `to` past the caches, in step; the larger a multiple of the smaller.
void move_stream(const uint8_t *from, size_t from_bytes, uint8_t *to, size_t to_bytes);
// Fused multiplications and additions in registers, as many as the processor does.
constexpr int kFlopsPerRound = 24 * 16 * 2;
void multiply_and_add(int64_t rounds);

}  // namespace bench
