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
set(QK_JANSSON_SOURCE "" CACHE PATH "jansson's sources, to build it with qk; else the system's")
option(QK_BUILD_CLI "the qk command (needs CLI11 and QK_BUILD_IO)" ON)
option(QK_BUILD_EXAMPLES "examples/c" ${PROJECT_IS_TOP_LEVEL})
option(QK_BUILD_TESTS "tests (need GoogleTest)" ${PROJECT_IS_TOP_LEVEL})
option(QK_BUILD_BENCH "benchmarks (need Google Benchmark)" OFF)
option(QK_CPU_SIMD "the CPU kernels of single instruction sets; OFF leaves the generic ones" ON)
option(QK_FOR_THIS_MACHINE "kernels that this machine cannot run: neither optimized nor sanitized" OFF)
option(QK_FUZZ "libFuzzer targets (need clang)" OFF)
option(QK_WERROR "warnings are errors" OFF)
set(QK_SANITIZE "" CACHE STRING "sanitizers for everything: address,undefined or thread")

# A sanitizer's runtime belongs to the program; a shared library would ask for it in vain.
set(qk_shared_default ${PROJECT_IS_TOP_LEVEL})
if(QK_SANITIZE)
  set(qk_shared_default OFF)
endif()
option(QK_BUILD_SHARED "libqk.so and libqk_io.so beside the archives" ${qk_shared_default})
set(QK_SHARED_RPATH "$ORIGIN" CACHE STRING "where libqk_io.so looks for libqk.so; may be empty")

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

include(CheckCXXCompilerFlag)
set(QK_HOST_LANGUAGES "$<COMPILE_LANGUAGE:C,CXX>")
add_compile_options("$<${QK_HOST_LANGUAGES}:-Wall;-Wextra>")
if(QK_WERROR)
  add_compile_options("$<${QK_HOST_LANGUAGES}:-Werror>"
                      "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Werror>")
endif()
if(QK_SANITIZE)
  add_compile_definitions(QK_SANITIZED)
  add_compile_options("$<${QK_HOST_LANGUAGES}:-fsanitize=${QK_SANITIZE}>"
                      "$<${QK_HOST_LANGUAGES}:-fno-omit-frame-pointer>"
                      "$<${QK_HOST_LANGUAGES}:-fno-sanitize-recover=all>")
  add_link_options(-fsanitize=${QK_SANITIZE})
endif()
# For tests and the command, half of whose compile time these are: a null that is read faults under
# AddressSanitizer, and nothing of ours has a vptr. The library keeps every check but in the vectors'
# kernels, where three of them and those of addresses are half as well: addresses are checked by calls.
set(QK_PROGRAM_CHECKS "")
set(QK_VECTOR_CHECKS "")
if(QK_SANITIZE MATCHES "undefined")
  set(QK_PROGRAM_CHECKS "$<${QK_HOST_LANGUAGES}:-fno-sanitize=null,vptr,object-size>")
  set(QK_VECTOR_CHECKS -fno-sanitize=null,alignment,object-size)
endif()
if(QK_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND QK_VECTOR_CHECKS --param=asan-instrumentation-with-call-threshold=0)
  # A million addresses in the checks' own data would move with a program, each time it is started.
  add_link_options(-no-pie)
endif()

# What no program can run here no sanitizer sees and no optimization speeds up: a seventh to two fifths of its
# compile time is left. A program may take an inline function that several files have from these objects,
# which costs speed and a sanitizer's look at that function. It runs all the same as long as the function has
# no instruction of the set; -O0 vectorizes no loop, and SIGILL would end a test here that met one.
set(QK_ABSENT "")
set(QK_ABSENT_FLAGS -fno-sanitize=all -O0)
if(QK_FOR_THIS_MACHINE AND QK_CPU_SIMD AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$" AND
   EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo processor REGEX "^flags" LIMIT_COUNT 1)
  set(words avx_vnni avx512f amx_tile)  # Linux' ones, and how sources of kernels are told
  set(patterns -mavxvnni -mavx512f x86_amx/)
  foreach(word pattern IN ZIP_LISTS words patterns)
    if(processor AND NOT "${processor} " MATCHES " ${word} ")
      list(APPEND QK_ABSENT ${pattern})
      message(STATUS "this processor has no ${word}: kernels with it are only compiled, at -O0")
    endif()
  endforeach()
endif()

# Fused only where the source says fma: results must not depend on the compiler.
set(QK_NUMERIC_FLAGS -ffp-contract=off)
# Unwind tables: debuggers and profilers see through qk, and a caller's exception passes.
set(qk_c_flags -fvisibility=hidden -ffunction-sections -fdata-sections
    -fasynchronous-unwind-tables)
# Atomics in line: gcc would call libgcc, which asks for the processor's features before main.
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  list(APPEND qk_c_flags -mno-outline-atomics)
endif()
# Threads that call qk may have 64 KiB of stack (qk.h, qk_executor): no frame takes more than half,
# and what is larger than a page is touched page by page, so that a stack which is too small ends at
# its guard instead of in other memory. Sanitizers put their own borders into frames.
if(NOT QK_SANITIZE)
  list(APPEND qk_c_flags -Wframe-larger-than=32768)
endif()
if(CMAKE_CROSSCOMPILING)  # where QK_WERROR is off
  list(APPEND qk_c_flags
       -Werror=frame-larger-than$<$<CXX_COMPILER_ID:GNU>:=32768>)
endif()
set(CMAKE_REQUIRED_FLAGS -Werror) # clang warns where it has none for a processor
check_cxx_compiler_flag(-fstack-clash-protection QK_HAS_STACK_CLASH_PROTECTION)
unset(CMAKE_REQUIRED_FLAGS)
if(QK_HAS_STACK_CLASH_PROTECTION AND NOT WIN32 AND NOT APPLE)  # where large frames are always touched
  list(APPEND qk_c_flags -fstack-clash-protection)
endif()
set(qk_cxx_flags -fno-exceptions -fno-rtti -fno-threadsafe-statics)
# nvcc hands its host half of each file to the C++ compiler with the same flags.
list(JOIN qk_c_flags "," qk_joined_c_flags)
list(JOIN qk_cxx_flags "," qk_joined_cxx_flags)
set(QK_LIBRARY_FLAGS
    "$<${QK_HOST_LANGUAGES}:${QK_NUMERIC_FLAGS};${qk_c_flags}>"
    "$<$<COMPILE_LANGUAGE:CXX>:${qk_cxx_flags}>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;-Xcompiler=${qk_joined_c_flags},${qk_joined_cxx_flags}>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${QK_NUMERIC_FLAGS},-Wall,-Wno-unknown-pragmas>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xfatbin=-compress-all>")  # machine code in a third of the bytes

# Visible, so that the archive can be linked whole into another shared library. Windows has no such
# thing; there a file of names says what a DLL exports.
set(QK_EXPORT "QK_API=__attribute__((visibility(\"default\")))")
if(WIN32)
  set(QK_EXPORT "")
  add_compile_definitions(QK_FMA_ROUNDS_TWICE)  # src/base/fused.hpp has its own
  add_compile_definitions(__USE_MINGW_ANSI_STDIO=1 _WIN32_WINNT=0x0A00)  # formats as in C99
  add_compile_options(-Wno-format)  # which gcc does not know of
endif()

# For what reads files, names and options: a frame that was overrun ends the program, and copies check
# the sizes that the compiler knows. Not for the kernels: the strong protector guards every function
# with an array, which there is every inner one; guard pages test their bounds instead. Sanitizers
# look closer than both. FORTIFY needs optimization, and calls functions that glibc alone has (musl's
# headers leave it out).
set(QK_HARDENING "")
if(NOT QK_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(QK_HARDENING "$<${QK_HOST_LANGUAGES}:-fstack-protector-strong;-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>")
endif()
# Addresses of functions are resolved at the start and read-only from then on.
set(QK_LINK_HARDENING -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
if(WIN32 OR APPLE)  # ELF's options; Windows' C runtime has no FORTIFY
  set(QK_LINK_HARDENING "")
  set(QK_HARDENING "")
endif()

# CUDA changes what a program must link (cudart), so it is asked for: OFF says when it could be had.
# AUTO builds it where nvcc is found, the target is this machine and nothing is sanitized (the GPU's
# code cannot be). By default the code is for the GPUs of this machine; where there is none, for every
# GPU from sm_80 on, as well as two passes of the compiler afford: Hopper's own, and sm_80's, which
# 8.x runs as it is and the driver translates for newer ones. A release takes "all" (machine code for
# every GPU that qk supports, and PTX for the ones to come).
set(QK_CUDA OFF CACHE STRING "the CUDA backend: ON, OFF, or AUTO (where nvcc is found)")
set(QK_CUDA_ARCHITECTURES native CACHE STRING "GPU architectures to build for, native, or all")
option(QK_CUDA_FEW_FILES "instances of a kernel in one file: less work, fewer at once" OFF)

# The architectures of this machine's GPUs, Hopper's with its own instructions; empty without a GPU.
function(qk_native_architectures out)
  set(found "")
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE text RESULT_VARIABLE result ERROR_QUIET)
  if(result EQUAL 0)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]" found "${text}")
    list(TRANSFORM found REPLACE "\\." "")
    list(REMOVE_DUPLICATES found)
    list(TRANSFORM found REPLACE "^90$" "90a")
  endif()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

set(QK_WITH_CUDA OFF)
set(qk_wants_cuda ${QK_CUDA})
if(QK_CUDA STREQUAL "AUTO" AND (CMAKE_CROSSCOMPILING OR QK_SANITIZE))
  set(qk_wants_cuda OFF)
endif()
if(NOT qk_wants_cuda)
  find_program(QK_NVCC nvcc PATHS /usr/local/cuda/bin)
  if(QK_NVCC)
    message(STATUS "nvcc is here: -DQK_CUDA=ON, or the preset cuda, builds the CUDA backend")
  endif()
else()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(QK_WITH_CUDA ON)
  elseif(NOT QK_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "QK_CUDA=${QK_CUDA}, but no nvcc was found")
  endif()
endif()
if(QK_WITH_CUDA)
  set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # who links libqk.a links cudart_static, once
  if(CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${QK_CUDA_ARCHITECTURES})
  if(QK_CUDA_ARCHITECTURES STREQUAL "native")
    qk_native_architectures(CMAKE_CUDA_ARCHITECTURES)
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80 90a-real)
    endif()
  endif()
  if(QK_CUDA_ARCHITECTURES STREQUAL "all")
    set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 87-real 89-real 90a-real 100-real 103-real
        110-real 120-real 121-real 120-virtual)
  endif()
  list(JOIN CMAKE_CUDA_ARCHITECTURES "," QK_CUDA_CODE)
  message(STATUS "GPU code for ${QK_CUDA_CODE}; -DQK_CUDA_ARCHITECTURES=all builds it for every GPU")
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25.1 does not know nvcc's flag
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  find_package(CUDAToolkit REQUIRED)
endif()
