// SPDX-License-Identifier: MIT
// Grouping: cuts the requests in leaf order into query groups of about equal work, preferring cuts where
// neighbours share little, and estimates what a step would take with them. docs/planner.md tells the rules.
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

  // Reads the forest once; what follows costs a pass over the requests and shared nodes per cut().
  void set_forest(const PrefixForest& forest, bool flat);

  // Chooses groups for about num_pieces jobs a KV head. Returns whether a cut makes a job read much again;
  // with keep_trees such cuts are left out, and the group gets several jobs instead.
  bool cut(int32_t num_pieces, bool keep_trees);

  struct Estimate {
    double us = 0;
    int64_t planned_tiles = 0;
    TileTimes tile_times;
  };
  // Of the whole step with the groups of the last cut() on clusters of this size; sets their num_jobs.
  // Estimates that cannot come below good_us are lower bounds; past stop_us the first that is seen.
  Estimate evaluate(int32_t cluster_size, int32_t max_clusters, double good_us, double stop_us);
  // What evaluate() cannot come below, from the sum of all tiles and from the group with the most of them.
  double lower_bound_us(int32_t cluster_size, int32_t max_clusters) const {
    return lower_bound_us(rates(cluster_size, max_clusters), max_clusters);
  }

  std::span<const QueryGroup> groups() const { return groups_; }
  int64_t unique_tiles() const { return unique_tiles_; }
  // The fewest groups that the rows of a job allow.
  int32_t min_groups() const { return (num_queries_ + max_queries_ - 1) / max_queries_; }

 private:
  struct SharedNode {
    int32_t query_begin, query_end;
    int32_t tiles;
    int32_t path_tiles;  // from the root to the node's end
    int32_t parent;      // -1
  };
  // What one group has to do, whatever the cluster size.
  struct GroupWork {
    TileCounts tiles;
    int32_t num_queries;
    int32_t shared_tiles;
    int32_t num_phases;  // that one CTA doing all of it would have
    int32_t num_starts;  // wide elements, and one for all the streams' work
    bool any_streams;    // one of the phases is the streams'
    int32_t num_items;   // of streams
    bool operator==(const GroupWork&) const = default;
  };

  void read_nodes(const PrefixForest& forest, bool flat);
  void index_cuts();
  int32_t best_cut(double ideal, int32_t at, int32_t first, int32_t last, double reach) const;
  void add_groups(int32_t begin, int32_t end);
  void sum_work();
  GroupWork work_of(int32_t begin, int32_t end);
  // What holds for every group of the last cut() on clusters of one size.
  struct Rates {
    int32_t cluster_size;
    TileTimes tile_times;
    double total_us;       // of all groups' tiles, one CTA
    double pieces_per_us;  // jobs that a group gets for its tiles
    double ahead_us;       // of keys that come in before a job starts
    double hbm_us;
  };
  Rates rates(int32_t cluster_size, int32_t max_clusters) const;
  static double tiles_us(const TileCounts& tiles, const TileTimes& tile_times);
  // Of a job's busiest ranks: its tiles (loads and arithmetic overlapping), the arithmetic alone, and what
  // the arithmetic has to wait for (starts, merges).
  struct JobParts {
    double tiles_us, compute_us, other_us;
  };
  static int32_t jobs_of(const GroupWork& work, const Rates& rates);
  JobParts job_parts(const GroupWork& work, int32_t num_jobs, const Rates& rates) const;
  static double job_us(const JobParts& parts, const Rates& rates);
  double lower_bound_us(const Rates& rates, int32_t max_clusters) const;
  double makespan(int32_t num_clusters, double floor_us, double good_us);

  CostModel model_;
  int32_t group_size_;
  int32_t max_queries_;  // of a job
  int32_t num_queries_ = 0;
  int64_t unique_tiles_ = 0;
  int32_t num_pieces_ = 1;  // of the last cut()
  // By position in leaf order, [num_queries + 1]:
  std::vector<int64_t> private_sum_;  // tiles of one query's own keys before it
  std::vector<double> weight_sum_;    // tiles before it, shared ones in equal parts
  std::vector<int32_t> cut_node_;     // deepest shared node on both sides of a cut there, -1
  std::vector<int32_t> cut_tiles_;    // tiles that both sides of a cut there would read
  std::vector<int32_t> first_shared_at_;
  std::vector<SharedNode> shared_;  // preorder
  // Scratch of work_of, by shared node: the first node of its element (nodes with the same queries), the
  // element's tiles, and the wide elements down to it.
  std::vector<int32_t> element_, element_tiles_, wide_levels_;
  std::vector<int32_t> stack_;
  std::vector<QueryGroup> groups_;
  std::vector<GroupWork> work_;
  std::vector<uint8_t> repeats_;  // 1: the same work as the group before
  size_t heaviest_ = 0;           // the group with the most tiles
  TileCounts total_tiles_{};      // of all groups
  int64_t planned_tiles_ = 0;     // all of them
  struct JobTime {
    double us;
    int64_t count;
  };
  std::vector<JobTime> job_times_;
  std::vector<JobTime> loads_;  // of makespan: clusters by load
};

}  // namespace capillary
