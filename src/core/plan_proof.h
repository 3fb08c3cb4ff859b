// SPDX-License-Identifier: MIT
// PlanProof: the state behind validate_plan. The plan is walked once, rank by rank, with slots that remember
// whose partial they hold and which items went into it; what reaches the output is then compared with the
// forest as sorted token intervals. Nothing in the blob is trusted: every index is checked before it is used,
// so that garbage ends in an InternalError and never in a wild read.
//
// Arrays must be used front to back, each entry once (phases by rank works, items by phases, segments by
// items, partials by merges). That keeps the proof linear in the size of the blob, whatever is in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "capillary/plan.h"
#include "shared/plan_layout.h"
#include "shared/tile_table.h"

namespace capillary {

class PlanProof {
 public:
  PlanProof(const void* blob, const PrefixForest& forest) : plan_(blob), forest_(forest) {}

  void check_header(size_t size_bytes);
  void check_schedule() const;
  void check_rank_starts() const;
  void check_jobs();
  void check_splits();
  void check_coverage();

 private:
  static constexpr int32_t kNobody = -1;
  static constexpr int32_t kNothing = -1;

  [[noreturn]] static void fail(const std::string& where, const std::string& came,
                                const std::string& expected);
  static std::string at(const char* what, uint64_t index) {
    return what + (" " + std::to_string(index));
  }
  static std::string is(int64_t value) { return "is " + std::to_string(value); }

  // What a slot holds: the partial of one row of the job in hand, as the chain of items that made it.
  struct Slot {
    int32_t row = kNobody;
    int32_t chain = kNothing;  // into links_
    uint32_t touched_by = 0;   // 1 + the item that last read or wrote it
  };
  // Items that a partial went through, last first; or the partials of a row, in any order.
  struct Link {
    int32_t next;
    uint32_t value;
  };

  void check_shape() const;
  void check_variants() const;
  void check_arrays() const;
  void check_workspace();
  void check_rank(uint32_t job, uint32_t rank);
  static void check_slice(const std::string& where, const char* what, uint32_t begin,
                          uint32_t count, uint32_t used_begin, uint32_t used_end);
  void check_phase(uint32_t index, const Job& job, Slot* slots);
  // stream_begin: first item of the item's stream; of a wide phase, the item itself.
  void check_item(uint32_t index, const Phase& phase, uint32_t stream_begin, const Job& job,
                  Slot* slots);
  void move_state(uint32_t index, const Phase& phase, uint32_t stream_begin, const Job& job,
                  Slot* slots);
  void check_segments(uint32_t index, int32_t first_query, int32_t last_query);
  void check_segment(uint32_t index, const Segment& segment, int32_t last_query);
  void check_partials(uint32_t index);
  void check_merge_rows(uint32_t index, const Job& job);
  void check_own_merges(const RankWork& work, const Job& job, uint32_t rank);
  void check_merge(uint32_t index, const Job& job, uint32_t rank, bool* exchanges);
  void deliver(uint32_t index, const Merge& merge, const Job& job, int32_t row,
               int32_t first_piece);
  void finish(size_t row, const char* what, uint32_t index);
  int32_t add_link(int32_t next, uint32_t value);
  void add_piece(size_t row, int32_t chain);
  void walk_path(int32_t query);
  void collect_items(size_t row);
  void check_row(size_t row, int32_t query);

  const PlanHeader& header() const { return plan_.header(); }
  size_t global_row(const Job& job, int32_t row) const {
    return static_cast<size_t>(job.query_begin) * static_cast<size_t>(group_size_) +
           static_cast<size_t>(row);
  }

  PlanView plan_;
  const PrefixForest& forest_;
  TileTable table_{};
  int32_t group_size_ = 1;

  // Where the arrays have been used up to.
  uint32_t next_phase_ = 0, next_item_ = 0, next_segment_ = 0, next_merge_ = 0, next_partial_ = 0;

  std::vector<Slot> slots_;  // of the job in hand: [cluster_size][max_slots]
  std::vector<Link> links_;
  std::vector<int32_t> pieces_;     // by global row: its partials (a list of chains), kNothing
  std::vector<uint8_t> finished_;   // by global row
  std::vector<int32_t> split_row_;  // by workspace row: the global row it belongs to
  std::vector<int32_t> chains_;     // scratch: a moved item's chains
  std::vector<int32_t> path_;       // nodes of path_query_, root first
  int32_t path_query_ = -1;
  std::vector<uint32_t> row_items_, previous_items_;
  std::vector<std::pair<int32_t, int32_t>> intervals_;
  int32_t slots_used_ = 0;
  int64_t page_ids_used_ = 0;
};

}  // namespace capillary
