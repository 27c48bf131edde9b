// Products with experts: the kernels of one row, panel by panel of an expert's rows, on all
// threads.
//
// Work is an (expert, panel) and takes all rows of x that go to the expert, so that a panel comes
// from memory once and from the caches afterwards. A row's bits are those of a product of that row
// alone, whatever else the call has. Where a mode's kernel gives a row the same bits in any batch,
// an expert's rows are gathered and multiplied together; exact sums of one row have an order of
// their own, so that those go one by one. Where slots are added up, work is a (token, panel)
// instead, but if the workspace has room for z: then those come first, as above, for as many
// tokens at once as fit.
#include <stdio.h>

#include "base/activation.hpp"
#include "base/fused.hpp"
#include "cpu/linear/experts_room.hpp"

namespace qk::cpu {
namespace {

// Columns of y, of an expert's rows.
struct Panel {
    int64_t expert, first, count;
};

class Call {
  public:
    Call(const LinearArgs &args, const Launch &launch, uint32_t modes)
        : args_(args), e_(*args.experts), launch_(launch), modes_(modes), n_(rows_of_expert(args)),
          columns_(columns_of_y(args)),
          room_(room_of(args, launch.device, modes, lane_count(launch.parallel.concurrency))),
          roomy_(room_.most <= launch.workspace_bytes),
          lane_bytes_(roomy_ ? room_.lane : room_.least_lane) {}

    Status run() {
        if (!e_.summed) {
            all_z(0, e_.tokens * e_.slots, args_.y, args_.accumulate);
        } else if (room_.tokens == 0 || !roomy_) {
            add_up(nullptr, 0, e_.tokens);
        } else {
            for (int64_t t = 0; t < e_.tokens; t += room_.tokens) sum_tokens(t);
        }
        return QK_OK;
    }

  private:
    void sum_tokens(int64_t first) {
        const int64_t count = min64(room_.tokens, e_.tokens - first), rows = count * e_.slots;
        const Dense z = {find_format(QK_FORMAT_F32), rows, columns_,
                         memory() + room_.lanes + room_.index};
        all_z(first * e_.slots, rows, z, false);
        add_up(&z, first, count);
    }

    char *memory() const { return static_cast<char *>(launch_.workspace); }
    int64_t expert_at(int64_t row) const { return load_as<int32_t>(e_.expert, row); }
    bool is_there(int64_t expert) const { return expert >= 0 && expert < e_.count; }

    // Narrower panels where there is little else to share among the threads.
    int64_t panel_of(int64_t heads) const {
        int64_t panel = kPanel;
        const int64_t enough = 4 * int64_t(launch_.parallel.concurrency);
        while (panel > kLeastPanel && heads * ceil_div(columns_, panel) < enough) panel /= 2;
        return panel;
    }

    // Columns of z of some rows, in products.
    int64_t work_of(int64_t columns, int64_t rows) const {
        const int64_t each = e_.activation == QK_ACTIVATION_NONE ? 1 : 2;
        return columns * each * args_.w.geometry.k * min64(rows, kManyRows);
    }

    // z of `count` rows from row `base` on, which is row 0 of `z`.
    void all_z(int64_t base, int64_t count, const Dense &z, bool accumulate) {
        for (int64_t row = 0; row < count; ++row) {
            const int64_t expert = expert_at(base + row);
            if (!is_there(expert)) fill(z, row, expert < 0, accumulate);
        }
        if (roomy_ && room_.index != 0) {
            by_expert(base, count, z, accumulate);
        } else {
            by_scan(base, count, z, accumulate);
        }
    }

    void by_expert(int64_t base, int64_t count, const Dense &z, bool accumulate) {
        void *const ids = static_cast<char *>(const_cast<void *>(e_.expert)) + base * 4;
        RowsOfExperts order;
        order.sort(ids, count, e_.count, memory() + room_.lanes);
        const int64_t panel = panel_of(order.touched), panels = ceil_div(columns_, panel);
        const int64_t rows_each = ceil_div(count, max64(order.touched, 1));
        for_items(launch_.parallel, order.touched * panels, work_of(panel, rows_each),
                  [&](int64_t item, int32_t lane) {
            const int64_t expert = order.expert[item / panels], first = item % panels * panel;
            const int64_t width = min64(panel, columns_ - first);
            const int32_t *const rows = order.row + order.first[expert];
            const int64_t of_expert = order.first[expert + 1] - order.first[expert];
            if (room_.together > 1 && of_expert > 1) {
                const Panel part = {expert, first, width};
                rows_together(part, base, rows, of_expert, z, accumulate, lane);
                return;
            }
            for (int64_t i = 0; i < of_expert; ++i) {
                z_of(base + rows[i], expert, first, width, part(z, rows[i], first, width),
                     accumulate, lane);
            }
        });
    }

    // Without room for a list: each task looks for its rows. Slots have panels of their own where
    // they are fewer than experts, and the first of an expert takes the others.
    void by_scan(int64_t base, int64_t rows, const Dense &z, bool accumulate) {
        const int64_t heads = min64(rows, e_.count), panel = panel_of(heads);
        const int64_t panels = ceil_div(columns_, panel);
        for_items(launch_.parallel, heads * panels, work_of(panel, ceil_div(rows, max64(heads, 1))),
                  [&](int64_t item, int32_t lane) {
            const int64_t head = item / panels, first = item % panels * panel;
            const int64_t expert = heads == rows ? expert_at(base + head) : head;
            if (!is_there(expert)) return;
            const int64_t width = min64(panel, columns_ - first);
            for (int64_t row = 0; row < rows; ++row) {
                if (expert_at(base + row) != expert) continue;
                if (heads == rows && row < head) return;  // that slot has done this one
                z_of(base + row, expert, first, width, part(z, row, first, width), accumulate,
                     lane);
            }
        });
    }

    static Dense part(const Dense &z, int64_t row, int64_t first, int64_t count) {
        const int64_t at = (row * row_stride(z) + first) * (z.format->bits / 8);
        return {z.format, 1, count, static_cast<char *>(z.data) + at};
    }

    // A skipped row is zeros, or what it was; one of an expert that does not exist is NaN.
    void fill(const Dense &z, int64_t row, bool skipped, bool accumulate) const {
        if (skipped && accumulate) return;
        const float value = skipped ? 0.0f : __builtin_nanf("");
        const Dense to = part(z, row, 0, columns_);
        for (int64_t i = 0; i < columns_; ++i) store_float(to.format->id, to.data, i, value);
    }

    // Columns first .. first + count of z[row], to row 0 of `to`.
    void z_of(int64_t row, int64_t expert, int64_t first, int64_t count, const Dense &to,
              bool accumulate, int32_t lane) const {
        LinearArgs one = args_;
        one.x.data = x_of(row);
        one.x.rows = 1;
        one.accumulate = accumulate;
        if (e_.activation == QK_ACTIVATION_NONE) {
            return multiply(one, expert, first, count, to, lane);
        }
        alignas(64) float rows[2 * kPanel];
        const Dense made = {find_format(QK_FORMAT_F32), 1, 2 * count, rows};
        one.accumulate = false;
        gate_and_up(one, expert, first, count, made, lane);
        join_row(rows, count, to, accumulate);
    }

    // The same of several rows of an expert, gathered.
    void rows_together(const Panel &p, int64_t base, const int32_t *rows, int64_t count,
                       const Dense &z, bool accumulate, int32_t lane) const {
        for (int64_t done = 0; done < count; done += room_.together) {
            const int64_t m = min64(room_.together, count - done);
            LinearArgs some = args_;
            some.x = {args_.x.format, m, args_.x.columns, memory() + lane * lane_bytes_};
            const int64_t x_bytes = args_.x.columns * (args_.x.format->bits / 8);
            for (int64_t i = 0; i < m; ++i) {
                memcpy(static_cast<char *>(some.x.data) + i * x_bytes, x_of(base + rows[done + i]),
                       size_t(x_bytes));
            }
            multiply_together(some, p, rows + done, z, accumulate, lane);
        }
    }

    void multiply_together(LinearArgs some, const Panel &p, const int32_t *rows, const Dense &z,
                           bool accumulate, int32_t lane) const {
        const int64_t m = some.x.rows;
        char *const made = memory() + lane * lane_bytes_ + room_.gathered;
        const bool joins = e_.activation != QK_ACTIVATION_NONE;
        const Format *const format = joins ? find_format(QK_FORMAT_F32) : z.format;
        const Dense to = {format, m, joins ? 2 * p.count : p.count, made};
        const int64_t bytes = p.count * (z.format->bits / 8);
        some.accumulate = accumulate && !joins;
        for (int64_t i = 0; some.accumulate && i < m; ++i) {
            memcpy(made + i * bytes, part(z, rows[i], p.first, p.count).data, size_t(bytes));
        }
        if (joins) {
            gate_and_up(some, p.expert, p.first, p.count, to, lane);
        } else {
            multiply(some, p.expert, p.first, p.count, to, lane);
        }
        for (int64_t i = 0; i < m; ++i) {
            const Dense row = part(z, rows[i], p.first, p.count);
            if (joins) {
                const float *const values = reinterpret_cast<const float *>(made);
                join_row(values + i * 2 * p.count, p.count, row, accumulate);
            } else {
                memcpy(row.data, made + i * bytes, size_t(bytes));
            }
        }
    }

    // Both rows that each of `count` columns of y is made of, f32.
    void gate_and_up(LinearArgs some, int64_t expert, int64_t first, int64_t count, const Dense &to,
                     int32_t lane) const {
        if (e_.interleaved) return multiply(some, expert, 2 * first, 2 * count, to, lane);
        Dense half = to;
        half.columns = count;
        half.stride = 2 * count;
        multiply(some, expert, first, count, half, lane);
        half.data = static_cast<float *>(to.data) + count;
        multiply(some, expert, columns_ + first, count, half, lane);
    }

    void join_row(const float *rows, int64_t count, const Dense &to, bool accumulate) const {
        const int64_t step = e_.interleaved ? 2 : 1;
        const float *const up = rows + (e_.interleaved ? 1 : count);
        for (int64_t i = 0; i < count; ++i) {
            float value = join(e_.activation, e_.limit, e_.alpha, rows[i * step], up[i * step]);
            if (accumulate) value += load_float(to.format->id, to.data, i);
            store_float(to.format->id, to.data, i, value);
        }
    }

    void *x_of(int64_t row) const {
        const Dense &x = args_.x;
        const int64_t x_row = e_.x_by_slot ? row : row / e_.slots;
        return static_cast<char *>(x.data) + x_row * row_stride(x) * (x.format->bits / 8);
    }

    // Rows first .. first + count of an expert times rows of x, plus the bias.
    void multiply(const LinearArgs &some, int64_t expert, int64_t first, int64_t count,
                  const Dense &to, int32_t lane) const {
        LinearArgs one = one_row(some, expert * n_ + first, count);
        one.x.rows = some.x.rows;
        one.y = to;
        Dense bias;
        if (args_.bias != nullptr) {
            bias = part(*args_.bias, expert, first, count);
            one.bias = &bias;
        }
        Launch alone = launch_;
        alone.parallel = {nullptr, nullptr, 1};
        const LinearRow &kernel = kernel_of(one, launch_.device, modes_);
        if (one.x.rows > 1 && !is_any_batch(one, kernel)) {
            return multiply_each(some, expert, first, count, to, lane);
        }
        const bool gathered = room_.together > 1 && roomy_;
        const int64_t before = gathered ? room_.gathered + room_.made : 0;
        alone.workspace = memory() + lane * lane_bytes_ + before;
        alone.workspace_bytes = size_t(lane_bytes_ - before);
        kernel.kernel->run(one, alone);
    }

    // Gathered rows of an expert that is not stored as the first is.
    void multiply_each(const LinearArgs &some, int64_t expert, int64_t first, int64_t count,
                       const Dense &to, int32_t lane) const {
        LinearArgs one = some;
        one.x.rows = 1;
        for (int64_t i = 0; i < some.x.rows; ++i) {
            const int64_t at = i * some.x.columns * (some.x.format->bits / 8);
            one.x.data = static_cast<char *>(some.x.data) + at;
            multiply(one, expert, first, count, part(to, i, 0, count), lane);
        }
    }

    // y[t] = weight[t,j] * z[t,j], j ascending, of some tokens; z has theirs, or null: they are
    // made here.
    void add_up(const Dense *z, int64_t first_token, int64_t tokens) const {
        const int64_t panel = panel_of(tokens), panels = ceil_div(columns_, panel);
        const int64_t work = z == nullptr ? work_of(panel, e_.slots) : panel * e_.slots;
        for_items(launch_.parallel, tokens * panels, work, [&](int64_t item, int32_t lane) {
            const int64_t token = first_token + item / panels, first = item % panels * panel;
            const int64_t count = min64(panel, columns_ - first);
            alignas(64) float sum[kPanel] = {};
            for (int64_t j = 0; j < e_.slots; ++j) {
                const int64_t row = token * e_.slots + j, of_z = row - first_token * e_.slots;
                const void *values = z == nullptr ? nullptr : part(*z, of_z, first, count).data;
                add_slot(static_cast<const float *>(values), row, first, count, sum, lane);
            }
            const Dense to = part(args_.y, token, first, count);
            for (int64_t i = 0; i < count; ++i) {
                const float held = args_.accumulate ? load_float(to.format->id, to.data, i) : 0;
                store_float(to.format->id, to.data, i, args_.accumulate ? sum[i] + held : sum[i]);
            }
        });
    }

    void add_slot(const float *values, int64_t row, int64_t first, int64_t count, float *sum,
                  int32_t lane) const {
        const int64_t expert = expert_at(row);
        if (expert < 0) return;
        const float weight = e_.weight == nullptr ? 1.0f : load_as<float>(e_.weight, row);
        alignas(64) float made[kPanel];
        if (values == nullptr && is_there(expert)) {
            const Dense to = {find_format(QK_FORMAT_F32), 1, count, made};
            z_of(row, expert, first, count, to, false, lane);
        }
        if (values == nullptr) values = made;
        for (int64_t i = 0; i < count; ++i) {
            const float value = is_there(expert) ? load_as<float>(values, i) : __builtin_nanf("");
            sum[i] = fused(weight, value, sum[i]);
        }
    }

    const LinearArgs &args_;
    const Experts &e_;
    const Launch &launch_;
    const uint32_t modes_;
    const int64_t n_, columns_;  // rows of an expert, columns of y
    const Room room_;
    const bool roomy_;  // all of it
    const int64_t lane_bytes_;
};

template <uint32_t modes>
Status run(const LinearArgs &args, const Launch &launch) {
    return Call(args, launch, modes).run();
}

bool can_run(const LinearArgs &args, const Device &) { return args.experts != nullptr; }

constexpr Kernel<LinearArgs> kExact = {"experts", can_run, nullptr, run<0>};
constexpr Kernel<LinearArgs> kInt8 = {"experts int8", can_run, nullptr, run<kInt8Mode>};
constexpr Kernel<LinearArgs> kBf16 = {"experts bf16", can_run, nullptr, run<kBf16Mode>};

}  // namespace

LinearPlan plan_experts(const LinearArgs &args, const Device &device, const Allowance &allowed,
                        Explanation *explanation) {
    const bool int8 = (allowed.modes & kInt8Mode) != 0, bf16 = (allowed.modes & kBf16Mode) != 0;
    const Kernel<LinearArgs> &kernel = int8 ? kInt8 : bf16 ? kBf16 : kExact;
    const uint32_t modes = int8 ? kInt8Mode : bf16 ? kBf16Mode : 0;
    const Room room = room_of(args, device, modes, lane_count(allowed.concurrency));
    const size_t needed = room.least, fastest = room.most;
    if (explanation != nullptr) {
        const LinearArgs one = one_row(args, 0, rows_of_expert(args));
        const Conditions facts = linear_facts(one);
        const uint32_t sets = sets_of(one, device, modes, facts);
        const char *const exact = slow_bf16_text(facts, sets, modes, device);
        const bool slower = fastest > allowed.workspace_bytes;
        explanation->batch_first = 1;
        explanation->batch_last = INT32_MAX;
        snprintf(explanation->reason, sizeof(explanation->reason), "%s",
                 slower ? "the workspace has no room for rows by expert" : exact);
    }
    const bool fits = needed <= allowed.workspace_bytes;
    return {fits ? &kernel : nullptr, fits ? needed : 0, &kernel, fastest};
}

}  // namespace qk::cpu
