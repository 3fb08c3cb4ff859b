// SPDX-License-Identifier: MIT
// merge_raw_tree: a set of cursors walks down the raw tree, all at the same token and all behind
// the same pages; the set is one node of the result for as long as its members agree and none of
// them ends. Explicit stack, because a raw tree may be as deep as it has nodes.
#include "core/forest_merge.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "capillary/error.h"
#include "core/forest_builder.h"
#include "core/forest_ids.h"

namespace capillary {

namespace {

constexpr int32_t kNoRequest = std::numeric_limits<int32_t>::max();

// lists[begin[i], begin[i + 1]): the indices j with owner[j] == i, ascending. Owners of -1 are in
// no list.
struct Lists {
  std::vector<int32_t> begin;
  std::vector<int32_t> items;

  Lists(std::span<const int32_t> owner, size_t num_owners)
      : begin(num_owners + 1, 0), items(owner.size()) {
    for (const int32_t o : owner) {
      if (o >= 0) ++begin[static_cast<size_t>(o) + 1];
    }
    for (size_t i = 0; i < num_owners; ++i) begin[i + 1] += begin[i];
    std::vector<int32_t> next(begin.begin(), begin.end() - 1);
    for (size_t j = 0; j < owner.size(); ++j) {
      if (owner[j] >= 0) {
        items[static_cast<size_t>(next[static_cast<size_t>(owner[j])]++)] = static_cast<int32_t>(j);
      }
    }
  }

  std::span<const int32_t> of(int32_t owner) const {
    const auto i = static_cast<size_t>(owner);
    return std::span(items).subspan(static_cast<size_t>(begin[i]),
                                    static_cast<size_t>(begin[i + 1] - begin[i]));
  }
};

struct Cursor {
  int32_t raw;
  int32_t used;  // whole pages of `raw` that lie behind
};

struct Tail {
  int32_t request;
  int32_t num_tokens;
  int32_t page_id;
};

// A child to be built: cursors that go on with the same page, or one request's partial page.
struct Task {
  std::vector<Cursor> cursors;
  Tail tail;
  int32_t first_request;
  int32_t token_begin;
  int32_t parent;
};

class Merger {
 public:
  Merger(const RawTree& tree, std::span<const int32_t> order, int32_t page_size, PrefixForest& out)
      : tree_(tree),
        page_size_(page_size),
        out_(ForestBuilder::parts(out)),
        children_(tree.parent, tree.parent.size()),
        requests_(tree.request_node, tree.parent.size()),
        first_request_(tree.parent.size(), kNoRequest),
        path_tokens_(tree.parent.size(), 0) {
    for (const int32_t raw : order) {
      const int32_t parent = tree.parent[index(raw)];
      path_tokens_[index(raw)] = (parent < 0 ? 0 : path_tokens_[index(parent)]) + num_tokens(raw);
    }
    for (size_t i = order.size(); i-- > 0;) {
      const size_t raw = index(order[i]);
      const auto own = requests_.of(order[i]);
      if (!own.empty()) first_request_[raw] = std::min(first_request_[raw], own.front());
      if (tree.parent[raw] >= 0) {
        int32_t& above = first_request_[index(tree.parent[raw])];
        above = std::min(above, first_request_[raw]);
      }
    }
  }

  void check(std::string_view function) const {
    for (size_t raw = 0; raw < tree_.parent.size(); ++raw) {
      const auto i = static_cast<int32_t>(raw);
      if (tree_.num_tokens[raw] % page_size_ != 0 && !children_.of(i).empty()) {
        throw InvalidArgument(
            five_parts(function, "num_tokens[" + std::to_string(i) + "]",
                       "is " + std::to_string(tree_.num_tokens[raw]) + " in a node with children",
                       "be a multiple of page_size " + std::to_string(page_size_),
                       "move the tokens of the partial page into each child"));
      }
      if (path_tokens_[raw] > std::numeric_limits<int32_t>::max()) {
        throw InvalidArgument(five_parts(function, "num_tokens",
                                         "add up to " + std::to_string(path_tokens_[raw]) +
                                             " on the path to node " + std::to_string(i),
                                         "stay within 2147483647 on every path",
                                         "check the lengths"));
      }
    }
  }

  void run() {
    out_.nodes.clear();
    out_.leaf_order.clear();
    out_.request_node.clear();
    out_.seq_lens.clear();
    out_.page_ids.clear();
    out_.owns_page_ids = true;
    out_.page_size = page_size_;

    for (size_t r = 0; r < tree_.request_node.size(); ++r) {
      if (tree_.request_node[r] < 0) ended_.push_back(static_cast<int32_t>(r));
    }
    for (size_t raw = 0; raw < tree_.parent.size(); ++raw) {
      if (tree_.parent[raw] < 0) settle({static_cast<int32_t>(raw), 0});
    }
    branch(0, -1);
    while (!stack_.empty()) {
      const Task task = std::move(stack_.back());
      stack_.pop_back();
      build(task);
    }
    close();
  }

 private:
  static size_t index(int32_t i) { return static_cast<size_t>(i); }
  int32_t num_tokens(int32_t raw) const { return tree_.num_tokens[index(raw)]; }
  int32_t num_whole(int32_t raw) const { return num_tokens(raw) / page_size_; }
  int32_t next_id(const Cursor& cursor) const {
    return tree_.pages[index(cursor.raw)][cursor.used];
  }

  // Sorts a cursor that has just been moved, or what lies below it, into ended_, tails_ and
  // runners_.
  void settle(const Cursor& start) {
    pending_.assign(1, start);
    while (!pending_.empty()) {
      const Cursor cursor = pending_.back();
      pending_.pop_back();
      if (first_request_[index(cursor.raw)] == kNoRequest) continue;
      if (cursor.used < num_whole(cursor.raw)) {
        runners_.push_back(cursor);
        continue;
      }
      const int32_t tail = num_tokens(cursor.raw) % page_size_;
      for (const int32_t request : requests_.of(cursor.raw)) {
        if (tail == 0) {
          ended_.push_back(request);
        } else {
          tails_.push_back({request, tail, next_id(cursor)});
        }
      }
      for (const int32_t child : children_.of(cursor.raw)) pending_.push_back({child, 0});
    }
  }

  // What settle() left becomes requests that end at `node` and its children.
  void branch(int32_t token, int32_t node) {
    std::sort(ended_.begin(), ended_.end());
    for (const int32_t request : ended_) end_request(request, node, token);
    std::sort(runners_.begin(), runners_.end(), [this](const Cursor& a, const Cursor& b) {
      return std::pair(next_id(a), a.raw) < std::pair(next_id(b), b.raw);
    });
    const size_t first_task = stack_.size();
    for (size_t i = 0; i < runners_.size();) {
      Task task{{}, {}, kNoRequest, token, node};
      const int32_t id = next_id(runners_[i]);
      for (; i < runners_.size() && next_id(runners_[i]) == id; ++i) {
        task.cursors.push_back(runners_[i]);
        task.first_request = std::min(task.first_request, first_request_[index(runners_[i].raw)]);
      }
      stack_.push_back(std::move(task));
    }
    for (const Tail& tail : tails_) stack_.push_back({{}, tail, tail.request, token, node});
    std::sort(stack_.begin() + static_cast<std::ptrdiff_t>(first_task), stack_.end(),
              [](const Task& a, const Task& b) { return a.first_request > b.first_request; });
    forget();
  }

  void build(const Task& task) {
    const auto node = static_cast<int32_t>(out_.nodes.size());
    out_.nodes.push_back({.parent = task.parent,
                          .token_begin = task.token_begin,
                          .num_tokens = 0,
                          .request_begin = static_cast<int32_t>(out_.leaf_order.size()),
                          .request_end = 0,
                          .subtree_end = 0,
                          .page_offset = static_cast<int64_t>(out_.page_ids.size())});
    if (task.cursors.empty()) {
      tails_.push_back(task.tail);
    } else {
      for (auto cursors = task.cursors; !cursors.empty();) {
        cursors = advance(node, std::move(cursors));
      }
    }
    int32_t token = task.token_begin + out_.nodes.back().num_tokens;
    if (ended_.empty() && runners_.empty() && tails_.size() == 1) {
      out_.page_ids.push_back(tails_.front().page_id);
      out_.nodes.back().num_tokens += tails_.front().num_tokens;
      token += tails_.front().num_tokens;
      end_request(tails_.front().request, node, token);
      forget();
    } else {
      branch(token, node);
    }
  }

  // Moves cursors that go on with the same page over all that they share, as tokens of `node`.
  // Returns the cursors that still go on together, or none where the node is complete and its
  // children settled.
  std::vector<Cursor> advance(int32_t node, std::vector<Cursor> cursors) {
    const Cursor& reference = cursors.front();
    const int32_t* const ids = tree_.pages[index(reference.raw)] + reference.used;
    int64_t shared = num_whole(reference.raw) - reference.used;
    for (const Cursor& cursor : cursors) {
      const int64_t rest = num_whole(cursor.raw) - cursor.used;
      shared =
          common_ids(ids, tree_.pages[index(cursor.raw)] + cursor.used, std::min(shared, rest));
    }
    out_.page_ids.insert(out_.page_ids.end(), ids, ids + shared);
    out_.nodes[index(node)].num_tokens += static_cast<int32_t>(shared) * page_size_;
    for (const Cursor& cursor : cursors) {
      settle({cursor.raw, cursor.used + static_cast<int32_t>(shared)});
    }
    const bool together =
        ended_.empty() && tails_.empty() && !runners_.empty() &&
        std::all_of(runners_.begin(), runners_.end(), [this](const Cursor& cursor) {
          return next_id(cursor) == next_id(runners_.front());
        });
    if (!together) return {};
    return std::exchange(runners_, {});
  }

  void end_request(int32_t request, int32_t node, int32_t len) {
    out_.leaf_order.push_back(request);
    out_.request_node.push_back(node);
    out_.seq_lens.push_back(len);
  }

  void forget() {
    ended_.clear();
    tails_.clear();
    runners_.clear();
  }

  void close() {
    out_.unique_tokens = 0;
    out_.flat_tokens = std::accumulate(out_.seq_lens.begin(), out_.seq_lens.end(), int64_t{0});
    for (size_t position = 0; position < out_.request_node.size(); ++position) {
      const int32_t node = out_.request_node[position];
      if (node >= 0) out_.nodes[index(node)].request_end = static_cast<int32_t>(position) + 1;
    }
    for (size_t i = out_.nodes.size(); i-- > 0;) {
      const ForestNode& node = out_.nodes[i];
      out_.unique_tokens += node.num_tokens;
      if (node.parent < 0) continue;
      int32_t& above = out_.nodes[index(node.parent)].request_end;
      above = std::max(above, node.request_end);
    }
    close_subtrees(out_.nodes);
  }

  const RawTree& tree_;
  const int32_t page_size_;
  ForestBuilder::Parts out_;
  Lists children_;
  Lists requests_;
  std::vector<int32_t> first_request_;  // by raw node: smallest request at or below it
  std::vector<int64_t> path_tokens_;

  std::vector<int32_t> ended_;
  std::vector<Tail> tails_;
  std::vector<Cursor> runners_;
  std::vector<Cursor> pending_;
  std::vector<Task> stack_;
};

}  // namespace

std::vector<int32_t> parents_first(std::string_view function, std::span<const int32_t> parent) {
  const auto num_nodes = static_cast<int64_t>(parent.size());
  for (size_t i = 0; i < parent.size(); ++i) {
    if (parent[i] < -1 || parent[i] >= num_nodes) {
      throw InvalidArgument(five_parts(function, "parent[" + std::to_string(i) + "]",
                                       "is " + std::to_string(parent[i]),
                                       "be -1 or a node below " + std::to_string(num_nodes),
                                       "number nodes from 0 and give roots the parent -1"));
    }
  }
  const Lists children(parent, parent.size());
  std::vector<int32_t> order;
  order.reserve(parent.size());
  for (size_t i = 0; i < parent.size(); ++i) {
    if (parent[i] < 0) order.push_back(static_cast<int32_t>(i));
  }
  for (size_t next = 0; next < order.size(); ++next) {
    const auto below = children.of(order[next]);
    order.insert(order.end(), below.begin(), below.end());
  }
  if (order.size() < parent.size()) {
    // Whatever no root reaches hangs on a cycle; as many steps up as there are nodes end on it.
    std::vector<bool> reached(parent.size(), false);
    for (const int32_t i : order) reached[static_cast<size_t>(i)] = true;
    auto at =
        static_cast<int32_t>(std::find(reached.begin(), reached.end(), false) - reached.begin());
    for (size_t step = 0; step < parent.size(); ++step) at = parent[static_cast<size_t>(at)];
    throw InvalidArgument(five_parts(function, "parent",
                                     "has a cycle through node " + std::to_string(at),
                                     "lead from every node to a root (-1)",
                                     "check parent[" + std::to_string(at) +
                                         "] = " + std::to_string(parent[static_cast<size_t>(at)])));
  }
  return order;
}

void merge_raw_tree(std::string_view function, const RawTree& tree, int32_t page_size,
                    PrefixForest& out) {
  const std::vector<int32_t> order = parents_first(function, tree.parent);
  Merger merger(tree, order, page_size, out);
  merger.check(function);
  merger.run();
}

}  // namespace capillary
