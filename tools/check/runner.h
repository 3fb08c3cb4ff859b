// SPDX-License-Identifier: MIT
// Runs one check case on one backend: forest, plan, its proof, two decode steps, fences, oracle.
#pragma once

#include <cstdint>
#include <string>

#include "capillary/device_profile.h"
#include "check/backend.h"
#include "check/cases.h"
#include "check/compare.h"

namespace capillary::check {

struct CheckResult {
  enum class Outcome { kPassed, kFailed, kUnsupported };

  std::string case_name;
  Outcome outcome = Outcome::kPassed;
  std::string message;     // what failed, or why it is not supported
  std::string reproducer;  // a command line
  Comparison comparison;
  double seconds = 0;
};

CheckResult run_case(const CheckCase& check_case, uint64_t seed, Backend& backend,
                     const DeviceProfile& profile = builtin_h200());

}  // namespace capillary::check
