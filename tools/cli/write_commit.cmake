# SPDX-License-Identifier: MIT
# Writes HEADER with the commit of SOURCE_DIR, "-dirty" behind it when tracked files were changed.
cmake_minimum_required(VERSION 3.22)
set(commit "unknown")
find_program(git git)
if(git)
  execute_process(COMMAND "${git}" --no-optional-locks -C "${SOURCE_DIR}" describe --always --dirty --abbrev=12 --exclude=*
                  OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
                  RESULT_VARIABLE failed)
  if(NOT failed)
    set(commit "${described}")
  endif()
endif()
file(CONFIGURE OUTPUT "${HEADER}" CONTENT "#pragma once\n#define CAPILLARY_COMMIT \"@commit@\"\n" @ONLY)
