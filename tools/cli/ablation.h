// SPDX-License-Identifier: MIT
// The ablation: one step planned in every way that can be forced ("arms") and as the planner would have it, and
// what follows from their times. Figures alone; bench_ablate.h measures, ablation_report.h tells.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capillary/plan.h"
#include "cli/batch_options.h"

namespace capillary::cli {

// A way to plan that is forced, or "auto", the planner's own choice.
struct Arm {
  std::string name;  // "flat", "shared-l2", "dsm-1" ... "dsm-16", "auto"
  PlanOptions options;
};
// flat, shared-l2, the exchange on chip for each cluster size, and auto, which is the last.
const std::vector<Arm>& ablation_arms();

struct ArmResult {
  double time_us = -1;   // negative: not measured
  std::string skipped;   // why not; empty where it was
  int32_t measured = 0;  // arm whose measurement this is: plans that do the same are measured once
  Mode path = Mode::kAuto;
  int32_t cluster_size = 0;
  double predicted_us = 0;
  bool passed = true;

  bool has_time() const { return time_us > 0; }
};

// One workload at one head count.
struct AblationRow {
  std::string workload;
  std::string heads;
  bool one_kv_head = false;  // the latency cases
  double floor_us = 0;
  double sharing = 1;           // flat bytes / unique bytes
  double partial_traffic = 0;   // of the unique bytes: partial_traffic_of
  std::vector<ArmResult> arms;  // as ablation_arms

  const ArmResult& planner() const { return arms.back(); }  // auto
  // Index of the fastest forced arm; -1: none was measured. The first of equal ones.
  int best_forced() const;
  // The fastest of the arms that exchange on chip between several CTAs (dsm-2 and up); -1: none.
  int best_cluster() const;
  double time_of(const char* arm) const;  // negative: not measured
  // auto / the best forced: 1 where the planner chose the best, less where it found a better plan than any forced.
  double regret() const;
};

// Bytes of partials that a step moves through memory when every node of a path leaves one partial for each of
// its rows and these are then merged (written once, read once), over the unique KV bytes: a property of the
// tree and the heads, whatever is planned. 0 where no path has two nodes.
double partial_traffic_of(const PrefixForest& forest, const ModelShape& shape);

// From here on partials weigh so much that where they meet should matter (AblationRow::partial_traffic).
inline constexpr double kMuchPartialTraffic = 0.4;
// Below, a workload counts as flat.
inline constexpr double kLeastSharing = 1.05;

// Geometric mean and extremes of one ratio over some of the rows.
struct RatioSummary {
  int rows = 0;
  double geomean = 1;
  double least = 1;
  double most = 1;
  std::string least_row;  // "workload heads"
  std::string most_row;
};

struct AblationSummary {
  int rows = 0;
  int same_plan = 0;          // rows where auto's plan is that of the best forced arm
  RatioSummary regret;        // auto / best forced
  int regret_over_bound = 0;  // rows above kRegretBound
  RatioSummary flat;          // flat / auto, all rows
  RatioSummary flat_batches;  // the same over workloads that share nothing
  int slower_than_flat = 0;   // rows below kNeverSlower
  // shared-l2 / the best of dsm-2 and up, and shared-l2 / auto.
  RatioSummary cluster_partials, auto_partials;  // much partial traffic
  RatioSummary cluster_latency, auto_latency;    // one KV head
  RatioSummary cluster_all, auto_all;
  // Of the predictions of all arms: max(predicted / time, time / predicted) - 1.
  double median_error = 0;
  double p95_error = 0;
};
inline constexpr double kRegretBound = 1.10;
inline constexpr double kNeverSlower = 0.97;

AblationSummary summarise(const std::vector<AblationRow>& rows);

}  // namespace capillary::cli
