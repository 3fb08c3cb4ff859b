// SPDX-License-Identifier: MIT
// Grouping: cuts the requests in leaf order into query groups of about equal work, preferring cuts where
// neighbours share little, and estimates what a step would take with them. docs/planner.md tells the rules.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/cost_model.h"
#include "core/plan_builder.h"
#include "core/pod_array.h"

namespace capillary {

class Grouping {
 public:
  explicit Grouping(const CostModel& model);

  // Reads the forest once; what follows costs a pass over the requests and shared nodes per cut().
  void set_forest(const PrefixForest& forest, bool flat);

  // Makes groups for about num_pieces jobs a KV head. Returns whether a cut makes a job read much again.
  bool cut(int32_t num_pieces);
  // The same once more without such cuts: the group gets several jobs instead.
  void keep_trees();

  struct Estimate {
    double us = 0;  // below good_us: of the whole step; else what it cannot come below
    int64_t planned_tiles = 0;
    TileTimes tile_times;
    // Why it does not come below good_us, where a bound says so: of all jobs together, or any.
    bool by_total = false, by_bound = false;
  };
  // With the groups made last, on clusters of this size; sets their num_jobs. Stops as soon as it is seen
  // that the step does not come below good_us.
  Estimate evaluate(int32_t cluster_size, int32_t max_clusters, double good_us);
  // What evaluate() cannot come below: from what all groups read; and with a look at what they do.
  double reading_bound_us(int32_t cluster_size, int32_t max_clusters) const;
  double lower_bound_us(int32_t cluster_size, int32_t max_clusters);

  std::span<const QueryGroup> groups() const { return groups_; }
  int32_t num_queries() const { return num_queries_; }
  int64_t unique_tiles() const { return unique_tiles_; }
  // The fewest groups that the rows of a job allow.
  int32_t min_groups() const { return (num_queries_ + max_queries_ - 1) / max_queries_; }

 private:
  static constexpr double kMaxJobs = 1024;  // of one group

  struct SharedNode {
    int32_t query_begin, query_end;
    int32_t tiles;
    int32_t path_tiles;  // from the root to the node's end
    int32_t parent;      // -1
  };
  // A cut there, looked at by the hundred.
  struct Place {
    double weight;        // tiles before it, shared ones in equal parts
    int32_t node;         // deepest shared node on both sides, -1
    int32_t tiles;        // that both sides would read
    int32_t left, right;  // where the node begins and ends
  };
  // Where a piece ends best, if it begins at `begin`, and also if it begins earlier, but not before `next`.
  struct Cut {
    int32_t place;   // -1: nowhere
    int32_t middle;  // first place whose weight is not below the ideal
    int32_t begin;
    int32_t next;
  };
  // What one group has to do, whatever the cluster size.
  struct GroupWork {
    TileCounts tiles;
    int32_t num_queries;
    int32_t shared_tiles;
    int32_t num_phases;  // that one CTA doing all of it would have
    int32_t num_starts;  // wide elements, and one for all the streams' work
    int32_t num_items;   // of streams
    bool any_streams;    // one of the phases is the streams'
    bool repeats;        // the same as the group before
    double starts_us;    // of all phases
  };

  void read_nodes(const PrefixForest& forest, bool flat);
  void index_cuts();
  void begin_groups();
  Cut best_cut(double ideal, int32_t middle, int32_t first, int32_t last, double reach) const;
  void add_groups(int32_t begin, int32_t end) {
    if (end - begin > max_queries_)
      cut_by_rows(begin, end);
    else
      add_group(begin, end);
  }
  void add_group(int32_t begin, int32_t end) {
    groups_.push_back({begin, end, 1});
    read_tiles_ += places_[static_cast<size_t>(begin)].tiles;
  }
  void cut_by_rows(int32_t begin, int32_t end);
  void sum_work();
  void sum_group(int32_t begin, int32_t end, GroupWork* work);
  // What holds for every group on clusters of one size.
  struct Rates {
    int32_t cluster_size;
    TileTimes tile_times;
    double total_us;       // of all groups' tiles, one CTA
    double pieces_per_us;  // jobs that a group gets for its tiles
    double ahead_us;       // of keys that come in before a job starts
    double skew;           // of a cluster's slowest rank
    double hbm_us;
  };
  Rates rates(int32_t cluster_size, int32_t max_clusters) const;
  static double tiles_us(const TileCounts& tiles, const TileTimes& tile_times) {
    double us = 0;
    for (size_t i = 0; i < tiles.size(); ++i) us += tiles[i] * tile_times[i];
    return us;
  }
  int active_ctas(int32_t cluster_size, int32_t max_clusters) const;
  // Of a job's busiest ranks: its tiles (loads and arithmetic overlapping), the arithmetic alone, and what
  // the arithmetic has to wait for (starts, merges).
  struct JobParts {
    double tiles_us, compute_us, other_us;
  };
  // By the time of a group's tiles on one CTA.
  static int32_t jobs_of(double group_us, const Rates& rates) {
    return static_cast<int32_t>(std::clamp(group_us * rates.pieces_per_us + 0.5, 1.0, kMaxJobs));
  }
  JobParts job_parts(const GroupWork& work, int32_t num_jobs, const Rates& rates) const;
  // While a job merges and the next one starts, keys for that one come in, as many as there is room for.
  static double job_us(const JobParts& parts, const Rates& rates) {
    return std::max(parts.tiles_us + std::max(parts.other_us - rates.ahead_us, 0.0),
                    parts.compute_us + parts.other_us);
  }
  // What it takes more if it is the last: after that nothing comes in.
  static double last_us(const JobParts& parts, double job_us) {
    return std::max(parts.tiles_us, parts.compute_us) + parts.other_us - job_us;
  }
  double least_other_us(int32_t cluster_size) const;
  struct Bound {
    double us, total_us;  // of all jobs, dealt evenly
  };
  Bound bound(const Rates& rates, int32_t max_clusters) const;
  double makespan(int32_t num_clusters, double floor_us, double good_us);

  CostModel model_;
  int32_t group_size_;
  int32_t max_queries_;  // of a job
  int32_t num_queries_ = 0;
  int64_t unique_tiles_ = 0;
  int64_t forest_tiles_ =
      0;  // that one group of all would read: each node once, or in flat plans once a query
  int32_t num_pieces_ = 1;  // of the last cut()
  // By position in leaf order, [num_queries + 1]:
  std::vector<int64_t> private_sum_;  // tiles of one query's own keys before it
  std::vector<Place> places_;
  std::vector<int32_t> first_shared_at_;
  std::vector<SharedNode> shared_;  // preorder
  std::vector<int32_t>
      wide_levels_;  // scratch of work_of, by shared node: the wide elements down to it
  std::vector<int32_t> stack_;
  PodArray<Cut> cuts_;  // of the last cut(), by piece
  PodArray<QueryGroup> groups_;
  int64_t read_tiles_ = 0;  // of all groups, each node once a group: at least what they load
  bool is_summed_ = false;  // work_ and what follows are of groups_
  PodArray<GroupWork> work_;
  size_t longest_ = 0;  // the group with the longest jobs when last looked at, else the most tiles
  double least_tiles_ = 0;  // of a group
  int32_t least_queries_ = 0;
  TileCounts total_tiles_{};   // of all groups
  int64_t planned_tiles_ = 0;  // all of them
  struct JobTime {
    double us;
    int64_t count;
  };
  std::vector<JobTime> job_times_;
  std::vector<JobTime> loads_;  // of makespan: clusters by load
};

}  // namespace capillary
