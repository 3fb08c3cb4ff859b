// SPDX-License-Identifier: MIT
// capillary_plan_table FILE: one line a workload and head count of a workload file:
// what the planner chose, what it predicted, and what the same model makes of the plan that was built (the
// busiest CTA's phases, tiles and merges added up), so that an estimate that strays from its plan shows. Then what
// it costs to keep one cluster size and grid for all of them, as a captured graph does: predicted time against the
// free choice's.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "capillary/plan.h"
#include "plan_time.h"
#include "workload/workload.h"

namespace {

using namespace capillary;

// Predicted time with the cluster size fixed / free, over all rows so far.
struct FixedLoss {
  double sum_of_logs = 0, worst = 1;
  int rows = 0;
  void add(double ratio) {
    sum_of_logs += std::log(ratio);
    worst = std::max(worst, ratio);
    ++rows;
  }
};
using FixedLosses = std::array<FixedLoss, kNumClusterSizes>;

void add_losses(const ModelShape& shape, const PrefixForest& forest, double free_us,
                FixedLosses* losses) {
  for (int index = 0; index < kNumClusterSizes; ++index) {
    Planner planner(shape, builtin_h200(), {.cluster_size = 1 << index, .fixed_grid = true});
    const Plan& plan = planner.plan(forest);
    validate_plan(plan.data(), plan.size_bytes(), forest);
    (*losses)[static_cast<size_t>(index)].add(plan.predicted_us() / free_us);
  }
}

void print_losses(const FixedLosses& losses) {
  std::printf("\none cluster size and grid for all rows, predicted time / free choice:\n");
  for (int index = 0; index < kNumClusterSizes; ++index) {
    const FixedLoss& loss = losses[static_cast<size_t>(index)];
    std::printf("  clusters of %2d: geomean %.3f, worst %.2f, %d rows\n", 1 << index,
                std::exp(loss.sum_of_logs / std::max(loss.rows, 1)), loss.worst, loss.rows);
  }
}

void print_row(const Workload& workload, const Heads& heads, FixedLosses* losses) {
  const Batch batch = make_batch(workload, workload.page_size);
  const PrefixForest forest =
      PrefixForest::from_block_table(batch.view(), batch.seq_lens, batch.page_size);
  const ModelShape shape{heads.num_q_heads, heads.num_kv_heads, workload.head_dim};
  Planner planner(shape);
  for (int i = 0; i < 3; ++i) planner.plan(forest);
  const auto begin = std::chrono::steady_clock::now();
  const Plan& plan = planner.plan(forest);
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  validate_plan(plan.data(), plan.size_bytes(), forest);
  const PlanSummary& s = planner.summary();
  const PlanTime built = plan_time(plan, CostModel(shape, builtin_h200()));
  double by_size[kNumClusterSizes];
  std::fill(std::begin(by_size), std::end(by_size), 0.0);
  for (const PlanCandidate& c : s.candidates) {
    double& us = by_size[cluster_size_index(c.cluster_size)];
    if (us == 0 || c.predicted_us < us) us = c.predicted_us;
  }
  std::printf(
      "%-26s %6s %-5s %2d x %3d %4d jobs %3d busy %7.1f us (built %7.1f, balance %.2f) floor %7.1f "
      "attain %.2f read %.2f of %6.2f exch %7.0f split %7.0f KB phases %2d plan %5.0f us |",
      workload.name.c_str(), heads_name(heads).c_str(), mode_name(s.mode), s.cluster_size,
      s.num_clusters, s.num_jobs, built.busy_ctas, s.predicted_us, built.us, built.balance,
      s.floor_us, (s.floor_us + 4) / s.predicted_us,
      static_cast<double>(s.planned_bytes) / static_cast<double>(s.unique_bytes),
      static_cast<double>(s.flat_bytes) / static_cast<double>(s.unique_bytes),
      static_cast<double>(s.exchange_bytes) / 1e3, static_cast<double>(s.split_bytes) / 1e3,
      built.most_phases, took.count());
  for (const double us : by_size) std::printf(" %.1f", us);
  std::printf("\n");
  add_losses(shape, forest, s.predicted_us, losses);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: capillary_plan_table WORKLOADS.json\n");
    return 2;
  }
  std::ifstream file(argv[1]);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  FixedLosses losses;
  try {
    for (const Workload& workload : workloads_from_json(text, argv[1]))
      for (const Heads& heads : workload.heads) print_row(workload, heads, &losses);
    print_losses(losses);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
