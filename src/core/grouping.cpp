// SPDX-License-Identifier: MIT
#include "core/grouping.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/least_heap.h"

namespace capillary {

namespace {
// A cut may move this far from its ideal place, in shares of a job's work.
constexpr double kCutReach = 0.5;
// Cuts that make a job read more than this share of its work again are what keep_trees leaves out.
constexpr double kMaxReread = 0.25;
// Ranks meet at the exchange, so a job takes as long as its slowest: this much more a doubling of the cluster.
constexpr double kRankSkew = 0.01;
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
  for (auto* scratch : {&element_, &element_tiles_, &wide_levels_}) scratch->resize(shared_.size());
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
// middle: the first place whose weight is not below the ideal. On each side of it, going away, more work moves, so of the cuts
// through one node the nearest is best, and the next to look at is where that node ends.
int32_t Grouping::best_cut(double ideal, int32_t middle, int32_t first, int32_t last,
                           double reach) const {
  int32_t best = -1;
  double best_cost = 0;
  // Returns whether farther ones may be better.
  const auto consider = [&](int32_t place) {
    const double moved = std::abs(weight_sum_[at(place)] - ideal);
    if (best >= 0 && (moved >= best_cost || moved > reach)) return false;
    const double cost = moved + cut_tiles_[at(place)];
    if (best < 0 || cost < best_cost) best = place, best_cost = cost;
    return cut_node_[at(place)] >= 0;
  };
  if (middle >= first && middle <= last) consider(middle);
  const int32_t left = std::min(middle - 1, last), right = std::max(middle + 1, first);
  for (int32_t place = left; place >= first && consider(place);)
    place = shared_[at(cut_node_[at(place)])].query_begin;
  for (int32_t place = right; place <= last && consider(place);)
    place = shared_[at(cut_node_[at(place)])].query_end;
  return best;
}

bool Grouping::cut(int32_t num_pieces, bool keep_trees) {
  num_pieces_ = std::max(num_pieces, 1);
  groups_.clear();
  const double total = weight_sum_.back();
  const double share = total / num_pieces_;
  bool cuts_trees = false;
  int32_t begin = 0, middle = 0;
  for (int32_t piece = 1; piece < num_pieces_ && begin < num_queries_ - 1 && total > 0; ++piece) {
    const double ideal = share * piece;
    while (middle < num_queries_ && weight_sum_[at(middle)] < ideal) ++middle;
    if (middle >= num_queries_) break;
    const int32_t place = best_cut(ideal, middle, begin + 1, num_queries_ - 1, kCutReach * share);
    if (place <= begin) continue;
    if (cut_tiles_[at(place)] > kMaxReread * share) {
      cuts_trees = true;
      if (keep_trees) continue;
    }
    add_groups(begin, place);
    begin = place;
  }
  add_groups(begin, num_queries_);
  sum_work();
  return cuts_trees;
}

void Grouping::sum_work() {
  work_.clear(), repeats_.clear();
  total_tiles_ = {};
  planned_tiles_ = 0;
  int64_t most_tiles = 0;
  heaviest_ = 0;
  for (const QueryGroup& group : groups_) {
    const GroupWork work = work_of(group.query_begin, group.query_end);
    int64_t tiles = 0;
    for (size_t i = 0; i < total_tiles_.size(); ++i) {
      tiles += work.tiles[i];
      total_tiles_[i] += work.tiles[i];
    }
    planned_tiles_ += tiles;
    if (tiles > most_tiles) most_tiles = tiles, heaviest_ = work_.size();
    repeats_.push_back(!work_.empty() && work == work_.back() ? 1 : 0);
    work_.push_back(work);
  }
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
  work.num_queries = end - begin;
  // Returns whether the element is wide.
  const auto add = [&](int32_t queries, int32_t tiles) {
    const int32_t num_rows = queries * group_size_;
    const int32_t reads = model_.stream_reads(num_rows, tiles);
    const auto row_class = static_cast<size_t>(reads > 0 ? 0 : tile_class(num_rows));
    work.tiles[row_class] += int64_t{tiles} * std::max(reads, 1);
    work.shared_tiles += tiles;
    work.num_items += reads;
    work.any_streams |= reads > 0;
    work.num_starts += reads == 0;
    return reads == 0;
  };
  // Nodes that reach in from the left, deepest first; they serve the group's first queries.
  int32_t outer_levels = 0, reached = begin, tiles = 0;
  const auto close_outer = [&] {
    if (tiles > 0 && add(reached - begin, tiles)) ++outer_levels;
    tiles = 0;
  };
  for (int32_t i = cut_node_[at(begin)]; i >= 0; i = shared_[at(i)].parent) {
    const int32_t node_end = std::min(shared_[at(i)].query_end, end);
    if (node_end != reached) close_outer();
    reached = node_end;
    tiles += shared_[at(i)].tiles;
  }
  close_outer();
  work.num_phases = outer_levels;
  const int32_t inside = first_shared_at_[at(begin)], inside_end = first_shared_at_[at(end)];
  for (int32_t i = inside; i < inside_end; ++i) {
    const SharedNode& node = shared_[at(i)];
    const int32_t node_end = std::min(node.query_end, end);
    element_[at(i)] = i;
    element_tiles_[at(i)] = 0;
    // The same queries as the node above: the same element.
    if (node.parent >= inside) {
      const SharedNode& above = shared_[at(node.parent)];
      if (above.query_begin == node.query_begin && std::min(above.query_end, end) == node_end)
        element_[at(i)] = element_[at(node.parent)];
    }
    element_tiles_[at(element_[at(i)])] += node.tiles;
  }
  for (int32_t i = inside; i < inside_end; ++i) {
    const SharedNode& node = shared_[at(i)];
    wide_levels_[at(i)] = node.parent >= inside ? wide_levels_[at(node.parent)] : outer_levels;
    if (element_[at(i)] != i) continue;
    const int32_t node_end = std::min(node.query_end, end);
    if (add(node_end - node.query_begin, element_tiles_[at(i)])) ++wide_levels_[at(i)];
    work.num_phases = std::max(work.num_phases, wide_levels_[at(i)]);
  }
  const int64_t own = private_sum_[at(end)] - private_sum_[at(begin)];
  if (own > 0) {
    const bool wide = group_size_ > kMaxNarrowRows;
    work.tiles[static_cast<size_t>(tile_class(group_size_))] += own;
    work.num_items += wide ? 0 : work.num_queries;
    work.num_starts += wide;
    work.num_phases += wide;
    work.any_streams |= !wide;
  }
  work.num_starts += work.any_streams;
  work.num_phases += work.any_streams;
  return work;
}

Grouping::JobParts Grouping::job_parts(const GroupWork& work, int32_t num_jobs,
                                       const Rates& rates) const {
  const DeviceProfile& profile = model_.profile();
  const TileTimes& tile_times = rates.tile_times;
  const int32_t cluster_size = rates.cluster_size;
  const int32_t ranks = num_jobs * cluster_size;
  const double share = 1.0 / ranks;
  double rank_us = 0, all_tiles = 1;
  for (size_t i = 0; i < work.tiles.size(); ++i) {
    if (work.tiles[i] == 0) continue;
    all_tiles += static_cast<double>(work.tiles[i]);
    rank_us += static_cast<double>(work.tiles[i]) * tile_times[i] * share;
  }
  JobParts parts{rank_us, 0, profile.job_start_us};
  for (size_t i = 0; i < work.tiles.size(); ++i) {
    if (work.tiles[i] == 0) continue;
    // Ranks take equal times of tiles: one may have nothing but the class with the most arithmetic.
    const double all_us = static_cast<double>(work.tiles[i]) * model_.compute_us()[i];
    if (ranks == 1)
      parts.compute_us += all_us;
    else
      parts.compute_us = std::max(
          parts.compute_us, std::min(all_us, rank_us * model_.compute_us()[i] / tile_times[i]));
  }
  // Every rank has a phase, and one more for every element that a run goes on to.
  const double phases =
      std::min<double>(work.num_phases, 1 + std::max(work.num_starts - 1, 0) * share);
  const double wide_phases = work.num_phases - (work.any_streams ? 1 : 0);
  const double starts_us =
      wide_phases * profile.item_start_us + (work.any_streams ? profile.stream_start_us : 0.0);
  if (work.num_phases > 0) parts.other_us += phases * starts_us / work.num_phases;
  parts.compute_us += work.num_items * share * model_.stream_item_us();
  if (ranks == 1) return parts;
  parts.tiles_us *= 1 + kRankSkew * std::countr_zero(static_cast<uint32_t>(cluster_size));

  // Partials that meet, one a row and rank: what streams have of the same rows adds little. Keys of
  // one query: where a run ends in the middle, or where runs are shorter than queries, everywhere. Shared
  // keys: every rank that has some of them holds partials of all rows.
  const double shared_ranks = static_cast<double>(work.shared_tiles) / all_tiles * ranks;
  const double own_ranks = ranks - shared_ranks;
  const double streams = std::clamp(all_tiles * share / kMinStreamPiece, 1.0,
                                    static_cast<double>(model_.num_streams()));
  double partial_rows = own_ranks * group_size_;
  if (work.num_queries > own_ranks)
    partial_rows *= std::min(1.0, 2 * std::max(own_ranks / work.num_queries, 1 / streams));
  const int32_t num_rows = work.num_queries * group_size_;
  if (work.shared_tiles > 0) partial_rows += num_rows * (1 + shared_ranks);
  // A rank first merges what its streams have of the same rows.
  if (streams > 1 && num_rows <= kMaxNarrowRows) parts.other_us += model_.own_merge_us(num_rows);
  parts.other_us +=
      model_.exchange_us(num_rows, static_cast<int64_t>(partial_rows / num_jobs), cluster_size);
  if (num_jobs > 1) {
    const int32_t split_rows = work.shared_tiles > 0 ? num_rows : 2 * group_size_;
    parts.other_us += model_.split_us(std::min(num_rows, split_rows), num_jobs, cluster_size);
  }
  return parts;
}

// Longest first on the least loaded of num_clusters. Clusters of equal load are counted, not listed: a job's
// heads take equal times, so there are few different loads.
double Grouping::makespan(int32_t num_clusters, double floor_us, double good_us) {
  double longest = 0, sum = 0;
  int64_t count = 0;
  for (const JobTime& job : job_times_) {
    longest = std::max(longest, job.us);
    sum += job.us * static_cast<double>(job.count);
    count += job.count;
  }
  double us = std::max({longest, sum / num_clusters, floor_us});
  if (count <= num_clusters || us >= good_us) return us;
  const auto longer = [](const JobTime& a, const JobTime& b) { return a.us > b.us; };
  std::sort(job_times_.begin(), job_times_.end(), longer);
  loads_.assign(1, {0.0, num_clusters});
  for (const JobTime& job : job_times_) {
    for (int64_t left = job.count; left > 0;) {
      JobTime& least = loads_.front();
      const int64_t taken = std::min(left, least.count);
      const JobTime loaded{least.us + job.us, taken};
      us = std::max(us, loaded.us);
      left -= taken;
      if (taken == least.count) {
        replace_least(&loads_, loaded, longer);
      } else {
        least.count -= taken;
        loads_.push_back(loaded);
        std::push_heap(loads_.begin(), loads_.end(), longer);
      }
    }
  }
  return us;
}

Grouping::Rates Grouping::rates(int32_t cluster_size, int32_t max_clusters) const {
  const int64_t num_heads = model_.shape().num_kv_heads;
  const auto wanted =
      std::max<int64_t>(num_pieces_, static_cast<int64_t>(groups_.size())) * num_heads;
  const auto active = static_cast<int>(std::min<int64_t>(max_clusters, wanted)) * cluster_size;
  // What is read again comes from L2, in flat plans too: requests that share a prefix walk it side by side.
  const double load_us =
      model_.load_us(active, static_cast<double>(planned_tiles_) /
                                 static_cast<double>(std::max<int64_t>(unique_tiles_, 1)));
  Rates rates;
  rates.cluster_size = cluster_size;
  rates.tile_times = model_.tile_times(load_us);
  rates.total_us = tiles_us(total_tiles_, rates.tile_times);
  const double min_job_us = kMinSteps * kWideTiles * cluster_size * rates.tile_times[0];
  rates.pieces_per_us = 1 / std::max(rates.total_us / num_pieces_, min_job_us);
  rates.ahead_us = model_.num_stages() * load_us;
  rates.hbm_us = static_cast<double>(unique_tiles_ * model_.tile_bytes() * num_heads) /
                 (model_.profile().hbm_gbps * 1e3);
  return rates;
}

double Grouping::tiles_us(const TileCounts& tiles, const TileTimes& tile_times) {
  double us = 0;
  for (size_t i = 0; i < tiles.size(); ++i) us += static_cast<double>(tiles[i]) * tile_times[i];
  return us;
}

int32_t Grouping::jobs_of(const GroupWork& work, const Rates& rates) {
  const double jobs = tiles_us(work.tiles, rates.tile_times) * rates.pieces_per_us + 0.5;
  return static_cast<int32_t>(std::clamp(jobs, 1.0, 1024.0));
}

// While a job merges and the next one starts, keys for that one come in, as many as there is room for.
double Grouping::job_us(const JobParts& parts, const Rates& rates) {
  return std::max(parts.tiles_us + std::max(parts.other_us - rates.ahead_us, 0.0),
                  parts.compute_us + parts.other_us);
}

double Grouping::lower_bound_us(const Rates& rates, int32_t max_clusters) const {
  const int64_t num_heads = model_.shape().num_kv_heads;
  const double even_us =
      rates.total_us * static_cast<double>(num_heads) / (rates.cluster_size * max_clusters);
  const GroupWork& heaviest = work_[heaviest_];
  const JobParts parts = job_parts(heaviest, jobs_of(heaviest, rates), rates);
  return model_.profile().launch_us + std::max({even_us, rates.hbm_us, job_us(parts, rates)});
}

Grouping::Estimate Grouping::evaluate(int32_t cluster_size, int32_t max_clusters, double good_us,
                                      double stop_us) {
  const int64_t num_heads = model_.shape().num_kv_heads;
  const double launch_us = model_.profile().launch_us;
  const Rates rates = this->rates(cluster_size, max_clusters);
  Estimate estimate{lower_bound_us(rates, max_clusters), planned_tiles_, rates.tile_times};
  if (estimate.us > stop_us) return estimate;
  job_times_.clear();
  double last_us = 0, sum_us = 0;
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (repeats_[i] != 0) {
      groups_[i].num_jobs = groups_[i - 1].num_jobs;
      job_times_.back().count += groups_[i].num_jobs * num_heads;
      continue;
    }
    groups_[i].num_jobs = jobs_of(work_[i], rates);
    const JobParts parts = job_parts(work_[i], groups_[i].num_jobs, rates);
    const double us = job_us(parts, rates);
    const int64_t num_jobs = groups_[i].num_jobs * num_heads;
    sum_us += us * static_cast<double>(num_jobs);
    estimate.us = launch_us + std::max(us, sum_us / max_clusters);
    if (estimate.us > stop_us) return estimate;
    job_times_.push_back({us, num_jobs});
    // After the last job nothing comes in.
    last_us = std::max(last_us, std::max(parts.tiles_us, parts.compute_us) + parts.other_us - us);
  }
  const double fixed_us = launch_us + last_us;
  estimate.us = fixed_us + makespan(max_clusters, rates.hbm_us, good_us - fixed_us);
  return estimate;
}

}  // namespace capillary
