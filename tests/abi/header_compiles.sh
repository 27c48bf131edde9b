#!/bin/sh
# Every public header compiles alone, as each language and standard, with each compiler there is.
#     header_compiles.sh INCLUDE_FOLDER WORKING_FOLDER [COMPILER...]
# A compiler NAME is a C compiler whose C++ twin is NAME with gcc -> g++, clang -> clang++.
set -eu
include=$1
folder=$2
shift 2
[ $# -gt 0 ] || set -- gcc clang clang-19
mkdir -p "$folder"
tried=0
failed=0

try() { # COMPILER STANDARD LANGUAGE HEADER
    tried=$((tried + 1))
    cat > "$folder/header.$3" <<END
#include "$4"
#include "$4"
int main(void) {
    const qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    const qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    return options.abi_version == QK_ABI_VERSION && desc.rank == 1 ? QK_OK : QK_ERROR_ABI;
}
END
    "$1" "-std=$2" -Wall -Wextra -Wpedantic -Wconversion -Werror -I"$include" \
        -c "$folder/header.$3" -o "$folder/header.o" && return 0
    echo "$4 does not compile: $1 -std=$2"
    failed=$((failed + 1))
}

for compiler in "$@"; do
    if ! command -v "$compiler" > /dev/null; then
        echo "skipped: no $compiler on this machine"
        continue
    fi
    cxx=$(echo "$compiler" | sed 's/gcc/g++/; s/clang/clang++/')
    for header in "$include"/*.h; do
        name=$(basename "$header")
        for standard in c99 c11 c17; do try "$compiler" $standard c "$name"; done
        for standard in c++11 c++17 c++20; do try "$cxx" $standard cpp "$name"; done
    done
done
echo "$tried compiled, $failed failed"
[ "$tried" -gt 0 ] && [ "$failed" -eq 0 ]
