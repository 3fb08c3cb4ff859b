// SPDX-License-Identifier: MIT
// The cost model applied to a plan that is there: the busiest CTA's phases, streams, tiles and merges added up.
// The planner's own estimate comes before there is a plan; that the two agree is what plan_table shows.
#pragma once

#include <cstdint>

#include "capillary/plan.h"
#include "core/cost_model.h"

namespace capillary {

struct PlanTime {
  double us = 0;  // of the busiest CTA, launch included
  int32_t busy_ctas = 0;
  int32_t most_phases = 0;  // of a rank
  double balance = 0;       // mean load of the launched CTAs / load of the busiest
};
PlanTime plan_time(const Plan& plan, const CostModel& model);

}  // namespace capillary
