// Calls that are wrong in one way: the documented status, a sentence, nothing changed, and the
// context goes on working. tests/api has every class of bad argument; here they meet random cases.
#include <cstring>

#include "soak/expect.hpp"

namespace soak {
namespace {

struct Wrong {
    World *world;
    const Context &context;

    void expect(qk_status got, qk_status status, const char *what) const {
        if (got != status) {
            fail("%s: status %d, expected %d (%s)", what, got, status,
                 qk_context_error(context.get()));
        }
        if (std::strlen(qk_context_error(context.get())) < 8) fail("%s: no sentence", what);
        intact(world, what);
    }
    void unchanged(const Tensor &tensor, const char *what) const {
        for (const uint8_t byte : tensor.bytes(0)) {
            if (byte != harness::kPoison) fail("%s: the output has changed", what);
        }
    }
};

}  // namespace

void check_refusals(World *world, const Case &c, Random *random) {
    const Contents w_contents = contents(c, random);
    const Problem p = problem(c, w_contents, random);
    const Context context(*world, {c.threads, c.executor, c.flags, 0});
    const Wrong wrong = {world, context};
    const int64_t n = c.spec.n, k = c.spec.k, m = c.m;
    const Format type = c.x_format, other = type == Format::bf16 ? Format::f16 : Format::bf16;
    reference::Planes x_planes;
    x_planes.data = p.x_bytes;
    const Tensor w(world, context, describe_weight(c), &w_contents.planes, kW, 0);
    const Tensor x(world, context, harness::describe_dense(type, m, k), &x_planes, kX, 0);
    Tensor y(world, context, harness::describe_dense(type, m, n), nullptr, kY, 0);
    Tensor dense(world, context, harness::describe_dense(type, n, k), nullptr, kRowsOut, 0);
    qk_context *const q = context.get();
    const auto rows = [&](Format format, int64_t a, int64_t b) {
        return std::make_unique<Tensor>(world, context, harness::describe_dense(format, a, b),
                                        nullptr, kRows, 0);
    };
    for (int turn = 0; turn < 4; ++turn) {
        const int64_t off = random->one_in(2) ? 1 : 7;
        wrong.expect(qk_linear(q, x.get(), w.get(), nullptr, rows(type, m, n + off)->get()),
                     QK_ERROR_SHAPE, "y with other n");
        wrong.expect(qk_linear(q, x.get(), w.get(), nullptr, rows(type, m + off, n)->get()),
                     QK_ERROR_SHAPE, "y with other m");
        wrong.expect(qk_linear(q, rows(type, m, k + off)->get(), w.get(), nullptr, y.get()),
                     QK_ERROR_SHAPE, "x with other k");
        wrong.expect(qk_linear(q, x.get(), w.get(), rows(type, 1, n + off)->get(), y.get()),
                     QK_ERROR_SHAPE, "bias with other n");
        wrong.expect(qk_dequantize(q, w.get(), rows(type, n, k + off)->get()), QK_ERROR_SHAPE,
                     "dense with other k");
        wrong.expect(qk_quantize(q, rows(type, n + off, k)->get(), w.get()), QK_ERROR_SHAPE,
                     "dense with other n");
    }
    wrong.expect(qk_linear(q, x.get(), w.get(), nullptr, rows(other, m, n)->get()), QK_ERROR_FORMAT,
                 "y of another type");
    wrong.expect(qk_dequantize(q, x.get(), dense.get()), QK_ERROR_FORMAT, "a dense weight");
    wrong.expect(qk_repack(q, w.get(), w.get()), QK_ERROR_STATE, "repack in place");
    wrong.expect(qk_linear(q, x.get(), w.get(), nullptr, nullptr), QK_ERROR_NULL, "y NULL");
    wrong.unchanged(y, "qk_linear");
    wrong.unchanged(dense, "qk_dequantize");
    same_planes(c, w_contents.planes, w, "the weight after refusals");
    const qk_status status = qk_linear(q, x.get(), w.get(), nullptr, y.get());
    const bool may_lack_room = (c.flags & QK_CONTEXT_INT8_ACTIVATIONS) != 0;
    if (may_lack_room && status == QK_ERROR_WORKSPACE) {
        wrong.unchanged(y, "qk_linear without its workspace");
        return;
    }
    context.expect_ok(status, "qk_linear after refusals");
    context.synchronize();
    intact(world, "qk_linear");
}

}  // namespace soak
