// What the rows of x decide of a product, for the choice of its kernel and for what keeps room for
// any number of them.
#pragma once
#include "cpu/linear/select.hpp"

namespace qk::cpu {

// A condition that holds of up to `last` rows of x, or past them.
struct RowsFact {
    Conditions condition;
    int64_t last;
    bool past;
};
struct RowsFacts {
    RowsFact of[12];
};
RowsFacts rows_facts(const Weight &w);

}  // namespace qk::cpu
