#include "format/dynamic_table.hpp"

#include "base/fused.hpp"

namespace qk {
namespace {

// Boundary j of m + 1 points from 0.1 to 1, as PyTorch's linspace rounds it: from the nearer end.
float linspace(int j, int m) {
    const float step = (1.0f - 0.1f) / float(m);
    return 2 * j < m + 1 ? fused(step, float(j), 0.1f) : fused(-step, float(m - j), 1.0f);
}

void insert_sorted(float *table, int count, float value) {
    int at = count;
    for (; at > 0 && table[at - 1] > value; --at) table[at] = table[at - 1];
    table[at] = value;
}

}  // namespace

void make_dynamic_table(float *table) {
    constexpr float decades[7] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
    int count = 0;
    for (int i = 0; i < 7; ++i) {
        const int m = 1 << i;
        for (int j = 0; j < m; ++j) {
            const float middle = (linspace(j, m) + linspace(j + 1, m)) / 2;
            insert_sorted(table, count++, decades[i] * middle);
            insert_sorted(table, count++, -decades[i] * middle);
        }
    }
    insert_sorted(table, count++, 0.0f);
    insert_sorted(table, count++, 1.0f);
}

}  // namespace qk
