# Every switch of the build, and the flags that make it a library without a C++ runtime.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug or Release" FORCE)
endif()

option(QK_BUILD_IO "libqk_io.a: checkpoint files (needs jansson)" ON)
option(QK_BUILD_CLI "the qk command (needs CLI11 and QK_BUILD_IO)" ON)
option(QK_BUILD_EXAMPLES "examples/c" ON)
option(QK_BUILD_TESTS "tests (need GoogleTest)" ON)
option(QK_BUILD_BENCH "benchmarks (need Google Benchmark)" OFF)
option(QK_FUZZ "libFuzzer targets (need clang)" OFF)
option(QK_WERROR "warnings are errors" OFF)
set(QK_SANITIZE "" CACHE STRING "sanitizers for everything: address,undefined or thread")

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

add_compile_options(-Wall -Wextra)
if(QK_WERROR)
  add_compile_options(-Werror)
endif()
if(QK_SANITIZE)
  add_compile_options(-fsanitize=${QK_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${QK_SANITIZE})
endif()

# Fused only where the source says fma: results must not depend on the compiler.
set(QK_NUMERIC_FLAGS -ffp-contract=off)
set(QK_LIBRARY_FLAGS
    ${QK_NUMERIC_FLAGS} -fvisibility=hidden -ffunction-sections -fdata-sections
    $<$<COMPILE_LANGUAGE:CXX>:-fno-exceptions$<SEMICOLON>-fno-rtti$<SEMICOLON>-fno-threadsafe-statics>
    -fno-asynchronous-unwind-tables -fno-unwind-tables)
# Atomics in line: gcc would call libgcc, which asks for the processor's features before main.
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  list(APPEND QK_LIBRARY_FLAGS -mno-outline-atomics)
endif()
