#!/bin/sh
# A kernel of an instruction set takes at most a TIMES-th of the generic kernel's instructions, for
# the same bits: counted by qemu, which tells of every one.
#
#     instructions.sh EMULATOR PROGRAM TIMES ARGUMENT...      ARGUMENT: as instructions.c has them
set -eu
emulator=$1
program=$2
times=$3
shift 3
failed=0
output=$(mktemp -d)
trap 'rm -rf "$output"' EXIT
count() { # SET WHAT CALLS: instructions of the program
    # shellcheck disable=SC2086 # the emulator carries options
    $emulator -singlestep -d nochain,exec -D /dev/fd/3 "$program" "$@" 3>&1 >"$output/$1" |
        grep -c '^Trace'
}
a_call() { # SET WHAT
    echo $(($(count "$1" "$2" 2) - $(count "$1" "$2" 1)))
}
for what; do
    generic=$(a_call generic "$what")
    all=$(a_call all "$what")
    echo "$(basename "$what"): $generic instructions generic, $all with vectors"
    cmp -s "$output/generic" "$output/all" || { echo "    other bits"; failed=1; }
    [ $((all * times)) -le "$generic" ] || { echo "    less than $times times fewer"; failed=1; }
done
exit "$failed"
