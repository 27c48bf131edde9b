# libqk.a is one relocatable object in which only qk_* is global: a static library exports every
# symbol of every object otherwise. --force-group-allocation dissolves COMDAT groups: a C++ program
# with the same inline function would make its linker drop ours, by a name that is now local.
# Tests that look inside link the objects themselves.
set_property(GLOBAL PROPERTY QK_OBJECT_TARGETS "")

# GNU binutils do it for ELF, and so do LLVM's from lld 19 on: -DQK_LD=ld.lld
# -DQK_OBJCOPY=llvm-objcopy. Where no linker can, as for Mach-O and PE, the archive has objects as they
# were compiled, with hidden visibility: names of the inside are then all in namespaces qk and qk_io,
# and a program that has those too would clash with them.
if(CMAKE_CROSSCOMPILING)
  set(QK_LD ${CMAKE_LINKER} CACHE FILEPATH "the linker that merges the archive's objects")
  set(QK_OBJCOPY ${CMAKE_OBJCOPY} CACHE FILEPATH "objcopy, which hides its names")
else()
  find_program(QK_LD NAMES ld.bfd ld)
  find_program(QK_OBJCOPY NAMES objcopy)
endif()
set(QK_MERGES_OBJECTS OFF)
if(QK_LD AND QK_OBJCOPY AND NOT APPLE AND NOT WIN32)
  execute_process(COMMAND ${QK_LD} --help OUTPUT_VARIABLE qk_ld_options ERROR_QUIET)
  if(qk_ld_options MATCHES "force-group-allocation")
    set(QK_MERGES_OBJECTS ON)
  endif()
endif()
if(NOT QK_MERGES_OBJECTS)
  message(STATUS "libqk.a keeps its objects apart: nothing here can merge them (see QkTargets.cmake)")
endif()

# qk_add_objects(NAME SOURCES...): a part of libqk.a
function(qk_add_objects name)
  add_library(${name} OBJECT ${ARGN})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/include
                             ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/kernels)
  target_compile_options(${name} PRIVATE ${QK_LIBRARY_FLAGS})
  # Visible, so that the archive can be linked whole into another shared library.
  target_compile_definitions(${name} PRIVATE ${QK_EXPORT})
  # Not as one file (tools/demo builds the command so): kernels' files have names of their own.
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON UNITY_BUILD OFF)
  set_property(GLOBAL APPEND PROPERTY QK_OBJECT_TARGETS ${name})
endfunction()

# Merges the objects of `targets` into lib<archive>.a with only qk_* global.
function(qk_merge_archive archive)
  set(objects "")
  foreach(target IN LISTS ARGN)
    list(APPEND objects $<TARGET_OBJECTS:${target}>)
  endforeach()
  set_property(GLOBAL PROPERTY QK_ARCHIVED_${archive} ${objects})
  set(merged ${PROJECT_BINARY_DIR}/${archive}_merged.o)
  set(output ${PROJECT_BINARY_DIR}/lib${archive}.a)
  if(NOT QK_MERGES_OBJECTS)
    set(merged ${objects})
    add_custom_command(
      OUTPUT ${output}
      COMMAND ${CMAKE_COMMAND} -E rm -f ${output}
      COMMAND ${CMAKE_AR} qcs ${output} ${objects}
      DEPENDS ${ARGN} ${objects}
      COMMAND_EXPAND_LISTS VERBATIM
      COMMENT "Collecting lib${archive}.a")
  else()
    add_custom_command(
      OUTPUT ${output} ${merged}
      COMMAND ${QK_LD} -r --force-group-allocation -o ${merged} ${objects}
      COMMAND ${QK_OBJCOPY} --wildcard --keep-global-symbol=qk_* ${merged}
      COMMAND ${CMAKE_COMMAND} -E rm -f ${output}
      COMMAND ${CMAKE_AR} crs ${output} ${merged}
      DEPENDS ${ARGN} ${objects}
      COMMAND_EXPAND_LISTS VERBATIM
      COMMENT "Merging lib${archive}.a")
  endif()
  add_custom_target(${archive}_archive ALL DEPENDS ${output})
  add_library(${archive} STATIC IMPORTED GLOBAL)
  set_target_properties(${archive} PROPERTIES IMPORTED_LOCATION ${output})
  target_include_directories(${archive} INTERFACE ${PROJECT_SOURCE_DIR}/include)
  add_dependencies(${archive} ${archive}_archive)
endfunction()

function(qk_make_archive)
  get_property(targets GLOBAL PROPERTY QK_OBJECT_TARGETS)
  qk_merge_archive(qk ${targets})
  set(libraries Threads::Threads m)
  if(WIN32)
    set(libraries "")  # the C runtime and kernel32, which every program has
  endif()
  if(QK_WITH_CUDA)
    list(PREPEND libraries CUDA::cudart_static)
  endif()
  target_link_libraries(qk INTERFACE ${libraries})
  # The same objects with every symbol visible: for tests of the inside.
  add_library(qk_inside INTERFACE)
  foreach(target IN LISTS targets)
    target_sources(qk_inside INTERFACE $<TARGET_OBJECTS:${target}>)
  endforeach()
  target_include_directories(qk_inside INTERFACE ${PROJECT_SOURCE_DIR}/include
                             ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/kernels)
  target_link_libraries(qk_inside INTERFACE ${libraries})
endfunction()

find_package(Threads REQUIRED)
