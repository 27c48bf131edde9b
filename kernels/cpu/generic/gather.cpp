// Gathers columns: to[i, j] = from[i, order[j]], x of a product whose weight has an order. A row of
// x is in the caches, and a product reads k bytes and more of the weight for each of its elements.
#include "cpu/access.hpp"
#include "cpu/kernels.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kColumns = int64_t{1} << 16;  // at least, of a task: fewer are not worth a thread

template <class T>
void gather_row(const GatherArgs &args, int64_t row) {
    const int64_t k = args.from.columns, first = row * k;
    const int64_t from = row * row_stride(args.from);
    for (int64_t j = 0; j < k; ++j) {
        const int64_t column = ordered_column(load_as<int32_t>(args.order, j), k);
        store_as(args.to.data, first + j, load_as<T>(args.from.data, from + column));
    }
}

Status run(const GatherArgs &args, const Launch &launch) {
    const auto gather = args.from.format->bits == 16 ? gather_row<uint16_t> : gather_row<uint32_t>;
    parallel_ranges(launch.parallel, args.from.rows, ceil_div(kColumns, args.from.columns),
                    args.from.columns, [&](int64_t first, int64_t last) {
                        for (int64_t row = first; row < last; ++row) gather(args, row);
                    });
    return QK_OK;
}

bool can_run(const GatherArgs &, const Device &) { return true; }

}  // namespace

const Kernel<GatherArgs> kGatherGeneric = {"generic", can_run, nullptr, run};

}  // namespace qk::cpu
