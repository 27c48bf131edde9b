# qk_find_package(NAME OPTION DEBIAN FEDORA HOMEBREW): find_package that names the packages to install
# and the option of this build that does without.
function(qk_need_package name option debian fedora homebrew)
  message(FATAL_ERROR "${name} is missing. Install ${debian} (Debian, Ubuntu), ${fedora} (Fedora) or "
                      "${homebrew} (Homebrew), or configure with -D${option}=OFF.")
endfunction()

macro(qk_find_package name)
  find_package(${name} QUIET)
  if(NOT ${name}_FOUND)
    qk_need_package(${name} ${ARGN})
  endif()
endmacro()
