// SPDX-License-Identifier: MIT
// Trees that callers describe by a parent array: order, cycles, and the way into ForestMerger.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "capillary/prefix_forest.h"

namespace capillary {

// Checked already, except for the parents: indices in range, page ids not negative,
// ceil(num_tokens / page_size) pages in every node.
struct CallerTree {
  std::span<const int32_t> parent;        // -1: root
  std::span<const int32_t> num_tokens;    // of every node
  std::span<const int32_t* const> pages;  // first page id of every node; not read without tokens
  std::span<const int32_t> request_node;  // node at which each request ends, -1: empty request
};

// Depth first: parents before children, subtrees contiguous, siblings ascending. Throws InvalidArgument where a
// parent is out of range or on a cycle.
std::vector<int32_t> preorder(std::string_view function, std::span<const int32_t> parent);

// The canonical forest, with page ids of its own. Throws InvalidArgument on a cycle, on a node with children
// and a partial page, on a path of more than 2^31 - 1 tokens.
void merge_caller_tree(std::string_view function, const CallerTree& tree, int32_t page_size,
                       PrefixForest& out);

}  // namespace capillary
