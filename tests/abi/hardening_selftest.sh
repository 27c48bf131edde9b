#!/bin/sh
# hardening.sh names each thing that a program can lack.
#     hardening_selftest.sh CC FOLDER
set -eu
cc=$1
folder=$2
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder"
cat > "$folder/main.c" <<'C'
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
    char copy[16];
    strcpy(copy, argv[argc - 1]);
    return printf("%s\n", copy) < 0;
}
C
good="-O2 -fPIE -pie -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2
    -Wl,-z,relro,-z,now,-z,noexecstack"

# shellcheck disable=SC2086 # lists of words
"$cc" $good "$folder/main.c" -o "$folder/good"
"$here/hardening.sh" "$folder/good" >/dev/null
expect() { # words of the sentence, flags that take it away
    words=$1
    shift
    # shellcheck disable=SC2086
    "$cc" $good "$@" "$folder/main.c" -o "$folder/bad" 2>/dev/null
    if said=$("$here/hardening.sh" "$folder/bad") || ! echo "$said" | grep -q "$words"; then
        echo "with $*: expected \"$words\", it said: $said"
        exit 1
    fi
}
expect "no PIE" -fno-pie -no-pie
expect "no GNU_RELRO" -Wl,-z,norelro
expect "no now" -Wl,-z,lazy
expect "the stack is executable" -Wl,-z,execstack
expect "no frame is guarded" -fno-stack-protector
expect "no copy is checked" -U_FORTIFY_SOURCE
echo "each lack is named"
