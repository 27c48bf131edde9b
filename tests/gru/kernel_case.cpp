#include "kernel_case.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <thread>

#include "cpu/gru/pack.hpp"
#include "gru/derive.hpp"
#include "gru/step.hpp"
#include "harness/only.hpp"
#include "kernel/guarded.hpp"

namespace gru_test {

namespace {

using qk::gru::Fault;

void run_in_threads(void *, std::int32_t tasks, void (*task)(void *, std::int32_t),
                    void *argument) {
    std::vector<std::thread> threads;
    for (std::int32_t i = 0; i < tasks; ++i) threads.emplace_back(task, argument, i);
    for (std::thread &thread : threads) thread.join();
}

std::size_t rounded(std::int64_t bytes) { return static_cast<std::size_t>((bytes + 63) / 64 * 64); }

// Codes as bytes, or f32 that round to any code, NaN and beyond among them.
void fill_x(std::mt19937_64 &random, const qk_gru_model &model, const KernelRun &run, bool extreme,
            std::int64_t count, std::uint8_t *to) {
    const qk_gru_quant &quant = model.quant[QK_GRU_X];
    const bool f32 = run.f32;
    auto codes = random_codes(quant, count, random, extreme);
    if (run.lowest) codes.assign(codes.size(), qk::gru::code_range(quant).min);
    const int bytes = qk::gru::code_bytes(quant.bits);
    for (std::int64_t i = 0; i < count; ++i) {
        const auto code = static_cast<std::int32_t>(codes[static_cast<std::size_t>(i)]);
        if (!f32) {
            // Now and then beyond the type's bits, which the border clamps.
            qk::gru::store_code(to, bytes, i, random() % 64 == 0 ? -32768 : code);
            continue;
        }
        float value = static_cast<float>(code - model.zero_point[QK_GRU_X]) +
                      static_cast<float>(random() % 5) * 0.25f;
        value = std::ldexp(value, -model.shift[QK_GRU_X]);
        if (random() % 64 == 0) value = random() % 2 == 0 ? NAN : -INFINITY;
        std::memcpy(to + 4 * i, &value, 4);
    }
}

struct Buffers {  // of one run
    Guarded x, h, y, gates, scratch, packed;
    std::size_t h_bytes, y_bytes, gates_bytes, scratch_bytes;
};

void compare(const qk::Kernel<qk::GruArgs> &kernel, qk::GruArgs args, const Buffers &expected,
             const Guarded &h0, const KernelRun &run) {
    const Guarded h(expected.h_bytes), y(expected.y_bytes), gates(expected.gates_bytes);
    const Guarded scratch(expected.scratch_bytes);
    std::memcpy(h.data(), h0.data(), expected.h_bytes);
    std::memset(scratch.data(), 0x5a, expected.scratch_bytes);  // no kernel relies on its content
    std::memset(gates.data(), 0x5a, expected.gates_bytes);
    args.h = h.data();
    args.y = y.data();
    args.gates = run.gates ? gates.data() : nullptr;
    args.scratch = scratch.data();
    const qk::Launch launch = {{run_in_threads, nullptr, run.threads},
                               nullptr,
                               qk::device_at(qk::kCpuBackend, 0),
                               nullptr,
                               0,
                               nullptr};
    ASSERT_EQ(kernel.run(args, launch), QK_OK);
    ASSERT_EQ(std::memcmp(y.data(), expected.y.data(), expected.y_bytes), 0)
        << kernel.name << ": y, c " << args.cell->input_size << " h " << args.cell->hidden_size
        << " batch " << args.batch << " steps " << args.steps << " threads " << run.threads;
    ASSERT_EQ(std::memcmp(h.data(), expected.h.data(), expected.h_bytes), 0) << kernel.name;
    ASSERT_EQ(std::memcmp(gates.data(), expected.gates.data(), expected.gates_bytes), 0)
        << kernel.name << ": gates, h " << args.cell->hidden_size;
}

std::uint64_t digest_of(const Guarded &memory, std::size_t bytes, std::uint64_t digest) {
    for (std::size_t i = 0; i < bytes; ++i) digest = (digest ^ memory.data()[i]) * 1099511628211u;
    return digest;
}

}  // namespace

namespace {

// QEMU 7.2 takes a gather's index register 4 for none at all, as that number means in the addresses
// of every other instruction: each lane then reads element 0. No processor does.
bool gathers_ignore_their_index() {
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2")) return false;
    const std::int32_t table[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    std::int32_t lanes[8] = {7, 6, 5, 4, 3, 2, 1, 0};
    __asm__ volatile(
        "vmovdqu (%1), %%ymm4\n\tvpcmpeqd %%ymm5, %%ymm5, %%ymm5\n\t"
        "vpgatherdd %%ymm5, (%0,%%ymm4,4), %%ymm6\n\tvmovdqu %%ymm6, (%1)\n\tvzeroupper"
        :
        : "r"(table), "r"(lanes)
        : "memory", "xmm4", "xmm5", "xmm6");
    return lanes[0] != 7;
#else
    return false;
#endif
}

}  // namespace

const char *why_no_vector_kernels() {
    if (qk::kCpuBackend.gru.count < 2) return "QK_CPU_SIMD is OFF";
    if (gathers_ignore_their_index())
        return "this emulator's vpgatherdd ignores an index in ymm4 (a fault of QEMU 7.2)";
    return nullptr;
}

void KernelCounts::print() const {
    std::printf(
        "%lld models (%lld refused, %lld packed, of them %lld with "
        "64-bit gates and %lld with 16-bit weights), "
        "%lld steps in %lld comparisons, %lld of them of gates too, digest %016llx\n",
        static_cast<long long>(models), static_cast<long long>(refused),
        static_cast<long long>(packed), static_cast<long long>(wide), static_cast<long long>(words),
        static_cast<long long>(steps), static_cast<long long>(compared),
        static_cast<long long>(compared_gates), static_cast<unsigned long long>(digest));
}

void run_case(OwnedModel &owned, std::mt19937_64 &random, bool extreme, const KernelRun &run,
              KernelCounts &counts) {
    const qk_gru_model &model = owned.view();
    ++counts.models;
    ASSERT_EQ(qk::gru::check_model(model), Fault::kNone);
    const auto rows = static_cast<std::size_t>(3 * model.hidden_size);
    std::vector<std::int64_t> ih_offset(rows), hh_offset(rows);
    qk::gru::Cell cell;
    Fault fault = qk::gru::compute_offsets(model, ih_offset.data(), hh_offset.data());
    if (fault == Fault::kNone)
        fault = qk::gru::derive(model, ih_offset.data(), hh_offset.data(), &cell);
    const qk::GruPacking &packing = qk::kCpuBackend.gru_packing;
    const std::int64_t pack_bytes = fault == Fault::kNone ? packing.bytes(cell) : 0;
    if (fault != Fault::kNone) ++counts.refused;
    if (pack_bytes == 0) return;
    ++counts.packed;
    if (cell.w_bytes + cell.r_bytes > 2) ++counts.words;

    Buffers buffers;
    buffers.packed = Guarded(rounded(pack_bytes));
    packing.make(cell, buffers.packed.data());
    if (reinterpret_cast<const qk::cpu::GruPack *>(buffers.packed.data())->is_wide) ++counts.wide;
    const std::int64_t x_count = run.steps * run.batch * model.input_size;
    const std::int64_t y_count = run.steps * run.batch * model.hidden_size;
    const std::int64_t h_count = run.batch * model.hidden_size;
    buffers.x = Guarded(static_cast<std::size_t>(x_count * (run.f32 ? 4 : cell.x_bytes)));
    fill_x(random, model, run, extreme, x_count, buffers.x.data());
    buffers.h_bytes = static_cast<std::size_t>(h_count * cell.h_bytes);
    buffers.y_bytes = static_cast<std::size_t>(y_count * (run.f32 ? 4 : cell.h_bytes));
    buffers.gates_bytes = run.gates ? static_cast<std::size_t>(y_count) * 16 : 0;
    buffers.scratch_bytes =
        rounded(run.batch * qk::gru_scratch_bytes(cell) + packing.scratch_bytes(cell, run.batch));
    Guarded h0(buffers.h_bytes);
    auto state = random_codes(model.quant[QK_GRU_H], h_count, random, extreme);
    if (run.lowest) state.assign(state.size(), cell.h_min);
    for (std::int64_t i = 0; i < h_count; ++i)
        qk::gru::store_code(h0.data(), cell.h_bytes, i,
                            static_cast<std::int32_t>(state[static_cast<std::size_t>(i)]));
    buffers.h = Guarded(buffers.h_bytes);
    buffers.y = Guarded(buffers.y_bytes);
    buffers.gates = Guarded(buffers.gates_bytes);
    buffers.scratch = Guarded(buffers.scratch_bytes);
    std::memcpy(buffers.h.data(), h0.data(), buffers.h_bytes);

    qk::GruArgs args = {};
    args.cell = &cell;
    args.steps = run.steps;
    args.batch = run.batch;
    args.x_format = qk::find_format(run.f32             ? QK_FORMAT_F32
                                    : cell.x_bytes == 1 ? QK_FORMAT_I8
                                                        : QK_FORMAT_I16);
    args.y_format = qk::find_format(run.f32             ? QK_FORMAT_F32
                                    : cell.h_bytes == 1 ? QK_FORMAT_I8
                                                        : QK_FORMAT_I16);
    args.x = buffers.x.data();
    args.y = buffers.y.data();
    args.gates = run.gates ? buffers.gates.data() : nullptr;
    args.h = buffers.h.data();
    args.scratch = buffers.scratch.data();
    args.packed = buffers.packed.data();
    const auto &list = qk::kCpuBackend.gru;
    const qk::Launch launch = {{run_in_threads, nullptr, 1}, nullptr, {}, nullptr, 0, nullptr};
    ASSERT_EQ(list.kernels[list.count - 1]->run(args, launch), QK_OK);
    counts.digest = digest_of(buffers.y, buffers.y_bytes, counts.digest);
    counts.steps += run.steps * run.batch;
    for (std::int32_t i = 0; i < list.count - 1; ++i) {
        if (!list.kernels[i]->can_run(args, qk::device_at(qk::kCpuBackend, 0))) continue;
        if (!harness::wanted("cpu", list.kernels[i]->name)) continue;
        ++counts.compared;
        if (run.gates) ++counts.compared_gates;
        compare(*list.kernels[i], args, buffers, h0, run);
    }
}

void run_random_case(std::mt19937_64 &random, const RandomOptions &options, const KernelRun &run,
                     KernelCounts &counts) {
    OwnedModel owned(options.c, options.h);
    randomize(owned, random, options);
    run_case(owned, random, options.extreme, run, counts);
}

void run_random_cases(std::uint64_t seed, bool extreme, std::int64_t wanted, int largest,
                      KernelCounts &counts) {
    std::mt19937_64 random(seed);
    const auto below = [&](int limit) {
        return 1 + static_cast<int>(random() % std::uint64_t(limit));
    };
    for (const std::int64_t target = counts.steps + wanted;
         counts.steps < target && !testing::Test::HasFatalFailure();) {
        RandomOptions options;
        options.extreme = extreme;
        options.c = below(largest);
        options.h = below(largest);
        options.weight_bits = random() % 3 == 0 ? 16 : 8;
        if (random() % 2 == 0) options.inside_bits = 14;
        KernelRun run;
        run.batch = random() % 2 == 0 ? 1 : below(20);
        run.steps = below(60);
        run.threads = random() % 8 == 0 ? 3 : 1;
        run.f32 = random() % 4 == 0;
        run.gates = random() % 2 == 0;
        run_random_case(random, options, run, counts);
    }
}

}  // namespace gru_test
