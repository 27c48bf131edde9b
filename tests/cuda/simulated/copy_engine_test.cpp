// The copy engine of simulated threads: what a kernel may rely on, and that it notices a kernel
// that relies on more.
#include "cuda/mock/copy_engine.hpp"

#include <gtest/gtest.h>
#include <string.h>

#include <vector>

namespace {

alignas(1024) uint8_t room[4096];
alignas(8) uint64_t barriers[2];

uint32_t barrier(int index) { return simulator::shared_address(&barriers[index]); }

// Rows of 100 numbers, their places in memory.
struct Plane {
    std::vector<uint16_t> numbers;
    CUtensorMap map = {};

    explicit Plane(uint32_t rows) : numbers(size_t(rows) * 104, 0) {
        for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = uint16_t(i + 1);
        map.type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
        map.rank = 2;
        map.data = numbers.data();
        map.sizes[0] = 100, map.sizes[1] = rows;
        map.strides[0] = 208;
        map.box[0] = 64, map.box[1] = 8;
        map.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
    }
};

uint16_t number_at(uint32_t row, uint32_t column) {
    uint16_t number;
    memcpy(&number, room + row * 128 + (column / 8 ^ row % 8) * 16 + column % 8 * 2, 2);
    return number;
}

TEST(CudaCopyEngine, BoxesAreSwizzledAndPadded) {
    const Plane plane(5);
    memset(room, 0xee, sizeof(room));
    simulator::run(dim3(1), dim3(1), [&] {
        simulator::barrier_init(barrier(0), 1);
        simulator::barrier_expect(barrier(0), 1024);
        simulator::copy_box(simulator::shared_address(room), plane.map, {64, -1, 0}, barrier(0));
        EXPECT_EQ(room[0], 0xee) << "there before anyone waited";
        simulator::barrier_wait(barrier(0), 0);
    });
    for (uint32_t row = 0; row < 8; ++row) {
        for (uint32_t column = 0; column < 64; ++column) {
            const bool there = row >= 1 && row < 6 && column < 36;
            ASSERT_EQ(number_at(row, column), there ? (row - 1) * 104 + 64 + column + 1 : 0)
                << row << " " << column;
        }
    }
    EXPECT_EQ(room[1024], 0xee);
}

// A phase is over when all have arrived and all bytes are there, whichever is last; the next one
// counts anew.
TEST(CudaCopyEngine, BarriersCountArrivalsAndBytes) {
    const Plane plane(8);
    int arrived = 0;
    simulator::run(dim3(1), dim3(32), [&] {
        if (threadIdx.x == 0) simulator::barrier_init(barrier(0), 31);
        simulator::block_barrier();
        for (uint32_t phase = 0; phase < 3; ++phase) {
            const uint32_t to = simulator::shared_address(room);
            if (threadIdx.x == 0) {
                simulator::barrier_wait(barrier(0), phase % 2);
                EXPECT_EQ(arrived, 31 * int(phase + 1));
                EXPECT_EQ(number_at(7, 63), 7 * 104 + 64);
                memset(room, 0, sizeof(room));
            } else {
                ++arrived;
                if (threadIdx.x == 1) {
                    simulator::copy_box(to, plane.map, {0, 0, 0}, barrier(0));
                    simulator::barrier_expect(barrier(0), 1024);
                } else {
                    simulator::barrier_arrive(barrier(0));
                }
            }
            simulator::block_barrier();
        }
    });
}

TEST(CudaCopyEngineDeathTest, NoticesWhatNobodyWaitsForOrSends) {
    const Plane plane(8);
    const auto copy = [&] {
        simulator::barrier_init(barrier(0), 1);
        for (int i = 0; i < 64; ++i) {
            simulator::copy_box(simulator::shared_address(room), plane.map, {0, 0, 0}, barrier(0));
        }
    };
    EXPECT_DEATH(simulator::run(dim3(1), dim3(1), copy), "before its copies were there");
    const auto wait = [&] {
        simulator::barrier_init(barrier(0), 1);
        simulator::barrier_wait(barrier(0), 0);
    };
    EXPECT_DEATH(simulator::run(dim3(1), dim3(1), wait), "no other thread reaches");
}

}  // namespace
