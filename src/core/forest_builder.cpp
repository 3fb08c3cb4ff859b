// SPDX-License-Identifier: MIT
// ForestBuilder (see the header), and the checks of a block table. Ids past a row's last used page
// are neither compared nor checked; they may be anything.
#include "core/forest_builder.h"

#include <algorithm>
#include <string>

#include "capillary/error.h"
#include "core/forest_ids.h"
#include "core/forest_sort.h"

namespace capillary {

ForestBuilder::Parts ForestBuilder::parts(PrefixForest& forest) {
  return {forest.nodes_,     forest.leaf_order_,    forest.request_node_,
          forest.seq_lens_,  forest.page_ids_,      forest.owns_page_ids_,
          forest.page_size_, forest.unique_tokens_, forest.flat_tokens_};
}

void check_block_table(std::string_view function, const BlockTableView& table,
                       std::span<const int32_t> seq_lens, int32_t page_size) {
  if (page_size < 1) {
    throw InvalidArgument(five_parts(function, "page_size", "is " + std::to_string(page_size),
                                     "be at least 1", "pass the page size of the KV cache"));
  }
  if (table.num_requests < 0 || table.num_columns < 0) {
    throw InvalidArgument(five_parts(function, "table",
                                     "has shape [" + std::to_string(table.num_requests) + ", " +
                                         std::to_string(table.num_columns) + "]",
                                     "have no negative extent", "pass the table's real shape"));
  }
  if (static_cast<int64_t>(seq_lens.size()) != table.num_requests) {
    throw InvalidArgument(
        five_parts(function, "seq_lens", "has " + std::to_string(seq_lens.size()) + " lengths",
                   "have " + std::to_string(table.num_requests) + " (num_requests of the table)",
                   "pass one length for every block table row"));
  }
  if (table.num_requests > 1 && table.row_stride < table.num_columns) {
    throw InvalidArgument(
        five_parts(function, "table", "has row_stride " + std::to_string(table.row_stride),
                   "have one of at least " + std::to_string(table.num_columns) + " (num_columns)",
                   "count row_stride in elements"));
  }
  int32_t shortest = 0;
  int32_t longest = 0;
  for (const int32_t len : seq_lens) {
    shortest = std::min(shortest, len);
    longest = std::max(longest, len);
  }
  if (shortest < 0) {
    const auto at = std::find_if(seq_lens.begin(), seq_lens.end(), [](int32_t l) { return l < 0; });
    throw InvalidArgument(five_parts(
        function, "seq_lens[" + std::to_string(at - seq_lens.begin()) + "]",
        "is " + std::to_string(*at), "be at least 0", "pass 0 for a request without tokens"));
  }
  if (num_pages(longest, page_size) > table.num_columns) {
    const auto at = std::find_if(seq_lens.begin(), seq_lens.end(), [&](int32_t len) {
      return num_pages(len, page_size) > table.num_columns;
    });
    throw InvalidArgument(
        five_parts(function, "table", "has " + std::to_string(table.num_columns) + " columns",
                   "have at least " + std::to_string(num_pages(*at, page_size)) + " for seq_lens[" +
                       std::to_string(at - seq_lens.begin()) + "] = " + std::to_string(*at) +
                       " with page_size " + std::to_string(page_size),
                   "widen the table or check the length"));
  }
  if (longest > 0 && table.data == nullptr) {
    throw InvalidArgument(five_parts(function, "table", "has no data", "have ids for all lengths",
                                     "set data to the table's first entry"));
  }
}

void check_page_ids(std::string_view function, const BlockTableView& table, int32_t row,
                    int64_t first_page, int64_t end_page) {
  const int32_t* const ids = table.data + row * table.row_stride;
  if (!any_negative(ids + first_page, end_page - first_page)) return;
  int64_t page = first_page;
  while (ids[page] >= 0) ++page;
  throw InvalidArgument(
      five_parts(function, "table[" + std::to_string(row) + "][" + std::to_string(page) + "]",
                 "is page id " + std::to_string(ids[page]),
                 "be at least 0 (the request's length needs this page)",
                 "give the request its pages first, or a smaller length"));
}

void close_subtrees(std::span<ForestNode> nodes) {
  for (size_t i = nodes.size(); i-- > 0;) {
    ForestNode& node = nodes[i];
    node.subtree_end = std::max(node.subtree_end, static_cast<int32_t>(i) + 1);
    if (node.parent >= 0) {
      ForestNode& parent = nodes[static_cast<size_t>(node.parent)];
      parent.subtree_end = std::max(parent.subtree_end, node.subtree_end);
    }
  }
}

void ForestBuilder::build(std::string_view function, const BlockTableView& table,
                          std::span<const int32_t> seq_lens, int32_t page_size, bool share,
                          PrefixForest& out) {
  check_block_table(function, table, seq_lens, page_size);
  function_ = function;
  table_ = table;
  lens_ = seq_lens;
  page_size_ = page_size;
  Parts forest = parts(out);
  out_ = &forest;

  const size_t num_requests = seq_lens.size();
  forest.nodes.clear();
  forest.nodes.reserve(2 * num_requests);
  forest.leaf_order.clear();
  forest.leaf_order.reserve(num_requests);
  forest.request_node.clear();
  forest.request_node.reserve(num_requests);
  forest.seq_lens.clear();
  forest.seq_lens.reserve(num_requests);
  forest.page_ids.clear();
  forest.owns_page_ids = false;
  forest.page_size = page_size;

  order_.resize(num_requests);
  whole_.resize(num_requests);
  int64_t flat_tokens = 0;
  for (size_t row = 0; row < num_requests; ++row) {
    order_[row] = static_cast<int32_t>(row);
    whole_[row] = seq_lens[row] / page_size;
    flat_tokens += seq_lens[row];
  }
  stack_.clear();
  if (share) {
    branch(0, static_cast<int32_t>(num_requests), 0, -1);
    while (!stack_.empty()) {
      const Group group = stack_.back();
      stack_.pop_back();
      if (group.end - group.begin == 1) {
        add_leaf(order_[static_cast<size_t>(group.begin)], group.page, group.parent);
      } else {
        follow_reference(group);
      }
    }
  } else {
    for (size_t row = 0; row < num_requests; ++row) {
      if (seq_lens[row] == 0) end_request(static_cast<int32_t>(row), -1);
    }
    for (size_t row = 0; row < num_requests; ++row) {
      if (seq_lens[row] > 0) add_leaf(static_cast<int32_t>(row), 0, -1);
    }
  }
  close_subtrees(forest.nodes);
  int64_t unique_tokens = 0;
  for (const ForestNode& node : forest.nodes) unique_tokens += node.num_tokens;
  forest.unique_tokens = unique_tokens;
  forest.flat_tokens = flat_tokens;
  out_ = nullptr;
}

// Rows order_[begin, end), ascending, agree on everything before `page` and part there: some end, some go
// on alone with a partial page, the rest go on by page id. What goes on is pushed so that the stack yields it
// by smallest request.
void ForestBuilder::branch(int32_t begin, int32_t end, int32_t page, int32_t parent) {
  groups_.clear();
  members_.clear();
  grouper_.start(static_cast<size_t>(end - begin));
  for (int32_t i = begin; i < end; ++i) {
    const int32_t row = order_[static_cast<size_t>(i)];
    const auto next_group = static_cast<int32_t>(groups_.size());
    int32_t group = next_group;
    if (whole_[static_cast<size_t>(row)] > page) {
      group = grouper_.group_of(row_ids(row)[page], next_group);
    } else if (static_cast<int64_t>(page) * page_size_ == lens_[static_cast<size_t>(row)]) {
      end_request(row, parent);
      continue;
    }
    if (group == next_group) groups_.push_back({0, 0, page, parent});
    ++groups_[static_cast<size_t>(group)].end;
    members_.push_back({group, row});
  }
  // Numbered by first appearance, so already in the order of their first rows.
  int32_t next = begin;
  for (Group& group : groups_) {
    const int32_t count = group.end;
    group.begin = group.end = next;
    next += count;
  }
  for (const Member& member : members_) {
    order_[static_cast<size_t>(groups_[static_cast<size_t>(member.group)].end++)] = member.row;
  }
  stack_.insert(stack_.end(), groups_.rbegin(), groups_.rend());
}

void ForestBuilder::follow_reference(const Group& group) {
  const int32_t reference = order_[static_cast<size_t>(group.begin)];
  const int32_t* const reference_ids = row_ids(reference);
  const int32_t reference_whole = whole_[static_cast<size_t>(reference)];

  keys_.clear();
  for (int32_t i = group.begin + 1; i < group.end; ++i) {
    const int32_t row = order_[static_cast<size_t>(i)];
    const int32_t limit = std::min(reference_whole, whole_[static_cast<size_t>(row)]);
    const int64_t agreed =
        common_ids(reference_ids + group.page, row_ids(row) + group.page, limit - group.page);
    keys_.push_back(make_key(static_cast<uint32_t>(group.page + agreed), row));
  }
  sorter_.sort(keys_);
  for (size_t i = 0; i < keys_.size(); ++i) {
    order_[static_cast<size_t>(group.begin) + 1 + i] = key_index(keys_[i]);
  }

  // Down the reference's path: a node up to every place where rows leave it.
  const auto leave_at = [this](int32_t i) {
    return static_cast<int32_t>(key_upper(keys_[static_cast<size_t>(i)]));
  };
  const int32_t num_others = group.end - group.begin - 1;
  int32_t page = group.page;
  int32_t parent = group.parent;
  for (int32_t i = 0; i < num_others;) {
    const int32_t leave = leave_at(i);
    const int32_t node = static_cast<int32_t>(out_->nodes.size());
    const int32_t position = static_cast<int32_t>(out_->leaf_order.size());
    check_ids(reference, page, leave);
    out_->nodes.push_back({.parent = parent,
                           .token_begin = page * page_size_,
                           .num_tokens = (leave - page) * page_size_,
                           .request_begin = position,
                           .request_end = position + num_others - i + 1,
                           .subtree_end = 0,
                           .page_offset = reference * table_.row_stride + page});
    int32_t j = i;
    while (j < num_others && leave_at(j) == leave) ++j;
    page = leave;
    parent = node;
    // Where the reference ends here without a partial page, it is the first of those that end.
    if (j == num_others && leave == reference_whole &&
        static_cast<int64_t>(leave) * page_size_ == lens_[static_cast<size_t>(reference)]) {
      end_request(reference, node);
      branch(group.begin + 1 + i, group.begin + 1 + j, leave, node);
      return;
    }
    branch(group.begin + 1 + i, group.begin + 1 + j, leave, node);
    i = j;
  }
  add_leaf(reference, page, parent);
}

void ForestBuilder::add_leaf(int32_t row, int32_t page, int32_t parent) {
  const int32_t len = lens_[static_cast<size_t>(row)];
  check_ids(row, page, num_pages(len, page_size_));
  const int32_t node = static_cast<int32_t>(out_->nodes.size());
  const int32_t position = static_cast<int32_t>(out_->leaf_order.size());
  out_->nodes.push_back({.parent = parent,
                         .token_begin = page * page_size_,
                         .num_tokens = len - page * page_size_,
                         .request_begin = position,
                         .request_end = position + 1,
                         .subtree_end = 0,
                         .page_offset = row * table_.row_stride + page});
  end_request(row, node);
}

void ForestBuilder::end_request(int32_t row, int32_t node) {
  out_->leaf_order.push_back(row);
  out_->request_node.push_back(node);
  out_->seq_lens.push_back(lens_[static_cast<size_t>(row)]);
}

}  // namespace capillary
