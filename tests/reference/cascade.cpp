// The order in which PyTorch sums a float array on one x86 thread: 8 lanes, four interleaved
// rows of vectors, and in each row a cascade of four accumulators.
#include <array>

#include "reference.hpp"

namespace reference {
namespace {

int ceil_log2(int64_t value) {
    int power = 0;
    while ((int64_t(1) << power) < value) ++power;
    return power;
}

// One lane of one row: elements first, first + stride, ... `count` of them.
float cascade(const float *first, int64_t stride, int64_t count) {
    const int power = std::max(4, ceil_log2(count) / 4);
    const int64_t step = int64_t(1) << power, mask = step - 1;
    std::array<float, 4> level = {};
    int64_t i = 0;
    while (i + step <= count) {
        for (int64_t j = 0; j < step; ++j, ++i) level[0] += first[i * stride];
        for (int j = 1; j < 4; ++j) {
            level[size_t(j)] += level[size_t(j) - 1];
            level[size_t(j) - 1] = 0;
            if ((i & (mask << (j * power))) != 0) break;
        }
    }
    for (; i < count; ++i) level[0] += first[i * stride];
    return ((level[0] + level[1]) + level[2]) + level[3];
}

// One lane over all vectors: four rows that take turns, then the vectors left over.
float lane_sum(const float *first, int64_t stride, int64_t vectors) {
    const int64_t turns = vectors / 4;
    std::array<float, 4> row = {};
    for (int64_t r = 0; r < 4; ++r) {
        row[size_t(r)] = cascade(first + r * stride, 4 * stride, turns);
    }
    for (int64_t v = 4 * turns; v < vectors; ++v) row[0] += first[v * stride];
    return ((row[0] + row[1]) + row[2]) + row[3];
}

}  // namespace

float cascade_sum(const std::vector<float> &x) {
    const int64_t lanes = 8, count = int64_t(x.size()), vectors = count / lanes;
    if (vectors == 0) return lane_sum(x.data(), 1, count);
    float sum = 0;
    for (int64_t i = vectors * lanes; i < count; ++i) sum += x[size_t(i)];
    for (int64_t lane = 0; lane < lanes; ++lane) {
        sum += lane_sum(x.data() + lane, lanes, vectors);
    }
    return sum;
}

}  // namespace reference
