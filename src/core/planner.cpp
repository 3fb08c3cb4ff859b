// SPDX-License-Identifier: MIT
// The search: a few cluster sizes x a few job counts, each estimated by Grouping; the best is laid out by
// PlanBuilder. Everything is deterministic and, once warm, free of allocation.
#include <algorithm>
#include <cmath>

#include "capillary/error.h"
#include "capillary/plan.h"
#include "core/grouping.h"
#include "core/plan_builder.h"

namespace capillary {

namespace {

void check_shape(const ModelShape& shape) {
  const auto fail = [](const char* argument, int64_t came, const char* expected) {
    throw InvalidArgument(five_parts("Planner", argument, "is " + std::to_string(came), expected,
                                     "pass the heads and dims of one attention layer on one GPU"));
  };
  if (shape.num_kv_heads < 1) fail("num_kv_heads", shape.num_kv_heads, "be at least 1");
  if (shape.num_q_heads < 1 || shape.num_q_heads % shape.num_kv_heads != 0)
    fail("num_q_heads", shape.num_q_heads, "be a positive multiple of num_kv_heads");
  if (shape.head_dim < 1 || shape.head_dim > 256) fail("head_dim", shape.head_dim, "be 1 to 256");
  if (shape.head_dim_v < 0 || shape.head_dim_v > 256)
    fail("head_dim_v", shape.head_dim_v, "be 0 (as head_dim) to 256");
  const int max_rows = tile_table(std::max(shape.head_dim, shape.v_dim())).max_job_rows;
  if (shape.group_size() > max_rows)
    throw UnsupportedConfig(five_parts(
        "Planner", "num_q_heads / num_kv_heads", "is " + std::to_string(shape.group_size()),
        "be at most " + std::to_string(max_rows) + " for this head_dim",
        "split the query heads of a KV head over several calls"));
  if (shape.dtype != DType::kBFloat16 && shape.dtype != DType::kFloat16 &&
      shape.dtype != DType::kFloat32)
    throw UnsupportedConfig(five_parts("Planner", "dtype", std::string("is ") + dtype_name(shape.dtype),
                                       "be bfloat16 or float16 (float32 on the CPU)",
                                       "convert the caches"));
}

void check_options(const PlanOptions& options, const DeviceProfile& profile) {
  if (options.cluster_size != 0) {
    const int index = cluster_size_index(options.cluster_size);
    if (index < 0 || profile.max_clusters[static_cast<size_t>(index)] == 0)
      throw InvalidArgument(five_parts("Planner", "cluster_size",
                                       "is " + std::to_string(options.cluster_size),
                                       "be 0, 1, 2, 4, 8 or 16 and launchable on this card",
                                       "pass 0 to let the planner choose"));
  }
  if (options.fixed_grid && options.cluster_size == 0)
    throw InvalidArgument(five_parts("Planner", "fixed_grid", "comes without a cluster_size",
                                     "come with the cluster_size to be captured",
                                     "set PlanOptions::cluster_size to 1, 2, 4, 8 or 16"));
  if (options.num_pieces < 0)
    throw InvalidArgument(five_parts("Planner", "num_pieces", "is " + std::to_string(options.num_pieces),
                                     "be 0 or more", "pass 0 to let the planner choose"));
}

}  // namespace

struct Planner::Impl {
  Impl(const ModelShape& shape_in, const DeviceProfile& profile_in, const PlanOptions& options_in)
      : shape(shape_in),
        profile(profile_in),
        options(options_in),
        profile_hash(profile_in.hash()),
        model(shape_in, profile_in),
        grouping(model),
        builder(model) {}

  void search(const PrefixForest& forest, bool flat);
  void try_candidate(bool flat, int32_t cluster_size, int32_t num_pieces);
  void build(const PrefixForest& forest);
  void summarise(const PrefixForest& forest);

  ModelShape shape;
  DeviceProfile profile;
  PlanOptions options;
  uint64_t profile_hash;
  CostModel model;
  Grouping grouping;
  PlanBuilder builder;

  std::vector<PlanCandidate> candidates;
  PlanCandidate best;
  std::vector<QueryGroup> best_groups;
  Plan plan;
  PlanSummary summary;
};

void Planner::Impl::try_candidate(bool flat, int32_t cluster_size, int32_t num_pieces) {
  const Mode mode = flat ? Mode::kFlat
                    : options.mode == Mode::kSharedL2 ? Mode::kSharedL2
                                                      : Mode::kAuto;
  for (const PlanCandidate& seen : candidates)
    if (seen.mode == mode && seen.cluster_size == cluster_size && seen.num_pieces == num_pieces) return;
  const auto index = static_cast<size_t>(cluster_size_index(cluster_size));
  const Grouping::Estimate estimate =
      grouping.evaluate({cluster_size, profile.max_clusters[index], num_pieces});
  candidates.push_back({mode, cluster_size, num_pieces, estimate.us});
  // Strictly better, so that the first of equals (smaller cluster, fewer jobs) stays.
  if (best_groups.empty() || estimate.us < best.predicted_us) {
    best = candidates.back();
    best_groups.assign(grouping.groups().begin(), grouping.groups().end());
  }
}

void Planner::Impl::search(const PrefixForest& forest, bool flat) {
  grouping.set_forest(forest, flat);
  for (int index = 0; index < kNumClusterSizes; ++index) {
    const int32_t cluster_size = 1 << index;
    const int32_t clusters = profile.max_clusters[static_cast<size_t>(index)];
    if (clusters == 0) continue;
    if (options.cluster_size != 0 && cluster_size != options.cluster_size) continue;
    if (options.cluster_size == 0 && options.mode == Mode::kSharedL2 && cluster_size != 1) continue;
    if (options.num_pieces != 0) {
      try_candidate(flat, cluster_size, options.num_pieces);
      continue;
    }
    // Job counts that fill the clusters 1 to 4 times over; and one job per row-limited group.
    const int32_t tiles_limit = static_cast<int32_t>(std::max<int64_t>(
        (grouping.private_tiles() + grouping.shared_tiles()) / (kWideTiles * cluster_size), 1));
    for (int32_t fill = 1; fill <= 4; ++fill) {
      const int32_t pieces = clusters * fill / shape.num_kv_heads;
      if (pieces >= 1) try_candidate(flat, cluster_size, std::min(pieces, tiles_limit));
    }
    try_candidate(flat, cluster_size, std::max(std::min(grouping.min_groups(), tiles_limit), 1));
  }
}

void Planner::Impl::build(const PrefixForest& forest) {
  const auto index = static_cast<size_t>(cluster_size_index(best.cluster_size));
  builder.build({&forest, best.mode, best.cluster_size, profile.max_clusters[index], best_groups,
                 options.fixed_grid});
  builder.assemble(profile_hash, best.predicted_us, &plan.words_);
}

void Planner::Impl::summarise(const PrefixForest& forest) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const PlanCandidate& a, const PlanCandidate& b) {
                     return a.predicted_us < b.predicted_us;
                   });
  summary.mode = best.mode;
  summary.num_requests = forest.num_requests();
  summary.num_nodes = static_cast<int32_t>(forest.nodes().size());
  summary.num_jobs = static_cast<int32_t>(builder.job_costs().size());
  summary.cluster_size = best.cluster_size;
  summary.num_clusters = builder.num_clusters();
  const int64_t heads = shape.num_kv_heads;
  const int64_t token_bytes = dtype_bytes(shape.dtype) * (shape.head_dim + shape.v_dim());
  summary.unique_bytes = forest.unique_tokens() * token_bytes * heads;
  summary.flat_bytes = forest.flat_tokens() * token_bytes * heads;
  summary.planned_bytes = builder.planned_tiles() * model.tile_bytes() * heads;
  const int64_t row_bytes = padded_dim(shape.v_dim()) * 4 + 8;
  summary.exchange_bytes = builder.exchange_rows() * row_bytes * heads;
  summary.split_bytes = builder.split_rows() * row_bytes * heads;
  const double flops = 2.0 * static_cast<double>(forest.flat_tokens()) * shape.num_q_heads *
                       (shape.head_dim + shape.v_dim());
  summary.hbm_us = static_cast<double>(summary.unique_bytes) / (profile.hbm_gbps * 1e3);
  summary.compute_us = flops / (profile.matrix_tflops * 1e6);
  summary.floor_us = std::max(summary.hbm_us, summary.compute_us);
  const int active = best.cluster_size * std::max(summary.num_clusters, 1);
  summary.l2_us = static_cast<double>(std::max<int64_t>(summary.planned_bytes - summary.unique_bytes, 0)) /
                  (profile.l2_gbps_per_cta * 1e3 * active);
  summary.exchange_us = 0;
  for (const PlanBuilder::JobCost& job : builder.job_costs())
    summary.exchange_us =
        std::max(summary.exchange_us, model.exchange_us(job.partial_rows, best.cluster_size));
  summary.fixed_us = profile.launch_us;
  summary.predicted_us = best.predicted_us;
  summary.candidates = candidates;
}

Planner::Planner(const ModelShape& shape, const DeviceProfile& profile, const PlanOptions& options) {
  check_shape(shape);
  validate_profile(profile);
  check_options(options, profile);
  impl_ = std::make_unique<Impl>(shape, profile, options);
}
Planner::~Planner() = default;
Planner::Planner(Planner&&) noexcept = default;
Planner& Planner::operator=(Planner&&) noexcept = default;

const Plan& Planner::plan(const PrefixForest& forest) {
  Impl& self = *impl_;
  self.candidates.clear();
  self.best_groups.clear();
  self.best = {};
  if (self.options.cluster_size != 0) self.best.cluster_size = self.options.cluster_size;
  if (forest.num_requests() > 0) {
    if (self.options.mode != Mode::kFlat) self.search(forest, false);
    // Sharing that does not pay is not used: "never slower than plain decode".
    const bool shares = forest.flat_tokens() > forest.unique_tokens();
    if (self.options.mode == Mode::kFlat || (self.options.mode == Mode::kAuto && shares))
      self.search(forest, true);
  }
  self.build(forest);
  self.summarise(forest);
  return self.plan;
}

const PlanSummary& Planner::summary() const { return impl_->summary; }
const ModelShape& Planner::shape() const { return impl_->shape; }
const DeviceProfile& Planner::profile() const { return impl_->profile; }
const PlanOptions& Planner::options() const { return impl_->options; }

}  // namespace capillary
