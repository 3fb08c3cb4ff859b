// SPDX-License-Identifier: MIT
#include "plan_time.h"

#include <algorithm>

#include "shared/plan_layout.h"

namespace capillary {

namespace {

// One rank of one job, by the model: its tiles (loads and arithmetic overlapping), the arithmetic alone, and
// what the arithmetic waits for.
struct RankTimes {
  double tiles_us = 0, compute_us = 0, other_us = 0;
};

// All streams side by side: as long as the longest.
double narrow_compute_us(const CostModel& model, const Phase& phase) {
  double longest = 0;
  for (int stream = 0; stream < kMaxStreams; ++stream)
    longest = std::max(longest, phase.stream_tiles[stream] * model.profile().narrow_tile_us +
                                    phase.stream_items[stream] * model.profile().stream_item_us);
  return longest;
}

RankTimes rank_times(const PlanView& plan, const CostModel& model, const RankWork& work,
                     const Job& job, double load_us) {
  const TileTimes tile_times = model.tile_times(load_us);
  RankTimes times;
  times.other_us = model.profile().job_start_us;
  for (uint32_t p = 0; p < work.num_phases; ++p) {
    const Phase& phase = plan.phases()[work.phase_begin + p];
    const bool wide = phase.kind == PhaseKind::kWide;
    times.other_us += wide ? model.profile().item_start_us : model.profile().stream_start_us;
    double tiles_us = 0;
    for (uint32_t i = 0; i < phase.num_items; ++i) {
      const WorkItem& item = plan.items()[phase.item_begin + i];
      const auto row_class = static_cast<size_t>(
          wide ? tile_class(std::max<int32_t>(item.num_rows, kMaxNarrowRows + 1)) : 0);
      tiles_us += item.num_tiles * (wide ? tile_times[row_class] : load_us);
      if (wide) times.compute_us += item.num_tiles * model.compute_us()[row_class];
    }
    const double narrow_us = wide ? 0 : narrow_compute_us(model, phase);
    times.compute_us += narrow_us;
    times.tiles_us += std::max(tiles_us, narrow_us);
  }
  int64_t num_rows = 0, partial_rows = 0, split_rows = 0, own_rows = 0;
  int split_parts = 0;
  for (uint32_t i = 0; i < work.num_merges; ++i) {
    const Merge& merge = plan.merges()[work.merge_begin + i];
    if (merge.destination == Destination::kSlot) {
      own_rows += merge.num_rows;
      continue;
    }
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
  times.other_us += model.own_merge_us(own_rows);
  times.other_us += model.split_us(split_rows, split_parts, 1);
  return times;
}

}  // namespace

PlanTime plan_time(const Plan& plan, const CostModel& model) {
  const PlanView view(plan.data());
  const PlanHeader& h = view.header();
  int64_t planned = 0;
  for (uint32_t i = 0; i < h.num_items; ++i) planned += view.items()[i].num_tiles;
  const double unique = static_cast<double>(std::max<int64_t>(h.unique_tokens, 1)) / kTileTokens;
  PlanTime built;
  const auto cluster_size = static_cast<uint32_t>(h.cluster_size);
  const auto num_clusters = static_cast<uint32_t>(h.num_clusters);
  for (uint32_t cluster = 0; cluster < num_clusters; ++cluster)
    if (view.schedule_begin()[cluster] < view.schedule_begin()[cluster + 1])
      built.busy_ctas += h.cluster_size;
  const double load_us = model.load_us(built.busy_ctas, static_cast<double>(planned) / unique);
  const double ahead_us = model.num_stages() * load_us;
  double sum = 0;
  for (uint32_t cluster = 0; cluster < num_clusters; ++cluster) {
    double slowest = 0;
    for (uint32_t rank = 0; rank < cluster_size; ++rank) {
      double us = 0, last_us = 0;
      for (uint32_t e = view.schedule_begin()[cluster]; e < view.schedule_begin()[cluster + 1];
           ++e) {
        const uint32_t job = view.schedule()[e].job;
        const RankWork& work = view.rank_works()[job * cluster_size + rank];
        const RankTimes times = rank_times(view, model, work, view.jobs()[job], load_us);
        const double hidden = std::max(times.tiles_us + std::max(times.other_us - ahead_us, 0.0),
                                       times.compute_us + times.other_us);
        us += hidden;
        last_us = std::max(times.tiles_us, times.compute_us) + times.other_us - hidden;
        built.most_phases = std::max(built.most_phases, static_cast<int32_t>(work.num_phases));
      }
      us += last_us;
      slowest = std::max(slowest, us);
      sum += us;
    }
    built.us = std::max(built.us, slowest);
  }
  built.balance = sum / std::max(built.us * h.num_clusters * h.cluster_size, 1e-9);
  const double hbm_us = static_cast<double>(h.unique_tokens) / kTileTokens *
                        static_cast<double>(model.tile_bytes()) * h.num_kv_heads /
                        (model.profile().hbm_gbps * 1e3);
  built.us = std::max(built.us, hbm_us) + model.profile().launch_us;
  return built;
}

}  // namespace capillary
