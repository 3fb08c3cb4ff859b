// SPDX-License-Identifier: MIT
#include "core/grouping.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace capillary {

namespace {
// A cut may move this far from its ideal place (in shares of a group's cost) to fall between trees.
constexpr double kCutWindow = 0.13;
// Above this many (job, head) pairs the schedule is estimated, not simulated.
constexpr size_t kSimulatedJobs = 600;

int32_t tiles_of(int32_t tokens) { return (tokens + kTileTokens - 1) / kTileTokens; }
}  // namespace

Grouping::Grouping(const CostModel& model)
    : model_(model),
      group_size_(model.shape().group_size()),
      max_queries_(std::max(
          tile_table(std::max(model.shape().head_dim, model.shape().v_dim())).max_job_rows /
              group_size_,
          1)) {}

void Grouping::set_forest(const PrefixForest& forest, bool flat) {
  num_queries_ = forest.num_requests();
  const auto count = static_cast<size_t>(num_queries_);
  private_sum_.assign(count + 1, 0);
  weight_sum_.assign(count + 1, 0.0);
  cut_tiles_.assign(count + 1, 0);
  first_shared_at_.resize(count + 1);
  shared_.clear();
  private_tiles_ = 0, shared_tiles_ = 0;
  for (const ForestNode& node : forest.nodes()) {
    const int32_t tiles = tiles_of(node.num_tokens);
    const int32_t width = node.request_end - node.request_begin;
    if (width == 1 || flat) {
      for (int32_t q = node.request_begin; q < node.request_end; ++q)
        private_sum_[static_cast<size_t>(q) + 1] += tiles;
      continue;
    }
    shared_.push_back({node.request_begin, node.request_end, tiles});
    shared_tiles_ += tiles;
    const double share = static_cast<double>(tiles) / width;
    const int32_t end_tiles = tiles_of(node.token_begin + node.num_tokens);
    for (int32_t q = node.request_begin; q < node.request_end; ++q) {
      weight_sum_[static_cast<size_t>(q) + 1] += share;
      if (q > node.request_begin) cut_tiles_[static_cast<size_t>(q)] = end_tiles;
    }
  }
  for (size_t q = 0; q < count; ++q) {
    weight_sum_[q + 1] += weight_sum_[q] + static_cast<double>(private_sum_[q + 1]);
    private_sum_[q + 1] += private_sum_[q];
  }
  private_tiles_ = private_sum_[count];
  size_t shared = 0;
  for (size_t q = 0; q <= count; ++q) {
    while (shared < shared_.size() && shared_[shared].query_begin < static_cast<int32_t>(q)) ++shared;
    first_shared_at_[q] = static_cast<int32_t>(shared);
  }
}

int32_t Grouping::min_groups() const { return (num_queries_ + max_queries_ - 1) / max_queries_; }

void Grouping::choose_boundaries(int32_t num_pieces) {
  cuts_.assign(1, 0);
  const double total = weight_sum_.back();
  const double share = total / num_pieces;
  const int32_t wanted = std::min(num_pieces, num_queries_);
  if (wanted > 1 && total > 0) {
    int32_t at = 0;
    for (int32_t k = 1; k < num_pieces; ++k) {
      const double ideal = share * k;
      while (at < num_queries_ && weight_sum_[static_cast<size_t>(at)] < ideal) ++at;
      int32_t best = at;
      if (at > 0 && ideal - weight_sum_[static_cast<size_t>(at) - 1] <
                        weight_sum_[static_cast<size_t>(at)] - ideal)
        best = at - 1;
      const double slack = kCutWindow * share;
      for (int32_t q = best - 1; q > cuts_.back() && ideal - weight_sum_[static_cast<size_t>(q)] < slack;
           --q)
        if (cut_tiles_[static_cast<size_t>(q)] < cut_tiles_[static_cast<size_t>(best)]) best = q;
      for (int32_t q = at; q < num_queries_ && weight_sum_[static_cast<size_t>(q)] - ideal < slack; ++q)
        if (cut_tiles_[static_cast<size_t>(q)] < cut_tiles_[static_cast<size_t>(best)]) best = q;
      if (best > cuts_.back() && best < num_queries_) cuts_.push_back(best);
    }
  }
  cuts_.push_back(num_queries_);
}

double Grouping::tile_cost(int32_t num_queries, int active_ctas) const {
  const int32_t num_rows = num_queries * group_size_;
  return std::max(model_.hbm_tile_us(active_ctas),
                  model_.compute_tile_us(num_rows, num_rows > kMaxNarrowRows));
}

double Grouping::group_cost(int32_t begin, int32_t end, int active_ctas) const {
  double us = static_cast<double>(private_sum_[static_cast<size_t>(end)] -
                                  private_sum_[static_cast<size_t>(begin)]) *
              tile_cost(1, active_ctas);
  // Shared nodes that begin inside, and those further left that reach in (ancestors of the first query).
  const int32_t inside_begin = first_shared_at_[static_cast<size_t>(begin)];
  const int32_t inside_end = first_shared_at_[static_cast<size_t>(end)];
  for (int32_t i = inside_begin; i < inside_end; ++i) {
    const SharedNode& node = shared_[static_cast<size_t>(i)];
    us += node.tiles * tile_cost(std::min(node.query_end, end) - node.query_begin, active_ctas);
  }
  for (int32_t i = inside_begin - 1; i >= 0; --i) {
    const SharedNode& node = shared_[static_cast<size_t>(i)];
    if (node.query_end > begin)
      us += node.tiles * tile_cost(std::min(node.query_end, end) - begin, active_ctas);
    // Preorder: once a root is passed nothing further left reaches in.
    if (node.query_begin == 0 || node.query_end <= begin) {
      if (cut_tiles_[static_cast<size_t>(begin)] == 0) break;
    }
  }
  return us;
}

Grouping::Estimate Grouping::evaluate(const Candidate& candidate) {
  const DeviceProfile& profile = model_.profile();
  const int32_t num_heads = model_.shape().num_kv_heads;
  choose_boundaries(candidate.num_pieces);
  groups_.clear(), group_us_.clear();
  // Too many rows for one job: equal parts.
  for (size_t i = 0; i + 1 < cuts_.size(); ++i) {
    const int32_t queries = cuts_[i + 1] - cuts_[i];
    const int32_t parts = std::max((queries + max_queries_ - 1) / max_queries_, 1);
    for (int32_t part = 0; part < parts; ++part)
      groups_.push_back({cuts_[i] + static_cast<int32_t>(static_cast<int64_t>(queries) * part / parts),
                         cuts_[i] + static_cast<int32_t>(static_cast<int64_t>(queries) * (part + 1) / parts),
                         1});
  }
  const int active = std::min<int>(candidate.max_clusters,
                                   std::max<int>(candidate.num_pieces,
                                                 static_cast<int>(groups_.size())) *
                                       num_heads) *
                     candidate.cluster_size;
  double total = 0;
  for (const QueryGroup& group : groups_) {
    group_us_.push_back(group_cost(group.query_begin, group.query_end, active));
    total += group_us_.back();
  }
  const double piece_us = total / std::max(candidate.num_pieces, 1);
  const double min_job_us =
      static_cast<double>(candidate.cluster_size) * kWideTiles * tile_cost(1, active);
  Estimate estimate;
  double longest = 0, sum = 0;
  for (size_t i = 0; i < groups_.size(); ++i) {
    QueryGroup& group = groups_[i];
    const double wanted = group_us_[i] / std::max(piece_us, min_job_us);
    group.num_jobs = std::clamp(static_cast<int32_t>(std::lround(wanted)), 1, 1024);
    const int64_t num_rows = static_cast<int64_t>(group.query_end - group.query_begin) * group_size_;
    double job_us = group_us_[i] / group.num_jobs / candidate.cluster_size;
    job_us += 2 * profile.item_start_us + profile.job_start_us;
    job_us += model_.exchange_us(num_rows * 2, candidate.cluster_size);
    if (group.num_jobs > 1) job_us += profile.l2_merge_latency_us;
    group_us_[i] = job_us;
    estimate.num_jobs += group.num_jobs;
    longest = std::max(longest, job_us);
    sum += job_us * group.num_jobs;
  }
  const auto entries = static_cast<size_t>(estimate.num_jobs) * static_cast<size_t>(num_heads);
  double makespan = 0;
  const int32_t clusters = candidate.max_clusters;
  if (entries <= static_cast<size_t>(clusters)) {
    makespan = longest;
  } else if (longest * estimate.num_jobs < sum * 1.03) {
    const auto rounds = (entries + static_cast<size_t>(clusters) - 1) / static_cast<size_t>(clusters);
    makespan = static_cast<double>(rounds) * longest;
  } else if (entries <= kSimulatedJobs) {
    std::sort(group_us_.begin(), group_us_.end(), std::greater<>());
    heap_.assign(static_cast<size_t>(clusters), 0.0);
    for (size_t i = 0; i < groups_.size(); ++i) {
      const int32_t copies = groups_[i].num_jobs * num_heads;
      for (int32_t copy = 0; copy < copies; ++copy) {
        std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
        heap_.back() += group_us_[i];
        makespan = std::max(makespan, heap_.back());
        std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
      }
    }
  } else {
    makespan = sum * num_heads / clusters + 0.5 * longest;
  }
  const double unique_us = static_cast<double>(private_tiles_ + shared_tiles_) *
                           static_cast<double>(model_.tile_bytes()) * num_heads /
                           (profile.hbm_gbps * 1e3);
  estimate.us = profile.launch_us + std::max(makespan, unique_us);
  return estimate;
}

}  // namespace capillary
