// SPDX-License-Identifier: MIT
// A plan as JSON, for tools: summary, forest, and every array of the plan blob, field by field under the names
// of src/shared/plan_layout.h.
#pragma once

#include <string>

#include "cli/plan_report.h"

namespace capillary::cli {

inline constexpr int kPlanJsonSchemaVersion = 1;

std::string plan_json(const PlanReport& report);

}  // namespace capillary::cli
