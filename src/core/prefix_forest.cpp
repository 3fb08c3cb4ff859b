// SPDX-License-Identifier: MIT
// The entry points of PrefixForest: what is given is checked here and then goes one of two ways, a
// block table through ForestBuilder, anything tree-like through merge_caller_tree. Both end in the
// same canonical form.
#include "capillary/prefix_forest.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "capillary/error.h"
#include "core/forest_builder.h"
#include "core/forest_ids.h"
#include "core/forest_tree.h"

namespace capillary {

namespace {

// Tokens of a request, pages of a forest.
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

std::string at(std::string_view name, size_t index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

void check_page_size(std::string_view function, int32_t page_size) {
  if (page_size >= 1) return;
  throw InvalidArgument(five_parts(function, "page_size", "is " + std::to_string(page_size),
                                   "be at least 1", "pass the page size of the KV cache"));
}

void check_size(std::string_view function, const std::string& argument, size_t came,
                size_t expected, std::string_view remedy) {
  if (came == expected) return;
  throw InvalidArgument(five_parts(function, argument, "has " + std::to_string(came) + " entries",
                                   "have " + std::to_string(expected), remedy));
}

void check_token_counts(std::string_view function, const std::string& argument,
                        std::span<const int32_t> num_tokens) {
  for (size_t i = 0; i < num_tokens.size(); ++i) {
    if (num_tokens[i] >= 0) continue;
    throw InvalidArgument(five_parts(function, at(argument, i),
                                     "is " + std::to_string(num_tokens[i]), "be at least 0",
                                     "pass 0 for a node without tokens"));
  }
}

// Run i is num_tokens[i] tokens in page_ids[indptr[i] .. indptr[i + 1]). `prefix` names the arrays'
// owner.
void check_page_runs(std::string_view function, const std::string& prefix,
                     std::string_view indptr_name, std::span<const int32_t> num_tokens,
                     std::span<const int32_t> indptr, std::span<const int32_t> page_ids,
                     int32_t page_size) {
  const std::string indptr_argument = prefix + std::string(indptr_name);
  check_size(function, indptr_argument, indptr.size(), num_tokens.size() + 1,
             "pass one range end more than there are runs of pages");
  check_token_counts(function, prefix + "num_tokens", num_tokens);
  for (size_t i = 0; i < num_tokens.size(); ++i) {
    const int64_t begin = indptr[i];
    const int64_t end = indptr[i + 1];
    if (begin < 0 || end < begin || end > static_cast<int64_t>(page_ids.size())) {
      throw InvalidArgument(five_parts(
          function, at(indptr_argument, i),
          "and its successor are " + std::to_string(begin) + " and " + std::to_string(end),
          "be a range inside page_ids, which has " + std::to_string(page_ids.size()) + " entries",
          "let every range begin where the last one ended"));
    }
    const int64_t needed = num_pages(num_tokens[i], page_size);
    if (end - begin != needed) {
      throw InvalidArgument(five_parts(
          function, at(indptr_argument, i), "begins " + std::to_string(end - begin) + " pages",
          "begin " + std::to_string(needed) + " for " + std::to_string(num_tokens[i]) +
              " tokens with page_size " + std::to_string(page_size),
          "give every run exactly the pages that its tokens need"));
    }
    if (any_negative(page_ids.data() + begin, needed)) {
      size_t wrong = static_cast<size_t>(begin);
      while (page_ids[wrong] >= 0) ++wrong;
      throw InvalidArgument(five_parts(function, at(prefix + "page_ids", wrong),
                                       "is page id " + std::to_string(page_ids[wrong]),
                                       "be at least 0", "give every run real pages"));
    }
  }
}

}  // namespace

PrefixForest PrefixForest::from_block_table(const BlockTableView& table,
                                            std::span<const int32_t> seq_lens, int32_t page_size) {
  PrefixForest forest;
  ForestBuilder builder;
  builder.build("PrefixForest::from_block_table", table, seq_lens, page_size, true, forest);
  return forest;
}

PrefixForest PrefixForest::flat(const BlockTableView& table, std::span<const int32_t> seq_lens,
                                int32_t page_size) {
  PrefixForest forest;
  ForestBuilder builder;
  builder.build("PrefixForest::flat", table, seq_lens, page_size, false, forest);
  return forest;
}

PrefixForest PrefixForest::from_csr(std::span<const int32_t> parent,
                                    std::span<const int32_t> num_tokens,
                                    std::span<const int32_t> page_indptr,
                                    std::span<const int32_t> page_ids,
                                    std::span<const int32_t> request_node, int32_t page_size) {
  constexpr std::string_view kFunction = "PrefixForest::from_csr";
  check_page_size(kFunction, page_size);
  check_size(kFunction, "num_tokens", num_tokens.size(), parent.size(),
             "pass one token count for every node");
  check_page_runs(kFunction, "", "page_indptr", num_tokens, page_indptr, page_ids, page_size);
  for (size_t r = 0; r < request_node.size(); ++r) {
    if (request_node[r] >= -1 && request_node[r] < static_cast<int64_t>(parent.size())) continue;
    throw InvalidArgument(five_parts(kFunction, at("request_node", r),
                                     "is " + std::to_string(request_node[r]),
                                     "be -1 or a node below " + std::to_string(parent.size()),
                                     "name the node at which the request ends"));
  }
  std::vector<const int32_t*> pages(parent.size());
  for (size_t i = 0; i < parent.size(); ++i) pages[i] = page_ids.data() + page_indptr[i];
  PrefixForest forest;
  merge_caller_tree(kFunction, {parent, num_tokens, pages, request_node}, page_size, forest);
  return forest;
}

PrefixForest PrefixForest::from_levels(std::span<const Level> levels, int32_t num_requests,
                                       int32_t page_size) {
  constexpr std::string_view kFunction = "PrefixForest::from_levels";
  check_page_size(kFunction, page_size);
  if (num_requests < 0) {
    throw InvalidArgument(five_parts(kFunction, "num_requests",
                                     "is " + std::to_string(num_requests), "be at least 0",
                                     "pass the number of requests of the batch"));
  }
  const auto count = static_cast<size_t>(num_requests);
  std::vector<int32_t> parent;
  std::vector<int32_t> num_tokens;
  std::vector<const int32_t*> pages;
  std::vector<int32_t> deepest(count, -1);
  std::vector<int64_t> len(count, 0);
  // (node so far, group) of a request: equal pairs are one node of the raw tree.
  std::vector<std::pair<std::pair<int32_t, int32_t>, int32_t>> entries;
  for (size_t l = 0; l < levels.size(); ++l) {
    const Level& level = levels[l];
    const std::string prefix = at("levels", l) + ".";
    check_size(kFunction, prefix + "group", level.group.size(), count,
               "pass one group (or -1) for every request");
    check_page_runs(kFunction, prefix, "indptr", level.num_tokens, level.indptr, level.page_ids,
                    page_size);
    entries.clear();
    for (size_t r = 0; r < count; ++r) {
      const int32_t group = level.group[r];
      if (group < -1 || group >= static_cast<int64_t>(level.num_tokens.size())) {
        throw InvalidArgument(
            five_parts(kFunction, at(prefix + "group", r), "is " + std::to_string(group),
                       "be -1 or a group below " + std::to_string(level.num_tokens.size()),
                       "number the groups of a level from 0"));
      }
      if (group < 0 || level.num_tokens[static_cast<size_t>(group)] == 0) continue;
      if (len[r] % page_size != 0) {
        throw InvalidArgument(
            five_parts(kFunction, at(prefix + "group", r),
                       "goes on after " + std::to_string(len[r]) + " tokens on the levels before",
                       "follow a multiple of page_size " + std::to_string(page_size) + " tokens",
                       "move the tokens of the partial page to the request's last level"));
      }
      len[r] += level.num_tokens[static_cast<size_t>(group)];
      if (len[r] > kMost) {
        throw InvalidArgument(five_parts(
            kFunction, at(prefix + "group", r),
            "makes request " + std::to_string(r) + " " + std::to_string(len[r]) + " tokens long",
            "keep it within " + std::to_string(kMost), "check num_tokens"));
      }
      entries.push_back({{deepest[r], group}, static_cast<int32_t>(r)});
    }
    std::sort(entries.begin(), entries.end());
    for (size_t i = 0; i < entries.size(); ++i) {
      const auto& [node_and_group, request] = entries[i];
      if (i == 0 || entries[i - 1].first != node_and_group) {
        const auto group = static_cast<size_t>(node_and_group.second);
        parent.push_back(node_and_group.first);
        num_tokens.push_back(level.num_tokens[group]);
        pages.push_back(level.page_ids.data() + level.indptr[group]);
      }
      deepest[static_cast<size_t>(request)] = static_cast<int32_t>(parent.size()) - 1;
    }
  }
  PrefixForest forest;
  merge_caller_tree(kFunction, {parent, num_tokens, pages, deepest}, page_size, forest);
  return forest;
}

PrefixForest PrefixForest::from_parents(std::span<const int32_t> parent,
                                        std::span<const int32_t> num_tokens, int32_t page_size) {
  constexpr std::string_view kFunction = "PrefixForest::from_parents";
  check_page_size(kFunction, page_size);
  check_size(kFunction, "num_tokens", num_tokens.size(), parent.size(),
             "pass one token count for every node");
  check_token_counts(kFunction, "num_tokens", num_tokens);
  const std::vector<int32_t> order = preorder(kFunction, parent);

  std::vector<bool> is_inner(parent.size(), false);
  for (const int32_t p : parent) {
    if (p >= 0) is_inner[static_cast<size_t>(p)] = true;
  }
  std::vector<int32_t> moved(num_tokens.begin(), num_tokens.end());
  std::vector<int32_t> carry(parent.size(), 0);  // tokens that each child takes over
  std::vector<int64_t> path_tokens(parent.size(), 0);
  for (const int32_t node : order) {
    const auto i = static_cast<size_t>(node);
    const int64_t above = parent[i] < 0 ? 0 : path_tokens[static_cast<size_t>(parent[i])];
    const int64_t tokens =
        int64_t{num_tokens[i]} + (parent[i] < 0 ? 0 : carry[static_cast<size_t>(parent[i])]);
    path_tokens[i] = above + num_tokens[i];
    if (path_tokens[i] > kMost) {
      throw InvalidArgument(five_parts(kFunction, "num_tokens",
                                       "add up to " + std::to_string(path_tokens[i]) +
                                           " on the path to node " + std::to_string(i),
                                       "stay within " + std::to_string(kMost) + " on every path",
                                       "check the lengths"));
    }
    carry[i] = is_inner[i] ? static_cast<int32_t>(tokens % page_size) : 0;
    moved[i] = static_cast<int32_t>(tokens) - carry[i];
  }

  int64_t total_pages = 0;
  std::vector<int64_t> first_page(parent.size());
  std::vector<int32_t> request_node;
  for (size_t i = 0; i < parent.size(); ++i) {
    first_page[i] = total_pages;
    total_pages += num_pages(moved[i], page_size);
    if (!is_inner[i]) request_node.push_back(static_cast<int32_t>(i));
  }
  if (total_pages > kMost) {
    throw InvalidArgument(five_parts(
        kFunction, "num_tokens", "need " + std::to_string(total_pages) + " pages",
        "need no more than " + std::to_string(kMost), "use fewer tokens or larger pages"));
  }
  std::vector<int32_t> ids(static_cast<size_t>(total_pages));
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<const int32_t*> pages(parent.size());
  for (size_t i = 0; i < parent.size(); ++i) pages[i] = ids.data() + first_page[i];
  PrefixForest forest;
  merge_caller_tree(kFunction, {parent, moved, pages, request_node}, page_size, forest);
  // All ids differ and preorder is the order of first use, so renumbering is counting.
  std::iota(forest.page_ids_.begin(), forest.page_ids_.end(), 0);
  return forest;
}

}  // namespace capillary
