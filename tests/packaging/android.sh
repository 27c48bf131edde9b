#!/bin/sh
# cmake/android.cmake as far as it can be tried without an NDK: the toolchain file of a folder that
# looks like one is included with the ABI, the level and the library that were asked for; without
# it the sentence says what is missing.
#
#     android.sh SOURCE CMAKE WORK
set -eu
source=$1 cmake=$2 work=$3
rm -rf "$work"
mkdir -p "$work/ndk/build/cmake"
echo 'message(STATUS "NDK: ${ANDROID_ABI} ${ANDROID_PLATFORM} ${ANDROID_STL}")' \
    > "$work/ndk/build/cmake/android.toolchain.cmake"
configure() { # FOLDER OPTIONS...
    folder=$1
    shift
    "$cmake" -S "$source" -B "$work/$folder" -G Ninja --toolchain "$source/cmake/android.cmake" \
        -DQK_BUILD_IO=OFF -DQK_BUILD_CLI=OFF -DQK_BUILD_TESTS=OFF "$@" > "$work/log" 2>&1
}
says() { # TEXT
    tr -s ' \n' ' ' < "$work/log" | grep -qF "$1" && return
    cat "$work/log"
    echo "not said: $1"
    exit 1
}
unset ANDROID_NDK_ROOT
configure chosen -DANDROID_NDK="$work/ndk" -DANDROID_ABI=x86_64 -DANDROID_PLATFORM=android-30
says "NDK: x86_64 android-30 c++_static"
ANDROID_NDK_ROOT=$work/ndk
export ANDROID_NDK_ROOT
configure usual
says "NDK: arm64-v8a android-24 c++_static"
ANDROID_NDK_ROOT=$work/none
if configure none; then
    echo "configured without an NDK"
    exit 1
fi
says "set ANDROID_NDK_ROOT"
