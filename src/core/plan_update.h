// SPDX-License-Identifier: MIT
// PlanUpdater: makes the plan of the last step that of this one, where requests have only grown (or rolled back)
// in keys of their own. Each such request has one segment at the end of its keys; that one gets longer.
#pragma once

#include <cstdint>
#include <vector>

#include "capillary/prefix_forest.h"
#include "shared/plan_layout.h"

namespace capillary {

class PlanUpdater {
 public:
  // `forest` has just been planned.
  void planned(const PrefixForest& forest);

  // True: the plan in `words` is now one of `forest`. False: nothing was written and it has to be planned anew,
  // because something other than lengths has changed, or because the plan has grown out of balance.
  bool update(const PrefixForest& forest, std::vector<uint64_t>* words);

  // Tiles a KV head that updates have added to the plan.
  int64_t added_tiles() const { return added_tiles_; }

 private:
  // The end of one query's keys.
  struct Tail {
    uint32_t segment, item;
    int32_t stream;  // of streams_; -1: the query has no keys of its own
  };
  // A narrow stream, or a wide phase, that has tails.
  struct Stream {
    uint32_t phase;
    uint32_t index;  // of the phase's stream_tiles
    bool wide;
    int32_t tiles, most_tiles;
  };
  struct Change {
    uint32_t node, segment, item;
    int32_t stream;
    int32_t tokens, item_tiles, stream_tiles;  // added
  };

  void find_tails(const PlanView& plan);
  void find_tail(const PlanView& plan, const Job& job, uint32_t item, int32_t stream);
  bool collect_changes(const PrefixForest& forest, const PlanView& plan);

  bool has_plan_ = false, has_tails_ = false;
  std::vector<ForestNode> nodes_;  // of the forest that the plan is for
  int64_t planned_tokens_ = 0;     // unique ones, when it was planned
  int64_t added_tiles_ = 0;
  std::vector<Tail> tails_;   // by position in leaf order
  std::vector<int32_t> end_;  // likewise: the length of the request, if it has keys of its own
  std::vector<Stream> streams_;
  std::vector<Change> changes_;
  int64_t num_page_ids_ = 0;
};

}  // namespace capillary
