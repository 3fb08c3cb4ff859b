// SPDX-License-Identifier: MIT
// From any tree of page runs to the canonical forest. The raw tree may split runs where nothing
// branches, give siblings equal first pages, hang requests below a partial page's owner twice, hold
// nodes without requests or without tokens; what comes out depends only on which pages every
// request has.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "capillary/prefix_forest.h"

namespace capillary {

// Checked already, except for cycles: indices in range, page ids not negative, ceil(num_tokens /
// page_size) pages in every node.
struct RawTree {
  std::span<const int32_t> parent;
  std::span<const int32_t> num_tokens;
  std::span<const int32_t* const> pages;  // first page id of every node; not read without tokens
  std::span<const int32_t> request_node;  // -1: empty request
};

// Parents before children. Throws InvalidArgument where a parent is out of range or on a cycle.
std::vector<int32_t> parents_first(std::string_view function, std::span<const int32_t> parent);

// Fills `out` with the canonical forest, its page ids in preorder. Throws InvalidArgument on a
// cycle, on a node with children and a partial page, on a path of more than 2^31 - 1 tokens.
void merge_raw_tree(std::string_view function, const RawTree& tree, int32_t page_size,
                    PrefixForest& out);

}  // namespace capillary
