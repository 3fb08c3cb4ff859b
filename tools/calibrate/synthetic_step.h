// SPDX-License-Identifier: MIT
// Decode steps made up to be timed: small forests and plans in which one thing can be varied and all else kept.
// The plans come from the library's own PlanBuilder and are proved right before anybody runs them.
#pragma once

#include <cstdint>
#include <vector>

#include "capillary/plan.h"
#include "capillary/prefix_forest.h"
#include "core/plan_builder.h"
#include "workload/workload.h"

namespace capillary::calibrate {

// The first num_queries queries share num_tiles tiles of keys.
struct SharedLevel {
  int32_t num_queries;
  int32_t num_tiles;
};

struct SyntheticShape {
  int32_t num_kv_heads = 1;  // all heads do the same: how many clusters have work
  int32_t group_size = 4;    // query heads a KV head, so rows a query
  int32_t num_queries = 1;
  std::vector<SharedLevel> levels;  // from the root; num_queries never grows
  int32_t private_tiles = 0;        // of every query
  std::vector<QueryGroup> groups;   // none: one group, one job
  int32_t cluster_size = 1;
  int32_t max_clusters = 1;
};

struct SyntheticStep {
  ModelShape shape;
  Batch batch;
  PrefixForest forest;
  Plan plan;
};

// head_dim 128, bfloat16, pages of 16 in random order. Throws InvalidArgument; InternalError if the plan is wrong.
SyntheticStep make_synthetic_step(const SyntheticShape& shape);

// Groups of queries_each queries, one job each.
std::vector<QueryGroup> even_groups(int32_t num_queries, int32_t queries_each);

}  // namespace capillary::calibrate
