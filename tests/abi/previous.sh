#!/bin/sh
# Programs compiled against each released header run with today's shared libraries.
#     previous.sh LIBRARY_FOLDER CC WORKING_FOLDER
set -eu
libraries=$1
cc=$2
folder=$3
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder"
ran=0
for release in "$here"/previous/*/; do
    for program in "$release"*.c; do
        name=$(basename "$program" .c)
        # shellcheck disable=SC2086 # compilers may carry flags
        $cc -std=c99 -O1 "-I$release" "$program" -o "$folder/$name" \
            "-L$libraries" "-Wl,-rpath,$libraries" -lqk_io -lqk -lm
        "$folder/$name" > "$folder/$name.log" ||
            { cat "$folder/$name.log" && echo "FAIL: $name of $release" && exit 1; }
        ran=$((ran + 1))
    done
done
echo "$ran programs of released headers run with today's libraries"
[ $ran -gt 0 ]
