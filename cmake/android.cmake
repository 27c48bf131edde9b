# Android by the NDK (r25 or newer), at ANDROID_NDK_ROOT or -DANDROID_NDK: its own toolchain file, of
# 64-bit ARM at API level 24 unless ANDROID_ABI and ANDROID_PLATFORM say otherwise. Of the C++ library
# qk takes headers alone.
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ANDROID_NDK ANDROID_ABI ANDROID_PLATFORM)
if(NOT ANDROID_NDK)
  set(ANDROID_NDK "$ENV{ANDROID_NDK_ROOT}")
endif()
set(qk_ndk_file ${ANDROID_NDK}/build/cmake/android.toolchain.cmake)
if(NOT EXISTS ${qk_ndk_file})
  message(FATAL_ERROR "no NDK: ${qk_ndk_file} is not there; set ANDROID_NDK_ROOT to the folder "
                      "that has it")
endif()
if(NOT ANDROID_ABI)
  set(ANDROID_ABI arm64-v8a)
endif()
if(NOT ANDROID_PLATFORM)
  set(ANDROID_PLATFORM android-24)
endif()
set(ANDROID_STL c++_static)
include(${qk_ndk_file})
