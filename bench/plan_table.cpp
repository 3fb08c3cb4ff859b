// SPDX-License-Identifier: MIT
// capillary_plan_table FILE: one line a workload and head count of a workload file:
// what the planner chose, what it predicted, and what the same model makes of the plan that was built (the
// busiest CTA's phases, tiles and merges added up), so that an estimate that strays from its plan shows.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "capillary/plan.h"
#include "core/cost_model.h"
#include "shared/plan_layout.h"
#include "workload/workload.h"

namespace {

using namespace capillary;

struct Built {
  double us = 0;  // of the busiest CTA, launch included
  int32_t busy_ctas = 0;
  int32_t most_phases = 0;  // of a rank
  double balance = 0;       // mean load of the launched CTAs / load of the busiest
};

// One rank of one job, by the model: its tiles (loads and arithmetic overlapping), the arithmetic alone, and
// what the arithmetic waits for.
struct RankTimes {
  double tiles_us = 0, compute_us = 0, other_us = 0;
};

RankTimes rank_times(const PlanView& plan, const CostModel& model, const Job& job,
                     const RankWork& work, double load_us) {
  RankTimes times;
  times.other_us = model.profile().job_start_us + work.num_phases * model.profile().item_start_us;
  for (uint32_t i = 0; i < work.num_items; ++i) {
    const WorkItem& item = plan.items()[work.item_begin + i];
    const auto row_class = static_cast<size_t>(tile_class(item.num_rows));
    times.tiles_us += item.num_tiles * model.tile_times(load_us)[row_class];
    times.compute_us += item.num_tiles * model.compute_us()[row_class];
    if (row_class == 0) times.compute_us += model.stream_item_us();
  }
  int64_t num_rows = 0, partial_rows = 0, split_rows = 0;
  int split_parts = 0;
  for (uint32_t i = 0; i < work.num_merges; ++i) {
    const Merge& merge = plan.merges()[work.merge_begin + i];
    num_rows += merge.num_rows;
    partial_rows += int64_t{merge.num_rows} * merge.num_partials;
    if (merge.destination != Destination::kWorkspace) continue;
    split_rows += merge.num_rows;
    split_parts = std::max<int>(split_parts, plan.splits()[merge.split].num_parts);
  }
  const int32_t cluster_size = plan.header().cluster_size;
  if (job.needs_exchange != 0)
    times.other_us +=
        model.exchange_us(num_rows * cluster_size, partial_rows * cluster_size, cluster_size);
  times.other_us += model.split_us(split_rows, split_parts, 1);
  return times;
}

Built built_time(const Plan& plan, const CostModel& model) {
  const PlanView view(plan.data());
  const PlanHeader& h = view.header();
  int64_t planned = 0;
  for (uint32_t i = 0; i < h.num_items; ++i) planned += view.items()[i].num_tiles;
  const double unique = static_cast<double>(std::max<int64_t>(h.unique_tokens, 1)) / kTileTokens;
  Built built;
  const uint32_t cluster_size = static_cast<uint32_t>(h.cluster_size);
  for (uint32_t cluster = 0; cluster < static_cast<uint32_t>(h.num_clusters); ++cluster)
    if (view.schedule_begin()[cluster] < view.schedule_begin()[cluster + 1])
      built.busy_ctas += h.cluster_size;
  const double load_us = model.load_us(built.busy_ctas, static_cast<double>(planned) / unique);
  const double ahead_us = model.num_stages() * load_us;
  double sum = 0;
  for (uint32_t cluster = 0; cluster < static_cast<uint32_t>(h.num_clusters); ++cluster) {
    for (uint32_t rank = 0; rank < cluster_size; ++rank) {
      double us = 0, last_us = 0;
      for (uint32_t e = view.schedule_begin()[cluster]; e < view.schedule_begin()[cluster + 1];
           ++e) {
        const uint32_t job = view.schedule()[e].job;
        const RankWork& work = view.rank_works()[job * cluster_size + rank];
        const RankTimes times = rank_times(view, model, view.jobs()[job], work, load_us);
        const double hidden = std::max(times.tiles_us + std::max(times.other_us - ahead_us, 0.0),
                                       times.compute_us + times.other_us);
        us += hidden;
        last_us = std::max(times.tiles_us, times.compute_us) + times.other_us - hidden;
        built.most_phases = std::max(built.most_phases, static_cast<int32_t>(work.num_phases));
      }
      us += last_us;
      built.us = std::max(built.us, us);
      sum += us;
    }
  }
  built.balance = sum / std::max(built.us * h.num_clusters * h.cluster_size, 1e-9);
  built.us += model.profile().launch_us;
  return built;
}

void print_row(const Workload& workload, const Heads& heads) {
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
  const Built built = built_time(plan, CostModel(shape, builtin_h200()));
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
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: capillary_plan_table WORKLOADS.json\n");
    return 2;
  }
  std::ifstream file(argv[1]);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  try {
    for (const Workload& workload : workloads_from_json(text, argv[1]))
      for (const Heads& heads : workload.heads) print_row(workload, heads);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
