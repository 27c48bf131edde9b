// Sums f32 values in the order of PyTorch's CPU reduction (one thread, vectors of 8 lanes), which
// bitsandbytes' nested offset depends on in its last bit: 4 x 8 interleaved accumulators, each a
// cascade of 4 levels so that rounding errors grow with the logarithm of the count.
// Source: pytorch/pytorch aten/src/ATen/native/cpu/SumKernel.cpp, cascade_sum (order only).
#pragma once
#include <stdint.h>

#include "base/checked.hpp"

namespace qk {
namespace {  // internal linkage: files built for one instruction set may not lend theirs to others

class TorchSum {
  public:
    // `count` values will be added.
    explicit TorchSum(int64_t count) {
        lanes_ = count >= kLanes ? kLanes : 1;
        vectors_ = count / lanes_;
        rows_ = vectors_ / kStreams;
        int64_t log2 = 0;
        while (log2 < 62 && (int64_t{1} << log2) < rows_) ++log2;
        power_ = log2 / kLevels > 4 ? log2 / kLevels : 4;
    }

    // Values in order; every value exactly once.
    void add(float value) {
        const int64_t vector = seen_ / lanes_, lane = seen_ % lanes_;
        ++seen_;
        if (vector >= vectors_) {
            tail_ += value;
        } else if (vector >= rows_ * kStreams) {
            if (vector == rows_ * kStreams && lane == 0) close_rows();
            sum_[0][lane] += value;
        } else {
            const int64_t stream = vector % kStreams, row = vector / kStreams;
            level_[0][stream][lane] += value;
            if (stream == kStreams - 1 && lane == lanes_ - 1) end_row(row + 1);
        }
    }

    float total() {
        if (!closed_) close_rows();
        for (int64_t stream = 1; stream < kStreams; ++stream) {
            for (int64_t lane = 0; lane < lanes_; ++lane) sum_[0][lane] += sum_[stream][lane];
        }
        if (lanes_ == 1) return sum_[0][0];
        float total = tail_;
        for (int64_t lane = 0; lane < lanes_; ++lane) total += sum_[0][lane];
        return total;
    }

  private:
    static constexpr int64_t kLanes = 8, kStreams = 4, kLevels = 4;

    // After `rows` rows: every full step of a level moves one level up.
    void end_row(int64_t rows) {
        const int64_t step = int64_t{1} << power_, mask = step - 1;
        if ((rows & mask) != 0) return;
        for (int64_t level = 1; level < kLevels; ++level) {
            for (int64_t s = 0; s < kStreams; ++s) {
                for (int64_t lane = 0; lane < lanes_; ++lane) {
                    level_[level][s][lane] += level_[level - 1][s][lane];
                    level_[level - 1][s][lane] = 0;
                }
            }
            if ((rows & mask << level * power_) != 0) return;
        }
    }

    void close_rows() {
        closed_ = true;
        for (int64_t s = 0; s < kStreams; ++s) {
            for (int64_t lane = 0; lane < lanes_; ++lane) {
                sum_[s][lane] = level_[0][s][lane];
                for (int64_t level = 1; level < kLevels; ++level) {
                    sum_[s][lane] += level_[level][s][lane];
                }
            }
        }
    }

    int64_t lanes_, vectors_, rows_, power_, seen_ = 0;
    bool closed_ = false;
    float tail_ = 0;
    float level_[kLevels][kStreams][kLanes] = {};
    float sum_[kStreams][kLanes] = {};
};

}  // namespace
}  // namespace qk
