// SPDX-License-Identifier: MIT
// The drawings of plan_html's page, each one <svg> element. Whatever would be narrower than a few pixels is
// drawn as one hatched block that says how many things it stands for, so that 1024 requests stay readable.
#pragma once

#include <string>

#include "cli/plan_report.h"

namespace capillary::cli {

// Requests from left to right in leaf order; nodes from the roots down, their query groups below.
std::string forest_svg(const PlanReport& report);
// What every rank of every job of one KV head reads.
std::string ranks_svg(const PlanReport& report);
// Every cluster's jobs one after another.
std::string clusters_svg(const PlanReport& report);
// The busiest job, phase by phase: wide items, narrow streams, merges.
std::string busiest_job_svg(const PlanReport& report);

}  // namespace capillary::cli
