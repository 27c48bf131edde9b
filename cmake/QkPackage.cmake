# Debian packages by CPack: `cmake --workflow --preset deb`, or tools/package.
#
#   libqkN       the shared libraries; N is the ABI version, as in their SONAME
#   libqk-dev    header, archives, CMake and pkg-config files
#   qk-tools     the qk command, which has qk inside and needs no other of these
set(runtime libqk${QK_ABI_VERSION})
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME qk)
set(CPACK_PACKAGE_VENDOR "the qk authors")
set(QK_PACKAGE_CONTACT "the qk authors <qk@localhost>" CACHE STRING
    "the maintainer that the packages name; who publishes them gives an address")
set(CPACK_PACKAGE_CONTACT "${QK_PACKAGE_CONTACT}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL runtime development tools)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME ${runtime})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_RUNTIME_DESCRIPTION "4-bit weights and integer GRUs (shared libraries)
qk reads AWQ, GPTQ, compressed-tensors and bitsandbytes checkpoints,
dequantizes and multiplies 4-bit weights, and runs GRUs in integers alone,
behind one C header.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libqk-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${runtime} (= ${PROJECT_VERSION}), libjansson-dev")
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "4-bit weights and integer GRUs (development files)
Headers, static and shared libraries, CMake package and pkg-config files.")

set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME qk-tools)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_TOOLS_DESCRIPTION "4-bit weights and integer GRUs (the qk command)
Inspects, verifies, quantizes, dequantizes and multiplies 4-bit checkpoints;
quantizes and runs integer GRUs.")

# What Debian's policy asks of every package; nothing that other installations need.
find_program(QK_GZIP gzip)
set(qk_changelog ${PROJECT_BINARY_DIR}/changelog.gz)
if(QK_GZIP)
  execute_process(COMMAND ${QK_GZIP} -9nc ${PROJECT_SOURCE_DIR}/packaging/debian-changelog
                  OUTPUT_FILE ${qk_changelog})
endif()
foreach(component runtime development tools)
  string(TOUPPER ${component} upper)
  set(folder ${CMAKE_INSTALL_DATAROOTDIR}/doc/${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
  install(FILES LICENSE DESTINATION ${folder} RENAME copyright
          COMPONENT ${component} EXCLUDE_FROM_ALL)
  if(QK_GZIP)
    install(FILES ${qk_changelog} DESTINATION ${folder} COMPONENT ${component} EXCLUDE_FROM_ALL)
  endif()
endforeach()
include(CPack)
