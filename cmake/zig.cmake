# Cross builds by zig's clang, which has the C libraries of other systems' with it (ziglang of the
# Python registry): -DQK_ZIG_TARGET=aarch64-macos, x86_64-macos, aarch64-linux-musl, ...
# -DQK_ZIG names the program, which takes `cc` and `c++` as its first word.
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES QK_ZIG_TARGET QK_ZIG)
if(NOT QK_ZIG)
  find_program(QK_ZIG NAMES zig python-zig REQUIRED)
endif()
if(NOT QK_ZIG_TARGET MATCHES "^(aarch64|x86_64|arm|riscv64)-(macos|linux)(-.*)?$")
  message(FATAL_ERROR "QK_ZIG_TARGET is '${QK_ZIG_TARGET}': want aarch64-macos, x86_64-macos, "
                      "aarch64-linux-musl or their like")
endif()
set(CMAKE_SYSTEM_PROCESSOR ${CMAKE_MATCH_1})
if(CMAKE_MATCH_2 STREQUAL "macos")
  set(CMAKE_SYSTEM_NAME Darwin)
else()
  set(CMAKE_SYSTEM_NAME Linux)
  find_program(QK_QEMU NAMES qemu-${CMAKE_SYSTEM_PROCESSOR})  # for static programs
  if(QK_QEMU AND NOT CMAKE_SYSTEM_PROCESSOR STREQUAL CMAKE_HOST_SYSTEM_PROCESSOR)
    set(qk_cpu max)
    if(CMAKE_SYSTEM_PROCESSOR STREQUAL "riscv64")  # before 8.2 qemu has no such name there
      set(qk_cpu rv64,v=true,vext_spec=v1.0)
    endif()
    set(CMAKE_CROSSCOMPILING_EMULATOR ${QK_QEMU} -cpu ${qk_cpu})
  endif()
endif()
# CMake wants programs of one word each, and zig has names of its own for what -march says.
set(qk_zig_tools ${CMAKE_BINARY_DIR}/zig)
foreach(tool cc c++ ar ranlib)
  set(script "#!/bin/sh\nexec '${QK_ZIG}' ${tool} \"$@\"\n")
  if(tool MATCHES "^c")
    string(CONCAT script "#!/bin/sh\n"
           "for word do\n"
           "  shift\n"
           "  case $word in\n"
           "    -march=armv8.2-a+*) word=-mcpu=generic+v8_2a+\${word#*+} ;;\n"
           "    -march=rv64gcv) word=-mcpu=baseline_rv64+v ;;\n"
           "  esac\n"
           "  set -- \"$@\" \"$word\"\n"
           "done\n"
           "exec '${QK_ZIG}' ${tool} -target ${QK_ZIG_TARGET} \"$@\"\n")
  endif()
  if(NOT EXISTS ${qk_zig_tools}/${tool})
    file(WRITE ${qk_zig_tools}/${tool} "${script}")
    file(CHMOD ${qk_zig_tools}/${tool} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  endif()
endforeach()
set(CMAKE_C_COMPILER ${qk_zig_tools}/cc)
set(CMAKE_CXX_COMPILER ${qk_zig_tools}/c++)
set(CMAKE_AR ${qk_zig_tools}/ar CACHE FILEPATH "zig's")
set(CMAKE_RANLIB ${qk_zig_tools}/ranlib CACHE FILEPATH "zig's")
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY NEVER)
