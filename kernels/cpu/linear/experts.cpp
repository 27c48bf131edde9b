// Products with experts: the kernels of one row, panel by panel of an expert's rows, on all
// threads.
//
// Work is an (expert, panel) and takes all rows of x that go to the expert, so that a panel comes
// from memory once and from the caches afterwards. A row's bits are those of a product of that row
// alone, whatever else the call has. Where slots are added up, work is a (token, panel) instead,
// but if the workspace has room for all z: then those come first, as above.
#include <stdio.h>

#include "base/fused.hpp"
#include "cpu/access.hpp"
#include "cpu/linear/activation.hpp"
#include "cpu/linear/rows_of_w.hpp"
#include "cpu/linear/select.hpp"

namespace qk::cpu {
namespace {

constexpr int64_t kPanel = 256;      // columns of y at most
constexpr int64_t kLeastPanel = 64;  // and at least, where threads would be idle

// Items are taken by the threads as they come free; each thread has its own part of the workspace.
template <class Body>
struct Lanes {
    const Body *body;
    int64_t count, next;

    static void task(void *argument, int32_t lane) {
        Lanes &self = *static_cast<Lanes *>(argument);
        for (;;) {
            const int64_t item = __atomic_fetch_add(&self.next, 1, __ATOMIC_RELAXED);
            if (item >= self.count) return;
            (*self.body)(item, lane);
        }
    }
};

int32_t lane_count(const Parallel &parallel) {
    return int32_t(min64(max64(parallel.concurrency, 1), kMaxTasksAtOnce));
}

template <class Body>
void for_items(const Parallel &parallel, int64_t count, const Body &body) {
    Lanes<Body> lanes{&body, count, 0};
    const int32_t tasks = int32_t(min64(lane_count(parallel), count));
    if (tasks <= 1) return Lanes<Body>::task(&lanes, 0);
    parallel.run(parallel.pool, tasks, Lanes<Body>::task, &lanes);
}

int64_t rows_of_expert(const LinearArgs &args) { return args.w.geometry.n / args.experts->count; }

int64_t columns_of_y(const LinearArgs &args) {
    const int64_t n = rows_of_expert(args);
    return args.experts->activation == QK_ACTIVATION_NONE ? n : n / 2;
}

// Rows first .. first + count of w times one row of x, without a bias.
LinearArgs one_row(const LinearArgs &args, int64_t first, int64_t count) {
    LinearArgs one = args;
    one.experts = nullptr;
    one.x.rows = one.y.rows = 1;
    one.x.stride = one.y.stride = 0;
    one.y.columns = count;
    one.bias = nullptr;
    if (take_rows(&one.w, first, count)) return one;
    one.w = args.w;
    one.first_row = first;
    one.rows = count;
    return one;
}

const Kernel<LinearArgs> &kernel_of(const LinearArgs &one, const Device &device, uint32_t modes) {
    if (one.rows == 0) {
        const uint32_t sets = device.instruction_sets | QK_ISA_GENERIC;
        return *select_linear(linear_facts(one), sets, modes).kernel;
    }
    return *select_linear(linear_facts(one), QK_ISA_GENERIC, modes).kernel;
}

int64_t lane_bytes(const LinearArgs &args, const Device &device, uint32_t modes) {
    const LinearArgs one = one_row(args, 0, rows_of_expert(args));
    return round_up(int64_t(workspace_of(kernel_of(one, device, modes), one, device)), 64);
}

class Call {
  public:
    Call(const LinearArgs &args, const Launch &launch, uint32_t modes)
        : args_(args), e_(*args.experts), launch_(launch), modes_(modes), n_(rows_of_expert(args)),
          columns_(columns_of_y(args)), lane_bytes_(lane_bytes(args, launch.device, modes)),
          panel_(kPanel) {
        const int64_t heads = e_.summed ? e_.tokens : head_count();
        while (panel_ > kLeastPanel &&
               heads * ceil_div(columns_, panel_) < 4 * int64_t(launch.parallel.concurrency)) {
            panel_ /= 2;
        }
        panels_ = ceil_div(columns_, panel_);
    }

    Status run() {
        if (!e_.summed) return all_z(args_.y, args_.accumulate);
        const int64_t lanes = lane_count(launch_.parallel) * lane_bytes_;
        const Checked bytes = Checked(e_.tokens) * e_.slots * columns_ * 4 + lanes;
        const bool reads_again = e_.tokens * e_.slots > e_.count;
        if (!reads_again || !bytes.ok || uint64_t(bytes.value) > launch_.workspace_bytes) {
            add_up(nullptr);
            return QK_OK;
        }
        char *const memory = static_cast<char *>(launch_.workspace) + lanes;
        const Dense z = {find_format(QK_FORMAT_F32), e_.tokens * e_.slots, columns_, memory};
        QK_TRY(all_z(z, false));
        add_up(&z);
        return QK_OK;
    }

  private:
    int64_t expert_at(int64_t row) const { return load_as<int32_t>(e_.expert, row); }
    bool is_there(int64_t expert) const { return expert >= 0 && expert < e_.count; }

    // What has panels of its own: slots, or experts where those are fewer.
    int64_t head_count() const { return min64(e_.tokens * e_.slots, e_.count); }

    Status all_z(const Dense &z, bool accumulate) {
        const int64_t rows = e_.tokens * e_.slots, heads = head_count();
        for (int64_t row = 0; row < rows; ++row) {
            if (!is_there(expert_at(row))) fill(z, row, expert_at(row) < 0, accumulate);
        }
        for_items(launch_.parallel, heads * panels_, [&](int64_t item, int32_t lane) {
            const int64_t head = item / panels_, first = item % panels_ * panel_;
            const int64_t expert = heads == rows ? expert_at(head) : head;
            if (!is_there(expert)) return;
            for (int64_t row = 0; row < rows; ++row) {
                if (expert_at(row) != expert) continue;
                if (heads == rows && row < head) return;  // that slot has done this one
                const int64_t count = min64(panel_, columns_ - first);
                z_of(row, expert, first, count, part(z, row, first, count), accumulate, lane);
            }
        });
        return QK_OK;
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
        if (e_.activation == QK_ACTIVATION_NONE) {
            return multiply(row, expert, first, count, to, accumulate, lane);
        }
        alignas(64) float rows[2 * kPanel];
        const Format *const f32 = find_format(QK_FORMAT_F32);
        float *const up = rows + (e_.interleaved ? 1 : count);
        if (e_.interleaved) {
            multiply(row, expert, 2 * first, 2 * count, {f32, 1, 2 * count, rows}, false, lane);
        } else {
            multiply(row, expert, first, count, {f32, 1, count, rows}, false, lane);
            multiply(row, expert, columns_ + first, count, {f32, 1, count, up}, false, lane);
        }
        const int64_t step = e_.interleaved ? 2 : 1;
        for (int64_t i = 0; i < count; ++i) {
            float value = join(e_.activation, e_.limit, e_.alpha, rows[i * step], up[i * step]);
            if (accumulate) value += load_float(to.format->id, to.data, i);
            store_float(to.format->id, to.data, i, value);
        }
    }

    // Rows first .. first + count of an expert times the row's x, plus the bias.
    void multiply(int64_t row, int64_t expert, int64_t first, int64_t count, const Dense &to,
                  bool accumulate, int32_t lane) const {
        LinearArgs one = one_row(args_, expert * n_ + first, count);
        const Dense &x = args_.x;
        const int64_t x_row = e_.x_by_slot ? row : row / e_.slots;
        one.x.data = static_cast<char *>(x.data) + x_row * row_stride(x) * (x.format->bits / 8);
        one.y = to;
        one.accumulate = accumulate;
        Dense bias;
        if (args_.bias != nullptr) {
            bias = part(*args_.bias, expert, first, count);
            one.bias = &bias;
        }
        Launch alone = launch_;
        alone.parallel = {nullptr, nullptr, 1};
        alone.workspace = static_cast<char *>(launch_.workspace) + lane * lane_bytes_;
        alone.workspace_bytes = size_t(lane_bytes_);
        kernel_of(one, launch_.device, modes_).run(one, alone);
    }

    // y[t] = weight[t,j] * z[t,j], j ascending; z null: they are made here.
    void add_up(const Dense *z) const {
        for_items(launch_.parallel, e_.tokens * panels_, [&](int64_t item, int32_t lane) {
            const int64_t token = item / panels_, first = item % panels_ * panel_;
            const int64_t count = min64(panel_, columns_ - first);
            alignas(64) float sum[kPanel] = {};
            for (int64_t row = token * e_.slots; row < (token + 1) * e_.slots; ++row) {
                add_slot(z, row, first, count, sum, lane);
            }
            const Dense to = part(args_.y, token, first, count);
            for (int64_t i = 0; i < count; ++i) {
                const float held = args_.accumulate ? load_float(to.format->id, to.data, i) : 0;
                store_float(to.format->id, to.data, i, args_.accumulate ? sum[i] + held : sum[i]);
            }
        });
    }

    void add_slot(const Dense *z, int64_t row, int64_t first, int64_t count, float *sum,
                  int32_t lane) const {
        const int64_t expert = expert_at(row);
        if (expert < 0) return;
        const float weight = e_.weight == nullptr ? 1.0f : load_as<float>(e_.weight, row);
        alignas(64) float made[kPanel];
        const float *values = made;
        if (z != nullptr) {
            values = static_cast<const float *>(part(*z, row, first, count).data);
        } else if (is_there(expert)) {
            const Dense to = {find_format(QK_FORMAT_F32), 1, count, made};
            z_of(row, expert, first, count, to, false, lane);
        }
        for (int64_t i = 0; i < count; ++i) {
            const float value = is_there(expert) ? load_as<float>(values, i) : __builtin_nanf("");
            sum[i] = fused(weight, value, sum[i]);
        }
    }

    const LinearArgs &args_;
    const Experts &e_;
    const Launch &launch_;
    uint32_t modes_;
    int64_t n_, columns_;  // rows of an expert, columns of y
    int64_t lane_bytes_;
    int64_t panel_, panels_ = 0;
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
    const int64_t lanes = min64(max64(allowed.concurrency, 1), kMaxTasksAtOnce);
    const size_t needed = size_t(lanes * lane_bytes(args, device, modes));
    const Experts &e = *args.experts;
    const Checked z = Checked(e.tokens) * e.slots * columns_of_y(args) * 4 + int64_t(needed);
    const bool faster = e.summed && z.ok && e.tokens * e.slots > e.count;
    const size_t fastest = faster ? size_t(z.value) : needed;
    if (explanation != nullptr) {
        const bool slower = fastest > allowed.workspace_bytes;
        explanation->batch_first = 1;
        explanation->batch_last = INT32_MAX;
        snprintf(explanation->reason, sizeof(explanation->reason), "%s",
                 slower ? "the workspace has no room for the slots that are added up" : "");
    }
    const bool fits = needed <= allowed.workspace_bytes;
    return {fits ? &kernel : nullptr, fits ? needed : 0, &kernel, fastest};
}

}  // namespace qk::cpu
