// SPDX-License-Identifier: MIT
// How often the program has called operator new; for tests that link allocation_count.cpp.
#pragma once

#include <cstdint>

namespace capillary::testing {
int64_t allocation_count();
}  // namespace capillary::testing
