#!/bin/sh
# tools/check_symbols refuses each kind of planted mistake and accepts a clean archive.
#     symbols_selftest.sh CHECK CXX WORKING_FOLDER
set -eu
check=$1
cxx=$2
folder=$3
failures=0
rm -rf "$folder"
mkdir -p "$folder"
cd "$folder"
echo qk_f > list

try() { # NAME WANTED_TEXT SOURCE: text "" means the archive must pass
    printf '%s\n' "$3" > "$1.cpp"
    # shellcheck disable=SC2086 # the compiler may carry flags
    $cxx -std=c++20 -O0 -fno-exceptions ${tables--fasynchronous-unwind-tables} -c "$1.cpp" -o "$1.o"
    rm -f "$1.a"
    "${AR:-ar}" cr "$1.a" "$1.o"
    status=0
    said=$("$check" "$1.a" list 2>&1) || status=$?
    if [ -z "$2" ]; then
        [ $status -eq 0 ] && return 0
    else
        case $status$said in 1*"$2"*) return 0 ;; esac
    fi
    echo "$1: exit $status, said: $said"
    failures=$((failures + 1))
}

f='extern "C" int qk_f() { return 1; }'
try clean '' "$f"
try libc_calls '' '#include <string.h>
extern "C" int qk_f(char *a) { memset(a, 0, 9000); return 0; }'
tables=-fno-asynchronous-unwind-tables try blind 'unwind tables' "$f"
tables=-fasynchronous-unwind-tables
try extra 'not listed' "$f int stray() { return 2; }"
try missing 'but missing' 'extern "C" int qk_g() { return 1; }'
try runtime 'libc, libm and pthreads' 'extern "C" int *qk_f() { return new int(3); }'
try prints 'libc, libm and pthreads' '#include <stdio.h>
extern "C" int qk_f() { return puts("x"); }'
try aborts 'libc, libm and pthreads' '#include <stdlib.h>
extern "C" int qk_f() { abort(); }'
try before_main 'code before main' "$f extern \"C\" int getauxval(int);
static int start = getauxval(3); extern \"C\" int *qk_h() { return &start; }"
try thread_local 'thread-local' 'static __thread int t; extern "C" int qk_f() { return ++t; }'
try weak 'weak' 'template <class T> __attribute__((noinline)) T twice(T x) { return x + x; }
extern "C" int qk_f() { return twice(2); }'
try comdat 'COMDAT' 'inline int counter = 0; extern "C" int qk_f() { return ++counter; }'
try state 'writable data' 'static int calls = 1; extern "C" int qk_f() { return ++calls; }'
try zero_state 'writable data' 'static int calls; extern "C" int qk_f() { return ++calls; }'
try tables '' 'extern "C" const void *qk_f(int i);
static const void *(*const table[2])(int) = {qk_f, qk_f};
extern "C" const void *qk_f(int i) { return table + i; }'

# Windows' and macOS' objects, by a compiler and tools that know every format.
have() { for tool; do command -v "$tool" >found || return 1; done; }
if have clang++ llvm-nm llvm-objdump llvm-ar; then
    for target in x86_64-w64-windows-gnu arm64-apple-macos11; do
        cxx="clang++ --target=$target -nostdinc++"
        NM=llvm-nm OBJDUMP=llvm-objdump AR=llvm-ar
        export NM OBJDUMP AR
        f='extern "C" void *memset(void *, int, __SIZE_TYPE__);
namespace qk { int inner() { return 2; } }
extern "C" int qk_f(char *a) { memset(a, 0, 9000); return 0; }'
        try clean '' "$f"
        try instance '' 'namespace qk {
template <class T> __attribute__((noinline)) T twice(T x) { return x + x; }
struct A { int b() const; }; int A::b() const { return 3; } }
extern "C" int qk_f() { return qk::twice(2); }'
        try extra 'not in the namespaces' "$f int stray() { return 2; }"
        try extra_c 'not listed' "$f extern \"C\" int qk_g() { return 2; }"
        try missing 'but missing' 'extern "C" int qk_g() { return 1; }'
        try runtime "the system's threads" 'extern "C" int *qk_f() { return new int(3); }'
        try prints "the system's threads" 'extern "C" int puts(const char *);
extern "C" int qk_f() { return puts("x"); }'
        try before_main 'code before main' "$f extern \"C\" int getauxval(int);
static int start = getauxval(3); extern \"C\" int *qk_h() { return &start; }"
        try state 'writable data' 'static int calls = 1; extern "C" int qk_f() { return ++calls; }'
        try zero_state 'writable data' 'static int calls; extern "C" int qk_f() { return ++calls; }'
    done
else
    echo "PE and Mach-O left out: they need clang++ and LLVM's nm, objdump and ar"
fi
echo "$failures failed"
[ "$failures" -eq 0 ]
