#!/bin/sh
# What a shared library shows and needs, and that a program runs with it.
#     shared.sh LIBRARY SYMBOLS SONAME "NEEDED..." INCLUDE_FOLDER CC WORKING_FOLDER [RUNNER...]
# READELF and NM from the environment. RUNNER: qemu for another processor's libraries.
set -eu
library=$1
symbols=$2
soname=$3
needed=$4
include=$5
cc=$6
folder=$7
shift 7
here=$(dirname "$0")
mkdir -p "$folder"

# Exactly the functions, all of the one symbol version that the SONAME's number names.
"${NM:-nm}" -D --defined-only "$library" | grep -v ' A ' | sed 's/.* //' | LC_ALL=C sort \
    > "$folder/found"
node=$(basename "$library" .so | sed "s/^lib//" | tr '[:lower:]' '[:upper:]')_${soname##*.}
sed "s/\$/@@$node/" "$symbols" | LC_ALL=C sort > "$folder/wanted"
diff "$folder/wanted" "$folder/found" ||
    { echo "FAIL: < is listed and missing, > is visible and not listed" && exit 1; }

dynamic=$("${READELF:-readelf}" -dW "$library")
field() { echo "$dynamic" | sed -n "s/.*($1).*\[\(.*\)\]/\1/p"; }
[ "$(field SONAME)" = "$soname" ] || { echo "FAIL: SONAME is $(field SONAME)" && exit 1; }
for name in $(field NEEDED); do
    case " $needed libc.so.6 ld-linux-x86-64.so.2 ld-linux-aarch64.so.1 " in
    *" $name "*) ;;
    *) echo "FAIL: $(basename "$library") needs $name, accepted: $needed" && exit 1 ;;
    esac
done
if echo "$dynamic" | grep -q TEXTREL; then echo "FAIL: text relocations" && exit 1; fi
echo "$soname: $(wc -l < "$symbols") functions, needs" $(field NEEDED)

case $soname in libqk.so.*) ;; *) exit 0 ;; esac
# shellcheck disable=SC2086 # compilers may carry flags
$cc -std=c99 -O1 -I"$include" "$here/consumer.c" "$library" "-Wl,-rpath,$(dirname "$library")" \
    -o "$folder/consumer"
"$@" "$folder/consumer"
echo "a program runs with it"
