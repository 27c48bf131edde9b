# libqk.so and libqk_io.so from the same merged objects as the archives, for languages that load
# libraries while they run. The SONAME carries QK_ABI_VERSION, not the version of the release: it
# changes only when an existing binary would break.
file(STRINGS ${PROJECT_SOURCE_DIR}/include/qk.h qk_abi_line REGEX "^#define QK_ABI_VERSION")
string(REGEX REPLACE "^#define QK_ABI_VERSION +([0-9]+).*" "\\1" QK_ABI_VERSION "${qk_abi_line}")

# qk_make_shared(ARCHIVE LIBRARIES...): target <archive>_shared beside the target <archive>. What it
# exports is a version script's for ELF, a list of qk.h's names for a DLL, and for Mach-O what the
# objects say themselves.
function(qk_make_shared archive)
  string(TOUPPER ${archive} node)
  set(links ${QK_LINK_HARDENING})
  if(QK_MERGES_OBJECTS)
    set(objects ${PROJECT_BINARY_DIR}/${archive}_merged.o)
    set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  else()
    get_property(objects GLOBAL PROPERTY QK_ARCHIVED_${archive})
  endif()
  set(script "")
  if(WIN32)
    set(script ${PROJECT_BINARY_DIR}/${archive}.def)
    file(READ ${PROJECT_SOURCE_DIR}/include/${archive}.h names)
    string(REPLACE ";" "" names "${names}")
    string(REGEX MATCHALL "QK_API [a-z0-9_ *]+\\(" names "${names}")
    list(TRANSFORM names REPLACE "^.*[ *](qk_[a-z0-9_]+)\\($" "  \\1")
    list(JOIN names "\n" names)
    file(WRITE ${script} "EXPORTS\n${names}\n")
    list(APPEND objects ${script})
    list(APPEND links -static)  # the compiler's runtime goes with it
  elseif(NOT APPLE)
    set(script ${PROJECT_BINARY_DIR}/${archive}.map)
    file(WRITE ${script} "${node}_${QK_ABI_VERSION} { global: qk_*; local: *; };\n")
    # Calls inside the library stay inside it, and nothing may be left for others to define.
    list(APPEND links -Wl,--version-script=${script} -Wl,-Bsymbolic -Wl,-z,defs)
  endif()
  add_library(${archive}_shared SHARED ${objects})
  add_dependencies(${archive}_shared ${archive}_archive)
  set_target_properties(${archive}_shared PROPERTIES
    OUTPUT_NAME ${archive} LINKER_LANGUAGE C LINK_DEPENDS "${script}"
    VERSION ${QK_ABI_VERSION}.${PROJECT_VERSION} SOVERSION ${QK_ABI_VERSION}
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}
    BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "${QK_SHARED_RPATH}")
  target_link_options(${archive}_shared PRIVATE ${links})
  target_link_libraries(${archive}_shared PRIVATE ${ARGN})
  target_include_directories(${archive}_shared INTERFACE ${PROJECT_SOURCE_DIR}/include)
endfunction()

get_target_property(qk_libraries qk INTERFACE_LINK_LIBRARIES)
if(NOT qk_libraries)  # Windows': all that qk needs is in the C library
  set(qk_libraries "")
endif()
qk_make_shared(qk ${qk_libraries})
add_library(qk::shared ALIAS qk_shared)
if(TARGET qk_io)
  qk_make_shared(qk_io qk_shared ${QK_JANSSON_LIBRARY})
  add_library(qk::io_shared ALIAS qk_io_shared)
endif()
