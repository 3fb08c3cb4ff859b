// SPDX-License-Identifier: MIT
// PlanBuilder, second half: who merges which rows, which cluster runs which job, and the blob itself.
#include <algorithm>
#include <cstring>
#include <tuple>

#include "capillary/error.h"
#include "core/hash.h"
#include "core/least_heap.h"
#include "core/plan_builder.h"

namespace capillary {

namespace {
// A row with this many partials is merged rank by rank first. With fewer the extra pass seemed to cost
// more than the peers' reads that it saves; 128 gained 4 us on an H200. Nothing in between was tried (docs/kernel.md).
constexpr uint32_t kManyPartials = 32;
}  // namespace

inline bool PlanBuilder::same_entries(int32_t query_a, int32_t query_b) const {
  const QueryState& state_a = queries_[static_cast<size_t>(query_a)];
  const QueryState& state_b = queries_[static_cast<size_t>(query_b)];
  if (state_b.finished) return false;
  const int32_t shift = (query_b - query_a) * group_size_;
  int32_t a = state_a.entry_head, b = state_b.entry_head;
  for (; a >= 0 && b >= 0;
       a = entries_[static_cast<size_t>(a)].next, b = entries_[static_cast<size_t>(b)].next) {
    const Entry& entry_a = entries_[static_cast<size_t>(a)];
    const Entry& entry_b = entries_[static_cast<size_t>(b)];
    if (entry_a.run != entry_b.run || entry_b.slot - entry_a.slot != shift) return false;
  }
  return a < 0 && b < 0;
}

// The next queries from `*query` on that nothing has finished and whose partials lie alike: their merge, without partials
// so far. Returns where they end; `*query`, the group's end, if there are none.
inline int32_t PlanBuilder::next_merge(const QueryGroup& group, int32_t* query,
                                       Merge* merge) const {
  int32_t begin = *query;
  while (begin < group.query_end && queries_[static_cast<size_t>(begin)].finished) ++begin;
  *query = begin;
  if (begin == group.query_end) return begin;
  int32_t end = begin + 1;
  while (end < group.query_end && same_entries(begin, end)) ++end;
  *merge = {};
  merge->row_begin = static_cast<uint16_t>((begin - group.query_begin) * group_size_);
  merge->num_rows = static_cast<uint16_t>((end - begin) * group_size_);
  merge->destination = Destination::kOutput;
  return end;
}

// A group of one job on one CTA: all merges are of its own slots, in order.
void PlanBuilder::emit_own_merges(const QueryGroup& group) {
  const auto job = static_cast<size_t>(first_job_);
  JobCost& cost = job_costs_[job];
  RankWork& work = rank_works_[job];
  work.merge_begin = merges_.size();
  work.partial_begin = partials_.size();
  for (int32_t query = group.query_begin; query < group.query_end;) {
    Merge merge;
    const int32_t query_end = next_merge(group, &query, &merge);
    if (query_end == query) break;
    merge.partial_begin = partials_.size();
    for (int32_t entry = query_state(query).entry_head; entry >= 0;) {
      const Entry& e = entries_[static_cast<size_t>(entry)];
      partials_.push_back({0, static_cast<uint16_t>(e.slot)});
      entry = e.next;
    }
    merge.num_partials = static_cast<uint16_t>(partials_.size() - merge.partial_begin);
    merges_.push_back(merge);
    cost.rows += merge.num_rows;
    cost.partial_rows += static_cast<int64_t>(merge.num_rows) * merge.num_partials;
    query = query_end;
  }
  work.num_merges = merges_.size() - work.merge_begin;
  work.num_partials = partials_.size() - work.partial_begin;
}

void PlanBuilder::emit_merges(const QueryGroup& group) {
  if (num_group_jobs_ == 1 && cluster_size_ == 1) return emit_own_merges(group);
  placed_merges_.clear();
  partials_scratch_.clear();
  // shared-l2 is what exchange through DSM is compared with: there every rank is a part of its own.
  const int32_t part_shift = mode_ == Mode::kSharedL2 ? 0 : cluster_shift_;
  for (int32_t query = group.query_begin; query < group.query_end;) {
    Merge merge;
    const int32_t query_end = next_merge(group, &query, &merge);
    if (query_end == query) break;
    const size_t first = placed_merges_.size();
    for (int32_t entry = query_state(query).entry_head; entry >= 0;) {
      const int32_t run = entries_[static_cast<size_t>(entry)].run;
      const int32_t job = job_of(run), part = run >> part_shift;
      const int32_t home = run - (job << cluster_shift_);
      bool is_home = true;
      merge.partial_begin = partials_scratch_.size();
      // In run order, so that partials of a merge lie rank by rank.
      do {
        const Entry& e = entries_[static_cast<size_t>(entry)];
        if (e.run >> part_shift != part) break;
        is_home &= e.run == run;
        partials_scratch_.push_back({static_cast<uint16_t>(e.run - (job << cluster_shift_)),
                                     static_cast<uint16_t>(e.slot)});
        entry = e.next;
      } while (entry >= 0);
      merge.num_partials = static_cast<uint16_t>(partials_scratch_.size() - merge.partial_begin);
      placed_merges_.push_back({job, is_home ? home : -1, merge});
    }
    if (placed_merges_.size() == first) placed_merges_.push_back({0, 0, merge});  // no key anywhere
    const size_t num_parts = placed_merges_.size() - first;
    if (num_parts > 1) {
      for (size_t part = 0; part < num_parts; ++part) {
        Merge& placed = placed_merges_[first + part].merge;
        placed.destination = Destination::kWorkspace;
        placed.split = splits_.size();
        placed.split_part = static_cast<uint16_t>(part);
      }
      splits_.push_back({split_row_count_, merge.num_rows, static_cast<uint16_t>(num_parts)});
      split_row_count_ += static_cast<uint32_t>(num_parts) * merge.num_rows;
      split_rows_ += static_cast<int64_t>(num_parts) * merge.num_rows;
    }
    query = query_end;
  }
  if (num_group_jobs_ > 1)
    std::sort(placed_merges_.begin(), placed_merges_.end(), [](const auto& a, const auto& b) {
      return std::tuple(a.job, a.merge.row_begin, a.merge.split_part) <
             std::tuple(b.job, b.merge.row_begin, b.merge.split_part);
    });
  size_t next = 0;
  for (int32_t job = 0; job < num_group_jobs_; ++job) {
    const size_t begin = next;
    while (next < placed_merges_.size() && placed_merges_[next].job == job) ++next;
    place_job_merges(job,
                     std::span<const PlacedMerge>(placed_merges_.data() + begin, next - begin));
  }
}

// Merges of one rank's own slots stay there; the others are dealt out in equal shares of rows.
void PlanBuilder::place_job_merges(int32_t job, std::span<const PlacedMerge> merges) {
  // Partials lie rank by rank. Where there are many, all but the first of each rank are merged into that before
  // the exchange.
  const auto rank_end = [&](const Merge& merge, uint32_t first) {
    const Partial* partials = partials_scratch_.data() + merge.partial_begin;
    uint32_t end = first + 1;
    if (merge.num_partials < kManyPartials) return end;
    while (end < merge.num_partials && partials[end].rank == partials[first].rank) ++end;
    return end;
  };
  int64_t shared_rows = 0;
  const size_t job_index = static_cast<size_t>(first_job_ + job);
  JobCost& cost = job_costs_[job_index];
  bool many_partials = false;  // somewhere, that meet
  for (const auto& [unused, owner, merge] : merges) {
    cost.rows += merge.num_rows;
    if (owner >= 0) {
      cost.partial_rows += static_cast<int64_t>(merge.num_rows) * merge.num_partials;
      continue;
    }
    int64_t num_ranks = merge.num_partials;
    if (merge.num_partials >= kManyPartials) {
      many_partials = true;
      num_ranks = 0;
      for (uint32_t i = 0; i < merge.num_partials; i = rank_end(merge, i)) ++num_ranks;
    }
    cost.partial_rows += merge.num_rows * num_ranks;
    shared_rows += merge.num_rows;
    exchange_rows_ += merge.num_rows * (num_ranks - 1);
  }
  cost.exchange = shared_rows > 0;
  jobs_[job_index].needs_exchange = shared_rows > 0 ? 1 : 0;
  if (shared_rows > 0) cost.us += model_.exchange_us(cost.rows, cost.partial_rows, cluster_size_);
  for (int32_t rank = 0; rank < cluster_size_; ++rank) {
    RankWork& work =
        rank_works_[job_index * static_cast<size_t>(cluster_size_) + static_cast<size_t>(rank)];
    work.merge_begin = merges_.size();
    work.partial_begin = partials_.size();
    for (const auto& [unused, owner, merge] : merges) {
      if (!many_partials) break;
      if (owner >= 0) continue;
      const Partial* partials = partials_scratch_.data() + merge.partial_begin;
      for (uint32_t i = 0, end = 0; i < merge.num_partials; i = end) {
        end = rank_end(merge, i);
        if (partials[i].rank != rank || end - i < 2) continue;
        Merge local{};
        local.row_begin = merge.row_begin;
        local.num_rows = merge.num_rows;
        local.num_partials = static_cast<uint16_t>(end - i);
        local.destination = Destination::kSlot;
        local.partial_begin = partials_.size();
        for (uint32_t j = i; j < end; ++j) partials_.push_back(partials[j]);
        merges_.push_back(local);
      }
    }
    const int64_t share_begin = (shared_rows * rank) >> cluster_shift_;
    const int64_t share_end = (shared_rows * (rank + 1)) >> cluster_shift_;
    int64_t row = 0;  // of the shared rows
    for (const auto& [unused, owner, merge] : merges) {
      int64_t begin = 0, end = merge.num_rows;
      if (owner < 0) {
        begin = std::max<int64_t>(share_begin - row, 0);
        end = std::min<int64_t>(share_end - row, merge.num_rows);
        row += merge.num_rows;
      }
      if ((owner >= 0 && owner != rank) || begin >= end) continue;
      Merge placed = merge;
      placed.row_begin = static_cast<uint16_t>(merge.row_begin + begin);
      placed.num_rows = static_cast<uint16_t>(end - begin);
      if (merge.destination == Destination::kWorkspace)
        placed.split_row = static_cast<uint16_t>(begin);
      placed.partial_begin = partials_.size();
      const Partial* const partials = partials_scratch_.data() + merge.partial_begin;
      const auto slot_shift = static_cast<uint16_t>(begin);
      const auto moved = [&](uint32_t i) {
        return Partial{partials[i].rank, static_cast<uint16_t>(partials[i].slot + slot_shift)};
      };
      if (owner >= 0 || merge.num_partials < kManyPartials) {
        Partial* const all = partials_.append(merge.num_partials);
        for (uint32_t i = 0; i < merge.num_partials; ++i) all[i] = moved(i);
      } else {
        for (uint32_t i = 0; i < merge.num_partials; i = rank_end(merge, i))
          partials_.push_back(moved(i));
        placed.num_partials = static_cast<uint16_t>(partials_.size() - placed.partial_begin);
      }
      merges_.push_back(placed);
    }
    work.num_merges = merges_.size() - work.merge_begin;
    work.num_partials = partials_.size() - work.partial_begin;
  }
}

void PlanBuilder::schedule() {
  const auto num_heads = static_cast<uint32_t>(model_.shape().num_kv_heads);
  const auto num_jobs = static_cast<uint32_t>(jobs_.size());
  const uint32_t total = num_jobs * num_heads;
  num_clusters_ =
      fixed_grid_ ? max_clusters_ : std::min(max_clusters_, static_cast<int32_t>(total));
  const auto clusters = static_cast<uint32_t>(num_clusters_);
  order_.resize(num_jobs);
  double shortest = 1e30, longest = 0;
  for (uint32_t job = 0; job < num_jobs; ++job) {
    order_[job] = job;
    shortest = std::min(shortest, job_costs_[job].us);
    longest = std::max(longest, job_costs_[job].us);
  }
  const bool equal = longest <= shortest * 1.03;
  if (!equal)
    std::sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
      const double us_a = job_costs_[a].us, us_b = job_costs_[b].us;
      return us_a > us_b || (us_a == us_b && a < b);
    });
  // Longest first on the least loaded cluster; neighbours in leaf order start together, so that an ancestor
  // they both read is still in L2 for the second.
  assigned_.resize(total);
  schedule_begin_.assign(clusters + 1, 0);
  // Neighbours of equal load are one entry of the heap: a job's heads, which take equal times, mostly go to such.
  const auto later = [](const Load& a, const Load& b) {
    return a.us > b.us || (a.us == b.us && a.begin > b.begin);
  };
  loads_.assign(1, {0.0, 0, clusters});
  uint32_t entry = 0, next = 0;
  for (const uint32_t job : order_) {
    const double us = job_costs_[job].us + model_.profile().job_start_us;
    for (uint32_t left = num_heads; left > 0;) {
      if (equal) {
        assigned_[entry++] = next;
        next = next + 1 == clusters ? 0 : next + 1;
        --left;
        continue;
      }
      const Load least = loads_.front();
      const uint32_t end = least.begin + std::min(left, least.end - least.begin);
      left -= end - least.begin;
      for (uint32_t cluster = least.begin; cluster < end; ++cluster) assigned_[entry++] = cluster;
      const Load loaded{least.us + us, least.begin, end};
      if (end == least.end) {
        replace_least(&loads_, loaded, later);
      } else {
        replace_least(&loads_, Load{least.us, end, least.end}, later);
        loads_.push_back(loaded);
        std::push_heap(loads_.begin(), loads_.end(), later);
      }
    }
  }
  for (const uint32_t cluster : assigned_) schedule_begin_[cluster + 1] += 1;
  for (uint32_t cluster = 0; cluster < clusters; ++cluster)
    schedule_begin_[cluster + 1] += schedule_begin_[cluster];
  schedule_.resize(total);
  cursor_.assign(schedule_begin_.begin(), schedule_begin_.end());
  entry = 0;
  for (const uint32_t job : order_)
    for (uint32_t head = 0; head < num_heads; ++head, ++entry)
      schedule_[cursor_[assigned_[entry]]++] = {job, head};

  rank_starts_.assign(clusters * static_cast<uint32_t>(cluster_size_), RankStart{});
  for (uint32_t cta = 0; cta < rank_starts_.size(); ++cta) {
    const uint32_t cluster = cta / static_cast<uint32_t>(cluster_size_);
    const uint32_t rank = cta % static_cast<uint32_t>(cluster_size_);
    RankStart& start = rank_starts_[cta];
    start.schedule_begin = schedule_begin_[cluster];
    start.schedule_end = schedule_begin_[cluster + 1];
    if (start.schedule_begin == start.schedule_end) continue;
    start.entry = schedule_[start.schedule_begin];
    start.job = jobs_[start.entry.job];
    start.work = rank_works_[start.entry.job * static_cast<uint32_t>(cluster_size_) + rank];
  }
}

namespace {

constexpr size_t padded_words(size_t bytes) {
  return (bytes + 15) / 16 * 2;
}

// Fills words that are there already; the gap after an array is zero.
class BlobWriter {
 public:
  explicit BlobWriter(uint64_t* words) : words_(words), next_(sizeof(PlanHeader) / 8) {}
  template <class T>
  uint32_t append(std::span<const T> array) {
    const size_t offset = next_;
    next_ += padded_words(array.size_bytes());
    if (array.empty()) return static_cast<uint32_t>(offset * 8);
    words_[next_ - 2] = words_[next_ - 1] = 0;
    std::memcpy(words_ + offset, array.data(), array.size_bytes());
    return static_cast<uint32_t>(offset * 8);
  }

 private:
  uint64_t* words_;
  size_t next_;
};

}  // namespace

void PlanBuilder::assemble(uint64_t profile_hash, double predicted_us,
                           std::vector<uint64_t>* words) const {
  const ModelShape& shape = model_.shape();
  PlanHeader header{};
  header.magic = kPlanMagic;
  header.version = kPlanVersion;
  header.profile_hash = profile_hash;
  header.mode = static_cast<uint32_t>(mode_ == Mode::kFlat       ? PlanMode::kFlat
                                      : mode_ == Mode::kSharedL2 ? PlanMode::kSharedL2
                                                                 : PlanMode::kAuto);
  header.num_requests = forest_->num_requests();
  header.num_queries = forest_->num_requests();
  header.num_q_heads = shape.num_q_heads;
  header.num_kv_heads = shape.num_kv_heads;
  header.head_dim = shape.head_dim;
  header.head_dim_v = shape.v_dim();
  header.page_size = forest_->page_size();
  header.unique_tokens = forest_->unique_tokens();
  header.flat_tokens = forest_->flat_tokens();
  header.cluster_size = cluster_size_;
  header.num_clusters = num_clusters_;
  header.num_streams = table_.num_streams;
  header.max_slots = max_slots_;
  header.window_left = -1;
  const auto words_of = [](const auto&... arrays) {
    return (padded_words(arrays.size() * sizeof(arrays[0])) + ...);
  };
  const size_t num_words =
      sizeof(PlanHeader) / 8 + words_of(rank_starts_, forest_->leaf_order(), schedule_begin_,
                                        schedule_, jobs_, rank_works_, phases_, items_, segments_,
                                        merges_, partials_, splits_);
  if (num_words * 8 > UINT32_MAX)
    throw UnsupportedConfig(five_parts(
        "Planner::plan", "batch", "needs a plan of " + std::to_string(num_words * 8) + " bytes",
        "fit 4 GiB", "plan fewer requests a step"));
  header.total_bytes = static_cast<uint32_t>(num_words * 8);
  words->resize(num_words);
  BlobWriter writer(words->data());
  writer.append(std::span<const RankStart>(rank_starts_));  // at kRankStartOffset
  header.query_order_offset = writer.append(forest_->leaf_order());
  header.schedule_begin_offset = writer.append(std::span<const uint32_t>(schedule_begin_));
  header.schedule_offset = writer.append(std::span<const ScheduleEntry>(schedule_));
  header.num_scheduled = static_cast<uint32_t>(schedule_.size());
  header.jobs_offset = writer.append(std::span<const Job>(jobs_));
  header.num_jobs = static_cast<uint32_t>(jobs_.size());
  header.rank_works_offset = writer.append(std::span<const RankWork>(rank_works_));
  header.phases_offset = writer.append(std::span<const Phase>(phases_));
  header.num_phases = phases_.size();
  header.items_offset = writer.append(std::span<const WorkItem>(items_));
  header.num_items = items_.size();
  header.segments_offset = writer.append(std::span<const Segment>(segments_));
  header.num_segments = static_cast<uint32_t>(segments_.size());
  header.merges_offset = writer.append(std::span<const Merge>(merges_));
  header.num_merges = merges_.size();
  header.partials_offset = writer.append(std::span<const Partial>(partials_));
  header.num_partials = partials_.size();
  header.splits_offset = writer.append(std::span<const Split>(splits_));
  header.num_splits = splits_.size();
  header.split_rows = split_row_count_;
  header.num_page_ids = num_page_ids_;
  header.predicted_us = static_cast<float>(predicted_us);
  constexpr size_t kHeaderWords = sizeof(PlanHeader) / 8;
  header.content_hash = hash_words(words->data() + kHeaderWords, words->size() - kHeaderWords);
  std::memcpy(words->data(), &header, sizeof header);
}

}  // namespace capillary
