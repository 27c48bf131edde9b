#!/bin/sh
# Links the archive as users do, by hand: a build system may add libraries of its own.
#     link.sh ARCHIVE INCLUDE_FOLDER CC CXX WORKING_FOLDER [RUNNER...]
# LIBRARIES from the environment: what else the archive needs (the CUDA runtime).
set -eu
archive=$1
include=$2
cc=$3
cxx=$4
folder=$5
shift 5
here=$(dirname "$0")
libraries="${LIBRARIES:-} -lpthread -lm"
mkdir -p "$folder"

# shellcheck disable=SC2086 # compilers may carry flags
$cc -std=c99 -O1 -I"$include" "$here/consumer.c" "$archive" $libraries \
    -o "$folder/consumer"
"$@" "$folder/consumer"
needed=$("${READELF:-readelf}" -dW "$folder/consumer" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
for library in $needed; do
    case $library in
    libc.so.* | libm.so.* | libpthread.so.* | ld-linux*) ;; # glibc, all of it
    *) echo "the C program needs $library" && exit 1 ;;
    esac
done
echo "C program: runs, needs" $needed
if [ $# -eq 0 ]; then
    strangers=$(ldd "$folder/consumer" |
        grep -Ev 'linux-vdso|/ld-linux|libc\.so|libm\.so|libpthread\.so' || true)
    [ -z "$strangers" ] || { echo "ldd shows more: $strangers" && exit 1; }
fi

$cc -std=c99 -g -O0 -DCONSUMER_OF_CPP -I"$include" -c "$here/consumer.c" -o "$folder/consumer.o"
$cxx -std=c++20 -g -O0 "$here/comdat.cpp" "$folder/consumer.o" "$archive" $libraries \
    -o "$folder/comdat"
"$@" "$folder/comdat"
$cxx -std=c++20 -g -O0 -Wl,--whole-archive "$archive" -Wl,--no-whole-archive \
    "$folder/consumer.o" "$here/comdat.cpp" $libraries -o "$folder/comdat_first"
"$@" "$folder/comdat_first"
echo "C++ program: runs, whichever comes first"
