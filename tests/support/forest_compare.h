// SPDX-License-Identifier: MIT
// Differences between forests as text: empty when there is none, so that a failing EXPECT_EQ("", ...) says where
// it went wrong. Everything a forest shows is compared, page ids included.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "capillary/prefix_forest.h"
#include "support/forest_reference.h"

namespace capillary::testing {

inline std::string describe(const ForestNode& node) {
  return "{parent " + std::to_string(node.parent) + ", token_begin " +
         std::to_string(node.token_begin) + ", num_tokens " + std::to_string(node.num_tokens) +
         ", requests " + std::to_string(node.request_begin) + ".." +
         std::to_string(node.request_end) + ", subtree_end " + std::to_string(node.subtree_end) +
         ", page_offset " + std::to_string(node.page_offset) + "}";
}

template <typename T>
std::string list_difference(const char* what, std::span<const T> a, std::span<const T> b) {
  if (a.size() != b.size()) {
    return std::string(what) + " has " + std::to_string(a.size()) + " entries, not " +
           std::to_string(b.size());
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    return std::string(what) + "[" + std::to_string(i) + "] is " + std::to_string(a[i]) + ", not " +
           std::to_string(b[i]);
  }
  return "";
}

// Page offsets are compared only where asked: forests with ids of their own place them otherwise.
inline std::string node_difference(std::span<const ForestNode> a, std::span<const ForestNode> b,
                                   bool with_offsets) {
  if (a.size() != b.size()) {
    return std::to_string(a.size()) + " nodes, not " + std::to_string(b.size());
  }
  for (size_t i = 0; i < a.size(); ++i) {
    ForestNode expected = b[i];
    if (!with_offsets) expected.page_offset = a[i].page_offset;
    const bool same =
        a[i].parent == expected.parent && a[i].token_begin == expected.token_begin &&
        a[i].num_tokens == expected.num_tokens && a[i].request_begin == expected.request_begin &&
        a[i].request_end == expected.request_end && a[i].subtree_end == expected.subtree_end &&
        a[i].page_offset == expected.page_offset;
    if (!same) {
      return "node " + std::to_string(i) + " is " + describe(a[i]) + ", not " + describe(expected);
    }
  }
  return "";
}

// The same nodes, in the same places of the same page id array.
inline std::string difference(const PrefixForest& a, const PrefixForest& b) {
  std::string text = node_difference(a.nodes(), b.nodes(), true);
  if (text.empty()) text = list_difference("leaf_order", a.leaf_order(), b.leaf_order());
  if (text.empty()) text = list_difference("request_node", a.request_node(), b.request_node());
  if (text.empty()) text = list_difference("seq_lens", a.seq_lens(), b.seq_lens());
  if (text.empty()) text = list_difference("page_ids", a.page_ids(), b.page_ids());
  if (!text.empty()) return text;
  if (a.unique_tokens() != b.unique_tokens()) return "unique_tokens differ";
  if (a.flat_tokens() != b.flat_tokens()) return "flat_tokens differ";
  if (a.owns_page_ids() != b.owns_page_ids()) return "owns_page_ids differ";
  if (a.page_size() != b.page_size()) return "page_size differ";
  return "";
}

// Against the definition; page ids are looked up in `table` where the forest has none of its own.
inline std::string difference(const PrefixForest& a, const ReferenceForest& b,
                              const BlockTableView& table) {
  std::string text = node_difference(a.nodes(), b.nodes, !a.owns_page_ids());
  if (text.empty()) {
    text = list_difference<int32_t>("leaf_order", a.leaf_order(), b.leaf_order);
  }
  if (text.empty()) {
    text = list_difference<int32_t>("request_node", a.request_node(), b.request_node);
  }
  if (text.empty()) text = list_difference<int32_t>("seq_lens", a.seq_lens(), b.seq_lens);
  if (!text.empty()) return text;
  int64_t next = 0;
  for (size_t i = 0; i < b.nodes.size(); ++i) {
    const std::vector<int32_t>& pages = b.node_pages[i];
    const int64_t offset = a.nodes()[i].page_offset;
    if (a.owns_page_ids()) {
      if (offset != next) return "page ids of node " + std::to_string(i) + " not in preorder";
      next += static_cast<int64_t>(pages.size());
      if (next > static_cast<int64_t>(a.page_ids().size())) return "page_ids is too short";
    }
    const int32_t* ids = (a.owns_page_ids() ? a.page_ids().data() : table.data) + offset;
    if (!std::equal(pages.begin(), pages.end(), ids)) {
      return "page ids of node " + std::to_string(i) + " differ";
    }
  }
  if (a.owns_page_ids() && next != static_cast<int64_t>(a.page_ids().size())) {
    return "page_ids is too long";
  }
  if (a.unique_tokens() != b.unique_tokens) return "unique_tokens differ";
  if (a.flat_tokens() != b.flat_tokens) return "flat_tokens differ";
  return "";
}

}  // namespace capillary::testing
