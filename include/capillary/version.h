// SPDX-License-Identifier: MIT
// The one place the version lives; CMake and the Python package read it from here.
#pragma once

#define CAPILLARY_VERSION_MAJOR 0
#define CAPILLARY_VERSION_MINOR 1
#define CAPILLARY_VERSION_PATCH 0
#define CAPILLARY_VERSION_STRING "0.1.0"
