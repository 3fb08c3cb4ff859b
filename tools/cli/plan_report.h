// SPDX-License-Identifier: MIT
// One planned step with all that is said about it: the plan, its digest, and the plans that lost, built too so
// that "why" is a comparison of two plans and not a guess. plan's text, JSON and picture print this; run and
// bench print its one line.
#pragma once

#include <optional>
#include <string>

#include "capillary/plan.h"
#include "cli/batch_options.h"
#include "cli/plan_digest.h"

namespace capillary::cli {

// A plan that lost against the chosen one.
struct Loser {
  PlanCandidate candidate;
  PlanSummary summary;
  double busiest_us = 0;  // its busiest cluster
  std::string why;        // "reads 1.6x the KV bytes"
};

struct PlanReport {
  std::string name;
  ModelShape shape;
  DeviceProfile profile;
  PlanOptions options;
  PrefixForest forest;
  Plan plan;
  PlanSummary summary;
  PlanDigest digest;
  double first_plan_us = 0;  // measured, memory still to be allocated
  double warm_plan_us = 0;   // measured, the same forest again
  double busiest_us = 0;     // the busiest cluster
  std::optional<Loser> runner_up;
  std::optional<Loser> flat;  // nothing shared, unless that is what was chosen
};

// The chosen plan alone, without the plans that lost: what a bench needs.
PlanReport make_plan(const Step& step, const PlanOptions& options, const DeviceProfile& profile);
PlanReport make_plan_report(const Step& step, const PlanOptions& options,
                            const DeviceProfile& profile);

// "auto: clusters of 8 x 15, 120 jobs in 15 query groups a KV head; 33.9 MB of KV (5.4x less than flat)".
std::string explain_line(const PlanReport& report);

double sharing_of(const PlanSummary& summary);     // flat / unique bytes; 1 when there is no KV
double efficiency_of(const PlanSummary& summary);  // floor / predicted time

}  // namespace capillary::cli
