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
constexpr double kNowhere = 1e300;

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
  places_.assign(count, {0.0, -1, 0, 0, 0});
  shared_.clear();
  unique_tiles_ = 0;
  read_nodes(forest, flat);
  index_cuts();
  forest_tiles_ = private_sum_.back();
  for (const SharedNode& node : shared_) forest_tiles_ += node.tiles;
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
      places_[at(node.request_begin) + 1].weight += share;
      if (node.request_end < num_queries_) places_[at(node.request_end) + 1].weight -= share;
    }
  }
  double share = 0;
  for (size_t i = 1; i < places_.size(); ++i) {
    share += places_[i].weight;
    places_[i].weight = places_[i - 1].weight + share + static_cast<double>(private_sum_[i]);
    private_sum_[i] += private_sum_[i - 1];
  }
}

void Grouping::index_cuts() {
  first_shared_at_.resize(places_.size());
  wide_levels_.resize(shared_.size());
  stack_.clear();
  size_t next = 0;
  for (int32_t query = 0; query < num_queries_; ++query) {
    first_shared_at_[at(query)] = static_cast<int32_t>(next);
    while (!stack_.empty() && shared_[at(stack_.back())].query_end <= query) stack_.pop_back();
    if (!stack_.empty()) {
      const SharedNode& above = shared_[at(stack_.back())];
      Place& place = places_[at(query)];
      place.node = stack_.back();
      place.tiles = above.path_tiles;
      place.left = above.query_begin, place.right = above.query_end;
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
// On each side of the middle, going away, more work moves, so of the cuts through one node the nearest is best, and the
// next to look at is where that node ends.
inline Grouping::Cut Grouping::best_cut(double ideal, int32_t middle, int32_t first, int32_t last,
                                        double reach) const {
  const Place* const places = places_.data();
  Cut best{-1, middle, first - 1, 0};
  double best_cost = kNowhere,
         limit = kNowhere;  // how far to look; only the first may be past reach
  const auto consider = [&](int32_t place, double moved) {
    const double cost = moved + places[place].tiles;
    if (cost < best_cost) best.place = place, best_cost = cost, limit = std::min(cost, reach);
  };
  const auto is_near = [&](double moved) { return moved < best_cost && moved <= limit; };
  if (middle < first)
    best.next = first - 1;
  else if (middle <= last)
    consider(middle, std::abs(places[middle].weight - ideal));
  for (int32_t place = std::min(middle - 1, last);;) {
    const double moved = ideal - places[place].weight;
    if (!is_near(moved)) break;
    if (place < first) {
      best.next = std::max(best.next, place);
      break;
    }
    consider(place, moved);
    if (places[place].node < 0) break;
    place = places[place].left;
  }
  for (int32_t place = std::max(middle + 1, first); place <= last;) {
    const double moved = places[place].weight - ideal;
    if (!is_near(moved)) break;
    consider(place, moved);
    if (places[place].node < 0) break;
    place = places[place].right;
  }
  return best;
}

void Grouping::begin_groups() {
  groups_.clear();
  is_summed_ = false;
  read_tiles_ = forest_tiles_;
}

bool Grouping::cut(int32_t num_pieces) {
  num_pieces_ = std::max(num_pieces, 1);
  cuts_.clear();
  begin_groups();
  const Place* const places = places_.data();
  const double share = places_.back().weight / num_pieces_;
  bool cuts_trees = false;
  int32_t begin = 0, middle = 0;
  for (int32_t piece = 1; piece < num_pieces_ && share > 0; ++piece) {
    const double ideal = share * piece;
    while (places[middle].weight < ideal) ++middle;  // at the end it is not
    if (middle >= num_queries_) break;
    const Cut cut = best_cut(ideal, middle, begin + 1, num_queries_ - 1, kCutReach * share);
    cuts_.push_back(cut);
    if (cut.place <= begin) continue;
    cuts_trees |= places[cut.place].tiles > kMaxReread * share;
    add_groups(begin, cut.place);
    begin = cut.place;
  }
  add_groups(begin, num_queries_);
  return cuts_trees;
}

void Grouping::keep_trees() {
  begin_groups();
  const Place* const places = places_.data();
  const double share = places_.back().weight / num_pieces_;
  int32_t begin = 0, piece = 0;
  for (const Cut& cut : cuts_) {
    ++piece;
    // Without the cuts before it, a group begins earlier than when this one was chosen.
    const int32_t place = begin >= cut.next ? cut.place
                                            : best_cut(share * piece, cut.middle, begin + 1,
                                                       num_queries_ - 1, kCutReach * share)
                                                  .place;
    if (place <= begin || places[place].tiles > kMaxReread * share) continue;
    add_groups(begin, place);
    begin = place;
  }
  add_groups(begin, num_queries_);
}

// As few groups as the rows of a job allow, again cut where it costs least.
void Grouping::cut_by_rows(int32_t begin, int32_t end) {
  const int32_t parts = (end - begin + max_queries_ - 1) / max_queries_;
  const double from = places_[at(begin)].weight;
  const double share = (places_[at(end)].weight - from) / parts;
  for (int32_t part = 1; part < parts; ++part) {
    const int32_t first = std::max(begin + 1, end - (parts - part) * max_queries_);
    const int32_t last = std::min(begin + max_queries_, end - (parts - part));
    const double ideal = from + share * part;
    const auto middle = static_cast<int32_t>(
        std::lower_bound(places_.begin() + first, places_.begin() + last, ideal,
                         [](const Place& place, double weight) { return place.weight < weight; }) -
        places_.begin());
    const int32_t place = best_cut(ideal, middle, first, last, share).place;
    add_group(begin, place);
    begin = place;
  }
  add_group(begin, end);
}

inline void Grouping::sum_group(int32_t begin, int32_t end, GroupWork* work) {
  const SharedNode* const shared = shared_.data();
  TileCounts& tiles =
      work->tiles;  // still zero; copied from the stack, they would have to wait for it
  int32_t shared_tiles = 0, num_items = 0, num_starts = 0;
  // Returns whether the element is wide.
  const auto add = [&](int32_t queries, int32_t element_tiles) {
    const int32_t num_rows = queries * group_size_;
    const int32_t reads = model_.stream_reads(num_rows, element_tiles);
    shared_tiles += element_tiles;
    num_items += reads;
    if (reads > 0) {
      tiles[0] += static_cast<double>(int64_t{element_tiles} * reads);
      return 0;
    }
    tiles[static_cast<size_t>(tile_class(num_rows))] += element_tiles;
    ++num_starts;
    return 1;
  };
  // Nodes that reach in from the left, deepest first; they serve the group's first queries. Nodes that begin with the
  // group and serve the same queries as the deepest of these go on with its element.
  const int32_t inside = first_shared_at_[at(begin)], inside_end = first_shared_at_[at(end)];
  const int32_t deepest = places_[at(begin)].node;
  int32_t outer_levels = 0, first = inside, element_tiles = 0;
  if (deepest >= 0)
    for (const int32_t reached = std::min(shared[deepest].query_end, end);
         first < inside_end && shared[first].query_begin == begin &&
         std::min(shared[first].query_end, end) == reached;
         ++first)
      element_tiles += shared[first].tiles;
  for (int32_t i = deepest; i >= 0; element_tiles = 0) {
    const int32_t reached = std::min(shared[i].query_end, end);
    for (; i >= 0 && std::min(shared[i].query_end, end) == reached; i = shared[i].parent)
      element_tiles += shared[i].tiles;
    if (element_tiles > 0) outer_levels += add(reached - begin, element_tiles);
  }
  for (int32_t i = inside; i < first; ++i) wide_levels_[at(i)] = outer_levels;
  int32_t num_phases = outer_levels;
  for (int32_t i = first; i < inside_end;) {
    const int32_t node_begin = shared[i].query_begin, node_end = std::min(shared[i].query_end, end);
    int32_t level = shared[i].parent >= inside ? wide_levels_[at(shared[i].parent)] : outer_levels;
    // Nodes with the same queries are one element; they lie one after the other.
    int32_t next = i;
    element_tiles = 0;
    for (; next < inside_end && shared[next].query_begin == node_begin &&
           std::min(shared[next].query_end, end) == node_end;
         ++next)
      element_tiles += shared[next].tiles;
    level += add(node_end - node_begin, element_tiles);
    num_phases = std::max(num_phases, level);
    for (; i < next; ++i) wide_levels_[at(i)] = level;
  }
  const int64_t own = private_sum_[at(end)] - private_sum_[at(begin)];
  const bool own_is_wide = group_size_ > kMaxNarrowRows;
  if (own > 0) {
    tiles[static_cast<size_t>(tile_class(group_size_))] += static_cast<double>(own);
    if (own_is_wide)
      ++num_starts, ++num_phases;
    else
      num_items += end - begin;
  }
  const bool any_streams = num_items > 0;
  work->num_queries = end - begin;
  work->shared_tiles = shared_tiles;
  work->num_items = num_items;
  work->any_streams = any_streams;
  work->starts_us = num_phases * model_.profile().item_start_us +
                    (any_streams ? model_.profile().stream_start_us : 0.0);
  work->num_starts = num_starts + (any_streams ? 1 : 0);
  work->num_phases = num_phases + (any_streams ? 1 : 0);
}

void Grouping::sum_work() {
  if (is_summed_) return;
  is_summed_ = true;
  work_.clear();
  total_tiles_ = {};
  longest_ = 0;
  least_tiles_ = kNowhere;
  least_queries_ = INT32_MAX;
  double most_tiles = 0;
  for (const QueryGroup& group : groups_) {
    GroupWork& work = work_.emplace_back();
    sum_group(group.query_begin, group.query_end, &work);
    const double tiles = work.tiles[0] + work.tiles[1] + work.tiles[2];
    for (size_t i = 0; i < total_tiles_.size(); ++i) total_tiles_[i] += work.tiles[i];
    if (tiles > most_tiles) most_tiles = tiles, longest_ = work_.size() - 1;
    least_tiles_ = std::min(least_tiles_, tiles);
    least_queries_ = std::min(least_queries_, work.num_queries);
    if (work_.size() == 1) continue;
    const GroupWork& before = (&work)[-1];
    work.repeats = work.tiles == before.tiles && work.num_queries == before.num_queries &&
                   work.shared_tiles == before.shared_tiles &&
                   work.num_phases == before.num_phases && work.num_starts == before.num_starts &&
                   work.num_items == before.num_items && work.any_streams == before.any_streams;
  }
  planned_tiles_ = static_cast<int64_t>(total_tiles_[0] + total_tiles_[1] + total_tiles_[2]);
}

inline Grouping::JobParts Grouping::job_parts(const GroupWork& work, int32_t num_jobs,
                                              const Rates& rates) const {
  const TileTimes& compute_us = model_.compute_us();
  const int32_t cluster_size = rates.cluster_size;
  const int32_t ranks = num_jobs * cluster_size;
  const double share = 1.0 / ranks;
  double rank_us = 0, all_tiles = 1;
  for (size_t i = 0; i < work.tiles.size(); ++i) {
    all_tiles += work.tiles[i];
    rank_us += work.tiles[i] * rates.tile_times[i] * share;
  }
  JobParts parts{rank_us, 0, model_.profile().job_start_us};
  // Every rank has a phase, and one more for every element that a run goes on to.
  if (work.num_phases > 0) {
    const double phases =
        std::min<double>(work.num_phases, 1 + std::max(work.num_starts - 1, 0) * share);
    parts.other_us += phases * work.starts_us / work.num_phases;
  }
  const double items_us = work.num_items * share * model_.stream_item_us();
  if (ranks == 1) {
    for (size_t i = 0; i < work.tiles.size(); ++i)
      parts.compute_us += work.tiles[i] * compute_us[i];
    parts.compute_us += items_us;
    return parts;
  }
  for (size_t i = 0; i < work.tiles.size(); ++i) {
    if (work.tiles[i] == 0) continue;
    // Ranks take equal times of tiles: one may have nothing but the class with the most arithmetic.
    parts.compute_us = std::max(
        parts.compute_us,
        std::min(work.tiles[i] * compute_us[i], rank_us * compute_us[i] / rates.tile_times[i]));
  }
  parts.compute_us += items_us;
  parts.tiles_us *= rates.skew;

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
inline double Grouping::makespan(int32_t num_clusters, double floor_us, double good_us) {
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
  // Some cluster has two of the longest num_clusters + 1.
  int64_t before = 0;
  double shortest_of_first = 0;
  for (const JobTime& job : job_times_) {
    before += job.count;
    if (shortest_of_first == 0 && before >= num_clusters) shortest_of_first = job.us;
    if (before <= num_clusters) continue;
    us = std::max(us, shortest_of_first + job.us);
    break;
  }
  if (us >= good_us) return us;
  loads_.assign(1, {0.0, num_clusters});
  for (const JobTime& job : job_times_) {
    for (int64_t left = job.count; left > 0;) {
      JobTime& least = loads_.front();
      const int64_t taken = std::min(left, least.count);
      const JobTime loaded{least.us + job.us, taken};
      us = std::max(us, loaded.us);
      if (us >= good_us) return us;
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

inline int Grouping::active_ctas(int32_t cluster_size, int32_t max_clusters) const {
  const auto wanted = std::max<int64_t>(num_pieces_, static_cast<int64_t>(groups_.size())) *
                      model_.shape().num_kv_heads;
  return static_cast<int>(std::min<int64_t>(max_clusters, wanted)) * cluster_size;
}

inline Grouping::Rates Grouping::rates(int32_t cluster_size, int32_t max_clusters) const {
  const int64_t num_heads = model_.shape().num_kv_heads;
  // What is read again comes from L2, in flat plans too: requests that share a prefix walk it side by side.
  const double load_us =
      model_.load_us(active_ctas(cluster_size, max_clusters),
                     static_cast<double>(planned_tiles_) /
                         static_cast<double>(std::max<int64_t>(unique_tiles_, 1)));
  Rates rates;
  rates.cluster_size = cluster_size;
  rates.tile_times = model_.tile_times(load_us);
  rates.total_us = tiles_us(total_tiles_, rates.tile_times);
  const double min_job_us = kMinSteps * kWideTiles * cluster_size * rates.tile_times[0];
  rates.pieces_per_us = 1 / std::max(rates.total_us / num_pieces_, min_job_us);
  rates.skew = 1 + kRankSkew * std::countr_zero(static_cast<uint32_t>(cluster_size));
  rates.ahead_us = model_.num_stages() * load_us;
  rates.hbm_us = static_cast<double>(unique_tiles_ * model_.tile_bytes() * num_heads) /
                 (model_.profile().hbm_gbps * 1e3);
  return rates;
}

// What holds up the arithmetic of every job at least: starts, and the exchange of the group with the fewest rows. In
// partials that is the least: keys of one query in each rank, of which streams share the rows.
double Grouping::least_other_us(int32_t cluster_size) const {
  const DeviceProfile& profile = model_.profile();
  double us = profile.job_start_us;
  if (least_tiles_ > 0) us += std::min(profile.item_start_us, profile.stream_start_us);
  const double partial_rows =
      cluster_size * group_size_ * std::min(1.0, 2.0 / model_.num_streams());
  return us + model_.exchange_us(int64_t{least_queries_} * group_size_,
                                 static_cast<int64_t>(partial_rows), cluster_size);
}

// All tiles dealt evenly, as if they were of the class with the least arithmetic.
double Grouping::reading_bound_us(int32_t cluster_size, int32_t max_clusters) const {
  const auto num_heads = static_cast<double>(model_.shape().num_kv_heads);
  const auto tiles = static_cast<double>(read_tiles_);
  const double load_us =
      model_.load_us(active_ctas(cluster_size, max_clusters),
                     tiles / static_cast<double>(std::max<int64_t>(unique_tiles_, 1)));
  const TileTimes& compute_us = model_.compute_us();
  const double tile_us = std::max(load_us, std::min({compute_us[0], compute_us[1], compute_us[2]}));
  return model_.profile().launch_us + tiles * tile_us * num_heads / (cluster_size * max_clusters);
}

Grouping::Bound Grouping::bound(const Rates& rates, int32_t max_clusters) const {
  const int64_t num_heads = model_.shape().num_kv_heads;
  const auto num_groups = static_cast<double>(groups_.size());
  // Every job besides its tiles.
  const double start_us = std::max(least_other_us(rates.cluster_size) - rates.ahead_us, 0.0);
  const double pieces = rates.total_us * rates.pieces_per_us;
  const double num_jobs =
      std::max(num_groups, pieces < kMaxJobs ? pieces - 0.5 * num_groups : 0.0) *
      static_cast<double>(num_heads);
  const double even_us =
      (rates.total_us * static_cast<double>(num_heads) / rates.cluster_size + num_jobs * start_us) /
      max_clusters;
  // Some cluster has this many jobs, none of which is shorter than one of the lightest group.
  const double rounds = std::ceil(num_jobs / max_clusters);
  const double least_us =
      least_tiles_ * std::min({rates.tile_times[0], rates.tile_times[1], rates.tile_times[2]});
  const double round_us =
      least_us / (std::max(least_us * rates.pieces_per_us + 0.5, 1.0) * rates.cluster_size) +
      start_us;
  const GroupWork& longest = work_[longest_];
  const JobParts parts =
      job_parts(longest, jobs_of(tiles_us(longest.tiles, rates.tile_times), rates), rates);
  const double us = job_us(parts, rates);
  const double fixed_us = model_.profile().launch_us + last_us(parts, us);
  return {fixed_us + std::max({even_us, rounds * round_us, rates.hbm_us, us}), fixed_us + even_us};
}

double Grouping::lower_bound_us(int32_t cluster_size, int32_t max_clusters) {
  sum_work();
  return bound(rates(cluster_size, max_clusters), max_clusters).us;
}

Grouping::Estimate Grouping::evaluate(int32_t cluster_size, int32_t max_clusters, double good_us) {
  const int64_t num_heads = model_.shape().num_kv_heads;
  const double launch_us = model_.profile().launch_us;
  Estimate estimate{reading_bound_us(cluster_size, max_clusters), read_tiles_, {}, true, true};
  if (estimate.us >= good_us) return estimate;
  sum_work();
  const Rates rates = this->rates(cluster_size, max_clusters);
  const Bound least = bound(rates, max_clusters);
  estimate = {least.us, planned_tiles_, rates.tile_times, least.total_us >= good_us,
              least.us >= good_us};
  if (estimate.by_bound) return estimate;
  job_times_.clear();
  // Of all jobs: what is known of the groups so far, and the least that the others take.
  const auto heads = static_cast<double>(num_heads);
  const double start_us = std::max(least_other_us(cluster_size) - rates.ahead_us, 0.0) * heads;
  const double tiles_share = heads / cluster_size;
  double sum_us = rates.total_us * tiles_share + start_us * static_cast<double>(groups_.size());
  double last = 0, longest_us = 0, group_sum_us = 0;
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (work_[i].repeats) {
      groups_[i].num_jobs = groups_[i - 1].num_jobs;
      job_times_.back().count += groups_[i].num_jobs * num_heads;
      sum_us += group_sum_us;
      continue;
    }
    const double group_us = tiles_us(work_[i].tiles, rates.tile_times);
    groups_[i].num_jobs = jobs_of(group_us, rates);
    const JobParts parts = job_parts(work_[i], groups_[i].num_jobs, rates);
    const double us = job_us(parts, rates);
    if (us > longest_us) longest_us = us, longest_ = i;
    const int64_t num_jobs = groups_[i].num_jobs * num_heads;
    group_sum_us = us * static_cast<double>(num_jobs) - group_us * tiles_share - start_us;
    sum_us += group_sum_us;
    last = std::max(last, last_us(parts, us));
    estimate.us = launch_us + last + std::max(longest_us, sum_us / max_clusters);
    if (estimate.us >= good_us) return estimate;
    job_times_.push_back({us, num_jobs});
  }
  const double fixed_us = launch_us + last;
  // What is not finished because it is not good must not come out good by a rounding.
  const double enough_us = good_us - fixed_us + 1e-9 * good_us;
  estimate.us = fixed_us + makespan(max_clusters, rates.hbm_us, enough_us);
  return estimate;
}

}  // namespace capillary
