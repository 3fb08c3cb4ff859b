// SPDX-License-Identifier: MIT
// Callers' trees: nothing about them is assumed that is not checked here or by the caller (forest_tree.h).
#include "core/forest_tree.h"

#include <algorithm>
#include <limits>
#include <string>

#include "capillary/error.h"
#include "core/forest_merge.h"

namespace capillary {

namespace {

// Items j grouped by owner[j], ascending; items of owner -1 are in no group.
struct Groups {
  std::vector<int32_t> begin;
  std::vector<int32_t> items;

  Groups(std::span<const int32_t> owner, size_t num_owners) : begin(num_owners + 1, 0) {
    for (const int32_t o : owner) {
      if (o >= 0) ++begin[static_cast<size_t>(o) + 1];
    }
    for (size_t i = 0; i < num_owners; ++i) begin[i + 1] += begin[i];
    items.resize(static_cast<size_t>(begin.back()));
    std::vector<int32_t> next(begin.begin(), begin.end() - 1);
    for (size_t j = 0; j < owner.size(); ++j) {
      if (owner[j] < 0) continue;
      int32_t& slot = next[static_cast<size_t>(owner[j])];
      items[static_cast<size_t>(slot++)] = static_cast<int32_t>(j);
    }
  }

  std::span<const int32_t> of(int32_t owner) const {
    const auto i = static_cast<size_t>(owner);
    return std::span(items).subspan(static_cast<size_t>(begin[i]),
                                    static_cast<size_t>(begin[i + 1] - begin[i]));
  }
};

}  // namespace

std::vector<int32_t> preorder(std::string_view function, std::span<const int32_t> parent) {
  const auto num_nodes = static_cast<int64_t>(parent.size());
  for (size_t i = 0; i < parent.size(); ++i) {
    if (parent[i] >= -1 && parent[i] < num_nodes) continue;
    throw InvalidArgument(five_parts(function, "parent[" + std::to_string(i) + "]",
                                     "is " + std::to_string(parent[i]),
                                     "be -1 or a node below " + std::to_string(num_nodes),
                                     "number nodes from 0 and give roots the parent -1"));
  }
  const Groups children(parent, parent.size());
  std::vector<int32_t> order;
  order.reserve(parent.size());
  std::vector<int32_t> stack;
  for (size_t i = parent.size(); i-- > 0;) {
    if (parent[i] < 0) stack.push_back(static_cast<int32_t>(i));
  }
  while (!stack.empty()) {
    order.push_back(stack.back());
    stack.pop_back();
    const auto below = children.of(order.back());
    stack.insert(stack.end(), below.rbegin(), below.rend());
  }
  if (order.size() < parent.size()) {
    // What no root reaches hangs below a cycle; as many steps up as there are nodes end on it.
    std::vector<bool> reached(parent.size(), false);
    for (const int32_t i : order) reached[static_cast<size_t>(i)] = true;
    auto node =
        static_cast<int32_t>(std::find(reached.begin(), reached.end(), false) - reached.begin());
    for (size_t step = 0; step < parent.size(); ++step) node = parent[static_cast<size_t>(node)];
    throw InvalidArgument(
        five_parts(function, "parent", "has a cycle through node " + std::to_string(node),
                   "lead from every node to a root (-1)",
                   "check parent[" + std::to_string(node) +
                       "] = " + std::to_string(parent[static_cast<size_t>(node)])));
  }
  return order;
}

void merge_caller_tree(std::string_view function, const CallerTree& tree, int32_t page_size,
                       PrefixForest& out) {
  const std::vector<int32_t> order = preorder(function, tree.parent);
  const Groups requests(tree.request_node, tree.parent.size());
  std::vector<int32_t> place(tree.parent.size());  // of a caller's node in preorder
  std::vector<int64_t> path_tokens(tree.parent.size());
  RawForest raw;
  raw.nodes.reserve(order.size());
  for (const int32_t node : order) {
    const auto i = static_cast<size_t>(node);
    const int32_t parent = tree.parent[i];
    int64_t above = 0;
    if (parent >= 0) {
      const auto p = static_cast<size_t>(parent);
      above = path_tokens[p];
      if (tree.num_tokens[p] % page_size != 0) {
        throw InvalidArgument(
            five_parts(function, "num_tokens[" + std::to_string(parent) + "]",
                       "is " + std::to_string(tree.num_tokens[p]) + " in a node with children",
                       "be a multiple of page_size " + std::to_string(page_size),
                       "move the tokens of the partial page into each child"));
      }
    }
    path_tokens[i] = above + tree.num_tokens[i];
    if (path_tokens[i] > std::numeric_limits<int32_t>::max()) {
      throw InvalidArgument(five_parts(function, "num_tokens",
                                       "add up to " + std::to_string(path_tokens[i]) +
                                           " on the path to node " + std::to_string(node),
                                       "stay within 2147483647 on every path",
                                       "check the lengths"));
    }
    place[i] = static_cast<int32_t>(raw.nodes.size());
    const auto ending = requests.of(node);
    const auto first_end = static_cast<int32_t>(raw.requests.size());
    raw.requests.insert(raw.requests.end(), ending.begin(), ending.end());
    raw.nodes.push_back({.pages = tree.pages[i],
                         .parent = parent < 0 ? -1 : place[static_cast<size_t>(parent)],
                         .num_whole = tree.num_tokens[i] / page_size,
                         .tail = tree.num_tokens[i] % page_size,
                         .first_end = first_end,
                         .last_end = static_cast<int32_t>(raw.requests.size()),
                         .first_request = kNoRequest,
                         .subtree_end = 0});
  }
  for (size_t r = 0; r < tree.request_node.size(); ++r) {
    if (tree.request_node[r] < 0) raw.empty_requests.push_back(static_cast<int32_t>(r));
  }
  raw.close();
  ForestMerger().merge(raw, page_size, nullptr, out);
}

}  // namespace capillary
