// SPDX-License-Identifier: MIT
// What a plan blob says, summed up by job, rank and cluster: the figures that plan's text, JSON and picture
// show. Bytes are read off the blob; times apply the cost model's rates to each work item.
#pragma once

#include <cstdint>
#include <vector>

#include "capillary/plan.h"
#include "capillary/prefix_forest.h"

namespace capillary::cli {

struct RankDigest {
  int64_t tiles = 0;
  int64_t kv_bytes = 0;  // of one KV head, whole tokens
  int32_t wide_items = 0;
  int32_t narrow_items = 0;
  int64_t merged_rows = 0;  // rows whose result this rank puts together
  int64_t peer_rows = 0;    // partial rows it fetches from other ranks
  std::vector<double>
      phase_us;   // a wide phase's items one after another, narrow streams side by side
  double us = 0;  // their sum, and a start for each
};

struct JobDigest {
  int32_t query_begin = 0;
  int32_t num_queries = 0;
  bool needs_exchange = false;
  int64_t kv_bytes = 0;
  int64_t peer_rows = 0;
  double us = 0;  // its longest rank, start and exchange included
  double start_us = 0;
  double exchange_us = 0;
  std::vector<RankDigest> ranks;
};

struct ClusterDigest {
  int32_t num_entries = 0;  // (job, KV head)
  int64_t kv_bytes = 0;
  double us = 0;
};

struct PlanDigest {
  std::vector<JobDigest> jobs;
  std::vector<ClusterDigest> clusters;
  int32_t num_groups = 0;  // distinct runs of queries; jobs of one group share its queries
  int32_t num_levels = 0;  // nodes on the longest path
  int32_t longest_request = 0;
  int32_t num_empty_requests = 0;
  int32_t num_shared_nodes = 0;  // nodes with more than one request
  int64_t narrow_items = 0;
  int64_t wide_items = 0;
};

PlanDigest digest_plan(const Plan& plan, const PrefixForest& forest, const ModelShape& shape,
                       const DeviceProfile& profile);

}  // namespace capillary::cli
