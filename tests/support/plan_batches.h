// SPDX-License-Identifier: MIT
// Batches for planner tests: seeded random block tables with every kind of sharing, and the same batch as CSR.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "capillary/prefix_forest.h"
#include "support/forest_fixtures.h"

namespace capillary::testing {

// Requests one by one, each going on from an earlier one or alone.
struct PageRows {
  int32_t page_size = 16;
  std::vector<int32_t> seq_lens;
  std::vector<std::vector<int32_t>> pages;  // of each request, as many as its length needs
  int32_t next_page = 0;

  int32_t size() const { return static_cast<int32_t>(seq_lens.size()); }

  // A request that shares the first `shared_tokens` of `donor` (whole pages of it) and goes on alone.
  void add(int32_t length, int32_t donor = -1, int32_t shared_tokens = 0) {
    const int32_t needed = (length + page_size - 1) / page_size;
    std::vector<int32_t> own;
    if (donor >= 0) {
      const auto& from = pages[static_cast<size_t>(donor)];
      const int32_t whole =
          std::min({shared_tokens, length, seq_lens[static_cast<size_t>(donor)]}) / page_size;
      own.assign(from.begin(), from.begin() + whole);
    }
    while (static_cast<int32_t>(own.size()) < needed) own.push_back(next_page++);
    seq_lens.push_back(length);
    pages.push_back(std::move(own));
  }

  Batch batch() const {
    Batch batch;
    batch.page_size = page_size;
    batch.seq_lens = seq_lens;
    for (const auto& row : pages)
      batch.num_columns = std::max(batch.num_columns, static_cast<int64_t>(row.size()));
    batch.row_stride = batch.num_columns + 1;
    batch.table.assign(pages.size() * static_cast<size_t>(batch.row_stride), INT32_MAX);
    for (size_t r = 0; r < pages.size(); ++r)
      std::copy(pages[r].begin(), pages[r].end(),
                batch.table.begin() + static_cast<int64_t>(r) * batch.row_stride);
    return batch;
  }
};

inline PrefixForest table_forest(const Batch& batch) {
  return PrefixForest::from_block_table(batch.view(), batch.seq_lens, batch.page_size);
}

// The same batch by way of nodes and their pages, as from_block_table found them.
inline CsrBatch csr_of(const Batch& batch, const PrefixForest& forest) {
  CsrBatch csr;
  for (const ForestNode& node : forest.nodes()) {
    csr.parent.push_back(node.parent);
    csr.num_tokens.push_back(node.num_tokens);
    const int64_t count = (node.num_tokens + batch.page_size - 1) / batch.page_size;
    for (int64_t i = 0; i < count; ++i)
      csr.page_ids.push_back(batch.table[static_cast<size_t>(node.page_offset + i)]);
    csr.page_indptr.push_back(static_cast<int32_t>(csr.page_ids.size()));
  }
  csr.request_node.assign(batch.seq_lens.size(), -1);
  for (size_t position = 0; position < batch.seq_lens.size(); ++position)
    csr.request_node[static_cast<size_t>(forest.leaf_order()[position])] =
        forest.request_node()[position];
  return csr;
}

inline PrefixForest parents_forest(const Fixture& fixture) {
  return PrefixForest::from_parents(fixture.parent, fixture.num_tokens, fixture.page_size);
}

// Up to max_requests requests of up to max_length tokens: forks of earlier ones at random places (often deep
// chains of forks), exact copies, prefixes of others, empty ones, strangers.
inline PageRows random_rows(uint64_t seed, int32_t max_requests, int32_t max_length) {
  std::mt19937_64 rng(seed);
  const auto below = [&](int32_t bound) {
    return static_cast<int32_t>(rng() % static_cast<uint64_t>(std::max(bound, 1)));
  };
  PageRows batch;
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
