// SPDX-License-Identifier: MIT
// Grouping: cuts the requests in leaf order into query groups of about equal cost, preferring cuts where
// neighbours share little, and says what each group would cost. The planner tries several and keeps one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/cost_model.h"
#include "core/plan_builder.h"

namespace capillary {

class Grouping {
 public:
  explicit Grouping(const CostModel& model);

  // Reads the forest once; the candidates below then cost a pass over the shared nodes each.
  void set_forest(const PrefixForest& forest, bool flat);

  struct Candidate {
    int32_t cluster_size;
    int32_t max_clusters;
    int32_t num_pieces;  // jobs a KV head asked for
  };
  struct Estimate {
    double us = 0;
    int32_t num_jobs = 0;
  };
  // Fills groups(); the estimate is of the whole step.
  Estimate evaluate(const Candidate& candidate);
  std::span<const QueryGroup> groups() const { return groups_; }

  int64_t private_tiles() const { return private_tiles_; }
  int64_t shared_tiles() const { return shared_tiles_; }
  int32_t min_groups() const;  // forced by the rows a job can hold

 private:
  struct SharedNode {
    int32_t query_begin, query_end;
    int32_t tiles;
  };
  void choose_boundaries(int32_t num_pieces);
  double group_cost(int32_t begin, int32_t end, int active_ctas) const;
  double tile_cost(int32_t num_queries, int active_ctas) const;

  CostModel model_;
  int32_t group_size_;
  int32_t max_queries_;  // of a job
  int32_t num_queries_ = 0;
  int64_t private_tiles_ = 0;
  int64_t shared_tiles_ = 0;
  std::vector<int64_t> private_sum_;  // [num_queries + 1] tiles of single-query nodes before each position
  std::vector<double> weight_sum_;    // [num_queries + 1] tiles, shared ones in equal parts
  std::vector<int32_t> cut_tiles_;    // [num_queries + 1] tiles that both neighbours of a cut would read
  std::vector<SharedNode> shared_;    // preorder
  std::vector<int32_t> first_shared_at_;
  std::vector<int32_t> cuts_;
  std::vector<QueryGroup> groups_;
  std::vector<double> group_us_;
  std::vector<double> heap_;
};

}  // namespace capillary
