// SPDX-License-Identifier: MIT
// The forest by definition, for tests: from the pairwise common prefixes of all requests,
// quadratic, and sharing no code with the library. A request's path is cut wherever another request
// leaves it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "capillary/prefix_forest.h"

namespace capillary::testing {

struct ReferenceForest {
  std::vector<ForestNode> nodes;  // page_offset: that of a block table
  std::vector<std::vector<int32_t>> node_pages;
  std::vector<int32_t> leaf_order;
  std::vector<int32_t> request_node;
  std::vector<int32_t> seq_lens;
  int64_t unique_tokens = 0;
  int64_t flat_tokens = 0;
};

class ReferenceBuilder {
 public:
  ReferenceBuilder(const BlockTableView& table, std::span<const int32_t> seq_lens,
                   int32_t page_size, bool share = true)
      : table_(table), lens_(seq_lens.begin(), seq_lens.end()), page_size_(page_size) {
    const int num_requests = static_cast<int>(lens_.size());
    for (int a = 0; a < num_requests; ++a) {
      std::vector<int64_t> shared(lens_.size(), 0);  // tokens that a has in common with b
      for (int b = 0; b < num_requests; ++b) {
        if (b == a || !share) continue;
        while (shared[b] + page_size_ <= std::min<int64_t>(lens_[a], lens_[b]) &&
               id(a, shared[b] / page_size_) == id(b, shared[b] / page_size_)) {
          shared[b] += page_size_;
        }
      }
      std::set<int64_t> cuts(shared.begin(), shared.end());
      cuts.insert(0);
      cuts.insert(lens_[a]);
      for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
        Run run{*cut, *std::next(cut), {}};
        for (int b = 0; b < num_requests; ++b) {
          if (b == a || shared[b] >= run.end) run.members.push_back(b);
        }
        runs_.insert(run);
      }
    }
  }

  ReferenceForest build() {
    std::vector<int32_t> everybody(lens_.size());
    for (size_t r = 0; r < lens_.size(); ++r) everybody[r] = static_cast<int32_t>(r);
    below(0, everybody, -1);
    for (const ForestNode& node : forest_.nodes) forest_.unique_tokens += node.num_tokens;
    for (const int32_t len : lens_) forest_.flat_tokens += len;
    return forest_;
  }

 private:
  struct Run {
    int64_t begin;
    int64_t end;
    std::vector<int32_t> members;
    auto operator<=>(const Run&) const = default;
  };

  int32_t id(int32_t row, int64_t page) const {
    return table_.data[row * table_.row_stride + page];
  }

  // Requests of `members` that end at `token`, then the runs that begin there, by smallest member.
  void below(int64_t token, const std::vector<int32_t>& members, int32_t parent) {
    for (const int32_t r : members) {
      if (lens_[r] != token) continue;
      forest_.leaf_order.push_back(r);
      forest_.request_node.push_back(parent);
      forest_.seq_lens.push_back(lens_[r]);
    }
    std::map<int32_t, Run> children;
    for (auto run = runs_.lower_bound(Run{token, 0, {}}); run != runs_.end(); ++run) {
      if (run->begin != token) break;
      if (std::includes(members.begin(), members.end(), run->members.begin(), run->members.end())) {
        children.emplace(run->members.front(), *run);
      }
    }
    for (const auto& [first, run] : children) {
      const auto node = static_cast<int32_t>(forest_.nodes.size());
      const auto position = static_cast<int32_t>(forest_.leaf_order.size());
      const int64_t first_page = run.begin / page_size_;
      forest_.nodes.push_back({.parent = parent,
                               .token_begin = static_cast<int32_t>(run.begin),
                               .num_tokens = static_cast<int32_t>(run.end - run.begin),
                               .request_begin = position,
                               .request_end = position + static_cast<int32_t>(run.members.size()),
                               .subtree_end = 0,
                               .page_offset = first * table_.row_stride + first_page});
      forest_.node_pages.emplace_back();
      for (int64_t page = first_page; page * page_size_ < run.end; ++page) {
        forest_.node_pages.back().push_back(id(first, page));
      }
      below(run.end, run.members, node);
      forest_.nodes[node].subtree_end = static_cast<int32_t>(forest_.nodes.size());
    }
  }

  BlockTableView table_;
  std::vector<int32_t> lens_;
  int32_t page_size_;
  std::set<Run> runs_;
  ReferenceForest forest_;
};

inline ReferenceForest reference_forest(const BlockTableView& table,
                                        std::span<const int32_t> seq_lens, int32_t page_size) {
  return ReferenceBuilder(table, seq_lens, page_size).build();
}

inline ReferenceForest reference_flat(const BlockTableView& table,
                                      std::span<const int32_t> seq_lens, int32_t page_size) {
  return ReferenceBuilder(table, seq_lens, page_size, false).build();
}

}  // namespace capillary::testing
