// Barriers in shared memory that count bytes, and the engine that copies boxes there, on simulated
// threads. Copies arrive some time after they were asked for, so a kernel that does not wait for
// them reads what was there before.
#pragma once
#include <cuda.h>

#include "cuda/mock/simulator.hpp"

namespace simulator {

// Shared memory has addresses of 32 bits, aligned as its arrays are, to 1024 bytes at most.
uint32_t shared_address(const void *pointer);
void *shared_pointer(uint32_t address);

void barrier_init(uint32_t barrier, uint32_t arrivals);
void barrier_arrive(uint32_t barrier);
void barrier_expect(uint32_t barrier, uint32_t bytes);  // and arrives
void barrier_wait(uint32_t barrier, uint32_t parity);

// The box at `at`, elements of each dimension; zeros where the tensor has none.
void copy_box(uint32_t to, const CUtensorMap &map, const int32_t (&at)[3], uint32_t barrier);

}  // namespace simulator
