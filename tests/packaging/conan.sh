#!/bin/sh
# conan.sh SOURCE_DIR: creates the Conan package without its one dependency, in a Conan home of its
# own, and runs the recipe's test package.
set -eu
command -v conan > /dev/null || { echo "skipped: conan is missing"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
CONAN_HOME=$work/home
export CONAN_HOME
mkdir "$work/qk"
for part in CMakeLists.txt LICENSE cmake include src kernels packaging; do # it builds beside itself
    cp -r "$1/$part" "$work/qk/"
done
conan profile detect > /dev/null 2>&1
conan create "$work/qk/packaging/conan" -o "&:with_io=False" --no-remote > "$work/log" 2>&1 ||
    { tail -n 30 "$work/log"; exit 1; }
grep 'backends: cpu.*: ok' "$work/log"
