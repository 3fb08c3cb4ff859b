# SPDX-License-Identifier: MIT
# The functions that the folders' CMakeLists use: one place for warnings, sanitizers and include roots.

# Warnings, sanitizers and the private include roots (src/ and tools/) of this project's own targets.
function(capillary_own_target target)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_compile_options(
    ${target}
    PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wconversion;-Wno-sign-conversion>"
            "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${CAPILLARY_WERROR}>>:-Werror>"
            # g++ 12 and 13 report overlap inside std::string where there is none (GCC bug 105651).
            "$<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,14>>:-Wno-restrict>")
  if(CAPILLARY_FUZZ)
    set(sanitizers -fsanitize=fuzzer-no-link,address,undefined)
  elseif(CAPILLARY_SANITIZE STREQUAL "address")
    set(sanitizers -fsanitize=address,undefined)
  elseif(CAPILLARY_SANITIZE)
    message(FATAL_ERROR "CAPILLARY_SANITIZE is '${CAPILLARY_SANITIZE}'; must be OFF or address")
  endif()
  if(sanitizers)
    target_compile_options(
      ${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${sanitizers};-fno-omit-frame-pointer;-fno-sanitize-recover=all>")
    # Public: whoever links an instrumented static library needs the runtime.
    target_link_options(${target} PUBLIC -fsanitize=address,undefined)
  endif()
endfunction()

# capillary_library(name SOURCES... [LIBS...]): static library capillary_<name>, alias capillary::<name>.
function(capillary_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBS" ${ARGN})
  add_library(capillary_${name} STATIC ${arg_SOURCES})
  add_library(capillary::${name} ALIAS capillary_${name})
  set_target_properties(capillary_${name} PROPERTIES EXPORT_NAME ${name})
  capillary_own_target(capillary_${name})
  target_compile_features(capillary_${name} PUBLIC cxx_std_20)
  target_include_directories(
    capillary_${name} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
                             "$<INSTALL_INTERFACE:include>")
  target_link_libraries(capillary_${name} PUBLIC ${arg_LIBS})
endfunction()

# capillary_tool_library(name SOURCES... [LIBS...]): static library of tools/, never installed.
function(capillary_tool_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBS" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  capillary_own_target(${name})
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}/tools")
  target_link_libraries(${name} PUBLIC ${arg_LIBS})
endfunction()

# capillary_test(name source... [LIBS lib...] [WHOLE]): one GoogleTest executable, its cases known to CTest.
# WHOLE registers the binary as one CTest test; for binaries with so many small cases that a process a case
# would cost more than the cases do. Its cases are still counted one by one, through the XML it writes.
function(capillary_test name)
  cmake_parse_arguments(arg "WHOLE" "" "LIBS" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  capillary_own_target(${name})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(${name} PRIVATE capillary::capillary ${arg_LIBS} GTest::gmock GTest::gtest_main)
  if(arg_WHOLE)
    add_test(NAME whole.${name}
             COMMAND ${name} "--gtest_output=xml:${PROJECT_BINARY_DIR}/gtest/${name}.xml"
             WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  else()
    gtest_discover_tests(${name} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" DISCOVERY_MODE PRE_TEST
                         DISCOVERY_TIMEOUT 60 NO_PRETTY_VALUES PROPERTIES TIMEOUT 600)
  endif()
endfunction()

# capillary_fuzz(name source... [LIBS lib...]): a libFuzzer executable, only where CAPILLARY_FUZZ is on.
function(capillary_fuzz name)
  cmake_parse_arguments(arg "" "" "LIBS" ${ARGN})
  if(NOT CAPILLARY_FUZZ)
    return()
  endif()
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  capillary_own_target(${name})
  target_link_libraries(${name} PRIVATE capillary::core capillary::cpu ${arg_LIBS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  set_property(GLOBAL APPEND PROPERTY capillary_fuzzers ${name})
endfunction()
