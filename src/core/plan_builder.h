// SPDX-License-Identifier: MIT
// PlanBuilder: turns a grouping (which queries sit together, in how many jobs) into the plan's arrays.
// The planner decides, the builder lays out. Every vector is reused, so a warm builder does not allocate.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "capillary/plan.h"
#include "core/cost_model.h"
#include "core/pod_array.h"
#include "shared/plan_layout.h"

namespace capillary {

// A stream is not cut for less than this many tiles: the extra partial would cost more than it balances.
inline constexpr int32_t kMinStreamPiece = 2;

// Queries [query_begin, query_end) in leaf order, their work cut into num_jobs jobs.
struct QueryGroup {
  int32_t query_begin;
  int32_t query_end;
  int32_t num_jobs;
};

struct BuildRequest {
  const PrefixForest* forest;
  Mode mode;
  int32_t cluster_size;
  int32_t max_clusters;
  std::span<const QueryGroup> groups;
  TileTimes tile_times;     // what the runs are balanced by
  bool fixed_grid = false;  // launch max_clusters clusters even if some have no job
};

class PlanBuilder {
 public:
  explicit PlanBuilder(const CostModel& model);

  // Lays the whole plan out; then assemble() copies it into one blob.
  void build(const BuildRequest& request);
  void assemble(uint64_t profile_hash, double predicted_us, std::vector<uint64_t>* words) const;

  // What the cost model needs to predict the step, per job of one KV head.
  struct JobCost {
    double us;             // the longest rank's items
    int64_t rows;          // rows merged
    int64_t partial_rows;  // partials of rows, read in merges
    bool exchange;
  };
  std::span<const JobCost> job_costs() const { return job_costs_; }
  int64_t planned_tiles() const { return planned_tiles_; }  // tiles loaded, per KV head
  int64_t exchange_rows() const { return exchange_rows_; }  // partial rows read from peers
  int64_t split_rows() const { return split_rows_; }        // partial rows through the workspace
  int32_t num_clusters() const { return num_clusters_; }

 private:
  // A run of segments that exactly the queries [query_begin, query_end) of the group share.
  struct Element {
    int32_t query_begin, query_end;
    int32_t parent;      // the element above, -1
    int32_t wide_above;  // wide elements above: its phase, if it is wide
    uint32_t segment_begin, num_segments;
    int32_t tiles;
    bool wide;          // worked on by the whole CTA, else by streams
    int32_t reads;      // blocks of rows, each of which a stream loads the tiles for
    double tile_us;     // of all reads; loads and arithmetic overlapping
    double compute_us;  // the arithmetic alone
    double start_us;    // of the streams' items; a wide phase's start is not the element's
  };
  // What all of an element adds to a run.
  struct ElementTimes {
    double tiles_us, compute_us;
    double start_us;   // where its run has its phase already
    double begins_us;  // where it is the first of its phase
    uint32_t phase;    // 0: the streams'
  };
  // Tiles [tile_begin, tile_end) of an element, done by one rank ("run" = job * cluster_size + rank).
  struct Part {
    uint32_t element;
    int32_t tile_begin, tile_end;
  };
  // What a stream does in one go: a run of parts that the same queries, 16 rows at most, go through.
  struct StreamItem {
    int32_t query_begin, query_end;
    uint32_t part_begin, num_parts;  // of stream_parts_
    int32_t tiles;
    int32_t block_end;  // first query past the block of rows that it belongs to
  };
  // A query of the group in hand: one cache line, for all of it is looked at together. Runs and stamps only go
  // up, so what an earlier run left does not disturb. A stamp is one stream of one phase.
  struct alignas(64) QueryState {
    int32_t last_run = -1;     // that touches it
    int32_t num_runs = 0;      // that touch it
    int32_t emitted_run = -1;  // last one whose main slot has a partial of it
    int32_t stream_run = -1;   // last one whose streams have keys of it
    int32_t main_stamp = -1;   // who has its main slot
    int32_t held_stamp = -1;   // which stream has it last, and in which slot
    int32_t held_slot = 0;
    int32_t shared_part = -1;  // deepest part of more than 16 rows over it, in the run in hand
    int32_t atom_end = 0;      // end of the outermost narrow part that begins at it
    uint32_t last_item = 0;    // of the run in hand
    int32_t entry_head = -1, entry_tail = -1;
    bool finished = false;  // an item writes its output directly
  };
  // A slot that holds a partial of all rows of one query.
  struct Entry {
    int32_t run;
    int32_t slot;
    int32_t next;  // entry of the same query, -1
  };
  // Clusters [begin, end), which are busy for so long each.
  struct Load {
    double us;
    uint32_t begin, end;
  };
  struct PlacedMerge {
    int32_t job;   // of the group
    int32_t home;  // the rank that has all partials, -1
    Merge merge;   // its partials are in partials_scratch_
  };

  void collect_elements(const QueryGroup& group);
  void collect_flat_elements(const QueryGroup& group);
  int32_t add_keys(const ForestNode& node, int32_t query_begin, int32_t query_end, int32_t above);
  void finish_elements(const QueryGroup& group);
  void cut_into_runs(const QueryGroup& group);
  double run_limit(int32_t num_runs);
  template <bool counts, class OnPart, class OnClose>
  int32_t fill_runs(double limit_us, int32_t num_runs, const OnPart& on_part,
                    const OnClose& on_close);
  void emit_run(int32_t run);
  void emit_wide_phase(std::span<const Part> parts, int32_t run);
  bool puts_streams_first(int32_t run) const;
  void collect_stream_items(std::span<const Part> parts, int32_t run);
  void add_stream_item(int32_t query_begin, int32_t query_end, int32_t block_end, const Part& part);
  void emit_streams(int32_t run);
  void place_stream_item(const StreamItem& item, int32_t tile_begin, int32_t tile_end,
                         int32_t stamp, int32_t first_stamp, int32_t run);
  void write_outputs(uint32_t item_begin);
  void append_chain(const Element& element, int32_t tile_begin, int32_t tile_end);
  // The query's rows have a partial in the run's `slot`, after those that they have so far.
  void add_entry(QueryState* state, int32_t run, int32_t slot) {
    const auto entry = static_cast<int32_t>(entries_.size());
    entries_.push_back({run, slot, -1});
    if (state->entry_head < 0)
      state->entry_head = entry;
    else
      entries_[static_cast<size_t>(state->entry_tail)].next = entry;
    state->entry_tail = entry;
  }
  void emit_merges(const QueryGroup& group);
  int32_t next_merge(const QueryGroup& group, int32_t* query, Merge* merge) const;
  void emit_own_merges(const QueryGroup& group);
  void place_job_merges(int32_t job, std::span<const PlacedMerge> merges);
  bool same_entries(int32_t query_a, int32_t query_b) const;
  void schedule();

  // A new item without segments, for the partials that begin at `slot`.
  WorkItem& add_item(int32_t query_begin, int32_t query_end, int32_t slot, bool resumes) {
    item_queries_.push_back({query_begin, query_end});
    WorkItem& item = items_.emplace_back();
    item.row_begin = static_cast<uint16_t>((query_begin - group_begin_) * group_size_);
    item.num_rows = static_cast<uint16_t>((query_end - query_begin) * group_size_);
    item.init_slot = resumes ? static_cast<int16_t>(slot) : kNoSlot;
    item.dest_slot = static_cast<int16_t>(slot);
    item.destination = Destination::kSlot;
    item.segment_begin = segments_.size();
    return item;
  }
  // Tiles [tile_begin, tile_end) of a segment that begins with a page.
  void append_segment(const Segment& whole, int32_t tile_begin, int32_t tile_end) {
    const int32_t begin = tile_begin * kTileTokens;
    const int32_t end = std::min(tile_end * kTileTokens, whole.num_tokens);
    const int32_t page = page_of(begin);
    segments_.push_back({whole.page_offset + page, begin - page * page_size_, end - begin,
                         whole.logical_begin + begin, 0});
  }
  // Adds tiles [tile_begin, tile_end) of the element to the item, whose segments are the last there are.
  void append_segments(const Element& element, int32_t tile_begin, int32_t tile_end,
                       WorkItem* item) {
    item->num_tiles += static_cast<uint32_t>(tile_end - tile_begin);
    if (element.num_segments == 1)
      append_segment(element_segments_[element.segment_begin], tile_begin, tile_end);
    else
      append_chain(element, tile_begin, tile_end);
    item->num_segments = static_cast<uint16_t>(segments_.size() - item->segment_begin);
  }
  int32_t page_of(int32_t token) const {
    return page_shift_ >= 0 ? token >> page_shift_ : token / page_size_;
  }
  QueryState& query_state(int32_t query) { return queries_[static_cast<size_t>(query)]; }
  int32_t job_of(int32_t run) const { return run >> cluster_shift_; }
  int32_t rows(const Element& element) const {
    return (element.query_end - element.query_begin) * group_size_;
  }

  CostModel model_;
  int32_t group_size_;
  TileTable table_;
  const PrefixForest* forest_ = nullptr;
  int32_t page_size_ = 1;
  int32_t page_shift_ = 0;  // log2 of the page size, -1 if it is no power of two
  Mode mode_ = Mode::kAuto;
  int32_t cluster_size_ = 1;
  int32_t cluster_shift_ = 0;  // its log2
  int32_t max_clusters_ = 1;
  int32_t num_clusters_ = 1;
  bool fixed_grid_ = false;
  TileTimes tile_times_{};

  // Of the group in hand.
  PodArray<Element> elements_;
  PodArray<ElementTimes> element_times_;
  PodArray<Segment> element_segments_;
  std::vector<int32_t> element_of_node_;
  size_t next_node_ = 0;  // first one that begins after all groups so far
  std::vector<int32_t> path_;
  PodArray<Part> parts_;
  std::vector<uint32_t> run_begin_;  // into parts_, one more than runs
  std::vector<double> run_us_;
  std::vector<int64_t> phase_stamps_;  // by phase: the last run that has it
  int64_t phase_stamp_ = 0;
  std::vector<Part> wide_parts_;
  std::vector<QueryState> queries_;
  int32_t next_stamp_ = 0;
  PodArray<Part> stream_parts_;
  PodArray<StreamItem> stream_items_;
  PodArray<Entry> entries_;
  PodArray<PlacedMerge> placed_merges_;
  PodArray<Partial> partials_scratch_;
  int32_t first_job_ = 0;    // of the group, in jobs_
  int32_t group_begin_ = 0;  // its first query
  int32_t num_group_jobs_ = 0;
  int32_t slot_base_query_ = 0;  // query whose rows have slot 0 in the run in hand
  int32_t main_slots_ = 0;
  int32_t next_extra_slot_ = 0;

  struct QueryRange {
    int32_t begin, end;
  };
  PodArray<QueryRange> item_queries_;  // of the run in hand

  // Of the plan.
  std::vector<uint32_t> schedule_begin_;
  std::vector<ScheduleEntry> schedule_;
  std::vector<Job> jobs_;
  std::vector<RankWork> rank_works_;
  std::vector<RankStart> rank_starts_;
  PodArray<Phase> phases_;
  PodArray<WorkItem> items_;
  PodArray<Segment> segments_;
  PodArray<Merge> merges_;
  PodArray<Partial> partials_;
  PodArray<Split> splits_;
  std::vector<JobCost> job_costs_;
  std::vector<uint32_t> order_;
  std::vector<Load> loads_;  // a heap
  std::vector<uint32_t> assigned_;
  std::vector<uint32_t> cursor_;
  int32_t max_slots_ = 0;
  int64_t num_page_ids_ = 0;
  uint32_t split_row_count_ = 0;
  int64_t planned_tiles_ = 0;
  int64_t exchange_rows_ = 0;
  int64_t split_rows_ = 0;
};

}  // namespace capillary
