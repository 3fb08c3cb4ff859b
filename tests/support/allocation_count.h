// SPDX-License-Identifier: MIT
// What the program asks of operator new; for programs that link allocation_count.cpp.
#pragma once

#include <cstdint>

namespace capillary::testing {

// Calls so far.
int64_t allocation_count();

// Bytes allocated and not yet freed, as the allocator rounds them.
int64_t live_bytes();
// The most there have been since the last reset_peak().
int64_t peak_bytes();
void reset_peak();

}  // namespace capillary::testing
