// SPDX-License-Identifier: MIT
// A plan explained in words: what `capillary plan` prints.
#pragma once

#include <string>

#include "cli/plan_report.h"

namespace capillary::cli {

std::string plan_text(const PlanReport& report);

}  // namespace capillary::cli
