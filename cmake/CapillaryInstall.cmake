# SPDX-License-Identifier: MIT
# cmake --install, and what find_package(capillary) reads.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(installed capillary capillary_core capillary_cpu)
if(TARGET capillary_profile)
  list(APPEND installed capillary_profile)
endif()
if(CAPILLARY_WITH_CUDA)
  list(APPEND installed capillary_cuda)
endif()
install(TARGETS ${installed} EXPORT capillary-targets
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/capillary" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
if(TARGET capillary_cli)
  install(TARGETS capillary_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/capillary")
install(EXPORT capillary-targets NAMESPACE capillary:: DESTINATION "${package_dir}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/capillary-config.cmake.in"
                              "${PROJECT_BINARY_DIR}/capillary-config.cmake"
                              INSTALL_DESTINATION "${package_dir}")
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/capillary-config-version.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/capillary-config.cmake"
              "${PROJECT_BINARY_DIR}/capillary-config-version.cmake" DESTINATION "${package_dir}")
