// Steps of a frozen GRU on vectors: W x for several steps as one product of matrices, then the
// recurrence step by step. Integers throughout, so no split of steps or sequences changes a bit.
#pragma once
#include "cpu/gru/rows.hpp"
#include "cpu/kernels.hpp"
#include "gru/border.hpp"

namespace qk::cpu {

// A range of sequences, which one thread runs.
template <class Isa>
class GruRange {
    using Ints = typename Isa::Ints;
    static constexpr int64_t kLanes = lanes_of<Isa>();

  public:
    GruRange(const GruArgs &args, int64_t first, int64_t last)
        : args_(args), cell_(*args.cell), pack_(*static_cast<const GruPack *>(args.packed)),
          room_(gru_room(cell_, args.batch)), first_(first), last_(last) {}

    void run() {
        for (int64_t s = first_; s < last_; ++s) read_state(s);
        for (int64_t t = 0; t < args_.steps; t += room_.steps) {
            const int64_t count = min64(room_.steps, args_.steps - t);
            const bool backward = toggle();
            // A stream reads W and R once a step: every other time backward, so that it begins with
            // what the caches still hold.
            const bool is_stream = count == 1;
            if (is_stream && backward) run_states(first_, last_, true);
            run_inputs(t, count, backward);
            if (is_stream && !backward) run_states(first_, last_, false);
            for (int64_t i = 0; i < count; ++i) run_step(t + i, i, is_stream);
        }
        for (int64_t s = first_; s < last_; ++s) write_state(s);
    }

  private:
    char *room(int64_t sequence) const {
        char *const rooms =
            static_cast<char *>(args_.scratch) + args_.batch * gru_scratch_bytes(cell_);
        return rooms + sequence * room_.bytes;
    }
    int32_t *h(int64_t s) const { return reinterpret_cast<int32_t *>(room(s) + room_.h_at); }
    uint8_t *view(int64_t s) const { return reinterpret_cast<uint8_t *>(room(s) + room_.view_at); }
    int32_t *hh(int64_t s) const { return reinterpret_cast<int32_t *>(room(s) + room_.hh_at); }
    int32_t *ih(int64_t s, int64_t i) const {
        return reinterpret_cast<int32_t *>(room(s) + room_.ih_at) + i * 3 * room_.units;
    }
    char *gates(int64_t s, int64_t t) const {
        if (args_.gates == nullptr) return nullptr;
        return static_cast<char *>(args_.gates) +
               (t * args_.batch + s) * 4 * cell_.hidden_size * int64_t(sizeof(float));
    }
    // Whether the next pass over weights goes backward.
    bool toggle() { return (reinterpret_cast<uint32_t *>(room(first_))[0]++ & 1) != 0; }

    void read_state(int64_t s) {
        const char *const from =
            static_cast<const char *>(args_.h) + s * cell_.hidden_size * cell_.h_bytes;
        const Round<Isa> round(pack_.view_shift);
        const int planes = planes_for<Isa>(pack_.h, cell_.view_bytes);
        const int32_t bytes = cell_.h_bytes;
        const int64_t plane_stride = room_.h_stride / 2, n = cell_.hidden_size;
        const Ints zero = Ints::splat(cell_.h_zero);
        const Ints low = Ints::splat(cell_.view_min), high = Ints::splat(cell_.view_max);
        int32_t *const to = h(s);
        uint8_t *const view_of = view(s);
        for (int64_t j = 0, end = room_.units; j < end; j += kLanes) {
            const int64_t count = max64(0, min64(kLanes, n - j));
            const Ints code = Isa::load_codes(from + j * bytes, bytes, count);
            (code - zero).store(to + j);
            store_for<Isa>(pack_.h, view_of, plane_stride, j, clamp(round(code), low, high),
                           planes);
        }
    }

    void write_codes(const int32_t *from, char *to) {
        const int32_t bytes = cell_.h_bytes;
        const Ints zero = Ints::splat(cell_.h_zero);
        for (int64_t j = 0, n = cell_.hidden_size; j < n; j += kLanes)
            Isa::store_codes(to + j * bytes, bytes, min64(kLanes, n - j),
                             Ints::load(from + j) + zero);
    }

    void write_state(int64_t s) {
        write_codes(h(s), static_cast<char *>(args_.h) + s * cell_.hidden_size * cell_.h_bytes);
    }

    uint8_t *read_x(int64_t s, int64_t t, int64_t i) {
        uint8_t *const to = reinterpret_cast<uint8_t *>(room(s) + room_.x_at) + i * room_.x_stride;
        const int64_t row = (t + i) * args_.batch + s, c = cell_.input_size;
        const bool is_real = args_.x_format->id == QK_FORMAT_F32;
        const int64_t bytes = is_real ? 4 : cell_.x_bytes;
        const char *const from = static_cast<const char *>(args_.x) + row * c * bytes;
        const float factor = gru::power_of_two(cell_.x_scale);
        const float low = float(cell_.x_min - cell_.x_zero);
        const float high = float(cell_.x_max - cell_.x_zero);
        const int planes = planes_for<Isa>(pack_.x, cell_.x_bytes);
        for (int64_t k = 0; k < c; k += kLanes) {
            const int64_t count = min64(kLanes, c - k);
            const Ints code = is_real
                                  ? Isa::load_reals(from + k * 4, count, factor, low, high) +
                                        Ints::splat(cell_.x_zero)
                                  : clamp(Isa::load_codes(from + k * bytes, cell_.x_bytes, count),
                                          cell_.x_min, cell_.x_max);
            store_for<Isa>(pack_.x, to, room_.x_stride / 2, k, code, planes);
        }
        return to;
    }

    // W x of `count` steps from t on.
    void run_inputs(int64_t t, int64_t count, bool backward) {
        const int planes = planes_for<Isa>(pack_.x, cell_.x_bytes);
        RowTask tasks[kGruMostRows];
        int64_t waiting = 0, left = count * (last_ - first_);
        for (int64_t s = first_; s < last_; ++s) {
            for (int64_t i = 0; i < count; ++i) {
                tasks[waiting++] = {read_x(s, t, i), ih(s, i)};
                --left;
                if (waiting * planes < Isa::kRows && left != 0) continue;
                run_linear<Isa>(pack_.x, pack_.panels, tasks, waiting * planes, planes,
                                room_.x_stride / 2, backward);
                waiting = 0;
            }
        }
    }

    // Sequences whose R h is one product.
    int64_t together() const {
        const int planes = planes_for<Isa>(pack_.h, cell_.view_bytes);
        return Isa::kRows > planes ? Isa::kRows / planes : 1;
    }

    void run_states(int64_t first, int64_t last, bool backward) {
        const int planes = planes_for<Isa>(pack_.h, cell_.view_bytes);
        const int64_t most = together();
        for (int64_t s = first; s < last; s += most) {
            const int64_t count = min64(most, last - s);
            RowTask tasks[kGruMostRows];
            for (int64_t k = 0; k < count; ++k) tasks[k] = {view(s + k), hh(s + k)};
            run_linear<Isa>(pack_.h, pack_.panels, tasks, count * planes, planes,
                            room_.h_stride / 2, backward);
        }
    }

    template <bool shown>
    void run_all_gates(const GateRow *rows, int64_t count) const {
        if (pack_.is_wide != 0)
            run_gates<Isa, true, shown>(cell_, pack_, rows, count, room_.h_stride / 2);
        else
            run_gates<Isa, false, shown>(cell_, pack_, rows, count, room_.h_stride / 2);
    }

    void run_step(int64_t t, int64_t i, bool has_states) {
        const int64_t most = together();
        const bool backward = has_states ? false : toggle();
        for (int64_t s = first_; s < last_; s += most) {
            const int64_t count = min64(most, last_ - s);
            GateRow rows[kGruMostRows];
            for (int64_t k = 0; k < count; ++k)
                rows[k] = {ih(s + k, i), hh(s + k), h(s + k), view(s + k), gates(s + k, t)};
            if (!has_states) run_states(s, s + count, backward);
            if (args_.gates != nullptr)
                run_all_gates<true>(rows, count);
            else
                run_all_gates<false>(rows, count);
        }
        for (int64_t s = first_; s < last_; ++s) write_y(s, t);
    }

    void write_y(int64_t s, int64_t t) {
        const int64_t at = (t * args_.batch + s) * cell_.hidden_size;
        if (args_.y_format->id != QK_FORMAT_F32)
            return write_codes(h(s), static_cast<char *>(args_.y) + at * cell_.h_bytes);
        const float factor = gru::power_of_two(-cell_.h_scale);
        char *const to = static_cast<char *>(args_.y) + at * 4;
        const int32_t *const from = h(s);
        for (int64_t j = 0, n = cell_.hidden_size; j < n; j += kLanes)
            Isa::store_reals(to + j * 4, min64(kLanes, n - j), Ints::load(from + j), factor);
    }

    const GruArgs &args_;
    const gru::Cell &cell_;
    const GruPack &pack_;
    const GruRoom room_;
    const int64_t first_, last_;
};

template <class Isa>
bool can_run_gru(const GruArgs &args, const Device &device) {
    return has(device, Isa::kFeature) && args.packed != nullptr && args.clipped == nullptr;
}

template <GruIsa Isa>
Status run_gru(const GruArgs &args, const Launch &launch) {
    const int64_t threads = launch.parallel.concurrency < 1 ? 1 : launch.parallel.concurrency;
    const int64_t share = ceil_div(args.batch, threads);
    parallel_ranges(launch.parallel, args.batch, share, work_of_sequence(args),
                    [&](int64_t first, int64_t last) { GruRange<Isa>(args, first, last).run(); });
    return QK_OK;
}

template <class Isa>
requires GruIsa<Isa>
constexpr Kernel<GruArgs> kGruKernel = {Isa::kName, can_run_gru<Isa>, nullptr, run_gru<Isa>};

}  // namespace qk::cpu
