// SPDX-License-Identifier: MIT
// Trees of the check cases. A TreeSpec says which tokens requests have in common; make_table lays it out as
// a serving engine would: a page is shared by the requests that have all of its tokens, and everything
// past such a page (or only partly filled) is a request's own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "capillary/prefix_forest.h"

namespace capillary::check {

struct TreeSpec {
  struct Node {
    int32_t parent;  // -1: a root
    int32_t num_tokens;
  };
  std::vector<Node> nodes;            // parents before children
  std::vector<int32_t> request_node;  // where a request ends; -1: an empty request

  int32_t add_node(int32_t parent, int32_t num_tokens) {
    nodes.push_back({parent, num_tokens});
    return static_cast<int32_t>(nodes.size()) - 1;
  }
  void add_request(int32_t node) { request_node.push_back(node); }
  // A node of its own with one request at its end.
  void add_leaf(int32_t parent, int32_t num_tokens) {
    add_request(num_tokens > 0 ? add_node(parent, num_tokens) : parent);
  }
};

// A block table and what lies in the pages it names.
struct Table {
  int32_t page_size = 1;
  int32_t num_pages = 0;  // of the pool; some are in no row
  std::vector<int32_t> seq_lens;
  std::vector<std::vector<int32_t>> rows;  // [request][ceil(len / page_size)]
  std::vector<uint64_t> request_keys;      // the query of a request is a function of this
  // [num_pages * page_size]: the K and V of a token slot are a function of this; 0: nothing is there.
  std::vector<uint64_t> token_keys;
};

// seed only moves pages about; contents depend on the tree alone, whatever the page size.
Table make_table(const TreeSpec& tree, int32_t page_size, uint64_t seed);

// A table that is there already (a workload's, an engine's): contents by page and slot.
// Throws InvalidArgument on a page id outside [0, num_pages).
Table adopt_table(const BlockTableView& view, std::span<const int32_t> seq_lens, int32_t page_size,
                  int32_t num_pages);

// The fixtures of the check cases; sizes are in tokens.
TreeSpec flat_tree(const std::vector<int32_t>& lengths);
TreeSpec star_tree(int32_t root, const std::vector<int32_t>& leaves);  // all share one prefix
// fan_out[l] children of every node of level l - 1 (level 0: that many roots), tokens[l] long; a request
// at every node of the last level.
TreeSpec level_tree(const std::vector<int32_t>& fan_out, const std::vector<int32_t>& tokens);
// A path of `depth` nodes, each with one request hanging off it (a binary tree of that depth, thinned out).
TreeSpec comb_tree(int32_t depth, int32_t node_tokens, int32_t leaf_tokens);
// Request i is the prefix of request i + 1.
TreeSpec chain_tree(int32_t num_requests, int32_t step_tokens);
TreeSpec random_tree(uint64_t seed, int32_t max_requests, int32_t max_node_tokens);

}  // namespace capillary::check
