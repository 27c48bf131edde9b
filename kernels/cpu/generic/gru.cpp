// The GRU in plain loops over src/gru/step.hpp: sequences in parallel, steps in order. Each step
// reads every weight once: 3h * (c + h) products, and 3 table look-ups a unit.
#include <string.h>

#include "cpu/gru/float.hpp"
#include "cpu/isa.hpp"
#include "cpu/kernels.hpp"
#include "gru/border.hpp"
#include "gru/clipped.hpp"
#include "gru/step.hpp"

namespace qk::cpu {
namespace {

bool can_run(const GruArgs &, const Device &) { return true; }

float load_float(const void *plane, int64_t index) {
    float value;
    memcpy(&value, static_cast<const char *>(plane) + index * 4, 4);
    return value;
}

void store_float(void *plane, int64_t index, float value) {
    memcpy(static_cast<char *>(plane) + index * 4, &value, 4);
}

// One row of x to codes, from f32 or from codes that may exceed the tensor's bits.
void read_x(const GruArgs &args, int64_t row, void *codes) {
    const gru::Cell &cell = *args.cell;
    const int64_t c = cell.input_size;
    if (args.x_format->id == QK_FORMAT_F32) {
        const float factor = gru::power_of_two(cell.x_scale);
        for (int64_t k = 0; k < c; ++k) {
            const float value = load_float(args.x, row * c + k);
            gru::store_code(codes, cell.x_bytes, k,
                            gru::real_to_code(value, factor, cell.x_zero, cell.x_min, cell.x_max));
        }
        return;
    }
    memcpy(codes, static_cast<const char *>(args.x) + row * c * cell.x_bytes,
           size_t(c * cell.x_bytes));
    for (int64_t k = 0; k < c; ++k) {
        const int32_t code = gru::load_code(codes, cell.x_bytes, k);
        gru::store_code(codes, cell.x_bytes, k, gru::clamp(code, cell.x_min, cell.x_max));
    }
}

// What read_x has to cut.
template <class Count>
void count_x(const GruArgs &args, int64_t row, const Count &count) {
    const gru::Cell &cell = *args.cell;
    const int64_t c = cell.input_size;
    const float factor = gru::power_of_two(cell.x_scale);
    for (int64_t i = row * c; i < (row + 1) * c; ++i) {
        if (args.x_format->id == QK_FORMAT_F32) {
            count(QK_GRU_X,
                  gru::is_cut(load_float(args.x, i), factor, cell.x_zero, cell.x_min, cell.x_max));
            continue;
        }
        int16_t code = 0;
        memcpy(&code, static_cast<const char *>(args.x) + i * cell.x_bytes, size_t(cell.x_bytes));
        const int32_t value = cell.x_bytes == 1 ? int8_t(code) : code;
        count(QK_GRU_X, gru::is_outside(value, cell.x_min, cell.x_max));
    }
}

// gru::step, counting.
template <class Count>
void counted_step(const gru::Cell &cell, const void *x, const void *h, void *h_next, void *view,
                  gru::Gates *gates, const Count &count) {
    const int32_t c = cell.input_size, n = cell.hidden_size;
    gru::view_codes(cell, h, view);
    for (int32_t unit = 0; unit < n; ++unit) {
        int64_t ih[3] = {}, hh[3] = {};
        gru::dot_three(cell.w_bytes, cell.x_bytes, cell.w, unit, ptrdiff_t(n) * c, x, c, ih);
        gru::dot_three(cell.r_bytes, cell.view_bytes, cell.r, unit, ptrdiff_t(n) * n, view, n, hh);
        const int32_t h_old = gru::load_code(h, cell.h_bytes, unit);
        gru::store_code(h_next, cell.h_bytes, unit,
                        gru::counted_unit(cell, unit, ih, hh, h_old, gates + unit, count));
    }
}

void write_y(const GruArgs &args, int64_t row, const void *codes) {
    const gru::Cell &cell = *args.cell;
    const int64_t h = cell.hidden_size;
    if (args.y_format->id != QK_FORMAT_F32) {
        memcpy(static_cast<char *>(args.y) + row * h * cell.h_bytes, codes,
               size_t(h * cell.h_bytes));
        return;
    }
    const float factor = gru::power_of_two(-cell.h_scale);
    for (int64_t j = 0; j < h; ++j) {
        const int32_t code = gru::load_code(codes, cell.h_bytes, j);
        store_float(args.y, row * h + j, gru::code_to_real(code, factor, cell.h_zero));
    }
}

void write_gates(const GruArgs &args, int64_t row, const gru::Gates *gates) {
    const gru::Cell &cell = *args.cell;
    const int64_t h = cell.hidden_size, first = row * 4 * h;
    const float u = gru::power_of_two(-cell.u_shift), r = gru::power_of_two(-cell.r_scale);
    const float n = gru::power_of_two(-cell.n_scale), hh = gru::power_of_two(-cell.hh_scale);
    for (int64_t j = 0; j < h; ++j) {
        const gru::Gates &unit = gates[j];
        store_float(args.gates, first + j, gru::code_to_real(unit.u, u, cell.u_zero));
        store_float(args.gates, first + h + j, gru::code_to_real(unit.r, r, cell.r_zero));
        store_float(args.gates, first + 2 * h + j, gru::code_to_real(unit.n, n, cell.n_zero));
        store_float(args.gates, first + 3 * h + j, gru::code_to_real(unit.hh_n, hh, cell.hh_zero));
    }
}

void run_sequence(const GruArgs &args, int64_t sequence) {
    const gru::Cell &cell = *args.cell;
    const int64_t h = cell.hidden_size, h_bytes = h * cell.h_bytes;
    char *const scratch = static_cast<char *>(args.scratch) + sequence * gru_scratch_bytes(cell);
    gru::Gates *const gates = reinterpret_cast<gru::Gates *>(scratch);
    char *const next = scratch + int64_t(sizeof(gru::Gates)) * h;
    char *const view = next + 2 * h;
    char *const x = view + 2 * h;
    char *const state = static_cast<char *>(args.h) + sequence * h_bytes;
    int64_t *const clipped =
        args.clipped == nullptr ? nullptr : args.clipped + sequence * QK_GRU_TENSOR_COUNT;
    const auto count = [&](int32_t tensor, bool cut) { clipped[tensor] += cut ? 1 : 0; };
    for (int64_t t = 0; t < args.steps; ++t) {
        const int64_t row = t * args.batch + sequence;
        read_x(args, row, x);
        if (args.clipped != nullptr) {
            count_x(args, row, count);
            counted_step(cell, x, state, next, view, gates, count);
        } else {
            gru::step(cell, x, state, next, view, args.gates == nullptr ? nullptr : gates);
        }
        memcpy(state, next, size_t(h_bytes));
        write_y(args, row, state);
        if (args.gates != nullptr) write_gates(args, row, gates);
    }
}

Status run(const GruArgs &args, const Launch &launch) {
    parallel_ranges(launch.parallel, args.batch, 1, work_of_sequence(args) * kPortable,
                    [&](int64_t first, int64_t last) {
        for (int64_t sequence = first; sequence < last; ++sequence) run_sequence(args, sequence);
    });
    return QK_OK;
}

}  // namespace

const Kernel<GruArgs> kGruGeneric = {"generic", can_run, nullptr, run};
const Kernel<FloatProductArgs> kFloatProductGeneric = float_product_kernel<Generic>("generic");
const Kernel<FloatGatesArgs> kFloatGatesGeneric = float_gates_kernel<Generic>("generic");

}  // namespace qk::cpu
