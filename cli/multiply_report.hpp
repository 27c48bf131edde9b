// What qk multiply says of a product.
#pragma once
#include "commands.hpp"
#include "product.hpp"

// Rows of w are those of all experts, one after the other.
struct Chosen {
    qk_layer layer;
    int64_t experts;  // 0: it is no projection of a mixture's
};

struct Timing {
    qk_plan plan = QK_PLAN_INIT;
    int64_t runs = 0;
    double best = 0, median = 0;
};

void report_product(const CommonOptions &common, const MultiplyOptions &options,
                    const Chosen &chosen, const Timing &timing, const Product &product,
                    const Error &error);
