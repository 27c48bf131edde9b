# An overlay port that builds the checkout it is part of:
#   vcpkg install qk --overlay-ports=packaging/vcpkg/ports
set(SOURCE_PATH "${CURRENT_PORT_DIR}/../../../..")

vcpkg_check_features(OUT_FEATURE_OPTIONS features FEATURES
    io QK_BUILD_IO
    cuda QK_CUDA)
if("cuda" IN_LIST FEATURES)
    list(APPEND features -DQK_CUDA_ARCHITECTURES=all)
endif()
if(VCPKG_LIBRARY_LINKAGE STREQUAL "dynamic")
    list(APPEND features -DQK_BUILD_SHARED=ON)
else()
    list(APPEND features -DQK_BUILD_SHARED=OFF)
endif()

vcpkg_cmake_configure(
    SOURCE_PATH "${SOURCE_PATH}"
    OPTIONS ${features} -DQK_BUILD_CLI=OFF -DQK_BUILD_EXAMPLES=OFF -DQK_BUILD_TESTS=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/qk)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
