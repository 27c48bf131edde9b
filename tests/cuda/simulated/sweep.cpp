// The sweeps of tests/kernel find a machine with simulated GPUs.
#include <gtest/gtest.h>

#include "cuda/mock/mock.hpp"

namespace {

struct Machine : ::testing::Environment {
    void SetUp() override { mock::reset(); }
};
::testing::Environment *const kMachine = ::testing::AddGlobalTestEnvironment(new Machine);

}  // namespace
