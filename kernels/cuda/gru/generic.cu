// Any GRU at any width: one block a sequence, steps in order, one warp a unit. Every step reads
// every weight once; the kernel is there to be right where the fast ones do not apply.
#include "cuda/gru/border.cuh"
#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"
#include "gru/clipped.hpp"

namespace qk::cuda {
namespace {

constexpr int32_t kThreads = 512, kWarps = kThreads / 32;

// A sequence's share of the scratch, in the order of gru_scratch_bytes.
struct Scratch {
    void *next, *view, *x;

    __device__ Scratch(const GruView &v, int64_t sequence) {
        const int64_t h = v.cell.hidden_size;
        char *const base = static_cast<char *>(v.scratch) + sequence * v.scratch_bytes;
        next = base + int64_t(sizeof(gru::Gates)) * h;
        view = static_cast<char *>(next) + 2 * h;
        x = static_cast<char *>(view) + 2 * h;
    }
};

// The sum of products of a row and a vector, in every lane.
template <class Dot>
__device__ Dot dot_row(const void *weights, int32_t weight_bytes, int64_t row, const void *codes,
                       int32_t code_bytes, int32_t count) {
    Dot sum = 0;
    for (int32_t k = int32_t(threadIdx.x) % 32; k < count; k += 32) {
        sum += Dot(gru::load_code(weights, weight_bytes, row * count + k)) *
               gru::load_code(codes, code_bytes, k);
    }
#pragma unroll
    for (int half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(~0u, sum, half);
    return sum;
}

__device__ void write_gates(const GruView &v, int64_t row, int32_t unit, const gru::Gates &gates) {
    const gru::Cell &cell = v.cell;
    const int64_t h = cell.hidden_size, first = row * 4 * h + unit;
    const auto put = [&](int64_t index, int32_t code, int32_t scale, int32_t zero) {
        store_as(v.gates, index, gru::code_to_real(code, gru::power_of_two(-scale), zero));
    };
    put(first, gates.u, cell.u_shift, cell.u_zero);
    put(first + h, gates.r, cell.r_scale, cell.r_zero);
    put(first + 2 * h, gates.n, cell.n_scale, cell.n_zero);
    put(first + 3 * h, gates.hh_n, cell.hh_scale, cell.hh_zero);
}

// A warp's counts of what types cut, where they are asked for.
struct Clipped {
    int64_t (*counts)[QK_GRU_TENSOR_COUNT];  // of each warp, in shared memory

    __device__ int64_t *own() const { return counts[threadIdx.x / 32]; }

    // The lane's sum of codes of x.
    __device__ void add_x(int32_t cut) const {
#pragma unroll
        for (int half = 16; half > 0; half /= 2) cut += __shfl_xor_sync(~0u, cut, half);
        if (threadIdx.x % 32 == 0) own()[QK_GRU_X] += cut;
    }
    // One lane a warp.
    __device__ void operator()(int32_t tensor, bool is_cut) const { own()[tensor] += is_cut; }
};

__device__ bool cuts_x(const GruView &v, int64_t index) {
    const gru::Cell &cell = v.cell;
    if (v.x_is_float) {
        return gru::is_cut(load_as<float>(v.x, index), v.x_factor, cell.x_zero, cell.x_min,
                           cell.x_max);
    }
    return gru::is_outside(load_code_anywhere(v.x, cell.x_bytes, index), cell.x_min, cell.x_max);
}

template <class Dot, class Int, bool counts>
__device__ void run_unit(const GruView &v, const Scratch &scratch, const void *state, int64_t row,
                         int32_t unit, const Clipped &clipped) {
    const gru::Cell &cell = v.cell;
    Int ih[3], hh[3];
    for (int32_t gate = 0; gate < 3; ++gate) {
        const int64_t weight_row = int64_t(gate) * cell.hidden_size + unit;
        ih[gate] = Int(dot_row<Dot>(cell.w, cell.w_bytes, weight_row, scratch.x, cell.x_bytes,
                                    cell.input_size));
        hh[gate] = Int(dot_row<Dot>(cell.r, cell.r_bytes, weight_row, scratch.view, cell.view_bytes,
                                    cell.hidden_size));
    }
    if (threadIdx.x % 32 != 0) return;
    gru::Gates gates;
    const int32_t h_old = gru::load_code(state, cell.h_bytes, unit);
    int32_t next;
    if constexpr (counts) {
        next = gru::counted_unit(cell, unit, ih, hh, h_old, &gates, clipped);
    } else {
        next = gru::gru_unit<Int>(cell, unit, ih, hh, h_old, &gates);
    }
    gru::store_code(scratch.next, cell.h_bytes, unit, next);
    write_y(v, row * cell.hidden_size + unit, next);
    if (v.gates != nullptr) write_gates(v, row, unit, gates);
}

// Dot holds sums of products, Int everything after them.
template <class Dot, class Int, bool counts>
__global__ void __launch_bounds__(kThreads) run_sequence(const __grid_constant__ GruView v) {
    const gru::Cell &cell = v.cell;
    const int64_t sequence = blockIdx.x;
    const int32_t h = cell.hidden_size, c = cell.input_size;
    const Scratch scratch(v, sequence);
    void *const state = static_cast<char *>(current_state(v)) + sequence * h * cell.h_bytes;
    __shared__ int64_t shared_counts[counts ? kWarps : 1][QK_GRU_TENSOR_COUNT];
    const Clipped clipped = {shared_counts};
    if (counts && threadIdx.x % 32 < QK_GRU_TENSOR_COUNT) clipped.own()[threadIdx.x % 32] = 0;
    __syncthreads();
    for (int64_t t = 0; t < v.steps; ++t) {
        const int64_t row = t * v.batch + sequence;
        int32_t x_cut = 0;
        for (int32_t k = int32_t(threadIdx.x); k < c; k += kThreads) {
            gru::store_code(scratch.x, cell.x_bytes, k, read_x(v, row * c + k));
            if constexpr (counts) x_cut += cuts_x(v, row * c + k);
        }
        if constexpr (counts) clipped.add_x(x_cut);
        for (int32_t unit = int32_t(threadIdx.x); unit < h; unit += kThreads) {
            const int32_t code = gru::load_code(t == 0 ? state : scratch.next, cell.h_bytes, unit);
            gru::store_code(state, cell.h_bytes, unit, code);
            gru::store_code(scratch.view, cell.view_bytes, unit, gru::view_of_h(cell, code));
        }
        __syncthreads();
        for (int32_t unit = int32_t(threadIdx.x) / 32; unit < h; unit += kWarps) {
            run_unit<Dot, Int, counts>(v, scratch, state, row, unit, clipped);
        }
        __syncthreads();
    }
    for (int32_t unit = int32_t(threadIdx.x); unit < h && v.steps > 0; unit += kThreads) {
        gru::store_code(state, cell.h_bytes, unit,
                        gru::load_code(scratch.next, cell.h_bytes, unit));
    }
    if (counts && threadIdx.x < QK_GRU_TENSOR_COUNT) {
        int64_t sum = 0;
        for (int32_t warp = 0; warp < kWarps; ++warp) sum += shared_counts[warp][threadIdx.x];
        v.clipped[sequence * QK_GRU_TENSOR_COUNT + threadIdx.x] += sum;
    }
}

Status run(const GruArgs &args, const Launch &launch) {
    const gru::Cell &cell = *args.cell;
    const auto kernel = args.clipped != nullptr ? run_sequence<int64_t, int64_t, true>
                        : cell.cell_is_32 != 0  ? run_sequence<int32_t, int32_t, false>
                        : cell.dot_is_32 != 0   ? run_sequence<int32_t, int64_t, false>
                                                : run_sequence<int64_t, int64_t, false>;
    return launch_kernel(launch, "gru", kernel, {dim3(uint32_t(args.batch)), kThreads},
                         view_of(args));
}

bool can_run(const GruArgs &, const Device &) { return true; }

}  // namespace

const Kernel<GruArgs> kGruGeneric = {"generic", can_run, nullptr, run};

}  // namespace qk::cuda
