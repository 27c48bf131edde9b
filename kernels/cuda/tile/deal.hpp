// Even shares of a count: rows of tiles to blocks, stages to warps.
#pragma once
#include <stdint.h>

#include "base/checked.hpp"

namespace qk::cuda {

struct Run {
    int32_t first, last;
};

// `count` things dealt to `parts` in order, the first `rest` of which get one more than `each`.
struct Deal {
    int32_t each, rest;

    QK_HD constexpr Run part(int32_t index) const {
        const int32_t first = index * each + (index < rest ? index : rest);
        return {first, first + each + (index < rest)};
    }
};

static constexpr Deal deal(int64_t count, int32_t parts) {
    return {int32_t(count / parts), int32_t(count % parts)};
}

}  // namespace qk::cuda
