// SPDX-License-Identifier: MIT
// From any tree of page runs to the canonical forest. A raw forest may cut runs where nothing branches, give
// siblings equal first pages, hold nodes without requests or without tokens, or requests that end together at
// a partial page; what comes out depends only on which pages every request has.
// Two things need that: trees that callers bring, and a batch's own forest of the step before with requests
// taken out, grown and added (ForestTracker).
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "capillary/prefix_forest.h"
#include "core/forest_builder.h"
#include "core/forest_sort.h"

namespace capillary {

inline constexpr int32_t kNoRequest = std::numeric_limits<int32_t>::max();

struct RawNode {
  const int32_t* pages;  // num_whole ids, one more with a tail
  int32_t parent;
  int32_t num_whole;  // whole pages
  int32_t tail;       // tokens of a partial page after them; only in nodes without children
  int32_t first_end;  // requests [first_end, last_end) of the raw forest end here
  int32_t last_end;
  int32_t first_request;  // smallest request at or below, kNoRequest without one
  int32_t subtree_end;
};

// Nodes in preorder. Whoever fills it in may leave first_request and subtree_end to close().
struct RawForest {
  std::vector<RawNode> nodes;
  std::vector<int32_t> requests;
  std::vector<int32_t> empty_requests;

  void clear();
  void close();
};

class ForestMerger {
 public:
  // Fills `out`, reusing its memory. With a table, page offsets point into it (the row of a node's smallest
  // request); without one, `out` gets page ids of its own, in preorder.
  void merge(const RawForest& raw, int32_t page_size, const BlockTableView* table,
             PrefixForest& out);

 private:
  struct Cursor {
    int32_t raw;
    int32_t used;  // whole pages of `raw` that lie behind
  };
  // A partial page of one request.
  struct Tail {
    int32_t request;
    int32_t num_tokens;
    int32_t page_id;
  };
  // A child to be built: cursors that go on with the same page, or else a tail.
  struct Task {
    size_t first_cursor;  // cursors_ from here on are its own once all later tasks are done
    int32_t first_request;
    int32_t token_begin;
    int32_t parent;
    Tail tail;
  };

  void settle(Cursor cursor);
  void branch(int32_t token, int32_t node);
  void push_children(int32_t token, int32_t node);
  void build(const Task& task);
  bool advance(int32_t node);
  void end_request(int32_t request, int32_t node, int32_t len);
  void forget();
  void close();

  const RawNode& raw(int32_t i) const { return raw_->nodes[static_cast<size_t>(i)]; }
  int32_t next_id(const Cursor& cursor) const { return raw(cursor.raw).pages[cursor.used]; }

  const RawForest* raw_ = nullptr;
  const BlockTableView* table_ = nullptr;
  ForestBuilder::Parts* out_ = nullptr;
  int32_t page_size_ = 1;

  std::vector<Task> stack_;
  std::vector<Cursor> cursors_;   // of the tasks on the stack, in the order of the stack
  std::vector<Cursor> together_;  // of the node being built
  std::vector<Cursor> pending_;   // of settle()
  // What settle() found below the token that the walk has come to.
  std::vector<int32_t> ended_;
  std::vector<Tail> tails_;
  std::vector<Cursor> runners_;

  struct Child {
    int32_t first_request;
    uint32_t num_cursors;  // 0: a tail
    size_t next_cursor;
    Tail tail;
  };
  KeySorter sorter_;
  IdGrouper grouper_;
  std::vector<Child> children_;
  std::vector<int32_t> child_of_;   // by runner
  std::vector<uint64_t> by_first_;  // (first request, child)
};

}  // namespace capillary
