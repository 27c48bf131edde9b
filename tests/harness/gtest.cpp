// What all tests include, compiled once: tests/CMakeLists.txt.
#include <gtest/gtest.h>
