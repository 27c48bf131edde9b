# What `cmake --install` puts where, and how others find it: find_package(qk) and pkg-config.
# Everything is relocatable: both kinds of file locate the prefix from their own place.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
# Three parts, so that packages can carry what runs apart from what links: runtime (the shared
# libraries), tools (the command), development (all else).
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development)

set(qk_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/qk)
set(qk_pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# What a program that links libqk.a links too. qk.pc always names the archive, so this is part of its
# Libs, where pkg-config finds it without --static. The CUDA runtime is inside no archive of ours.
get_target_property(qk_link_libraries qk INTERFACE_LINK_LIBRARIES)
set(QK_USES_CUDA OFF)
set(QK_SYSTEM_LIBS "-lpthread -lm")
set(QK_SYSTEM_TARGETS "Threads::Threads;m")
if(WIN32)  # threads and mathematics are kernel32's and the C runtime's, which every program has
  set(QK_SYSTEM_LIBS "")
  set(QK_SYSTEM_TARGETS "")
endif()
if("CUDA::cudart_static" IN_LIST qk_link_libraries)
  set(QK_USES_CUDA ON)
  set(QK_SYSTEM_LIBS "-L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt -lpthread -lm")
endif()

# Beside a shared library, -lqk would find that one: the archive is then asked for by its file name.
set(QK_ARCHIVE_LIBS "-lqk")
set(QK_IO_ARCHIVE_LIBS "-lqk_io")
if(QK_BUILD_SHARED)
  set(QK_ARCHIVE_LIBS "-l:libqk.a")
  set(QK_IO_ARCHIVE_LIBS "-l:libqk_io.a")
  if(APPLE)  # whose linker has no such names
    set(QK_ARCHIVE_LIBS "\${libdir}/libqk.a")
    set(QK_IO_ARCHIVE_LIBS "\${libdir}/libqk_io.a")
  endif()
endif()
# jansson: the system's, which pkg-config finds, or the one that was built with qk.
set(QK_IO_REQUIRES "qk = ${PROJECT_VERSION}, jansson")
set(QK_JANSSON_FILE "")
if(QK_JANSSON_SOURCE AND TARGET qk_io)
  set(QK_IO_REQUIRES "qk = ${PROJECT_VERSION}")
  set(QK_JANSSON_FILE libjansson.a)
  string(APPEND QK_IO_ARCHIVE_LIBS " -ljansson")
  install(FILES $<TARGET_FILE:jansson> DESTINATION ${CMAKE_INSTALL_LIBDIR} RENAME ${QK_JANSSON_FILE})
endif()

install(FILES include/qk.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES $<TARGET_FILE:qk> DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

configure_package_config_file(cmake/qkConfig.cmake.in ${PROJECT_BINARY_DIR}/qkConfig.cmake
  INSTALL_DESTINATION ${qk_cmake_dir} PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_BINDIR
  NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# Until 1.0 a minor version may break its users.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/qkConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/qkConfig.cmake ${PROJECT_BINARY_DIR}/qkConfigVersion.cmake
  DESTINATION ${qk_cmake_dir})

file(RELATIVE_PATH QK_PC_TO_PREFIX /prefix/${qk_pkgconfig_dir} /prefix)
string(REGEX REPLACE "/$" "" QK_PC_TO_PREFIX ${QK_PC_TO_PREFIX})
configure_file(cmake/qk.pc.in ${PROJECT_BINARY_DIR}/qk.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/qk.pc DESTINATION ${qk_pkgconfig_dir})

if(TARGET qk_io)
  install(FILES include/qk_io.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(FILES $<TARGET_FILE:qk_io> DESTINATION ${CMAKE_INSTALL_LIBDIR})
  configure_file(cmake/qk_io.pc.in ${PROJECT_BINARY_DIR}/qk_io.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/qk_io.pc DESTINATION ${qk_pkgconfig_dir})
endif()
function(qk_install_shared target package)
  install(TARGETS ${target}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime
    NAMELINK_COMPONENT development
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})  # what a program that uses a DLL links
  configure_file(cmake/${package}.pc.in ${PROJECT_BINARY_DIR}/${package}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${package}.pc DESTINATION ${qk_pkgconfig_dir})
endfunction()
if(TARGET qk_shared)
  qk_install_shared(qk_shared qk-shared)
endif()
if(TARGET qk_io_shared)
  qk_install_shared(qk_io_shared qk_io-shared)
endif()
if(TARGET qk_command)
  install(TARGETS qk_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
endif()
if(SKBUILD)  # the wheel of ffi/python: libraries by the names they are loaded by
  foreach(library qk qk_io)
    install(FILES $<TARGET_FILE:${library}_shared> DESTINATION . COMPONENT python
            RENAME lib${library}.so.${QK_ABI_VERSION})
  endforeach()
  install(FILES tests/abi/layout.json DESTINATION . COMPONENT python)
  # No package manager installs jansson for a wheel: it is part of it, under the name that
  # libqk_io.so asks for.
  file(REAL_PATH ${QK_JANSSON_LIBRARY} jansson)
  get_filename_component(jansson_name ${jansson} NAME)
  string(REGEX REPLACE "(\\.so\\.[0-9]+).*" "\\1" jansson_name ${jansson_name})
  install(FILES ${jansson} DESTINATION . COMPONENT python RENAME ${jansson_name})
  install(FILES /usr/share/doc/libjansson4/copyright DESTINATION . COMPONENT python OPTIONAL
          RENAME LICENSE.jansson)
endif()
