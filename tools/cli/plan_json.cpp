// SPDX-License-Identifier: MIT
// A plan as JSON (plan_json.h).
#include "cli/plan_json.h"

#include <algorithm>
#include <span>
#include <vector>

#include "capillary/version.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "shared/plan_layout.h"

namespace capillary::cli {
namespace {

using nlohmann::ordered_json;

const char* phase_name(PhaseKind kind) {
  return kind == PhaseKind::kWide ? "wide" : "narrow";
}

const char* destination_name(Destination destination) {
  switch (destination) {
    case Destination::kSlot:
      return "slot";
    case Destination::kOutput:
      return "output";
    case Destination::kWorkspace:
      return "workspace";
  }
  return "unknown";
}

const char* plan_mode_name(uint32_t mode) {
  return mode_name(mode == static_cast<uint32_t>(PlanMode::kFlat)       ? Mode::kFlat
                   : mode == static_cast<uint32_t>(PlanMode::kSharedL2) ? Mode::kSharedL2
                                                                        : Mode::kAuto);
}

ordered_json candidate_json(const PlanCandidate& candidate) {
  return {{"mode", mode_name(candidate.mode)},
          {"cluster_size", candidate.cluster_size},
          {"num_pieces", candidate.num_pieces},
          {"predicted_us", candidate.predicted_us}};
}

ordered_json loser_json(const Loser& loser) {
  ordered_json object = candidate_json(loser.candidate);
  object["planned_bytes"] = loser.summary.planned_bytes;
  object["exchange_bytes"] = loser.summary.exchange_bytes;
  object["split_bytes"] = loser.summary.split_bytes;
  object["why"] = loser.why;
  return object;
}

ordered_json summary_json(const PlanReport& report) {
  const PlanSummary& summary = report.summary;
  ordered_json object = {
      {"mode", mode_name(summary.mode)},
      {"asked_mode", mode_name(report.options.mode)},
      {"fallback", summary.fallback == Fallback::kNone
                       ? ordered_json()
                       : ordered_json(fallback_reason(summary.fallback))},
      {"num_requests", summary.num_requests},
      {"num_nodes", summary.num_nodes},
      {"num_shared_nodes", report.digest.num_shared_nodes},
      {"num_levels", report.digest.num_levels},
      {"num_groups", summary.num_groups},
      {"num_jobs", summary.num_jobs},
      {"cluster_size", summary.cluster_size},
      {"num_clusters", summary.num_clusters},
      {"resident_clusters", summary.resident_clusters},
      {"resident_ctas",
       std::min(summary.num_clusters, summary.resident_clusters) * summary.cluster_size},
      {"unique_bytes", summary.unique_bytes},
      {"flat_bytes", summary.flat_bytes},
      {"planned_bytes", summary.planned_bytes},
      {"saved_bytes", summary.flat_bytes - summary.planned_bytes},
      {"exchange_bytes", summary.exchange_bytes},
      {"split_bytes", summary.split_bytes},
      {"sharing", sharing_of(summary)},
      {"floor_us", summary.floor_us},
      {"floor_kind", summary.hbm_us >= summary.compute_us ? "memory" : "compute"},
      {"predicted_us", summary.predicted_us},
      {"efficiency", efficiency_of(summary)},
      {"hbm_us", summary.hbm_us},
      {"l2_us", summary.l2_us},
      {"compute_us", summary.compute_us},
      {"exchange_us", summary.exchange_us},
      {"launch_us", summary.launch_us},
      {"job_start_us", summary.job_start_us},
      {"reason", summary.reason},
      {"first_plan_us", report.first_plan_us},
      {"plan_us", report.warm_plan_us},
      {"plan_bytes", report.plan.size_bytes()},
      {"workspace_bytes", report.plan.workspace_bytes()}};
  object["candidates"] = ordered_json::array();
  for (const PlanCandidate& candidate : summary.candidates) {
    object["candidates"].push_back(candidate_json(candidate));
  }
  object["runner_up"] = report.runner_up ? loser_json(*report.runner_up) : ordered_json();
  object["flat"] = report.flat ? loser_json(*report.flat) : ordered_json();
  return object;
}

std::vector<int32_t> list_of(std::span<const int32_t> values) {
  return {values.begin(), values.end()};
}

ordered_json forest_json(const PrefixForest& forest) {
  ordered_json object = {
      {"page_size", forest.page_size()},        {"unique_tokens", forest.unique_tokens()},
      {"flat_tokens", forest.flat_tokens()},    {"leaf_order", list_of(forest.leaf_order())},
      {"seq_lens", list_of(forest.seq_lens())}, {"request_node", list_of(forest.request_node())}};
  object["nodes"] = ordered_json::array();
  for (const ForestNode& node : forest.nodes()) {
    object["nodes"].push_back({{"parent", node.parent},
                               {"token_begin", node.token_begin},
                               {"num_tokens", node.num_tokens},
                               {"request_begin", node.request_begin},
                               {"request_end", node.request_end},
                               {"subtree_end", node.subtree_end},
                               {"page_offset", node.page_offset}});
  }
  return object;
}

ordered_json item_json(const PlanView& view, const WorkItem& item) {
  ordered_json object = {{"row_begin", item.row_begin},
                         {"num_rows", item.num_rows},
                         {"init_slot", item.init_slot},
                         {"dest_slot", item.dest_slot},
                         {"destination", destination_name(item.destination)},
                         {"num_tiles", item.num_tiles}};
  object["segments"] = ordered_json::array();
  for (uint32_t s = 0; s < item.num_segments; ++s) {
    const Segment& segment = view.segments()[item.segment_begin + s];
    object["segments"].push_back({{"page_offset", segment.page_offset},
                                  {"token_begin", segment.token_begin},
                                  {"num_tokens", segment.num_tokens},
                                  {"logical_begin", segment.logical_begin}});
  }
  return object;
}

ordered_json merge_json(const PlanView& view, const Merge& merge) {
  ordered_json object = {{"row_begin", merge.row_begin},
                         {"num_rows", merge.num_rows},
                         {"destination", destination_name(merge.destination)}};
  if (merge.destination == Destination::kWorkspace) {
    object["split"] = merge.split;
    object["split_part"] = merge.split_part;
    object["split_row"] = merge.split_row;
  }
  object["partials"] = ordered_json::array();
  for (uint32_t p = 0; p < merge.num_partials; ++p) {
    const Partial& partial = view.partials()[merge.partial_begin + p];
    object["partials"].push_back({{"rank", partial.rank}, {"slot", partial.slot}});
  }
  return object;
}

ordered_json rank_json(const PlanView& view, const RankWork& work, const RankDigest& digest) {
  ordered_json object = {
      {"tiles", digest.tiles}, {"kv_bytes", digest.kv_bytes}, {"estimated_us", digest.us}};
  object["phases"] = ordered_json::array();
  for (uint32_t p = 0; p < work.num_phases; ++p) {
    const Phase& phase = view.phases()[work.phase_begin + p];
    ordered_json entry = {{"kind", phase_name(phase.kind)},
                          {"stream_items", phase.stream_items},
                          {"stream_tiles", phase.stream_tiles}};
    entry["items"] = ordered_json::array();
    for (uint32_t i = 0; i < phase.num_items; ++i) {
      entry["items"].push_back(item_json(view, view.items()[phase.item_begin + i]));
    }
    object["phases"].push_back(std::move(entry));
  }
  object["merges"] = ordered_json::array();
  for (uint32_t m = 0; m < work.num_merges; ++m) {
    object["merges"].push_back(merge_json(view, view.merges()[work.merge_begin + m]));
  }
  return object;
}

ordered_json blob_json(const PlanReport& report) {
  if (report.plan.empty()) return {};
  const PlanView view(report.plan.data());
  const PlanHeader& header = view.header();
  ordered_json object = {{"version", header.version},
                         {"total_bytes", header.total_bytes},
                         {"content_hash", fmt::format("{:016x}", header.content_hash)},
                         {"profile_hash", fmt::format("{:016x}", header.profile_hash)},
                         {"mode", plan_mode_name(header.mode)},
                         {"num_requests", header.num_requests},
                         {"num_queries", header.num_queries},
                         {"num_q_heads", header.num_q_heads},
                         {"num_kv_heads", header.num_kv_heads},
                         {"head_dim", header.head_dim},
                         {"head_dim_v", header.head_dim_v},
                         {"page_size", header.page_size},
                         {"unique_tokens", header.unique_tokens},
                         {"flat_tokens", header.flat_tokens},
                         {"cluster_size", header.cluster_size},
                         {"num_clusters", header.num_clusters},
                         {"num_streams", header.num_streams},
                         {"max_slots", header.max_slots},
                         {"causal", header.causal},
                         {"window_left", header.window_left},
                         {"softcap", header.softcap},
                         {"features", header.features},
                         {"split_rows", header.split_rows},
                         {"predicted_us", header.predicted_us}};
  object["query_order"] =
      std::vector<int32_t>(view.query_order(), view.query_order() + header.num_queries);
  object["clusters"] = ordered_json::array();
  for (int32_t c = 0; c < header.num_clusters; ++c) {
    ordered_json entries = ordered_json::array();
    for (uint32_t e = view.schedule_begin()[c]; e < view.schedule_begin()[c + 1]; ++e) {
      entries.push_back({{"job", view.schedule()[e].job}, {"kv_head", view.schedule()[e].kv_head}});
    }
    object["clusters"].push_back(std::move(entries));
  }
  object["jobs"] = ordered_json::array();
  for (uint32_t j = 0; j < header.num_jobs; ++j) {
    const JobDigest& digest = report.digest.jobs[j];
    ordered_json job = {
        {"query_begin", digest.query_begin},       {"num_queries", digest.num_queries},
        {"needs_exchange", digest.needs_exchange}, {"kv_bytes", digest.kv_bytes},
        {"peer_rows", digest.peer_rows},           {"estimated_us", digest.us}};
    job["ranks"] = ordered_json::array();
    for (size_t rank = 0; rank < digest.ranks.size(); ++rank) {
      const RankWork& work = view.rank_works()[j * digest.ranks.size() + rank];
      job["ranks"].push_back(rank_json(view, work, digest.ranks[rank]));
    }
    object["jobs"].push_back(std::move(job));
  }
  object["splits"] = ordered_json::array();
  for (uint32_t s = 0; s < header.num_splits; ++s) {
    const Split& split = view.splits()[s];
    object["splits"].push_back({{"split_row_begin", split.split_row_begin},
                                {"num_rows", split.num_rows},
                                {"num_parts", split.num_parts}});
  }
  return object;
}

}  // namespace

std::string plan_json(const PlanReport& report) {
  const ordered_json object = {{"schema_version", kPlanJsonSchemaVersion},
                               {"capillary", CAPILLARY_VERSION_STRING},
                               {"workload", report.name},
                               {"dtype", dtype_name(report.shape.dtype)},
                               {"profile", report.profile.name},
                               {"summary", summary_json(report)},
                               {"forest", forest_json(report.forest)},
                               {"plan", blob_json(report)}};
  return object.dump() + "\n";
}

}  // namespace capillary::cli
