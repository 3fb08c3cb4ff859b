// SPDX-License-Identifier: MIT
// validate_plan, second half: what the jobs do to their slots, and what reaches the output.
#include <algorithm>
#include <climits>
#include <cstdlib>

#include "core/plan_proof.h"

namespace capillary {

void PlanProof::check_workspace() {
  const PlanHeader& h = header();
  // The workspace is as large as the merges that write it: checked before anything of its size is
  // allocated.
  uint64_t workspace_rows = 0;
  for (uint32_t i = 0; i < h.num_merges; ++i) {
    const Merge& merge = plan_.merges()[i];
    if (merge.num_rows < 1 || merge.num_rows > table_.max_job_rows)
      fail(at("merge", i), "has " + std::to_string(merge.num_rows) + " rows",
           "have 1 to " + std::to_string(table_.max_job_rows));
    if (merge.destination == Destination::kWorkspace) workspace_rows += merge.num_rows;
  }
  uint64_t split_rows = 0;
  for (uint32_t i = 0; i < h.num_splits; ++i) {
    const Split& split = plan_.splits()[i];
    if (split.num_rows < 1) fail(at("split", i), "has no rows", "have at least one");
    if (split.num_parts < 2)
      fail(at("split", i), "has fewer than two parts", "have parts to merge");
    if (split.split_row_begin != split_rows)
      fail(at("split", i), "begins at workspace row " + std::to_string(split.split_row_begin),
           "begin at " + std::to_string(split_rows) + ", after the split before it");
    split_rows += static_cast<uint64_t>(split.num_parts) * split.num_rows;
    if (split_rows > workspace_rows)
      fail(at("split", i), "has rows that no merge writes", "have as many rows as its merges");
  }
  if (split_rows != h.split_rows || workspace_rows != h.split_rows)
    fail("split_rows", is(h.split_rows),
         "be the " + std::to_string(split_rows) + " rows of the splits and the " +
             std::to_string(workspace_rows) + " that merges write");
  split_row_.assign(static_cast<size_t>(split_rows), kNobody);
}

void PlanProof::check_jobs() {
  const PlanHeader& h = header();
  const auto num_rows = static_cast<size_t>(h.num_queries) * static_cast<size_t>(group_size_);
  pieces_.assign(num_rows, kNothing);
  finished_.assign(num_rows, 0);
  check_workspace();
  for (uint32_t index = 0; index < h.num_jobs; ++index) {
    const Job& job = plan_.jobs()[index];
    if (job.query_begin < 0 || job.num_queries < 1 ||
        job.query_begin > h.num_queries - job.num_queries)
      fail(at("job", index), "has queries outside the batch",
           "have at least one, all of the batch");
    if (job.num_queries > table_.max_job_rows / group_size_)
      fail(at("job", index), "has " + std::to_string(job.num_queries) + " queries",
           "have at most " + std::to_string(table_.max_job_rows) + " rows");
    if (job.reserved != 0) fail(at("job", index), "has reserved set", "leave it 0");
    slots_.assign(static_cast<size_t>(h.cluster_size) * static_cast<size_t>(h.max_slots), Slot{});
    bool exchanges = false;
    for (uint32_t rank = 0; rank < static_cast<uint32_t>(h.cluster_size); ++rank)
      check_rank(index, rank);
    uint32_t merge_begin = next_merge_;
    for (uint32_t rank = 0; rank < static_cast<uint32_t>(h.cluster_size); ++rank) {
      const RankWork& work =
          plan_.rank_works()[index * static_cast<uint32_t>(h.cluster_size) + rank];
      if (work.merge_begin != merge_begin || work.num_merges > h.num_merges - merge_begin)
        fail(at("job", index), "has merges out of place", "take the merges in order, each once");
      check_own_merges(work, job, rank);
      merge_begin += work.num_merges;
    }
    // Only now: a merge may read what any rank has left.
    for (uint32_t rank = 0; rank < static_cast<uint32_t>(h.cluster_size); ++rank) {
      const RankWork& work =
          plan_.rank_works()[index * static_cast<uint32_t>(h.cluster_size) + rank];
      const uint32_t partial_begin = next_partial_;
      for (uint32_t i = 0; i < work.num_merges; ++i) {
        check_partials(next_merge_);
        if (plan_.merges()[next_merge_].destination != Destination::kSlot)
          check_merge(next_merge_, job, rank, &exchanges);
        else if (i > 0 && plan_.merges()[next_merge_ - 1].destination != Destination::kSlot)
          fail(at("merge", next_merge_), "of own slots comes late", "come before the exchange");
        ++next_merge_;
      }
      check_slice(at("job", index), "partials", work.partial_begin, work.num_partials,
                  partial_begin, next_partial_);
    }
    if (job.needs_exchange != (exchanges ? 1u : 0u))
      fail(at("job", index), "has needs_exchange " + std::to_string(job.needs_exchange),
           "have 1 where a merge reads a peer's slot and 0 elsewhere");
    for (const Slot& slot : slots_)
      if (slot.row != kNobody)
        fail(at("job", index),
             "leaves a partial of its row " + std::to_string(slot.row) + " in a slot",
             "merge every partial");
  }
  const auto used = [](const char* field, int64_t came, int64_t expected) {
    if (came != expected) fail(field, is(came), "be the " + std::to_string(expected) + " in use");
  };
  used("num_phases", h.num_phases, next_phase_);
  used("num_items", h.num_items, next_item_);
  used("num_segments", h.num_segments, next_segment_);
  used("num_merges", h.num_merges, next_merge_);
  used("num_partials", h.num_partials, next_partial_);
  used("max_slots", h.max_slots, slots_used_);
  used("num_page_ids", h.num_page_ids, page_ids_used_);
}

void PlanProof::check_rank(uint32_t job, uint32_t rank) {
  const PlanHeader& h = header();
  const RankWork& work = plan_.rank_works()[job * static_cast<uint32_t>(h.cluster_size) + rank];
  const std::string where = at("job", job) + " rank " + std::to_string(rank);
  if (work.phase_begin != next_phase_ || work.num_phases > h.num_phases - next_phase_)
    fail(where, "has phases out of place", "take the phases in order, each once");
  const uint32_t item_begin = next_item_, segment_begin = next_segment_;
  Slot* slots = slots_.data() + static_cast<size_t>(rank) * static_cast<size_t>(h.max_slots);
  for (uint32_t i = 0; i < work.num_phases; ++i)
    check_phase(next_phase_++, plan_.jobs()[job], slots);
  check_slice(where, "items", work.item_begin, work.num_items, item_begin, next_item_);
  check_slice(where, "segments", work.segment_begin, work.num_segments, segment_begin,
              next_segment_);
}

// What a rank says is its part of an array, against what its phases or merges use.
void PlanProof::check_slice(const std::string& where, const char* what, uint32_t begin,
                            uint32_t count, uint32_t used_begin, uint32_t used_end) {
  if (begin == used_begin && count == used_end - used_begin) return;
  fail(where, "has " + std::to_string(count) + " " + what + " from " + std::to_string(begin),
       "have the " + std::to_string(used_end - used_begin) + " from " + std::to_string(used_begin) +
           " that it uses");
}

void PlanProof::check_phase(uint32_t index, const Job& job, Slot* slots) {
  const PlanHeader& h = header();
  const Phase& phase = plan_.phases()[index];
  const std::string where = at("phase", index);
  if (phase.kind != PhaseKind::kWide && phase.kind != PhaseKind::kNarrow)
    fail(where, "is of kind " + std::to_string(static_cast<int>(phase.kind)), "be wide or narrow");
  if ((phase.reserved[0] | phase.reserved[1] | phase.reserved[2]) != 0)
    fail(where, "has reserved set", "leave it 0");
  if (phase.num_items < 1 || phase.item_begin != next_item_ ||
      phase.num_items > h.num_items - next_item_)
    fail(where, "has items out of place", "take the items in order, each once");
  const bool wide = phase.kind == PhaseKind::kWide;
  uint32_t streamed = 0;
  for (int stream = 0; stream < kMaxStreams; ++stream) {
    const uint32_t count = phase.stream_items[stream];
    if (wide ? count != 0 : (count != 0 && stream >= table_.num_streams))
      fail(where, "has items in stream " + std::to_string(stream),
           "use only the streams there are");
    if (!wide && count > phase.num_items - streamed)
      fail(where, "has more items in streams than in all", "give each item to one stream");
    streamed += count;
    uint64_t tiles = 0;
    const uint32_t take = wide ? (stream == 0 ? phase.num_items : 0) : count;
    const uint32_t stream_begin = next_item_;
    for (uint32_t i = 0; i < take; ++i) {
      const uint32_t item = next_item_++;
      check_item(item, phase, wide ? item : stream_begin, job, slots);
      const uint64_t item_tiles = plan_.items()[item].num_tiles;
      tiles += wide ? (item_tiles + kWideTiles - 1) / kWideTiles * kWideTiles : item_tiles;
    }
    if (phase.stream_tiles[stream] != tiles)
      fail(where,
           "has stream_tiles[" + std::to_string(stream) + "] " +
               std::to_string(phase.stream_tiles[stream]),
           "have its items' " + std::to_string(tiles));
  }
  if (!wide && streamed != phase.num_items)
    fail(where, "has items in no stream", "give each item to one stream");
}

void PlanProof::check_item(uint32_t index, const Phase& phase, uint32_t stream_begin,
                           const Job& job, Slot* slots) {
  const WorkItem& item = plan_.items()[index];
  const int32_t job_rows = job.num_queries * group_size_;
  const int32_t most = phase.kind == PhaseKind::kWide ? table_.max_job_rows : kMaxNarrowRows;
  if (item.num_rows < 1 || item.num_rows > most)
    fail(at("item", index), "has " + std::to_string(item.num_rows) + " rows",
         "have 1 to " + std::to_string(most));
  if (item.row_begin + item.num_rows > job_rows)
    fail(at("item", index), "has rows past its job's " + std::to_string(job_rows),
         "have rows of its job");
  if (item.destination != Destination::kSlot && item.destination != Destination::kOutput)
    fail(at("item", index), "has destination " + std::to_string(static_cast<int>(item.destination)),
         "end in a slot or the output");
  if (item.reserved != 0) fail(at("item", index), "has reserved set", "leave it 0");
  const int32_t first_query = job.query_begin + item.row_begin / group_size_;
  const int32_t last_query = job.query_begin + (item.row_begin + item.num_rows - 1) / group_size_;
  if (header().mode == static_cast<uint32_t>(PlanMode::kFlat) && first_query != last_query)
    fail(at("item", index), "serves several requests", "serve one, as the plan is flat");
  check_segments(index, first_query, last_query);
  move_state(index, phase, stream_begin, job, slots);
}

void PlanProof::move_state(uint32_t index, const Phase& phase, uint32_t stream_begin,
                           const Job& job, Slot* slots) {
  const WorkItem& item = plan_.items()[index];
  const int32_t num_rows = item.num_rows;
  const auto in_range = [&](int32_t slot) {
    return slot >= 0 && slot + num_rows <= header().max_slots;
  };
  // Within a phase only the items of one stream have an order, so a slot belongs to one stream, or wide item.
  const auto touch = [&](Slot& slot) {
    if (slot.touched_by > phase.item_begin && slot.touched_by <= stream_begin)
      fail(at("item", index), "uses a slot of item " + std::to_string(slot.touched_by - 1),
           "share slots only with earlier phases and with items of its own stream");
    slot.touched_by = index + 1;
  };
  chains_.assign(static_cast<size_t>(num_rows), kNothing);
  if (item.init_slot != kNoSlot) {
    if (!in_range(item.init_slot))
      fail(at("item", index), "has init_slot " + std::to_string(item.init_slot),
           "stay within max_slots");
    for (int32_t i = 0; i < num_rows; ++i) {
      Slot& slot = slots[item.init_slot + i];
      touch(slot);
      if (slot.row != item.row_begin + i)
        fail(at("item", index),
             "starts from slot " + std::to_string(item.init_slot + i) +
                 (slot.row == kNobody ? ", which holds nothing" : ", which holds another row"),
             "start from partials of its own rows");
      chains_[static_cast<size_t>(i)] = slot.chain;
      slot.row = kNobody;
    }
  }
  if (!in_range(item.dest_slot))
    fail(at("item", index), "has dest_slot " + std::to_string(item.dest_slot),
         "stay within max_slots");
  if (item.init_slot != kNoSlot && item.init_slot != item.dest_slot &&
      std::abs(item.init_slot - item.dest_slot) < num_rows)
    fail(at("item", index), "has init and dest slots that overlap", "use the same slots or others");
  slots_used_ = std::max(slots_used_, item.dest_slot + num_rows);
  for (int32_t i = 0; i < num_rows; ++i) {
    // The output's items too: their slots are where wide rows are put together.
    Slot& slot = slots[item.dest_slot + i];
    touch(slot);
    if (slot.row != kNobody)
      fail(at("item", index),
           "overwrites the partial in slot " + std::to_string(item.dest_slot + i),
           "leave partials until they are merged");
    const int32_t chain = add_link(chains_[static_cast<size_t>(i)], index);
    if (item.destination == Destination::kSlot) {
      slot.row = item.row_begin + i;
      slot.chain = chain;
    } else {
      const size_t row = global_row(job, item.row_begin + i);
      finish(row, "item", index);
      add_piece(row, chain);
    }
  }
}

void PlanProof::check_segments(uint32_t index, int32_t first_query, int32_t last_query) {
  const WorkItem& item = plan_.items()[index];
  if (item.num_segments < 1 || item.segment_begin != next_segment_ ||
      item.num_segments > header().num_segments - next_segment_)
    fail(at("item", index), "has segments out of place", "take the segments in order, each once");
  walk_path(first_query);
  uint64_t tiles = 0;
  for (uint32_t i = 0; i < item.num_segments; ++i) {
    const Segment& segment = plan_.segments()[next_segment_];
    check_segment(next_segment_++, segment, last_query);
    tiles += (static_cast<uint64_t>(segment.num_tokens) + kTileTokens - 1) / kTileTokens;
  }
  if (item.num_tiles != tiles)
    fail(at("item", index), "has num_tiles " + std::to_string(item.num_tiles),
         "have its segments' " + std::to_string(tiles));
}

void PlanProof::check_segment(uint32_t index, const Segment& segment, int32_t last_query) {
  const int32_t page_size = header().page_size;
  if (segment.reserved != 0) fail(at("segment", index), "has reserved set", "leave it 0");
  if (segment.num_tokens < 1) fail(at("segment", index), "has no tokens", "have at least one");
  if (segment.logical_begin < 0 || segment.token_begin != segment.logical_begin % page_size)
    fail(at("segment", index), "has token_begin " + std::to_string(segment.token_begin),
         "be at its logical position in the page");
  // The nodes that the segment walks: all on the path of the item's first query and shared by its last.
  const auto nodes = forest_.nodes();
  int64_t position = segment.logical_begin;
  const int64_t end = position + segment.num_tokens;
  auto step =
      std::upper_bound(path_.begin(), path_.end(), position, [&](int64_t token, int32_t node) {
        return token < nodes[static_cast<size_t>(node)].token_begin;
      });
  if (step == path_.begin())
    fail(at("segment", index), "reads keys of nobody", "stay on its queries' path");
  for (--step; position < end; ++step) {
    if (step == path_.end())
      fail(at("segment", index), "ends past its request", "stay on its queries' path");
    const ForestNode& node = nodes[static_cast<size_t>(*step)];
    if (node.request_end <= last_query)
      fail(at("segment", index), "reads keys that not all its rows have",
           "stay on its queries' common path");
    // Entry of the page id array that this token's page has by the forest, and by the segment.
    const int64_t expected = node.page_offset + (position - node.token_begin) / page_size;
    const int64_t came =
        segment.page_offset + position / page_size - segment.logical_begin / page_size;
    if (came != expected)
      fail(at("segment", index), "reads page entry " + std::to_string(came),
           "read entry " + std::to_string(expected));
    position = static_cast<int64_t>(node.token_begin) + node.num_tokens;
  }
  const int64_t last_page =
      segment.page_offset + (segment.token_begin + segment.num_tokens - 1ll) / page_size;
  page_ids_used_ = std::max(page_ids_used_, last_page + 1);
}

void PlanProof::walk_path(int32_t query) {
  if (path_query_ == query) return;
  path_query_ = query;
  path_.clear();
  const auto nodes = forest_.nodes();
  for (int32_t node = forest_.request_node()[static_cast<size_t>(query)]; node >= 0;
       node = nodes[static_cast<size_t>(node)].parent)
    path_.push_back(node);
  std::reverse(path_.begin(), path_.end());
}

void PlanProof::check_partials(uint32_t index) {
  const Merge& merge = plan_.merges()[index];
  if (merge.partial_begin != next_partial_ ||
      merge.num_partials > header().num_partials - next_partial_)
    fail(at("merge", index), "has partials out of place", "take the partials in order, each once");
  next_partial_ += merge.num_partials;
}

void PlanProof::check_merge_rows(uint32_t index, const Job& job) {
  const Merge& merge = plan_.merges()[index];
  const int32_t job_rows = job.num_queries * group_size_;
  if (merge.row_begin + merge.num_rows > job_rows)
    fail(at("merge", index), "has rows past its job's " + std::to_string(job_rows),
         "have rows of its job");
  if (merge.reserved != 0) fail(at("merge", index), "has reserved set", "leave it 0");
}

// A rank's merges of its own slots: the first of its merges.
void PlanProof::check_own_merges(const RankWork& work, const Job& job, uint32_t rank) {
  const PlanHeader& h = header();
  Slot* slots = slots_.data() + static_cast<size_t>(rank) * static_cast<size_t>(h.max_slots);
  for (uint32_t i = 0; i < work.num_merges; ++i) {
    const uint32_t index = work.merge_begin + i;
    const Merge& merge = plan_.merges()[index];
    if (merge.destination != Destination::kSlot) return;
    check_merge_rows(index, job);
    if (merge.split != 0 || merge.split_part != 0 || merge.split_row != 0)
      fail(at("merge", index), "goes to a slot and a split", "go to one of them");
    if (merge.num_partials < 2 || merge.num_partials > h.num_partials ||
        merge.partial_begin > h.num_partials - merge.num_partials)
      fail(at("merge", index),
           "of own slots has " + std::to_string(merge.num_partials) + " partials",
           "have at least two of those there are");
    const Partial* partials = plan_.partials() + merge.partial_begin;
    for (uint32_t p = 0; p < merge.num_partials; ++p)
      if (partials[p].rank != rank || partials[p].slot + merge.num_rows > h.max_slots)
        fail(at("merge", index),
             "of own slots reads slot " + std::to_string(partials[p].slot) + " of rank " +
                 std::to_string(partials[p].rank),
             "read slots of its own rank");
    for (int32_t row = 0; row < merge.num_rows; ++row) {
      Slot& into = slots[partials[0].slot + row];
      for (uint32_t p = 0; p < merge.num_partials; ++p) {
        Slot& from = slots[partials[p].slot + row];
        if (from.row != merge.row_begin + row)
          fail(at("merge", index),
               "reads slot " + std::to_string(partials[p].slot + row) +
                   ", which does not hold its row",
               "read each partial of its rows once");
        if (p == 0) continue;
        for (int32_t link = from.chain; link != kNothing;
             link = links_[static_cast<size_t>(link)].next)
          into.chain = add_link(into.chain, links_[static_cast<size_t>(link)].value);
        from.row = kNobody;
      }
    }
  }
}

void PlanProof::check_merge(uint32_t index, const Job& job, uint32_t rank, bool* exchanges) {
  const PlanHeader& h = header();
  const Merge& merge = plan_.merges()[index];
  check_merge_rows(index, job);
  for (uint32_t p = 0; p < merge.num_partials; ++p) {
    const Partial& partial = plan_.partials()[merge.partial_begin + p];
    if (partial.rank >= h.cluster_size || partial.slot + merge.num_rows > h.max_slots)
      fail(
          at("merge", index),
          "reads slot " + std::to_string(partial.slot) + " of rank " + std::to_string(partial.rank),
          "read a slot there is");
    if (partial.rank != rank) *exchanges = true;
  }
  if (*exchanges && h.mode == static_cast<uint32_t>(PlanMode::kSharedL2))
    fail(at("merge", index), "reads a peer's slot",
         "go through the workspace, as the plan is shared-l2");
  for (int32_t i = 0; i < merge.num_rows; ++i) {
    const int32_t row = merge.row_begin + i;
    int32_t pieces = kNothing;
    for (uint32_t p = 0; p < merge.num_partials; ++p) {
      const Partial& partial = plan_.partials()[merge.partial_begin + p];
      Slot& slot = slots_[static_cast<size_t>(partial.rank) * static_cast<size_t>(h.max_slots) +
                          static_cast<size_t>(partial.slot) + static_cast<size_t>(i)];
      if (slot.row != row)
        fail(at("merge", index),
             "reads slot " + std::to_string(partial.slot + i) + " of rank " +
                 std::to_string(partial.rank) +
                 (slot.row == kNobody ? ", which holds nothing to merge"
                                      : ", which holds another row"),
             "read each partial of its rows once");
      slot.row = kNobody;
      pieces = add_link(pieces, static_cast<uint32_t>(slot.chain));
    }
    deliver(index, merge, job, row, pieces);
  }
}

void PlanProof::deliver(uint32_t index, const Merge& merge, const Job& job, int32_t row,
                        int32_t first_piece) {
  const PlanHeader& h = header();
  const size_t global = global_row(job, row);
  if (merge.destination == Destination::kOutput) {
    if (merge.split != 0 || merge.split_part != 0 || merge.split_row != 0)
      fail(at("merge", index), "goes to the output and a split", "go to one of them");
    finish(global, "merge", index);
  } else if (merge.destination == Destination::kWorkspace) {
    if (merge.num_partials == 0)
      fail(at("merge", index), "is a part without keys", "leave such a part out");
    if (merge.split >= h.num_splits)
      fail(at("merge", index), "names split " + std::to_string(merge.split),
           "name one of the splits");
    const Split& split = plan_.splits()[merge.split];
    if (merge.split_part >= split.num_parts || merge.split_row + merge.num_rows > split.num_rows)
      fail(at("merge", index),
           "is part " + std::to_string(merge.split_part) + " from row " +
               std::to_string(merge.split_row),
           "stay within its split");
    int32_t& owner =
        split_row_[split.split_row_begin + static_cast<size_t>(merge.split_part) * split.num_rows +
                   static_cast<size_t>(merge.split_row + row - merge.row_begin)];
    if (owner != kNobody)
      fail(at("merge", index), "writes a part that is there", "write each part once");
    owner = static_cast<int32_t>(global);
  } else {
    fail(at("merge", index),
         "has destination " + std::to_string(static_cast<int>(merge.destination)),
         "end in the output or the workspace");
  }
  for (int32_t piece = first_piece; piece != kNothing;
       piece = links_[static_cast<size_t>(piece)].next)
    add_piece(global, static_cast<int32_t>(links_[static_cast<size_t>(piece)].value));
}

void PlanProof::finish(size_t row, const char* what, uint32_t index) {
  if (finished_[row] != 0)
    fail(at(what, index), "writes the output of row " + std::to_string(row) + " again",
         "write each row once");
  finished_[row] = 1;
}

void PlanProof::add_piece(size_t row, int32_t chain) {
  pieces_[row] = add_link(pieces_[row], static_cast<uint32_t>(chain));
}

int32_t PlanProof::add_link(int32_t next, uint32_t value) {
  if (links_.size() >= INT_MAX) fail("blob", "is too large to prove", "stay below 2^31 row parts");
  links_.push_back({next, value});
  return static_cast<int32_t>(links_.size()) - 1;
}

void PlanProof::check_splits() {
  for (uint32_t index = 0; index < header().num_splits; ++index) {
    const Split& split = plan_.splits()[index];
    for (size_t row = 0; row < split.num_rows; ++row) {
      const int32_t owner = split_row_[split.split_row_begin + row];
      for (size_t part = 0; part < split.num_parts; ++part) {
        const int32_t came = split_row_[split.split_row_begin + part * split.num_rows + row];
        if (came == kNobody || came != owner)
          fail(at("split", index),
               "has a part " + std::to_string(part) +
                   (came == kNobody ? " that nobody writes" : " of another row"),
               "have every part of its rows");
      }
      finish(static_cast<size_t>(owner), "split", index);
    }
  }
}

void PlanProof::check_coverage() {
  for (size_t row = 0; row < finished_.size(); ++row) {
    const size_t query = row / static_cast<size_t>(group_size_);
    if (finished_[row] == 0) fail(at("row", row), "is never written", "get its output once");
    // The heads of a query have, as a rule, been through the same items.
    collect_items(row);
    if (row % static_cast<size_t>(group_size_) != 0 && row_items_ == previous_items_) continue;
    check_row(row, static_cast<int32_t>(query));
    previous_items_.swap(row_items_);
  }
}

void PlanProof::collect_items(size_t row) {
  row_items_.clear();
  for (int32_t piece = pieces_[row]; piece != kNothing;
       piece = links_[static_cast<size_t>(piece)].next)
    for (auto chain = static_cast<int32_t>(links_[static_cast<size_t>(piece)].value);
         chain != kNothing; chain = links_[static_cast<size_t>(chain)].next)
      row_items_.push_back(links_[static_cast<size_t>(chain)].value);
}

void PlanProof::check_row(size_t row, int32_t query) {
  intervals_.clear();
  for (const uint32_t index : row_items_) {
    const WorkItem& item = plan_.items()[index];
    for (uint32_t i = 0; i < item.num_segments; ++i) {
      const Segment& segment = plan_.segments()[item.segment_begin + i];
      intervals_.emplace_back(segment.logical_begin, segment.num_tokens);
    }
  }
  std::sort(intervals_.begin(), intervals_.end());
  int64_t covered = 0;
  for (const auto& [begin, num_tokens] : intervals_) {
    if (begin != covered)
      fail(at("row", row),
           (begin < covered ? "sees key " + std::to_string(begin) + " twice"
                            : "never sees key " + std::to_string(covered)),
           "see each key once");
    covered += num_tokens;
  }
  const int32_t length = forest_.seq_lens()[static_cast<size_t>(query)];
  if (covered != length)
    fail(at("row", row), "sees " + std::to_string(covered) + " keys",
         "see its request's " + std::to_string(length));
}

}  // namespace capillary
