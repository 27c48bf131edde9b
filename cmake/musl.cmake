# libqk.a for musl with Debian's musl-tools, whose musl-gcc has no C++ part: the same compiler with
# musl's C headers, behind libstdc++'s. Programs are linked by musl-gcc, statically.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_C_COMPILER musl-gcc)
set(CMAKE_CXX_COMPILER g++)
set(QK_MUSL ON)
execute_process(COMMAND g++ -dumpversion OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE)
execute_process(COMMAND g++ -print-file-name=include OUTPUT_VARIABLE builtin
                OUTPUT_STRIP_TRAILING_WHITESPACE)
set(CMAKE_CXX_FLAGS_INIT "-nostdinc -isystem /usr/include/c++/${version}\
 -isystem /usr/include/x86_64-linux-gnu/c++/${version} -isystem /usr/include/x86_64-linux-musl\
 -isystem ${builtin} -include ${CMAKE_CURRENT_LIST_DIR}/musl/libstdcxx.hpp")
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)  # g++ links programs with glibc
