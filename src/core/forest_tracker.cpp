// SPDX-License-Identifier: MIT
// ForestTracker. Two ways through a step:
//   extend       Nothing but lengths changes. Every row knows the lengths for which that holds without a look at
//                its ids; past them only a request that has a whole page of its own stays on this way, because
//                that page keeps it apart from everybody, whatever it appends.
//   restructure  The forest of the step before, with its kept requests' new lengths, is a raw forest; new
//                requests are further roots. ForestMerger makes the canonical forest of that. Whatever became
//                equal (an appended page, a partial page now whole) meets there as siblings.
// Both check before they change anything.
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "capillary/error.h"
#include "capillary/prefix_forest.h"
#include "core/forest_builder.h"
#include "core/forest_ids.h"
#include "core/forest_merge.h"

namespace capillary {

namespace {

constexpr std::string_view kFunction = "ForestTracker::update";

size_t index(int32_t i) {
  return static_cast<size_t>(i);
}

}  // namespace

struct ForestTracker::Impl {
  struct Row {
    int32_t first_len;  // lengths [first_len, last_len] need no look at the ids
    int32_t last_len;
    int32_t node;  // deepest node, -1 for an empty request
    int32_t position;
    int32_t len;
  };

  explicit Impl(int32_t page_size_in) : page_size(page_size_in) {
    ForestBuilder::parts(forest).page_size = page_size_in;
  }

  bool alone(int32_t node) const {
    const ForestNode& n = forest.nodes()[index(node)];
    return n.request_end - n.request_begin == 1;
  }

  void update(const BlockTableView& table, std::span<const int32_t> seq_lens,
              std::span<const int32_t> previous_row);
  bool extend(const BlockTableView& table, std::span<const int32_t> seq_lens);
  void restructure(const BlockTableView& table, std::span<const int32_t> seq_lens,
                   std::span<const int32_t> previous_row);
  void check_previous(std::span<const int32_t> previous_row, size_t num_requests);
  bool keeps_place(const Row& row, int32_t len) const;
  void add_raw(int32_t parent, int32_t token_begin, int32_t num_tokens, int32_t first_end);
  void add_leaf(int32_t parent, int32_t token_begin, int32_t request, int32_t len);
  void make_raw(const BlockTableView& table, std::span<const int32_t> seq_lens);
  void set_range(Row& row) const;
  void move_offsets(int64_t row_stride);

  const int32_t page_size;
  PrefixForest forest;
  std::vector<Row> rows;
  int64_t row_stride = 0;
  bool restructured = false;

  ForestBuilder builder;
  ForestMerger merger;
  PrefixForest next;
  RawForest raw;
  std::vector<int32_t> raw_column;   // by raw node: page at which it begins
  std::vector<int32_t> raw_of_node;  // by node of `forest`
  std::vector<int32_t> new_row;      // by old row: where a kept request is now, -1: not kept
  std::vector<int32_t> added;        // new rows that are not kept
  std::vector<int32_t> grown;
  std::vector<int32_t> past_range;
};

void ForestTracker::Impl::update(const BlockTableView& table, std::span<const int32_t> seq_lens,
                                 std::span<const int32_t> previous_row) {
  check_block_table(kFunction, table, seq_lens, page_size);
  bool same_rows = seq_lens.size() == rows.size();
  if (!previous_row.empty()) {
    check_previous(previous_row, seq_lens.size());
    for (size_t r = 0; same_rows && r < previous_row.size(); ++r) {
      same_rows = previous_row[r] == static_cast<int32_t>(r);
    }
  }
  if (same_rows && extend(table, seq_lens)) {
    restructured = false;
  } else {
    restructure(table, seq_lens, previous_row);
    restructured = true;
  }
}

void ForestTracker::Impl::check_previous(std::span<const int32_t> previous_row,
                                         size_t num_requests) {
  if (previous_row.size() != num_requests) {
    throw InvalidArgument(five_parts(
        kFunction, "previous_row", "has " + std::to_string(previous_row.size()) + " entries",
        "be empty or have " + std::to_string(num_requests) + " (num_requests of the table)",
        "pass one previous row, or -1, for every request"));
  }
  new_row.assign(rows.size(), -1);
  for (size_t r = 0; r < previous_row.size(); ++r) {
    const int32_t previous = previous_row[r];
    if (previous == -1) continue;
    if (previous < 0 || index(previous) >= rows.size()) {
      throw InvalidArgument(five_parts(kFunction, "previous_row[" + std::to_string(r) + "]",
                                       "is " + std::to_string(previous),
                                       "be -1 or a row below " + std::to_string(rows.size()) +
                                           " (requests of the update before)",
                                       "pass -1 for requests that are new"));
    }
    if (new_row[index(previous)] >= 0) {
      throw InvalidArgument(five_parts(kFunction, "previous_row[" + std::to_string(r) + "]",
                                       "is " + std::to_string(previous) + " like previous_row[" +
                                           std::to_string(new_row[index(previous)]) + "]",
                                       "differ from every other",
                                       "pass -1 for the one that is a copy of the other"));
    }
    new_row[index(previous)] = static_cast<int32_t>(r);
  }
}

bool ForestTracker::Impl::extend(const BlockTableView& table, std::span<const int32_t> seq_lens) {
  past_range.clear();
  for (size_t r = 0; r < rows.size(); ++r) {
    const Row& row = rows[r];
    const int32_t len = seq_lens[r];
    if (len >= row.first_len && len <= row.last_len) continue;
    if (row.node < 0 || !alone(row.node)) return false;
    const int64_t begin = forest.nodes()[index(row.node)].token_begin;
    const bool had_whole_page = row.len >= begin + page_size;
    if (!had_whole_page || len <= begin) return false;
    check_page_ids(kFunction, table, static_cast<int32_t>(r), std::min(row.len, len) / page_size,
                   num_pages(len, page_size));
    past_range.push_back(static_cast<int32_t>(r));
  }

  ForestBuilder::Parts parts = ForestBuilder::parts(forest);
  int64_t added_tokens = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    Row& row = rows[r];
    const int32_t more = seq_lens[r] - row.len;
    if (more == 0) continue;
    row.len += more;
    parts.nodes[index(row.node)].num_tokens += more;
    parts.seq_lens[index(row.position)] += more;
    added_tokens += more;
  }
  parts.unique_tokens += added_tokens;
  parts.flat_tokens += added_tokens;
  for (const int32_t r : past_range) set_range(rows[index(r)]);
  if (table.row_stride != row_stride) move_offsets(table.row_stride);
  return true;
}

// Whether a kept request of that length still ends in its node or below it.
bool ForestTracker::Impl::keeps_place(const Row& row, int32_t len) const {
  if (row.node < 0) return false;
  return alone(row.node) ? len > forest.nodes()[index(row.node)].token_begin : len >= row.len;
}

void ForestTracker::Impl::restructure(const BlockTableView& table,
                                      std::span<const int32_t> seq_lens,
                                      std::span<const int32_t> previous_row) {
  new_row.assign(rows.size(), -1);
  added.clear();
  for (size_t r = 0; r < seq_lens.size(); ++r) {
    const auto own = static_cast<int32_t>(r);
    const int32_t len = seq_lens[r];
    const int32_t previous = !previous_row.empty() ? previous_row[r] : r < rows.size() ? own : -1;
    const bool kept = previous >= 0 && keeps_place(rows[index(previous)], len);
    const int64_t known = kept ? std::min(rows[index(previous)].len, len) / page_size : 0;
    if (len > 0) check_page_ids(kFunction, table, own, known, num_pages(len, page_size));
    if (kept) {
      new_row[index(previous)] = own;
    } else {
      added.push_back(own);
    }
  }

  // Comparing everything is quicker than adding most of it one by one.
  if (added.size() > seq_lens.size() / 2) {
    builder.build(kFunction, table, seq_lens, page_size, true, next);
  } else {
    make_raw(table, seq_lens);
    merger.merge(raw, page_size, &table, next);
  }

  rows.resize(seq_lens.size());
  std::swap(forest, next);
  row_stride = table.row_stride;
  for (size_t position = 0; position < rows.size(); ++position) {
    Row& row = rows[index(forest.leaf_order()[position])];
    row.node = forest.request_node()[position];
    row.position = static_cast<int32_t>(position);
    row.len = forest.seq_lens()[position];
    set_range(row);
  }
}

// The forest of the step before without the requests that are not kept, with the new lengths of those that are.
// A request that ended at a shared node and grew becomes a child of it; added ones become roots.
void ForestTracker::Impl::make_raw(const BlockTableView& table, std::span<const int32_t> seq_lens) {
  raw.clear();
  raw_column.clear();
  raw_of_node.clear();
  const std::span<const ForestNode> nodes = forest.nodes();
  for (size_t i = 0; i < nodes.size(); ++i) {
    const ForestNode& node = nodes[i];
    const int32_t parent = node.parent < 0 ? -1 : raw_of_node[index(node.parent)];
    raw_of_node.push_back(static_cast<int32_t>(raw.nodes.size()));
    if (node.request_end - node.request_begin == 1) {
      const int32_t r = new_row[index(forest.leaf_order()[index(node.request_begin)])];
      if (r < 0) continue;
      add_leaf(parent, node.token_begin, r, seq_lens[index(r)]);
      continue;
    }
    const int32_t token_end = node.token_begin + node.num_tokens;
    const auto first_end = static_cast<int32_t>(raw.requests.size());
    grown.clear();
    for (int32_t position = node.request_begin;
         position < node.request_end &&
         forest.request_node()[index(position)] == static_cast<int32_t>(i);
         ++position) {
      const int32_t r = new_row[index(forest.leaf_order()[index(position)])];
      if (r < 0) continue;
      (seq_lens[index(r)] == token_end ? raw.requests : grown).push_back(r);
    }
    add_raw(parent, node.token_begin, node.num_tokens, first_end);
    for (const int32_t r : grown) {
      add_leaf(raw_of_node.back(), token_end, r, seq_lens[index(r)]);
    }
  }
  for (const int32_t r : added) {
    if (seq_lens[index(r)] == 0) {
      raw.empty_requests.push_back(r);
      continue;
    }
    add_leaf(-1, 0, r, seq_lens[index(r)]);
  }
  raw.close();
  for (size_t i = 0; i < raw.nodes.size(); ++i) {
    if (raw.nodes[i].first_request == kNoRequest) continue;
    raw.nodes[i].pages = table.data + raw.nodes[i].first_request * table.row_stride + raw_column[i];
  }
}

// A raw node at which the requests pushed from first_end on end.
void ForestTracker::Impl::add_raw(int32_t parent, int32_t token_begin, int32_t num_tokens,
                                  int32_t first_end) {
  raw_column.push_back(token_begin / page_size);
  raw.nodes.push_back({.pages = nullptr,
                       .parent = parent,
                       .num_whole = num_tokens / page_size,
                       .tail = num_tokens % page_size,
                       .first_end = first_end,
                       .last_end = static_cast<int32_t>(raw.requests.size()),
                       .first_request = kNoRequest,
                       .subtree_end = 0});
}

void ForestTracker::Impl::add_leaf(int32_t parent, int32_t token_begin, int32_t request,
                                   int32_t len) {
  const auto first_end = static_cast<int32_t>(raw.requests.size());
  raw.requests.push_back(request);
  add_raw(parent, token_begin, len - token_begin, first_end);
}

void ForestTracker::Impl::set_range(Row& row) const {
  row.first_len = row.len;
  row.last_len = row.len;
  if (row.node < 0 || !alone(row.node)) return;
  const int64_t begin = forest.nodes()[index(row.node)].token_begin;
  const int32_t last_page_begin = (row.len - 1) / page_size * page_size;
  row.first_len = last_page_begin + 1;
  // Up to the end of the last page. A request whose only own page is still partial stops short of that: whole,
  // the page may turn out to be a sibling's, too.
  const bool has_whole_page = row.len >= begin + page_size;
  const int64_t page_end = int64_t{last_page_begin} + page_size - (has_whole_page ? 0 : 1);
  row.last_len = static_cast<int32_t>(std::min<int64_t>(page_end, kNoRequest));
}

// The same entries in a table of another stride.
void ForestTracker::Impl::move_offsets(int64_t new_stride) {
  for (ForestNode& node : ForestBuilder::parts(forest).nodes) {
    const int64_t column = node.token_begin / page_size;
    const int64_t row = row_stride == 0 ? 0 : (node.page_offset - column) / row_stride;
    node.page_offset = row * new_stride + column;
  }
  row_stride = new_stride;
}

ForestTracker::ForestTracker(int32_t page_size) {
  if (page_size < 1) {
    throw InvalidArgument(five_parts("ForestTracker", "page_size",
                                     "is " + std::to_string(page_size), "be at least 1",
                                     "pass the page size of the KV cache"));
  }
  impl_ = std::make_unique<Impl>(page_size);
}
ForestTracker::~ForestTracker() = default;
ForestTracker::ForestTracker(ForestTracker&&) noexcept = default;
ForestTracker& ForestTracker::operator=(ForestTracker&&) noexcept = default;

const PrefixForest& ForestTracker::update(const BlockTableView& table,
                                          std::span<const int32_t> seq_lens,
                                          std::span<const int32_t> previous_row) {
  impl_->update(table, seq_lens, previous_row);
  return impl_->forest;
}

const PrefixForest& ForestTracker::forest() const {
  return impl_->forest;
}
bool ForestTracker::restructured() const {
  return impl_->restructured;
}

}  // namespace capillary
