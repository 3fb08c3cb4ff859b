// SPDX-License-Identifier: MIT
// Plans written by hand, for tests that want one particular chain of slots, exchange or split, whatever the
// planner would do today. The result is a blob that validate_plan accepts when the description is right.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "capillary/plan.h"
#include "capillary/prefix_forest.h"
#include "core/hash.h"
#include "shared/plan_layout.h"
#include "shared/tile_table.h"

namespace capillary::testing {

struct HandItem {
  int row_begin = 0;
  int num_rows = 0;
  int init_slot = kNoSlot;
  int dest_slot = 0;
  Destination destination = Destination::kSlot;
  std::vector<Segment> segments;
};

struct HandPhase {
  PhaseKind kind = PhaseKind::kWide;
  std::vector<std::vector<HandItem>> streams;  // wide: one list
};

struct HandMerge {
  int row_begin = 0;
  int num_rows = 0;
  std::vector<Partial> partials;
  int split = -1;  // -1: to the output
  int split_part = 0;
  int split_row = 0;
};

struct HandRank {
  std::vector<HandPhase> phases;
  std::vector<HandMerge> merges;
};

struct HandJob {
  int query_begin = 0;
  int num_queries = 0;
  std::vector<HandRank> ranks;  // cluster_size of them
};

// Tokens [begin, end) of the request at a position in leaf order, cut where nodes end.
inline std::vector<Segment> path_segments(const PrefixForest& forest, int position, int begin,
                                          int end) {
  std::vector<int32_t> path;
  for (int32_t node = forest.request_node()[static_cast<size_t>(position)]; node >= 0;
       node = forest.nodes()[static_cast<size_t>(node)].parent)
    path.insert(path.begin(), node);
  std::vector<Segment> segments;
  for (const int32_t index : path) {
    const ForestNode& node = forest.nodes()[static_cast<size_t>(index)];
    const int from = std::max(begin, node.token_begin);
    const int to = std::min(end, node.token_begin + node.num_tokens);
    if (from >= to) continue;
    Segment segment{};
    segment.page_offset = node.page_offset + (from - node.token_begin) / forest.page_size();
    segment.token_begin = from % forest.page_size();
    segment.num_tokens = to - from;
    segment.logical_begin = from;
    segments.push_back(segment);
  }
  return segments;
}

class HandPlan {
 public:
  HandPlan(const PrefixForest& forest, const ModelShape& shape, int cluster_size)
      : forest_(forest), shape_(shape), cluster_size_(cluster_size) {}

  void add_job(HandJob job) { jobs_.push_back(std::move(job)); }
  // Returns the split's index.
  int add_split(int num_rows, int num_parts) {
    splits_.push_back(
        {split_rows_, static_cast<uint16_t>(num_rows), static_cast<uint16_t>(num_parts)});
    split_rows_ += static_cast<uint32_t>(num_rows * num_parts);
    return static_cast<int>(splits_.size()) - 1;
  }

  // One cluster runs everything, job by job and head by head.
  Plan build();

 private:
  void lay_out_job(const HandJob& job);
  void lay_out_phase(const HandPhase& phase);
  void lay_out_item(const HandItem& item);
  void lay_out_merge(const HandMerge& merge);

  template <class T>
  uint32_t append(const std::vector<T>& items) {
    const size_t offset = bytes_.size();
    bytes_.resize(offset + (items.size() * sizeof(T) + 15) / 16 * 16);
    if (!items.empty()) std::memcpy(bytes_.data() + offset, items.data(), items.size() * sizeof(T));
    return static_cast<uint32_t>(offset);
  }

  const PrefixForest& forest_;
  ModelShape shape_;
  int cluster_size_;
  std::vector<HandJob> jobs_;
  std::vector<Split> splits_;
  uint32_t split_rows_ = 0;
  int max_slots_ = 0;
  int64_t num_page_ids_ = 0;

  std::vector<Job> laid_jobs_;
  std::vector<RankWork> works_;
  std::vector<Phase> phases_;
  std::vector<WorkItem> items_;
  std::vector<Segment> segments_;
  std::vector<Merge> merges_;
  std::vector<Partial> partials_;
  std::vector<unsigned char> bytes_;
};

inline void HandPlan::lay_out_item(const HandItem& item) {
  WorkItem laid{};
  laid.row_begin = static_cast<uint16_t>(item.row_begin);
  laid.num_rows = static_cast<uint16_t>(item.num_rows);
  laid.init_slot = static_cast<int16_t>(item.init_slot);
  laid.dest_slot = static_cast<int16_t>(item.dest_slot);
  laid.segment_begin = static_cast<uint32_t>(segments_.size());
  laid.num_segments = static_cast<uint16_t>(item.segments.size());
  laid.destination = item.destination;
  for (const Segment& segment : item.segments) {
    laid.num_tiles += static_cast<uint32_t>((segment.num_tokens + kTileTokens - 1) / kTileTokens);
    segments_.push_back(segment);
    num_page_ids_ =
        std::max(num_page_ids_,
                 segment.page_offset +
                     (segment.token_begin + segment.num_tokens - 1) / forest_.page_size() + 1);
  }
  max_slots_ =
      std::max({max_slots_, item.dest_slot + item.num_rows, item.init_slot + item.num_rows});
  items_.push_back(laid);
}

inline void HandPlan::lay_out_phase(const HandPhase& phase) {
  Phase laid{};
  laid.kind = phase.kind;
  laid.item_begin = static_cast<uint32_t>(items_.size());
  const bool wide = phase.kind == PhaseKind::kWide;
  for (size_t stream = 0; stream < phase.streams.size(); ++stream) {
    uint32_t tiles = 0;
    for (const HandItem& item : phase.streams[stream]) {
      lay_out_item(item);
      const uint32_t count = items_.back().num_tiles;
      tiles += wide ? (count + kWideTiles - 1) / kWideTiles * kWideTiles : count;
    }
    if (!wide) laid.stream_items[stream] = static_cast<uint16_t>(phase.streams[stream].size());
    laid.stream_tiles[stream] = tiles;
    laid.num_items += static_cast<uint32_t>(phase.streams[stream].size());
  }
  phases_.push_back(laid);
}

inline void HandPlan::lay_out_merge(const HandMerge& merge) {
  Merge laid{};
  laid.row_begin = static_cast<uint16_t>(merge.row_begin);
  laid.num_rows = static_cast<uint16_t>(merge.num_rows);
  laid.num_partials = static_cast<uint16_t>(merge.partials.size());
  laid.destination = merge.split < 0 ? Destination::kOutput : Destination::kWorkspace;
  laid.partial_begin = static_cast<uint32_t>(partials_.size());
  if (merge.split >= 0) {
    laid.split = static_cast<uint32_t>(merge.split);
    laid.split_part = static_cast<uint16_t>(merge.split_part);
    laid.split_row = static_cast<uint16_t>(merge.split_row);
  }
  partials_.insert(partials_.end(), merge.partials.begin(), merge.partials.end());
  merges_.push_back(laid);
}

inline void HandPlan::lay_out_job(const HandJob& job) {
  Job laid{};
  laid.query_begin = job.query_begin;
  laid.num_queries = job.num_queries;
  const size_t first_work = works_.size();
  for (const HandRank& rank : job.ranks) {
    RankWork work{};
    work.phase_begin = static_cast<uint32_t>(phases_.size());
    work.num_phases = static_cast<uint32_t>(rank.phases.size());
    work.item_begin = static_cast<uint32_t>(items_.size());
    work.segment_begin = static_cast<uint32_t>(segments_.size());
    for (const HandPhase& phase : rank.phases) lay_out_phase(phase);
    work.num_items = static_cast<uint32_t>(items_.size()) - work.item_begin;
    work.num_segments = static_cast<uint32_t>(segments_.size()) - work.segment_begin;
    works_.push_back(work);
  }
  for (size_t rank = 0; rank < job.ranks.size(); ++rank) {
    RankWork& work = works_[first_work + rank];
    work.merge_begin = static_cast<uint32_t>(merges_.size());
    work.num_merges = static_cast<uint32_t>(job.ranks[rank].merges.size());
    work.partial_begin = static_cast<uint32_t>(partials_.size());
    for (const HandMerge& merge : job.ranks[rank].merges) {
      lay_out_merge(merge);
      for (const Partial& partial : merge.partials)
        if (partial.rank != rank) laid.needs_exchange = 1;
    }
    work.num_partials = static_cast<uint32_t>(partials_.size()) - work.partial_begin;
  }
  laid_jobs_.push_back(laid);
}

inline Plan HandPlan::build() {
  for (const HandJob& job : jobs_) lay_out_job(job);
  PlanHeader header{};
  header.magic = kPlanMagic;
  header.version = kPlanVersion;
  header.num_requests = header.num_queries = forest_.num_requests();
  header.num_q_heads = shape_.num_q_heads;
  header.num_kv_heads = shape_.num_kv_heads;
  header.head_dim = shape_.head_dim;
  header.head_dim_v = shape_.v_dim();
  header.page_size = forest_.page_size();
  header.unique_tokens = forest_.unique_tokens();
  header.flat_tokens = forest_.flat_tokens();
  header.cluster_size = cluster_size_;
  header.num_clusters = 1;
  header.num_streams = tile_table(std::max(shape_.head_dim, shape_.v_dim())).num_streams;
  header.max_slots = max_slots_;
  header.window_left = -1;
  header.split_rows = split_rows_;
  header.num_page_ids = num_page_ids_;

  std::vector<ScheduleEntry> schedule;
  for (uint32_t job = 0; job < laid_jobs_.size(); ++job)
    for (uint32_t head = 0; head < static_cast<uint32_t>(shape_.num_kv_heads); ++head)
      schedule.push_back({job, head});
  const auto num_scheduled = static_cast<uint32_t>(schedule.size());
  std::vector<RankStart> starts(static_cast<size_t>(cluster_size_));
  for (size_t rank = 0; rank < starts.size() && num_scheduled > 0; ++rank)
    starts[rank] = {schedule[0], 0, num_scheduled, laid_jobs_[0], works_[rank], {}};

  bytes_.assign(sizeof(PlanHeader), 0);
  append(starts);
  header.query_order_offset =
      append(std::vector<int32_t>(forest_.leaf_order().begin(), forest_.leaf_order().end()));
  header.schedule_begin_offset = append(std::vector<uint32_t>{0, num_scheduled});
  header.schedule_offset = append(schedule);
  header.num_scheduled = num_scheduled;
  header.jobs_offset = append(laid_jobs_);
  header.num_jobs = static_cast<uint32_t>(laid_jobs_.size());
  header.rank_works_offset = append(works_);
  header.phases_offset = append(phases_);
  header.num_phases = static_cast<uint32_t>(phases_.size());
  header.items_offset = append(items_);
  header.num_items = static_cast<uint32_t>(items_.size());
  header.segments_offset = append(segments_);
  header.num_segments = static_cast<uint32_t>(segments_.size());
  header.merges_offset = append(merges_);
  header.num_merges = static_cast<uint32_t>(merges_.size());
  header.partials_offset = append(partials_);
  header.num_partials = static_cast<uint32_t>(partials_.size());
  header.splits_offset = append(splits_);
  header.num_splits = static_cast<uint32_t>(splits_.size());
  header.total_bytes = static_cast<uint32_t>(bytes_.size());

  std::vector<uint64_t> words(bytes_.size() / 8);
  std::memcpy(words.data(), bytes_.data(), bytes_.size());
  constexpr size_t kHeaderWords = sizeof(PlanHeader) / 8;
  header.content_hash = hash_words(words.data() + kHeaderWords, words.size() - kHeaderWords);
  std::memcpy(words.data(), &header, sizeof header);
  return Plan(std::move(words));
}

}  // namespace capillary::testing
