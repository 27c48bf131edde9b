// What products with experts divide among threads and keep in the workspace:
//
//     [a thread's: rows of x and their products, a kernel's own][... of each thread]
//     [rows by expert][z of some tokens]
#pragma once
#include "base/checked.hpp"
#include "cpu/access.hpp"
#include "cpu/linear/rows_facts.hpp"
#include "cpu/linear/rows_of_w.hpp"

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

inline int32_t lane_count(int32_t concurrency) {
    return int32_t(min64(max64(concurrency, 1), kMaxTasksAtOnce));
}

// `work`: of an item, as parallel_ranges takes it.
template <class Body>
void for_items(const Parallel &parallel, int64_t count, int64_t work, const Body &body) {
    Lanes<Body> lanes{&body, count, 0};
    const int64_t worth = task_count(parallel, count, count, work);
    const int32_t tasks = int32_t(min64(lane_count(parallel.concurrency), worth));
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

uint32_t sets_of(const LinearArgs &one, const Device &device, uint32_t modes, Conditions facts) {
    return one.rows == 0 ? usable_sets(device, modes, facts) : uint32_t(QK_ISA_GENERIC);
}

// Of the batch class of one row: int8 mode has no other, bf16 mode has.
const LinearRow &kernel_of(const LinearArgs &one, const Device &device, uint32_t modes) {
    LinearArgs alone = one;
    if (modes == kBf16Mode) alone.x.rows = 1;
    const Conditions facts = linear_facts(alone);
    return select_linear(facts, sets_of(one, device, modes, facts), faster_modes(modes, device));
}

// Whether several rows of x have the bits of each alone.
bool is_any_batch(const LinearArgs &some, const LinearRow &kernel) {
    return some.rows == 0 && kernel.mode != 0;
}

int64_t kernel_bytes(const LinearArgs &one, const Device &device, uint32_t modes) {
    return int64_t(workspace_of(*kernel_of(one, device, modes).kernel, one, device));
}

struct Room {
    int64_t together;          // rows of x that are gathered at once; 0: none are
    int64_t gathered, made;    // bytes of them and of their products, in a lane
    int64_t lane, least_lane;  // bytes of a thread; without gathering
    int64_t lanes, index;      // bytes of all lanes, of rows by expert
    int64_t tokens;            // whose z are kept at once; 0: none are
    size_t least, most;        // bytes of a workspace
};

constexpr int64_t kTogether = 64;                // rows of x, at most
constexpr int64_t kGathered = int64_t{1} << 20;  // bytes of them, but for eight rows
constexpr int64_t kKept = int64_t{32} << 20;     // bytes of z, but for 64 tokens
constexpr int64_t kScanned = 64;                 // rows up to which looking through ids is free

// Rows are gathered where the mode's kernel gives them the bits that they have alone.
void gather_room(const LinearArgs &args, const Device &device, uint32_t modes, int64_t rows,
                 Room *room) {
    const int64_t x_bytes = args.x.columns * (args.x.format->bits / 8);
    const int64_t most = max64(min64(kTogether, kGathered / max64(x_bytes, 1) / 8 * 8), 8);
    LinearArgs some = one_row(args, 0, min64(rows_of_expert(args), 2 * kPanel));
    some.x.rows = some.y.rows = min64(most, rows);
    if (modes == 0 || !is_any_batch(some, kernel_of(some, device, modes))) return;
    room->together = some.x.rows;
    int64_t own = kernel_bytes(some, device, modes);
    for (const RowsFact &fact : rows_facts(args.w).of) {  // past which another kernel may run
        some.x.rows = min64(fact.last, room->together);
        own = max64(own, kernel_bytes(some, device, modes));
    }
    room->gathered = round_up(room->together * x_bytes, 64);
    room->made = room->together * 2 * kPanel * 4;
    room->lane = round_up(room->gathered + room->made + max64(own, room->least_lane), 64);
}

Room room_of(const LinearArgs &args, const Device &device, uint32_t modes, int64_t lanes) {
    const Experts &e = *args.experts;
    Room room = {};
    LinearArgs one = one_row(args, 0, rows_of_expert(args));
    const int64_t own = kernel_bytes(one, device, modes);
    one.rows = rows_of_expert(args);  // what experts are given that are not stored as the first
    room.least_lane = round_up(max64(own, kernel_bytes(one, device, modes)), 64);
    room.lane = room.least_lane;
    room.least = size_t(lanes * room.least_lane);
    room.most = room.least;
    room.lanes = lanes * room.lane;
    int64_t rows = e.tokens * e.slots;
    const int64_t token_bytes = e.slots * columns_of_y(args) * 4;
    if (e.summed) {
        if (rows <= e.count) return room;  // a panel is read once anyway, but by chance
        room.tokens = min64(e.tokens, max64(kKept / max64(token_bytes, 1), 64));
        rows = room.tokens * e.slots;
    }
    if (rows >= kScanned && rows <= INT32_MAX) {  // which the list's numbers count
        room.index = round_up((2 * e.count + 1 + rows) * 4, 64);
        gather_room(args, device, modes, rows, &room);
        room.lanes = lanes * room.lane;
    }
    room.most = size_t(room.lanes + room.index + room.tokens * token_bytes);
    return room;
}

// The rows of each expert, ascending, and the experts that have some.
struct RowsOfExperts {
    int32_t *first;   // [count + 1]: an expert's rows begin here
    int32_t *expert;  // [touched]
    int32_t *row;
    int64_t touched;

    // ids i32[rows]; memory has room for 2 * count + 1 + rows numbers.
    void sort(const void *ids, int64_t rows, int64_t count, void *memory) {
        first = static_cast<int32_t *>(memory);
        expert = first + count + 1;
        row = expert + count;
        touched = 0;
        memset(first, 0, size_t(count + 1) * sizeof(int32_t));
        for (int64_t i = 0; i < rows; ++i) {
            const int64_t e = load_as<int32_t>(ids, i);
            if (e >= 0 && e < count) ++first[e + 1];
        }
        for (int64_t e = 0; e < count; ++e) {
            if (first[e + 1] != 0) expert[touched++] = int32_t(e);
            first[e + 1] += first[e];
        }
        for (int64_t i = 0; i < rows; ++i) {
            const int64_t e = load_as<int32_t>(ids, i);
            if (e >= 0 && e < count) row[first[e]++] = int32_t(i);
        }
        for (int64_t e = count; e > 0; --e) first[e] = first[e - 1];
        first[0] = 0;
    }
};

}  // namespace
}  // namespace qk::cpu
