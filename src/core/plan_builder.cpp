// SPDX-License-Identifier: MIT
// PlanBuilder, first half: from a query group to runs of work (one run = one rank of one job) and their items.
//
// The work of a group is one line: its shared nodes and leaves in depth-first order. The line is cut into
// equal-cost runs. Inside a run every row has one slot; the items of a path accumulate into it from phase
// to phase (init_slot == dest_slot), so a path that stays inside a run needs no exchange.
#include "core/plan_builder.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <utility>

#include "capillary/error.h"

namespace capillary {

namespace {
// Segments of an element; what goes on after that is an element of its own.
constexpr uint32_t kMaxSegments = 1024;
// A plan that needs more than this is refused before it takes all memory.
constexpr size_t kMaxPlanSegments = size_t{1} << 26;
}  // namespace

PlanBuilder::PlanBuilder(const CostModel& model)
    : model_(model),
      group_size_(model.shape().group_size()),
      table_(tile_table(std::max(model.shape().head_dim, model.shape().v_dim()))) {}

void PlanBuilder::build(const BuildRequest& request) {
  forest_ = request.forest;
  page_size_ = forest_->page_size();
  const auto page_bits = static_cast<uint32_t>(page_size_);
  page_shift_ = std::has_single_bit(page_bits) ? std::countr_zero(page_bits) : -1;
  mode_ = request.mode;
  cluster_size_ = request.cluster_size;
  cluster_shift_ = std::countr_zero(static_cast<uint32_t>(cluster_size_));
  max_clusters_ = request.max_clusters;
  fixed_grid_ = request.fixed_grid;
  tile_times_ = request.tile_times;
  jobs_.clear(), rank_works_.clear(), phases_.clear(), items_.clear(), segments_.clear();
  merges_.clear(), partials_.clear(), splits_.clear(), job_costs_.clear();
  max_slots_ = 0, num_page_ids_ = 0, split_row_count_ = 0, planned_tiles_ = 0, exchange_rows_ = 0,
  split_rows_ = 0;

  const auto num_requests = static_cast<size_t>(forest_->num_requests());
  const auto nodes = forest_->nodes();
  element_of_node_.resize(nodes.size());
  queries_.assign(num_requests, QueryState{});
  next_stamp_ = 0;
  next_node_ = 0;

  for (const QueryGroup& group : request.groups) {
    first_job_ = static_cast<int32_t>(jobs_.size());
    num_group_jobs_ = group.num_jobs;
    group_begin_ = group.query_begin;
    elements_.clear(), element_segments_.clear(), entries_.clear();
    if (mode_ == Mode::kFlat)
      collect_flat_elements(group);
    else
      collect_elements(group);
    cut_into_runs(group);
    const int32_t num_runs = num_group_jobs_ * cluster_size_;
    rank_works_.resize(rank_works_.size() + static_cast<size_t>(num_runs));
    for (int32_t job = 0; job < num_group_jobs_; ++job) {
      jobs_.push_back({group.query_begin, group.query_end - group.query_begin, 0, 0});
      job_costs_.push_back({0, 0, 0, false});
    }
    for (int32_t run = 0; run < num_runs; ++run) emit_run(run);
    emit_merges(group);
  }
  schedule();
}

// The node's keys, for these queries, below element `above`: as a new element, or as more of that one if the same
// queries share it. Returns which.
inline int32_t PlanBuilder::add_keys(const ForestNode& node, int32_t query_begin, int32_t query_end,
                                     int32_t above) {
  const int32_t tiles = (node.num_tokens + kTileTokens - 1) / kTileTokens;
  const auto segment = element_segments_.size();
  element_segments_.push_back({node.page_offset, 0, node.num_tokens, node.token_begin, 0});
  num_page_ids_ = std::max(num_page_ids_, node.page_offset + page_of(node.num_tokens - 1) + 1);
  if (above >= 0) {
    Element& element = elements_[static_cast<size_t>(above)];
    if (element.query_begin == query_begin && element.query_end == query_end &&
        element.num_segments < kMaxSegments) {
      element.num_segments += 1;
      element.tiles += tiles;
      return above;
    }
  }
  elements_.push_back({query_begin, query_end, above, 0, segment, 1, tiles, false, 1, 0, 0, 0});
  return static_cast<int32_t>(elements_.size() - 1);
}

void PlanBuilder::finish_elements(const QueryGroup& group) {
  const int32_t group_rows = (group.query_end - group.query_begin) * group_size_;
  bool any_wide = false;
  for (Element& element : elements_) {
    const int32_t num_rows = rows(element);
    // Streams that share one run of keys leave a partial each, and these need slots; wide work has one.
    const int32_t stream_slots = (table_.num_streams - 1) * num_rows;
    const bool crowded = element.query_end - element.query_begin > 1 &&
                         element.tiles > table_.num_streams &&
                         group_rows + stream_slots > table_.num_slots;
    element.reads = model_.stream_reads(num_rows, element.tiles);
    element.wide = element.reads == 0 || (num_rows <= kMaxNarrowRows && crowded);
    any_wide |= element.wide;
  }
  for (size_t index = any_wide ? elements_.size() : 0; index-- > 0;) {
    const Element& element = elements_[index];
    if (!element.wide || element.parent < 0) continue;
    // An item's rows have all been through the same wide elements, so a narrow one does not lie above a wide.
    Element& above = elements_[static_cast<size_t>(element.parent)];
    above.wide |= above.reads == 1;
  }
  const double narrow_us = tile_times_[tile_class(1)],
               narrow_compute_us = model_.compute_us()[tile_class(1)];
  for (Element& element : elements_) {
    if (element.wide) {
      const auto row_class =
          static_cast<size_t>(tile_class(std::max(rows(element), kMaxNarrowRows + 1)));
      element.reads = 1;
      element.tile_us = tile_times_[row_class];
      element.compute_us = model_.compute_us()[row_class];
    } else {
      element.tile_us = element.reads * narrow_us;
      element.compute_us = element.reads * narrow_compute_us;
      element.start_us = element.reads * model_.stream_item_us();
    }
    if (element.parent < 0) continue;
    const Element& above = elements_[static_cast<size_t>(element.parent)];
    element.wide_above = above.wide_above + (above.wide ? 1 : 0);
  }
}

void PlanBuilder::collect_elements(const QueryGroup& group) {
  const auto nodes = forest_->nodes();
  // The group's part of the forest in preorder: the first query's path, then all nodes that begin later.
  path_.clear();
  for (int32_t node = forest_->request_node()[static_cast<size_t>(group.query_begin)]; node >= 0;
       node = nodes[static_cast<size_t>(node)].parent)
    path_.push_back(node);
  std::reverse(path_.begin(), path_.end());
  const auto add = [&](int32_t index) {
    const ForestNode& node = nodes[static_cast<size_t>(index)];
    const int32_t above = node.parent < 0 ? -1 : element_of_node_[static_cast<size_t>(node.parent)];
    element_of_node_[static_cast<size_t>(index)] =
        add_keys(node, std::max(node.request_begin, group.query_begin),
                 std::min(node.request_end, group.query_end), above);
  };
  for (const int32_t index : path_) add(index);
  while (next_node_ < nodes.size() && nodes[next_node_].request_begin <= group.query_begin)
    ++next_node_;
  for (; next_node_ < nodes.size() && nodes[next_node_].request_begin < group.query_end;
       ++next_node_)
    add(static_cast<int32_t>(next_node_));
  finish_elements(group);
}

void PlanBuilder::collect_flat_elements(const QueryGroup& group) {
  const auto nodes = forest_->nodes();
  for (int32_t query = group.query_begin; query < group.query_end; ++query) {
    path_.clear();
    for (int32_t node = forest_->request_node()[static_cast<size_t>(query)]; node >= 0;
         node = nodes[static_cast<size_t>(node)].parent)
      path_.push_back(node);
    int32_t above = -1;
    for (size_t i = path_.size(); i-- > 0;)
      above = add_keys(nodes[static_cast<size_t>(path_[i])], query, query + 1, above);
  }
  finish_elements(group);
}

void PlanBuilder::emit_run(int32_t run) {
  const auto work = (static_cast<size_t>(first_job_) * static_cast<size_t>(cluster_size_)) +
                    static_cast<size_t>(run);
  rank_works_[work] = {};
  rank_works_[work].phase_begin = phases_.size();
  rank_works_[work].item_begin = items_.size();
  rank_works_[work].segment_begin = segments_.size();
  const std::span<const Part> parts(parts_.data() + run_begin_[static_cast<size_t>(run)],
                                    parts_.data() + run_begin_[static_cast<size_t>(run) + 1]);
  if (parts.empty()) return;
  int32_t query_min = INT_MAX, query_max = 0;
  for (const Part& part : parts) {
    query_min = std::min(query_min, elements_[part.element].query_begin);
    query_max = std::max(query_max, elements_[part.element].query_end);
  }
  slot_base_query_ = query_min;
  main_slots_ = (query_max - query_min) * group_size_;
  item_queries_.clear();
  next_extra_slot_ = main_slots_;

  wide_parts_.clear();
  for (const Part& part : parts)
    if (elements_[part.element].wide) wide_parts_.push_back(part);
  collect_stream_items(parts, run);
  // A phase for each number of wide elements above, and one for all streams: before or after those.
  if (wide_parts_.size() > 1)
    std::sort(wide_parts_.begin(), wide_parts_.end(), [&](const Part& a, const Part& b) {
      return std::pair(elements_[a.element].wide_above, a.element) <
             std::pair(elements_[b.element].wide_above, b.element);
    });
  const bool streams_first = puts_streams_first(run);
  if (streams_first) {
    std::reverse(wide_parts_.begin(), wide_parts_.end());
    emit_streams(run);
  }
  for (size_t begin = 0; begin < wide_parts_.size();) {
    const int32_t level = elements_[wide_parts_[begin].element].wide_above;
    size_t end = begin + 1;
    while (end < wide_parts_.size() && elements_[wide_parts_[end].element].wide_above == level)
      ++end;
    emit_wide_phase(std::span<const Part>(wide_parts_.data() + begin, end - begin), run);
    begin = end;
  }
  if (!streams_first) emit_streams(run);
  write_outputs(rank_works_[work].item_begin);
  rank_works_[work].num_phases = phases_.size() - rank_works_[work].phase_begin;
  rank_works_[work].num_items = items_.size() - rank_works_[work].item_begin;
  rank_works_[work].num_segments = segments_.size() - rank_works_[work].segment_begin;
  max_slots_ = std::max(max_slots_, next_extra_slot_);
  if (segments_.size() > kMaxPlanSegments)
    throw UnsupportedConfig(five_parts(
        "Planner::plan", "batch", "needs too large a plan", "need at most 2^26 runs of keys",
        "plan fewer requests a step or share fewer nested prefixes"));
  JobCost& cost = job_costs_[static_cast<size_t>(first_job_ + job_of(run))];
  cost.us = std::max(cost.us, run_us_[static_cast<size_t>(run)]);
}

// Every other job works from the leaves up: while one CTA's tensor cores are busy with the rows of a shared
// node, its neighbour streams leaves, so that neither HBM nor the arithmetic of the card idles in step. A
// wide item starts from its rows' slots, so all of its queries must have been through this run's streams.
bool PlanBuilder::puts_streams_first(int32_t run) const {
  const int32_t job = first_job_ + job_of(run);
  if (job % 2 == 0) return false;
  for (const Part& part : wide_parts_) {
    const Element& element = elements_[part.element];
    for (int32_t query = element.query_begin; query < element.query_end; ++query)
      if (queries_[static_cast<size_t>(query)].stream_run != run) return false;
  }
  return true;
}

// Items of the run that complete all of their rows write the output themselves: nothing of these rows comes
// later, in another slot or in another run.
void PlanBuilder::write_outputs(uint32_t item_begin) {
  for (uint32_t index = item_begin; index < items_.size(); ++index) {
    const auto [begin, end] = item_queries_[index - item_begin];
    bool complete = true;
    for (int32_t query = begin; query < end && complete; ++query) {
      const QueryState& state = query_state(query);
      complete =
          state.last_item == index && state.num_runs == 1 && state.entry_head == state.entry_tail;
    }
    if (!complete) continue;
    items_[index].destination = Destination::kOutput;
    for (int32_t query = begin; query < end; ++query) query_state(query).finished = true;
  }
}

// append_segments of an element of several segments.
void PlanBuilder::append_chain(const Element& element, int32_t tile_begin, int32_t tile_end) {
  int32_t first_tile = 0;
  for (uint32_t i = 0; i < element.num_segments && first_tile < tile_end; ++i) {
    const Segment& whole = element_segments_[element.segment_begin + i];
    const int32_t tiles = (whole.num_tokens + kTileTokens - 1) / kTileTokens;
    const int32_t begin = std::max(tile_begin - first_tile, 0);
    const int32_t end = std::min(tile_end - first_tile, tiles);
    if (begin < end) append_segment(whole, begin, end);
    first_tile += tiles;
  }
}

void PlanBuilder::emit_wide_phase(std::span<const Part> parts, int32_t run) {
  Phase phase{};
  phase.kind = PhaseKind::kWide;
  phase.item_begin = items_.size();
  phase.num_items = static_cast<uint32_t>(parts.size());
  for (const Part& part : parts) {
    const Element& element = elements_[part.element];
    const int32_t slot = (element.query_begin - slot_base_query_) * group_size_;
    // Either another part ran in this run, then for all of this element's queries, or none did.
    const bool resumes = query_state(element.query_begin).emitted_run == run;
    const auto index = items_.size();
    WorkItem& item = add_item(element.query_begin, element.query_end, slot, resumes);
    append_segments(element, part.tile_begin, part.tile_end, &item);
    for (int32_t query = element.query_begin; query < element.query_end; ++query) {
      QueryState& state = query_state(query);
      state.last_item = index;
      if (resumes) continue;
      state.emitted_run = run;
      add_entry(&state, run, (query - slot_base_query_) * group_size_);
    }
    phase.stream_tiles[0] += (item.num_tiles + kWideTiles - 1) / kWideTiles * kWideTiles;
  }
  phases_.push_back(phase);
}

}  // namespace capillary
