# SPDX-License-Identifier: MIT
# The build of the Python package (CAPILLARY_BUILD_PYTHON): which of the tools come along, and target
# python_package, which is all of it.
if(NOT DEFINED CACHE{CAPILLARY_BUILD_TOOLS})
  # The command comes with the package where its libraries are installed; the module needs none of them.
  find_package(fmt QUIET)
  find_package(nlohmann_json 3.10 QUIET)
  find_package(CLI11 QUIET)
  if(fmt_FOUND AND nlohmann_json_FOUND AND CLI11_FOUND)
    set(CAPILLARY_BUILD_TOOLS ON)
  else()
    set(CAPILLARY_BUILD_TOOLS OFF)
    message(STATUS "Capillary: Python package without the capillary command (fmt, nlohmann-json or CLI11 absent)")
  endif()
endif()
