#!/bin/sh
# deb.sh SOURCE_DIR BUILD_DIR CC: makes the Debian packages of a build, unpacks them into an empty
# folder, and uses what is there: the command, and a C program linked to the shared libraries.
set -eu
source=$1 build=$2 cc=$3
for tool in cpack dpkg-deb dpkg-shlibdeps pkg-config; do
    command -v $tool > /dev/null || { echo "skipped: $tool is missing"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
(cd "$build" && cpack -G DEB -B "$work") > "$work/cpack.log" 2>&1 ||
    { cat "$work/cpack.log"; exit 1; }

fail() { echo "FAIL: $*"; exit 1; }
field() { dpkg-deb -f "$1" "$2"; }
runtime=$(ls "$work"/libqk[0-9]*.deb)
development=$(ls "$work"/libqk-dev_*.deb)
tools=$(ls "$work"/qk-tools_*.deb)
for package in "$runtime" "$development" "$tools"; do
    name=$(field "$package" Package)
    case $(field "$package" Depends) in
        *libqk*libqk*) fail "$name depends on libqk twice" ;;
    esac
    mkdir -p "$work/root"
    dpkg-deb -x "$package" "$work/root"
    test -s "$work/root/usr/share/doc/$name/copyright" || fail "$name has no copyright file"
    echo "$name: $(field "$package" Installed-Size) KiB, needs $(field "$package" Depends)"
done
name=$(field "$runtime" Package)
field "$development" Depends | grep -q "$name (= $(field "$runtime" Version))" ||
    fail "libqk-dev does not ask for its own $name"
if grep -rlF "$build" "$work/root"; then fail "the files above name the build directory"; fi

# The SONAME's number is the package's: programs of another ABI keep their own package.
library=$(find "$work/root" -name 'libqk.so.*' -type f)
soname=$(readelf -d "$library" | sed -n 's/.*SONAME.*\[libqk\.so\.\(.*\)\]/\1/p')
test "libqk$soname" = "$name" || fail "$name holds libqk.so.$soname"

"$work/root/usr/bin/qk" --version
"$work/root/usr/bin/qk" inspect "$source/tests/golden/data/awq_gemm_g128" > "$work/inspect"
grep -qi awq "$work/inspect" || fail "qk inspect does not know an AutoAWQ checkpoint"

libdir=$(dirname "$library")
PKG_CONFIG_PATH=$libdir/pkgconfig PKG_CONFIG_SYSROOT_DIR=
export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR
# shellcheck disable=SC2046 # flags are words
"$cc" -std=c99 "$source/tests/consumer/project/multiply.c" -o "$work/multiply" \
    $(pkg-config --cflags --libs qk-shared)
LD_LIBRARY_PATH=$libdir "$work/multiply"
echo "ok"
