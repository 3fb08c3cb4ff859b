// SPDX-License-Identifier: MIT
#include "core/grouping.h"

#include <algorithm>
#include <cmath>

namespace capillary {

namespace {
// A cut may move this far from its ideal place, in shares of a job's work.
constexpr double kCutReach = 0.5;
// Cuts that make a job read more than this share of its work again are what keep_trees leaves out.
constexpr double kMaxReread = 0.25;
// Jobs are not made smaller than this many wide steps a rank.
constexpr int32_t kMinSteps = 1;

int32_t tiles_of(int32_t tokens) {
  return (tokens + kTileTokens - 1) / kTileTokens;
}
size_t at(int32_t index) {
  return static_cast<size_t>(index);
}
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
  const size_t count = at(num_queries_) + 1;
  private_sum_.assign(count, 0);
  weight_sum_.assign(count, 0.0);
  shared_.clear();
  unique_tiles_ = 0;
  read_nodes(forest, flat);
  index_cuts();
}

void Grouping::read_nodes(const PrefixForest& forest, bool flat) {
  // Entry q + 1 takes what query q adds; differences first, then two running sums.
  for (const ForestNode& node : forest.nodes()) {
    const int32_t tiles = tiles_of(node.num_tokens);
    const int32_t width = node.request_end - node.request_begin;
    unique_tiles_ += tiles;
    if (width == 1) {
      private_sum_[at(node.request_begin) + 1] += tiles;
    } else if (flat) {
      for (int32_t query = node.request_begin; query < node.request_end; ++query)
        private_sum_[at(query) + 1] += tiles;
    } else {
      shared_.push_back({node.request_begin, node.request_end, tiles, 0, -1});
      const double share = static_cast<double>(tiles) / width;
      weight_sum_[at(node.request_begin) + 1] += share;
      if (node.request_end < num_queries_) weight_sum_[at(node.request_end) + 1] -= share;
    }
  }
  double share = 0;
  for (size_t i = 1; i < weight_sum_.size(); ++i) {
    share += weight_sum_[i];
    weight_sum_[i] = weight_sum_[i - 1] + share + static_cast<double>(private_sum_[i]);
    private_sum_[i] += private_sum_[i - 1];
  }
}

void Grouping::index_cuts() {
  const size_t count = at(num_queries_) + 1;
  cut_node_.assign(count, -1);
  cut_tiles_.assign(count, 0);
  first_shared_at_.resize(count);
  level_.resize(shared_.size());
  stack_.clear();
  size_t next = 0;
  for (int32_t query = 0; query < num_queries_; ++query) {
    first_shared_at_[at(query)] = static_cast<int32_t>(next);
    while (!stack_.empty() && shared_[at(stack_.back())].query_end <= query) stack_.pop_back();
    if (!stack_.empty()) {
      cut_node_[at(query)] = stack_.back();
      cut_tiles_[at(query)] = shared_[at(stack_.back())].path_tiles;
    }
    for (; next < shared_.size() && shared_[next].query_begin == query; ++next) {
      SharedNode& node = shared_[next];
      node.parent = stack_.empty() ? -1 : stack_.back();
      node.path_tiles = node.tiles + (stack_.empty() ? 0 : shared_[at(stack_.back())].path_tiles);
      stack_.push_back(static_cast<int32_t>(next));
    }
  }
  first_shared_at_[at(num_queries_)] = static_cast<int32_t>(shared_.size());
}

// The place in [first, last] where a cut costs least: work moved away from the ideal, and work done twice.
// at: the first place whose weight is not below the ideal.
int32_t Grouping::best_cut(double ideal, int32_t middle, int32_t first, int32_t last,
                           double reach) const {
  int32_t best = -1;
  double best_cost = 0;
  const auto consider = [&](int32_t place, double moved) {
    const double cost = moved + cut_tiles_[at(place)];
    if (best < 0 || cost < best_cost) best = place, best_cost = cost;
  };
  for (int32_t place = std::min(middle, last); place >= first; --place) {
    const double moved = std::abs(weight_sum_[at(place)] - ideal);
    if (best >= 0 && (moved >= best_cost || moved > reach)) break;
    consider(place, moved);
  }
  for (int32_t place = std::max(middle + 1, first); place <= last; ++place) {
    const double moved = std::abs(weight_sum_[at(place)] - ideal);
    if (best >= 0 && (moved >= best_cost || moved > reach)) break;
    consider(place, moved);
  }
  return best;
}

bool Grouping::cut(int32_t num_pieces, bool keep_trees) {
  num_pieces_ = std::max(num_pieces, 1);
  groups_.clear(), work_.clear();
  const double total = weight_sum_.back();
  const double share = total / num_pieces_;
  bool left_out = false;
  int32_t begin = 0, middle = 0;
  for (int32_t piece = 1; piece < num_pieces_ && begin < num_queries_ - 1 && total > 0; ++piece) {
    const double ideal = share * piece;
    while (middle < num_queries_ && weight_sum_[at(middle)] < ideal) ++middle;
    if (middle >= num_queries_) break;
    const int32_t place = best_cut(ideal, middle, begin + 1, num_queries_ - 1, kCutReach * share);
    if (place <= begin) continue;
    if (keep_trees && cut_tiles_[at(place)] > kMaxReread * share) {
      left_out = true;
      continue;
    }
    add_groups(begin, place);
    begin = place;
  }
  add_groups(begin, num_queries_);
  for (const QueryGroup& group : groups_)
    work_.push_back(work_of(group.query_begin, group.query_end));
  return left_out;
}

// One group, or as few as the rows of a job allow, again cut where it costs least.
void Grouping::add_groups(int32_t begin, int32_t end) {
  const int32_t parts = (end - begin + max_queries_ - 1) / max_queries_;
  const double from = weight_sum_[at(begin)];
  const double share = (weight_sum_[at(end)] - from) / parts;
  for (int32_t part = 1; part < parts; ++part) {
    const int32_t first = std::max(begin + 1, end - (parts - part) * max_queries_);
    const int32_t last = std::min(begin + max_queries_, end - (parts - part));
    const double ideal = from + share * part;
    const auto middle = static_cast<int32_t>(
        std::lower_bound(weight_sum_.begin() + first, weight_sum_.begin() + last, ideal) -
        weight_sum_.begin());
    const int32_t place = best_cut(ideal, middle, first, last, share);
    groups_.push_back({begin, place, 1});
    begin = place;
  }
  groups_.push_back({begin, end, 1});
}

Grouping::GroupWork Grouping::work_of(int32_t begin, int32_t end) {
  GroupWork work{};
  const int64_t own = private_sum_[at(end)] - private_sum_[at(begin)];
  work.tiles[static_cast<size_t>(tile_class(group_size_))] += own;
  const auto add = [&](const SharedNode& node, int32_t queries) {
    work.tiles[static_cast<size_t>(tile_class(queries * group_size_))] += node.tiles;
    work.shared_tiles += node.tiles;
  };
  // Nodes that reach in from the left, deepest first; they serve the group's first queries.
  int32_t outer_levels = 0, reached = begin;
  for (int32_t i = cut_node_[at(begin)]; i >= 0; i = shared_[at(i)].parent) {
    const int32_t node_end = std::min(shared_[at(i)].query_end, end);
    add(shared_[at(i)], node_end - begin);
    if (node_end != reached) ++outer_levels;
    reached = node_end;
  }
  work.num_elements = outer_levels;
  work.num_levels = outer_levels;
  const int32_t inside = first_shared_at_[at(begin)];
  for (int32_t i = inside; i < first_shared_at_[at(end)]; ++i) {
    const SharedNode& node = shared_[at(i)];
    const int32_t node_end = std::min(node.query_end, end);
    add(node, node_end - node.query_begin);
    // The same queries as the node above: the same element.
    int32_t level = node.parent >= inside ? level_[at(node.parent)] : outer_levels;
    const bool same = node.parent >= 0 &&
                      std::max(shared_[at(node.parent)].query_begin, begin) == node.query_begin &&
                      std::min(shared_[at(node.parent)].query_end, end) == node_end;
    if (!same) ++level, ++work.num_elements;
    level_[at(i)] = level;
    work.num_levels = std::max(work.num_levels, level);
  }
  if (own > 0) ++work.num_levels, ++work.num_elements;
  return work;
}

double Grouping::job_us(const QueryGroup& group, const GroupWork& work, double group_us,
                        int32_t cluster_size) const {
  const DeviceProfile& profile = model_.profile();
  const int32_t ranks = group.num_jobs * cluster_size;
  const int64_t num_rows = static_cast<int64_t>(group.query_end - group.query_begin) * group_size_;
  const int64_t all_tiles = std::max<int64_t>(work.tiles[0] + work.tiles[1] + work.tiles[2], 1);
  double us = group_us / ranks + profile.job_start_us;
  us += std::min(work.num_levels, work.num_elements / ranks + 1) * profile.item_start_us;
  // Rows whose keys lie on several ranks: those of cut leaves, and all rows of shared keys, once a rank
  // that holds some of those.
  int64_t partial_rows =
      std::min<int64_t>(2 * group_size_ * int64_t{ranks - 1}, 2 * num_rows * ranks);
  if (work.shared_tiles > 0) partial_rows += num_rows * (1 + work.shared_tiles * ranks / all_tiles);
  if (ranks == 1) partial_rows = 0;
  us += model_.exchange_us(partial_rows / group.num_jobs, cluster_size);
  if (group.num_jobs > 1)
    us += model_.split_us(
        work.shared_tiles > 0 ? num_rows : std::min<int64_t>(num_rows, 2 * group_size_),
        cluster_size);
  return us;
}

// Longest first on the least loaded of num_clusters: with times sorted downwards, some cluster has k + 1 of
// the first k * num_clusters + 1 jobs.
double Grouping::makespan(int32_t num_clusters, double floor_us, double good_us) {
  double longest = 0, shortest = 0, sum = 0;
  int64_t count = 0;
  for (const JobTime& job : job_times_) {
    longest = std::max(longest, job.us);
    shortest = count == 0 ? job.us : std::min(shortest, job.us);
    sum += job.us * static_cast<double>(job.count);
    count += job.count;
  }
  double us = std::max({longest, sum / num_clusters, floor_us});
  if (count <= num_clusters || us >= good_us) return us;
  if (longest > shortest)
    std::sort(job_times_.begin(), job_times_.end(),
              [](const JobTime& a, const JobTime& b) { return a.us > b.us; });
  int64_t before = 0, rounds = 0;
  for (const JobTime& job : job_times_) {
    // Jobs before + 1 .. before + count have this time; the last k with k * num_clusters + 1 among them.
    const int64_t k = (before + job.count - 1) / num_clusters;
    if (k >= rounds) us = std::max(us, static_cast<double>(k + 1) * job.us), rounds = k + 1;
    before += job.count;
  }
  return us;
}

Grouping::Estimate Grouping::evaluate(int32_t cluster_size, int32_t max_clusters, double good_us) {
  const DeviceProfile& profile = model_.profile();
  const int64_t num_heads = model_.shape().num_kv_heads;
  Estimate estimate;
  for (const GroupWork& work : work_)
    estimate.planned_tiles += work.tiles[0] + work.tiles[1] + work.tiles[2];
  const auto wanted =
      std::max<int64_t>(num_pieces_, static_cast<int64_t>(groups_.size())) * num_heads;
  const auto active = static_cast<int>(std::min<int64_t>(max_clusters, wanted)) * cluster_size;
  estimate.tile_times =
      model_.tile_times(active, static_cast<double>(estimate.planned_tiles) /
                                    static_cast<double>(std::max<int64_t>(unique_tiles_, 1)));
  const auto us_of = [&](const GroupWork& work) {
    double us = 0;
    for (size_t i = 0; i < work.tiles.size(); ++i)
      us += static_cast<double>(work.tiles[i]) * estimate.tile_times[i];
    return us;
  };
  double total = 0;
  for (const GroupWork& work : work_) total += us_of(work);
  const double min_job_us = kMinSteps * kWideTiles * cluster_size * estimate.tile_times[0];
  const double piece_us = std::max(total / num_pieces_, min_job_us);
  job_times_.clear();
  for (size_t i = 0; i < groups_.size(); ++i) {
    const double group_us = us_of(work_[i]);
    groups_[i].num_jobs = static_cast<int32_t>(std::clamp(group_us / piece_us + 0.5, 1.0, 1024.0));
    estimate.num_jobs += groups_[i].num_jobs;
    job_times_.push_back(
        {job_us(groups_[i], work_[i], group_us, cluster_size), groups_[i].num_jobs * num_heads});
  }
  const double unique_us = static_cast<double>(unique_tiles_ * model_.tile_bytes() * num_heads) /
                           (profile.hbm_gbps * 1e3);
  estimate.us = profile.launch_us + makespan(max_clusters, unique_us, good_us - profile.launch_us);
  return estimate;
}

}  // namespace capillary
