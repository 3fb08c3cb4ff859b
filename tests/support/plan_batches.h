// SPDX-License-Identifier: MIT
// Batches for planner tests: block tables with chosen or seeded random sharing, the CSR form of the same batch,
// and the level form that workload files use. Page ids past a row's length are wild on purpose.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "capillary/prefix_forest.h"

namespace capillary::testing {

inline constexpr int32_t kWildPage = INT32_MAX;

struct Batch {
  int32_t page_size = 16;
  std::vector<int32_t> seq_lens;
  std::vector<std::vector<int32_t>> pages;  // of each request, as many as its length needs
  int32_t next_page = 0;

  int32_t size() const { return static_cast<int32_t>(seq_lens.size()); }

  // A request that shares the first `shared_tokens` of `donor` (whole pages of it) and goes on alone.
  int32_t add(int32_t length, int32_t donor = -1, int32_t shared_tokens = 0) {
    const int32_t needed = (length + page_size - 1) / page_size;
    std::vector<int32_t> own;
    if (donor >= 0) {
      const auto& from = pages[static_cast<size_t>(donor)];
      const int32_t whole = std::min({shared_tokens, length, seq_lens[static_cast<size_t>(donor)]}) /
                            page_size;
      own.assign(from.begin(), from.begin() + whole);
    }
    while (static_cast<int32_t>(own.size()) < needed) own.push_back(next_page++);
    seq_lens.push_back(length);
    pages.push_back(std::move(own));
    return size() - 1;
  }

  // Row-major, one spare column of wild ids.
  std::vector<int32_t> table() const {
    std::vector<int32_t> ids(pages.size() * static_cast<size_t>(columns()), kWildPage);
    for (size_t r = 0; r < pages.size(); ++r)
      std::copy(pages[r].begin(), pages[r].end(),
                ids.begin() + static_cast<std::ptrdiff_t>(r * static_cast<size_t>(columns())));
    return ids;
  }
  int64_t columns() const {
    size_t most = 0;
    for (const auto& row : pages) most = std::max(most, row.size());
    return static_cast<int64_t>(most) + 1;
  }
  PrefixForest forest() const {
    const std::vector<int32_t> ids = table();
    return PrefixForest::from_block_table({ids.data(), size(), columns(), columns()}, seq_lens,
                                          page_size);
  }
  PrefixForest csr_forest() const;
};

// The same batch by way of nodes and their pages, built from what from_block_table found.
inline PrefixForest Batch::csr_forest() const {
  const std::vector<int32_t> ids = table();
  const PrefixForest by_table = forest();
  std::vector<int32_t> parent, num_tokens, indptr{0}, node_pages;
  std::vector<int32_t> request_node(seq_lens.size(), -1);
  for (const ForestNode& node : by_table.nodes()) {
    parent.push_back(node.parent);
    num_tokens.push_back(node.num_tokens);
    const int32_t count = (node.num_tokens + page_size - 1) / page_size;
    for (int32_t i = 0; i < count; ++i)
      node_pages.push_back(ids[static_cast<size_t>(node.page_offset + i)]);
    indptr.push_back(static_cast<int32_t>(node_pages.size()));
  }
  for (size_t position = 0; position < seq_lens.size(); ++position)
    request_node[static_cast<size_t>(by_table.leaf_order()[position])] =
        by_table.request_node()[position];
  return PrefixForest::from_csr(parent, num_tokens, indptr, node_pages, request_node, page_size);
}

// nodes[l] nodes of tokens[l] tokens on level l; child j hangs under parent j * parents / children.
inline PrefixForest level_forest(std::span<const int32_t> nodes, std::span<const int32_t> tokens,
                                 int32_t page_size) {
  std::vector<int32_t> parent, num_tokens;
  int64_t above = 0;  // index of the first node of the level above
  for (size_t level = 0; level < nodes.size(); ++level) {
    const auto begin = static_cast<int64_t>(parent.size());
    for (int64_t j = 0; j < nodes[level]; ++j) {
      parent.push_back(level == 0
                           ? -1
                           : static_cast<int32_t>(above + j * nodes[level - 1] / nodes[level]));
      num_tokens.push_back(tokens[level]);
    }
    above = begin;
  }
  return PrefixForest::from_parents(parent, num_tokens, page_size);
}

// Up to max_requests requests of up to max_length tokens: forks of earlier ones at random places (often deep
// chains of forks), exact copies, prefixes of others, empty ones, strangers.
inline Batch random_batch(uint64_t seed, int32_t max_requests, int32_t max_length) {
  std::mt19937_64 rng(seed);
  const auto below = [&](int32_t bound) {
    return static_cast<int32_t>(rng() % static_cast<uint64_t>(std::max(bound, 1)));
  };
  Batch batch;
  constexpr int32_t kPageSizes[] = {1, 2, 3, 8, 16, 16, 16, 32, 48, 64};
  batch.page_size = kPageSizes[below(10)];
  const int32_t num_requests = 1 + below(below(4) == 0 ? max_requests : std::min(max_requests, 24));
  // How the batch leans: alone, one big family, chains of forks, copies.
  const int32_t lean = below(5);
  const int32_t longest = 1 + below(below(3) == 0 ? max_length : std::min(max_length, 400));
  for (int32_t r = 0; r < num_requests; ++r) {
    const int32_t kind = below(20);
    if (kind == 0) {
      batch.add(0);
      continue;
    }
    if (r == 0 || kind <= (lean == 0 ? 12 : 2)) {
      batch.add(1 + below(longest));
      continue;
    }
    const int32_t donor = lean == 1 ? below(std::min(r, 2)) : lean == 2 ? r - 1 : below(r);
    const int32_t donor_length = batch.seq_lens[static_cast<size_t>(donor)];
    if (kind == 3 || lean == 4) {
      batch.add(donor_length, donor, donor_length);
    } else if (kind == 4) {
      batch.add(below(donor_length + 1), donor, donor_length);
    } else {
      const int32_t shared = lean == 2 ? donor_length : below(donor_length + 1);
      const int32_t fresh = below(3) == 0 ? below(8) : below(longest);
      batch.add(std::min(shared + fresh, max_length), donor, shared);
    }
  }
  return batch;
}

}  // namespace capillary::testing
