// SPDX-License-Identifier: MIT
// A plan as a picture: one self-contained HTML page of inline SVG that draws the forest, the query groups and
// jobs below it, the ranks' work, the clusters' schedule, and predicted bytes and time by term.
#pragma once

#include <string>

#include "cli/plan_report.h"

namespace capillary::cli {

std::string plan_html(const PlanReport& report);

}  // namespace capillary::cli
