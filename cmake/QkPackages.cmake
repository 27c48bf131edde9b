# qk_find_package(NAME OPTION DEBIAN FEDORA): find_package that names the packages to install and the
# option of this build that does without.
function(qk_need_package name option debian fedora)
  message(FATAL_ERROR "${name} is missing. Install ${debian} (Debian, Ubuntu) or ${fedora} (Fedora), "
                      "or configure with -D${option}=OFF.")
endfunction()

macro(qk_find_package name)
  find_package(${name} QUIET)
  if(NOT ${name}_FOUND)
    qk_need_package(${name} ${ARGN})
  endif()
endmacro()
