// A harness that cannot fail proves nothing: its borders, poison and allocator are tested here.
#include <gtest/gtest.h>

#include <cstring>

#include "harness/allocator.hpp"
#include "harness/guarded.hpp"
#include "harness/specs.hpp"
#include "harness/tensor.hpp"

namespace {

using harness::Guarded;
using harness::Placement;

TEST(Guarded, PlacesAtEndsAndOffsets) {
    Guarded guarded;
    for (const size_t bytes : {size_t(1), size_t(63), size_t(4096), size_t(5000)}) {
        for (uint64_t turn = 0; turn < 66; ++turn) {
            uint8_t *const data = guarded.place(bytes, Placement::turn(turn));
            if (turn >= 2) {
                EXPECT_EQ(uintptr_t(data) % 64, turn - 2);
            }
            for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(data[i], harness::kPoison);
            std::memset(data, 0, bytes);
            EXPECT_TRUE(guarded.intact());
        }
    }
}

TEST(Guarded, SeesEveryByteAround) {
    Guarded guarded;
    uint8_t *const data = guarded.place(100, {Placement::at_offset, 5});
    for (const int at : {-64, -1, 100, 163}) {
        data[at] ^= 1;
        EXPECT_FALSE(guarded.intact()) << at;
        data[at] ^= 1;
        EXPECT_TRUE(guarded.intact());
    }
}

TEST(GuardedDeathTest, FaultsPastTheEnds) {
    Guarded guarded;
    volatile uint8_t *data = guarded.place(100, {Placement::at_end, 0});
    EXPECT_DEATH({ data[100] = 1; }, "");
    EXPECT_DEATH({ (void)data[100]; }, "");
    data = guarded.place(100, {Placement::at_start, 0});
    EXPECT_DEATH({ (void)data[-1]; }, "");
}

TEST(Allocator, CountsAndFails) {
    harness::Allocator allocator;
    const qk_allocator &f = *allocator.functions();
    void *const first = f.allocate(f.user, 10, 64);
    ASSERT_NE(first, nullptr);
    EXPECT_EQ(uintptr_t(first) % 64, 0u);
    allocator.fail(2, false);
    void *const second = f.allocate(f.user, 1, 8);
    EXPECT_EQ(f.allocate(f.user, 1, 8), nullptr);
    EXPECT_TRUE(allocator.failed());
    void *const third = f.allocate(f.user, 1, 8);
    EXPECT_NE(third, nullptr);
    allocator.fail(1, true);
    EXPECT_EQ(f.allocate(f.user, 1, 8), nullptr);
    EXPECT_EQ(f.allocate(f.user, 1, 8), nullptr);
    EXPECT_EQ(allocator.live(), 3);
    for (void *block : {first, second, third}) f.release(f.user, block);
    EXPECT_EQ(allocator.live(), 0);
}

// The same plane sizes from the public header as from the reference, and the whole way through the
// API: wrap guarded planes, dequantize, compare.
TEST(Specs, PlaneBytesAndDequantizeThroughTheApi) {
    qk_context *context = nullptr;
    ASSERT_EQ(qk_context_create(nullptr, &context), QK_OK);
    harness::Random random(9);
    uint64_t turn = 0;
    for (reference::Spec spec : harness::kinds()) {
        const harness::Shape &shape = harness::shapes()[size_t(7 * turn++) % 400];
        spec.n = shape.n, spec.k = shape.k, spec.group_size = shape.group_size;
        SCOPED_TRACE(harness::title(spec));
        const auto weight = harness::random_weight(spec, harness::Data::real, &random);
        const reference::Planes planes = reference::pack(weight);
        const qk_tensor_desc desc = harness::describe(spec);
        for (int plane = 0; plane < QK_PLANE_COUNT; ++plane) {
            size_t bytes = 1;
            ASSERT_EQ(qk_tensor_plane_bytes(&desc, plane, &bytes), QK_OK);
            ASSERT_EQ(bytes, harness::plane_of(planes, plane).size()) << "plane " << plane;
        }
        const reference::Format to = harness::kFloats[turn % 3];
        harness::Tensor from(context, weight, turn), output(context, to, spec.n, spec.k, turn);
        ASSERT_EQ(from.status(), QK_OK) << qk_context_error(context);
        ASSERT_EQ(output.status(), QK_OK) << qk_context_error(context);
        ASSERT_EQ(qk_dequantize(context, from.handle(), output.handle()), QK_OK);
        const std::vector<uint32_t> expected = reference::dequantize(weight, to);
        for (size_t i = 0; i < expected.size(); ++i) {
            ASSERT_EQ(output.bits(int64_t(i)), expected[i]) << i;
        }
        ASSERT_TRUE(from.intact() && output.intact());
    }
    qk_context_destroy(context);
}

}  // namespace
