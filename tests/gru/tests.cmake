# The quantized GRU. Some networks and golden runs are outside the repository; their tests skip
# without. What the rest proves on the project's own network runs everywhere.
qk_test(test_gru gru/accuracy_test.cpp gru/api_test.cpp gru/arguments_test.cpp
        gru/calibrate_test.cpp gru/clipped_test.cpp gru/denoiser_test.cpp gru/describe_test.cpp
        gru/float_test.cpp
        gru/network.cpp gru/options_test.cpp gru/owned_model.cpp gru/random_test.cpp
        gru/ranges_test.cpp
        gru/rules_of_life_test.cpp gru/rules_test.cpp gru/scales_by_hand_test.cpp gru/scales_test.cpp
        gru/small_image_test.cpp ${PROJECT_SOURCE_DIR}/src/gru/small_image.cpp
        reference/gru/gru_reference.cpp
        LIBRARIES qk_inside)
target_compile_definitions(
  test_gru PRIVATE QK_SHARED_DATA_DEFAULT="${PROJECT_SOURCE_DIR}/../shared/data"
                   QK_EXAMPLES="${PROJECT_SOURCE_DIR}/examples"
                   QK_GRU_GOLDEN="${CMAKE_CURRENT_LIST_DIR}/golden")
# The golden runs are described in JSON. The two files of tools/amalgamate run them as well, in a
# library of their own, as they have the names of what they are made of.
find_library(QK_JANSSON jansson)
find_package(Python3 COMPONENTS Interpreter QUIET)
if(QK_JANSSON AND Python3_Interpreter_FOUND AND NOT CMAKE_CROSSCOMPILING)
  set(two_files ${CMAKE_CURRENT_BINARY_DIR}/two_files)
  file(GLOB two_files_from ${PROJECT_SOURCE_DIR}/src/gru/*.hpp ${PROJECT_SOURCE_DIR}/src/gru/*.cpp
       ${PROJECT_SOURCE_DIR}/src/gru/embedded/* ${PROJECT_SOURCE_DIR}/src/base/*.hpp)
  add_custom_command(
    OUTPUT ${two_files}/qk_gru.cpp ${two_files}/qk_gru.h
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/amalgamate ${two_files}
    DEPENDS ${PROJECT_SOURCE_DIR}/tools/amalgamate ${PROJECT_SOURCE_DIR}/include/qk.h
            ${two_files_from})
  add_library(gru_two_files SHARED ${two_files}/qk_gru.cpp)
  target_include_directories(gru_two_files PUBLIC ${two_files})
  target_link_options(gru_two_files PRIVATE LINKER:-Bsymbolic)
  target_sources(test_gru PRIVATE gru/golden.cpp gru/golden_test.cpp ${two_files}/qk_gru.h)
  target_link_libraries(test_gru PRIVATE ${QK_JANSSON} gru_two_files)
endif()

# Every vector kernel against the generic one.
add_library(gru_kernel_case OBJECT gru/kernel_case.cpp gru/owned_model.cpp
                                   reference/gru/gru_reference.cpp)
target_include_directories(gru_kernel_case PRIVATE ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(gru_kernel_case PUBLIC qk_inside qk_harness GTest::gtest)
qk_test(test_gru_kernels gru/kernels_test.cpp LIBRARIES gru_kernel_case)
if(NOT QK_SANITIZE)
  qk_test(test_gru_kernels_release gru/kernels_release_test.cpp LIBRARIES gru_kernel_case
          LABEL release)
endif()

# Cortex-M and RISC-V under qemu against the digest of qk_gru_run, and the denoiser from checkpoint to
# samples; examples/mcu/run and run_denoiser say what they do. Their compilers are the same in every
# preset, so one has them.
find_program(QK_ARM_NONE_EABI arm-none-eabi-g++)
find_program(QK_QEMU_ARM qemu-system-arm)
if(CMAKE_CROSSCOMPILING OR QK_SANITIZE OR NOT CMAKE_BUILD_TYPE STREQUAL Release OR
   NOT CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  return()
endif()
if(QK_ARM_NONE_EABI AND QK_QEMU_ARM)
  add_executable(mcu_make_model ${PROJECT_SOURCE_DIR}/examples/mcu/make_model.c)
  target_link_libraries(mcu_make_model PRIVATE qk)
  add_test(NAME gru.mcu COMMAND ${PROJECT_SOURCE_DIR}/examples/mcu/run
                                $<TARGET_FILE:mcu_make_model> ${CMAKE_CURRENT_BINARY_DIR}/mcu)
  if(TARGET qk_command)
    foreach(preset w8h16 w8a8)
      add_test(NAME gru.mcu_denoiser_${preset}
               COMMAND ${PROJECT_SOURCE_DIR}/examples/mcu/run_denoiser $<TARGET_FILE:qk_command>
                       ${CMAKE_CURRENT_BINARY_DIR}/mcu_${preset} ${preset})
    endforeach()
  endif()
else()
  message(STATUS "tests/gru: Cortex-M not run: it needs arm-none-eabi-g++ and qemu-system-arm")
endif()
