// Tensors of more than 2^32 elements on a machine with little memory: the same few megabytes are
// mapped repeatedly. The period is a prime count of pages, so that an index which lost its high
// bits reads other bytes, and a negative one reads unmapped memory.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include "api/support.hpp"

namespace api {

class Alias {
  public:
    static constexpr size_t kPeriod = size_t{12289} * 4096;  // 48 MiB
    explicit Alias(size_t bytes, unsigned seed) : reserved_(bytes + 2 * kPeriod) {
        const int file = memfd_create("alias", 0);
        EXPECT_EQ(ftruncate(file, off_t(kPeriod)), 0);
        base_ = static_cast<unsigned char *>(mmap(
            nullptr, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        EXPECT_NE(static_cast<void *>(base_), MAP_FAILED);
        for (size_t at = kPeriod; at < kPeriod + bytes; at += kPeriod) {
            EXPECT_NE(
                mmap(base_ + at, kPeriod, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0),
                MAP_FAILED);
        }
        close(file);
        for (size_t i = 0; i < kPeriod / 4; ++i) {
            seed = seed * 1664525u + 1013904223u;
            const uint32_t bits = seed >> 1;  // as f32: positive
            std::memcpy(data() + 4 * i, &bits, 4);
        }
    }
    ~Alias() { munmap(base_, reserved_); }
    Alias(const Alias &) = delete;
    Alias &operator=(const Alias &) = delete;

    unsigned char *data() { return base_ + kPeriod; }
    // Makes every f32 a value in [1, 2).
    void make_floats() {
        for (size_t i = 0; i < kPeriod / 4; ++i) {
            uint32_t bits;
            std::memcpy(&bits, data() + 4 * i, 4);
            bits = (bits & 0x7fffffu) | 0x3f800000u;
            std::memcpy(data() + 4 * i, &bits, 4);
        }
    }

  private:
    size_t reserved_;
    unsigned char *base_;
};

// What such calls return: the tasks that were run have done their work, and the library says that
// the others were not.
constexpr qk_status kSampled = QK_ERROR_DEVICE_FAULT;

// An executor that breaks its word on purpose: of millions of tasks over rows it runs those that
// can contain the wanted ones. It counts on one task a block of rows, which its concurrency asks
// for, and on rows coming last: what comes before them, as planes that are cleared, is run whole.
// The library hands tasks over some thousands at a time, so they are counted first, by a call of
// their own; where all come at once (past the API), they need not be.
struct Sampler {
    int64_t rows;
    std::vector<int64_t> wanted;
    int64_t calls = 0;
    bool counting = false;
    std::vector<int64_t> portions = {};       // of the call that counts
    int64_t before = 0, total = 0, seen = 0;  // tasks before the rows', those of all, and so far

    qk_executor table() { return {run, this, INT32_MAX}; }

    // Makes the call twice; what it returns the second time.
    template <class Call>
    qk_status sample(const Call &call) {
        portions.clear();
        counting = true;
        call();
        counting = false;
        before = total = seen = 0;
        for (size_t i = 0; i < portions.size(); ++i) {
            const bool is_last = i + 1 == portions.size();
            total += portions[i];
            // A portion that is not full ends what it is part of.
            if (!is_last && portions[i] < portions[i + 1]) before = total;
        }
        return call();
    }

    static void run(void *user, int32_t count, void (*task)(void *, int32_t), void *argument) {
        Sampler &self = *static_cast<Sampler *>(user);
        ++self.calls;
        if (self.counting) return self.portions.push_back(count);
        if (self.seen < self.before) {
            for (int32_t i = 0; i < count; ++i) task(argument, i);
        } else {
            self.run_wanted(count, task, argument);
        }
        if (self.total != 0) self.seen += count;
    }

  private:
    void run_wanted(int32_t count, void (*task)(void *, int32_t), void *argument) const {
        const int64_t all = total == 0 ? count : total - before;
        std::set<int64_t> tasks;
        for (const int64_t row : wanted) {
            const int64_t middle = row / rows * all + row % rows * all / rows;
            for (const int64_t index : {middle - 1, middle, middle + 1}) tasks.insert(index);
        }
        for (const int64_t index : tasks) {
            const int64_t here = index - (seen - before);
            if (here >= 0 && here < count) task(argument, int32_t(here));
        }
    }
};

// Where a layout keeps row r, by docs/formats.md, in 64 bits. n is a multiple of 8.
struct Place {
    qk_layout layout;
    int64_t n, k, groups;

    int64_t code(int64_t r, int64_t c) const {  // in nibbles
        switch (layout) {
            case QK_LAYOUT_ROW: return r * ((k + 1) / 2) * 2 + c;
            case QK_LAYOUT_GPTQ: return (c / 8 * n + r) * 8 + c % 8;
            case QK_LAYOUT_AWQ_GEMM: return (c * (n / 8) + r / 8) * 8 + awq(r % 8);
            default: return r * ((k + 7) / 8) * 8 + c;  // WORD
        }
    }
    int64_t scale(int64_t r, int64_t g) const {
        const bool by_group = layout == QK_LAYOUT_GPTQ || layout == QK_LAYOUT_AWQ_GEMM;
        return by_group ? g * n + r : r * groups + g;
    }
    int64_t zero(int64_t r, int64_t g) const {  // in nibbles
        switch (layout) {
            case QK_LAYOUT_ROW: return r * ((groups + 1) / 2) * 2 + g;
            case QK_LAYOUT_GPTQ: return g * n + r;
            case QK_LAYOUT_AWQ_GEMM: return g * n + r / 8 * 8 + awq(r % 8);
            default: return (r / 8 * groups + g) * 8 + r % 8;
        }
    }
    static int64_t awq(int64_t row) {
        constexpr int64_t held[] = {0, 2, 4, 6, 1, 3, 5, 7};
        int64_t nibble = 0;
        while (held[nibble] != row) ++nibble;
        return nibble;
    }
};

inline unsigned nibble(const void *data, int64_t at) {
    return static_cast<const unsigned char *>(data)[at / 2] >> (at % 2 * 4) & 15;
}

}  // namespace api
