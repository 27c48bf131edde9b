// qk_linear: values, equal bits of equal calls, rows that do not depend on the batch, workspaces.
#include <algorithm>
#include <cstring>

#include "soak/expect.hpp"

namespace soak {
namespace {

// A call's operands over the world's memory.
struct Call {
    World *world;
    const Problem &p;
    uint64_t x_place, y_place, bias_place;

    // Rows [first, first + rows) of y.
    Bytes run(const Context &context, qk_tensor *w, int64_t first, int64_t rows, Random *random) {
        const Case &c = *p.c;
        const size_t row_bytes = size_t(c.spec.k * reference::bytes_of(c.x_format));
        reference::Planes x_planes, bias_planes;
        x_planes.data = {p.x_bytes.begin() + int64_t(size_t(first) * row_bytes),
                         p.x_bytes.begin() + int64_t(size_t(first + rows) * row_bytes)};
        bias_planes.data = p.bias_bytes;
        const Tensor x(world, context, describe_rows(c.x_format, rows, c.spec.k, random), &x_planes,
                       kX, x_place);
        Tensor y(world, context, describe_rows(c.x_format, rows, c.spec.n, random), nullptr, kY,
                 y_place);
        std::unique_ptr<Tensor> bias;
        if (c.bias) {
            bias = std::make_unique<Tensor>(world, context,
                                            describe_rows(c.bias_format, 1, c.spec.n, random),
                                            &bias_planes, kBias, bias_place);
        }
        qk_tensor *const b = bias == nullptr ? nullptr : bias->get();
        context.expect_ok(qk_linear(context.get(), x.get(), w, b, y.get()), "qk_linear");
        context.synchronize();
        intact(world, "qk_linear");
        if (x.bytes(0) != x_planes.data) fail("qk_linear changed x");
        if (bias != nullptr && bias->bytes(0) != p.bias_bytes) fail("qk_linear changed the bias");
        return y.bytes(0);
    }
};

// Whether a matrix kernel takes packed w, so that cuBLASLt never does: groups of `least` codes
// times a power of two, or the row.
bool tiles(const Case &c, int64_t least) {
    const int64_t group = c.spec.group_size == -1 ? c.spec.k : c.spec.group_size;
    const int64_t per_row = (c.spec.k + group - 1) / group;
    const bool rows = c.spec.global == reference::Global::rows;
    if (c.spec.global == reference::Global::rows_divide || c.spec.format == Format::lut4)
        return false;
    if (rows && (per_row & (per_row - 1)) != 0) return false;
    const bool fits = group >= c.spec.k || (group % least == 0 && (group & (group - 1)) == 0);
    return !c.dense_weight && !reference::eight_bit(c.spec.format) && !c.spec.flat && fits &&
           c.spec.k % 16 == 0 && c.x_format != Format::f32;
}

// Batches of one class give a row the same bits (qk.h); [low, high] of m's class.
struct Class {
    int64_t low, high;
};
Class class_of(const Case &c, bool cuda, bool library) {
    const bool int8 = (c.flags & QK_CONTEXT_INT8_ACTIVATIONS) != 0;
    if (!cuda) {
        if (int8) return {c.m <= 2 ? 1 : 3, c.m};
        const bool bf16 = (c.flags & QK_CONTEXT_BF16_PRODUCTS) != 0;
        if (bf16 && c.m >= reference::kBf16Batch) return {reference::kBf16Batch, c.m};
        return c.m <= 2 ? Class{1, c.m} : Class{3, c.m};
    }
    const bool packed = c.packed && !c.dense_weight && !reference::eight_bit(c.spec.format);
    if (!packed) return {1, std::min<int64_t>(c.m, 4)};
    if (library && !(c.m <= 16 ? tiles(c, 32) : tiles(c, 64))) return {c.m, c.m};
    if (c.m <= 16) return c.m == 1 ? Class{1, 1} : Class{2, c.m};
    if (c.m <= 24) return {17, c.m};
    if (c.m <= 64) return {25, c.m};
    if (c.m > 1024) return {c.m, c.m};
    return {std::max<int64_t>(65, (c.m - 1) / 128 * 128 + 1), c.m};
}

void same_rows(const Problem &p, const Bytes &all, const Bytes &some, int64_t first,
               const char *what) {
    const int64_t n = p.c->spec.n, row = n * reference::bytes_of(p.c->x_format);
    const auto part = all.begin() + first * row;
    if (std::equal(some.begin(), some.end(), part)) return;
    const auto a = sweep::dense_bits(p.c->x_format, Bytes(part, all.end()));
    const auto b = sweep::dense_bits(p.c->x_format, some);
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {  // a NaN's payload is not promised
        if (reference::same(p.c->x_format, a[i], b[i])) continue;
        fail("%s: row %lld, column %lld: %x, before %x", what, (long long)i / n + first,
             (long long)i % n, b[i], a[i]);
    }
}

void check_batches(Call *call, const Context &context, qk_tensor *w, const Bytes &y, Class range,
                   Random *random) {
    const int64_t m = call->p.c->m;
    for (int turn = 0; turn < 2 && range.low < std::min(m, range.high + 1); ++turn) {
        const int64_t rows = random->between(range.low, range.high);
        const int64_t first = random->below(m - rows + 1);
        const Bytes some = call->run(context, w, first, rows, random);
        const std::string what = "a batch of " + std::to_string(rows);
        if (m <= range.high) {
            same_rows(call->p, y, some, first, what.c_str());
            continue;
        }
        // m itself is in another class: one batch against another.
        const Bytes fewer = call->run(context, w, first, range.low, random);
        same_rows(call->p, some, fewer, 0, what.c_str());
    }
}

// Whether more than 16 rows are repacked into a workspace that is large enough.
bool repacks(const Case &c) {
    return tiles(c, 64) && c.m > 16 && (c.spec.layout != Layout::awq_gemm || c.spec.n % 16 == 0);
}

size_t workspace_for(const Case &c, const Context &context, const qk_tensor *w, Random *random) {
    size_t best = 0, fewer = 0;
    context.expect_ok(qk_linear_workspace(context.get(), w, c.m, &best), "qk_linear_workspace");
    for (int turn = 0; turn < 3; ++turn) {
        const int64_t rows = random->between(1, c.m);
        context.expect_ok(qk_linear_workspace(context.get(), w, rows, &fewer),
                          "qk_linear_workspace");
        if (fewer <= best) continue;
        fail("%lld rows want a workspace of %zu bytes, up to %lld rows only %zu", (long long)rows,
             fewer, (long long)c.m, best);
    }
    return best;
}

}  // namespace

void check_linear(World *world, const Case &c, Random *random) {
    const Contents contents_of_w = contents(c, random);
    Problem p = problem(c, contents_of_w, random);
    const bool cuda = world->cuda();
    const Context small(*world, {c.threads, c.executor, c.flags, 0});
    const uint64_t w_place = place(*world, random);
    const Tensor w(world, small, describe_weight(c), &contents_of_w.planes, kW, w_place);
    std::unique_ptr<Tensor> packed;
    if (c.packed && !c.dense_weight) {
        qk_tensor_desc desc = w.desc;
        desc.layout = QK_LAYOUT_PACKED;
        packed = std::make_unique<Tensor>(*world, small, desc);
        small.expect_ok(qk_repack(small.get(), w.get(), packed->get()), "qk_repack");
        small.synchronize();
    }
    qk_tensor *const weight = packed != nullptr ? packed->get() : w.get();
    const size_t best = workspace_for(c, small, weight, random);
    size_t room = c.room == Room::none ? 0 : best;
    if (c.room == Room::little && best > 1) room = size_t(random->below(int64_t(best)));
    if (c.flags != 0) room = best;  // a mode is refused without
    const Context context(*world, {c.threads, c.executor, c.flags, room});
    // Weights in groups of 16 and 32 are multiplied by their scales from two rows on.
    const bool small_groups = c.spec.group_size > 0 && c.spec.group_size < 64;
    p.tight = room == 0 && c.m <= (small_groups && c.x_format != Format::f32 ? 1 : 64);
    Call call = {world, p, place(*world, random), place(*world, random), place(*world, random)};
    const Bytes y = call.run(context, weight, 0, c.m, random);
    cuda ? expect_on_cuda(p, y) : expect_on_cpu(p, y);
    for (int again = 0; again < (cuda ? 2 : 1); ++again) {
        if (call.run(context, weight, 0, c.m, random) != y) {
            fail("the same call gives other bits");
        }
    }
    check_batches(&call, context, weight, y, class_of(c, cuda, room >= (size_t{32} << 20)), random);
    if (!cuda) {  // other threads, other addresses: the same bits
        const Context other(*world, {5 - c.threads % 5, !c.executor, c.flags, room});
        call.x_place = place(*world, random), call.y_place = place(*world, random);
        same_rows(p, y, call.run(other, weight, 0, c.m, random), 0, "other threads and addresses");
    } else if (c.room == Room::best && packed != nullptr && repacks(c) && w_place == 0 &&
               call.x_place == 0) {
        const size_t own = workspace_for(c, small, w.get(), random);
        const Context other(*world, {1, false, 0, own});
        const Bytes again = call.run(other, w.get(), 0, c.m, random);
        same_rows(p, y, again, 0, "repacked into the workspace, not packed before");
    }
    same_planes(c, contents_of_w.planes, w, "the weight after qk_linear");
}

// Calls queued one behind the other, weights rewritten between them, against the same calls with a
// wait after each.
void check_queue(World *world, const Case &drawn, Random *random) {
    Case c = drawn;
    c.spec.k = std::max<int64_t>(16, std::min<int64_t>(c.spec.k, 2048) / 16 * 16);
    c.spec.n = c.spec.k;  // y of one is x of the next
    if (c.spec.n > 1024) c.spec.n = c.spec.k = 1024;
    c.m = std::min<int64_t>(c.m, 300);
    c.inputs = Inputs::real, c.bias = false, c.data = Data::real;
    const Contents first = contents(c, random), second = contents(c, random);
    const Problem p = problem(c, first, random);
    const Context plain(*world, {});
    const Tensor a(world, plain, describe_weight(c), &first.planes, kW, place(*world, random));
    const Tensor b(world, plain, describe_weight(c), &second.planes, kTo, place(*world, random));
    qk_tensor_desc desc = a.desc;
    desc.layout = QK_LAYOUT_PACKED;
    const size_t room = workspace_for(c, plain, a.get(), random);
    const Context context(*world, {1, false, 0, c.room == Room::none ? 0 : room});
    reference::Planes x_planes;
    x_planes.data = p.x_bytes;
    const qk_tensor_desc rows = harness::describe_dense(c.x_format, c.m, c.spec.k);
    const uint64_t at = place(*world, random);
    const auto run = [&](bool wait, int steps) {
        const Tensor packed(*world, context, desc);
        const Tensor x(world, context, rows, &x_planes, kX, at);
        const Tensor y(world, context, rows, nullptr, kY, at);
        const Tensor z(world, context, rows, nullptr, kRows, at);
        qk_context *const q = context.get();
        for (int i = 0; i < steps; ++i) {
            const Tensor &from = i % 2 == 0 ? a : b;
            context.expect_ok(qk_repack(q, from.get(), packed.get()), "qk_repack");
            if (wait) context.synchronize();
            qk_tensor *const in = i == 0 ? x.get() : y.get();
            context.expect_ok(qk_linear(q, in, packed.get(), nullptr, z.get()), "qk_linear");
            if (wait) context.synchronize();
            qk_tensor *const w = i % 3 == 0 ? from.get() : packed.get();
            context.expect_ok(qk_linear(q, z.get(), w, nullptr, y.get()), "qk_linear");
            if (wait) context.synchronize();
        }
        context.synchronize();
        intact(world, "a queue of calls");
        Bytes bytes = y.bytes(0);
        const Bytes middle = z.bytes(0);
        bytes.insert(bytes.end(), middle.begin(), middle.end());
        return bytes;
    };
    const int steps = 1 + int(random->below(4));
    const Bytes waited = run(true, steps);
    for (int again = 0; again < 3; ++again) {
        if (run(false, steps) != waited) fail("queued calls give other bits than single ones");
    }
}

}  // namespace soak
