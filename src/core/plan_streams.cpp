// SPDX-License-Identifier: MIT
// PlanBuilder: dealing a run's narrow work to the streams, one consumer warp each.
//
// A stream walks subtrees: it works on a few shared keys for up to 16 rows, then on what lies below them, always
// from the slots that it has just left, so a path that stays in one stream needs no barrier and no merge. Keys
// with more than 16 rows that are too few for the whole CTA are read by several streams, a block of rows each.
// The line of items is cut where the work is even. A cut inside a block leaves some of its rows with a second
// partial, in slots of its own.
#include <algorithm>

#include "core/plan_builder.h"

namespace capillary {

namespace {
// A stream may be this much too long or too short, in shares of an even one, if that saves a cut in a block.
constexpr double kStreamSlack = 0.1;
}  // namespace

inline void PlanBuilder::add_stream_item(int32_t query_begin, int32_t query_end, int32_t block_end,
                                         const Part& part) {
  stream_parts_.push_back(part);
  const int32_t tiles = part.tile_end - part.tile_begin;
  if (!stream_items_.empty()) {
    StreamItem& above = stream_items_.back();
    if (above.query_begin == query_begin && above.query_end == query_end) {
      above.num_parts += 1;
      above.tiles += tiles;
      return;
    }
  }
  stream_items_.push_back({query_begin, query_end, stream_parts_.size() - 1, 1, tiles, block_end});
}

// The run's narrow parts as items, block by block in leaf order. A block is at most 16 rows whose wider
// ancestors in this run are the same, and it does not cut a narrow part.
void PlanBuilder::collect_stream_items(std::span<const Part> parts, int32_t run) {
  stream_parts_.clear(), stream_items_.clear();
  const int32_t first = slot_base_query_, last = slot_base_query_ + main_slots_ / group_size_;
  for (int32_t query = first; query < last; ++query) {
    query_state(query).shared_part = -1;
    query_state(query).atom_end = query + 1;
  }
  // Parts are in preorder, so the deepest comes last, and a narrow part comes before those below it.
  int32_t covered = first;
  bool any_narrow = false, any_blocks = false;
  for (const Part& part : parts) {
    const Element& element = elements_[part.element];
    any_narrow |= !element.wide;
    any_blocks |= !element.wide && element.reads > 1;
    if (element.wide || element.reads > 1) {
      for (int32_t query = element.query_begin; query < element.query_end; ++query)
        query_state(query).shared_part = static_cast<int32_t>(part.element);
    } else if (element.query_begin >= covered) {
      covered = element.query_end;
      query_state(element.query_begin).atom_end = covered;
    }
  }
  if (!any_narrow) return;

  size_t next_part = 0;
  const auto add_block = [&](int32_t begin, int32_t end) {
    for (size_t i = 0; any_blocks && i < parts.size(); ++i) {
      const Part& part = parts[i];
      const Element& element = elements_[part.element];
      if (element.query_begin > begin) break;
      if (!element.wide && element.reads > 1 && element.query_end >= end)
        add_stream_item(begin, end, end, part);
    }
    for (; next_part < parts.size(); ++next_part) {
      const Element& element = elements_[parts[next_part].element];
      if (element.query_begin >= end) break;
      if (!element.wide && element.reads == 1)
        add_stream_item(element.query_begin, element.query_end, end, parts[next_part]);
    }
  };
  for (int32_t begin = first; begin < last;) {
    int32_t end = begin + 1;
    while (end < last && query_state(end).shared_part == query_state(begin).shared_part) ++end;
    const int32_t num_rows = (end - begin) * group_size_;
    const int32_t num_blocks = (num_rows + kMaxNarrowRows - 1) / kMaxNarrowRows;
    const int32_t even = (num_rows + num_blocks - 1) / num_blocks;
    while (begin < end) {
      int32_t block_end = begin;
      while (block_end < end) {
        const int32_t so_far = (block_end - begin) * group_size_;
        const int32_t more = (query_state(block_end).atom_end - block_end) * group_size_;
        if (so_far > 0 && (so_far >= even || so_far + more > kMaxNarrowRows)) break;
        block_end = query_state(block_end).atom_end;
      }
      add_block(begin, block_end);
      begin = block_end;
    }
  }
  if (wide_parts_.empty()) return;
  for (const StreamItem& item : stream_items_)
    for (int32_t query = item.query_begin; query < item.query_end; ++query)
      query_state(query).stream_run = run;
}

// Tiles [tile_begin, tile_end) of the item, for the stream with this stamp: on top of what the stream itself has
// of these rows, else of what the run's earlier phases have, else (another stream is at that) from nothing.
inline void PlanBuilder::place_stream_item(const StreamItem& stream_item, int32_t tile_begin,
                                           int32_t tile_end, int32_t stamp, int32_t first_stamp,
                                           int32_t run) {
  const int32_t begin = stream_item.query_begin, end = stream_item.query_end;
  const auto index = items_.size();
  QueryState* const states = &query_state(begin);
  // An item comes after those above it, so its stream has all of its queries or none.
  int32_t slot = (begin - slot_base_query_) * group_size_;
  bool resumes = states->held_stamp == stamp;
  if (resumes) {
    slot = states->held_slot;
    for (int32_t i = 0; i < end - begin; ++i) states[i].last_item = index;
  } else {
    bool main_is_free = states->main_stamp < first_stamp;
    for (int32_t i = 1; i < end - begin; ++i) main_is_free &= states[i].main_stamp < first_stamp;
    if (main_is_free) {
      resumes = states->emitted_run == run;
    } else {
      slot = next_extra_slot_;
      next_extra_slot_ += (end - begin) * group_size_;
    }
    int32_t query_slot = slot, i = 0;
    do {
      QueryState& state = states[i];
      state.last_item = index;
      state.held_stamp = stamp;
      state.held_slot = query_slot;
      if (!resumes) add_entry(&state, run, query_slot);
      query_slot += group_size_;
      if (!main_is_free) continue;
      state.main_stamp = stamp;
      state.emitted_run = run;
    } while (++i < end - begin);
  }
  WorkItem& item = add_item(begin, end, slot, resumes);
  if (stream_item.num_parts == 1) {
    const Part& part = stream_parts_[stream_item.part_begin];
    append_segments(elements_[part.element], part.tile_begin + tile_begin,
                    part.tile_begin + tile_end, &item);
    return;
  }
  int32_t first = 0;  // tile of the item at which the part in hand begins
  for (uint32_t i = 0; i < stream_item.num_parts; ++i) {
    const Part& part = stream_parts_[stream_item.part_begin + i];
    const int32_t tiles = part.tile_end - part.tile_begin;
    const int32_t from = std::max(tile_begin - first, 0), to = std::min(tile_end - first, tiles);
    if (from < to)
      append_segments(elements_[part.element], part.tile_begin + from, part.tile_begin + to, &item);
    first += tiles;
  }
}

void PlanBuilder::emit_streams(int32_t run) {
  if (stream_items_.empty()) return;
  Phase phase{};
  phase.kind = PhaseKind::kNarrow;
  phase.item_begin = items_.size();
  const double item_tiles = model_.stream_item_tiles();
  const auto cost = [&](int32_t tiles) { return tiles + item_tiles; };
  double left = 0;  // not yet given to a stream
  for (const StreamItem& item : stream_items_) left += cost(item.tiles);
  const int32_t first_stamp = next_stamp_;
  next_stamp_ += table_.num_streams;
  const double slack = kStreamSlack * left / table_.num_streams + 0.5;
  int32_t stream = 0;
  double room = left / table_.num_streams;
  const auto next_stream = [&] {
    ++stream;
    room = left / (table_.num_streams - stream);
  };
  // Whether there are slots for another stream to go on from here: for the item's rows if that is cut (this
  // stream's piece may need some too), and for the rows of its block that a stream of this phase has in their
  // main slots.
  const auto fits_in_slots = [&](const StreamItem& item, bool cuts_item) {
    // Mostly there are enough for all of that twice over.
    if (next_extra_slot_ + 2 * (item.block_end - item.query_begin) * group_size_ <=
        table_.num_slots)
      return true;
    int32_t queries = 0;
    for (int32_t query = item.query_begin; query < item.block_end; ++query) {
      const QueryState& state = query_state(query);
      const bool taken = state.main_stamp >= first_stamp;
      const bool in_item = query < item.query_end;
      if (taken || (cuts_item && in_item)) ++queries;
      if (cuts_item && in_item && taken && state.held_stamp != first_stamp + stream) ++queries;
    }
    return next_extra_slot_ + queries * group_size_ <= table_.num_slots;
  };
  double block_left = 0;
  for (size_t index = 0; index < stream_items_.size(); ++index) {
    const StreamItem& item = stream_items_[index];
    const bool begins_block = index == 0 || stream_items_[index - 1].block_end != item.block_end;
    if (begins_block) {
      block_left = 0;
      for (size_t i = index;
           i < stream_items_.size() && stream_items_[i].block_end == item.block_end; ++i)
        block_left += cost(stream_items_[i].tiles);
    }
    for (int32_t tile = 0; tile < item.tiles;) {
      const int32_t tiles = item.tiles - tile;
      int32_t take = tiles;
      const bool may_move = stream + 1 < table_.num_streams;
      if (may_move && block_left > room + slack) {
        const bool at_edge = begins_block && tile == 0;
        if (at_edge && room < slack && phase.stream_items[stream] > 0) {
          next_stream();
          continue;
        }
        if (cost(tiles) > room + slack) {
          const auto fits =
              std::max(static_cast<int32_t>(room - item_tiles + 0.5), kMinStreamPiece);
          if (tiles - fits >= kMinStreamPiece && fits_in_slots(item, true)) {
            take = fits;
          } else if (room * 2 < cost(tiles) && phase.stream_items[stream] > 0 &&
                     fits_in_slots(item, tile > 0)) {
            next_stream();
            continue;
          }
        }
      }
      place_stream_item(item, tile, tile + take, first_stamp + stream, first_stamp, run);
      phase.stream_items[stream] = static_cast<uint16_t>(phase.stream_items[stream] + 1);
      phase.stream_tiles[stream] += static_cast<uint32_t>(take);
      phase.num_items += 1;
      // A cut makes one more item; that does not change what the streams after this one share.
      const double done = take < tiles ? take : cost(take);
      left -= done, room -= done, block_left -= done;
      tile += take;
      if (take < tiles) next_stream();
    }
    const bool ends_block =
        index + 1 == stream_items_.size() || stream_items_[index + 1].block_end != item.block_end;
    if (room <= 0 && stream + 1 < table_.num_streams && index + 1 < stream_items_.size() &&
        (ends_block || (block_left > slack && fits_in_slots(stream_items_[index + 1], false))))
      next_stream();
  }
  phases_.push_back(phase);
}

}  // namespace capillary
