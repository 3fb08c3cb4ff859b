// SPDX-License-Identifier: MIT
// ForestMerger: a set of cursors walks down the raw forest, all at the same token and all behind the same pages.
// The set is one node of the result for as long as its members agree and no request ends among them.
// Explicit stack, because a raw forest may be as deep as it has nodes.
#include "core/forest_merge.h"

#include <algorithm>
#include <numeric>

#include "core/forest_ids.h"

namespace capillary {

void RawForest::clear() {
  nodes.clear();
  requests.clear();
  empty_requests.clear();
}

void RawForest::close() {
  for (size_t i = nodes.size(); i-- > 0;) {
    RawNode& node = nodes[i];
    node.subtree_end = std::max(node.subtree_end, static_cast<int32_t>(i) + 1);
    for (int32_t r = node.first_end; r < node.last_end; ++r) {
      node.first_request = std::min(node.first_request, requests[static_cast<size_t>(r)]);
    }
    if (node.parent < 0) continue;
    RawNode& parent = nodes[static_cast<size_t>(node.parent)];
    parent.subtree_end = std::max(parent.subtree_end, node.subtree_end);
    parent.first_request = std::min(parent.first_request, node.first_request);
  }
}

void ForestMerger::merge(const RawForest& raw_forest, int32_t page_size,
                         const BlockTableView* table, PrefixForest& out) {
  raw_ = &raw_forest;
  table_ = table;
  page_size_ = page_size;
  ForestBuilder::Parts forest = ForestBuilder::parts(out);
  out_ = &forest;
  forest.nodes.clear();
  forest.leaf_order.clear();
  forest.request_node.clear();
  forest.seq_lens.clear();
  forest.page_ids.clear();
  forest.owns_page_ids = table == nullptr;
  forest.page_size = page_size;

  forget();
  stack_.clear();
  cursors_.clear();
  const auto num_raw = static_cast<int32_t>(raw_forest.nodes.size());
  for (int32_t root = 0; root < num_raw; root = raw(root).subtree_end) settle({root, 0});
  ended_.insert(ended_.end(), raw_forest.empty_requests.begin(), raw_forest.empty_requests.end());
  branch(0, -1);
  while (!stack_.empty()) {
    const Task task = stack_.back();
    stack_.pop_back();
    build(task);
  }
  close();
  out_ = nullptr;
}

// Sorts a cursor that has just been moved, or else what lies below it, into ended_, tails_ and runners_.
void ForestMerger::settle(Cursor start) {
  pending_.assign(1, start);
  while (!pending_.empty()) {
    const Cursor cursor = pending_.back();
    pending_.pop_back();
    const RawNode& node = raw(cursor.raw);
    if (node.first_request == kNoRequest) continue;
    if (cursor.used < node.num_whole) {
      runners_.push_back(cursor);
      continue;
    }
    for (int32_t r = node.first_end; r < node.last_end; ++r) {
      const int32_t request = raw_->requests[static_cast<size_t>(r)];
      if (node.tail == 0) {
        ended_.push_back(request);
      } else {
        tails_.push_back({request, node.tail, next_id(cursor)});
      }
    }
    for (int32_t child = cursor.raw + 1; child < node.subtree_end; child = raw(child).subtree_end) {
      pending_.push_back({child, 0});
    }
  }
}

// What settle() found at `token` becomes the requests that end at `node`, and its children.
void ForestMerger::branch(int32_t token, int32_t node) {
  if (ended_.size() > 1) std::sort(ended_.begin(), ended_.end());
  for (const int32_t request : ended_) end_request(request, node, token);
  if (!runners_.empty() || !tails_.empty()) push_children(token, node);
  forget();
}

void ForestMerger::push_children(int32_t token, int32_t node) {
  children_.clear();
  child_of_.clear();
  grouper_.start(runners_.size());
  for (const Cursor& cursor : runners_) {
    const auto next_child = static_cast<int32_t>(children_.size());
    const int32_t child = grouper_.group_of(next_id(cursor), next_child);
    if (child == next_child) children_.push_back({kNoRequest, 0, 0, Tail{}});
    Child& its = children_[static_cast<size_t>(child)];
    its.first_request = std::min(its.first_request, raw(cursor.raw).first_request);
    ++its.num_cursors;
    child_of_.push_back(child);
  }
  for (const Tail& tail : tails_) children_.push_back({tail.request, 0, 0, tail});

  by_first_.clear();
  for (size_t i = 0; i < children_.size(); ++i) {
    by_first_.push_back(
        make_key(static_cast<uint32_t>(children_[i].first_request), static_cast<int32_t>(i)));
  }
  sorter_.sort(by_first_);
  // Backwards: the last one pushed is the first one popped.
  size_t next = cursors_.size();
  for (size_t i = by_first_.size(); i-- > 0;) {
    Child& child = children_[static_cast<size_t>(key_index(by_first_[i]))];
    stack_.push_back({next, child.first_request, token, node, child.tail});
    child.next_cursor = next;
    next += child.num_cursors;
  }
  cursors_.resize(next);
  for (size_t i = 0; i < runners_.size(); ++i) {
    cursors_[children_[static_cast<size_t>(child_of_[i])].next_cursor++] = runners_[i];
  }
}

void ForestMerger::build(const Task& task) {
  const auto node = static_cast<int32_t>(out_->nodes.size());
  const int64_t offset =
      table_ == nullptr ? static_cast<int64_t>(out_->page_ids.size())
                        : task.first_request * table_->row_stride + task.token_begin / page_size_;
  out_->nodes.push_back({.parent = task.parent,
                         .token_begin = task.token_begin,
                         .num_tokens = 0,
                         .request_begin = static_cast<int32_t>(out_->leaf_order.size()),
                         .request_end = 0,
                         .subtree_end = 0,
                         .page_offset = offset});
  together_.assign(cursors_.begin() + static_cast<std::ptrdiff_t>(task.first_cursor),
                   cursors_.end());
  cursors_.resize(task.first_cursor);
  if (together_.empty()) {
    tails_.push_back(task.tail);
  } else {
    while (advance(node)) {
    }
  }
  int32_t& num_tokens = out_->nodes.back().num_tokens;
  if (ended_.empty() && runners_.empty() && tails_.size() == 1) {
    // One request is all there is: its partial page belongs to this node.
    const Tail& tail = tails_.front();
    num_tokens += tail.num_tokens;
    if (table_ == nullptr) out_->page_ids.push_back(tail.page_id);
    end_request(tail.request, node, task.token_begin + num_tokens);
    forget();
  } else {
    branch(task.token_begin + num_tokens, node);
  }
}

// Moves together_, cursors that go on with the same page, over all that they share. True: what they came to
// goes on together, too. False: the node is complete and what lies below it is settled.
bool ForestMerger::advance(int32_t node) {
  const Cursor reference = together_.front();
  const int32_t* const ids = raw(reference.raw).pages + reference.used;
  int64_t shared = raw(reference.raw).num_whole - reference.used;
  for (size_t i = 1; i < together_.size(); ++i) {
    const RawNode& other = raw(together_[i].raw);
    const int32_t used = together_[i].used;
    shared = common_ids(ids, other.pages + used, std::min<int64_t>(shared, other.num_whole - used));
  }
  if (table_ == nullptr) out_->page_ids.insert(out_->page_ids.end(), ids, ids + shared);
  out_->nodes[static_cast<size_t>(node)].num_tokens += static_cast<int32_t>(shared) * page_size_;
  for (const Cursor& cursor : together_) {
    settle({cursor.raw, cursor.used + static_cast<int32_t>(shared)});
  }
  if (!ended_.empty() || !tails_.empty()) return false;
  const int32_t id = next_id(runners_.front());
  for (const Cursor& cursor : runners_) {
    if (next_id(cursor) != id) return false;
  }
  together_.swap(runners_);
  runners_.clear();
  return true;
}

void ForestMerger::end_request(int32_t request, int32_t node, int32_t len) {
  out_->leaf_order.push_back(request);
  out_->request_node.push_back(node);
  out_->seq_lens.push_back(len);
}

void ForestMerger::forget() {
  ended_.clear();
  tails_.clear();
  runners_.clear();
}

void ForestMerger::close() {
  std::vector<ForestNode>& nodes = out_->nodes;
  for (size_t position = 0; position < out_->request_node.size(); ++position) {
    const int32_t node = out_->request_node[position];
    if (node >= 0)
      nodes[static_cast<size_t>(node)].request_end = static_cast<int32_t>(position) + 1;
  }
  int64_t unique_tokens = 0;
  for (size_t i = nodes.size(); i-- > 0;) {
    unique_tokens += nodes[i].num_tokens;
    if (nodes[i].parent < 0) continue;
    int32_t& above = nodes[static_cast<size_t>(nodes[i].parent)].request_end;
    above = std::max(above, nodes[i].request_end);
  }
  close_subtrees(nodes);
  out_->unique_tokens = unique_tokens;
  out_->flat_tokens = std::accumulate(out_->seq_lens.begin(), out_->seq_lens.end(), int64_t{0});
}

}  // namespace capillary
