// SPDX-License-Identifier: MIT
// Sums over a plan blob (plan_digest.h).
#include "cli/plan_digest.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "core/cost_model.h"
#include "shared/plan_layout.h"

namespace capillary::cli {
namespace {

int64_t tokens_of(const PlanView& view, const WorkItem& item) {
  int64_t tokens = 0;
  for (uint32_t s = 0; s < item.num_segments; ++s) {
    tokens += view.segments()[item.segment_begin + s].num_tokens;
  }
  return tokens;
}

class RankSummer {
 public:
  RankSummer(const PlanView& view, const CostModel& model)
      : view_(view),
        model_(model),
        token_bytes_(dtype_bytes(model.shape().dtype) *
                     (model.shape().head_dim + model.shape().v_dim())) {
    const PlanHeader& header = view.header();
    active_ctas_ = std::max(header.cluster_size * header.num_clusters, 1);
  }

  RankDigest sum(const RankWork& work, int rank) const {
    RankDigest digest;
    for (uint32_t p = 0; p < work.num_phases; ++p) {
      add_phase(view_.phases()[work.phase_begin + p], &digest);
    }
    for (uint32_t m = 0; m < work.num_merges; ++m) {
      const Merge& merge = view_.merges()[work.merge_begin + m];
      digest.merged_rows += merge.num_rows;
      for (uint32_t i = 0; i < merge.num_partials; ++i) {
        if (view_.partials()[merge.partial_begin + i].rank != rank) {
          digest.peer_rows += merge.num_rows;
        }
      }
    }
    return digest;
  }

 private:
  double item_us(const WorkItem& item, bool wide) const {
    const int item_class = wide ? std::max(tile_class(item.num_rows), 1) : 0;
    const double tile_us = std::max(model_.load_us(active_ctas_, 1.0),
                                    model_.compute_us()[static_cast<size_t>(item_class)]);
    return tile_us * item.num_tiles;
  }

  void add_phase(const Phase& phase, RankDigest* digest) const {
    const bool wide = phase.kind == PhaseKind::kWide;
    (wide ? digest->wide_items : digest->narrow_items) += static_cast<int32_t>(phase.num_items);
    double sum_us = 0;
    double longest_stream_us = 0;
    uint32_t item_index = phase.item_begin;
    const int num_streams = wide ? 1 : kMaxStreams;
    for (int stream = 0; stream < num_streams; ++stream) {
      const uint32_t count = wide ? phase.num_items : phase.stream_items[stream];
      double stream_us = 0;
      for (uint32_t i = 0; i < count; ++i, ++item_index) {
        const WorkItem& item = view_.items()[item_index];
        digest->tiles += item.num_tiles;
        digest->kv_bytes += tokens_of(view_, item) * token_bytes_;
        sum_us += item_us(item, wide);
        stream_us += model_.profile().narrow_tile_us * item.num_tiles;
      }
      longest_stream_us = std::max(longest_stream_us, stream_us);
    }
    // Narrow streams run side by side: the phase lasts as long as its loads or its longest chain.
    digest->phase_us.push_back(wide ? sum_us : std::max(sum_us, longest_stream_us));
    digest->us += model_.profile().item_start_us + digest->phase_us.back();
  }

  const PlanView& view_;
  const CostModel& model_;
  int64_t token_bytes_;
  int active_ctas_ = 1;
};

void digest_forest(const PrefixForest& forest, PlanDigest* digest) {
  std::vector<int32_t> depth(forest.nodes().size(), 1);
  for (size_t i = 0; i < forest.nodes().size(); ++i) {
    const ForestNode& node = forest.nodes()[i];
    if (node.parent >= 0) depth[i] = depth[static_cast<size_t>(node.parent)] + 1;
    digest->num_levels = std::max(digest->num_levels, depth[i]);
    if (node.request_end - node.request_begin > 1) ++digest->num_shared_nodes;
  }
  for (const int32_t length : forest.seq_lens()) {
    digest->longest_request = std::max(digest->longest_request, length);
    if (length == 0) ++digest->num_empty_requests;
  }
}

}  // namespace

PlanDigest digest_plan(const Plan& plan, const PrefixForest& forest, const ModelShape& shape,
                       const DeviceProfile& profile) {
  PlanDigest digest;
  digest_forest(forest, &digest);
  if (plan.empty()) return digest;
  const PlanView view(plan.data());
  const PlanHeader& header = view.header();
  const CostModel model(shape, profile);
  const RankSummer summer(view, model);
  std::set<std::pair<int32_t, int32_t>> groups;
  for (uint32_t j = 0; j < header.num_jobs; ++j) {
    const Job& job = view.jobs()[j];
    JobDigest sum;
    sum.query_begin = job.query_begin;
    sum.num_queries = job.num_queries;
    sum.needs_exchange = job.needs_exchange != 0;
    groups.emplace(job.query_begin, job.num_queries);
    int64_t merged_rows = 0;
    for (int32_t rank = 0; rank < header.cluster_size; ++rank) {
      const size_t work = static_cast<size_t>(j) * static_cast<size_t>(header.cluster_size) +
                          static_cast<size_t>(rank);
      sum.ranks.push_back(summer.sum(view.rank_works()[work], rank));
      const RankDigest& added = sum.ranks.back();
      sum.kv_bytes += added.kv_bytes;
      sum.peer_rows += added.peer_rows;
      merged_rows += added.merged_rows;
      sum.us = std::max(sum.us, added.us);
      digest.wide_items += added.wide_items;
      digest.narrow_items += added.narrow_items;
    }
    sum.start_us = profile.job_start_us;
    sum.exchange_us = model.exchange_us(merged_rows, sum.peer_rows, header.cluster_size);
    sum.us += sum.start_us + sum.exchange_us;
    digest.jobs.push_back(std::move(sum));
  }
  digest.num_groups = static_cast<int32_t>(groups.size());
  for (int32_t c = 0; c < header.num_clusters; ++c) {
    ClusterDigest cluster;
    for (uint32_t e = view.schedule_begin()[c]; e < view.schedule_begin()[c + 1]; ++e) {
      const JobDigest& job = digest.jobs[view.schedule()[e].job];
      ++cluster.num_entries;
      cluster.kv_bytes += job.kv_bytes;
      cluster.us += job.us;
    }
    digest.clusters.push_back(cluster);
  }
  return digest;
}

}  // namespace capillary::cli
