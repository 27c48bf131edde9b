#!/bin/sh
# run.sh SOURCE_DIR BUILD_DIR CC: installs the build into a fresh prefix with a blank in its name,
# moves it, and builds a C99 project against it with find_package and with pkg-config.
set -eu
source=$1 build=$2 cc=$3
work="$(mktemp -d)/a b"
mkdir "$work"
trap 'rm -rf "${work%/*}"' EXIT INT TERM

cmake --install "$build" --prefix "$work/first" > "$work/install.log"
prefix=$work/prefix
mv "$work/first" "$prefix"
libdir=$(dirname "$(find "$prefix" -name libqk.a)")
io=OFF
if [ -e "$libdir/libqk_io.a" ]; then io=ON; fi
shared=OFF
if [ -e "$libdir/libqk.so" ]; then shared=ON; fi
if grep -rl "$build" "$libdir/cmake" "$libdir/pkgconfig"; then
    echo "FAIL: the files above name the build directory"
    exit 1
fi

# needs PROGRAM LIBRARY...: PROGRAM's shared libraries are among these and no others.
needs() {
    program=$1
    shift
    ldd "$program" | sed 's/^[[:space:]]*//; s/ .*//; s/.*\///; s/\.so.*//' | sort -u > "$work/ldd"
    for found in $(cat "$work/ldd"); do
        case " linux-vdso ld-linux-x86-64 ld-linux-aarch64 $* " in
            *" $found "*) ;;
            *) echo "FAIL: $program needs $found, only these are accepted: $*"; exit 1 ;;
        esac
    done
    echo "$(basename "$program") needs $(tr '\n' ' ' < "$work/ldd")and nothing else"
}

echo "== find_package"
cmake -S "$source/tests/consumer/project" -B "$work/cmake" -DCMAKE_C_COMPILER="$cc" \
    -DCMAKE_PREFIX_PATH="$prefix" -DCONSUMER_IO=$io \
    -DCONSUMER_SHARED=$shared > "$work/configure.log"
cmake --build "$work/cmake" > "$work/build.log" || { cat "$work/build.log"; exit 1; }
if grep -q CMAKE_CXX_COMPILER: "$work/cmake/CMakeCache.txt"; then
    echo "FAIL: a C project was made to look for a C++ compiler"
    exit 1
fi
"$work/cmake/multiply"
needs "$work/cmake/multiply" libc libm
if [ $io = ON ]; then
    "$work/cmake/list"
    needs "$work/cmake/list" libc libm libjansson
fi

echo "== add_subdirectory"
# The same target names; built elsewhere often enough, so this only shows that they are found.
cmake -S "$source/tests/consumer/project" -B "$work/sub" -DCMAKE_C_COMPILER="$cc" \
    -DCONSUMER_SUBDIRECTORY="$source" -DCONSUMER_IO=$io > "$work/sub.log" 2>&1 ||
    { cat "$work/sub.log"; exit 1; }
if [ -e "$work/sub/qk/tests" ]; then
    echo "FAIL: a project that contains qk was made to build its tests"
    exit 1
fi

echo "== pkg-config"
PKG_CONFIG_PATH=$libdir/pkgconfig
export PKG_CONFIG_PATH
# by_hand PROGRAM PACKAGE OPTION...: pkg-config quotes the blank in the prefix for a shell, so eval.
by_hand() {
    program=$1 package=$2
    shift 2
    flags=$(pkg-config "$@" --cflags --libs "$package")
    eval "\"$cc\" -std=c99 -Wall -Wextra -Wpedantic -Werror -o \"$work/$program\" \
        \"$source/tests/consumer/project/$program.c\" $flags"
    "$work/$program"
}
# archives OPTION...: both programs, which have qk inside
archives() {
    by_hand multiply qk "$@"
    needs "$work/multiply" libc libm
    [ $io = ON ] || return 0
    by_hand list qk_io "$@"
    needs "$work/list" libc libm libjansson
}
archives
archives --static

echo "== pkg-config, where only the archives are installed"
# What the build above, which has no shared library, writes for them.
alone=$work/alone/${libdir#"$prefix/"}
mkdir -p "$alone/pkgconfig"
cp -R "$prefix/include" "$work/alone/"
cp "$libdir"/*.a "$alone/"
cp "$work"/sub/qk/*.pc "$alone/pkgconfig/"
if ls "$alone"/pkgconfig/*-shared.pc > /dev/null 2>&1; then
    echo "FAIL: a build without shared libraries describes them to pkg-config"
    exit 1
fi
PKG_CONFIG_PATH=$alone/pkgconfig
archives
archives --static
PKG_CONFIG_PATH=$libdir/pkgconfig

[ $shared = ON ] || { echo "skipped: this build has no shared library"; exit 0; }
echo "== shared"
LD_LIBRARY_PATH=$libdir # the prefix moved; a system's own folder needs no path
export LD_LIBRARY_PATH
# dynamic PROGRAM PACKAGE: without --static, by the package of the shared library
dynamic() {
    flags=$(pkg-config --cflags --libs "$2")
    eval "\"$cc\" -std=c99 -o \"$work/$1_shared\" \"$source/tests/consumer/project/$1.c\" $flags"
    "$work/$1_shared"
}
dynamic multiply qk-shared
needs "$work/multiply_shared" libc libm libqk
"$work/cmake/multiply_shared"
needs "$work/cmake/multiply_shared" libc libm libqk
if [ $io = ON ]; then
    dynamic list qk_io-shared
    needs "$work/list_shared" libc libm libqk libqk_io libjansson
    "$work/cmake/list_shared"
fi
