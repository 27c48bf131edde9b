// The contract that kernels fulfil and operations call through. A backend is a row of data: its
// device's memory functions and an ordered list of kernels for each operation. The first kernel
// that accepts a case runs it; the portable one ends every list. Nothing registers itself: the
// linker drops such objects from a static library.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "backend/scratch.hpp"
#include "base/checked.hpp"
#include "base/hd.hpp"
#include "base/status.hpp"
#include "format/formats.hpp"
#include "format/layouts.hpp"
#include "format/scale_tables.hpp"
#include "gru/calibrate/float_gru.hpp"
#include "gru/cell.hpp"
#include "qk.h"

namespace qk {

// What a kernel sees: raw planes and sizes, never a handle. The op layer has checked all of it, so
// kernels check nothing but whether they can run the case at all.

// A dense matrix [rows, columns], row-major unless it says otherwise, at any alignment.
struct Dense {
    const Format *format;
    int64_t rows, columns;
    void *data;
    int64_t stride = 0;         // elements from a row to the next, at least `columns`; 0: those
    bool column_major = false;  // `stride` is from a column to the next, 0: `rows`
};

static inline int64_t row_stride(const Dense &a) { return a.stride != 0 ? a.stride : a.columns; }
// Whether nothing is between the rows.
static inline bool is_compact(const Dense &a) {
    return !a.column_major && (row_stride(a) == a.columns || a.rows == 1);
}

// The scales of a weight. Planes may be misaligned, hence void: they are read through memcpy.
// Scales of 8 bits are codes, whatever their format: nested ones (lut8) bring the three planes that
// give them their values, e8m0 and e4m3 have them built in or from a GLOBAL plane.
struct ScalePlane {
    const Format *format;  // f32, f16, bf16; coded: lut8 (nested), e8m0, e4m3
    void *data;            // scales, or their codes
    void *second;          // coded: f32, one a `second_group` scales, numbered as groups are
    void *code;            // coded: f32[256]
    void *bias;            // coded: f32, added to code * second
    int64_t second_group;  // coded: scales per second scale; else 0
    bool divides = false;  // coded: code / second takes the place of code * second
};

constexpr int64_t kOneSecond = int64_t{1} << 61;  // second_group: all scales share one

// Whether scales are codes of 8 bits.
static inline bool has_coded_scales(const ScalePlane &scale) { return scale.format->bits == 8; }

// A weight [n, k]. Dense weights have a dense `format`, a null `layout` and only `data`.
struct Weight {
    const Format *format;
    const Layout *layout;
    Geometry geometry;
    void *data;
    ScalePlane scale;
    void *zero;                // null: every zero is 8 (or the format has none)
    void *table;               // lut8, e4m3: f32[256]; lut4: f32[16]
    void *global = nullptr;    // the GLOBAL plane; `scale` has what it means
    int64_t globals = 0;       // its numbers
    bool whole_range = false;  // s8: quantized over -128..127; no value depends on it
    ScalePlane minimum = {};   // what is taken off entry * scale; without: format and data null
    void *order = nullptr;     // i32[k]: the column that each stored one is; null: itself
};

static inline bool has_minimum(const Weight &w) { return w.minimum.format != nullptr; }
// Whether scales and minima are not in planes but among the codes.
static inline bool is_records(const Weight &w) {
    return w.layout != nullptr && w.layout->record != nullptr;
}

// The column of the weight that is stored as `index` says; no index leads outside of its row.
QK_HD static inline int64_t ordered_column(int32_t index, int64_t k) {
    return uint32_t(index) < uint64_t(k) ? index : k - 1;
}

struct DequantizeArgs {
    Weight from;
    Dense to;
    int64_t first_row = 0;  // of `from`, that goes to row 0 of `to`; inside backends only
};

struct QuantizeArgs {
    Dense from;
    Weight to;
};

struct RepackArgs {
    Weight from, to;  // same format, scale format and geometry
    // Inside backends only. The row of `from` that goes to row 0 of `to`, which may have fewer
    // rows.
    int64_t first_row = 0;
    bool in_workspace = false;  // `to` has codes, scales and zeros; its other planes are `from`'s
};

// to[i, j] = from[i, order[j]], element by element of one format.
struct GatherArgs {
    Dense from, to;
    const void *order;  // i32[columns]
};

// How a product with experts finds rows of w, x and y: qk.h, qk_experts. Its w is [count * n, k],
// its bias [count, n].
struct Experts {
    const void *expert;  // i32[tokens, slots]
    const void *weight;  // f32[tokens, slots]; null: 1
    int64_t tokens, slots, count;
    bool x_by_slot, summed;  // x has a row a slot; y has one a token
    bool interleaved;
    qk_activation activation;
    float limit, alpha;
    bool routed_early = false;  // `expert` is that of the product in front in a list
};

// y = x . transpose(w) + bias; a transposed one is y = x . w + bias, in the exact mode. Rows of x
// and y may have strides; y is in x's format or f32; w and bias are compact.
struct LinearArgs {
    Dense x;            // [m, k], its columns as w stores them: w.order is null; transposed: [m, n]
    Weight w;           // [n, k]; where transposed, `order` says which columns of y are meant
    const Dense *bias;  // [1, n], transposed [1, k], or null
    Dense y;            // [m, n]; inside backends `columns` may be more than n; transposed: [m, k]
    bool transposed = false;
    bool accumulate = false;  // what y held is added to the sum in f32, before the rounding to y
    const Experts *experts = nullptr;  // null: w is one weight
    // Inside the CPU's backend: the rows of w that are multiplied, 0 for all; portable kernels have
    // it, whatever the layout.
    int64_t first_row = 0, rows = 0;
};

static inline int64_t rows_of_w(const LinearArgs &args) {
    return args.rows != 0 ? args.rows : args.w.geometry.n;
}

// Steps of a frozen GRU. Everything but x, y and gates is aligned; h and scratch belong to the
// state.
struct GruArgs {
    const gru::Cell *cell;  // its arrays are on the device
    int64_t steps, batch;
    const Format *x_format;  // f32, or i8/i16 as the cell stores x
    const void *x;           // [steps,batch,c]
    const Format *y_format;  // f32, or i8/i16 as the cell stores h
    void *y;                 // [steps,batch,h]
    void *gates;             // f32 [steps,batch,4h] or null
    uint32_t *turns;         // says which of two states is the current one
    void *h;                 // 2 * [batch,h] codes, gru_state_bytes apart, advanced in place
    void *scratch;           // batch * gru_scratch_bytes, then GruPacking's
    const void *packed;      // what GruPacking::make left, or null
    int64_t *clipped;        // [batch,QK_GRU_TENSOR_COUNT] counts of clipped codes, added to;
                             // null for the fast kernels, which do not count
};

// The float GRU of calibration, on the host: y [rows,outputs] = x [rows,count] W^T + bias. W is in
// panels of rows side by side: [ceil(outputs / kFloatPanel)][count][kFloatPanel], zeros past the
// last row, as past the last bias.
constexpr int64_t kFloatPanel = gru::kFloatPanel;
struct FloatProductArgs {
    const float *panels, *bias, *x;
    int64_t rows, count, outputs;
    float *y;
};

// One step of it from its products [batch,3h]; everything else is [batch,h].
struct FloatGatesArgs {
    int64_t batch, units;
    const float *ih, *hh, *h;
    float *u_in, *u, *r_in, *r, *n_in, *n, *h_next;
};

// State (turns / kTurn) % 2 is the current one. A kernel whose blocks all read the whole state
// writes the other one, and its blocks add kTurn to turns between them; the others leave it alone.
constexpr uint32_t kTurn = 4096;  // as many blocks at most

static inline int64_t gru_state_bytes(const gru::Cell &cell, int64_t batch) {
    return round_up(batch * cell.hidden_size * cell.h_bytes, 64);
}

// Room of one sequence: x, the next h and the view of h as codes, the gates of a step.
static inline int64_t gru_scratch_bytes(const gru::Cell &cell) {
    const int64_t h = cell.hidden_size;
    return round_up(int64_t(sizeof(gru::Gates)) * h + 2 * (cell.input_size + 2 * h), 64);
}

// Runs task(argument, 0 .. task_count - 1) on the context's threads and waits.
struct Parallel {
    void (*run)(void *pool, int32_t task_count, void (*task)(void *argument, int32_t index),
                void *argument);
    void *pool;
    int32_t concurrency;
    int64_t least_task = 1;  // work that is worth a task, in products (kernels/cpu/kernels.hpp)
};

// The device of a context, as kernels see it. Read once, when the context is made: no kernel asks
// the driver. What a backend has no word for is 0.
struct Device {
    int32_t index = 0;
    uint32_t instruction_sets = 0;  // CPU: QK_ISA_... that the context may use
    int32_t capability = 0;         // CUDA: compute capability that kernels may use, 90 for 9.0
    int32_t multiprocessors = 0;
    int32_t shared_bytes = 0;  // of memory that a block can have
    int32_t l2_bytes = 0;
    bool lacks_library = false;                 // CUDA: cuBLASLt was looked for and is not there
    const ScaleTables *tables = &kScaleTables;  // in its own memory
    bool slow_bf16_vectors = false;             // CPU: their products take longer than exact ones
};

static constexpr bool has(const Device &device, uint32_t instruction_sets) {
    return (device.instruction_sets & instruction_sets) == instruction_sets;
}

// What one call runs with.
struct Launch {
    Parallel parallel;  // CPU
    void *stream;       // CUDA
    Device device;
    void *workspace;
    size_t workspace_bytes;
    ErrorText *error;
    void *session = nullptr;     // the backend's, of this context
    Scratch *scratch = nullptr;  // CPU: memory of tasks
    bool in_order = false;       // CUDA: starts after all in front, which may write its weights
};

template <class Args>
struct Kernel {
    const char *name;
    bool (*can_run)(const Args &, const Device &);
    size_t (*workspace_bytes)(const Args &, const Device &);  // null: none
    Status (*run)(const Args &, const Launch &);
    // Runs the first `*ran` of `count` cases together; 0: each is to be run alone. For products of
    // a list, of which it says which those are; null: none.
    Status (*run_siblings)(const Args *const *cases, int32_t count, const Launch &,
                           int32_t *ran) = nullptr;
};

constexpr int32_t kSiblings = 4;  // cases that are offered at once, at most

template <class Args>
struct KernelList {
    const Kernel<Args> *const *kernels;
    int32_t count;

    constexpr KernelList() : kernels(nullptr), count(0) {}
    template <int32_t size>
    constexpr KernelList(const Kernel<Args> *const (&list)[size]) : kernels(list), count(size) {}
};

struct DeviceMemory {
    void *(*allocate)(int32_t device_index, size_t bytes);  // null: use the context's allocator
    void (*release)(int32_t device_index, void *pointer);
    Status (*upload)(const Launch &, void *device, const void *host, size_t bytes);
    Status (*download)(const Launch &, void *host, const void *device, size_t bytes);
};

// A second copy of a frozen GRU's weights in an order that the backend's kernels like better.
// It is made in host memory when the GRU is frozen or loaded, and lives as long as the GRU.
struct GruPacking {
    int64_t (*bytes)(const gru::Cell &) = nullptr;            // 0: none for this cell; null: never
    void (*make)(const gru::Cell &, void *memory) = nullptr;  // 64-byte aligned memory
    int64_t (*scratch_bytes)(const gru::Cell &, int64_t batch) = nullptr;  // of a state
};

// What a product runs as, decided by the facts of its case alone: nothing is launched or written.
struct LinearPlan {
    const Kernel<LinearArgs> *kernel;   // null: none runs within the workspace
    size_t workspace_bytes;             // that it needs
    const Kernel<LinearArgs> *fastest;  // whatever the workspace; null: no kernel takes the case
    size_t fastest_bytes;               // that it needs
};

// What a context allows its products.
struct Allowance {
    uint32_t modes;  // QK_CONTEXT_...
    size_t workspace_bytes;
    int32_t concurrency = 1;  // CPU: tasks at once
};

// Worked out only for those who ask: qk_explain.
struct Explanation {
    int32_t batch_first, batch_last;  // a row of y has the same bits for all these m
    char reason[192];                 // why not a faster kernel; "" where there is none
};

// What a backend keeps for a context, null where it keeps nothing. `open` may allocate and wait,
// and says in `device` what it did not find.
struct Session {
    void *(*open)(Device *device, size_t workspace_bytes) = nullptr;
    void (*close)(int32_t device_index, void *session) = nullptr;
};

struct Backend {
    qk_device device;
    const char *name;
    int32_t (*device_count)();
    // Fills in device number `index` but for that number; `allowed`: instruction sets.
    Status (*describe)(int32_t index, uint32_t allowed, Device *device);
    Status (*synchronize)(const Launch &);
    qk_layout (*packed_layout)(const Format &);  // what QK_LAYOUT_PACKED means here
    DeviceMemory memory;
    KernelList<DequantizeArgs> dequantize;
    KernelList<QuantizeArgs> quantize;
    KernelList<RepackArgs> repack;
    const Kernel<GatherArgs> *gather;  // takes every case
    KernelList<LinearArgs> linear;
    KernelList<GruArgs> gru;
    // Plans a product; `explanation` may be null.
    LinearPlan (*plan_linear)(const LinearArgs &, const Device &, const Allowance &,
                              Explanation *explanation);
    // Modes of a context (QK_CONTEXT_...). Cases that a list does not take run exact.
    bool has_modes;
    KernelList<LinearArgs> linear_bf16, linear_int8;
    GruPacking gru_packing = {};
    Session session = {};
    KernelList<FloatProductArgs> float_product = {};  // the CPU's alone
    KernelList<FloatGatesArgs> float_gates = {};
    KernelList<LinearArgs> transposed = {};  // products that are; empty: `linear` has them too
};

// Device number `index`, with all instruction sets of this processor that are allowed.
static inline Status describe(const Backend &backend, int32_t index, uint32_t allowed,
                              Device *device) {
    *device = {};
    device->index = index;
    return backend.describe(index, allowed, device);
}

// The same for callers that know the device to be there.
static inline Device device_at(const Backend &backend, int32_t index, uint32_t allowed = ~0u) {
    Device device;
    describe(backend, index, allowed, &device);
    return device;
}

// The backends of this build, CPU first; null past the last.
const Backend *backend_at(int32_t index);
const Backend *find_backend(qk_device device);

// The first kernel of the list that accepts the case, or null.
template <class Args>
const Kernel<Args> *pick(const KernelList<Args> &list, const Args &args, const Device &device) {
    for (int32_t i = 0; i < list.count; ++i) {
        if (list.kernels[i]->can_run(args, device)) return list.kernels[i];
    }
    return nullptr;
}

// Of the kernels that dequantize, the portable one, the last, alone takes what is in an order.
static inline KernelList<DequantizeArgs> dequantizers(const Backend &backend,
                                                      const DequantizeArgs &args) {
    KernelList<DequantizeArgs> list = backend.dequantize;
    const int32_t skipped = args.from.order == nullptr ? 0 : list.count - 1;
    list.kernels += skipped;
    list.count -= skipped;
    return list;
}

template <class Args>
size_t workspace_of(const Kernel<Args> &kernel, const Args &args, const Device &device) {
    return kernel.workspace_bytes == nullptr ? 0 : kernel.workspace_bytes(args, device);
}

// The first that also finds the workspace large enough, or null.
template <class Args>
const Kernel<Args> *pick_within(const KernelList<Args> &list, const Args &args,
                                const Device &device, size_t workspace_bytes) {
    for (int32_t i = 0; i < list.count; ++i) {
        const Kernel<Args> &kernel = *list.kernels[i];
        if (kernel.can_run(args, device) && workspace_of(kernel, args, device) <= workspace_bytes) {
            return &kernel;
        }
    }
    return nullptr;
}

}  // namespace qk
