# SPDX-License-Identifier: MIT
# Decides whether the CUDA backend is built: sets CAPILLARY_WITH_CUDA and enables the language.
set(CAPILLARY_WITH_CUDA OFF)
if(CAPILLARY_CUDA STREQUAL "OFF")
  message(STATUS "Capillary: CUDA backend off (CAPILLARY_CUDA=OFF)")
  return()
endif()

# The targets set their own architecture; this only keeps enable_language from probing an old default.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)
endif()
if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(CAPILLARY_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin
               PATHS /usr/local/cuda)
  mark_as_advanced(CAPILLARY_NVCC)
  if(CAPILLARY_NVCC)
    # A name on the path may lead nowhere. Set, it would be believed; check_language below tries what it finds itself.
    execute_process(COMMAND "${CAPILLARY_NVCC}" --version RESULT_VARIABLE nvcc_status OUTPUT_QUIET ERROR_QUIET)
    if(nvcc_status EQUAL 0)
      set(CMAKE_CUDA_COMPILER "${CAPILLARY_NVCC}")
    endif()
  endif()
endif()

include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  if(CUDAToolkit_VERSION VERSION_LESS 12.4)
    if(CAPILLARY_CUDA STREQUAL "ON")
      message(FATAL_ERROR "Capillary: CUDA ${CUDAToolkit_VERSION} is too old; must be 12.4 or newer; "
                          "point CUDACXX at a newer nvcc or pass -DCAPILLARY_CUDA=OFF")
    endif()
    message(STATUS "Capillary: CUDA backend off (CUDA ${CUDAToolkit_VERSION} is older than 12.4)")
    return()
  endif()
  # CMake up to 3.25.1 does not know that nvcc speaks C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  set(CAPILLARY_WITH_CUDA ON)
  message(STATUS "Capillary: CUDA backend on (CUDA ${CUDAToolkit_VERSION}, sm_90a)")
elseif(CAPILLARY_CUDA STREQUAL "ON")
  message(FATAL_ERROR "Capillary: CAPILLARY_CUDA=ON but no CUDA compiler was found; must have nvcc 12.4 or "
                      "newer; set CUDACXX or pass -DCAPILLARY_CUDA=AUTO")
else()
  message(STATUS "Capillary: CUDA backend off (no nvcc found)")
endif()
