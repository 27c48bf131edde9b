// The instruction set `Neon` of the processor that is built for.
#pragma once
#if defined(__aarch64__)
#include "cpu/arm_neon/isa.hpp"
#else
#include "cpu/arm_neon/isa32.hpp"
#endif
