// SPDX-License-Identifier: MIT
// PlanBuilder, first half: from a query group to runs of work (one run = one rank of one job) and their items.
//
// The work of a group is one line: its shared nodes and leaves in depth-first order. The line is cut into
// equal-cost runs. Inside a run every row has one slot; the items of a path accumulate into it from phase
// to phase (init_slot == dest_slot), so a path that stays inside a run needs no exchange.
#include "core/plan_builder.h"

#include <algorithm>
#include <climits>
#include <utility>

#include "capillary/error.h"

namespace capillary {

namespace {
constexpr int32_t kLeafDepth = INT_MAX;
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
  mode_ = request.mode;
  cluster_size_ = request.cluster_size;
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
  for (auto* marks : {&last_run_, &emitted_run_, &entry_head_, &entry_tail_, &leaf_run_, &top_run_})
    marks->assign(num_requests, -1);
  top_element_.resize(num_requests);
  runs_of_query_.assign(num_requests, 0);
  finished_.assign(num_requests, 0);
  first_node_at_.resize(num_requests + 1);
  size_t node = 0;
  for (size_t position = 0; position <= num_requests; ++position) {
    while (node < nodes.size() && nodes[node].request_begin < static_cast<int32_t>(position))
      ++node;
    first_node_at_[position] = static_cast<int32_t>(node);
  }

  for (const QueryGroup& group : request.groups) {
    first_job_ = static_cast<int32_t>(jobs_.size());
    num_group_jobs_ = group.num_jobs;
    elements_.clear(), element_segments_.clear(), entries_.clear();
    if (mode_ == Mode::kFlat)
      collect_flat_elements(group);
    else
      collect_elements(group);
    cut_into_runs();
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

// Adds the last of element_segments_ to the element if the same queries share it.
bool PlanBuilder::append_to(Element* element, int32_t query_begin, int32_t query_end,
                            int32_t tiles) const {
  if (element->query_begin != query_begin || element->query_end != query_end) return false;
  if (element->num_segments >= kMaxSegments) return false;
  element->num_segments += 1;
  element->tiles += tiles;
  return true;
}

// An element of the last of element_segments_.
void PlanBuilder::add_element(int32_t query_begin, int32_t query_end, int32_t level,
                              int32_t tiles) {
  const auto segment = static_cast<uint32_t>(element_segments_.size() - 1);
  const int32_t depth = query_end - query_begin == 1 ? kLeafDepth : level;
  elements_.push_back({query_begin, query_end, level, depth, segment, 1, tiles, false, 0, 0});
}

void PlanBuilder::finish_element(const QueryGroup& group, Element* element) const {
  const int32_t num_rows = rows(*element);
  // Narrow work on shared keys needs slots for the partials of all streams; wide work has one partial.
  const int32_t group_rows = (group.query_end - group.query_begin) * group_size_;
  const int32_t stream_slots = (table_.num_streams - 1) * num_rows;
  const bool crowded = element->query_end - element->query_begin > 1 &&
                       element->tiles > table_.num_streams &&
                       group_rows + stream_slots > table_.num_slots;
  element->wide = num_rows > kMaxNarrowRows || crowded;
  const int row_class =
      tile_class(element->wide ? std::max(num_rows, kMaxNarrowRows + 1) : num_rows);
  element->tile_us = tile_times_[static_cast<size_t>(row_class)];
  element->compute_us = model_.compute_us()[static_cast<size_t>(row_class)];
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
    const int32_t begin = std::max(node.request_begin, group.query_begin);
    const int32_t end = std::min(node.request_end, group.query_end);
    const int32_t tiles = (node.num_tokens + kTileTokens - 1) / kTileTokens;
    const int32_t above = node.parent < 0 ? -1 : element_of_node_[static_cast<size_t>(node.parent)];
    element_segments_.push_back({node.page_offset, 0, node.num_tokens, node.token_begin, 0});
    // The same queries see both: one element walks both nodes.
    if (above >= 0 && append_to(&elements_[static_cast<size_t>(above)], begin, end, tiles)) {
      element_of_node_[static_cast<size_t>(index)] = above;
      return;
    }
    element_of_node_[static_cast<size_t>(index)] = static_cast<int32_t>(elements_.size());
    int32_t level = 0;
    if (above >= 0) {
      Element& parent = elements_[static_cast<size_t>(above)];
      parent.depth = parent.level;
      level = parent.level + 1;
    }
    add_element(begin, end, level, tiles);
  };
  for (const int32_t index : path_) add(index);
  const int32_t later_end = first_node_at_[static_cast<size_t>(group.query_end)];
  for (int32_t index = first_node_at_[static_cast<size_t>(group.query_begin) + 1];
       index < later_end; ++index)
    add(index);
  for (Element& element : elements_) finish_element(group, &element);
}

void PlanBuilder::collect_flat_elements(const QueryGroup& group) {
  const auto nodes = forest_->nodes();
  for (int32_t query = group.query_begin; query < group.query_end; ++query) {
    path_.clear();
    for (int32_t node = forest_->request_node()[static_cast<size_t>(query)]; node >= 0;
         node = nodes[static_cast<size_t>(node)].parent)
      path_.push_back(node);
    const size_t first = elements_.size();
    for (size_t i = path_.size(); i-- > 0;) {
      const ForestNode& node = nodes[static_cast<size_t>(path_[i])];
      const int32_t tiles = (node.num_tokens + kTileTokens - 1) / kTileTokens;
      element_segments_.push_back({node.page_offset, 0, node.num_tokens, node.token_begin, 0});
      if (elements_.size() > first && append_to(&elements_.back(), query, query + 1, tiles))
        continue;
      if (elements_.size() > first) elements_.back().depth = elements_.back().level;
      add_element(query, query + 1, static_cast<int32_t>(elements_.size() - first), tiles);
    }
  }
  for (Element& element : elements_) finish_element(group, &element);
}

void PlanBuilder::emit_run(int32_t run) {
  const auto work = (static_cast<size_t>(first_job_) * static_cast<size_t>(cluster_size_)) +
                    static_cast<size_t>(run);
  rank_works_[work] = {};
  rank_works_[work].phase_begin = static_cast<uint32_t>(phases_.size());
  rank_works_[work].item_begin = static_cast<uint32_t>(items_.size());
  rank_works_[work].segment_begin = static_cast<uint32_t>(segments_.size());
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
  next_extra_slot_ = main_slots_;

  // By depth, wide before narrow; one query's own keys last: they may start from any shared partial.
  phase_parts_.clear();
  for (const Part& part : parts)
    if (elements_[part.element].depth != kLeafDepth) phase_parts_.push_back(part);
  const auto key = [&](const Part& part) {
    const Element& element = elements_[part.element];
    return std::pair(element.depth, element.wide ? 0 : 1);
  };
  std::sort(phase_parts_.begin(), phase_parts_.end(), [&](const Part& a, const Part& b) {
    return std::pair(key(a), a.element) < std::pair(key(b), b.element);
  });
  const auto num_shared = static_cast<ptrdiff_t>(phase_parts_.size());
  for (const Part& part : parts)
    if (elements_[part.element].depth == kLeafDepth) phase_parts_.push_back(part);
  leaves_first_ = puts_leaves_first(run, static_cast<size_t>(num_shared));
  if (leaves_first_) {
    std::reverse(phase_parts_.begin(), phase_parts_.begin() + num_shared);
    std::rotate(phase_parts_.begin(), phase_parts_.begin() + num_shared, phase_parts_.end());
  }
  for (size_t begin = 0; begin < phase_parts_.size();) {
    size_t end = begin + 1;
    while (end < phase_parts_.size() && key(phase_parts_[end]) == key(phase_parts_[begin])) ++end;
    const std::span<const Part> phase(phase_parts_.data() + begin, end - begin);
    if (elements_[phase[0].element].wide)
      emit_wide_phase(phase, run);
    else
      emit_narrow_phase(phase, run);
    begin = end;
  }
  rank_works_[work].num_phases =
      static_cast<uint32_t>(phases_.size()) - rank_works_[work].phase_begin;
  rank_works_[work].num_items = static_cast<uint32_t>(items_.size()) - rank_works_[work].item_begin;
  rank_works_[work].num_segments =
      static_cast<uint32_t>(segments_.size()) - rank_works_[work].segment_begin;
  max_slots_ = std::max(max_slots_, next_extra_slot_);
  if (segments_.size() > kMaxPlanSegments)
    throw UnsupportedConfig(five_parts(
        "Planner::plan", "batch", "needs too large a plan", "need at most 2^26 runs of keys",
        "plan fewer requests a step or share fewer nested prefixes"));
  JobCost& cost = job_costs_[static_cast<size_t>(first_job_ + run / cluster_size_)];
  cost.us = std::max(cost.us, run_us_[static_cast<size_t>(run)]);
}

// Every other job works from the leaves up: while one CTA's tensor cores are busy with the rows of a shared
// node, its neighbour streams leaves, so that neither HBM nor the arithmetic of the card idles in step. A
// shared item starts from its rows' slots, so all of its queries must have keys of their own in this run.
bool PlanBuilder::puts_leaves_first(int32_t run, size_t num_shared) {
  const int32_t job = first_job_ + run / cluster_size_;
  if (job % 2 == 0 || num_shared == 0 || num_shared == phase_parts_.size()) return false;
  bool any_wide = false;
  for (size_t i = 0; i < num_shared; ++i) any_wide |= elements_[phase_parts_[i].element].wide;
  if (!any_wide) return false;
  for (size_t i = num_shared; i < phase_parts_.size(); ++i) {
    const Element& leaf = elements_[phase_parts_[i].element];
    if (leaf.wide) return false;
    leaf_run_[static_cast<size_t>(leaf.query_begin)] = run;
  }
  for (size_t i = 0; i < num_shared; ++i) {
    const Element& element = elements_[phase_parts_[i].element];
    for (int32_t query = element.query_begin; query < element.query_end; ++query) {
      if (leaf_run_[static_cast<size_t>(query)] != run) return false;
      // By depth, so the last one to write here is the deepest: keep the first, which then comes last.
      if (top_run_[static_cast<size_t>(query)] != run) {
        top_run_[static_cast<size_t>(query)] = run;
        top_element_[static_cast<size_t>(query)] = phase_parts_[i].element;
      }
    }
  }
  return true;
}

// Whether the element's rows are complete after it: it comes last in this run, and there is no other partial.
bool PlanBuilder::completes(uint32_t element_index, int32_t run) const {
  const Element& element = elements_[element_index];
  for (int32_t query = element.query_begin; query < element.query_end; ++query) {
    const auto index = static_cast<size_t>(query);
    if (runs_of_query_[index] != 1) return false;
    const int32_t entry = entry_head_[index];
    if (entry >= 0 && entries_[static_cast<size_t>(entry)].next >= 0) return false;
    const bool has_top = leaves_first_ && top_run_[index] == run;
    if (has_top ? top_element_[index] != element_index : element.depth != kLeafDepth) return false;
  }
  return true;
}

WorkItem PlanBuilder::make_item(const Part& part, int32_t run) {
  const Element& element = elements_[part.element];
  WorkItem item{};
  item.row_begin = static_cast<uint16_t>(
      (element.query_begin - jobs_[static_cast<size_t>(first_job_)].query_begin) * group_size_);
  item.num_rows = static_cast<uint16_t>(rows(element));
  const auto slot = static_cast<int16_t>((element.query_begin - slot_base_query_) * group_size_);
  // Either an ancestor's part ran in this run, then for all of this element's queries, or none did.
  const bool started = emitted_run_[static_cast<size_t>(element.query_begin)] == run;
  item.init_slot = started ? slot : kNoSlot;
  item.dest_slot = slot;
  const bool complete = completes(part.element, run);
  item.destination = complete ? Destination::kOutput : Destination::kSlot;
  append_segments(element, part.tile_begin, part.tile_end, &item);
  return item;
}

void PlanBuilder::append_segments(const Element& element, int32_t tile_begin, int32_t tile_end,
                                  WorkItem* item) {
  item->segment_begin = static_cast<uint32_t>(segments_.size());
  item->num_tiles = static_cast<uint32_t>(tile_end - tile_begin);
  const int32_t page_size = forest_->page_size();
  int32_t first_tile = 0;
  for (uint32_t i = 0; i < element.num_segments && first_tile < tile_end; ++i) {
    const Segment& whole = element_segments_[element.segment_begin + i];
    const int32_t tiles = (whole.num_tokens + kTileTokens - 1) / kTileTokens;
    const int32_t begin = std::max(tile_begin - first_tile, 0) * kTileTokens;
    const int32_t end = std::min((tile_end - first_tile) * kTileTokens, whole.num_tokens);
    if (begin < end) {
      const int32_t offset = whole.token_begin + begin;
      const int64_t last_page = whole.page_offset + (whole.token_begin + end - 1) / page_size;
      num_page_ids_ = std::max(num_page_ids_, last_page + 1);
      segments_.push_back({whole.page_offset + offset / page_size, offset % page_size, end - begin,
                           whole.logical_begin + begin, 0});
    }
    first_tile += tiles;
  }
  item->num_segments = static_cast<uint16_t>(segments_.size() - item->segment_begin);
}

void PlanBuilder::add_entry(int32_t query, int32_t run, int32_t slot) {
  const auto index = static_cast<size_t>(query);
  const auto entry = static_cast<int32_t>(entries_.size());
  entries_.push_back({run, slot, -1});
  if (entry_head_[index] < 0)
    entry_head_[index] = entry;
  else
    entries_[static_cast<size_t>(entry_tail_[index])].next = entry;
  entry_tail_[index] = entry;
}

void PlanBuilder::emit_wide_phase(std::span<const Part> parts, int32_t run) {
  Phase phase{};
  phase.kind = PhaseKind::kWide;
  phase.item_begin = static_cast<uint32_t>(items_.size());
  phase.num_items = static_cast<uint32_t>(parts.size());
  for (const Part& part : parts) {
    const Element& element = elements_[part.element];
    const WorkItem item = make_item(part, run);
    for (int32_t query = element.query_begin; query < element.query_end; ++query) {
      const auto index = static_cast<size_t>(query);
      if (item.destination == Destination::kOutput) finished_[index] = 1;
      if (emitted_run_[index] == run) continue;
      emitted_run_[index] = run;
      if (item.destination == Destination::kSlot)
        add_entry(query, run, (query - slot_base_query_) * group_size_);
    }
    phase.stream_tiles[0] += (item.num_tiles + kWideTiles - 1) / kWideTiles * kWideTiles;
    items_.push_back(item);
  }
  phases_.push_back(phase);
}

void PlanBuilder::emit_narrow_phase(std::span<const Part> parts, int32_t run) {
  Phase phase{};
  phase.kind = PhaseKind::kNarrow;
  phase.item_begin = static_cast<uint32_t>(items_.size());
  int32_t left = 0;  // tiles not yet given to a stream
  for (const Part& part : parts) left += part.tile_end - part.tile_begin;
  int32_t stream = 0;
  int32_t room = (left + table_.num_streams - 1) / table_.num_streams;
  const auto next_stream = [&] {
    if (stream + 1 >= table_.num_streams) return;
    ++stream;
    const int32_t streams_left = table_.num_streams - stream;
    room = (left + streams_left - 1) / streams_left;
  };
  const auto place = [&](const WorkItem& item) {
    items_.push_back(item);
    phase.stream_items[stream] = static_cast<uint16_t>(phase.stream_items[stream] + 1);
    phase.stream_tiles[stream] += item.num_tiles;
    phase.num_items += 1;
    left -= static_cast<int32_t>(item.num_tiles);
    room -= static_cast<int32_t>(item.num_tiles);
  };
  for (const Part& part : parts) {
    const Element& element = elements_[part.element];
    const int32_t num_rows = rows(element);
    int32_t tile = part.tile_begin;
    bool cut = false;
    while (tile < part.tile_end) {
      const int32_t tiles = part.tile_end - tile;
      const bool last_stream = stream + 1 >= table_.num_streams;
      int32_t take = tiles;
      if (!last_stream && tiles > room) {
        const bool worth = room >= kMinStreamPiece && tiles - room >= kMinStreamPiece;
        const int32_t rest_slot =
            tile == part.tile_begin ? next_extra_slot_ : next_extra_slot_ + num_rows;
        if (worth && rest_slot + num_rows <= table_.num_slots) {
          take = room;
        } else if (room * 2 < tiles && phase.stream_items[stream] > 0) {
          next_stream();
          continue;
        }
      }
      WorkItem item = make_item({part.element, tile, tile + take}, run);
      if (take < tiles) cut = true;
      if (cut) item.destination = Destination::kSlot;
      const bool first_piece = tile == part.tile_begin;
      if (!first_piece) {
        // Another warp works on the same rows at the same time: it needs slots of its own.
        item.init_slot = kNoSlot;
        item.dest_slot = static_cast<int16_t>(next_extra_slot_);
        next_extra_slot_ += num_rows;
      }
      for (int32_t query = element.query_begin; query < element.query_end; ++query) {
        const auto index = static_cast<size_t>(query);
        if (item.destination == Destination::kOutput) finished_[index] = 1;
        if (first_piece && emitted_run_[index] == run) continue;  // accumulates into a known slot
        if (item.destination == Destination::kSlot)
          add_entry(query, run, item.dest_slot + (query - element.query_begin) * group_size_);
      }
      place(item);
      tile += take;
      if (room <= 0) next_stream();
    }
    for (int32_t query = element.query_begin; query < element.query_end; ++query)
      emitted_run_[static_cast<size_t>(query)] = run;
  }
  phases_.push_back(phase);
}

}  // namespace capillary
