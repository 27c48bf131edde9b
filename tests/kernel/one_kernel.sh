#!/bin/sh
# QK_KERNEL runs the kernels of that name alone and counts their cases; a name that no kernel has,
# or one that takes no case, fails.
#     one_kernel.sh PROGRAM      test_kernels
set -eu
program=$1
export QK_SWEEP_EVERY=16

run() { # QK_KERNEL
    QK_KERNEL=$1 "$program" --gtest_filter='*Repack*s8' 2>&1
}
fail() {
    echo "FAIL: $1"
    exit 1
}

said=$(run generic) || fail "generic did not run: $said"
echo "$said" | grep -Eq '^QK_KERNEL=generic: [1-9][0-9]* cases ran$' || fail "no count: $said"
echo "$said" | grep -q 'cpu/generic: [1-9]' || fail "generic is not in the tally: $said"
if echo "$said" | grep -Eq 'cpu/(avx|neon)[^:]*: [1-9]'; then fail "others ran too: $said"; fi
said=$(run cpu/generic) || fail "the backend's name in front: $said"
said=$(run ener) || fail "a part of a name is enough: $said"
if said=$(run nothing); then fail "a name that no kernel has: $said"; fi
echo "$said" | grep -q 'no case ran' || fail "no reason: $said"
if said=$(run 'generic int8'); then fail "a kernel of another operation: $said"; fi
echo "one kernel at a time: ok"
