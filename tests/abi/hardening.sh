#!/bin/sh
# How programs and shared libraries are linked (SECURITY.md): nothing is writable that need not be,
# nothing is executable that can be written, addresses are random, frames are guarded.
#
#     hardening.sh FILE...      READELF may come from the environment
set -eu
readelf=${READELF:-readelf}
failed=0

for file in "$@"; do
    wrong() {
        echo "$file: $1"
        failed=1
    }
    segments=$("$readelf" -lW "$file")
    dynamic=$("$readelf" -dW "$file")
    symbols=$("$readelf" --dyn-syms -W "$file")
    "$readelf" -hW "$file" | grep -q 'Type:  *DYN' || wrong "lies at a fixed address (no PIE)"
    echo "$segments" | grep -q GNU_RELRO || wrong "no GNU_RELRO: resolved addresses stay writable"
    echo "$dynamic" | grep -Eq 'BIND_NOW|FLAGS_1.*NOW' ||
        wrong "addresses are resolved late (no now)"
    echo "$dynamic" | grep -q TEXTREL && wrong "code is written when it is loaded (TEXTREL)"
    echo "$segments" | grep GNU_STACK | grep -q 'RWE' && wrong "the stack is executable"
    echo "$segments" | grep -q GNU_STACK || wrong "nothing says that the stack is not code"
    echo "$segments" | grep -E '^ *LOAD' | grep -q 'RWE' && wrong "memory is writable code"
    echo "$symbols" | grep -q '__stack_chk_fail' || wrong "no frame is guarded (stack protector)"
    # musl has no such functions.
    if echo "$dynamic" | grep -q 'NEEDED.*libc\.so\.6'; then
        echo "$symbols" | grep -Eq '__[a-z]+_chk(@|$)' || wrong "no copy is checked (FORTIFY)"
    fi
done
[ "$failed" -ne 0 ] || echo "$# files are hardened"
exit "$failed"
