# GoogleTest as GTest::gtest_main: the installed package, or where that is for another machine
# (cross builds), the sources that Debian's googletest package installs.
set(QK_GTEST_SOURCE /usr/src/googletest CACHE PATH "GoogleTest's sources, for cross builds")
if(CMAKE_CROSSCOMPILING)
  set(INSTALL_GTEST OFF)
  set(BUILD_GMOCK OFF)
  add_subdirectory(${QK_GTEST_SOURCE} ${PROJECT_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
  target_compile_options(gtest PRIVATE -w -O0)  # its warnings and its speed are not ours to mend
  if(NOT TARGET GTest::gtest_main)
    add_library(GTest::gtest_main ALIAS gtest_main)
  endif()
else()
  qk_find_package(GTest QK_BUILD_TESTS libgtest-dev gtest-devel)
endif()
