# libqk.so and libqk_io.so from the same merged objects as the archives, for languages that load
# libraries while they run. The SONAME carries QK_ABI_VERSION, not the version of the release: it
# changes only when an existing binary would break.
file(STRINGS ${PROJECT_SOURCE_DIR}/include/qk.h qk_abi_line REGEX "^#define QK_ABI_VERSION")
string(REGEX REPLACE "^#define QK_ABI_VERSION +([0-9]+).*" "\\1" QK_ABI_VERSION "${qk_abi_line}")

# qk_make_shared(ARCHIVE LIBRARIES...): target <archive>_shared beside the target <archive>.
function(qk_make_shared archive)
  set(merged ${PROJECT_BINARY_DIR}/${archive}_merged.o)
  set(script ${PROJECT_BINARY_DIR}/${archive}.map)
  string(TOUPPER ${archive} node)
  file(WRITE ${script} "${node}_${QK_ABI_VERSION} { global: qk_*; local: *; };\n")
  set_source_files_properties(${merged} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  add_library(${archive}_shared SHARED ${merged})
  add_dependencies(${archive}_shared ${archive}_archive)
  set_target_properties(${archive}_shared PROPERTIES
    OUTPUT_NAME ${archive} LINKER_LANGUAGE C LINK_DEPENDS ${script}
    VERSION ${QK_ABI_VERSION}.${PROJECT_VERSION} SOVERSION ${QK_ABI_VERSION}
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}
    BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "${QK_SHARED_RPATH}")
  # Calls inside the library stay inside it, and nothing may be left for others to define.
  target_link_options(${archive}_shared PRIVATE -Wl,--version-script=${script} -Wl,-Bsymbolic
                      -Wl,-z,defs ${QK_LINK_HARDENING})
  target_link_libraries(${archive}_shared PRIVATE ${ARGN})
  target_include_directories(${archive}_shared INTERFACE ${PROJECT_SOURCE_DIR}/include)
endfunction()

get_target_property(qk_libraries qk INTERFACE_LINK_LIBRARIES)
qk_make_shared(qk ${qk_libraries})
add_library(qk::shared ALIAS qk_shared)
if(TARGET qk_io)
  qk_make_shared(qk_io qk_shared ${QK_JANSSON_LIBRARY})
  add_library(qk::io_shared ALIAS qk_io_shared)
endif()
